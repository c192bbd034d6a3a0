//! Hedging: decides when an answer is late, and whether a second request for it may be sent (`hedged.rs` sends it).
//!
//! An answer is late after twice the time within which 19 of 20 answers began. Only a small share of all requests is hedged, so a store
//! that is slow as a whole, or throttles, gets hardly more requests.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use http::StatusCode;

use crate::clock::Clock;
use crate::sync::Mutex;

/// Number of recent answers that set the limit. Before there are as many, no answer is late.
const SAMPLES: usize = 64;
/// Number of answers after which the limit is computed again.
const EVERY: u64 = 16;
/// Rank of the sample that sets the limit, by time: 19 of 20 are faster.
const TELLING: usize = SAMPLES * 19 / 20;
/// Factor between that time and the limit. Doubling it hedges later, and wastes half the requests where times vary widely.
const TIMES: u32 = 2;
/// Least limit. A busy machine causes delays of this length without any fault of the store.
const LEAST: Duration = Duration::from_millis(50);
/// A body stalls if it brings no byte for this many times the limit, but at least [`BODY_LEAST`]: bytes of one body may come in bursts.
const BODY_TIMES: u32 = 10;
/// Least silence of a stalled body.
const BODY_LEAST: Duration = Duration::from_millis(500);
/// Hedges per request at most. One in a hundred requests to a healthy store is slow.
const SHARE: f64 = 0.02;
/// Most hedges that can be saved up in quiet times.
const SAVED_MAX: f64 = 4.0;

/// The limit beyond which an answer is late, and the number of hedges that may be sent.
#[derive(Debug, Default)]
pub(crate) struct Hedge(Mutex<Learned>);

#[derive(Debug)]
struct Learned {
    waits: [Duration; SAMPLES],
    answers: u64,
    late: Option<Duration>,
    saved: f64,
}

impl Default for Learned {
    fn default() -> Self {
        Self { waits: [Duration::ZERO; SAMPLES], answers: 0, late: None, saved: 0.0 }
    }
}

impl Learned {
    fn answered(&mut self, waited: Duration) {
        self.waits[self.answers as usize % SAMPLES] = waited;
        self.answers += 1;
        self.saved = (self.saved + SHARE).min(SAVED_MAX);
        if self.answers >= SAMPLES as u64 && self.answers.is_multiple_of(EVERY) {
            let mut waits = self.waits;
            let (_, telling, _) = waits.select_nth_unstable(TELLING);
            self.late = Some((*telling * TIMES).max(LEAST));
        }
    }

    fn spend(&mut self) -> bool {
        let may = self.saved >= 1.0;
        if may {
            self.saved -= 1.0;
        }
        may
    }
}

impl Hedge {
    /// Returns once the answer to a request, sent at the time in `sent`, is late and may be hedged. Returns once at most, and perhaps
    /// never.
    pub(crate) async fn late(&self, clock: &Clock, sent: &OnceLock<Instant>) {
        let Some(late) = self.0.lock().late else { return std::future::pending().await };
        loop {
            // A request that still waits for a connection is not late: a second one would wait, too.
            let left = match sent.get() {
                Some(sent) => late.saturating_sub(clock.now().saturating_duration_since(*sent)),
                None => late,
            };
            if left.is_zero() {
                break;
            }
            clock.sleep(left).await;
        }
        self.or_never().await;
    }

    /// Longest silence of a body that is not a stall; `None` until enough answers were measured.
    pub(crate) fn body_patience(&self) -> Option<Duration> {
        self.0.lock().late.map(|late| (late * BODY_TIMES).max(BODY_LEAST))
    }

    /// Waits until a body that brings no byte from now on has stalled, so its rest may be requested again. Returns the length of the
    /// silence; perhaps never returns.
    pub(crate) async fn stalled(&self, clock: &Clock, patience: Option<Duration>) -> Duration {
        let Some(patience) = patience else { return std::future::pending().await };
        clock.sleep(patience).await;
        self.or_never().await;
        patience
    }

    async fn or_never(&self) {
        if !self.0.lock().spend() {
            std::future::pending().await
        }
    }

    /// Stops hedging until enough further answers came, because the store throttles or fails.
    fn throttled(&self) {
        self.0.lock().saved = 0.0;
    }

    /// Learns from an answer that began `waited` after its request was sent.
    pub(crate) fn answered(&self, status: StatusCode, waited: Duration) {
        if status.is_success() {
            self.0.lock().answered(waited);
        } else if matches!(status.as_u16(), 429 | 500..=599) {
            self.throttled();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn after(waits: impl IntoIterator<Item = Duration>) -> Learned {
        let mut learned = Learned::default();
        waits.into_iter().for_each(|wait| learned.answered(wait));
        learned
    }

    #[test]
    fn nothing_is_late_before_enough_was_seen() {
        assert_eq!(after(vec![MS(40); SAMPLES - 1]).late, None);
        assert_eq!(after(vec![MS(40); SAMPLES]).late, Some(MS(80)));
    }

    #[test]
    fn late_is_twice_what_nineteen_of_twenty_take() {
        let waits = (0..SAMPLES as u64).map(|i| if i % 32 == 7 { MS(5000) } else { MS(100 + i % 8) });
        assert_eq!(after(waits).late, Some(MS(214)), "two slow ones of 64 change nothing");
        assert_eq!(after(vec![MS(1); SAMPLES]).late, Some(LEAST), "not at the noise of a busy machine");
    }

    #[test]
    fn a_store_that_becomes_slow_is_not_late_for_long() {
        let mut learned = after(vec![MS(20); 1000]);
        (0..SAMPLES).for_each(|_| learned.answered(MS(900)));
        assert_eq!(learned.late, Some(MS(1800)));
    }

    #[test]
    fn extra_requests_are_two_in_a_hundred_and_few_at_once() {
        let mut learned = Learned::default();
        assert!(!learned.spend());
        let mut spent = 0;
        for _ in 0..10_000 {
            learned.answered(MS(20));
            spent += u32::from(learned.spend());
        }
        assert!((190..=200).contains(&spent), "{spent}");
        (0..10_000).for_each(|_| learned.answered(MS(20)));
        assert_eq!((0..100).filter(|_| learned.spend()).count(), SAVED_MAX as usize);
    }
}
