//! Attributes that programs set: sizes change the file; modes and times show while the mount lasts, since the bucket has no place for
//! them.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

use crate::fs::handle::Mode;
use crate::fs::{Attr, Attributes, Error, FileSystem, Maker, Result, SetAttr};
use crate::inode::{InodeNo, TimeWish};
use crate::stage::Staged;
use crate::sync::Mutex;

/// Most inodes whose attributes are kept. Beyond it all are dropped, and files show the mount's own modes and times again. Doubling it
/// takes twice the memory, about 100 bytes for each inode.
const REMEMBERED_MAX: usize = 500_000;

/// The attributes that programs set.
#[derive(Debug, Default)]
pub(super) struct Shown(Mutex<HashMap<InodeNo, Set>>);

#[derive(Clone, Copy, Debug, Default)]
struct Set {
    mode: Option<u16>,
    accessed: Option<SystemTime>,
    modified: Option<SystemTime>,
}

impl Shown {
    fn set(&self, ino: InodeNo, change: impl FnOnce(&mut Set)) {
        let mut shown = self.0.lock();
        if shown.len() >= REMEMBERED_MAX && !shown.contains_key(&ino) {
            shown.clear();
        }
        change(shown.entry(ino).or_default());
    }

    /// Keeps the times of a directory that was made now, or those that a file showed before it was stored.
    pub(super) fn times(&self, ino: InodeNo, (accessed, modified): (SystemTime, SystemTime)) {
        self.set(ino, |set| (set.accessed, set.modified) = (Some(accessed), Some(modified)));
    }

    fn forget(&self, ino: InodeNo) {
        self.0.lock().remove(&ino);
    }

    /// Puts the attributes that programs set into `attr`. With `is_staged` the times of the staged file count instead.
    fn apply(&self, attr: &mut Attr, is_staged: bool) {
        let Some(set) = self.0.lock().get(&attr.ino).copied() else { return };
        attr.mode = set.mode.unwrap_or(attr.mode);
        if !is_staged {
            attr.accessed = set.accessed.unwrap_or(attr.accessed);
            attr.modified = set.modified.unwrap_or(attr.modified);
        }
    }
}

impl FileSystem {
    /// The attributes with those that programs set, and the size of a file in the stage.
    pub(in crate::fs) fn attr_in_full(&self, mut attr: Attr) -> Attr {
        if let Some(full) = &self.full {
            let staged = full.find(attr.ino);
            full.shown.apply(&mut attr, staged.is_some());
            if let Some(staged) = staged {
                if let Some(modified) = self.take_times(attr.ino, &staged) {
                    attr.modified = modified;
                }
                attr.size = staged.size();
                // The kernel writes past its own attributes.
                if staged.is_lent() {
                    attr.valid_for = Duration::ZERO;
                }
                if staged.is_unlinked() {
                    attr.links = 0;
                }
            }
        }
        attr
    }

    /// Takes in the time of a change that the kernel made by itself.
    pub(super) fn take_times(&self, ino: InodeNo, staged: &Staged) -> Option<SystemTime> {
        let modified = staged.take_modified()?;
        self.inodes.set_times(ino, None, Some(TimeWish::At(modified)));
        Some(modified)
    }

    /// Gives a new file or directory the mode that its maker requested.
    pub(in crate::fs) fn made_in_full(&self, ino: InodeNo, maker: Maker) {
        // The mode is about the owner, which is the mount's.
        if let Some(full) = self.full.as_ref().filter(|_| maker.uid == self.config.ownership.uid) {
            full.shown.set(ino, |set| set.mode = Some((maker.mode & 0o7777) as u16));
        }
    }

    /// Gives a new directory the mode that its maker requested, and the present time.
    pub(in crate::fs) fn directory_made_in_full(&self, ino: InodeNo, maker: Maker) {
        self.made_in_full(ino, maker);
        if let Some(full) = &self.full {
            let now = self.clock.wall();
            full.shown.times(ino, (now, now));
        }
    }

    /// Gives a directory the time of a change of its names.
    pub(in crate::fs) fn names_changed(&self, directory: InodeNo) {
        if let Some(full) = &self.full {
            let now = self.clock.wall();
            full.shown.set(directory, |set| set.modified = Some(now));
        }
    }

    /// Drops the attributes of an inode that the kernel has forgotten.
    pub(in crate::fs) fn forgotten(&self, ino: InodeNo) {
        if let Some(full) = &self.full
            && !self.inodes.lives(ino)
        {
            full.shown.forget(ino);
        }
    }

    /// Changes attributes. A size changes the file; modes and times are shown while the mount lasts.
    ///
    /// # Errors
    /// `PERM`: another owner. Also the errors of the stage, and of the store where a size is set by a path.
    pub(in crate::fs) async fn setattr_in_full(&self, ino: InodeNo, wish: SetAttr) -> Result<Attr> {
        let attr = self.getattr(ino).await?;
        let is_other = |wish: Option<u32>, shown| wish.is_some_and(|wish| wish != shown && wish != u32::MAX);
        let is_refused = self.config.attributes == Attributes::Refused;
        if is_refused && (is_other(wish.uid, attr.uid) || is_other(wish.gid, attr.gid)) {
            let why = format!(
                "inode {}: the mount's --uid and --gid set the owner of all files; with --ignore-attributes such a change succeeds without effect",
                ino.0
            );
            return Err(Error::new(Errno::PERM, why));
        }
        if let Some(size) = wish.size {
            self.set_size_in_full(ino, wish, size).await?;
        }
        let full = self.full()?;
        if let Some(mode) = wish.mode {
            full.shown.set(ino, |set| set.mode = Some((mode & 0o7777) as u16));
        }
        if wish.accessed.is_some() || wish.modified.is_some() {
            self.inodes.set_times(ino, wish.accessed, wish.modified);
            let now = self.clock.wall();
            let time = |wish: Option<TimeWish>, shown| match wish {
                Some(TimeWish::Now) => Some(now),
                Some(TimeWish::At(time)) => Some(time),
                None => Some(shown),
            };
            let (accessed, modified) =
                (time(wish.accessed, attr.accessed), time(wish.modified, attr.modified));
            full.shown.set(ino, |set| (set.accessed, set.modified) = (accessed, modified));
        }
        self.getattr(ino).await
    }

    /// Sets the size of a file. Without a handle that writes, the change is stored as by a close.
    pub(in crate::fs) async fn set_size_in_full(&self, ino: InodeNo, wish: SetAttr, size: u64) -> Result<()> {
        let open = wish.handle.and_then(|handle| self.files.find(handle));
        if let Some(open) = open
            && let Mode::Staged(handle) = &open.mode
        {
            return self.resize_staged(ino, &handle.staged, size).await;
        }
        // The size is set by a path: no close follows that would store the file.
        self.wait_for_place(ino).await?;
        let (staged, _) = self.open_in_stage(ino, true).await?;
        let mut done = self.resize_staged(ino, &staged, size).await;
        let full = self.full()?;
        if full.is_deferred() {
            full.writer_comes(ino, self.clock.now());
            full.writer_goes(ino, &staged, self.clock.now());
        } else if done.is_ok() && full.writers(ino) == 0 {
            done = self.sync_staged(ino, &staged).await;
        }
        self.leave_stage(ino, &staged).await;
        done
    }
}
