//! unlink and rename of files that may be in the stage.

use std::ffi::OsStr;

use rustix::io::Errno;

use super::ATTEMPTS_MAX;
use super::opening::{Change, Closed};
use crate::fs::{Error, FileSystem, Result};
use crate::inode::{Follower, InodeNo, Names, Unlinked};
use crate::moves::{self, Copied, Mover};
use crate::object::{ETag, ObjectKey};
use crate::s3::Replaces;
use crate::stage::{Commit, Staged, Turn};
use crate::sync::Arc;

/// Most bytes of a file that the stage fetches before its name is removed, for programs that have the file open for reading only.
/// Doubling it fetches more of files that are removed during a read; readers of longer files get ESTALE, as without a stage.
const FETCHED_MAX: u64 = 256 << 20;

/// A staged file that an operation holds, and the right to send it and to change its name.
#[derive(Debug)]
pub(in crate::fs) struct HeldFile {
    pub(in crate::fs) ino: InodeNo,
    pub(in crate::fs) staged: Arc<Staged>,
    turn: Turn,
}

/// A held file that a rename may replace before the file is stored.
#[derive(Clone, Debug)]
pub(in crate::fs) struct Unstored {
    pub(in crate::fs) ino: InodeNo,
    /// The object that the bucket has under this name.
    pub(in crate::fs) over: Option<ETag>,
}

impl FileSystem {
    /// Deletes a file. Programs that have the file open go on with it.
    pub(in crate::fs) async fn unlink_in_full(&self, parent: InodeNo, name: &OsStr) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let (ino, _) = self.inodes.peek(parent, name).await?;
            let full = self.full()?;
            let is_open = || full.find(ino).is_some() || self.inodes.has_readers(ino);
            if !is_open() {
                let _closed = full.openings.close(ino, Change::End).await;
                // A program may have opened it since.
                if is_open() {
                    continue;
                }
                match self.inodes.unlink(parent, name, true).await? {
                    Unlinked::Gone => return Ok(()),
                    Unlinked::Busy { .. } => {
                        tokio::task::yield_now().await;
                        continue;
                    }
                }
            }
            // The file's turn may take long, so opens do not wait for it.
            let held = self.hold_staged(ino, true).await?;
            let closed = full.openings.close(ino, Change::End).await;
            let done =
                if self.inodes.is_at(ino, parent, name) { Some(self.unlink_held(&held).await) } else { None };
            drop(closed);
            self.let_go(held).await;
            if let Some(done) = done {
                return done;
            }
        }
        Err(restless(name))
    }

    async fn unlink_held(&self, held: &HeldFile) -> Result<()> {
        self.settle_sent(held).await?;
        self.make_whole_for_others(held).await?;
        self.inodes.unlink_staged(held.ino, held.staged.is_in_bucket()).await?;
        Ok(held.staged.unlinked()?)
    }

    /// Finds out whether the bucket has a version of a file whose requests got no answer, under the name to remove.
    async fn settle_sent(&self, held: &HeldFile) -> Result<()> {
        held.staged.settle_sent(&held.turn).await?;
        if let Some(meta) = held.staged.take_adopted() {
            self.inodes.stored_from_stage(held.ino, &meta);
        }
        Ok(())
    }

    /// Fetches the bytes that only the object has, for programs that have the file open, before the object is deleted.
    async fn make_whole_for_others(&self, held: &HeldFile) -> Result<()> {
        let HeldFile { ino, staged, turn } = held;
        let has_others = self.full()?.users(*ino) > 1;
        if has_others || self.inodes.has_readers(*ino) && staged.size() <= FETCHED_MAX {
            let made = staged.make_whole(turn).await;
            if let Err(error) = made {
                if has_others {
                    return Err(error.into());
                }
                tracing::debug!(%error, "a file that is removed while it is read could not be fetched before");
            }
        }
        Ok(())
    }

    /// Puts a file into the stage, and waits for the right to change it. `ends`: whether the file is to lose its name. The caller ends with
    /// [`FileSystem::let_go`].
    async fn hold_staged(&self, ino: InodeNo, ends: bool) -> Result<HeldFile> {
        let (staged, _) = self.enter_stage(ino).await?;
        // A file that the bucket does not have needs no request then, also for another name.
        let turn = match ends || !staged.is_in_bucket() {
            true => staged.turn_instead_of_a_send().await,
            false => staged.turn().await,
        };
        Ok(HeldFile { ino, staged, turn })
    }

    async fn let_go(&self, held: HeldFile) {
        let HeldFile { ino, staged, turn } = held;
        drop(turn);
        self.leave_stage(ino, &staged).await;
    }

    /// Holds the files of a rename that are in the stage or must enter it, in the order of their numbers, so that two renames never wait
    /// for each other. Opens of both wait until the guards are dropped, except those for reading of the file that moves.
    async fn hold_for_rename(
        &self,
        (parent, name): (InodeNo, &OsStr),
        (new_parent, new_name): (InodeNo, &OsStr),
    ) -> Result<(Vec<HeldFile>, Vec<Closed>)> {
        let full = self.full()?;
        for _ in 0..ATTEMPTS_MAX {
            let (source, _) = self.inodes.peek(parent, name).await?;
            // A target that is missing, or a directory, is the rename's own concern.
            let target = self.inodes.peek(new_parent, new_name).await.ok();
            let target = target.filter(|(target, _)| *target != source);
            let to_hold = || {
                let is_staged = |ino| full.find(ino).is_some();
                let is_open = |&(ino, is_new): &(InodeNo, bool)| {
                    is_new || is_staged(ino) || self.inodes.has_readers(ino)
                };
                let target = target.filter(is_open).map(|(ino, _)| ino);
                let mut inodes: Vec<_> = Some(source).filter(|&ino| is_staged(ino)).into_iter().collect();
                inodes.extend(target);
                inodes.sort_unstable();
                inodes
            };
            // The turns of the files may take long, so opens do not wait for them.
            let held = self.hold_all(to_hold(), target.map(|(ino, _)| ino)).await?;
            let mut closed = vec![full.openings.close(source, Change::Move).await];
            if let Some((target, _)) = target {
                closed.push(full.openings.close(target, Change::End).await);
            }
            // A program may have opened one since.
            if to_hold().iter().all(|ino| held.iter().any(|held| held.ino == *ino)) {
                return Ok((held, closed));
            }
            drop(closed);
            self.let_all_go(held).await;
        }
        Err(restless(name))
    }

    /// Holds these files. `ends`: the one that is to lose its name.
    async fn hold_all(&self, inodes: Vec<InodeNo>, ends: Option<InodeNo>) -> Result<Vec<HeldFile>> {
        let mut held = Vec::new();
        for ino in inodes {
            match self.hold_staged(ino, ends == Some(ino)).await {
                Ok(file) => held.push(file),
                Err(error) => {
                    self.let_all_go(held).await;
                    return Err(error);
                }
            }
        }
        Ok(held)
    }

    async fn let_all_go(&self, held: Vec<HeldFile>) {
        for file in held {
            self.let_go(file).await;
        }
    }

    /// Renames a file or a directory. Files of it in the stage are stored first, so that the store can rename objects; a file that the
    /// bucket does not have yet only gets another key.
    pub(in crate::fs) async fn rename_in_full(
        &self,
        from: (InodeNo, &OsStr),
        to: (InodeNo, &OsStr),
        flags: u32,
    ) -> Result<()> {
        let (held, closed) = self.hold_for_rename(from, to).await?;
        let renamed = self.rename_held(from, to, flags, &held).await;
        drop(closed);
        self.let_all_go(held).await;
        renamed
    }

    async fn rename_held(
        &self,
        from: (InodeNo, &OsStr),
        to: (InodeNo, &OsStr),
        flags: u32,
        held: &[HeldFile],
    ) -> Result<()> {
        let (is_deferred, mut pending) = (self.full()?.is_deferred(), None);
        for file in held {
            self.settle_sent(file).await?;
            let is_source = self.inodes.is_at(file.ino, from.0, from.1);
            // A replaced file need not be stored: no program sees it under this name any more.
            if !is_source && is_deferred {
                let over = file.staged.replaced_object().map(|(etag, _)| etag);
                pending = Some(Unstored { ino: file.ino, over });
            } else if !is_source || file.staged.is_in_bucket() {
                self.store_before_rename(file).await?;
            }
            if !is_source {
                self.make_whole_for_others(file).await?;
            }
        }
        let is_source = |file: &&HeldFile| self.inodes.is_at(file.ino, from.0, from.1);
        let both = (held.iter().find(is_source), held.iter().find(|file| !is_source(file)));
        if let (Some(source), Some(target)) = both {
            self.sync_before_it_replaces(&source.staged, &target.staged).await?;
        }
        let copied = self.rename_as_object(from, to, flags, pending).await?;
        let mut noted = Ok(());
        for file in held {
            let told = if self.inodes.is_at(file.ino, to.0, to.1) {
                copied.as_ref().map_or(Ok(()), |copied| follow_copy(&file.staged, copied))
            } else {
                // The target was replaced: programs that have it open go on with its old bytes.
                self.inodes.replaced_by_rename(file.ino);
                file.staged.unlinked().map_err(Error::from)
            };
            noted = noted.and(told);
        }
        noted
    }

    /// Makes a file durable that is about to replace one that waits and is durable: after a loss of power there must be one of both. Many
    /// programs replace a file in this way without fsync, and local file systems keep one.
    async fn sync_before_it_replaces(&self, source: &Arc<Staged>, target: &Staged) -> Result<()> {
        let counts = self.full()?.area.commit() == Commit::Disk && target.is_dirty() && target.was_synced();
        if counts && !source.is_synced() {
            source.sync().await?;
        }
        Ok(())
    }

    /// Stores a file before its object gets another name. If programs write it all the time by the kernel, the version that the bucket has is
    /// renamed as it is; the file follows it, and is sent later.
    async fn store_before_rename(&self, file: &HeldFile) -> Result<()> {
        match self.store_staged(file.ino, &file.staged, &file.turn).await {
            // There may be no room for a copy, either.
            Err(error) if file.staged.is_lent() && [Errno::BUSY, Errno::NOSPC].contains(&error.errno()) => {
                Ok(())
            }
            stored => stored,
        }
    }

    /// Tells a staged file the key that the tree of names has for it. The object that is known there is the file's if it has the same ETag.
    fn follow_key(&self, ino: InodeNo, staged: &Arc<Staged>) -> Result<()> {
        if staged.is_in_bucket()
            && let Some((id, size)) = self.inodes.object_of(ino)
            && id.key != staged.key()
        {
            let etag = id.etag.clone();
            staged.moved(id, size, &etag)?;
        }
        Ok(())
    }

    /// Gives another key to a staged file that the bucket does not have.
    pub(in crate::fs) fn rename_unstored(
        &self,
        number: u64,
        names: &Names,
        to: ObjectKey,
        over: Option<ETag>,
    ) -> Result<bool> {
        let Some((_, staged)) = self.full()?.by_number(number) else { return Ok(false) };
        if !self.inodes.renamed_while_written(names) {
            return Ok(false);
        }
        staged.renamed(to, over.map_or(Replaces::Nothing, Replaces::Version))?;
        Ok(true)
    }

    /// Stores all files in the stage below a directory before its rename, and holds them.
    pub(in crate::fs) async fn hold_below(&self, from: &ObjectKey) -> Result<Vec<HeldFile>> {
        // A kept file is not stored, wherever its name goes.
        let has_object = |staged: &Staged| !staged.is_unlinked() && !staged.is_kept();
        let is_below =
            |staged: &Staged| has_object(staged) && staged.key().as_str().starts_with(from.as_str());
        let mut inodes: Vec<_> = self
            .full()?
            .all()
            .into_iter()
            .filter(|(_, staged)| is_below(staged))
            .map(|(ino, _)| ino)
            .collect();
        inodes.sort_unstable();
        let held = self.hold_all(inodes, None).await?;
        let (is_deferred, mut stored) = (self.full()?.is_deferred(), Ok(()));
        for file in &held {
            if stored.is_ok() {
                stored = self.settle_sent(file).await;
            }
            // A file that the bucket does not have only gets another key.
            if stored.is_ok() && (!is_deferred || file.staged.is_in_bucket()) {
                stored = self.store_before_rename(file).await;
            }
        }
        match stored {
            Ok(()) => Ok(held),
            Err(error) => {
                self.let_all_go(held).await;
                Err(error)
            }
        }
    }

    /// Lets go of the files below a directory, whether or not the directory was renamed.
    pub(in crate::fs) async fn let_go_below(&self, held: Vec<HeldFile>) -> Result<()> {
        let mut followed = Ok(());
        for file in &held {
            if let Err(error) = self.follow_key(file.ino, &file.staged) {
                followed = Err(error);
            }
        }
        self.let_all_go(held).await;
        followed
    }

    /// Gives a staged file below a renamed directory its new key. A file that came there during the rename may be on its way to the bucket
    /// under the old name. `copies`: the objects that the rename moved.
    pub(in crate::fs) async fn follow_directory_in_full(
        &self,
        mover: &Mover,
        Follower { writer, to, over }: Follower,
        copies: &[Copied],
        held: &[HeldFile],
    ) -> Result<()> {
        let Some((ino, staged)) = self.full()?.by_number(writer) else { return Ok(()) };
        let is_held = held.iter().any(|held| held.ino == ino);
        let _turn = if is_held { None } else { Some(staged.turn().await) };
        let Some((etag, _)) = staged.replaced_object() else {
            return Ok(staged.renamed(to, Replaces::Nothing)?);
        };
        let from = staged.key();
        // A held file was stored before the copies. One that is not may have been stored under the old name after them.
        let is_it = |copied: &&Copied| {
            copied.source.key == from && (is_held || copied.source.etag.matches(etag.as_str()))
        };
        if let Some(copied) = copies.iter().find(is_it) {
            return follow_copy(&staged, copied);
        }
        // The file's object is moved by itself.
        let replaces = over.map_or(Replaces::Nothing, Replaces::Version);
        let failed = |error: moves::Error| Error::of_move(&error, &from, &to);
        let copied = mover.copy(&from, &to, &replaces).await.map_err(failed)?;
        mover.delete_source(&copied).await.map_err(failed)?;
        self.prefetcher.moved(&copied.source, &copied.id);
        self.inodes.stored_from_stage(ino, &copied.meta);
        follow_copy(&staged, &copied)
    }
}

/// Tells a staged file where its object is now. If another client's version was copied, the next send meets it, and it wins.
fn follow_copy(staged: &Staged, copied: &Copied) -> Result<()> {
    Ok(staged.moved(copied.id.clone(), copied.meta.size, &copied.source.etag)?)
}

fn restless(name: &OsStr) -> Error {
    let why = format!("{:?} is opened, renamed and removed by others again and again", name.display());
    Error::new(Errno::STALE, why)
}
