//! A new version of a long object that changes in a few places: the store copies the unchanged parts, and the others are sent, as
//! [`super::plan`] decides.

use std::future::Future;
use std::ops::Range;

use tokio::sync::RwLock;

use super::multipart::{Copies, Multipart};
use super::part::Part;
use super::plan::{Piece, plan};
use super::size::{PART_MIN, charges};
use super::{Error, Uploader, hold};
use crate::buffer::{BLOCK, Block, Fill};
use crate::checksum::Checksum;
use crate::object::{ObjectId, ObjectKey, ObjectMeta};
use crate::s3::{ErrorKind, GetObject, Replaces};
use crate::sync::Arc;
use crate::sync::atomic::Ordering::Relaxed;

/// An unfinished new version. Dropping it without [`Patch::finish`] aborts the upload in the background.
#[derive(Debug)]
pub struct Patch {
    uploader: Uploader,
    multipart: Arc<Multipart>,
    pieces: Vec<Piece>,
    base: Base,
    size: u64,
    /// Checksum of all sent bytes so far.
    sent: Option<Checksum>,
}

/// The object whose unchanged bytes the patch reuses.
#[derive(Debug)]
struct Base {
    id: ObjectId,
    size: u64,
    /// Ranges, in order, whose bytes only the object has.
    absent: Vec<Range<u64>>,
}

impl Base {
    /// The absent ranges within one part.
    fn within(&self, part: &Range<u64>) -> Vec<Range<u64>> {
        let first = self.absent.partition_point(|run| run.end <= part.start);
        let runs = self.absent[first..].iter().take_while(|run| run.start < part.end);
        runs.map(|run| run.start.max(part.start)..run.end.min(part.end)).collect()
    }
}

impl Uploader {
    /// Creates a patch for a file of `size` bytes: an upload of a new version that shares `unchanged` ranges, in order, with an object. The
    /// bytes of `absent` ranges are only in that object. `None`: no range is worth a copy, or the store does not copy parts; the caller
    /// must send all bytes.
    pub fn patch(
        &self,
        (key, replaces): (ObjectKey, Replaces),
        (id, base_size): (ObjectId, u64),
        size: u64,
        (unchanged, absent): (Vec<Range<u64>>, Vec<Range<u64>>),
    ) -> Option<Patch> {
        let (shared, limits) = (&self.0, self.0.client.part_limits());
        // A sent part is shorter than twice `part`.
        let part = shared.config.part_size.min(shared.memory.part_max() / 2);
        if limits.are_equal || part < PART_MIN || shared.refuses_copies.load(Relaxed) {
            return None;
        }
        let pieces = plan(size, &unchanged, part, limits.parts_max)?;
        let copies = pieces.iter().zip(1..).filter_map(|(piece, number)| match piece {
            Piece::Copied(range) => Some((number, range.clone())),
            Piece::Sent(_) => None,
        });
        let source = Arc::new(RwLock::new(Some(hold::Base { id: id.clone(), meta: None })));
        let copies = Copies { source, parts: copies.collect() };
        let multipart = Multipart::new(Arc::clone(shared), shared.object(key, replaces), Some(copies));
        let base = Base { id, size: base_size, absent };
        Some(Patch { uploader: self.clone(), multipart, pieces, base, size, sent: None })
    }

    /// Whether the store has refused to copy parts. Then no file is patched.
    pub fn refuses_copies(&self) -> bool {
        self.0.refuses_copies.load(Relaxed)
    }
}

impl Patch {
    /// Starts the store's copies, and sends the other parts. The patch fetches their absent bytes itself; `read` returns the others: any
    /// number of bytes from the beginning of a range.
    ///
    /// # Errors
    /// An error of `read`, or of the first request that fails. The caller then aborts the patch.
    pub async fn send<F, E>(&mut self, read: impl Fn(Range<u64>) -> F) -> Result<(), E>
    where
        F: Future<Output = Result<Vec<u8>, E>>,
        E: From<Error>,
    {
        let shared = &self.uploader.0;
        let at_once = shared.config.parts_in_flight_max;
        self.multipart.copy_parts(|_| {});
        for (piece, number) in self.pieces.iter().zip(1..) {
            let Piece::Sent(range) = piece else { continue };
            self.multipart.fewer_than(at_once).await;
            self.check()?;
            let len = range.end - range.start;
            let mut part = Part::new(number, len, shared.algorithm());
            if let Some(want) = part.want(0, &shared.memory)? {
                let reservation = shared.memory.wait(want.bytes).await?;
                part.grant(want, reservation)?;
            }
            // Other writers that wait for memory see that this part will free its memory soon.
            let _sending = shared.memory.sending();
            let absent = self.base.within(range);
            let fetched = self.fetch(&absent).await?;
            let (mut at, mut absent) = (range.start, absent.into_iter());
            while at < range.end {
                let run = absent.next().unwrap_or(range.end..range.end);
                while at < run.start {
                    let bytes = read(at..run.start).await?;
                    if bytes.is_empty() || part.put(&bytes)? < bytes.len() {
                        return Err(Error::Corrupt.into());
                    }
                    at += bytes.len() as u64;
                }
                while at < run.end {
                    let bytes = fetched.at(at, run.end).ok_or(Error::Corrupt)?;
                    if part.put(bytes)? < bytes.len() {
                        return Err(Error::Corrupt.into());
                    }
                    at += bytes.len() as u64;
                }
            }
            drop(fetched);
            let part = part.seal();
            self.sent = Some(match self.sent {
                Some(before) => before.combine(part.checksum, part.len),
                None => part.checksum,
            });
            self.multipart.submit(part, |_| {});
        }
        self.multipart.fewer_than(1).await;
        Ok(self.check()?)
    }

    /// Fetches the absent ranges of a part in one request, together with the bytes between them.
    async fn fetch(&self, absent: &[Range<u64>]) -> Result<Fetched, Error> {
        let (Some(first), Some(last)) = (absent.first(), absent.last()) else {
            return Ok(Fetched::default());
        };
        let (range, shared) = (first.start..last.end, &self.uploader.0);
        let mut memory = shared.memory.wait_to_read(charges(range.end - range.start)).await;
        let lens = range.clone().step_by(BLOCK).map(|at| (range.end - at).min(BLOCK as u64) as usize);
        let into = lens.map(|len| memory.block(len)).collect::<Option<Vec<_>>>().ok_or(Error::NoMemory)?;
        let (full, blocks) = std::sync::mpsc::channel();
        let mut fill = Fill::new(into, move |block| drop(full.send(block)));
        let Base { id, size: object_size, .. } = &self.base;
        let request = GetObject { id: id.clone(), range: range.clone(), object_size: *object_size };
        shared.client.get_object(&request, &mut fill).await?;
        drop(fill);
        Ok(Fetched { start: range.start, blocks: blocks.into_iter().collect() })
    }

    /// Checks for the error of the first request that failed. An error that shows that the store does not copy parts is remembered.
    fn check(&self) -> Result<(), Error> {
        let Some(error) = self.multipart.failed() else { return Ok(()) };
        if is_refusal(&error) && !self.uploader.0.refuses_copies.swap(true, Relaxed) {
            tracing::warn!(
                "the store does not copy parts of objects: long files of which a part is changed are fetched and sent whole"
            );
        }
        Err(error)
    }

    /// The ETag of the new object on stores whose ETags are MD5 sums. Called after all parts are stored.
    pub fn etag(&self) -> Option<String> {
        self.multipart.etag()
    }

    /// Completes the upload: makes the object from the parts.
    ///
    /// # Errors
    /// An error of the store. `Changed` and `Exists`: the bucket has another version. The upload is then aborted.
    pub async fn finish(&self) -> Result<ObjectMeta, Error> {
        let shared = &self.uploader.0;
        let whole = self.sent.unwrap_or_else(|| Checksum::of(shared.algorithm(), &[]));
        self.multipart.finish(self.size, whole).await
    }

    /// Aborts the upload. Returns when the store has answered.
    pub async fn abort(&self) {
        self.multipart.abort();
        self.multipart.settled().await;
    }
}

impl Drop for Patch {
    fn drop(&mut self) {
        self.multipart.abort();
    }
}

/// Fetched bytes of the object in blocks, from offset `start` on. All blocks but the last are full.
#[derive(Default)]
struct Fetched {
    start: u64,
    blocks: Vec<Block>,
}

impl Fetched {
    /// The bytes from an offset up to `end` or the end of a block; `None` if they were not fetched.
    fn at(&self, at: u64, end: u64) -> Option<&[u8]> {
        let offset = (at - self.start) as usize;
        let block = self.blocks.get(offset / BLOCK)?.get(offset % BLOCK..)?;
        let bytes = &block[..block.len().min((end - at) as usize)];
        (!bytes.is_empty()).then_some(bytes)
    }
}

/// Whether an error means that the store copies no parts, or not for this user. An error about versions does not.
fn is_refusal(error: &Error) -> bool {
    let Error::Remote(error) = error else { return false };
    let refuses =
        matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidRequest | ErrorKind::Denied);
    refuses && error.operation() == "UploadPartCopy"
}
