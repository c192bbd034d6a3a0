//! The queue of reads that wait for the ring's thread.

use crossbeam::channel::Sender;

use super::bell::Bell;
use super::read::Reading;
use super::waits::Ticket;
use crate::sync::Arc;

/// Most reads in the queue. Doubling it lets more wait here, each with its memory; further reads go to the threads that wait for the
/// disk.
pub(super) const QUEUE_MAX: usize = 1024;

/// A read to be carried out.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) reading: Reading,
    pub(super) ticket: Ticket,
}

/// The queue of reads.
#[derive(Debug)]
pub(super) struct Queue {
    jobs: Sender<Job>,
    bell: Arc<Bell>,
}

impl Queue {
    /// Makes the queue. The thread at the other end of `jobs` takes the reads, and waits for the bell.
    pub(super) fn new(jobs: Sender<Job>, bell: Arc<Bell>) -> Self {
        Self { jobs, bell }
    }

    /// Puts a read.
    ///
    /// # Errors
    /// The queue is full, or no thread serves it: the read comes back.
    pub(super) fn put(&self, job: Job) -> Result<(), Job> {
        self.jobs.try_send(job).map_err(crossbeam::channel::TrySendError::into_inner)?;
        self.bell.ring();
        Ok(())
    }
}
