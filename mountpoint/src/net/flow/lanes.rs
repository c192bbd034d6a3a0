//! Permits for a host's connections, in two lanes, and the measured throughput of those connections.
//!
//! Small requests (names, the beginning and the end of an upload, the first bytes of a file) never wait behind bulk transfers: some
//! connections are reserved for them. Bulk transfers use as many of the other connections as [`Width`] allows. Some connections are
//! reserved for bulk in the same way.

use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::net::flow::share::Carried;
use crate::net::flow::width::Width;
use crate::net::tcp::{Bytes, Direction, Moved};
use crate::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};

/// Number of connections per reserved one, for each lane. At least [`RESERVED_MIN`] are reserved, but never more than half of all.
const CONNECTIONS_PER_RESERVED: usize = 8;
const RESERVED_MIN: usize = 2;

/// Most bytes of a small body. Doubling it lets larger files pass the bulk transfers, and makes small requests wait longer for each
/// other.
pub(crate) const SMALL: u64 = 512 << 10;

/// The queue in which a request waits for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    Small,
    Bulk,
}

impl Lane {
    /// The lane of a request that moves `bytes`.
    pub(crate) fn of(bytes: u64) -> Self {
        if bytes <= SMALL { Self::Small } else { Self::Bulk }
    }
}

/// The permits for the connections of one host.
#[derive(Debug)]
pub(crate) struct Lanes {
    all: Arc<Semaphore>,
    small: Arc<Semaphore>,
    bulk: Arc<Semaphore>,
    bulk_waiting: AtomicUsize,
    bulk_busy: AtomicUsize,
    /// Exchanges in flight, by direction.
    receiving: AtomicUsize,
    sending: AtomicUsize,
    /// Number of bulk permits above the limit. Each is removed when its transfer ends.
    surplus: AtomicUsize,
    link: Mutex<Link>,
}

#[derive(Debug)]
struct Link {
    width: Width,
    /// Permits of the bulk lane, taken or free.
    places: usize,
    /// Open connections, with the bytes counted so far.
    open: Vec<(Moved, Bytes)>,
    total: Bytes,
    looked: Option<(Instant, u64)>,
    received: Carried,
    sent: Carried,
}

/// The permit to use one connection. Its drop passes the permit to the next request in the queue.
#[derive(Debug)]
pub(crate) struct LaneSlot {
    lanes: Arc<Lanes>,
    lane: Lane,
    in_lane: Option<OwnedSemaphorePermit>,
    _in_all: Option<OwnedSemaphorePermit>,
}

/// A guard that counts an exchange as a user of the line in one direction, until it is dropped.
#[derive(Debug)]
pub(crate) struct Exchange {
    lanes: Arc<Lanes>,
    direction: Direction,
}

impl Exchange {
    pub(crate) fn direction(&self) -> Direction {
        self.direction
    }

    /// The traffic of the line in this direction until now.
    pub(crate) fn carried(&self) -> Carried {
        self.lanes.carried(self.direction)
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.lanes.under_way(self.direction).fetch_sub(1, Relaxed);
    }
}

/// Number of connections reserved for each lane.
fn reserved(connections: usize) -> usize {
    (connections / CONNECTIONS_PER_RESERVED).max(RESERVED_MIN).min(connections / 2)
}

impl Lanes {
    pub(crate) fn new(connections: usize) -> Arc<Self> {
        let most = connections - reserved(connections);
        let link = Link {
            width: Width::new(most),
            places: most,
            open: Vec::new(),
            total: Bytes::default(),
            looked: None,
            received: Carried::default(),
            sent: Carried::default(),
        };
        Arc::new(Self {
            all: Arc::new(Semaphore::new(connections)),
            small: Arc::new(Semaphore::new(most)),
            bulk: Arc::new(Semaphore::new(most)),
            bulk_waiting: AtomicUsize::new(0),
            bulk_busy: AtomicUsize::new(0),
            receiving: AtomicUsize::new(0),
            sending: AtomicUsize::new(0),
            surplus: AtomicUsize::new(0),
            link: Mutex::new(link),
        })
    }

    /// Waits in the queue of a lane for a permit.
    pub(crate) async fn enter(self: &Arc<Self>, lane: Lane) -> LaneSlot {
        // None of the semaphores is ever closed, so waiting for them ends with a permit.
        let (in_lane, in_all) = match lane {
            Lane::Small => {
                let in_lane = Arc::clone(&self.small).acquire_owned().await;
                (in_lane, Arc::clone(&self.all).acquire_owned().await)
            }
            Lane::Bulk => {
                let _waits = Waits::new(&self.bulk_waiting);
                let in_lane = Arc::clone(&self.bulk).acquire_owned().await;
                let in_all = Arc::clone(&self.all).acquire_owned().await;
                self.bulk_busy.fetch_add(1, Relaxed);
                (in_lane, in_all)
            }
        };
        LaneSlot { lanes: Arc::clone(self), lane, in_lane: in_lane.ok(), _in_all: in_all.ok() }
    }

    /// Counts the bytes of a new connection from now on.
    pub(crate) fn opened(&self, moved: &Moved) {
        let mut link = self.link.lock();
        link.count();
        link.open.push((moved.clone(), Bytes::default()));
    }

    /// Bytes moved so far on all connections.
    pub(crate) fn moved(&self) -> u64 {
        self.link.lock().count().sum()
    }

    /// The traffic of the line in one direction until now, for a comparison with one connection.
    fn carried(&self, direction: Direction) -> Carried {
        let mut link = self.link.lock();
        self.share(&mut link);
        match direction {
            Direction::Received => link.received,
            Direction::Sent => link.sent,
        }
    }

    /// Counts an exchange that moves most of its bytes in this direction, until the guard is dropped.
    pub(crate) fn exchange(self: &Arc<Self>, direction: Direction) -> Exchange {
        self.under_way(direction).fetch_add(1, Relaxed);
        Exchange { lanes: Arc::clone(self), direction }
    }

    fn under_way(&self, direction: Direction) -> &AtomicUsize {
        match direction {
            Direction::Received => &self.receiving,
            Direction::Sent => &self.sending,
        }
    }

    /// Divides the bytes since the last look by the number of exchanges that share the line. That number changes all the time, so more
    /// looks make the shares more exact.
    fn share(&self, link: &mut Link) {
        let Bytes { received, sent } = link.count();
        link.received.look(received, self.receiving.load(Relaxed));
        link.sent.look(sent, self.sending.load(Relaxed));
    }

    /// Bytes per second of one busy connection, once measured.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.link.lock().width.rate()
    }

    /// Whether bulk transfers are in flight. Only then is the link measured.
    pub(crate) fn is_busy(&self) -> bool {
        self.bulk_busy.load(Relaxed) > 0
    }

    /// Counts the bytes since the last look, and adapts the number of bulk permits. False if no bulk transfer is in flight.
    pub(crate) fn look(&self, now: Instant) -> bool {
        let (busy, wanted) = (self.bulk_busy.load(Relaxed), self.bulk_waiting.load(Relaxed) > 0);
        let mut link = self.link.lock();
        self.share(&mut link);
        let total = link.total.sum();
        if !self.is_busy() {
            link.looked = None;
            return false;
        }
        if let Some((then, before)) = link.looked.replace((now, total)) {
            let took = now.saturating_duration_since(then);
            link.width.look(now, took, total.saturating_sub(before), busy, wanted);
            let limit = link.width.limit();
            if limit > link.places {
                self.bulk.add_permits(limit - link.places);
                link.places = limit;
            } else {
                link.places -= self.bulk.forget_permits(link.places - limit);
            }
            self.surplus.store(link.places - limit, Relaxed);
        }
        true
    }

    /// Bulk permits that exist: the limit, or more while earlier transfers run on.
    #[cfg(test)]
    fn places(&self) -> usize {
        self.link.lock().places
    }
}

impl Link {
    fn count(&mut self) -> Bytes {
        fn add(total: &mut u64, counted: &mut u64, now: u64) {
            *total += now.saturating_sub(*counted);
            *counted = now.max(*counted);
        }
        let total = &mut self.total;
        self.open.retain_mut(|(moved, counted)| {
            // Checked before the count is read, so the last bytes of a closed connection still count.
            let is_open = !moved.is_last();
            let now = moved.delivered();
            add(&mut total.received, &mut counted.received, now.received);
            add(&mut total.sent, &mut counted.sent, now.sent);
            is_open
        });
        self.total
    }
}

impl Drop for LaneSlot {
    fn drop(&mut self) {
        if self.lane != Lane::Bulk {
            return;
        }
        let lanes = &self.lanes;
        lanes.bulk_busy.fetch_sub(1, Relaxed);
        if lanes.surplus.load(Relaxed) > 0 {
            let mut link = lanes.link.lock();
            if link.places > link.width.limit()
                && let Some(permit) = self.in_lane.take()
            {
                permit.forget();
                link.places -= 1;
                lanes.surplus.store(link.places - link.width.limit(), Relaxed);
            }
        }
    }
}

/// A guard that counts a waiting request until it is dropped, also when the waiting future is dropped.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Most bytes of a request that the kernel may have taken and not sent yet.
const BUFFERED_MAX: u64 = 4 << 20;
/// Longest time allowed for the kernel to send its buffered bytes. A dead connection must be noticed while there is time for another
/// attempt.
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// Estimated time until the kernel has sent the end of a body of `bytes` after taking all of it: at most [`DRAIN_MAX`], and zero if the
/// rate is unknown.
pub(crate) fn drains_in(bytes: u64, rate: Option<f64>) -> Duration {
    let Some(rate) = rate else { return Duration::ZERO };
    Duration::try_from_secs_f64(bytes.min(BUFFERED_MAX) as f64 / rate.max(1.0))
        .map_or(DRAIN_MAX, |time| time.min(DRAIN_MAX))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn enter(lanes: &Arc<Lanes>, lane: Lane) -> Option<LaneSlot> {
        lanes.enter(lane).now_or_never()
    }

    #[test]
    fn each_lane_has_places_that_the_other_never_takes() {
        for connections in [2, 3, 4, 8, 16, 62, 64] {
            for (first, second) in [(Lane::Bulk, Lane::Small), (Lane::Small, Lane::Bulk)] {
                let lanes = Lanes::new(connections);
                let all: Vec<_> = std::iter::from_fn(|| enter(&lanes, first)).collect();
                let others: Vec<_> = std::iter::from_fn(|| enter(&lanes, second)).collect();
                assert_eq!(all.len() + others.len(), connections);
                assert!(others.len() >= RESERVED_MIN.min(connections / 2), "{connections}: {}", others.len());
                drop(all);
                let most = connections - reserved(connections);
                assert_eq!(enter(&lanes, second).is_some(), others.len() < most, "what is free serves both");
            }
        }
        let one = Lanes::new(1);
        let place = enter(&one, Lane::Bulk).unwrap();
        assert!(enter(&one, Lane::Small).is_none());
        drop(place);
        assert!(enter(&one, Lane::Small).is_some());
    }

    #[tokio::test]
    async fn a_waiter_that_gives_up_takes_no_place() {
        let lanes = Lanes::new(2);
        let held = enter(&lanes, Lane::Bulk).unwrap();
        let waiting = tokio::spawn({
            let lanes = Arc::clone(&lanes);
            async move { lanes.enter(Lane::Bulk).await }
        });
        tokio::task::yield_now().await;
        assert_eq!(lanes.bulk_waiting.load(Relaxed), 1);
        waiting.abort();
        assert!(waiting.await.is_err());
        assert_eq!(lanes.bulk_waiting.load(Relaxed), 0);
        drop(held);
        assert!(enter(&lanes, Lane::Bulk).is_some());
    }

    #[test]
    fn on_a_slow_link_bulk_gives_places_up_and_gets_them_back() {
        let lanes = Lanes::new(62);
        let moved: Vec<_> = (0..62).map(|_| Moved::default()).collect();
        moved.iter().for_each(|m| lanes.opened(m));
        let mut now = Instant::now();
        let mut held: Vec<_> = std::iter::from_fn(|| enter(&lanes, Lane::Bulk)).collect();
        assert_eq!(held.len(), 55);
        let mut seconds = |lanes: &Arc<Lanes>, held: &mut Vec<LaneSlot>, rate: u64, looks: u32| {
            for _ in 0..looks {
                now += Duration::from_millis(500);
                moved[0].count_received(rate / 2);
                lanes.look(now);
                // One transfer ends and another begins, if it may.
                held.pop();
                held.extend(std::iter::from_fn(|| enter(lanes, Lane::Bulk)));
            }
        };
        seconds(&lanes, &mut held, 6_250_000, 300);
        assert!(lanes.places() <= 14, "{} places", lanes.places());
        assert!(enter(&lanes, Lane::Small).is_some());
        seconds(&lanes, &mut held, 600_000_000, 10);
        assert_eq!(lanes.places(), 55);
    }

    #[test]
    fn what_closed_connections_carried_still_counts() {
        let lanes = Lanes::new(4);
        let (one, two) = (Moved::default(), Moved::default());
        lanes.opened(&one);
        lanes.opened(&two);
        one.count_received(10);
        assert_eq!(lanes.moved(), 10);
        one.count_received(5);
        drop(one);
        two.count_received(1);
        assert_eq!(lanes.moved(), 16);
        assert_eq!(lanes.link.lock().open.len(), 1);
    }

    #[test]
    fn the_end_of_a_body_has_time_to_leave_the_kernel_on_a_slow_link() {
        assert_eq!(drains_in(8 << 20, None), Duration::ZERO);
        assert!(drains_in(8 << 20, Some(90e6)) < Duration::from_millis(50));
        let slow = drains_in(8 << 20, Some(156e3));
        assert!(slow > Duration::from_secs(26) && slow < Duration::from_secs(28), "{slow:?}");
        assert_eq!(drains_in(u64::MAX, Some(0.0)), DRAIN_MAX);
    }
}
