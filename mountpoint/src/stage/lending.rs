//! Files that the kernel writes past the engine (passthrough, `--commit disk`): programs change the staged file itself, and no call tells
//! of it.
//!
//! Such a file has all its bytes here, and the log said that it has changes before the kernel may write. Its size and the time of its last
//! change come from the file, at each look. A time that is younger than the grain of the file system's clock proves nothing: the file counts
//! as changed.
//!
//! After the kernel has given the file back, a mapping may still change it. The kernel grants a read lease only on a file that nobody can
//! write: until then the file counts as changed, however often it was sent.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use super::image::Fate;
use super::lease;
use super::lent::{Lent, Mark, YOUNG};
use super::staged::State;
use super::{Error, Staged};
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::{Arc, MutexGuard};

/// The room that the stage must have for a file that the kernel writes: nothing limits such a file while it grows. Doubling it makes the
/// engine write more files, and fewer writers go beyond `--stage-size`.
const ROOM: u64 = 1 << 30;

/// The kernel's right to write a staged file. A drop ends it.
#[derive(Debug)]
pub struct Loan {
    staged: Arc<Staged>,
    file: Arc<File>,
}

impl Loan {
    /// The file to register with the kernel.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let mut state = self.staged.state.lock();
        if let Some(lent) = &mut state.lent {
            lent.lends = lent.lends.saturating_sub(1);
        }
    }
}

impl Staged {
    /// Whether the file may have changes that no look has shown: no program has it open for writing, and nothing has proven that no
    /// mapping writes it.
    pub(super) fn is_loose(&self, state: &State) -> bool {
        let is_open = |lent: &Lent| lent.lends > 0 && !self.is_closed.load(Relaxed);
        let may_change = state.lent.as_ref().is_some_and(|lent| !is_open(lent) && !lent.is_quiet);
        may_change && matches!(state.image.fate(), Fate::Stored(_))
    }

    /// The state of the file as of now, also where the kernel writes it.
    pub(super) fn look(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        self.observe(&mut state);
        state
    }

    pub(super) fn observe(&self, state: &mut State) {
        let Some(lent) = &mut state.lent else { return };
        let (folder, seen) = (&self.shared.folder, lent.seen);
        let now = folder.clock().wall();
        // A file that can't be looked at counts as changed.
        let mark = Mark::of(lent.file.as_deref(), &folder.path(self.number), now)
            .unwrap_or(Mark { is_young: true, ..seen });
        lent.seen = mark;
        if mark.proves(&seen) {
            return;
        }
        if mark.modified != seen.modified {
            state.modified = Some(mark.modified);
        }
        self.rewrite(state, mark.size);
    }

    fn rewrite(&self, state: &mut State, size: u64) {
        let held = state.image.held();
        state.image.rewritten(size);
        state.ahead.end();
        self.shared.folder.hold(state.image.held());
        self.shared.folder.give(held);
    }

    /// The time of the last change that the kernel made, once after each change.
    pub fn take_modified(&self) -> Option<SystemTime> {
        self.look().modified.take()
    }

    /// Whether the kernel wrote the file, or could: its pages in the kernel may be old then.
    pub fn was_lent(&self) -> bool {
        self.state.lock().was_lent
    }

    /// Whether the kernel may write this file: all its bytes are here, and the stage has room.
    pub fn may_be_lent(&self) -> bool {
        let folder = &self.shared.folder;
        let state = self.state.lock();
        let has_room = folder.has_room(ROOM) && folder.may_grow().is_ok();
        folder.lends() && has_room && state.error.is_none() && !state.image.needs_base()
    }

    /// Whether the kernel has the file, or nothing has proven yet that nobody writes it.
    pub fn is_lent(&self) -> bool {
        self.state.lock().lent.is_some()
    }

    /// Whether somebody may still write the file past the engine, by a mapping or in a mount of before: programs that open the file must
    /// then share its pages, for reading too.
    pub fn is_out(&self) -> bool {
        !self.is_settled()
    }

    /// Notes a program that is about to write by the kernel, before it can.
    ///
    /// # Errors
    /// `Disk`; that of a conflict.
    pub async fn is_opened_by_kernel(self: &Arc<Self>) -> Result<(), Error> {
        let must_sync = {
            let state = self.state.lock();
            state.was_synced && (!state.is_noted || self.is_closed.load(Relaxed) || !state.is_noted_whole)
        };
        let this = Arc::clone(self);
        let note = move || {
            let mut state = this.look();
            if let Some(lent) = &mut state.lent {
                lent.is_quiet = false;
            }
            this.begin_change_as_whole(&mut state)
        };
        if !must_sync {
            return note();
        }
        self.shared.runtime.spawn_blocking(note).await.map_err(io::Error::other)?
    }

    /// Lends the file to the kernel; `None`: the engine reads and writes it. Before programs write, call [`Staged::is_opened_by_kernel`]; for
    /// reading alone only a file that is out is lent.
    pub fn lend(self: &Arc<Self>, writes: bool) -> Option<Loan> {
        let folder = &self.shared.folder;
        let file = Arc::new(folder.reopen_to_read(self.number).ok()?);
        let mut state = self.look();
        // Some bytes may be elsewhere by now, or the file in `kept/`.
        let is_ready = if writes { state.is_noted && state.is_noted_whole } else { state.lent.is_some() };
        if state.error.is_some() || state.image.needs_base() || !is_ready {
            return None;
        }
        if state.lent.is_none() {
            let now = folder.clock().wall();
            let mark = || Mark::of(Some(&file), Path::new(""), now).ok();
            // A file without changes, which was made just now for an object: its age would make it look changed.
            if !state.image.is_dirty() && mark()?.is_young {
                file.set_modified(now - 2 * YOUNG).ok()?;
            }
            let mark = mark()?;
            if mark.size != state.image.size() {
                return None;
            }
            state.lent = Some(Lent::new(mark));
        }
        // The kernel tells nobody what it changes: a copy under way would be of two moments.
        state.copying = None;
        state.ahead.end();
        let lent = state.lent.as_mut()?;
        lent.lends += 1;
        lent.file = Some(Arc::clone(&file));
        state.was_lent = true;
        drop(state);
        Some(Loan { staged: Arc::clone(self), file })
    }

    /// Whether only the engine can change the file from here on, until it lends the file again.
    pub(super) fn is_settled(&self) -> bool {
        let mut state = self.look();
        let (is_kept, is_closed) = (state.image.is_kept(), self.is_closed.load(Relaxed));
        let Some(lent) = state.lent.as_mut().filter(|_| !is_kept) else { return true };
        if lent.lends > 0 && !is_closed {
            return false;
        }
        // The engine's own descriptor would refuse the lease. The lock keeps another thread from opening one before the lease has ended.
        let mut own = self.file.lock();
        *own = None;
        lent.rest();
        let folder = &self.shared.folder;
        // A process that may ask for no lease never knows.
        let is_granted = folder.tells_writers()
            && folder.reopen_to_read(self.number).is_ok_and(|file| lease::is_granted(&file));
        drop(own);
        lent.is_quiet = is_granted;
        if !is_granted {
            return false;
        }
        self.observe(&mut state);
        let Some(mut lent) = state.lent.take() else { return true };
        if lent.was_sent && !lent.seen.proves(&lent.before) {
            // A change in progress may have been sent in part.
            self.rewrite(&mut state, lent.seen.size);
        }
        if lent.lends == 0 {
            return true;
        }
        // Readers have it, and the next writer joins them.
        (lent.before, lent.was_sent) = (lent.seen, false);
        state.lent = Some(lent);
        false
    }
}
