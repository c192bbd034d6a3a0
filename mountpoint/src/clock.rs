//! Time as a value that callers pass down: tests control it, and product code never asks the machine directly.

use std::future::Future;
use std::time::{Duration, Instant, SystemTime};

use crate::sync::{Arc, Mutex};

/// The clock that a room reads and waits on. Cheap to clone; clones of a manual clock turn together.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    Machine,
    Manual(Arc<Manual>),
}

#[derive(Debug)]
struct Manual {
    start: Instant,
    start_wall: SystemTime,
    elapsed: Mutex<Duration>,
    turned: tokio::sync::Notify,
}

impl Clock {
    /// The machine's clocks.
    pub fn machine() -> Self {
        Self(Source::Machine)
    }

    /// A clock that stands still until [`Clock::advance`] turns it.
    pub fn manual() -> Self {
        Self(Source::Manual(Arc::new(Manual {
            start: Instant::now(),
            start_wall: SystemTime::now(),
            elapsed: Mutex::new(Duration::ZERO),
            turned: tokio::sync::Notify::new(),
        })))
    }

    /// Monotonic time: for TTLs, timeouts and rates. A jump of the wall clock does not move it.
    pub fn now(&self) -> Instant {
        match &self.0 {
            Source::Machine => Instant::now(),
            Source::Manual(m) => m.start + *m.elapsed.lock(),
        }
    }

    /// Wall time: for users and signatures.
    pub fn wall(&self) -> SystemTime {
        match &self.0 {
            Source::Machine => SystemTime::now(),
            Source::Manual(m) => m.start_wall + *m.elapsed.lock(),
        }
    }

    /// Turns a manual clock forward, and wakes the sleepers on it.
    ///
    /// # Panics
    /// The clock is the machine's, which tests do not control.
    pub fn advance(&self, by: Duration) {
        let Source::Manual(m) = &self.0 else { panic!("only a manual clock can be turned") };
        *m.elapsed.lock() += by;
        m.turned.notify_waiters();
    }

    /// The output of `future`; `None` if `limit` passes on this clock first.
    pub async fn timeout<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = self.sleep(limit) => None,
        }
    }

    /// Waits until `duration` has passed on this clock.
    pub fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send + use<> {
        let clock = self.clone();
        async move {
            match &clock.0 {
                Source::Machine => tokio::time::sleep(duration).await,
                Source::Manual(m) => {
                    let until = clock.now() + duration;
                    loop {
                        let turned = m.turned.notified();
                        if clock.now() >= until {
                            return;
                        }
                        turned.await;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sleeper_wakes_when_the_clock_is_turned_past_it() {
        let clock = Clock::manual();
        let sleeper = tokio::spawn(clock.sleep(Duration::from_secs(5)));
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(4));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(Duration::from_secs(1));
        sleeper.await.unwrap();
    }

    #[tokio::test]
    async fn a_limit_ends_what_is_pending_and_nothing_that_is_ready() {
        let clock = Clock::manual();
        assert_eq!(clock.timeout(Duration::ZERO, std::future::ready(1)).await, Some(1));
        let waiting = clock.clone();
        let waiter = tokio::spawn(async move {
            waiting.timeout(Duration::from_secs(5), std::future::pending::<()>()).await
        });
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(5));
        assert_eq!(waiter.await.unwrap(), None);
    }
}
