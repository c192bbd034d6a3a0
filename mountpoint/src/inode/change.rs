//! Creates and removes names.

use std::ffi::OsStr;

use super::error::{Error, ErrorKind, Result};
use super::lookup::parse;
use super::remote;
use super::state::{Directory, Node, Phase, Place};
use super::tree::stale;
use super::{Found, InodeNo, InodeTable};
use crate::object::ObjectKey;
use crate::s3;
use crate::sync::Arc;

/// The result of removing a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unlinked {
    /// The name is gone.
    Gone,
    /// The file has a writer: close that handle and call again, or refuse.
    Busy {
        /// The writer's number, as given to `open_write`.
        writer: u64,
    },
}

impl InodeTable {
    /// Makes a directory in this mount alone. S3 has the directory once a file below it is stored. Counts one kernel reference.
    ///
    /// # Errors
    /// The errors of `create`.
    pub async fn mkdir(&self, parent: InodeNo, name: &OsStr) -> Result<Found> {
        self.make_local(parent, name, |now| Node::Directory(Box::new(Directory::new(now)))).await
    }

    /// Removes an empty directory: one that exists only in this mount, or one of which S3 has only the marker, which is the object `dir/`
    /// (or also `dir_$folder$`, where the mount reads those as directories). Succeeds for a directory that disappeared with the last key
    /// below it.
    ///
    /// # Errors
    /// `NotPermitted`: S3 has keys below the directory, or a marker that the mount may not delete; `NotEmpty`: the directory
    /// contains local entries; `NotADirectory`; `Remote`: S3 did not delete the marker; those of `lookup`.
    pub async fn rmdir(&self, parent: InodeNo, name: &OsStr, allow_delete: bool) -> Result<()> {
        let name = parse(name)?;
        let known = self.is_known_directory(parent, name);
        let held = match self.hold(parent, name).await {
            // Another client removed the last key below the directory: the directory is gone, as the caller wishes.
            Err(error) if known && matches!(error.kind(), ErrorKind::NotFound) => return Ok(()),
            held => held?,
        };
        let Some(key) = self.remove_local(held.ino)? else { return Ok(()) };
        let refuse = |why| Err(Error::new(ErrorKind::NotPermitted(why), key.as_str()));
        if !allow_delete {
            return refuse(
                "is a directory because the bucket has keys below it; to remove those first takes --allow-delete",
            );
        }
        let client = &*self.0.client;
        let fail = |error: s3::Error| Error::new(ErrorKind::Remote(Arc::new(error)), key.as_str());
        if !remote::is_marker_alone(client, &key, self.0.config.lookup_page).await.map_err(fail)? {
            return refuse("is a directory because the bucket has keys below it; remove them first");
        }
        // The mark goes first: if the second delete fails, the marker alone still makes a directory.
        if self.0.config.folder_marks
            && let Some(mark) = remote::folder_mark(client, &key).await.map_err(fail)?
        {
            client.delete_object(&mark).await.map_err(fail)?;
        }
        client.delete_object(&key).await.map_err(fail)?;
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        // A program made a local entry in the directory meanwhile.
        if tree.directory(held.ino).is_ok_and(|(_, directory)| !directory.locals.is_empty()) {
            return Err(Error::new(ErrorKind::NotEmpty, key.as_str()));
        }
        tree.detach(held.ino);
        tree.removed_below(parent, now);
        Ok(())
    }

    /// Removes an empty directory that exists only in this mount. Returns the key of a directory that S3 has.
    fn remove_local(&self, ino: InodeNo) -> Result<Option<ObjectKey>> {
        let mut tree = self.0.tree.lock();
        let (key, directory) = tree.directory(ino)?;
        let (key, has_locals) = (key.clone(), !directory.locals.is_empty());
        let holds = has_locals || directory.children > 0;
        let refusal = match tree.inode(ino).map(|inode| inode.place) {
            Some(Place::Local) if !holds => {
                tree.detach(ino);
                return Ok(None);
            }
            Some(Place::Remote) if !has_locals => return Ok(Some(key)),
            Some(Place::Local | Place::Remote) => ErrorKind::NotEmpty,
            Some(Place::Nowhere) | None => ErrorKind::Stale,
        };
        Err(Error::new(refusal, key.as_str()))
    }

    fn is_known_directory(&self, parent: InodeNo, name: &str) -> bool {
        let tree = self.0.tree.lock();
        tree.child(parent, name).is_some_and(|ino| tree.directory(ino).is_ok())
    }

    /// Removes a file: its object, or a local file that was never written. The name is gone on return. Open readers may go on or fail.
    ///
    /// # Errors
    /// `NotPermitted`: the mount may not delete; `IsADirectory`; `Remote`: S3 did not delete; those of `lookup`.
    pub async fn unlink(&self, parent: InodeNo, name: &OsStr, allow_delete: bool) -> Result<Unlinked> {
        let name = parse(name)?;
        let refuse = |why| Err(Error::new(ErrorKind::NotPermitted(why), name));
        if !allow_delete {
            return refuse("files can't be deleted on this mount; --allow-delete would allow it");
        }
        let held = self.hold(parent, name).await?;
        let key = {
            let mut tree = self.0.tree.lock();
            match &tree.file_mut(held.ino)?.phase {
                Phase::Writing(writing) => return Ok(Unlinked::Busy { writer: writing.writer }),
                Phase::Stored => Some(tree.key(held.ino).ok_or_else(|| stale(held.ino))?),
                Phase::New { .. } => {
                    tree.detach(held.ino);
                    None
                }
            }
        };
        let Some(key) = key else { return Ok(Unlinked::Gone) };
        let deleted = self.0.client.delete_object(&key).await;
        deleted.map_err(|error| Error::new(ErrorKind::Remote(Arc::new(error)), key.as_str()))?;
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        match tree.file_mut(held.ino) {
            // A program opened the file for writing while S3 deleted the object: the writer makes a new object.
            Ok(file) if file.is_local() => {
                file.stored = None;
                tree.touched(held.ino, false);
            }
            _ => {
                // The name is gone for every earlier request, also if a lookup found another version meanwhile.
                let child = tree.child(parent, name);
                if let Some(ino) = child.filter(|&ino| tree.directory(ino).is_err()) {
                    tree.detach(ino);
                }
                let at = tree.changed(parent, name, true);
                tree.removed_below(parent, now);
                let taken = tree.directory(parent).map_or(true, |(_, directory)| {
                    tree.child(parent, name).is_some() || directory.locals.contains_key(name)
                });
                if !taken {
                    tree.observe_absent(parent, name, at, now);
                }
            }
        }
        drop(tree);
        Ok(Unlinked::Gone)
    }
}
