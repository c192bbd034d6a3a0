//! The state of a staged file that the kernel writes past the engine: how a change shows, and whether programs may write. The operations are in
//! `lending.rs`.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::sync::Arc;

/// How long the last change of a file must be over, so that a later one surely shows another time. File systems count in ticks of at most
/// 10 ms. Doubling it delays the sends of open files that are written now and then.
pub(super) const YOUNG: Duration = Duration::from_millis(50);

/// The state of a file that the kernel writes, or wrote.
#[derive(Debug)]
pub(super) struct Lent {
    /// Number of loans: while there is one, programs may open the file for writing.
    pub(super) lends: u32,
    /// The file, opened for reading, while a program has it open.
    pub(super) file: Option<Arc<File>>,
    /// The file before the kernel could write it.
    pub(super) before: Mark,
    /// The file at the last look.
    pub(super) seen: Mark,
    /// Whether the bucket got a state of the file while somebody could write it, or a send of one began.
    pub(super) was_sent: bool,
    /// Whether nobody can write the file until a program opens it for writing: who has it open only reads.
    pub(super) is_quiet: bool,
}

/// Size and time of a file, by which a change shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) size: u64,
    pub(super) modified: SystemTime,
    /// Whether a later change could show the same time.
    pub(super) is_young: bool,
}

impl Mark {
    pub(super) fn of(file: Option<&File>, path: &Path, now: SystemTime) -> io::Result<Self> {
        let about = file.map_or_else(|| path.symlink_metadata(), File::metadata)?;
        let (size, modified) = (about.len(), about.modified()?);
        let age = now.duration_since(modified).unwrap_or_else(|ahead| ahead.duration());
        Ok(Self { size, modified, is_young: age < YOUNG })
    }

    /// Whether this proves that nothing has changed since `before`.
    pub(super) fn proves(&self, before: &Self) -> bool {
        !before.is_young && (self.size, self.modified) == (before.size, before.modified)
    }
}

impl Lent {
    /// A file of an earlier mount, which a mapping of that mount may still change.
    pub(super) fn of_before(size: u64, modified: SystemTime, now: SystemTime) -> Self {
        let age = now.duration_since(modified).unwrap_or_else(|ahead| ahead.duration());
        Self::new(Mark { size, modified, is_young: age < YOUNG })
    }

    /// A file that is about to be lent.
    pub(super) fn new(mark: Mark) -> Self {
        Self { lends: 0, file: None, before: mark, seen: mark, was_sent: false, is_quiet: false }
    }

    /// Whether any change after a sync that began at `began` shows another time than the last look, of `now`. A mapping's page that got
    /// dirty during the sync may stay so, and its next changes show nowhere.
    pub(super) fn is_still(&self, began: SystemTime, now: SystemTime) -> bool {
        let modified = self.seen.modified;
        // A time that is ahead is one of before the clock was set back.
        modified + YOUNG < began || modified > now + YOUNG
    }

    /// Closes the file when nobody has it.
    pub(super) fn rest(&mut self) {
        if self.lends == 0 {
            self.file = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_got_dirty_during_the_sync_makes_the_file_restless() {
        let now = SystemTime::now();
        let is_still = |modified: SystemTime| {
            let lent = Lent::of_before(1, modified, now);
            lent.is_still(now - 20 * YOUNG, now)
        };
        assert!(is_still(now - 22 * YOUNG));
        // The sync took long, and the time of the change is not young any more.
        assert!(!is_still(now - 10 * YOUNG) && !is_still(now - 20 * YOUNG));
        assert!(!is_still(now) && is_still(now + 2 * YOUNG), "the clock was set back");
    }
}
