//! Requests without an answer, kept here so INTERRUPT can end one.
//!
//! The thread that removes a request from here answers it: the thread with its answer, or the thread that read an INTERRUPT for it.

use std::collections::HashMap;

use super::inbox::InboxSlot;
use crate::fs::HandleNo;
use crate::sync::Mutex;

/// Number of shards. Each has its own lock, so threads rarely contend.
const SHARDS: usize = 16;

/// All requests in progress.
#[derive(Debug)]
pub(super) struct Pending {
    shards: [Mutex<HashMap<u64, Option<Waiter>>>; SHARDS],
}

/// Counts of the requests that have no answer yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnderWay {
    /// Number of all requests without an answer.
    pub all: usize,
    /// Number of requests among them that change a name, write to a file or store it.
    pub changes: usize,
}

/// The thread whose death can interrupt a request.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    /// The thread that waits.
    pub(super) tid: u32,
    /// Whether the thread's death ends the request. A write that goes on without the thread must have its bytes first.
    pub(super) may_end: bool,
    pub(super) goes_on: GoesOn,
    /// The destination of the answer.
    pub(super) reply_to: ReplyTo,
}

/// The work that goes on after the thread's death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoesOn {
    /// No work goes on, and the request leaves no trace.
    Nothing,
    /// The storing of a file, which this operation waits for. The outcome goes to the log.
    Storing(HandleNo, &'static str),
    /// The request is a write, and this many bytes were taken. The reply says so, since the kernel moves the file position, which other
    /// programs share, by this number.
    Written(u32),
}

/// The destination of an answer: the source of its request.
#[derive(Clone, Debug)]
pub(super) enum ReplyTo {
    Device,
    Queue(InboxSlot),
}

/// The state of the request that an INTERRUPT named.
#[derive(Debug)]
pub(super) enum Interrupted {
    /// The caller has to answer the request, as [`GoesOn`] says; the operation's own answer comes too late.
    Now(Waiter),
    /// The request goes on: its thread lives, or the operation has not taken its bytes.
    NotYet,
    /// The request must run to its end.
    Never,
    /// Unknown request: answered already, or not taken yet.
    Unknown,
}

impl Default for Pending {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl Pending {
    fn shard(&self, unique: u64) -> &Mutex<HashMap<u64, Option<Waiter>>> {
        // The kernel counts in steps of two.
        &self.shards[(unique >> 1) as usize % SHARDS]
    }

    /// Notes a request that was taken. `waiter`: the thread whose death can interrupt the request; `None` if the request must run to its
    /// end.
    pub(super) fn begin(&self, unique: u64, waiter: Option<Waiter>) {
        self.shard(unique).lock().insert(unique, waiter);
    }

    /// Notes that the operation has its bytes: from now on the death of the thread ends the request. After an earlier interrupt, the
    /// thread is examined again.
    pub(super) fn may_end(&self, unique: u64) {
        if let Some(Some(waiter)) = self.shard(unique).lock().get_mut(&unique) {
            waiter.may_end = true;
        }
    }

    /// Counts the requests that have no answer yet.
    pub(super) fn under_way(&self) -> UnderWay {
        let mut under_way = UnderWay::default();
        for shard in &self.shards {
            for waiter in shard.lock().values() {
                let is_change = waiter.as_ref().is_none_or(|waiter| waiter.goes_on != GoesOn::Nothing);
                under_way.all += 1;
                under_way.changes += usize::from(is_change);
            }
        }
        under_way
    }

    /// Ends a request that has its answer. False if an interrupt has ended the request: no thread waits for it.
    pub(super) fn end(&self, unique: u64) -> bool {
        self.shard(unique).lock().remove(&unique).is_some()
    }

    /// Handles an interrupt: a signal that the kernel reported, or a thread that was found exiting. If `is_dying` confirms that the thread
    /// ends, the request is removed, and the caller answers it.
    pub(super) fn interrupt(&self, unique: u64, is_dying: impl FnOnce(u32) -> bool) -> Interrupted {
        let mut shard = self.shard(unique).lock();
        match shard.get(&unique) {
            Some(Some(waiter)) if waiter.may_end && is_dying(waiter.tid) => {
                match shard.remove(&unique).flatten() {
                    Some(waiter) => Interrupted::Now(waiter),
                    None => Interrupted::Unknown,
                }
            }
            Some(Some(_)) => Interrupted::NotYet,
            Some(None) => Interrupted::Never,
            None => Interrupted::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_answered_once_by_its_outcome_or_by_the_interrupt() {
        let pending = Pending::default();
        let goes_on = GoesOn::Storing(HandleNo(7), "close");
        let waiter = || Waiter { tid: 1, may_end: true, goes_on, reply_to: ReplyTo::Device };
        pending.begin(4, Some(waiter()));
        assert!(matches!(pending.interrupt(4, |_| false), Interrupted::NotYet));
        let Interrupted::Now(ended) = pending.interrupt(4, |tid| tid == 1) else {
            panic!("it is ours to end")
        };
        assert_eq!((ended.tid, ended.goes_on), (1, goes_on));
        assert!(!pending.end(4), "the outcome comes too late");
        pending.begin(6, Some(waiter()));
        assert!(pending.end(6));
        assert!(matches!(pending.interrupt(6, |_| true), Interrupted::Unknown));
        pending.begin(8, None);
        pending.begin(10, Some(Waiter { goes_on: GoesOn::Nothing, ..waiter() }));
        assert_eq!(pending.under_way(), UnderWay { all: 2, changes: 1 });
        assert!(pending.end(10));
        assert!(matches!(pending.interrupt(8, |_| true), Interrupted::Never));
        assert!(pending.end(8));
    }

    #[test]
    fn a_write_is_interrupted_only_once_its_bytes_are_taken() {
        let pending = Pending::default();
        let goes_on = GoesOn::Written(5);
        pending.begin(4, Some(Waiter { tid: 1, may_end: false, goes_on, reply_to: ReplyTo::Device }));
        assert!(matches!(pending.interrupt(4, |_| true), Interrupted::NotYet), "it is looked at again");
        pending.may_end(4);
        assert!(matches!(pending.interrupt(4, |_| true), Interrupted::Now(_)));
        pending.may_end(4);
        assert!(!pending.end(4));
    }

    #[cfg(feature = "shuttle")]
    #[test]
    fn shuttle_each_request_is_answered_once_whichever_thread_comes_first() {
        use shuttle::thread::spawn;

        use crate::sync::Arc;
        use crate::sync::atomic::{AtomicU32, Ordering::SeqCst};
        crate::testing::model::check(|| {
            // Two requests share a shard.
            let requests = [4, 4 + 2 * SHARDS as u64];
            let pending = Arc::new(Pending::default());
            let answers = Arc::new(requests.map(|_| AtomicU32::new(0)));
            let waiter =
                || Waiter { tid: 1, may_end: true, goes_on: GoesOn::Nothing, reply_to: ReplyTo::Device };
            let mut threads = Vec::new();
            for (n, unique) in requests.into_iter().enumerate() {
                let answer = |does: fn(&Pending, u64) -> bool| {
                    let (pending, answers) = (Arc::clone(&pending), Arc::clone(&answers));
                    spawn(move || {
                        answers[n].fetch_add(u32::from(does(&pending, unique)), SeqCst);
                    })
                };
                pending.begin(unique, Some(waiter()));
                let interrupt = |pending: &Pending, unique| {
                    matches!(pending.interrupt(unique, |_| true), Interrupted::Now(_))
                };
                threads.extend([answer(Pending::end), answer(interrupt), answer(interrupt)]);
            }
            for thread in threads {
                thread.join().unwrap();
            }
            for answers in &*answers {
                assert_eq!(answers.load(SeqCst), 1);
            }
        });
    }
}
