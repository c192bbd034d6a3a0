//! A bell that lets housekeepers rest while they have no work: a mount without users wakes no thread.
//!
//! A request that leaves work for later rings the bell. A housekeeper looks for work, continues as long as it finds some, and then rests
//! until the next ring.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Clock;
use crate::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The next step of a housekeeper after a look for work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Looks again after this time, whether the bell rings meanwhile or not.
    Look(Duration),
    /// Rests until the bell rings.
    Rest,
    /// The housekeeper ends, because its room is gone.
    Leave,
}

/// The bell. Requests ring it, which wakes the housekeepers that rest.
#[derive(Debug, Default)]
pub struct Doorbell {
    /// Whether a housekeeper may rest, so a ring has to wake it.
    is_armed: AtomicBool,
    rung: Notify,
}

impl Doorbell {
    /// Rings, because there may be work. Call this after housekeepers can see the work. Costs one load while all housekeepers are up.
    pub fn ring(&self) {
        if self.is_armed.load(SeqCst) && self.is_armed.swap(false, SeqCst) {
            self.rung.notify_waiters();
        }
    }

    /// Calls `look` at once, and then as each result says, until [`Next::Leave`]. The argument of `look` is whether the bell rang since the
    /// last look; a ring during a look counts for the next one. Several housekeepers may share one bell.
    pub async fn keep_house(&self, clock: &Clock, mut look: impl FnMut(bool) -> Next) {
        let mut was_rung = true;
        loop {
            // The wait begins before the look: work that comes during the look rings.
            let mut rung = pin!(self.rung.notified());
            rung.as_mut().enable();
            self.is_armed.store(true, SeqCst);
            match look(was_rung) {
                Next::Look(pause) => {
                    clock.sleep(pause).await;
                    was_rung = rung.as_mut().enable();
                }
                Next::Rest => {
                    rung.await;
                    was_rung = true;
                }
                Next::Leave => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{Arc, Mutex};

    const PAUSE: Duration = Duration::from_secs(5);

    async fn settle() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_housekeeper_rests_until_the_bell_and_looks_by_the_clock_until_done() {
        let (bell, clock, looks) =
            (Arc::new(Doorbell::default()), Clock::manual(), Arc::new(Mutex::new(vec![])));
        let (of_task, time, seen) = (Arc::clone(&bell), clock.clone(), Arc::clone(&looks));
        let house = tokio::spawn(async move {
            of_task
                .keep_house(&time, |was_rung| {
                    seen.lock().push(was_rung);
                    if seen.lock().len() == 6 {
                        return Next::Leave;
                    }
                    if was_rung { Next::Look(PAUSE) } else { Next::Rest }
                })
                .await;
        });
        settle().await;
        assert_eq!(*looks.lock(), [true], "at once");
        bell.ring();
        settle().await;
        assert_eq!(looks.lock().len(), 1, "a ring does not shorten the pause");
        clock.advance(PAUSE);
        settle().await;
        assert_eq!(*looks.lock(), [true, true], "the ring is not forgotten");
        clock.advance(PAUSE);
        settle().await;
        assert_eq!(*looks.lock(), [true, true, false], "nothing more");
        clock.advance(100 * PAUSE);
        settle().await;
        assert_eq!(looks.lock().len(), 3, "it rests");
        bell.ring();
        settle().await;
        assert_eq!(*looks.lock(), [true, true, false, true], "at once");
        clock.advance(PAUSE);
        settle().await;
        bell.ring();
        house.await.unwrap();
        assert_eq!(*looks.lock(), [true, true, false, true, false, true]);
    }

    #[tokio::test]
    async fn a_ring_wakes_all_that_rest_behind_the_bell() {
        let (bell, clock, looks) = (Doorbell::default(), Clock::manual(), Mutex::new(0));
        let look = |_| {
            *looks.lock() += 1;
            Next::Rest
        };
        let houses = async { tokio::join!(bell.keep_house(&clock, look), bell.keep_house(&clock, look)) };
        let rings = async {
            settle().await;
            for seen in [2, 4, 6] {
                assert_eq!(*looks.lock(), seen);
                bell.ring();
                settle().await;
            }
        };
        tokio::select! {
            _ = houses => panic!("they keep house for ever"),
            () = rings => {}
        }
    }

    #[cfg(feature = "shuttle")]
    #[test]
    fn shuttle_nothing_that_was_left_before_a_ring_is_left_for_ever() {
        use shuttle::{future::block_on, thread::spawn};
        const EACH: u32 = 3;
        // A housekeeper that sleeps beside what was left is a deadlock, which shuttle reports with its schedule.
        crate::testing::model::check(|| {
            let (bell, left) = (Arc::new(Doorbell::default()), Arc::new(Mutex::new(0)));
            let requests: Vec<_> = (0..2)
                .map(|_| {
                    let (bell, left) = (Arc::clone(&bell), Arc::clone(&left));
                    spawn(move || {
                        for _ in 0..EACH {
                            *left.lock() += 1;
                            bell.ring();
                        }
                    })
                })
                .collect();
            let mut done = 0;
            block_on(bell.keep_house(&Clock::manual(), |_| {
                done += std::mem::take(&mut *left.lock());
                if done == 2 * EACH { Next::Leave } else { Next::Rest }
            }));
            for request in requests {
                request.join().unwrap();
            }
        });
    }
}
