//! Finds out whether the bucket's version comes from this file: the request that stored it may have had no answer, or its process may
//! have ended since.

use sha2::{Digest as _, Sha256};

use super::log::{Digest, Record};
use super::send::digest;
use super::{Error, Staged, Turn};
use crate::buffer::BLOCK;
use crate::object::{ObjectId, ObjectMeta};
use crate::s3::Replaces;
use crate::sync::Arc;

impl Staged {
    /// Settles requests without an answer, before the name changes. A request still in flight could make an object of that name later; it
    /// can't once the name has a version that the request does not expect. So the call stores the file.
    ///
    /// # Errors
    /// The errors of `store`.
    pub async fn settle_sent(self: &Arc<Self>, turn: &Turn) -> Result<(), Error> {
        if self.resolve().await?.is_none() && !self.state.lock().sent.is_empty() {
            let stored = self.store(turn).await?;
            let mut state = self.state.lock();
            if stored.is_some() {
                state.adopted = stored;
            }
        }
        Ok(())
    }

    /// Takes the image of this file that the bucket turned out to have. A second call returns none.
    pub fn take_adopted(&self) -> Option<ObjectMeta> {
        self.state.lock().adopted.take()
    }

    /// Looks into the bucket if it may have an image of this file that this mount does not know. The next upload then replaces that
    /// image. If the image equals the present file, the call returns it, and nothing is left to send.
    pub(super) async fn resolve(self: &Arc<Self>) -> Result<Option<ObjectMeta>, Error> {
        let (key, replaces, sent) = {
            let state = self.state.lock();
            (state.key.clone(), state.replaces.clone(), state.sent.clone())
        };
        if sent.is_empty() {
            return Ok(None);
        }
        let Some(meta) = self.shared.uploader.look(&key).await? else { return Ok(None) };
        if replaces == Replaces::Version(meta.etag.clone()) {
            return Ok(None);
        }
        if sent.iter().any(|image| image.is_named(&meta)) {
            // The file goes out again even if the image equals it: by a patch, which costs little.
            self.adopt(&meta)?;
            return Ok(None);
        }
        if !sent.iter().any(|image| image.size == meta.size && !image.sha256.is_empty()) {
            return Ok(None);
        }
        let there = self.digest_of(ObjectId::of(key, &meta), meta.size).await?;
        if !sent.contains(&there) {
            return Ok(None);
        }
        self.adopt(&meta)?;
        let (generation, is_whole) = {
            let state = self.look();
            (state.image.generation(), state.image.is_dirty() && !state.image.needs_base())
        };
        if is_whole && self.size() == there.size && self.digest_here(there.size).await? == there {
            self.is_stored(generation, &meta);
            if !self.is_dirty() {
                return Ok(Some(meta));
            }
        }
        Ok(None)
    }

    /// Notes that the bucket's version is an earlier state of this file. Bytes missing in the local file are in the object, at the same
    /// place.
    fn adopt(&self, meta: &ObjectMeta) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.facts += 1;
        let (file, etag) = (self.number, meta.etag.as_str().to_owned());
        if state.is_noted {
            let stored = Record::Stored { file, etag, size: meta.size, is_synced: true };
            self.shared.folder.append(&[stored])?;
        }
        state.replaces = Replaces::Version(meta.etag.clone());
        state.object = meta.size;
        state.image.shares_at_most(meta.size);
        if state.image.needs_base() {
            let id = ObjectId::of(state.key.clone(), meta);
            state.reader = Some(Arc::new(self.shared.prefetcher.open(id, meta.size, None)));
        }
        state.adopted = Some(meta.clone());
        state.sent.clear();
        Ok(())
    }

    async fn digest_of(&self, id: ObjectId, size: u64) -> Result<Digest, Error> {
        let reader = self.shared.prefetcher.open(id, size, None);
        let (mut hash, mut at) = (Sha256::new(), 0);
        while at < size {
            let length = (size - at).min(BLOCK as u64) as usize;
            let (give, given) = tokio::sync::oneshot::channel();
            reader.read(at, length, move |result| drop(give.send(result)));
            let gone = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
            let bytes = given.await.map_err(|_| gone())??;
            if bytes.len() != length {
                return Err(gone().into());
            }
            hash.update(bytes.to_vec());
            at += length as u64;
        }
        Ok(digest(size, hash))
    }

    async fn digest_here(self: &Arc<Self>, size: u64) -> Result<Digest, Error> {
        let this = Arc::clone(self);
        let hashed = self.shared.runtime.spawn_blocking(move || {
            let (file, mut hash, mut at) = (this.file_for_now()?, Sha256::new(), 0);
            let mut bytes = vec![0; BLOCK];
            while at < size {
                let length = (size - at).min(BLOCK as u64) as usize;
                let got = super::disk::read_at_most(&file, &mut bytes[..length], at)?;
                bytes[got..length].fill(0);
                hash.update(&bytes[..length]);
                at += length as u64;
            }
            std::io::Result::Ok(digest(size, hash))
        });
        Ok(hashed.await.map_err(std::io::Error::other)??)
    }
}
