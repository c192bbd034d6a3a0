//! The queue of reads that wait for the ring's thread.

use crossbeam::channel::Sender;

use super::bell::Bell;
use super::read::Reading;
use super::waits::Ticket;
use crate::sync::Arc;

/// Most reads in the queue. Further reads go to the crew. Doubling it lets more wait here, each with its memory.
pub(super) const QUEUE_MAX: usize = 1024;

/// A read in the queue.
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
    /// Creates the queue. The thread at the other end of `jobs` takes the reads, and waits for the bell.
    pub(super) fn new(jobs: Sender<Job>, bell: Arc<Bell>) -> Self {
        Self { jobs, bell }
    }

    /// Puts a read into the queue, and wakes the ring's thread.
    ///
    /// # Errors
    /// The queue is full, or no thread serves it: the read is returned.
    pub(super) fn put(&self, job: Job) -> Result<(), Job> {
        self.jobs.try_send(job).map_err(crossbeam::channel::TrySendError::into_inner)?;
        self.bell.ring();
        Ok(())
    }
}
