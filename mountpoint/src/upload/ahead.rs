//! An upload that begins while its file still changes. Parts go out by number; one that changed since goes out again under its number. The
//! caller knows which parts are as the file is now, and says when the file is complete.

use std::collections::BTreeSet;

use tokio::sync::OwnedSemaphorePermit;

use super::multipart::Multipart;
use super::part::{Part, Sealed};
use super::{Error, Uploader};
use crate::checksum::Checksum;
use crate::object::{ObjectKey, ObjectMeta};
use crate::s3::{PartLimits, Replaces};
use crate::sync::{Arc, Mutex};

/// Most of these uploads at once. Beyond it a file goes out as a whole when it is closed. Doubling it helps more programs that write long
/// files side by side, and leaves twice the uploads in the store if the engine is killed, until the next mount aborts them.
pub(super) const AHEAD_MAX: usize = 64;

/// Bytes that are read, hashed and copied at a time, so that the copy finds them in the processor's cache.
const PIECE: usize = 128 << 10;

/// An unfinished object of which some parts are in the store. Dropping it without [`Ahead::finish`] aborts the upload in the background.
#[derive(Debug)]
pub struct Ahead {
    uploader: Uploader,
    multipart: Arc<Multipart>,
    limits: PartLimits,
    /// Numbers of the parts that went out at least once.
    sent: Mutex<BTreeSet<u32>>,
    _place: OwnedSemaphorePermit,
}

impl Uploader {
    /// Begins an upload that replaces only the given version, without a request yet. `None`: enough such uploads are under way.
    pub fn ahead(&self, key: ObjectKey, replaces: Replaces) -> Option<Ahead> {
        let shared = &self.0;
        let place = Arc::clone(&shared.ahead).try_acquire_owned().ok()?;
        let multipart = Multipart::new(Arc::clone(shared), shared.object(key, replaces), None);
        let limits = shared.client.part_limits();
        Some(Ahead { uploader: self.clone(), multipart, limits, sent: Mutex::default(), _place: place })
    }

    /// Bytes of the first part of a new object.
    pub fn first_part(&self) -> u64 {
        self.0.part_size(1, self.0.client.part_limits())
    }
}

impl Ahead {
    /// Bytes of this part, if it is not the last one. `None`: the store takes no such part.
    pub fn part_len(&self, number: u32) -> Option<u64> {
        (number <= self.limits.parts_max).then(|| self.uploader.0.part_size(number, self.limits))
    }

    /// Sends a part, and returns when it is read: the store answers later. `read` fills the buffer with the bytes from an offset within the
    /// part. One call at a time.
    ///
    /// # Errors
    /// An error of `read`, or of the first request that failed. The caller then aborts the upload.
    pub async fn send<E>(
        &self,
        number: u32,
        len: u64,
        read: impl Fn(&mut [u8], u64) -> Result<(), E> + Send + 'static,
    ) -> Result<(), E>
    where
        E: From<Error> + Send + 'static,
    {
        let shared = &self.uploader.0;
        let is_again = !self.sent.lock().insert(number);
        // Two requests with one number have no order: the first one ends before the second begins.
        self.multipart.fewer_than(if is_again { 1 } else { shared.config.parts_in_flight_max }).await;
        self.check()?;
        if is_again {
            self.multipart.replace(number);
        }
        let mut part = Part::new(number, len, shared.algorithm());
        if let Some(want) = part.want(0, &shared.memory)? {
            let reservation = tokio::select! {
                biased;
                () = self.multipart.given_up() => return Err(Error::Aborted.into()),
                reservation = shared.memory.wait(want.bytes) => reservation?,
            };
            part.grant(want, reservation)?;
        }
        // Other writers that wait for memory see that this part will free its memory soon.
        let _sending = shared.memory.sending();
        let filled = shared.runtime.spawn_blocking(move || fill(part, len, read)).await;
        let part = filled.map_err(|_| Error::Panicked)??;
        self.multipart.submit(part, |_| {});
        Ok(())
    }

    /// Returns when the store has answered for all parts.
    ///
    /// # Errors
    /// The error of the first part that failed.
    pub async fn arrived(&self) -> Result<(), Error> {
        self.multipart.fewer_than(1).await;
        self.check()
    }

    /// Whether the store has answered for all parts that went out, and refused none.
    pub fn has_arrived(&self) -> bool {
        self.multipart.in_flight() == 0 && self.multipart.failed().is_none()
    }

    fn check(&self) -> Result<(), Error> {
        self.multipart.failed().map_or(Ok(()), Err)
    }

    /// Completes the upload: makes an object of `size` bytes from the parts.
    ///
    /// # Errors
    /// An error of the store. `Changed` and `Exists`: the bucket has another version. The upload is then aborted.
    pub async fn finish(&self, size: u64) -> Result<ObjectMeta, Error> {
        self.multipart.fewer_than(1).await;
        let whole = self.multipart.sent().unwrap_or_else(|| Checksum::of(self.uploader.0.algorithm(), &[]));
        self.multipart.finish(size, whole).await
    }

    /// Aborts the upload in the background, unless it is completed.
    pub fn give_up(&self) {
        self.multipart.abort();
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Reads the bytes of a part.
fn fill<E: From<Error>>(
    mut part: Part,
    len: u64,
    read: impl Fn(&mut [u8], u64) -> Result<(), E>,
) -> Result<Sealed, E> {
    let (mut buffer, mut at) = (vec![0; PIECE.min(len as usize)], 0);
    while at < len {
        let length = buffer.len().min((len - at) as usize);
        let piece = &mut buffer[..length];
        read(piece, at)?;
        if part.put(piece)? < length {
            return Err(Error::Corrupt.into());
        }
        at += length as u64;
    }
    Ok(part.seal())
}
