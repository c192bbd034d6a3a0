//! One queue of FUSE over io_uring: its thread takes the requests made on one processor, calls the operations, and passes the answers of
//! all threads to the kernel.

use std::collections::VecDeque;
use std::io;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::super::RING_WRITE_MAX;
use super::super::answer::Answer;
use super::super::channel::Channel;
use super::super::inbox::{Done, Inbox, InboxSlot};
use super::super::operations::Operations;
use super::super::pending::ReplyTo;
use super::super::request::{DecodeError, decode_parts};
use super::entries::{Entries, Landed};
use super::warm::Warm;
use crate::sync::Arc;

/// Interval between checks of waiting requests. If a signal comes before a request was taken, the kernel sends no INTERRUPT for it, so only
/// such checks find killed threads.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Idle time of a queue after which its payloads return their memory.
const REST: Duration = Duration::from_secs(10);
/// Most bytes of answers, and of the requests that may follow them, that one call of the kernel moves; at most one answer more. Further
/// answers wait until these have given their memory back. Doubling it saves calls while many requests end at once.
const BATCH: usize = 4 << 20;

/// A request that waits for its answer.
#[derive(Clone, Copy, Debug)]
struct Held {
    unique: u64,
    looked: Instant,
}

/// The state of a queue's thread.
pub(super) struct Queue<O> {
    channel: Arc<Channel<O>>,
    entries: Entries,
    inbox: Arc<Inbox>,
    /// The held requests, by entry.
    held: Vec<Option<Held>>,
    waiting: usize,
    warm: Warm,
    used: Instant,
    looked: Instant,
}

/// The meaning of a failed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The kernel did not take the answer: send it again.
    Again,
    /// The mount is gone.
    Over,
    /// The entry is lost.
    Lost,
}

pub(super) fn meaning(error: Errno) -> Failure {
    match error {
        Errno::AGAIN | Errno::INTR | Errno::NOMEM => Failure::Again,
        Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED | Errno::NODEV => Failure::Over,
        _ => Failure::Lost,
    }
}

impl<O: Operations> Queue<O> {
    pub(super) fn new(channel: Arc<Channel<O>>, entries: Entries, inbox: Arc<Inbox>, warm: Warm) -> Self {
        let (held, now) = (vec![None; entries.count()], channel.clock.now());
        Self { channel, entries, inbox, held, waiting: 0, warm, used: now, looked: now }
    }

    /// Serves until the connection ends. `landed`: results that came while the entries were registered.
    pub(super) fn run(mut self, landed: Vec<Landed>) -> io::Result<()> {
        let serve = AssertUnwindSafe(|| self.serve(landed));
        let outcome =
            std::panic::catch_unwind(serve).unwrap_or_else(|_| Err(io::Error::other("it panicked")));
        if let Err(error) = &outcome {
            tracing::error!("FUSE over io_uring failed: {error}; requests hang until the mount is unmounted");
        }
        self.inbox.close();
        outcome
    }

    fn serve(&mut self, mut landed: Vec<Landed>) -> io::Result<()> {
        let metrics = Arc::clone(&self.channel.metrics);
        let _idle = metrics.fuse_idle.raised();
        let (mut taken, mut done) = (Vec::new(), VecDeque::new());
        let inbox = Arc::clone(&self.inbox);
        loop {
            let busy = metrics.fuse_idle.lowered();
            std::mem::swap(&mut landed, &mut taken);
            for landed in taken.drain(..) {
                if self.take(landed)? {
                    return Ok(());
                }
            }
            // No payload is in use here: the taken requests are done, and no answer was written to one yet.
            self.keep_house();
            let bell = inbox.bell();
            inbox.sleeps();
            let mut bytes = 0;
            while bytes < BATCH && inbox.take(&mut done) {
                while bytes < BATCH
                    && let Some(next) = done.pop_front()
                {
                    // The entry of an answer may receive the next write in the same call.
                    bytes += self.answer(&next)?.max(RING_WRITE_MAX as usize);
                }
            }
            if inbox.is_over() {
                return Ok(());
            }
            drop(busy);
            if done.is_empty() {
                let timeout = self.timeout();
                self.entries.wait(bell, timeout, &mut landed)?;
            } else {
                self.entries.submit(&mut landed)?;
            }
            inbox.wakes();
        }
    }

    /// Handles a command that has ended, because it brought a request or failed. True if the connection is over.
    fn take(&mut self, landed: Landed) -> io::Result<bool> {
        let entry = match landed {
            Landed::Request(entry) => entry,
            Landed::Failed(entry, error) => match meaning(error) {
                Failure::Over => return Ok(true),
                Failure::Again => return self.entries.again(entry).map(|()| false),
                Failure::Lost => {
                    tracing::error!("FUSE over io_uring: the kernel did not take an answer: {error}");
                    return Ok(false);
                }
            },
        };
        let Some(bytes) = self.entries.request(entry) else { return Ok(false) };
        let place = InboxSlot { inbox: Arc::clone(&self.inbox), entry };
        let now = self.channel.clock.now();
        self.used = now;
        self.warm.used(entry, bytes.payload.len());
        let decoded = decode_parts(bytes.header, bytes.argument, bytes.payload);
        let unique = match &decoded {
            Ok(request) => request.unique,
            Err(DecodeError::Body { unique, .. }) => *unique,
            Err(DecodeError::NoHeader) => return Ok(false),
        };
        if self.held[entry].replace(Held { unique, looked: now }).is_none() {
            self.waiting += 1;
        }
        match decoded {
            Ok(request) => {
                // A panic answers EIO (the reply is dropped) and costs the mount nothing else.
                let dispatch = AssertUnwindSafe(|| self.channel.dispatch(request, &ReplyTo::Queue(place)));
                if std::panic::catch_unwind(dispatch).is_err() {
                    tracing::error!("FUSE over io_uring: a request panicked; it was answered EIO");
                }
            }
            Err(error) => {
                tracing::error!("FUSE over io_uring: can't read a request: {error:?}; answering EIO");
                place.answer(unique, Errno::IO.raw_os_error(), Answer::Nothing);
            }
        }
        Ok(false)
    }

    /// Puts an answer into its entry, and returns its length in bytes.
    fn answer(&mut self, done: &Done) -> io::Result<usize> {
        let Some(held) = self.held.get_mut(done.entry) else { return Ok(0) };
        if held.take_if(|held| held.unique == done.unique).is_none() {
            return Ok(0);
        }
        self.waiting -= 1;
        let len = self.entries.answer(done.entry, done.unique, done.errno, done.answer.slices())?;
        self.warm.used(done.entry, len);
        Ok(len)
    }

    /// The longest wait; `None` without other work: an idle mount wakes no thread.
    fn timeout(&self) -> Option<Duration> {
        match (self.waiting, self.warm.is_empty()) {
            (1.., _) => Some(LOOK_AGAIN),
            (0, false) => Some(REST),
            (0, true) => None,
        }
    }

    fn keep_house(&mut self) {
        // An answer that the kernel has not taken yet is still in its payload.
        if self.entries.has_commands() {
            return;
        }
        while let Some(entry) = self.warm.excess() {
            self.entries.give_back(entry);
        }
        if self.waiting == 0 && self.warm.is_empty() {
            return;
        }
        let now = self.channel.clock.now();
        if now.saturating_duration_since(self.used) >= REST {
            while let Some(entry) = self.warm.any() {
                self.entries.give_back(entry);
            }
        }
        if self.waiting > 0 && now.saturating_duration_since(self.looked) >= LOOK_AGAIN {
            self.looked = now;
            for held in self.held.iter_mut().flatten() {
                if now.saturating_duration_since(held.looked) >= LOOK_AGAIN {
                    held.looked = now;
                    self.channel.look_at(held.unique);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_ends_with_its_mount_and_loses_no_answer_before() {
        for error in [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED, Errno::NODEV] {
            assert_eq!(meaning(error), Failure::Over, "{error:?}");
        }
        assert_eq!([Errno::AGAIN, Errno::INTR, Errno::NOMEM].map(meaning), [Failure::Again; 3]);
        assert_eq!([meaning(Errno::INVAL), meaning(Errno::NOENT)], [Failure::Lost; 2]);
    }
}
