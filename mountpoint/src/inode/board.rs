//! The questions to S3 that are under way: of names, of files, of pages; and which of their answers serves which wish.
//!
//! A lookup joins a question about the same name that asks the same. A stat joins any question whether its file is still the version that its
//! inode means; so does an open that may rely on a TTL. Any other open sees what is there after it began: it joins a request that has not
//! gone out yet. For one file two go out at once; opens beyond that wait together for the next. A page is known by the event at which it
//! was asked for.

use foldhash::HashSet;
use tokio::sync::Semaphore;

use super::InodeNo;
use super::error::Result;
use super::flight::{self, Flights};
use super::remote::{Ask, Remote, Slot};
use crate::first::First;
use crate::object::ObjectMeta;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Requests of opens of one file at once. Doubling it spares fewer opens the wait for another's answer, and makes twice the requests
/// of a file that many programs open at once.
pub(super) const AT_ONCE: usize = 2;

/// A directory and a name in it.
pub(super) type Name = (InodeNo, Box<str>);

/// A place in a question about a name, or about a page.
pub(super) type NameSeat = flight::Seat<OfName, Result<Remote>>;
pub(super) type PageSeat = flight::Seat<(), ()>;

/// The object under a file's name; `None`: another version than the one that was asked for, or none.
pub(super) type Answer = Result<Option<ObjectMeta>>;

/// A place in a question about a file.
pub(super) type FileSeat = flight::Seat<OfFile, Answer>;

/// All questions under way.
#[derive(Debug, Default)]
pub(super) struct Board {
    pub(super) names: Flights<Name, OfName, Result<Remote>>,
    pub(super) files: Flights<InodeNo, OfFile, Answer>,
    /// Pages by the events at which they were asked for. An answer is taken in before its question leaves the board.
    pub(super) pages: Flights<u64, (), ()>,
}

impl Board {
    /// A seat in a question about a name that asks the same.
    pub(super) fn join_name(&self, name: &Name, ask: Ask) -> Option<NameSeat> {
        let seat = self.names.join(name, |question| question.ask == ask)?;
        seat.question.takers.fetch_add(1, Relaxed);
        Some(seat)
    }

    /// The first in order of the other names that are asked about in this directory.
    pub(super) fn first_beside(&self, parent: InodeNo, name: &str) -> Option<Box<str>> {
        let others = self.names.subjects().filter(|(other, there)| *other == parent && **there != *name);
        others.map(|(_, name)| name).min().cloned()
    }

    /// Something happened to a name: what is under way was asked too early.
    pub(super) fn overtake(&mut self, parent: InodeNo, name: &str) {
        if self.names.is_empty() {
            return;
        }
        for question in self.names.leave(&(parent, name.into())) {
            question.overtaken.store(true, Relaxed);
        }
    }

    /// These directories have other keys now: what is under way about names in them was asked of the wrong ones.
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

    /// A new question about a file. It shares its gate with the others about that file.
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

/// A question what a name is.
#[derive(Debug)]
pub(super) struct OfName {
    ask: Ask,
    /// The event at which it was asked.
    pub(super) asked: u64,
    /// Whether something happened to the name since. Read and set under the tree's lock.
    overtaken: AtomicBool,
    /// The lookups that wait for it.
    takers: AtomicU64,
    /// The first bytes that came with the attributes, for one lookup.
    pub(super) first: Slot,
}

impl OfName {
    pub(super) fn new(ask: Ask, asked: u64) -> Self {
        Self {
            ask,
            asked,
            overtaken: AtomicBool::new(false),
            takers: AtomicU64::new(1),
            first: Slot::default(),
        }
    }

    pub(super) fn is_overtaken(&self) -> bool {
        self.overtaken.load(Relaxed)
    }

    /// Whether the answer was asked for one lookup alone.
    pub(super) fn is_alone(&self) -> bool {
        self.takers.load(Relaxed) == 1
    }

    /// The first bytes that came with the attributes, once.
    pub(super) fn take_first(&self) -> Option<First> {
        self.first.lock().take()
    }
}

/// Why a file is asked about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wish {
    /// A stat.
    Stat,
    /// An open to read that may rely on a TTL.
    Open,
    /// An open to read that sees what is there now.
    OpenNow,
}

/// A question whether a file is still the version that its inode means.
#[derive(Debug)]
pub(super) struct OfFile {
    /// An open asks: the file's first bytes may come along.
    pub(super) opens: bool,
    /// The event at which it went out; 0: not yet. Set under the tree's lock.
    pub(super) asked: AtomicU64,
    /// The first bytes that came with the attributes, for one open.
    pub(super) first: Slot,
    /// Lets the requests of opens go out.
    pub(super) gate: Arc<Semaphore>,
}
