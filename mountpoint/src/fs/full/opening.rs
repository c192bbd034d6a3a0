//! Keeps opens of a file apart from the end of its name.
//!
//! unlink and rename look which programs have a file open, fetch its bytes for those, and then delete or replace its object. An open in
//! between would read an object that goes away, or make a change that finds its object under another name. So such an open waits until
//! the operation has ended: then the file has its new name, or none. If it has none, the open is ESTALE, and the kernel looks the path up
//! anew. The operation in turn waits for the opens that began before it.

use std::collections::HashMap;
use std::pin::pin;

use tokio::sync::Notify;

use crate::inode::InodeNo;
use crate::sync::{Arc, Mutex};

/// The opens in progress, and the files whose name changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Openings(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    files: Mutex<HashMap<InodeNo, Counts>>,
    /// Rung when an open or a change ends.
    changed: Notify,
}

/// Number of opens in progress of one file, and of changes of its name.
#[derive(Debug, Default)]
struct Counts {
    reads: usize,
    writes: usize,
    moves: usize,
    ends: usize,
}

/// The change of a file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The file gets another name. Opens for reading go on: they find the object under either name.
    Move,
    /// The file loses its name.
    End,
}

/// A guard: changes of the file's name wait until it is dropped.
#[derive(Debug)]
pub(in crate::fs) struct Opening {
    shared: Arc<Shared>,
    ino: InodeNo,
    to_write: bool,
}

/// A guard: opens of the file wait until it is dropped.
#[derive(Debug)]
pub(super) struct Closed {
    shared: Arc<Shared>,
    ino: InodeNo,
    change: Change,
}

impl Counts {
    fn opens(&mut self, to_write: bool) -> &mut usize {
        if to_write { &mut self.writes } else { &mut self.reads }
    }

    fn changes(&mut self, change: Change) -> &mut usize {
        match change {
            Change::Move => &mut self.moves,
            Change::End => &mut self.ends,
        }
    }

    fn keeps_out(&self, to_write: bool) -> bool {
        self.ends > 0 || to_write && self.moves > 0
    }

    /// Whether an open is in progress that such a change waits for.
    fn is_opened(&self, change: Change) -> bool {
        self.writes > 0 || change == Change::End && self.reads > 0
    }

    fn is_idle(&self) -> bool {
        self.reads + self.writes + self.moves + self.ends == 0
    }
}

impl Openings {
    /// Begins an open; `None` while the file's name changes.
    pub(super) fn try_open(&self, ino: InodeNo, to_write: bool) -> Option<Opening> {
        let mut files = self.0.files.lock();
        if files.get(&ino).is_some_and(|counts| counts.keeps_out(to_write)) {
            return None;
        }
        *files.entry(ino).or_default().opens(to_write) += 1;
        Some(Opening { shared: Arc::clone(&self.0), ino, to_write })
    }

    /// Begins an open once the file's name does not change.
    pub(super) async fn open(&self, ino: InodeNo, to_write: bool) -> Opening {
        loop {
            let mut changed = pin!(self.0.changed.notified());
            // Before the look, so that no ring in between is missed.
            changed.as_mut().enable();
            if let Some(opening) = self.try_open(ino, to_write) {
                return opening;
            }
            changed.await;
        }
    }

    /// Keeps later opens out, and returns once those that began before have ended.
    pub(super) async fn close(&self, ino: InodeNo, change: Change) -> Closed {
        let closed = {
            *self.0.files.lock().entry(ino).or_default().changes(change) += 1;
            Closed { shared: Arc::clone(&self.0), ino, change }
        };
        loop {
            let mut changed = pin!(self.0.changed.notified());
            changed.as_mut().enable();
            if self.0.files.lock().get(&ino).is_none_or(|counts| !counts.is_opened(change)) {
                return closed;
            }
            changed.await;
        }
    }
}

impl Shared {
    fn ended(&self, ino: InodeNo, count: impl FnOnce(&mut Counts) -> &mut usize) {
        {
            let mut files = self.files.lock();
            let Some(counts) = files.get_mut(&ino) else { return };
            let count = count(counts);
            *count = count.saturating_sub(1);
            if counts.is_idle() {
                files.remove(&ino);
            }
        }
        self.changed.notify_waiters();
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.shared.ended(self.ino, |counts| counts.opens(self.to_write));
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.shared.ended(self.ino, |counts| counts.changes(self.change));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;

    const INO: InodeNo = InodeNo(7);

    #[tokio::test]
    async fn opens_and_the_end_of_a_name_wait_for_each_other() {
        let openings = Openings::default();
        let (reads, writes) = (openings.open(INO, false).await, openings.open(INO, true).await);
        let mut end = pin!(openings.close(INO, Change::End));
        assert!(poll!(&mut end).is_pending());
        drop(writes);
        assert!(poll!(&mut end).is_pending(), "a program opens it for reading");
        drop(reads);
        let end = end.await;
        assert!(openings.try_open(INO, false).is_none() && openings.try_open(INO, true).is_none());
        openings.open(InodeNo(8), true).await;
        let mut open = pin!(openings.open(INO, false));
        assert!(poll!(&mut open).is_pending());
        drop(end);
        drop(open.await);
        assert!(openings.0.files.lock().is_empty());
    }

    #[tokio::test]
    async fn opens_for_reading_go_on_while_a_file_gets_another_name() {
        let openings = Openings::default();
        let reads = openings.open(INO, false).await;
        let moves = openings.close(INO, Change::Move).await;
        let more = openings.open(INO, false).await;
        assert!(openings.try_open(INO, true).is_none());
        drop((reads, moves, more));
        drop(openings.open(INO, true).await);
        assert!(openings.0.files.lock().is_empty());
    }
}
