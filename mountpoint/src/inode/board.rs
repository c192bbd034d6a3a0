//! The board of questions to S3 that are in flight, about names, files and pages. It decides which operation may share which answer.
//!
//! A lookup joins a question about the same name that makes the same requests. A stat joins any question whether its file is still the
//! version that its inode means. An open that may rely on a TTL does so too. Any other open must see the state of S3 after the open
//! began, so it joins only a request that has not gone out yet. At most two requests about one file are in flight for such opens; later
//! opens wait together for the next request. The key of a page is the event at which the page was requested.

use std::time::Instant;

use foldhash::HashSet;
use tokio::sync::Semaphore;

use super::InodeNo;
use super::error::Result;
use super::flight::{self, Flights};
use super::remote::{Ask, PageSlot, Remote, Slot};
use crate::first::First;
use crate::object::ObjectMeta;
use crate::s3::ListPage;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Requests about one file that may be in flight for opens. With the double, fewer opens wait for another open's answer, but a file that
/// many programs open at once costs twice the requests.
pub(super) const AT_ONCE: usize = 2;

/// Key of a question about a name: the directory, and the name in it.
pub(super) type Name = (InodeNo, Box<str>);

/// A waiter's place in a question about a name.
pub(super) type NameSeat = flight::Seat<OfName, Result<Remote>>;
pub(super) type PageSeat = flight::Seat<Instant, ()>;

/// The object under a file's name. `None`: S3 has no object there, or another version than the one asked for.
pub(super) type Answer = Result<Option<ObjectMeta>>;

/// A waiter's place in a question about a file.
pub(super) type FileSeat = flight::Seat<OfFile, Answer>;

/// All questions in flight.
#[derive(Debug, Default)]
pub(super) struct Board {
    pub(super) names: Flights<Name, OfName, Result<Remote>>,
    pub(super) files: Flights<InodeNo, OfFile, Answer>,
    /// Pages in flight with the time of their request, by the events at which they were requested. The tree takes an answer in before its
    /// question leaves the board.
    pub(super) pages: Flights<u64, Instant, ()>,
}

impl Board {
    /// A seat in a question about this name that makes the same requests.
    pub(super) fn join_name(&self, name: &Name, ask: Ask) -> Option<NameSeat> {
        let seat = self.names.join(name, |question| question.ask == ask)?;
        seat.question.takers.fetch_add(1, Relaxed);
        Some(seat)
    }

    /// The first, in the order of names, of the other names of this directory with a question in flight.
    pub(super) fn first_beside(&self, parent: InodeNo, name: &str) -> Option<Box<str>> {
        let others = self.names.subjects().filter(|(other, there)| *other == parent && **there != *name);
        others.map(|(_, name)| name).min().cloned()
    }

    /// The directories of the names in question.
    pub(super) fn directories(&self) -> impl Iterator<Item = InodeNo> {
        self.names.subjects().map(|(directory, _)| *directory)
    }

    /// Marks questions about a name as overtaken: the name changed here after they went out.
    pub(super) fn overtake(&mut self, parent: InodeNo, name: &str) {
        if self.names.is_empty() {
            return;
        }
        for question in self.names.leave(&(parent, name.into())) {
            question.overtaken.store(true, Relaxed);
        }
    }

    /// Marks questions about names in these directories as overtaken: the directories have new keys, and the questions used the old ones.
    pub(super) fn overtake_in(&mut self, directories: &HashSet<InodeNo>) {
        for question in self.names.leave_all(|(parent, _)| directories.contains(parent)) {
            question.overtaken.store(true, Relaxed);
        }
    }

    /// A seat in a question about a file whose answer is good enough for this wish.
    pub(super) fn join_file(&self, ino: InodeNo, wish: Wish) -> Option<FileSeat> {
        self.files.join(&ino, |question| match wish {
            Wish::Stat => true,
            Wish::Open => question.opens,
            Wish::OpenNow => question.opens && question.asked.load(Relaxed) == 0,
        })
    }

    /// A new question about a file. All questions about one file share a gate.
    pub(super) fn of_file(&self, ino: InodeNo, wish: Wish) -> OfFile {
        let gate = self.files.about(&ino).next().map(|question| Arc::clone(&question.gate));
        OfFile {
            opens: wish != Wish::Stat,
            asked: AtomicU64::new(0),
            first: Slot::default(),
            gate: gate.unwrap_or_else(|| Arc::new(Semaphore::new(AT_ONCE))),
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.files.is_empty() && self.pages.is_empty()
    }
}

/// A question to S3 about the kind and version of a name.
#[derive(Debug)]
pub(super) struct OfName {
    ask: Ask,
    /// The event at which the question went out.
    pub(super) asked: u64,
    /// Whether the name changed here since. Read and set under the tree's lock.
    overtaken: AtomicBool,
    /// Lookups that wait for the answer.
    takers: AtomicU64,
    /// The first bytes that came with the attributes. One lookup takes them.
    pub(super) first: Slot,
    /// The whole listing of a directory that came along. One lookup takes it.
    pub(super) listing: PageSlot,
    /// The moment at which the question went out.
    pub(super) since: Instant,
}

impl OfName {
    pub(super) fn new(ask: Ask, asked: u64, since: Instant) -> Self {
        Self {
            ask,
            asked,
            since,
            listing: PageSlot::default(),
            overtaken: AtomicBool::new(false),
            takers: AtomicU64::new(1),
            first: Slot::default(),
        }
    }

    pub(super) fn is_overtaken(&self) -> bool {
        self.overtaken.load(Relaxed)
    }

    /// Whether a single lookup waits for the answer.
    pub(super) fn is_alone(&self) -> bool {
        self.takers.load(Relaxed) == 1
    }

    /// The first bytes that came with the attributes, once.
    pub(super) fn take_first(&self) -> Option<First> {
        self.first.lock().take()
    }

    /// The listing of the directory that came along, once.
    pub(super) fn take_listing(&self) -> Option<ListPage> {
        self.listing.lock().take()
    }
}

/// The reason for a question about a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wish {
    /// A stat.
    Stat,
    /// An open to read that may rely on a TTL.
    Open,
    /// An open to read that must see the present state of S3.
    OpenNow,
}

/// A question whether a file is still the version that its inode means.
#[derive(Debug)]
pub(super) struct OfFile {
    /// Whether an open asks: then the answer may bring the file's first bytes.
    pub(super) opens: bool,
    /// The event at which the request went out; 0 before. Set under the tree's lock.
    pub(super) asked: AtomicU64,
    /// The first bytes that came with the attributes. One open takes them.
    pub(super) first: Slot,
    /// The semaphore that lets the requests of opens go out.
    pub(super) gate: Arc<Semaphore>,
}
