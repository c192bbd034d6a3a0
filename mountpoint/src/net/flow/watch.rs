//! Time limits of an exchange: it ends when no byte moves for a while, or at its deadline. On a line shared with other transfers, the
//! exchange may run past the deadline.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::net::flow::lanes::{Exchange, Lanes, drains_in};
use crate::net::flow::share::{Carried, Floor, Verdict};
use crate::net::tcp::{Bytes, Direction, Moved};
use crate::sync::Arc;

/// Number of checks within `quiet_max`, or until the deadline if that is sooner. A byte that moved right after a check makes the wait
/// longer by one interval at most. Doubling it finds silence an eighth sooner, for twice the wakes of a long transfer.
const LOOKS: u32 = 4;

/// Lateness of a timer from which on the process counts as stopped: by SIGSTOP, a frozen control group, or a paused virtual machine. The
/// answer may wait in the kernel meanwhile, so the late time counts towards no limit. Doubling it lets shorter stops count as the store's
/// silence.
const STOPPED_FROM: Duration = Duration::from_secs(1);

/// Time limits of one exchange. A timer compares the counts of moved bytes, including those that the kernel holds, when it fires: the watch
/// costs nothing per byte.
pub(crate) struct Watch {
    clock: Clock,
    moved: Moved,
    seen: Bytes,
    since: Instant,
    quiet_max: Duration,
    deadline: Instant,
    /// The time from the start to the deadline.
    whole: Duration,
    sharing: Option<Sharing>,
    /// The lanes and the length of the request's body. Its end may still leave the kernel's buffers while no byte seems to move.
    draining: Option<(Arc<Lanes>, u64)>,
    timer: Option<Timer>,
}

struct Timer {
    due: Instant,
    sleep: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// The line that an exchange shares with others.
struct Sharing {
    exchange: Exchange,
    floor: Floor,
    /// Bytes of the connection in that direction when the exchange began.
    began: u64,
    /// The time and traffic of the line at the first look; `None` before it. Most exchanges end before it.
    seen: Option<(Instant, Carried)>,
}

/// The reason why the wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expired {
    /// No byte in either direction for this long.
    Quiet(Duration),
    /// The time for the whole call is up, and the line as a whole is too slow for an extension.
    Deadline,
    /// The time for the whole call is up, and other connections moved several times as many bytes.
    Behind,
}

impl std::fmt::Display for Expired {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Quiet(for_long) => write!(f, "no byte for {} s", for_long.as_secs_f32()),
            Self::Deadline => f.write_str("the time for the whole operation is up"),
            Self::Behind => {
                f.write_str("the time for the whole operation is up, and other connections are far faster")
            }
        }
    }
}

impl std::error::Error for Expired {}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("quiet_max", &self.quiet_max).finish_non_exhaustive()
    }
}

impl Watch {
    pub(crate) fn new(clock: &Clock, moved: &Moved, quiet_max: Duration, deadline: Instant) -> Self {
        let seen = moved.total();
        let since = clock.now();
        Self {
            clock: clock.clone(),
            moved: moved.clone(),
            seen,
            since,
            quiet_max,
            deadline,
            whole: deadline.saturating_duration_since(since),
            sharing: None,
            draining: None,
            timer: None,
        }
    }

    /// Allows for a request body of `bytes`: before the answer, the connection may be quiet for the time that the kernel needs to send the
    /// end of the body.
    pub(crate) fn draining(self, lanes: &Arc<Lanes>, bytes: u64) -> Self {
        Self { draining: (bytes > 0).then(|| (Arc::clone(lanes), bytes)), ..self }
    }

    /// Marks the exchange as one of several on a line: it runs past the deadline while it has its share of a line above the floor. Most of
    /// its bytes move in `direction`.
    pub(crate) fn sharing(self, lanes: &Arc<Lanes>, floor: Floor, direction: Direction) -> Self {
        let (exchange, began) = (lanes.exchange(direction), self.seen.of(direction));
        Self { sharing: Some(Sharing { exchange, floor, began, seen: None }), ..self }
    }

    /// Sets the limit on silence from here on.
    pub(crate) fn quiet_max(&mut self, quiet_max: Duration) {
        self.draining = None;
        if quiet_max != self.quiet_max {
            (self.quiet_max, self.timer, self.since) = (quiet_max, None, self.clock.now());
        }
    }

    /// Ready when a time limit is reached. Poll this while the exchange makes no progress.
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<Expired> {
        loop {
            if let Some(timer) = &mut self.timer
                && timer.sleep.as_mut().poll(cx).is_pending()
            {
                return Poll::Pending;
            }
            let now = self.clock.now();
            self.forgive(now);
            // Most exchanges end before the first look and need no system call. A request with a body needs one already now, for the count
            // to compare with.
            let asks = self.timer.is_some() || self.draining.is_some();
            let moved = if asks { self.moved.delivered() } else { self.moved.total() };
            let is_up = now >= self.deadline;
            if let Some(expired) = self.look(now, moved, is_up) {
                return Poll::Ready(expired);
            }
            let mut patience = self.quiet_max;
            if moved != self.seen {
                (self.seen, self.since) = (moved, now);
            } else if now.saturating_duration_since(self.since) >= patience {
                if let Some((lanes, bytes)) = &self.draining {
                    patience += drains_in(*bytes, lanes.rate());
                }
                if now.saturating_duration_since(self.since) >= patience {
                    return Poll::Ready(Expired::Quiet(patience));
                }
            }
            let wake = (self.since + patience).min(now + self.quiet_max.min(self.whole) / LOOKS);
            let wake = if is_up { wake } else { wake.min(self.deadline) };
            let sleep = Box::pin(self.clock.sleep(wake.saturating_duration_since(now)));
            self.timer = Some(Timer { due: wake, sleep });
        }
    }

    /// Moves all limits by the lateness of the timer, if this process was stopped.
    fn forgive(&mut self, now: Instant) {
        let Some(timer) = &self.timer else { return };
        let late = now.saturating_duration_since(timer.due);
        if late >= STOPPED_FROM {
            self.since += late;
            self.deadline += late;
            if let Some((then, _)) = self.sharing.as_mut().and_then(|sharing| sharing.seen.as_mut()) {
                *then += late;
            }
        }
    }

    /// Compares the exchange with its line, when the timer has fired. Returns the reason to end the exchange, if there is one.
    fn look(&mut self, now: Instant, moved: Bytes, is_up: bool) -> Option<Expired> {
        let Some(sharing) = &mut self.sharing else { return is_up.then_some(Expired::Deadline) };
        match sharing.seen {
            None if is_up => Some(Expired::Deadline),
            None => {
                if self.timer.is_some() {
                    sharing.seen = Some((now, sharing.exchange.carried()));
                }
                None
            }
            Some(_) if !is_up => None,
            Some((then, before)) => {
                let own = moved.of(sharing.exchange.direction()).saturating_sub(sharing.began);
                let carried = sharing.exchange.carried();
                match sharing.floor.judge(own, before, carried, now.saturating_duration_since(then)) {
                    Verdict::GoesOn => None,
                    Verdict::Behind => Some(Expired::Behind),
                    Verdict::Below => Some(Expired::Deadline),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const QUIET: Duration = Duration::from_secs(20);
    const WHOLE: Duration = Duration::from_secs(60);

    /// The end of the wait, with a byte moving every `every` seconds: in seconds from the start, with the reason.
    async fn ends(every: u64, body: Option<(&Arc<Lanes>, u64)>) -> (u64, Expired) {
        let (clock, moved) = (Clock::manual(), Moved::default());
        let mut watch = Watch::new(&clock, &moved, QUIET, clock.now() + WHOLE);
        if let Some((lanes, bytes)) = body {
            watch = watch.draining(lanes, bytes);
        }
        let waiting = tokio::spawn(async move { poll_fn(|cx| watch.poll_expired(cx)).await });
        for second in 1.. {
            clock.advance(Duration::from_secs(1));
            if second % every == 0 {
                moved.count_received(1);
            }
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            if waiting.is_finished() {
                return (second, waiting.await.unwrap());
            }
        }
        unreachable!()
    }

    #[tokio::test]
    async fn silence_ends_the_wait_and_a_byte_now_and_then_lasts_to_the_deadline() {
        assert_eq!(ends(1000, None).await, (20, Expired::Quiet(QUIET)));
        assert_eq!(ends(15, None).await, (60, Expired::Deadline));
    }

    #[tokio::test]
    async fn time_in_which_the_process_was_stopped_counts_towards_no_limit() {
        for every in [1000, 15] {
            let (clock, moved) = (Clock::manual(), Moved::default());
            let mut watch = Watch::new(&clock, &moved, QUIET, clock.now() + WHOLE);
            let waiting = tokio::spawn(async move { poll_fn(|cx| watch.poll_expired(cx)).await });
            tokio::task::yield_now().await;
            let start = clock.now();
            let stopped = Duration::from_secs(120);
            clock.advance(stopped);
            for second in 1.. {
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
                if waiting.is_finished() {
                    break;
                }
                clock.advance(Duration::from_secs(1));
                if second % every == 0 {
                    moved.count_received(1);
                }
            }
            let limit = if every == 15 { WHOLE } else { QUIET };
            let took = clock.now() - start - stopped;
            assert!(took <= limit && took >= limit - QUIET / LOOKS, "{took:?} of {limit:?}");
        }
    }

    #[tokio::test]
    async fn a_byte_right_after_the_wait_began_lengthens_it_by_a_quarter_at_most() {
        let (clock, moved) = (Clock::manual(), Moved::default());
        let mut watch = Watch::new(&clock, &moved, QUIET, clock.now() + WHOLE);
        let start = clock.now();
        let waiting = tokio::spawn(async move { poll_fn(|cx| watch.poll_expired(cx)).await });
        tokio::task::yield_now().await;
        moved.count_received(1);
        while !waiting.is_finished() {
            clock.advance(Duration::from_secs(1));
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(waiting.await.unwrap(), Expired::Quiet(QUIET));
        assert!(clock.now() - start <= QUIET + QUIET / 4, "{:?}", clock.now() - start);
    }

    #[tokio::test]
    async fn a_body_on_a_slow_link_has_time_to_leave_before_its_answer_is_missed() {
        let lanes = Lanes::new(8);
        assert_eq!(ends(1000, Some((&lanes, 8 << 20))).await.0, 20, "nothing is known of the link");
        let moved = Moved::default();
        lanes.opened(&moved);
        let _busy: Vec<_> = {
            use futures_util::FutureExt as _;
            std::iter::from_fn(|| lanes.enter(crate::net::flow::lanes::Lane::Bulk).now_or_never()).collect()
        };
        let start = Instant::now();
        lanes.look(start);
        moved.count_received(1_200_000);
        lanes.look(start + Duration::from_secs(1));
        let rate = lanes.rate().unwrap();
        let (second, why) = ends(1000, Some((&lanes, 4 << 20))).await;
        let longer = Duration::from_secs_f64((4 << 20) as f64 / rate);
        assert_eq!(why, Expired::Quiet(QUIET + longer));
        assert_eq!(second, (QUIET + longer).as_secs() + 1);
    }

    /// The time at which the first of connections with these rates (bytes a second) is given up, and the reason; `None`: not within a
    /// thousand seconds.
    async fn shares(rates: &[u64]) -> Option<(u64, Expired)> {
        shares_of(&rates.iter().map(|&rate| (Direction::Received, rate)).collect::<Vec<_>>()).await
    }

    /// The verdict on connections that move bytes in these directions.
    async fn shares_of(rates: &[(Direction, u64)]) -> Option<(u64, Expired)> {
        let (clock, lanes) = (Clock::manual(), Lanes::new(16));
        let moved: Vec<_> = rates.iter().map(|_| Moved::default()).collect();
        moved.iter().for_each(|moved| lanes.opened(moved));
        let _others: Vec<_> = rates[1..].iter().map(|(direction, _)| lanes.exchange(*direction)).collect();
        let floor = Floor { rate: 1000, after: Duration::from_secs(10) };
        let watch = Watch::new(&clock, &moved[0], QUIET, clock.now() + WHOLE);
        let mut watch = watch.sharing(&lanes, floor, rates[0].0);
        let waiting = tokio::spawn(async move { poll_fn(|cx| watch.poll_expired(cx)).await });
        for second in 1..1000 {
            moved.iter().zip(rates).for_each(|(moved, &(direction, rate))| match direction {
                Direction::Received => moved.count_received(rate),
                Direction::Sent => moved.count_sent(rate),
            });
            clock.advance(Duration::from_secs(1));
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            if waiting.is_finished() {
                return Some((second, waiting.await.unwrap()));
            }
        }
        None
    }

    #[tokio::test]
    async fn at_the_deadline_a_fair_transfer_continues_and_a_trickling_one_ends() {
        assert_eq!(shares(&[300; 10]).await, None, "the line is slow, not the store");
        assert_eq!(shares(&[100, 400, 300, 300]).await, None, "TCP is not fair");
        assert_eq!(shares(&[10, 400, 400, 400]).await, Some((60, Expired::Behind)));
        let (second, why) = shares(&[50; 10]).await.unwrap();
        assert!(
            why == Expired::Deadline && second <= 65,
            "the line carries next to nothing: {why} at {second}"
        );
        let (second, why) = shares(&[500]).await.unwrap();
        assert!(why == Expired::Deadline && second <= 65, "it is alone: {why} at {second}");
    }

    /// A line that is slow one way and fast the other.
    #[tokio::test]
    async fn a_transfer_is_not_behind_because_the_other_direction_moves_more() {
        let ways = [(Direction::Sent, Direction::Received), (Direction::Received, Direction::Sent)];
        for (slow, fast) in ways {
            let rates: Vec<_> = [(slow, 300); 4].into_iter().chain([(fast, 10_000); 4]).collect();
            assert_eq!(shares_of(&rates).await, None, "{slow:?}");
            let rates: Vec<_> = [(slow, 100); 4].into_iter().chain([(fast, 10_000); 4]).collect();
            let (second, why) = shares_of(&rates).await.unwrap();
            assert!(why == Expired::Deadline && second <= 75, "below the least: {why} at {second}");
        }
    }

    #[tokio::test]
    async fn a_trickling_transfer_is_behind_however_many_go_the_other_way() {
        let ways = [(Direction::Sent, Direction::Received), (Direction::Received, Direction::Sent)];
        for (one, other) in ways {
            let rates: Vec<_> = [(one, 50), (one, 1100)].into_iter().chain([(other, 10_000); 12]).collect();
            assert_eq!(shares_of(&rates).await, Some((60, Expired::Behind)), "{one:?}");
        }
    }
}
