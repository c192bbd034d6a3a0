//! Whether a failed request is worth another try, and when. Pure but for the budget, which all requests share.

use std::time::Duration;

use super::ErrorKind;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The average wait before the second try is half of this; it doubles with each try.
const SCALE: Duration = Duration::from_millis(500);
/// No wait is longer.
const CAP: Duration = Duration::from_secs(20);

/// Whether this kind of failure passes by itself.
pub(super) fn is_transient(kind: &ErrorKind) -> bool {
    match kind {
        ErrorKind::Throttled
        | ErrorKind::Timeout
        | ErrorKind::Network
        | ErrorKind::ServerError
        // The bytes were damaged on their way; they are sent, or asked for, again.
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
        | ErrorKind::Unknown
        | ErrorKind::Unsupported
        | ErrorKind::InvalidRequest
        | ErrorKind::TooLarge => false,
    }
}

/// How long to wait after `attempt` tries (1 or more): full jitter, `random` being uniform in 0..1. A store that names a
/// time gets it, up to the cap.
pub(super) fn backoff(attempt: u32, random: f64, retry_after: Option<Duration>) -> Duration {
    let ceiling = SCALE.saturating_mul(1 << attempt.saturating_sub(1).min(16)).min(CAP);
    let wait = ceiling.mul_f64(random.clamp(0.0, 1.0));
    wait.max(retry_after.unwrap_or_default().min(CAP))
}

/// Tokens that all requests of a client share: each retry takes some, each success gives one back. When a store is
/// down for everybody, retries stop multiplying the load on it.
#[derive(Debug)]
pub(super) struct Budget(Mutex<u32>);

impl Budget {
    const FULL: u32 = 500;
    const RETRY: u32 = 5;

    pub(super) fn new() -> Self {
        Self(Mutex::new(Self::FULL))
    }

    /// Whether one more retry may be made now.
    pub(super) fn take(&self) -> bool {
        let mut tokens = self.0.lock();
        match tokens.checked_sub(Self::RETRY) {
            Some(left) => {
                *tokens = left;
                true
            }
            None => false,
        }
    }

    /// A request succeeded, after a retry that took its tokens or at once.
    pub(super) fn put(&self, after_retry: bool) {
        let mut tokens = self.0.lock();
        let back = if after_retry { Self::RETRY } else { 1 };
        *tokens = (*tokens + back).min(Self::FULL);
    }
}

/// Random numbers for the jitter: nothing that has to be secret.
#[derive(Debug)]
pub(super) struct Dice(AtomicU64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// Uniform in 0..1 (splitmix64).
    pub(super) fn roll(&self) -> f64 {
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_wait_grows_with_the_tries_and_never_passes_the_cap(
            attempt in 1u32..u32::MAX,
            random in 0.0f64..1.0,
            asked in proptest::option::of(0u64..1_000_000),
        ) {
            let wait = backoff(attempt, random, asked.map(Duration::from_secs));
            prop_assert!(wait <= CAP);
            prop_assert!(wait >= asked.map_or(Duration::ZERO, Duration::from_secs).min(CAP));
            prop_assert!(asked.is_some() || wait <= SCALE.saturating_mul(1 << (attempt - 1).min(6)));
        }

        #[test]
        fn the_budget_allows_a_hundred_retries_in_a_row_and_recovers_by_successes(successes in 0u32..2000) {
            let budget = Budget::new();
            prop_assert_eq!((0..1000).filter(|_| budget.take()).count(), 100);
            (0..successes).for_each(|_| budget.put(false));
            let recovered = (0..1000).filter(|_| budget.take()).count() as u32;
            prop_assert_eq!(recovered, successes.min(Budget::FULL) / Budget::RETRY);
        }

        #[test]
        fn the_dice_stay_within_their_range(seed in any::<u64>()) {
            let dice = Dice::new(seed);
            let mean = (0..1000).map(|_| dice.roll()).inspect(|r| assert!((0.0..1.0).contains(r))).sum::<f64>() / 1000.0;
            prop_assert!((0.4..0.6).contains(&mean));
        }
    }
}
