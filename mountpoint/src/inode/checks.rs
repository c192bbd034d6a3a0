//! The questions under way whether a file is still the version that its inode means, and which of their answers serves which wish.
//!
//! A stat joins any request under way, as a lookup does; so does an open that may rely on a TTL. Any other open sees what is there after it
//! began: it joins a request that has not gone out yet. For one file two go out at once; opens beyond that wait together for the next.

use std::fmt;

use foldhash::HashMap;
use futures_util::future::{Shared, WeakShared};
use tokio::sync::Semaphore;

use super::InodeNo;
use super::error::Result;
use super::remote::Slot;
use crate::object::ObjectMeta;
use crate::s3::BoxFuture;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Requests of opens of one file at once. Doubling it spares fewer opens the wait for another's answer, and makes twice the requests
/// of a file that many programs open at once.
pub(super) const AT_ONCE: usize = 2;

/// Why it is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wish {
    /// For a stat.
    Stat,
    /// For an open to read that may rely on a TTL.
    Open,
    /// For an open to read that sees what is there now.
    OpenNow,
}

/// The object under the name; `None`: another version than the one that was asked for, or none.
pub(super) type Answer = Result<Option<ObjectMeta>>;

/// Questions under way, by inode.
#[derive(Default)]
pub(super) struct Checks(HashMap<InodeNo, Board>);

/// Those about one file.
struct Board {
    entries: Vec<Entry>,
    /// Lets the requests of opens go out.
    gate: Arc<Semaphore>,
}

struct Entry {
    check: Arc<Check>,
    answer: WeakShared<BoxFuture<'static, Answer>>,
}

/// One question.
#[derive(Debug)]
pub(super) struct Check {
    /// For an open: its first bytes may come along.
    pub(super) opens: bool,
    /// The event at which it went out; 0: not yet. Set under the tree's lock.
    pub(super) asked: AtomicU64,
    /// What came with the attributes, for one open.
    pub(super) first: Slot,
}

/// A place among those that wait for an answer.
pub(super) struct Seat {
    pub(super) check: Arc<Check>,
    pub(super) answer: Shared<BoxFuture<'static, Answer>>,
}

impl Checks {
    /// A seat where the answer is good enough for this wish.
    pub(super) fn join(&self, ino: InodeNo, wish: Wish) -> Option<Seat> {
        let fits = |check: &Check| match wish {
            Wish::Stat => true,
            Wish::Open => check.opens,
            Wish::OpenNow => check.opens && check.asked.load(Relaxed) == 0,
        };
        let entry = self.0.get(&ino)?.entries.iter().rev().find(|entry| fits(&entry.check))?;
        Some(Seat { check: Arc::clone(&entry.check), answer: entry.answer.upgrade()? })
    }

    pub(super) fn gate(&mut self, ino: InodeNo) -> &Arc<Semaphore> {
        let board = || Board { entries: Vec::new(), gate: Arc::new(Semaphore::new(AT_ONCE)) };
        &self.0.entry(ino).or_insert_with(board).gate
    }

    pub(super) fn add(&mut self, ino: InodeNo, seat: &Seat) {
        let Some(board) = self.0.get_mut(&ino) else { return };
        let Some(answer) = seat.answer.downgrade() else { return };
        board.entries.push(Entry { check: Arc::clone(&seat.check), answer });
    }

    pub(super) fn remove(&mut self, ino: InodeNo, check: &Arc<Check>) {
        let Some(board) = self.0.get_mut(&ino) else { return };
        board.entries.retain(|entry| !Arc::ptr_eq(&entry.check, check));
        if board.entries.is_empty() {
            self.0.remove(&ino);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
