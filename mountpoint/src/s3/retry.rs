//! Decides whether and when to retry a failed request. Pure, except for the slots in which retries run.

use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::s3::ErrorKind;
use crate::sync::Mutex;

/// Longest backoff before the second attempt; doubled for each further attempt, up to [`CAP`].
const SCALE: Duration = Duration::from_millis(200);
/// Longest backoff. A pause that the store requests is added to it, and may be longer.
const CAP: Duration = Duration::from_secs(5);
/// Most attempts to send bytes that the store refuses as damaged. After three refusals the damage is on this machine, and the error is
/// final.
const CORRUPT_ATTEMPTS: u32 = 3;

/// Whether a failure of this kind may disappear by itself.
pub(crate) fn is_transient(kind: &ErrorKind) -> bool {
    match kind {
        ErrorKind::Throttled
        | ErrorKind::Timeout
        | ErrorKind::Network
        | ErrorKind::ServerError
        // The bytes were damaged on their way: the next attempt sends them again.
        | ErrorKind::Corrupt => true,
        ErrorKind::NotFound
        | ErrorKind::NoSuchBucket
        | ErrorKind::Denied
        | ErrorKind::NoCredentials
        | ErrorKind::Changed
        | ErrorKind::Exists
        | ErrorKind::Archived
        | ErrorKind::WrongRegion(_)
        | ErrorKind::BadAnswer
        | ErrorKind::NotEncrypted
        | ErrorKind::Unknown
        | ErrorKind::Unsupported
        | ErrorKind::InvalidRequest
        | ErrorKind::TooLarge => false,
    }
}

/// Most attempts of a request with this kind of failure; `None`: only the time is limited.
fn attempts_limit(kind: &ErrorKind, attempts_max: Option<u32>) -> Option<u32> {
    match kind {
        ErrorKind::Corrupt => Some(attempts_max.unwrap_or(CORRUPT_ATTEMPTS).min(CORRUPT_ATTEMPTS)),
        kind if is_transient(kind) => attempts_max,
        _ => Some(1),
    }
}

/// The backoff after `attempts` attempts (1 or more): full jitter, with `random` uniform in 0..1. If the store requests a pause, the jitter
/// is added to it, so not all requests come back at the same moment.
fn backoff(attempts: u32, random: f64, retry_after: Option<Duration>) -> Duration {
    let ceiling = SCALE.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(CAP);
    retry_after.unwrap_or_default().saturating_add(ceiling.mul_f64(random.clamp(0.0, 1.0)))
}

/// The facts about a failed attempt that decide the time of the next one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Miss<'a> {
    pub(crate) kind: &'a ErrorKind,
    pub(crate) now: Instant,
    /// Time since the last byte from the store, at `now`.
    pub(crate) silent: Duration,
    /// The attempt's wait in the queue for a connection, which does not count as the store's silence.
    pub(crate) queued: Duration,
    pub(crate) retry_after: Option<Duration>,
    /// Whether the call must end, because more time would not help.
    pub(crate) hopeless: bool,
}

/// The retry limits of one call. Pure.
///
/// The time begins when the store is lost: with the first failure, or with the silence before it. A call that moves bytes may take as long
/// as they need. The last attempts begin within [`Patience::reserve`] before the end of the time. So a store that comes back before the end
/// is noticed, and a call to a silent store ends on time.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    limit: Duration,
    attempts_max: Option<u32>,
    /// Attempts since the last progress, including the one in flight.
    attempts: u32,
    lost: Option<Instant>,
}

/// Time reserved for the answer to the last attempt; for shorter limits, a quarter of the limit. Doubling it notices slower stores that
/// come back late, and makes the outages that programs survive shorter by as much.
const RESERVE: Duration = Duration::from_secs(5);

impl Patience {
    /// The limits of a call: its time, and the number of attempts if the user limits it.
    pub(crate) fn new(limit: Duration, attempts_max: Option<u32>) -> Self {
        Self { limit, attempts_max, attempts: 1, lost: None }
    }

    /// Lowers both limits to these.
    pub(crate) fn at_most(&mut self, attempts: u32, within: Duration) {
        self.attempts_max = Some(self.attempts_max.map_or(attempts, |max| max.min(attempts)));
        self.limit = self.limit.min(within);
    }

    /// Resets the count of attempts and the time: the call received bytes and continues behind them.
    pub(crate) fn progressed(&mut self) {
        (self.attempts, self.lost) = (1, None);
    }

    /// Start of the time in which this call has had no answer; `None` before the first failure.
    pub(crate) fn lost(&self) -> Option<Instant> {
        self.lost
    }

    fn reserve(&self) -> Duration {
        RESERVE.min(self.limit / 4)
    }

    /// Time left for the call: the longest silence of an attempt that begins now.
    pub(crate) fn left(&self, now: Instant) -> Duration {
        self.lost.map_or(self.limit, |lost| (lost + self.limit).saturating_duration_since(now))
    }

    /// Time until the last attempts begin.
    pub(crate) fn before_last(&self, now: Instant) -> Duration {
        self.left(now).saturating_sub(self.reserve())
    }

    /// Time limit of the answer to an attempt that begins now: `most`, or the time left. An attempt after the first leaves time for another
    /// one, unless too little is left for two.
    pub(crate) fn silence(&self, now: Instant, most: Duration) -> Duration {
        let before_last = self.before_last(now);
        match self.lost {
            Some(_) if before_last >= self.reserve() => most.min(before_last),
            _ => most.min(self.left(now)),
        }
    }

    /// Notes a failed attempt. Returns the wait before the next one; `None`: the error is final.
    pub(crate) fn missed(&mut self, miss: &Miss<'_>, random: f64) -> Option<Duration> {
        let lost = match self.lost {
            Some(lost) => lost + miss.queued,
            None => miss.now.checked_sub(miss.silent).unwrap_or(miss.now),
        };
        self.lost = Some(lost);
        let enough = attempts_limit(miss.kind, self.attempts_max).is_some_and(|max| self.attempts >= max);
        if enough || miss.hopeless {
            return None;
        }
        let wait = backoff(self.attempts, random, miss.retry_after);
        let (left, before_last) = (self.left(miss.now), self.before_last(miss.now));
        self.attempts = self.attempts.saturating_add(1);
        match before_last.is_zero() {
            true => (wait < left).then_some(wait),
            false => Some(wait.min(before_last)),
        }
    }

    /// Notes that an attempt was replaced by another after a silence of `quiet`, which does not count as an attempt. Returns whether time
    /// is left.
    pub(crate) fn silent(&mut self, now: Instant, quiet: Duration) -> bool {
        self.lost.get_or_insert_with(|| now.checked_sub(quiet).unwrap_or(now));
        !self.left(now).is_zero()
    }
}

/// Limits the number of concurrent retries, in proportion to the calls in flight, so that not all calls hit a failing store at once. A
/// retry without a free slot waits in a queue; it never fails for lack of one.
#[derive(Debug)]
pub(crate) struct Slots {
    free: Semaphore,
    counts: Mutex<Counts>,
}

#[derive(Debug)]
struct Counts {
    calls: usize,
    slots: usize,
}

/// The permit to run one retry.
pub(crate) type Slot<'a> = SemaphorePermit<'a>;

/// A guard that counts a call in flight.
#[derive(Debug)]
pub(crate) struct Call<'a>(&'a Slots);

/// Least number of slots ...
const SLOTS_MIN: usize = 4;
/// ... and the number of calls per slot beyond them.
const CALLS_PER_SLOT: usize = 4;

/// Number of slots for this number of calls.
fn slots(calls: usize) -> usize {
    (calls / CALLS_PER_SLOT).max(SLOTS_MIN)
}

impl Slots {
    pub(crate) fn new() -> Self {
        Self { free: Semaphore::new(SLOTS_MIN), counts: Mutex::new(Counts { calls: 0, slots: SLOTS_MIN }) }
    }

    /// Counts a call in flight until the guard is dropped.
    pub(crate) fn call(&self) -> Call<'_> {
        self.count(|calls| calls + 1);
        Call(self)
    }

    /// Waits in the queue for a slot.
    pub(crate) async fn slot(&self) -> Option<Slot<'_>> {
        // The semaphore is never closed, so waiting never fails.
        self.free.acquire().await.ok()
    }

    fn count(&self, change: impl Fn(usize) -> usize) {
        let mut counts = self.counts.lock();
        counts.calls = change(counts.calls);
        let wanted = slots(counts.calls);
        if wanted > counts.slots {
            self.free.add_permits(wanted - counts.slots);
            counts.slots = wanted;
        } else if wanted < counts.slots {
            // Slots in use are removed when they are free and the next call begins or ends.
            counts.slots -= self.free.forget_permits(counts.slots - wanted);
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.count(|calls| calls - 1);
    }
}

/// Random numbers for the jitter. They need not be unpredictable.
#[derive(Debug)]
pub(crate) struct Dice(Mutex<fastrand::Rng>);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Mutex::new(fastrand::Rng::with_seed(seed)))
    }

    /// A number, uniform in 0..1.
    pub(crate) fn roll(&self) -> f64 {
        self.0.lock().f64()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);
    const FIRST_BYTE: Duration = Duration::from_secs(30);

    fn seconds(s: f64) -> Duration {
        Duration::from_secs_f64(s)
    }

    fn miss(kind: &ErrorKind, now: Instant) -> Miss<'_> {
        let none = Duration::ZERO;
        Miss { kind, now, silent: none, queued: none, retry_after: None, hopeless: false }
    }

    /// The effect of an unreachable store on a request.
    #[derive(Clone, Copy, Debug)]
    enum Away {
        /// Refused, or 503: at once.
        Says,
        /// Requests sent during the outage are never answered, not even afterwards.
        Swallows,
    }

    /// Runs one call that begins `before` seconds before an outage of `outage` (or, negative, after its beginning). Returns the time of
    /// its success, in seconds after the outage's beginning.
    fn ride(away: Away, before: f64, outage: f64, dice: &Dice) -> Option<f64> {
        let start = Instant::now() + LIMIT;
        let at = |now: Instant| now.duration_since(start - LIMIT).as_secs_f64() - 60.0;
        let mut now =
            start - Duration::from_secs_f64(before.max(0.0)) + Duration::from_secs_f64((-before).max(0.0));
        let mut patience = Patience::new(LIMIT, None);
        loop {
            // An attempt in flight when the outage begins is lost.
            let lost = if at(now) < 0.0 { start } else { now };
            if at(now) >= outage {
                return Some(at(now));
            }
            let (kind, silent) = match away {
                Away::Says => (ErrorKind::Network, Duration::ZERO),
                // An attempt of before the outage was silent since it began.
                Away::Swallows => (ErrorKind::Timeout, patience.silence(lost, FIRST_BYTE)),
            };
            now = lost + silent;
            let wait = patience.missed(&Miss { silent, ..miss(&kind, now) }, dice.roll())?;
            now += wait;
        }
    }

    proptest! {
        #[test]
        fn a_store_that_comes_back_within_the_limit_fails_nothing(
            seed in any::<u64>(),
            before in -40.0f64..15.0,
            outage in 0.1f64..45.0,
            swallows in any::<bool>(),
        ) {
            let away = if swallows { Away::Swallows } else { Away::Says };
            let back = ride(away, before, outage, &Dice::new(seed));
            prop_assert!(back.is_some(), "{away:?}");
        }

        #[test]
        fn even_a_silent_outage_of_nearly_the_whole_limit_fails_nothing(seed in any::<u64>(), outage in 45.0f64..54.9) {
            prop_assert!(ride(Away::Swallows, 0.0, outage, &Dice::new(seed)).is_some());
            prop_assert!(ride(Away::Says, 0.0, outage, &Dice::new(seed)).is_some());
        }

        #[test]
        fn a_store_that_stays_away_is_an_error_when_the_limit_is_over(
            seed in any::<u64>(),
            limit in 1u64..3600,
            swallows in any::<bool>(),
            asked in proptest::option::of(0u64..100),
        ) {
            let (dice, limit) = (Dice::new(seed), Duration::from_secs(limit));
            let start = Instant::now();
            let (mut now, mut patience) = (start, Patience::new(limit, None));
            let mut attempts = 0;
            let last = loop {
                attempts += 1;
                prop_assert!(attempts < 10_000);
                let begun = now;
                let silent = if swallows { patience.silence(now, FIRST_BYTE) } else { Duration::ZERO };
                now += silent;
                // A store that says nothing asks for nothing.
                let retry_after = asked.filter(|_| !swallows).map(Duration::from_secs);
                match patience.missed(&Miss { silent, retry_after, ..miss(&ErrorKind::Timeout, now) }, dice.roll()) {
                    Some(wait) => now += wait,
                    None => break begun,
                }
            };
            prop_assert!(now <= start + limit, "it took {:?}", now - start);
            let reserve = RESERVE.min(limit / 4) * if swallows { 2 } else { 1 };
            prop_assert!(last + reserve >= start + limit || last == start, "the last began at {:?}", last - start);
        }

        #[test]
        fn a_wait_grows_with_the_tries_up_to_the_cap_unless_the_store_asks(
            attempts in 1u32..u32::MAX,
            random in 0.0f64..1.0,
            asked in proptest::option::of(0u64..1_000_000),
        ) {
            let asked = asked.map(Duration::from_secs);
            let wait = backoff(attempts, random, asked);
            prop_assert!(wait >= asked.unwrap_or_default());
            let ours = wait - asked.unwrap_or_default();
            prop_assert!(ours <= CAP && ours <= SCALE.saturating_mul(1 << (attempts - 1).min(6)));
        }

        #[test]
        fn the_dice_stay_within_their_range(seed in any::<u64>()) {
            let dice = Dice::new(seed);
            let mean = (0..1000).map(|_| dice.roll()).inspect(|r| assert!((0.0..1.0).contains(r))).sum::<f64>() / 1000.0;
            prop_assert!((0.4..0.6).contains(&mean));
        }
    }

    #[test]
    fn tries_count_only_if_the_user_wants_them_counted() {
        let now = Instant::now();
        let mut counted = Patience::new(LIMIT, Some(3));
        let attempts =
            (0..).take_while(|_| counted.missed(&miss(&ErrorKind::Throttled, now), 0.5).is_some()).count();
        assert_eq!(attempts + 1, 3);
        let mut free = Patience::new(LIMIT, None);
        assert!((0..100).all(|_| free.missed(&miss(&ErrorKind::Throttled, now), 0.5).is_some()));
        let mut damaged = Patience::new(LIMIT, None);
        let attempts =
            (0..).take_while(|_| damaged.missed(&miss(&ErrorKind::Corrupt, now), 0.5).is_some()).count();
        assert_eq!(attempts + 1, 3, "damage that stays is ours");
        for kind in [ErrorKind::NotFound, ErrorKind::Denied, ErrorKind::BadAnswer] {
            assert_eq!(
                Patience::new(LIMIT, None).missed(&miss(&kind, now), 0.5),
                None,
                "{kind:?} is an answer"
            );
        }
    }

    #[test]
    fn time_in_the_queue_is_not_the_stores_fault_and_progress_begins_anew() {
        let start = Instant::now();
        let mut patience = Patience::new(LIMIT, None);
        let network = ErrorKind::Network;
        assert!(patience.missed(&miss(&network, start), 1.0).is_some());
        let later = start + seconds(90.0);
        let miss_in_queue = Miss { queued: seconds(80.0), ..miss(&network, later) };
        assert!(patience.missed(&miss_in_queue, 1.0).is_some(), "10 of the 90 s were the store's");
        assert_eq!(later + patience.left(later), start + seconds(140.0));
        patience.progressed();
        assert_eq!((patience.lost(), patience.attempts), (None, 1));
        let much_later = start + seconds(900.0);
        assert!(patience.missed(&miss(&network, much_later), 1.0).is_some());
    }

    #[test]
    fn the_last_try_leaves_time_for_an_answer_and_a_hopeless_one_is_the_last() {
        let start = Instant::now();
        let mut patience = Patience::new(LIMIT, None);
        let server = ErrorKind::ServerError;
        let asked = Miss { retry_after: Some(seconds(3600.0)), ..miss(&server, start) };
        assert_eq!(patience.missed(&asked, 0.5), Some(LIMIT - RESERVE), "cut to fit");
        let last = start + LIMIT - RESERVE;
        assert_eq!(
            patience.missed(&Miss { now: last, ..asked }, 0.5),
            None,
            "asked for longer than there is"
        );
        assert_eq!(patience.missed(&miss(&server, start + LIMIT), 0.5), None);
        let hopeless = Miss { hopeless: true, ..miss(&server, start) };
        assert_eq!(Patience::new(LIMIT, None).missed(&hopeless, 0.5), None);
    }

    #[tokio::test]
    async fn retries_run_in_proportion_to_the_calls_and_wait_for_a_slot() {
        let slots = Slots::new();
        let calls: Vec<_> = (0..100).map(|_| slots.call()).collect();
        let mut held = Vec::new();
        for _ in 0..25 {
            held.push(slots.slot().await);
        }
        assert!(futures_util::FutureExt::now_or_never(slots.slot()).is_none(), "25 of 100");
        held.pop();
        assert!(
            futures_util::FutureExt::now_or_never(slots.slot()).is_some(),
            "a freed slot goes to the next retry"
        );
        drop(calls);
        // The slots in use are gone once they are free and the next call begins.
        drop(held);
        let _one = slots.call();
        assert_eq!(slots.free.available_permits(), SLOTS_MIN);
    }
}
