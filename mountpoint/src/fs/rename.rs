//! rename.
//!
//! S3 has no rename. With `--allow-rename` a rename is a copy by the store and a delete; without the flag, the mount refuses renames and
//! sends no request. RenameObject is never sent: most stores answer it with 200 and an empty object.

use std::ffi::OsStr;

use rustix::io::Errno;

use super::full::{HeldFile, Unstored};
use super::handle::HandleNo;
use super::pause::{Change, Late, Pause};
use super::{Error, FileSystem, Result};
use crate::inode::{Below, InodeNo, Names, Rename, RenameWish};
use crate::moves::{self, Copied, Mover, Replaces, Source};
use crate::object::{ETag, ObjectKey};

/// Most attempts at a rename whose target another client changes between the look-up and the copy; then it fails with ESTALE. Waiting for
/// files that are being stored does not count. Doubling it follows a busier writer.
const ATTEMPTS_MAX: usize = 3;
/// Most rounds in which the rename of a directory moves what was stored below the old name meanwhile. What is stored during the last one
/// stays there. Doubling it keeps up with programs that store for longer.
const LATE_ROUNDS_MAX: usize = 16;
/// RENAME_NOREPLACE of renameat2(2).
const NO_REPLACE: u32 = 1;

/// The answer to a rename on a mount that allows none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameErrno {
    /// "Function not implemented", as AWS's mount-s3.
    #[default]
    Enosys,
    /// "Invalid cross-device link": `mv` and other programs then copy and remove.
    Exdev,
}

impl FileSystem {
    /// Renames a file or directory. `flags`: those of renameat2(2).
    ///
    /// # Errors
    /// The errors of rename(2); the old name is still there. `STALE`: another client changes one of the names again and again. If the store
    /// copied and refuses the delete: the store's error, and the copy is deleted if it replaced nothing.
    pub async fn rename(
        &self,
        parent: InodeNo,
        name: &OsStr,
        new_parent: InodeNo,
        new_name: &OsStr,
        flags: u32,
    ) -> Result<()> {
        self.may_change()?;
        let _change = self.change_names(&[(parent, name), (new_parent, new_name)]).await;
        match &self.full {
            Some(_) => {
                self.rename_in_full((parent, name), (new_parent, new_name), flags).await?;
                self.names_changed(parent);
                self.names_changed(new_parent);
                Ok(())
            }
            None => {
                self.rename_as_object((parent, name), (new_parent, new_name), flags, None).await.map(drop)
            }
        }
    }

    /// Begins a change of these names, which waits for renames of the directories above. `None` on a mount that renames nothing.
    pub(super) async fn change_names(&self, names: &[(InodeNo, &OsStr)]) -> Option<Change> {
        self.mover.as_ref()?;
        let key = |&(parent, name): &(InodeNo, &OsStr)| {
            let parent = self.inodes.key_of(parent)?;
            Some(ObjectKey::new(format!("{}{}", parent.as_str(), name.to_str()?)))
        };
        Some(self.pauses.change(|| names.iter().filter_map(key).collect()).await)
    }

    /// Begins an open for writing, which excludes changes of the file's name. `None` on a mount that renames nothing.
    pub(super) async fn begin_open(&self, ino: InodeNo) -> Option<Change> {
        self.mover.as_ref()?;
        Some(self.pauses.open(|| self.inodes.key_of(ino)).await)
    }

    /// Renames an object, a file that is being written, or a directory. Returns the copy, if a file's object was copied. `pending`: a held
    /// file under the new name that need not be stored.
    pub(super) async fn rename_as_object(
        &self,
        (parent, name): (InodeNo, &OsStr),
        (new_parent, new_name): (InodeNo, &OsStr),
        flags: u32,
        pending: Option<Unstored>,
    ) -> Result<Option<Copied>> {
        let Some(mover) = &self.mover else { return Err(self.refused(name, flags)) };
        if flags & !NO_REPLACE != 0 {
            let why = format!("{:?}: S3 can't exchange two names in one step", name.display());
            return Err(Error::new(Errno::INVAL, why).already_logged());
        }
        let allow_overwrite = self.config.allow_overwrite;
        let held = pending.as_ref().map(|pending| pending.ino);
        let wish = RenameWish { no_replace: flags == NO_REPLACE, allow_overwrite, pending: held };
        // The object at the new name is the one that the pending file was to replace.
        let below = pending.and_then(|pending| pending.over);
        let mut attempts = 0;
        while attempts < ATTEMPTS_MAX {
            let rename = self.inodes.rename((parent, name), (new_parent, new_name), wish).await?;
            match &rename {
                Rename::Writing { writer, to, .. } => {
                    self.old_names.may_be_taken(to, |_, no| no == *writer)?;
                }
                Rename::Object { to, .. } => self.old_names.may_be_taken(to, |_, _| false)?,
                Rename::Directory { from, to, .. } => {
                    let comes_back = |old: &ObjectKey, no| {
                        let now = self.files.find(HandleNo(no)).and_then(|open| self.inodes.key_of(open.ino));
                        now.is_some_and(|now| {
                            behind(&now, from).is_some_and(|path| behind(old, to) == Some(path))
                        })
                    };
                    self.old_names.may_be_taken(to, comes_back)?;
                }
                Rename::Done | Rename::Busy { .. } => {}
            }
            match rename {
                Rename::Done => return Ok(None),
                Rename::Busy { writer } => {
                    self.wait_for_writer(HandleNo(writer), "renamed or replaced").await?;
                    continue;
                }
                Rename::Writing { writer, names, to, over } if self.full.is_some() => {
                    let over = over.or_else(|| below.clone());
                    if self.rename_unstored(writer, &names, to, over)? {
                        return Ok(None);
                    }
                }
                Rename::Writing { writer, names, to, over } => {
                    if self.rename_writer(HandleNo(writer), &names, to, over).await? {
                        return Ok(None);
                    }
                }
                Rename::Object { names, from, to, over } => {
                    let over = over.or_else(|| below.clone());
                    if let Some(copied) = self.move_object(mover, &names, [&from, &to], over).await? {
                        return Ok(Some(copied));
                    }
                }
                Rename::Directory { names, from, to } => {
                    return self.move_directory(mover, &names, [&from, &to]).await.map(|()| None);
                }
            }
            attempts += 1;
        }
        let why = format!(
            "rename of {:?} to {:?}: another client changes these names again and again",
            name.display(),
            new_name.display()
        );
        Err(Error::new(Errno::STALE, why))
    }

    fn refused(&self, name: &OsStr, flags: u32) -> Error {
        let errno = match (flags, self.config.rename_errno) {
            (0, RenameErrno::Enosys) => Errno::NOSYS,
            (0 | NO_REPLACE, RenameErrno::Exdev) => Errno::XDEV,
            // On EINVAL for these flags, programs repeat the rename without flags.
            _ => Errno::INVAL,
        };
        let why = format!(
            "{:?}: S3 has no rename: copy the file and remove it, or mount with --allow-rename",
            name.display()
        );
        Error::new(errno, why).already_logged()
    }

    /// Moves an object. Returns the copy; `None` if the new name has another version than the one seen there.
    async fn move_object(
        &self,
        mover: &Mover,
        names: &Names,
        [from, to]: [&ObjectKey; 2],
        over: Option<ETag>,
    ) -> Result<Option<Copied>> {
        let replaces = over.map_or(Replaces::Nothing, Replaces::Version);
        let copied = match mover.copy(from, to, &replaces).await {
            Ok(copied) => copied,
            Err(error) => {
                // The mount's facts about the two names may be wrong.
                self.inodes.doubt_names(names);
                return match error {
                    moves::Error::Taken => Ok(None),
                    error => Err(Error::of_move(&error, from, to)),
                };
            }
        };
        // This comes before the delete: a read that misses its object looks in the prefetcher for the new key. Until the names have
        // changed, an open of the old name reads there, too.
        let moving = self.prefetcher.moving([(&copied.source, &copied.id)]);
        self.kept_moved(&copied);
        let source = match mover.delete_source(&copied).await {
            Ok(source) => source,
            Err(error) => {
                drop(moving);
                // A delete that may still run would leave neither name.
                if replaces == Replaces::Nothing && !matches!(error, moves::Error::Undecided(_)) {
                    self.prefetcher.moved(&copied.id, &copied.source);
                    mover.take_back(&copied).await;
                }
                self.inodes.doubt_names(names);
                return Err(Error::of_move(&error, from, to));
            }
        };
        self.prefetcher.carry(&copied.source, &copied.id, copied.meta.size);
        self.inodes.renamed(names, &copied.meta, source == Source::Replaced);
        self.record_files_of(names.ino());
        Ok(Some(copied))
    }

    async fn move_directory(&self, mover: &Mover, names: &Names, [from, to]: [&ObjectKey; 2]) -> Result<()> {
        let pause = self.pauses.begin([from.clone(), to.clone()]);
        pause.alone().await;
        if self.full.is_none() {
            return self.move_directory_of_objects(mover, names, [from, to], (&pause, &[])).await;
        }
        // New directories below wait for the end of this rename.
        self.settle_owed_below([from, to]).await?;
        let held = self.hold_below(from).await?;
        let moved = self.move_directory_of_objects(mover, names, [from, to], (&pause, &held)).await;
        drop(pause);
        moved.and(self.let_go_below(held).await)
    }

    async fn move_directory_of_objects(
        &self,
        mover: &Mover,
        names: &Names,
        [from, to]: [&ObjectKey; 2],
        (pause, held): (&Pause, &[HeldFile]),
    ) -> Result<()> {
        // These files depend on the objects below, which the copies must not miss.
        let mut writers = self.hold_writers(from, true).await;
        let copied = match mover.copy_directory(from, to).await {
            Ok(copied) => copied,
            Err(error) => {
                self.inodes.doubt_names(names);
                return Err(Error::of_move(&error, from, to));
            }
        };
        let mut copies = copied.copies.clone();
        // Before the deletes, as for a file.
        let moving = self.prefetcher.moving(copies.iter().map(|copied| (&copied.source, &copied.id)));
        copies.iter().for_each(|copied| self.kept_moved(copied));
        // A file that is stored between a look at its object and the delete would be lost on a store that ignores conditions.
        writers.extend(self.hold_writers(from, false).await);
        let mut stay = match mover.delete_directory(copied).await {
            Ok(stay) => stay,
            Err(error @ moves::Error::Partial { .. }) => {
                self.follow_deleted(&mut writers, &copies).await;
                self.inodes.forget_directory(names);
                return Err(Error::of_move(&error, from, to));
            }
            Err(error) => {
                drop(moving);
                copies.iter().for_each(|copied| self.prefetcher.moved(&copied.id, &copied.source));
                self.inodes.doubt_names(names);
                return Err(Error::of_move(&error, from, to));
            }
        };
        for copied in &copies {
            self.prefetcher.carry(&copied.source, &copied.id, copied.meta.size);
        }
        let mut rounds = 0;
        let followers = loop {
            for late in pause.take_late() {
                match rounds < LATE_ROUNDS_MAX {
                    true => self.move_late(mover, [from, to], late, (&mut copies, &mut stay)).await,
                    false => stay.push(late.key),
                }
            }
            rounds += 1;
            let below: Below = copies
                .iter()
                .filter_map(|copied| Some((behind(&copied.id.key, to)?, copied.meta.clone())))
                .collect();
            let tell = || self.inodes.renamed_directory(names, &below, !stay.is_empty());
            if let Some(followers) = pause.unless_late(tell) {
                break followers;
            }
        };
        for follower in followers {
            if self.full.is_none() {
                self.follow_directory(follower, &mut writers, &copies);
            } else if let Err(error) = self.follow_directory_in_full(mover, follower, &copies, held).await {
                tracing::error!("a file of a renamed directory: {error}");
            }
        }
        Ok(())
    }

    /// Moves a file that was stored below a directory's old name after the store had listed the directory. `copies` and `stay`: the objects
    /// that have the new name, and the keys that stay under the old one.
    async fn move_late(
        &self,
        mover: &Mover,
        [from, to]: [&ObjectKey; 2],
        late: Late,
        (copies, stay): (&mut Vec<Copied>, &mut Vec<ObjectKey>),
    ) {
        let Some(path) = behind(&late.key, from) else { return };
        let target = ObjectKey::new(format!("{}{path}", to.as_str()));
        let before = copies.iter().position(|copied| copied.id.key == target);
        let replaces = match before.and_then(|at| copies.get(at)) {
            // It was copied with the others.
            Some(copied) if copied.source.etag.matches(late.etag.as_str()) => return,
            Some(copied) => Replaces::Version(copied.id.etag.clone()),
            None => Replaces::Nothing,
        };
        let moved = async {
            let copied = mover.copy(&late.key, &target, &replaces).await?;
            // Before the delete, as for a file.
            self.prefetcher.moved(&copied.source, &copied.id);
            self.kept_moved(&copied);
            let source = mover.delete_source(&copied).await;
            Ok::<_, moves::Error>((copied, source?))
        };
        match moved.await {
            Ok((copied, source)) => {
                self.prefetcher.carry(&copied.source, &copied.id, copied.meta.size);
                stay.retain(|key| *key != late.key);
                if source == Source::Replaced {
                    stay.push(late.key);
                }
                if let Some(at) = before {
                    copies.swap_remove(at);
                }
                copies.push(copied);
            }
            // Another client removed it.
            Err(moves::Error::Gone) => {}
            Err(error) => {
                tracing::error!(
                    "\"{}\" is stored, and can't be moved to \"{target}\", as its directory was renamed: {error}",
                    late.key
                );
                stay.push(late.key);
            }
        }
    }
}

/// The rest of a key behind the key of a directory above.
fn behind(key: &ObjectKey, directory: &ObjectKey) -> Option<String> {
    key.as_str().strip_prefix(directory.as_str()).map(str::to_owned)
}
