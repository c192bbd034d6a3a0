//! Files with a writer whose names change: the upload gets the new key, or its object is moved once it is stored.
//!
//! The rename of a directory holds the files below it back while it moves the objects that they replace or continue.

use std::collections::HashMap;

use super::handle::{FileHandle, HandleNo, Mode, Writer};
use super::old_name::OldName;
use super::{FileSystem, Result};
use crate::inode::{Follower, Names};
use crate::moves::{self, Copied, Replaces};
use crate::object::{ETag, ObjectId, ObjectKey, ObjectMeta};
use crate::sync::Arc;
use crate::upload::{self, Hold, Stage};

/// A file below a directory that is being renamed, and the guard that holds it back.
#[derive(Debug)]
pub(super) struct HeldWriter {
    open: Arc<FileHandle>,
    hold: Hold,
    /// Taken before the tree of names frees it.
    old_name: OldName,
}

/// Held files by the numbers of their handles.
pub(super) type HeldWriters = HashMap<u64, HeldWriter>;

impl FileSystem {
    /// Holds back the files with a writer below a directory. `bound`: those that depend on an object below it, because they append to it or
    /// bear its key until they are stored; else the others. A file that is being stored is waited for.
    pub(super) async fn hold_writers(&self, directory: &ObjectKey, bound: bool) -> HeldWriters {
        let mut writers = HeldWriters::default();
        for (no, open) in self.files.numbered() {
            let Mode::Write(writer) = &open.mode else { continue };
            let is_below = |key: &ObjectKey| key.as_str().starts_with(directory.as_str());
            let has_name = self.inodes.key_of(open.ino).is_some_and(|key| is_below(&key));
            // A file that was renamed out of the directory is still stored below it first.
            if !has_name && !is_below(&writer.upload.key()) {
                continue;
            }
            if bound != (writer.upload.appends() || writer.moves.lock().is_some()) {
                continue;
            }
            let hold = writer.upload.hold().await;
            if !matches!(writer.upload.stage(), Stage::Open { .. } | Stage::Finishing { .. }) {
                drop(hold);
                // An error belongs to the writer.
                let _ = self.finish(&open, writer).await;
                continue;
            }
            let old_name = self.old_names.enter(writer.upload.key(), no.0);
            writers.insert(no.0, HeldWriter { open, hold, old_name });
        }
        writers
    }

    /// Gives a held file its name in a renamed directory, as if the file itself were renamed.
    pub(super) fn follow_directory(
        &self,
        Follower { writer, to, over }: Follower,
        writers: &mut HeldWriters,
        copies: &[Copied],
    ) {
        let Some(HeldWriter { open, mut hold, old_name }) = writers.remove(&writer) else { return };
        let Mode::Write(writer) = &open.mode else { return };
        let mut target = (to, over.map_or(Replaces::Nothing, Replaces::Version));
        let mut may_move = true;
        if let Some(base) = hold.base().cloned() {
            let copied = copies.iter().find(|copied| is_copy_of(copied, &base));
            if let Some(copied) = copied {
                hold.moved(copied.id.clone(), copied.meta.clone());
            }
            // Another client's version was copied, or none: the append fails, and replaces nothing.
            may_move = copied.is_some();
            target.1 = Replaces::Version(copied.map_or(base.etag, |copied| copied.id.etag.clone()));
        }
        // A file that has failed meanwhile is renamed no more.
        writer.upload.rename(|can_change| {
            if !can_change && !may_move {
                return None;
            }
            if !can_change {
                writer.moves_later(target.clone(), old_name);
            }
            Some(target)
        });
    }

    /// Follows the objects that held files append to, after a rename that deleted some objects of a directory and failed. All have copies.
    pub(super) async fn follow_deleted(&self, writers: &mut HeldWriters, copies: &[Copied]) {
        let held: Vec<_> = writers.iter().map(|(no, held)| (*no, held.hold.base().cloned())).collect();
        for (writer, base) in held {
            let Some(base) = base else { continue };
            let Some(copied) = copies.iter().find(|copied| is_copy_of(copied, &base)) else { continue };
            if let Ok(None) = self.uploader.look(&base.key).await {
                let (to, over) = (copied.id.key.clone(), Some(copied.id.etag.clone()));
                self.follow_directory(Follower { writer, to, over }, writers, copies);
            }
        }
    }

    /// Renames a file with a writer. Up to one part, its key changes. Beyond one part, its upload has the old key, and the object is
    /// moved after it is stored. Returns false if the file is stored already: then the caller must rename the object.
    pub(super) async fn rename_writer(
        &self,
        no: HandleNo,
        names: &Names,
        to: ObjectKey,
        over: Option<ETag>,
    ) -> Result<bool> {
        let Some(open) = self.files.find(no) else {
            // The handle will exist soon, or was just removed.
            tokio::task::yield_now().await;
            return Ok(false);
        };
        let writer = open.writer()?;
        let replaces = over.map_or(Replaces::Nothing, Replaces::Version);
        let (mut done, target) = (false, (to, replaces));
        // Before the tree frees the old name.
        let old_name = self.old_names.enter(writer.upload.key(), no.0);
        let in_time = writer.upload.rename(|can_change| {
            done = self.inodes.renamed_while_written(names);
            if done && !can_change {
                writer.moves_later(target.clone(), old_name);
            }
            done.then_some(target)
        });
        if in_time.is_none() {
            // An error belongs to the writer.
            let _ = self.finish(&open, writer).await;
        }
        Ok(done)
    }

    /// Moves an object from the key of its upload to its newer key, if the file was renamed meanwhile. A second call returns the same
    /// outcome.
    pub(super) async fn follow(
        &self,
        writer: &Writer,
        meta: ObjectMeta,
    ) -> std::result::Result<ObjectMeta, upload::Error> {
        let target = writer.moves.lock().as_ref().map(|moves| (moves.to.clone(), moves.replaces.clone()));
        let (Some((to, replaces)), Some(mover)) = (target, &self.mover) else { return Ok(meta) };
        let follow = || async {
            let from = writer.upload.key();
            let moved = async {
                let copied = mover.copy_made(&from, &meta, &to, &replaces).await?;
                mover.delete_source(&copied).await?;
                Ok(copied.meta)
            };
            let moved = moved.await;
            if let Some(moves) = &mut *writer.moves.lock() {
                moves.old_name = None;
            }
            moved.map_err(|error: moves::Error| {
                tracing::error!(
                    "\"{from}\" is stored, and can't be moved to \"{to}\", as it was renamed: {error}"
                );
                upload::Error::Remote(error.into_remote(&to))
            })
        };
        writer.moved.get_or_init(follow).await.clone()
    }
}

/// Whether the source of a copy is this version.
fn is_copy_of(copied: &Copied, id: &ObjectId) -> bool {
    copied.source.key == id.key && id.may_be(copied.source.etag.as_str(), copied.source.modified)
}
