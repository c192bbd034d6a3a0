//! Full parts of a long new file go out while programs still write it (`--commit close`), so that its close waits for the last parts only.
//!
//! One task sends the parts behind which a write came. The send of the close takes its place: it sends the parts that the upload lacks,
//! compares the generation, and completes the upload. Whatever makes the upload worthless ends it for good, and the close sends all bytes: a
//! size below what went out, another key, the loss of the name, a loan to the kernel, and any failure of the early upload itself.

use super::disk::read_at_most;
use super::going::{Ahead, Going};
use super::image::Fate;
use super::parts::{Next, Parts};
use super::runs::Runs;
use super::send::Draft;
use super::staged::State;
use super::{Error, Staged};
use crate::sync::Arc;
use crate::sync::atomic::Ordering::Relaxed;
use crate::upload;

/// Full parts that a file must have before the first one goes out. Doubling it leaves twice as long files to their close, and fewer
/// requests are in vain where programs remove such files again.
const PARTS_MIN: u64 = 2;

/// A guard of a part that counts as current, and is not read yet. Its drop ends the upload: the part would be missing.
struct Unread<'a> {
    staged: &'a Staged,
    going: &'a Arc<Going>,
    is_read: bool,
}

impl Drop for Unread<'_> {
    fn drop(&mut self) {
        if !self.is_read {
            self.staged.end_ahead(self.going);
        }
    }
}

impl Staged {
    /// The size of a new file from which parts go out early.
    pub(super) fn ahead_from(shared: &super::Shared) -> u64 {
        match shared.folder.commit().is_deferred() {
            // Such files may be gone again before they are due, and need a digest of all bytes.
            true => u64::MAX,
            false => shared.uploader.first_part().saturating_mul(PARTS_MIN) + 1,
        }
    }

    /// Sends full parts in the background, if a write has left any. `size`: the size of the file after that write.
    pub fn send_ahead(self: &Arc<Self>, size: u64) {
        // One task at a time: it sets the next size at its end.
        if size < self.due.load(Relaxed) || self.due.swap(u64::MAX, Relaxed) == u64::MAX {
            return;
        }
        let this = Arc::clone(self);
        self.shared.runtime.spawn(async move {
            let next = this.send_full_parts().await;
            this.due.store(next, Relaxed);
        });
    }

    /// Sends full parts as long as there are any. Returns the size from which another look is worth it.
    pub(super) async fn send_full_parts(&self) -> u64 {
        let Some(going) = self.begin_ahead() else { return self.looked_in_vain() };
        loop {
            let _turn = going.turn().await;
            let next = self.take_part(&going, |parts, state_size, written| {
                parts.take_new(state_size, written, |number| going.upload.part_len(number))
            });
            let Some(next) = next else { break };
            if let Err(error) = self.send_part(&going, next).await {
                tracing::debug!(key = %going.key, %error, "parts went out early and one failed: the close sends the whole file");
                break;
            }
        }
        self.looked_in_vain()
    }

    /// The size from which a file is worth another look that has no full part to send now.
    fn looked_in_vain(&self) -> u64 {
        let state = self.state.lock();
        let later = state.image.size().saturating_add(self.shared.uploader.first_part());
        match &state.ahead {
            Ahead::Not => later,
            Ahead::Going { parts, going } => {
                let full = |number| Some(parts.end().saturating_add(going.upload.part_len(number)?));
                let next = full(parts.count() + 1).map_or(u64::MAX, |end| end.saturating_add(1));
                // A hole may be filled, and a short last part never grows here.
                if next <= state.image.size() { later } else { next }
            }
            Ahead::Over => u64::MAX,
        }
    }

    /// The early upload; begins one where it spares the close most bytes.
    fn begin_ahead(&self) -> Option<Arc<Going>> {
        let mut state = self.state.lock();
        match &state.ahead {
            Ahead::Going { going, .. } => return Some(Arc::clone(going)),
            Ahead::Over => return None,
            Ahead::Not => {}
        }
        let image = &state.image;
        let has_name = matches!(image.fate(), Fate::Stored(_)) && state.error.is_none();
        // The store copies what a file has in common with its object, and the kernel tells nobody what it changes.
        let is_new = !image.needs_base() && image.unchanged().is_empty() && state.lent.is_none();
        let first = 0..Self::ahead_from(&self.shared) - 1;
        if !has_name || !is_new || !image.is_dirty() || !image.present().has(first) {
            return None;
        }
        let (key, replaces) = (state.key.clone(), state.replaces.clone());
        let upload = self.shared.uploader.ahead(key.clone(), replaces.clone())?;
        let going = Arc::new(Going::new(upload, key, replaces));
        state.ahead = Ahead::Going { parts: Parts::default(), going: Arc::clone(&going) };
        Some(going)
    }

    /// Takes a part of this upload, unless it has ended.
    fn take_part(
        &self,
        going: &Arc<Going>,
        take: impl FnOnce(&mut Parts, u64, &Runs) -> Option<Next>,
    ) -> Option<Next> {
        let mut state = self.state.lock();
        let State { ahead, image, .. } = &mut *state;
        match ahead {
            Ahead::Going { parts, going: now } if Arc::ptr_eq(now, going) => {
                take(parts, image.size(), image.present())
            }
            _ => None,
        }
    }

    /// Sends a part that was just taken. Any failure ends the upload.
    async fn send_part(&self, going: &Arc<Going>, (number, range): Next) -> Result<(), Error> {
        let mut unread = Unread { staged: self, going, is_read: false };
        if range.is_empty() {
            return Err(upload::Error::TooLarge.into());
        }
        let (file, start) = (self.file_for_now()?, range.start);
        let read = move |buffer: &mut [u8], at: u64| {
            // The file is shorter if a program set its size meanwhile: then this upload is over.
            let got = read_at_most(&file, buffer, start + at)?;
            buffer[got..].fill(0);
            Ok::<_, Error>(())
        };
        going.upload.send(number, range.end - range.start, read).await?;
        unread.is_read = true;
        Ok(())
    }

    /// The early upload that this draft may complete. Any other one ends.
    pub(super) fn ahead_of(&self, draft: &Draft, is_in_place: bool) -> Option<Arc<Going>> {
        let mut state = self.state.lock();
        if let Ahead::Going { going, .. } = &state.ahead
            && is_in_place
            && going.makes(&draft.key, &draft.replaces)
        {
            return Some(Arc::clone(going));
        }
        state.ahead.end();
        None
    }

    /// Sends the parts that the upload lacks of this draft. A change meanwhile ends that early, and the next attempt goes on.
    ///
    /// # Errors
    /// The upload failed, or is over.
    pub(super) async fn pour_ahead(&self, going: &Arc<Going>, draft: &Draft) -> Result<(), Error> {
        loop {
            let next = {
                let mut state = self.state.lock();
                if !state.ahead.is(going) {
                    return Err(upload::Error::Aborted.into());
                }
                if state.image.generation() != draft.generation {
                    return Ok(());
                }
                match &mut state.ahead {
                    Ahead::Going { parts, .. } => {
                        parts.take_lacking(draft.size, |number| going.upload.part_len(number))
                    }
                    _ => None,
                }
            };
            let Some(next) = next else { break };
            self.send_part(going, next).await?;
        }
        let arrived = going.upload.arrived().await;
        Ok(arrived.inspect_err(|_| self.end_ahead(going))?)
    }

    /// The early upload in progress.
    #[cfg(test)]
    pub(super) fn going(&self) -> Option<Arc<Going>> {
        match &self.state.lock().ahead {
            Ahead::Going { going, .. } => Some(Arc::clone(going)),
            Ahead::Not | Ahead::Over => None,
        }
    }

    /// Gives up this early upload.
    pub(super) fn end_ahead(&self, going: &Arc<Going>) {
        let mut state = self.state.lock();
        if state.ahead.is(going) {
            state.ahead.end();
        }
    }
}
