//! One direction of a link with a limited rate, which all connections share.

use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep_until};

use super::State;

/// The largest piece of one read, in bytes, and one connection's turn on a fast link.
pub(super) const PIECE_MAX: usize = 16 << 10;

/// Longest idle or late time that a link may catch up.
const CREDIT: Duration = Duration::from_millis(20);

/// The resolution of the machine's timers; shorter waits are skipped.
const SLACK: Duration = Duration::from_millis(1);

/// The time at which the link is free again. The lock is fair, and each holder sends one piece, so connections with
/// waiting bytes take turns.
#[derive(Debug)]
pub(super) struct Link(Mutex<Turn>);

#[derive(Debug)]
struct Turn {
    free_at: Instant,
    rate: Option<u64>,
}

impl Link {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Turn { free_at: Instant::now(), rate: None }))
    }

    /// Waits until these bytes may pass.
    pub(super) async fn pass(&self, bytes: usize, state: &mut watch::Receiver<State>) {
        if state.borrow().weather.rate.is_none() {
            return;
        }
        let mut turn = self.0.lock().await;
        loop {
            let rate = state.borrow_and_update().weather.rate;
            let now = Instant::now();
            if turn.rate != rate {
                *turn = Turn { free_at: now, rate };
            }
            let Some(rate) = rate else { return };
            if turn.free_at > now + SLACK {
                tokio::select! {
                    () = sleep_until(turn.free_at) => {}
                    _ = state.changed() => {}
                }
                continue;
            }
            let from = turn.free_at.max(now.checked_sub(CREDIT).unwrap_or(now));
            turn.free_at = from + Duration::from_secs_f64(bytes as f64 / rate as f64);
            return;
        }
    }
}

/// Bytes of one connection's turn: a hundredth of a second of the link, so turns come soon on a slow link, too.
pub(super) fn piece(rate: Option<u64>) -> usize {
    let hundredth = rate.map_or(PIECE_MAX as u64, |rate| rate / 100);
    usize::try_from(hundredth).unwrap_or(PIECE_MAX).clamp(1 << 10, PIECE_MAX)
}
