//! Gives names to what has another one: looks both up, says what the store must do for it, and moves the inode once it is done.
//!
//! The inode keeps its number, because the kernel does: programs that have the file open go on under the new name.

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
    /// Whether the target stays (RENAME_NOREPLACE).
    pub no_replace: bool,
    /// The mount allows to replace objects (`--allow-overwrite`).
    pub allow_overwrite: bool,
    /// A file in the stage that may be replaced before it was stored: the caller holds it.
    pub pending: Option<InodeNo>,
}

/// A name that is to change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    /// The inode that has it.
    ino: InodeNo,
    parent: InodeNo,
    name: Box<str>,
    new_parent: InodeNo,
    new_name: Box<str>,
}

impl Names {
    /// The inode that gets another name.
    pub fn ino(&self) -> InodeNo {
        self.ino
    }
}

/// The work that a rename takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rename {
    /// The rename is done, as both names were one, or as it concerned this mount alone.
    Done,
    /// The file is being written.
    Writing {
        /// The writer, as named in `open_write`.
        writer: u64,
        /// The names for [`InodeTable::renamed`].
        names: Names,
        /// The key that its object is to have.
        to: ObjectKey,
        /// The object that it replaces there, if there is one.
        over: Option<ETag>,
    },
    /// The object is to be moved; then [`InodeTable::renamed`].
    Object {
        /// The names for [`InodeTable::renamed`].
        names: Names,
        /// The key of the source.
        from: ObjectKey,
        /// The key of the target.
        to: ObjectKey,
        /// The object that it replaces there, if there is one.
        over: Option<ETag>,
    },
    /// The objects below a directory are to be moved, if S3 has some; then [`InodeTable::renamed_directory`]. What S3 has below the new key is
    /// not known.
    Directory {
        /// The names for [`InodeTable::renamed_directory`].
        names: Names,
        /// The key of the directory, which ends in `/`.
        from: ObjectKey,
        /// The same of the new name.
        to: ObjectKey,
    },
}

impl InodeTable {
    /// Looks at both names of a rename, and says what is to be done.
    ///
    /// # Errors
    /// `NotFound`; `Exists`: something is there, and `no_replace`; `NotPermitted`: a file is there that may not be replaced, or is being
    /// written; `IsADirectory`, `NotADirectory`, `NotEmpty`: what is there is of another kind, or a directory with something in it;
    /// `InvalidName`: a directory into itself; `NameTooLong`; those of `lookup`.
    pub async fn rename(
        &self,
        (parent, name): (InodeNo, &OsStr),
        (new_parent, new_name): (InodeNo, &OsStr),
        wish: RenameWish,
    ) -> Result<Rename> {
        let (name, new_name) = (parse(name)?, parse(new_name)?);
        // The kernel's own lookup of the new name just found nothing: it is not asked for again.
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
            let over = target.map(|ino| tree.replaceable(ino, wish)).transpose()?.flatten();
            let from = tree.key(source.ino).ok_or_else(|| stale(source.ino))?;
            let file = tree.file_mut(source.ino)?;
            return Ok(match &file.phase {
                Phase::New { .. } => {
                    tree.moves(source.ino, new_parent, new_name, now);
                    Rename::Done
                }
                // The object of before would be there again under the old name.
                Phase::Writing(writing) if writing.is_staged && file.stored.is_some() => {
                    Rename::Object { names, from, to, over }
                }
                Phase::Writing(_) if file.stored.is_some() => {
                    let why = "is being replaced in this mount; it can be renamed once it is closed";
                    return Err(Error::new(ErrorKind::NotPermitted(why), from.as_str()));
                }
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

    /// The store has the object under its new key, with these attributes, and no longer under the old one (or, with `stays`, a newer version
    /// of another client).
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
            // It was opened for writing meanwhile, or looked up anew: what the names are now, the next lookups ask.
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

    /// The store has these objects below a directory's new key, and no longer below the old one (or, with `stays`, some of another client). The
    /// files in it that are being written.
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

    /// Nothing is known any more of a directory that was to be renamed, nor of its new name: the next lookups ask S3.
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

    /// Doubts the facts about these names: the next look asks S3.
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

    /// A file that is being written goes on under its new name: its upload bears the new key.
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
    /// The version of a file that a rename may replace; `None`: S3 has none of it.
    fn replaceable(&mut self, ino: InodeNo, wish: RenameWish) -> Result<Option<ETag>> {
        let key = self.name_for_errors(ino);
        let refuse = |why| Err(Error::new(ErrorKind::NotPermitted(why), key.clone()));
        let file = self.file_mut(ino)?;
        match (&file.phase, &file.stored) {
            // The caller holds it: it is stored, and has all its bytes.
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

    /// Whether a directory may be replaced by another one, as far as this mount knows: what S3 has below it, the store is asked.
    fn has_no_locals(&self, ino: InodeNo) -> Result<()> {
        let (key, directory) = self.directory(ino)?;
        match directory.locals.is_empty() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::NotEmpty, key.as_str())),
        }
    }
}
