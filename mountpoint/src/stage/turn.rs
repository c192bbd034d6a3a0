//! The turns of a staged file: one task at a time sends it or changes its name.

use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::sync::Arc;
use crate::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The right to send a file or to change its name: one holder at a time.
#[derive(Debug)]
pub struct Turn(#[expect(dead_code, reason = "held")] OwnedMutexGuard<()>);

/// The turns of one file.
#[derive(Debug, Default)]
pub(super) struct Turns {
    lock: Arc<Mutex<()>>,
    /// Number of tasks that wait, and make a send useless.
    instead: AtomicUsize,
}

/// A guard: a send in progress is useless until it is dropped.
struct Instead<'a>(&'a AtomicUsize);

impl Drop for Instead<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Turns {
    /// Waits for a turn.
    pub(super) async fn next(&self) -> Turn {
        Turn(Arc::clone(&self.lock).lock_owned().await)
    }

    /// Waits for a turn that makes a send in progress useless.
    pub(super) async fn instead(&self) -> Turn {
        self.instead.fetch_add(1, Relaxed);
        let _until_the_turn = Instead(&self.instead);
        self.next().await
    }

    /// Whether a task waits that makes a send useless.
    pub(super) fn is_one_instead(&self) -> bool {
        self.instead.load(Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn a_send_is_useless_while_another_task_waits_to_be_in_its_place() {
        let turns = Turns::default();
        let turn = turns.next().await;
        {
            let mut given_up = pin!(turns.instead());
            assert!(poll!(&mut given_up).is_pending() && turns.is_one_instead());
        }
        assert!(!turns.is_one_instead(), "it waits no more");
        let mut instead = pin!(turns.instead());
        assert!(poll!(&mut instead).is_pending() && turns.is_one_instead());
        drop(turn);
        let _turn = instead.await;
        assert!(!turns.is_one_instead(), "it has its turn");
    }
}
