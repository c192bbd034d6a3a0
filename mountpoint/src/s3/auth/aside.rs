//! Blocking work that may hang, such as stat(2) on a dead network file system. It runs on the threads for blocking work, one call at a
//! time, and the wait for it has a limit. Hanging work keeps a thread of a shared pool, so no other work of its kind begins before it has
//! ended.

use std::time::Duration;

use crate::clock::Clock;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Release};

/// A kind of blocking work; one call runs at a time.
#[derive(Debug, Default)]
pub(crate) struct Aside(Arc<AtomicBool>);

/// A guard that marks the work as running until it is dropped, even if the work never begins.
struct UnderWay(Arc<AtomicBool>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

impl Aside {
    /// Runs `work` and returns its result. `None`: the work takes longer than `limit`, panics, or does not begin because an earlier call
    /// still runs.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        clock: &Clock,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if self.0.swap(true, AcqRel) {
            return None;
        }
        let under_way = UnderWay(Arc::clone(&self.0));
        let working = tokio::task::spawn_blocking(move || {
            let _under_way = under_way;
            work()
        });
        clock.timeout(limit, working).await?.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    #[test]
    fn work_that_never_ends_costs_one_thread_and_its_limit() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (clock, aside) = (Clock::manual(), Arc::new(Aside::default()));
            let (answer, silence) = mpsc::channel::<u32>();
            let waiting = tokio::spawn({
                let (aside, clock) = (Arc::clone(&aside), clock.clone());
                async move { aside.run(&clock, LIMIT, move || silence.recv()).await }
            });
            while !waiting.is_finished() {
                clock.advance(LIMIT);
                tokio::task::yield_now().await;
            }
            assert_eq!(waiting.await.unwrap(), None);
            for _ in 0..100 {
                assert_eq!(aside.run(&clock, LIMIT, || unreachable!("one is under way")).await, None::<()>);
            }
            tokio::task::spawn_blocking(|| {}).await.unwrap();
            answer.send(7).unwrap();
            // The thread says a moment later that it has ended.
            while aside.run(&clock, LIMIT, || ()).await.is_none() {
                tokio::task::yield_now().await;
            }
        });
    }
}
