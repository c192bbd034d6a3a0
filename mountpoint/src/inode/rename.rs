//! Renames: looks both names up, says what the store must do, and moves the inode afterwards.
//!
//! The inode keeps its number, as in the kernel: programs that have the file open continue under the new name.

use std::ffi::OsStr;

use super::error::{Error, ErrorKind, Result};
use super::lookup::parse;
use super::state::{Node, Phase, Place};
pub use super::tree::{Below, Follower};
use super::tree::{Tree, stale};
use super::{InodeNo, InodeTable};
use crate::listing::path;
use crate::listing::walk::Walk;
use crate::object::{ETag, ObjectKey, ObjectMeta};

/// The flags of a rename.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RenameWish {
    /// Whether an existing target refuses the rename (RENAME_NOREPLACE).
    pub no_replace: bool,
    /// Whether the mount may replace objects (`--allow-overwrite`).
    pub allow_overwrite: bool,
    /// A file in the stage that the rename may replace although it is not stored yet: the caller holds it.
    pub pending: Option<InodeNo>,
}

/// A name that changes in a rename.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    /// The inode under the old name.
    ino: InodeNo,
    parent: InodeNo,
    name: Box<str>,
    new_parent: InodeNo,
    new_name: Box<str>,
}

impl Names {
    /// The inode under the old name.
    pub fn ino(&self) -> InodeNo {
        self.ino
    }
}

/// The work that a rename takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rename {
    /// The rename is done: both names were one, or only this mount knew the file.
    Done,
    /// A file under one of the names must be stored first: wait for its writer and call again, or refuse.
    Busy {
        /// The writer, as `open_write` got it.
        writer: u64,
    },
    /// The file has a writer.
    Writing {
        /// The writer, as `open_write` got it.
        writer: u64,
        /// The names for [`InodeTable::renamed`].
        names: Names,
        /// The key for the file's object.
        to: ObjectKey,
        /// The object that the file replaces under the new key.
        over: Option<ETag>,
    },
    /// The store must move the object; call [`InodeTable::renamed`] afterwards.
    Object {
        /// The names for [`InodeTable::renamed`].
        names: Names,
        /// The key of the source.
        from: ObjectKey,
        /// The key of the target.
        to: ObjectKey,
        /// The object that the file replaces under the new key.
        over: Option<ETag>,
    },
    /// The store must move the objects below a directory, if there are any; call [`InodeTable::renamed_directory`] afterwards. The inodes
    /// do not know what S3 has below the new key.
    Directory {
        /// The names for [`InodeTable::renamed_directory`].
        names: Names,
        /// The key of the directory, which ends in `/`.
        from: ObjectKey,
        /// The new key of the directory, which ends in `/`.
        to: ObjectKey,
    },
}

impl InodeTable {
    /// Looks at both names of a rename, and returns the work to do.
    ///
    /// # Errors
    /// `NotFound`; `Exists`: the target exists, and `no_replace` is set; `NotPermitted`: the mount may not replace the target;
    /// `IsADirectory`, `NotADirectory`, `NotEmpty`: the target is of another kind, or a directory with
    /// entries; `InvalidName`: a directory into itself; `NameTooLong`; those of `lookup`.
    pub async fn rename(
        &self,
        (parent, name): (InodeNo, &OsStr),
        (new_parent, new_name): (InodeNo, &OsStr),
        wish: RenameWish,
    ) -> Result<Rename> {
        let (name, new_name) = (parse(name)?, parse(new_name)?);
        // The kernel's own lookup just found the new name absent: a second question would be wasted.
        let is_free = self.is_freshly_missing(new_parent, new_name)?;
        let source = self.hold(parent, name).await?;
        let target = match is_free {
            true => None,
            false => match self.hold(new_parent, new_name).await {
                Ok(held) => Some(held),
                Err(error) if matches!(error.kind(), ErrorKind::NotFound) => None,
                Err(error) => return Err(error),
            },
        };
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        let names =
            Names { ino: source.ino, parent, name: name.into(), new_parent, new_name: new_name.into() };
        let target = target.as_ref().map(|held| held.ino);
        if target == Some(source.ino) {
            return Ok(Rename::Done);
        }
        let place = tree.inode(source.ino).map(|inode| inode.place);
        if place.is_none_or(|place| place == Place::Nowhere) {
            return Err(stale(source.ino));
        }
        let (above, _) = tree.directory(new_parent)?;
        if target.is_some() && wish.no_replace {
            return Err(Error::new(ErrorKind::Exists, new_name));
        }
        let is_directory = tree.directory(source.ino).is_ok();
        if !is_directory {
            let to = path::file_key(above, new_name)
                .ok_or_else(|| Error::new(ErrorKind::NameTooLong, new_name))?;
            if let Some(writer) = target.filter(|_| wish.allow_overwrite).and_then(|ino| tree.writer(ino)) {
                return Ok(Rename::Busy { writer });
            }
            let over = target.map(|ino| tree.replaceable(ino, wish)).transpose()?.flatten();
            let from = tree.key(source.ino).ok_or_else(|| stale(source.ino))?;
            let file = tree.file_mut(source.ino)?;
            return Ok(match &file.phase {
                Phase::New { .. } => {
                    tree.moves(source.ino, new_parent, new_name, now);
                    Rename::Done
                }
                // The store still has the earlier object, which would appear again under the old name.
                Phase::Writing(writing) if writing.is_staged && file.stored.is_some() => {
                    Rename::Object { names, from, to, over }
                }
                Phase::Writing(writing) if file.stored.is_some() => Rename::Busy { writer: writing.writer },
                Phase::Writing(writing) => Rename::Writing { writer: writing.writer, names, to, over },
                Phase::Stored => Rename::Object { names, from, to, over },
            });
        }
        let to = path::directory_key(above, new_name)
            .ok_or_else(|| Error::new(ErrorKind::NameTooLong, new_name))?;
        let from = tree.directory(source.ino)?.0.clone();
        if to.as_str().starts_with(from.as_str()) {
            let why = "a directory can't be moved into itself".to_owned();
            return Err(Error::new(ErrorKind::InvalidName(why), from.as_str()));
        }
        if let Some(target) = target {
            tree.has_no_locals(target)?;
        }
        Ok(Rename::Directory { names, from, to })
    }

    /// Notes that the store has the object under its new key, with these attributes, and not under the old one (or, with `stays`, that
    /// another client stored a newer version there).
    pub fn renamed(&self, names: &Names, meta: &ObjectMeta, stays: bool) {
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        let Names { ino, parent, name, new_parent, new_name } = names;
        let until = now + tree.ttl.file();
        let is_there = |tree: &Tree| {
            let inode = tree.inode(*ino)?;
            let Node::File(file) = &inode.node else { return None };
            let is_it = inode.parent == *parent && inode.name == *name && inode.place != Place::Nowhere;
            let stored = inode.place == Place::Remote && !file.is_local();
            (is_it && (stored || file.is_staged())).then_some(())
        };
        if is_there(&tree).is_some() && tree.directory(*new_parent).is_ok() {
            tree.moves(*ino, *new_parent, new_name, now);
            if let Ok(file) = tree.file_mut(*ino) {
                if file.is_staged() {
                    file.stored_from_stage(meta, until);
                } else {
                    file.commit(meta, until);
                }
                file.checked = super::compact::Moment::of(now);
            }
        } else {
            // A program opened the file for writing meanwhile, or looked it up anew: the next lookups ask what the names are.
            tree.changed(*parent, name, true);
            let there = [tree.child(*new_parent, new_name), tree.local(*new_parent, new_name)];
            there.into_iter().flatten().filter(|other| other != ino).for_each(|other| tree.detach(other));
            tree.changed(*new_parent, new_name, false);
        }
        tree.stored_above(*new_parent, now);
        if stays {
            tree.changed(*parent, name, false);
        }
    }

    /// Notes that the store has these objects below a directory's new key, and none below the old one (or, with `stays`, some of another
    /// client). Returns the files below the directory that have a writer.
    pub fn renamed_directory(&self, names: &Names, below: &Below, stays: bool) -> Vec<Follower> {
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        let Names { ino, parent, name, new_parent, new_name } = names;
        let is_it = tree.inode(*ino).is_some_and(|inode| inode.parent == *parent && inode.name == *name);
        let followers = if is_it && tree.directory(*new_parent).is_ok() {
            tree.moves_directory(*ino, *new_parent, new_name, below, now)
        } else {
            drop(tree);
            self.forget_directory(names);
            tree = self.0.tree.lock();
            Vec::new()
        };
        if !below.is_empty() {
            tree.stored_above(*new_parent, now);
        }
        if stays {
            tree.changed(*parent, name, false);
        }
        followers
    }

    /// Forgets the facts about a directory whose rename failed, and about its new name: the next lookups ask S3.
    pub fn forget_directory(&self, names: &Names) {
        let mut tree = self.0.tree.lock();
        for (parent, name) in [(names.parent, &names.name), (names.new_parent, &names.new_name)] {
            if let Some(ino) = tree.child(parent, name) {
                tree.detach(ino);
            }
            tree.changed(parent, name, false);
        }
        tree.walking(Walk::restart);
    }

    /// Doubts the facts about these names: the next lookup asks S3.
    pub fn doubt_names(&self, names: &Names) {
        let mut tree = self.0.tree.lock();
        for (parent, name) in [(names.parent, &names.name), (names.new_parent, &names.new_name)] {
            tree.changed(parent, name, false);
            if let Some(ino) = tree.child(parent, name)
                && let Ok(file) = tree.file_mut(ino)
                && let Some(stored) = &mut file.stored
            {
                stored.doubt();
            }
        }
    }

    /// Moves a file with a writer to its new name: the upload uses the new key.
    pub fn renamed_while_written(&self, names: &Names) -> bool {
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        let writes = tree.file_mut(names.ino).is_ok_and(|file| matches!(file.phase, Phase::Writing(_)));
        let is_there = tree
            .inode(names.ino)
            .is_some_and(|inode| inode.parent == names.parent && inode.name == names.name);
        if !writes || !is_there || tree.directory(names.new_parent).is_err() {
            return false;
        }
        tree.moves(names.ino, names.new_parent, &names.new_name, now);
        true
    }
}

impl Tree {
    /// The writer of a file that does not lie in the stage.
    fn writer(&mut self, ino: InodeNo) -> Option<u64> {
        match &self.file_mut(ino).ok()?.phase {
            Phase::Writing(writing) if !writing.is_staged => Some(writing.writer),
            _ => None,
        }
    }

    /// The version of a file that a rename may replace; `None` if S3 has no object.
    fn replaceable(&mut self, ino: InodeNo, wish: RenameWish) -> Result<Option<ETag>> {
        let key = self.name_for_errors(ino);
        let refuse = |why| Err(Error::new(ErrorKind::NotPermitted(why), key.clone()));
        let file = self.file_mut(ino)?;
        match (&file.phase, &file.stored) {
            // The caller holds the file in the stage, which is stored completely.
            (Phase::Writing(writing), Some(stored)) if writing.is_staged => Ok(Some(stored.meta().etag)),
            (Phase::Writing(_), None) if wish.pending == Some(ino) => Ok(None),
            (Phase::Writing(_) | Phase::New { .. }, _) => {
                refuse("is being written in this mount; a rename can replace it once it is closed")
            }
            (Phase::Stored, _) if !wish.allow_overwrite => {
                refuse("exists; to replace it by a rename needs --allow-overwrite")
            }
            (Phase::Stored, Some(stored)) => Ok(Some(stored.meta().etag)),
            (Phase::Stored, None) => Err(stale(ino)),
        }
    }

    /// Whether this mount has no local entries in a directory that a rename replaces. The store answers for the keys below.
    fn has_no_locals(&self, ino: InodeNo) -> Result<()> {
        let (key, directory) = self.directory(ino)?;
        match directory.locals.is_empty() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::NotEmpty, key.as_str())),
        }
    }
}
