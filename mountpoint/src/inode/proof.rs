//! Files that were opened by a listing's marks: the first bytes prove the version, or the engine asks the object itself.
//!
//! Some stores list another ETag or size than an object has. Until bytes of the listed version arrive, no program has seen that version:
//! until then the object's own version may replace it under the same inode.

use super::compact::{Judgement, Teller};
use super::error::{Error, ErrorKind, Result};
use super::state::{Node, Place};
use super::tree::{Tree, stale};
use super::{InodeNo, InodeTable};
use crate::object::ObjectId;
use crate::s3;
use crate::sync::Arc;

impl InodeTable {
    /// Notes that bytes of the version arrived with which a file was opened. False: by the object's own answer the file is another
    /// version, and the caller must not return these bytes.
    pub fn is_proven(&self, ino: InodeNo, id: &ObjectId, size: u64) -> bool {
        let mut tree = self.0.tree.lock();
        let Ok(file) = tree.file_mut(ino) else { return true };
        file.stored.as_mut().is_none_or(|stored| stored.is_proven(size, &id.etag, id.modified))
    }

    /// The version by the object's own answer, for a file that was opened with the marks of a listing. `None`: the file was replaced.
    ///
    /// # Errors
    /// `Stale`, and `Remote`: S3 did not answer about the object.
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
            // Bytes of the known version arrived already, so the answer means another version.
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

/// The version by the object's own answer, if the object is not the given version.
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
