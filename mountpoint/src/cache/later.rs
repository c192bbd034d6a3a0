//! The queue of reads that wait for the ring's thread, and the answer to queued reads when that thread ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use crossbeam::channel::{Receiver, Sender};

use super::Later;
use super::bell::Bell;
use super::read::Reading;
use super::store::Store;
use crate::buffer::BlockMut;
use crate::sync::Arc;

/// Reads in the queue. Doubling it lets more wait here, each with its memory, before others wait on threads of their own.
pub(super) const QUEUE_MAX: usize = 1024;

/// A read to be carried out.
pub(super) struct Job {
    pub(super) reading: Reading,
    pub(super) into: BlockMut,
    pub(super) started: Instant,
    pub(super) done: Later,
}

/// Where reads are put.
#[derive(Debug)]
pub(super) struct Queue {
    jobs: Sender<Job>,
    bell: Arc<Bell>,
}

impl Queue {
    /// The other end of `jobs` takes what is put here, and hears the bell.
    pub(super) fn new(jobs: Sender<Job>, bell: Arc<Bell>) -> Self {
        Self { jobs, bell }
    }

    /// Puts a read.
    ///
    /// # Errors
    /// Block and callback back: the queue is full, or nobody serves it.
    pub(super) fn put(&self, job: Job) -> Result<(), (BlockMut, Later)> {
        self.jobs.try_send(job).map_err(|e| {
            let job = e.into_inner();
            (job.into, job.done)
        })?;
        self.bell.ring();
        Ok(())
    }
}

/// Carries out one read after the other, until the queue ends: without a ring.
pub(super) fn run(store: &Store, jobs: &Receiver<Job>) {
    for job in jobs {
        let Job { reading, mut into, started, done } = job;
        let is_sound = store.finish(&reading, into.spare());
        store.count_get(started, is_sound);
        answer(Some(done), is_sound.then_some(into));
    }
}

/// Whatever happens in there, the other reads go on.
pub(super) fn answer(done: Option<Later>, read: Option<BlockMut>) {
    if let Some(done) = done {
        // The panic is in the log by now, and a request that is dropped answers EIO.
        let _ = catch_unwind(AssertUnwindSafe(|| done(read)));
    }
}
