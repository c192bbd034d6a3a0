//! Copies of staged files, for sends of files that programs write all the time.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use super::disk::{Disk, PIECE, read_at_most};
use super::lent::YOUNG;
use super::pieces::{Copying, SAVED_MAX};
use super::send::Draft;
use super::staged::State;
use super::{Error, Staged};
use crate::sync::Arc;

/// Most looks for a moment in which nobody writes a file that the kernel has. Doubling it finds rarer ones, and takes that many more copies.
const STILL_MAX: u32 = 10;

/// Bytes that are copied of a file that the kernel writes before the next look at it. Doubling it reads and writes more in vain where the
/// file changes.
const LOOK_EVERY: u64 = 16 << 20;

/// Room that a copy of such a file leaves on the disk, beside itself. Doubling it leaves more to programs, and sends fewer long files of a
/// disk that is nearly full before they are closed.
const LEFT_FREE: u64 = 256 << 20;

/// Most times that a copy by pieces begins anew. After them, changes save whatever they replace, and programs wait for it. Doubling it
/// reads and writes a long file more often in vain where programs cut it off and write it again.
const ANEW_MAX: u32 = 3;

/// A guard: changes save bytes for the copy to this file until it is dropped.
struct Saving<'a> {
    staged: &'a Staged,
    to: &'a Arc<File>,
}

impl Drop for Saving<'_> {
    fn drop(&mut self) {
        self.staged.state.lock().copying.take_if(|copying| copying.is_to(self.to));
    }
}

impl Staged {
    /// Copies the file to one without a name. The copy has the bytes of one moment, and programs go on writing. It does not count against
    /// `--stage-size`. `None`: the kernel lets programs write the file now.
    pub(super) async fn copy(self: &Arc<Self>) -> Result<Option<(Draft, Arc<File>)>, Error> {
        let this = Arc::clone(self);
        let copied = self.shared.runtime.spawn_blocking(move || this.copy_now());
        copied.await.map_err(io::Error::other)?
    }

    fn copy_now(&self) -> Result<Option<(Draft, Arc<File>)>, Error> {
        let (folder, file) = (&self.shared.folder, self.file_for_now()?);
        let (disk, (number, copy)) = (folder.disk(), folder.create()?);
        let copy = Arc::new(copy);
        disk.remove(&folder.path(number))?;
        let mut attempts = 0;
        loop {
            // `draft` takes the lock of writes itself, so the loop compares generations under that lock.
            let draft = self.draft()?;
            {
                let mut state = self.state.lock();
                if state.lent.is_some() {
                    return Ok(None);
                }
                if state.image.generation() != draft.generation {
                    continue;
                }
                let is_cloned = folder.clones() && disk.clone_file(&file, &copy).is_ok();
                if !is_cloned {
                    // Nothing of an attempt before may show in a hole.
                    disk.set_len(&copy, 0)?;
                }
                disk.set_len(&copy, draft.size)?;
                if is_cloned {
                    return Ok(Some((draft, copy)));
                }
                if attempts > ANEW_MAX {
                    let why = "the disk refused what programs replaced during the copy of the file";
                    return Err(io::Error::other(why).into());
                }
                let bytes = state.image.present().bytes();
                if !has_room(disk, &copy, bytes, bytes.min(LEFT_FREE))? {
                    return Err(io::Error::from(io::ErrorKind::StorageFull).into());
                }
                let saved_max = if attempts == ANEW_MAX { u64::MAX } else { SAVED_MAX };
                state.copying = Some(Copying::new(Arc::clone(&copy), &state.image, saved_max));
            }
            attempts += 1;
            let saving = Saving { staged: self, to: &copy };
            let is_copied = self.copy_pieces(&file, &copy)?;
            drop(saving);
            if is_copied {
                return Ok(Some((draft, copy)));
            }
        }
    }

    /// Copies all pieces. False: the copy can't be of one moment any more.
    fn copy_pieces(&self, from: &File, to: &Arc<File>) -> io::Result<bool> {
        let disk = self.shared.folder.disk();
        let mut bytes = vec![0; PIECE as usize];
        loop {
            let next = match &mut self.state.lock().copying {
                Some(copying) if copying.is_to(to) => copying.next(),
                // A send that was dropped does not end its copy.
                Some(_) => return Err(io::Error::other("another copy of the file began")),
                None => return Ok(false),
            };
            let Some(piece) = next else { return Ok(true) };
            let bytes = &mut bytes[..(piece.end - piece.start) as usize];
            // A program may cut it off meanwhile, and has saved it then.
            let got = read_at_most(from, bytes, piece.start)?;
            bytes[got..].fill(0);
            disk.write(to, bytes, piece.start)?;
            let saved = match &mut self.state.lock().copying {
                Some(copying) if copying.is_to(to) => copying.landed(),
                Some(_) => return Err(io::Error::other("another copy of the file began")),
                None => return Ok(false),
            };
            for (at, bytes) in saved {
                disk.write(to, &bytes, at)?;
            }
        }
    }

    /// Saves the bytes that a change is about to replace, for a copy under way.
    pub(super) fn save_for_copy(&self, state: &mut State, file: &File, range: Range<u64>) {
        if let Some(copying) = &mut state.copying {
            let saved = copying.save(self.shared.folder.disk(), file, range);
            // The change goes on all the same, and the copy begins anew.
            if !matches!(saved, Ok(true)) {
                state.copying = None;
            }
        }
    }

    /// Copies a file that programs write by the kernel, once nothing changes it during the copy.
    ///
    /// # Errors
    /// `Restless`: something does, all the time.
    pub(super) async fn copy_still(self: &Arc<Self>) -> Result<(Draft, Option<Arc<File>>), Error> {
        for _ in 0..STILL_MAX {
            let this = Arc::clone(self);
            let copied = self.shared.runtime.spawn_blocking(move || this.copy_if_still());
            if let Some((draft, copy)) = copied.await.map_err(io::Error::other)?? {
                return Ok((draft, Some(Arc::new(copy))));
            }
            self.shared.folder.clock().sleep(2 * YOUNG).await;
        }
        Err(Error::Restless { key: self.key() })
    }

    fn copy_if_still(&self) -> Result<Option<(Draft, File)>, Error> {
        let (folder, disk) = (&self.shared.folder, self.shared.folder.disk());
        let file = folder.reopen_to_read(self.number)?;
        let began = folder.clock().wall();
        // A mapping's next change of a page shows in the file's time only after the page went to the disk.
        disk.sync_data(&file).map_err(|error| self.fail(error))?;
        let draft = self.draft()?;
        if let Some(lent) = &mut self.state.lock().lent {
            if !lent.is_still(began, folder.clock().wall()) {
                return Ok(None);
            }
            // An open may settle the file during the send. A copy of a quiet file has no change in part.
            lent.was_sent |= !lent.is_quiet;
        }
        let (number, copy) = folder.create()?;
        disk.remove(&folder.path(number))?;
        let is_same = || self.look().image.generation() == draft.generation;
        if folder.clones() && disk.clone_file(&file, &copy).is_ok() {
            return Ok(is_same().then_some((draft, copy)));
        }
        if !has_room(disk, &copy, draft.size, LEFT_FREE)? {
            return Err(io::Error::from(io::ErrorKind::StorageFull).into());
        }
        let mut at = 0;
        while at < draft.size {
            let end = draft.size.min(at + LOOK_EVERY);
            match copy_range(disk, &file, &copy, at..end) {
                // It became shorter.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                copied => copied?,
            }
            if !is_same() {
                return Ok(None);
            }
            at = end;
        }
        Ok(is_same().then_some((draft, copy)))
    }

    /// The copy of one moment that a send of a file makes that programs write all the time.
    #[cfg(test)]
    pub(super) async fn copied(self: &Arc<Self>) -> Result<Arc<File>, Error> {
        Ok(self.copy().await?.expect("a copy").1)
    }
}

/// Whether the disk has room for a copy of this size, and `left` beside it.
fn has_room(disk: &Disk, copy: &File, size: u64, left: u64) -> io::Result<bool> {
    Ok(disk.room(copy)? >= size.saturating_add(left))
}

fn copy_range(disk: &Disk, from: &File, to: &File, run: Range<u64>) -> io::Result<()> {
    let mut bytes = vec![0; PIECE.min(run.end - run.start) as usize];
    let mut at = run.start;
    while at < run.end {
        let length = bytes.len().min((run.end - at) as usize);
        from.read_exact_at(&mut bytes[..length], at)?;
        disk.write(to, &bytes[..length], at)?;
        at += length as u64;
    }
    Ok(())
}
