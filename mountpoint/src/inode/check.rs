//! Asks S3 whether a file is still the version that its inode means: one request for all that want to know it at once.
//!
//! A stat joins any request under way, as a lookup does; so does an open that may rely on a TTL. Any other open sees what is there after it
//! began: it joins a request that has not gone out yet. For one file two go out at once; opens beyond that wait together for the next.

use std::fmt;
use std::time::Duration;

use foldhash::HashMap;
use futures_util::FutureExt;
use futures_util::future::{Shared, WeakShared};
use tokio::sync::Semaphore;

use super::compact::Stored;
use super::error::{Error, ErrorKind, Result};
use super::flight::Slot;
use super::state::{Node, Place};
use super::tree::{Tree, stale};
use super::{InodeNo, InodeTable};
use crate::first::{Cause, First};
use crate::object::ObjectMeta;
use crate::s3::{self, BoxFuture};
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sync::{Arc, Weak};

/// Requests of opens of one file at once. Doubling it spares fewer opens the wait for another's answer, and makes twice the requests
/// of a file that many programs open at once.
pub(super) const AT_ONCE: usize = 2;

/// Longest wait for another's answer. A request that a broken connection holds up holds up no open for longer.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(200);

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
type Answer = Result<Option<ObjectMeta>>;

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
struct Check {
    /// For an open: its first bytes may come along.
    opens: bool,
    /// The event at which it went out; 0: not yet. Set under the tree's lock.
    asked: AtomicU64,
    /// What came with the attributes, for one open.
    first: Slot,
}

/// A place among those that wait for an answer.
struct Seat {
    check: Arc<Check>,
    answer: Shared<BoxFuture<'static, Answer>>,
}

impl Checks {
    /// A seat where the answer is good enough for this wish.
    fn join(&self, ino: InodeNo, wish: Wish) -> Option<Seat> {
        let fits = |check: &Check| match wish {
            Wish::Stat => true,
            Wish::Open => check.opens,
            Wish::OpenNow => check.opens && check.asked.load(Relaxed) == 0,
        };
        let entry = self.0.get(&ino)?.entries.iter().rev().find(|entry| fits(&entry.check))?;
        Some(Seat { check: Arc::clone(&entry.check), answer: entry.answer.upgrade()? })
    }

    fn gate(&mut self, ino: InodeNo) -> &Arc<Semaphore> {
        let board = || Board { entries: Vec::new(), gate: Arc::new(Semaphore::new(AT_ONCE)) };
        &self.0.entry(ino).or_insert_with(board).gate
    }

    fn add(&mut self, ino: InodeNo, seat: &Seat) {
        let Some(board) = self.0.get_mut(&ino) else { return };
        let Some(answer) = seat.answer.downgrade() else { return };
        board.entries.push(Entry { check: Arc::clone(&seat.check), answer });
    }

    fn remove(&mut self, ino: InodeNo, check: &Arc<Check>) {
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

impl InodeTable {
    /// Asks S3 by one request whether a stored file is still the version this inode means. What came along is for an open.
    pub(super) async fn revalidate(&self, ino: InodeNo, wish: Wish) -> Result<Option<First>> {
        let seat = self.take_seat(&mut self.0.tree.lock(), ino, wish);
        let meta = seat.answer.await?;
        let first = if wish == Wish::Stat { None } else { seat.check.first.lock().take() };
        let asked = seat.check.asked.load(Relaxed);
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        let said = tree.ttl.said(asked, now);
        let key = tree.key(ino).ok_or_else(|| stale(ino))?;
        let inode = tree.inode(ino).ok_or_else(|| stale(ino))?;
        let local = matches!(&inode.node, Node::File(file) if file.is_local());
        if inode.place == Place::Nowhere {
            return Err(Error::new(ErrorKind::Stale, key.as_str()));
        }
        // What happened here since the question stands.
        if local || inode.learned > asked {
            return Ok(first);
        }
        match meta {
            Some(meta) if tree.confirm(ino, &meta, false, said) => Ok(first),
            // Another object, or none. What the name is now, perhaps a directory, the next lookup asks.
            _ => {
                tree.detach(ino);
                Err(Error::new(ErrorKind::Stale, key.as_str()))
            }
        }
    }

    /// A seat among those that ask this; a new question if there is none.
    fn take_seat(&self, tree: &mut Tree, ino: InodeNo, wish: Wish) -> Seat {
        if let Some(seat) = tree.checks.join(ino, wish) {
            return seat;
        }
        let opens = wish != Wish::Stat;
        let check = Arc::new(Check { opens, asked: AtomicU64::new(0), first: Slot::default() });
        let gate = Arc::clone(tree.checks.gate(ino));
        let landing = Landing { table: Arc::downgrade(&self.0), ino, check: Arc::clone(&check) };
        let (table, asks) = (self.clone(), Arc::clone(&check));
        let question: BoxFuture<'static, Answer> = Box::pin(async move {
            let _landing = landing;
            let clock = &table.0.clock;
            let _permit = match opens {
                true => clock.timeout(WAIT_MAX, gate.acquire_owned()).await,
                false => None,
            };
            table.ask_check(ino, &asks).await
        });
        let seat = Seat { check, answer: question.shared() };
        tree.checks.add(ino, &seat);
        seat
    }

    /// The request goes out: no open that begins from here on uses its answer.
    async fn ask_check(&self, ino: InodeNo, check: &Check) -> Answer {
        let (key, known) = {
            let mut tree = self.0.tree.lock();
            check.asked.store(tree.event(), Relaxed);
            let key = tree.key(ino).ok_or_else(|| stale(ino))?;
            let stored = tree.file_mut(ino).ok().and_then(|file| file.stored.as_ref());
            (key, stored.filter(|stored| check.opens && stored.is_readable()).map(Stored::meta))
        };
        let answer = match &known {
            Some(known) => {
                let asked = self.0.asker.ask(&key, Cause::Open, Some((&known.etag, known.size))).await;
                asked.map(|(meta, first)| {
                    *check.first.lock() = Some(first);
                    meta
                })
            }
            None => self.0.client.head_object(&key).await,
        };
        match answer {
            Ok(meta) => Ok(Some(meta)),
            Err(error) if matches!(error.kind(), s3::ErrorKind::NotFound | s3::ErrorKind::Changed) => {
                Ok(None)
            }
            Err(error) => Err(Error::new(ErrorKind::Remote(Arc::new(error)), key.as_str())),
        }
    }
}

/// Takes a question off the board when its future is done with, however that came about.
struct Landing {
    table: Weak<super::Shared>,
    ino: InodeNo,
    check: Arc<Check>,
}

impl Drop for Landing {
    fn drop(&mut self) {
        if let Some(table) = self.table.upgrade() {
            table.tree.lock().checks.remove(self.ino, &self.check);
        }
    }
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
