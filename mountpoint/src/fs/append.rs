//! Opens a stored file to append to it. The new upload first writes the bytes that the store can't copy into a part.

use super::file::OpenFlags;
use super::{Error, FileSystem, Result};
use crate::inode::InodeNo;
use crate::object::ObjectId;
use crate::prefetch::Reader;
use crate::sync::Arc;
use crate::upload::{self, Upload};

/// Bytes that are fetched and written at a time. Doubling it halves the steps, and doubles the memory between the two.
const PIECE: u64 = 1 << 20;

/// An object to which an open appends, and the upload for it.
type Continued = (ObjectId, Arc<Upload>);

impl FileSystem {
    /// The upload that continues the object of this file, and the object's version; `None` if this open does not append, or there is no
    /// object.
    ///
    /// # Errors
    /// `STALE`: the object is another version than the mount has. The kernel then looks the name up anew, and opens the present version.
    pub(super) async fn append_to(&self, ino: InodeNo, flags: OpenFlags) -> Result<Option<Continued>> {
        if !self.config.allow_append || !flags.append || flags.truncate {
            return Ok(None);
        }
        let Some(id) = self.inodes.stored(ino) else { return Ok(None) };
        let prepared = self.prepare(&id).await;
        if prepared.as_ref().is_err_and(|error| error.errno() == rustix::io::Errno::STALE) {
            if self.inodes.stored(ino).as_ref() != Some(&id) {
                // A program stored another version through this mount meanwhile: the caller finds that out.
                return Ok(None);
            }
            self.inodes.doubt(ino);
        }
        prepared.map(|upload| Some((id, upload)))
    }

    async fn prepare(&self, id: &ObjectId) -> Result<Arc<Upload>> {
        let (upload, behind) = self.uploader.append(id).await?;
        let fetched = behind.fetched();
        if fetched.is_empty() {
            return Ok(upload);
        }
        let reader = self.prefetcher.open(id.clone(), behind.meta.size, None);
        let mut at = fetched.start;
        while at < fetched.end {
            let bytes = bytes_of(&reader, at, (fetched.end - at).min(PIECE)).await?;
            let (send, receive) = tokio::sync::oneshot::channel();
            upload.write(at, &bytes, Box::new(move |result| drop(send.send(result))));
            receive.await.unwrap_or(Err(upload::Error::Aborted))?;
            at += bytes.len() as u64;
        }
        Ok(upload)
    }

    /// Reads all bytes of a small object.
    pub(super) async fn whole(&self, id: &ObjectId, size: u64) -> Result<Vec<u8>> {
        bytes_of(&self.prefetcher.open(id.clone(), size, None), 0, size).await
    }
}

async fn bytes_of(reader: &Reader, at: u64, len: u64) -> Result<Vec<u8>> {
    let (send, receive) = tokio::sync::oneshot::channel();
    reader.read(at, len as usize, move |result| drop(send.send(result)));
    match receive.await {
        Ok(result) => Ok(result.map_err(Error::from)?.to_vec()),
        Err(_) => Err(upload::Error::Aborted.into()),
    }
}
