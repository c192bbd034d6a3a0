//! Blocking work that may never end, such as a look at a file on a dead network: such work runs off the runtime's threads, one at a time,
//! and the wait for it has a limit. Work under way keeps a thread of a pool that others need, so no work of its kind begins before the
//! earlier one has ended.

use std::time::Duration;

use crate::clock::Clock;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Release};

/// A kind of blocking work, of which one runs at a time.
#[derive(Debug, Default)]
pub(crate) struct Aside(Arc<AtomicBool>);

/// A guard: the work is under way until the guard is dropped, whether or not the work has begun.
struct UnderWay(Arc<AtomicBool>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

impl Aside {
    /// Runs `work` and returns its outcome. `None`: the work lasts beyond `limit`, or does not begin because an earlier one still runs.
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
