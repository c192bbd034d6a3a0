//! Files that are open on a listing's word: the first bytes prove it, or the object itself is asked.
//!
//! Some stores list another ETag or size than an object has. Until bytes of a listed version came, nobody has seen any of it: then the
//! object's own version may take its place under the same inode.

use super::compact::{Judgement, Teller};
use super::error::{Error, ErrorKind, Result};
use super::state::{Node, Place};
use super::tree::{Tree, stale};
use super::{InodeNo, InodeTable};
use crate::object::ObjectId;
use crate::s3;
use crate::sync::Arc;

impl InodeTable {
    /// Bytes of this version came, which a file was opened as. False: the file is another version by the object's own word, and those
    /// bytes are not to be given.
    pub fn is_proven(&self, ino: InodeNo, id: &ObjectId, size: u64) -> bool {
        let mut tree = self.0.tree.lock();
        let Ok(file) = tree.file_mut(ino) else { return true };
        file.stored.as_mut().is_none_or(|stored| stored.is_proven(size, &id.etag, id.modified))
    }

    /// The version that the object itself says, of a file that was opened as another one by the word of a listing. `None`: it was replaced.
    ///
    /// # Errors
    /// `Stale`, and `Remote`: the object can't be asked.
    pub async fn own_version(
        &self,
        ino: InodeNo,
        id: &ObjectId,
        size: u64,
    ) -> Result<Option<(ObjectId, u64)>> {
        let (key, asked) = {
            let mut tree = self.0.tree.lock();
            if let Some(other) = other_version(&tree, ino, id, size)? {
                return Ok(Some(other));
            }
            (tree.key(ino).ok_or_else(|| stale(ino))?, tree.event())
        };
        let meta = match self.0.client.head_object(&key).await {
            Ok(meta) => meta,
            Err(error) if *error.kind() == s3::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::new(ErrorKind::Remote(Arc::new(error)), key.as_str())),
        };
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        if let Some(other) = other_version(&tree, ino, id, size)? {
            return Ok(Some(other));
        }
        let said = tree.ttl.said(asked, now);
        let place = tree.inode(ino).ok_or_else(|| stale(ino))?.place;
        let judged = tree.file_mut(ino)?.stored.as_ref().map(|stored| match stored.teller() {
            Teller::Listing => {
                stored.judge(meta.size, meta.etag.as_str(), meta.last_modified, Teller::Object)
            }
            // Bytes of it came: this is another version.
            Teller::Object | Teller::Upload => Judgement::Other,
        });
        if place == Place::Nowhere || !matches!(judged, Some(Judgement::Same | Judgement::Better)) {
            return Ok(None);
        }
        tree.confirm(ino, &meta, Teller::Object, false, said);
        let size = meta.size;
        Ok(Some((ObjectId::of(key, &meta), size)))
    }
}

/// The version that the file is by the object's own word, if it is another than this one.
fn other_version(tree: &Tree, ino: InodeNo, id: &ObjectId, size: u64) -> Result<Option<(ObjectId, u64)>> {
    let key = tree.key(ino).ok_or_else(|| stale(ino))?;
    let inode = tree.inode(ino).ok_or_else(|| stale(ino))?;
    let Node::File(file) = &inode.node else { return Err(stale(ino)) };
    let other = file.stored.as_ref().filter(|stored| {
        stored.teller() == Teller::Object && !stored.is(size, &id.etag, id.modified) && !file.is_local()
    });
    let is_here = inode.place != Place::Nowhere;
    Ok(other
        .filter(|_| is_here)
        .map(|stored| (ObjectId { key, etag: stored.meta().etag, modified: stored.second() }, stored.size())))
}
