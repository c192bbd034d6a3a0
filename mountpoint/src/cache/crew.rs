//! The threads that carry out the cache's blocking disk work. A disk that hangs blocks only them.

use std::io;
use std::thread::JoinHandle;

use crossbeam::channel::{Receiver, Sender, TrySendError, bounded};

use super::file::Entry;
use super::later::Job;
use super::lock::Lock;
use super::store::Store;
use super::waits::Ticket;
use crate::object::ObjectId;
use crate::supervise::Supervisor;
use crate::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use crate::sync::{Arc, Mutex};

/// Longest queue of work. Beyond it a read is a miss. Doubling it lets more reads wait, each with its memory.
const QUEUE_MAX: usize = 1024;

/// An operation that may wait for the disk.
#[derive(Debug)]
pub(super) enum Work {
    /// Reads a range. It may have to open the file first, or to look for the version on the disk.
    Read { id: ObjectId, object_size: u64, range: std::ops::Range<u64>, ticket: Ticket },
    /// A read that the ring could not complete.
    Again(Job, crate::buffer::BlockMut),
    /// Looks for a file with the whole version, and seals it behind the answer if it could not be lent without.
    Whole { id: ObjectId, object_size: u64, ticket: Ticket },
    /// Unlinks the files of a version that was found wrong. The number is their size in bytes.
    Unlink(Arc<Entry>, u64),
}

/// A pool of threads. One runs from the start. More start while work waits and no thread is idle, up to `most`, and stay.
#[derive(Debug)]
pub(super) struct Crew {
    store: Arc<Store>,
    lock: Arc<Lock>,
    supervisor: Supervisor,
    work: Sender<Work>,
    to_do: Receiver<Work>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
    idle: Arc<AtomicUsize>,
    most: usize,
}

impl Crew {
    /// Starts a crew of at most `most` threads.
    ///
    /// # Errors
    /// The system refuses a new thread.
    pub(super) fn start(
        store: &Arc<Store>,
        lock: &Arc<Lock>,
        supervisor: &Supervisor,
        most: usize,
    ) -> io::Result<Self> {
        let (work, to_do) = bounded(QUEUE_MAX);
        let crew = Self {
            store: Arc::clone(store),
            lock: Arc::clone(lock),
            supervisor: supervisor.clone(),
            work,
            to_do,
            threads: Arc::default(),
            idle: Arc::default(),
            most,
        };
        let first = crew.thread(0)?;
        crew.threads.lock().push(first);
        Ok(crew)
    }

    fn thread(&self, number: usize) -> io::Result<JoinHandle<()>> {
        let (store, to_do, idle) = (Arc::clone(&self.store), self.to_do.clone(), Arc::clone(&self.idle));
        let held = Arc::clone(&self.lock);
        self.supervisor.thread(format!("cache-disk-{number}"), move || {
            let _held = &held;
            loop {
                idle.fetch_add(1, SeqCst);
                let work = to_do.recv();
                idle.fetch_sub(1, SeqCst);
                let Ok(work) = work else { return };
                work.run(&store);
            }
        })
    }

    /// Puts work into the queue. Starts a further thread if more work waits than threads are idle.
    ///
    /// # Errors
    /// The queue is full: the work is returned.
    #[expect(
        clippy::result_large_err,
        reason = "the caller takes the work back as it gave it; a box would cost each read"
    )]
    pub(super) fn put(&self, work: Work) -> Result<(), Work> {
        self.work.try_send(work).map_err(TrySendError::into_inner)?;
        if self.work.len() > self.idle.load(SeqCst) {
            let mut threads = self.threads.lock();
            if threads.len() < self.most
                && let Ok(thread) = self.thread(threads.len())
            {
                threads.push(thread);
            }
        }
        Ok(())
    }

    /// Passes small reads from their queue to the crew until the queue ends. The ring's thread does this without a ring.
    pub(super) fn serve(&self, jobs: &Receiver<Job>) {
        for Job { reading, ticket } in jobs {
            if let Some(Some(into)) = ticket.begin()
                && let Err(Work::Again(job, into)) = self.put(Work::Again(Job { reading, ticket }, into))
            {
                job.ticket.read(into, false);
            }
        }
    }

    /// The handles of the threads. A thread ends once all senders of work are dropped.
    pub(super) fn threads(&self) -> Arc<Mutex<Vec<JoinHandle<()>>>> {
        Arc::clone(&self.threads)
    }
}

impl Work {
    fn run(self, store: &Store) {
        match self {
            Self::Read { id, object_size, range, ticket } => {
                let Some(Some(mut into)) = ticket.begin() else { return };
                let is_here = store.read(&id, object_size, &range, into.spare());
                store.count_get(ticket.since(), is_here);
                ticket.read(into, is_here);
            }
            Self::Again(Job { reading, ticket }, mut into) => {
                let is_here = store.finish(&reading, into.spare());
                store.count_get(ticket.since(), is_here);
                ticket.read(into, is_here);
            }
            Self::Whole { id, object_size, ticket } => {
                if ticket.begin().is_some() {
                    let whole = store.whole(&id, object_size);
                    let is_lent = whole.is_some();
                    if let Some(lent) = ticket.found() {
                        lent(whole);
                    }
                    // The caller has its answer: a long seal does not count as late.
                    if !is_lent {
                        store.seal(&id, object_size);
                    }
                }
            }
            Self::Unlink(entry, bytes) => store.unlink_removed(&entry, bytes),
        }
    }
}
