//! One multipart upload: created once, its parts sent in parallel, then completed or aborted once.

use std::ops::Range;

use bytes::Bytes;
use tokio::sync::{Notify, OnceCell, Semaphore, watch};
use tracing::{debug, error};

use super::hold::Ground;
use super::journal::Entry;
use super::memory::Counted;
use super::part::{Sealed, SealedBody};
use super::{Error, Shared};
use crate::buffer::Block;
use crate::checksum::{Checksum, ChecksumAlgorithm};
use crate::object::ObjectMeta;
use crate::s3::{
    CompleteUpload, CopyPart, NewObject, Replaces, Stored, UploadId, UploadPart, UploadedPart, etag_of_parts,
};
use crate::sync::{Arc, Mutex};

#[derive(Debug)]
pub(super) struct Multipart {
    shared: Arc<Shared>,
    object: NewObject,
    copies: Option<Copies>,
    /// The object that the completed upload may replace; a rename changes it.
    replaces: Mutex<Replaces>,
    /// The upload's id, kept as soon as the store returns it, so a later failure can abort the upload.
    id: OnceCell<Result<UploadId, Error>>,
    noted: OnceCell<()>,
    parts: Mutex<Parts>,
    /// Permits to send parts. Parts that wait on disk have none, but count as in flight.
    places: Semaphore,
    /// Notified when a part is stored or fails, and when the upload is settled.
    changed: Notify,
    given_up: watch::Sender<bool>,
    /// The upload's journal entry, from before the first part until the end.
    entry: Mutex<Option<Entry>>,
}

/// Parts that the store copies from an object.
#[derive(Clone, Debug)]
pub(super) struct Copies {
    pub(super) source: Ground,
    /// Numbers of the parts, ascending, and their ranges of the object.
    pub(super) parts: Vec<(u32, Range<u64>)>,
}

#[derive(Debug, Default)]
struct Parts {
    in_flight: usize,
    stored: Vec<PartStored>,
    /// Parts that the store copied.
    copied: Vec<UploadedPart>,
    error: Option<Error>,
    /// Whether the upload was completed or its abort has begun; neither happens again.
    ended: bool,
    /// Whether the upload was completed, or its abort has ended.
    settled: bool,
}

/// A stored part: the store's answer, and the engine's checksum.
#[derive(Clone, Debug)]
struct PartStored {
    answer: UploadedPart,
    checksum: Checksum,
}

/// A part that has ended without an error.
#[derive(Debug)]
enum Done {
    Sent(PartStored),
    Copied(UploadedPart),
}

/// A guard of a part in flight. Its drop counts the part as ended, even after a panic: the writer, the closer and the abort wait for the
/// end of all parts.
struct UnderWay<F: FnOnce(Error)> {
    multipart: Arc<Multipart>,
    result: Option<Result<Done, Error>>,
    on_error: Option<F>,
}

impl<F: FnOnce(Error)> UnderWay<F> {
    fn count(multipart: &Arc<Multipart>, on_error: F) -> Self {
        multipart.parts.lock().in_flight += 1;
        Self { multipart: Arc::clone(multipart), result: None, on_error: Some(on_error) }
    }

    fn over(mut self, result: Result<Done, Error>) {
        self.result = Some(result);
    }
}

impl<F: FnOnce(Error)> Drop for UnderWay<F> {
    fn drop(&mut self) {
        let result = match self.result.take() {
            Some(result) => result,
            None if std::thread::panicking() => {
                let key = &self.multipart.object.key;
                error!(%key, "sending a part: a panic ended it; writes and close of the file fail with EIO; please report this");
                Err(Error::Panicked)
            }
            // The runtime shuts down, and all tasks that might wait end with it.
            None => return,
        };
        let failed = {
            let mut parts = self.multipart.parts.lock();
            parts.in_flight -= 1;
            match result {
                Ok(Done::Sent(stored)) => parts.stored.push(stored),
                Ok(Done::Copied(part)) => parts.copied.push(part),
                Err(e) => _ = parts.error.get_or_insert(e),
            }
            parts.error.clone()
        };
        self.multipart.changed.notify_waiters();
        if let (Some(error), Some(on_error)) = (failed, self.on_error.take()) {
            on_error(error);
        }
    }
}

/// A guard of an abort in flight, for which the end of the mount waits. Its drop settles the upload, whatever the result.
struct Aborting(Arc<Multipart>);

impl Aborting {
    fn count(multipart: &Arc<Multipart>) -> Self {
        multipart.shared.aborting.send_modify(|count| *count += 1);
        Self(Arc::clone(multipart))
    }
}

impl Drop for Aborting {
    fn drop(&mut self) {
        self.0.parts.lock().settled = true;
        self.0.changed.notify_waiters();
        self.0.shared.aborting.send_modify(|count| *count -= 1);
    }
}

impl Multipart {
    /// An upload that sends nothing before the first part is submitted.
    pub(super) fn new(shared: Arc<Shared>, object: NewObject, copies: Option<Copies>) -> Arc<Self> {
        let places = Semaphore::new(shared.config.parts_in_flight_max);
        Arc::new(Self {
            shared,
            replaces: Mutex::new(object.replaces.clone()),
            object,
            copies,
            id: OnceCell::new(),
            noted: OnceCell::new(),
            parts: Mutex::default(),
            places,
            changed: Notify::new(),
            given_up: watch::Sender::new(false),
            entry: Mutex::default(),
        })
    }

    /// Sends a part in the background, and frees its memory when the store has answered. Calls `on_error` if that fails.
    pub(super) fn submit(self: &Arc<Self>, part: Sealed, on_error: impl FnOnce(Error) + Send + 'static) {
        let under_way = UnderWay::count(self, on_error);
        // A part in memory counts as in flight from now on; a part on disk must first reserve memory.
        let sending = matches!(part.body, SealedBody::Memory(_)).then(|| self.shared.memory.sending());
        let this = Arc::clone(self);
        self.shared.runtime.spawn(async move {
            let mut given_up = this.given_up.subscribe();
            // Outside the select, because CreateMultipartUpload must be awaited: without its answer the upload could not be aborted.
            let id = if *given_up.borrow() { Err(Error::Aborted) } else { this.id().await };
            let result = tokio::select! {
                biased;
                _ = given_up.wait_for(|yes| *yes) => Err(Error::Aborted),
                stored = Box::pin(this.send(id, part, sending)) => stored,
            };
            under_way.over(result.map(Done::Sent));
        });
    }

    /// Starts the store's copies of parts, if there are any. Calls `on_error` if one fails.
    pub(super) fn copy_parts(self: &Arc<Self>, on_error: impl FnOnce(Error) + Clone + Send + 'static) {
        let Some(copies) = &self.copies else { return };
        for (part_number, range) in copies.parts.clone() {
            let source = Arc::clone(&copies.source);
            let under_way = UnderWay::count(self, on_error.clone());
            let this = Arc::clone(self);
            self.shared.runtime.spawn(async move {
                let mut given_up = this.given_up.subscribe();
                // Outside the select for the same reason as in `submit`.
                let id = if *given_up.borrow() { Err(Error::Aborted) } else { this.id().await };
                let begun = tokio::select! {
                    biased;
                    _ = given_up.wait_for(|yes| *yes) => Err(Error::Aborted),
                    begun = async {
                        let place = this.places.acquire().await.map_err(|_| Error::Aborted)?;
                        Ok::<_, Error>((place, source.read().await))
                    } => begun,
                };
                // Never cancelled: the store goes on with a copy whose client has left, and would store the part after the abort.
                let copy = async {
                    let ((_place, base), upload) = (begun?, id?);
                    let source = base.as_ref().ok_or(Error::Aborted)?.id.clone();
                    // After a failed copy no other begins, and the upload keeps the first error.
                    if this.failed().is_some() {
                        return Err(Error::Aborted);
                    }
                    let _copying = this.shared.copying.begin();
                    let part = CopyPart { upload, part_number, source, range };
                    let copied = this.shared.client.upload_part_copy(&part).await?;
                    this.shared.copying.finished();
                    // A checksum of another algorithm is neither compared nor sent with the last request.
                    let is_ours = |sum: &Checksum| Some(sum.algorithm) == this.object.checksum;
                    Ok::<_, Error>(UploadedPart { checksum: copied.checksum.filter(is_ours), ..copied })
                };
                let result = Box::pin(copy).await;
                under_way.over(result.map(Done::Copied));
            });
        }
    }

    /// Number of parts without an answer from the store, including those that wait on disk.
    pub(super) fn in_flight(&self) -> usize {
        self.parts.lock().in_flight
    }

    /// The error of the first part that failed.
    pub(super) fn failed(&self) -> Option<Error> {
        self.parts.lock().error.clone()
    }

    /// Forgets the store's answer for a part that is about to go out again.
    pub(super) fn replace(&self, number: u32) {
        self.parts.lock().stored.retain(|part| part.answer.part_number != number);
    }

    /// The checksum of the sent parts together, in the order of their numbers; `None`: there is none.
    pub(super) fn sent(&self) -> Option<Checksum> {
        let mut stored = self.parts.lock().stored.clone();
        stored.sort_unstable_by_key(|part| part.answer.part_number);
        let sums = stored.iter().map(|part| (part.checksum, part.answer.size));
        let whole = sums.reduce(|(all, len), (next, next_len)| (all.combine(next, next_len), len + next_len));
        whole.map(|(checksum, _)| checksum)
    }

    /// Returns once the upload is aborted.
    pub(super) async fn given_up(&self) {
        // The sender is a field of `self`, so the channel is open.
        _ = self.given_up.subscribe().wait_for(|yes| *yes).await;
    }

    /// The ETag of the object made of all these parts, on stores whose ETags are MD5 sums.
    pub(super) fn etag(&self) -> Option<String> {
        let parts = self.parts.lock();
        let stored = parts.stored.iter().map(|part| &part.answer);
        let mut all: Vec<_> = stored.chain(&parts.copied).collect();
        all.sort_unstable_by_key(|part| part.part_number);
        etag_of_parts(all)
    }

    /// Returns when fewer than `most` parts are in flight.
    pub(super) async fn fewer_than(&self, most: usize) {
        self.until(|parts| parts.in_flight < most).await;
    }

    /// Waits for all parts, and completes the upload if the parts are the written file: `size` bytes, with `whole` as the checksum of the
    /// sent ones.
    ///
    /// # Errors
    /// The error of the first part that failed; `Corrupt` if parts and file differ; an error of the store. Then nothing is visible (unless
    /// the store's answer was lost), and the caller aborts.
    pub(super) async fn complete(&self, size: u64, whole: Checksum) -> Result<Stored, Error> {
        self.until(|parts| parts.in_flight == 0).await;
        let (mut stored, mut copied, error) = {
            let parts = self.parts.lock();
            (parts.stored.clone(), parts.copied.clone(), parts.error.clone())
        };
        if let Some(error) = error {
            return Err(error);
        }
        stored.sort_unstable_by_key(|part| part.answer.part_number);
        let key = &self.object.key;
        copied.sort_unstable_by_key(|part| part.part_number);
        let expected = self.copies.as_ref().map_or(&[][..], |copies| copies.parts.as_slice());
        let is_it = |(part, (number, range)): (&UploadedPart, &(u32, Range<u64>))| {
            (part.part_number, part.size) == (*number, range.end - range.start)
        };
        if copied.len() != expected.len() || !copied.iter().zip(expected).all(is_it) {
            error!(%key, "the parts that the store copied are not those of the object that was there: not completed");
            return Err(Error::Corrupt);
        }
        let added = size - copied.iter().map(|part| part.size).sum::<u64>();
        let numbers: Vec<_> = copied.iter().map(|part| part.part_number).collect();
        if let Err(difference) = review(&stored, &numbers, added, whole) {
            error!(%key, difference, "the parts in the store differ from the file that was written: not completed");
            return Err(Error::Corrupt);
        }
        let upload = self.id().await?;
        let added = stored.iter().map(|part| part.answer.clone());
        let mut parts: Vec<_> = copied.iter().cloned().chain(added).collect();
        parts.sort_unstable_by_key(|part| part.part_number);
        let replaces = self.replaces.lock().clone();
        let request = CompleteUpload { upload, parts, replaces };
        let answer = self.shared.client.complete_multipart_upload(&request).await?;
        {
            let mut parts = self.parts.lock();
            parts.ended = true;
            parts.settled = true;
        }
        self.forget();
        self.changed.notify_waiters();
        // A copied part has a checksum only if the store returned one; without it there is nothing to compare.
        let known: Option<Vec<_>> =
            copied.iter().map(|part| Some((part.part_number, part.checksum?, part.size))).collect();
        let Some(mut all) = known else { return Ok(answer) };
        all.extend(stored.iter().map(|part| (part.answer.part_number, part.checksum, part.answer.size)));
        all.sort_unstable_by_key(|(number, ..)| *number);
        let joined =
            |before: Checksum, &(_, checksum, len): &(u32, Checksum, u64)| before.combine(checksum, len);
        let whole = all.split_first().map_or(whole, |((_, first, _), rest)| rest.iter().fold(*first, joined));
        let checksums: Vec<_> = all.iter().map(|(_, checksum, _)| *checksum).collect();
        if !agrees(answer.checksum.as_deref(), self.object.checksum, whole, &checksums) {
            error!(%key, answer = answer.checksum, "the store's checksum of the whole object differs from the engine's");
            return Err(Error::Corrupt);
        }
        Ok(answer)
    }

    /// Completes the upload as [`Multipart::complete`] does, and returns the metadata of the object. Aborts the upload after an error.
    pub(super) async fn finish(self: &Arc<Self>, size: u64, whole: Checksum) -> Result<ObjectMeta, Error> {
        match self.complete(size, whole).await {
            Ok(stored) => Ok(ObjectMeta {
                size,
                etag: stored.etag,
                last_modified: stored.modified.unwrap_or_else(|| self.shared.clock.wall()),
                readable: true,
            }),
            Err(error) => {
                self.abort();
                self.settled().await;
                Err(error)
            }
        }
    }

    /// Sets the object that the completed upload may replace.
    pub(super) fn replaces(&self, replaces: Replaces) {
        *self.replaces.lock() = replaces;
    }

    /// Aborts the upload in the background, once; does nothing if it is completed.
    pub(super) fn abort(self: &Arc<Self>) {
        {
            let mut parts = self.parts.lock();
            if parts.ended {
                return;
            }
            parts.ended = true;
        }
        self.given_up.send_replace(true);
        let aborting = Aborting::count(self);
        self.shared.runtime.spawn(async move {
            let this = &aborting.0;
            // The parts end first: a part that arrives after the abort would stay in the store, invisible and paid for.
            this.until(|parts| parts.in_flight == 0).await;
            if let Some(Ok(upload)) = this.id.get() {
                this.shared.metrics.uploads_aborted.inc();
                match this.shared.client.abort_multipart_upload(upload).await {
                    Ok(()) => {
                        this.forget();
                        debug!(key = %upload.key, upload = upload.id, "upload aborted");
                    }
                    Err(error) => debug!(key = %upload.key, upload = upload.id, %error, "upload not aborted"),
                }
            }
        });
    }

    /// Returns when the upload is completed, or the abort has ended.
    pub(super) async fn settled(&self) {
        self.until(|parts| parts.settled).await;
    }

    async fn until(&self, holds: impl Fn(&Parts) -> bool) {
        loop {
            let changed = self.changed.notified();
            if holds(&self.parts.lock()) {
                return;
            }
            changed.await;
        }
    }

    async fn id(&self) -> Result<UploadId, Error> {
        let create = || async { Ok(self.shared.client.create_multipart_upload(&self.object).await?) };
        let upload = self.id.get_or_init(create).await.clone()?;
        let note = || async {
            let entry = self.shared.note(&upload).await;
            *self.entry.lock() = entry;
        };
        self.noted.get_or_init(note).await;
        Ok(upload)
    }

    /// Removes the journal entry: the store has nothing left to abort.
    fn forget(&self) {
        let entry = self.entry.lock().take();
        self.shared.forget(entry);
    }

    async fn send(
        &self,
        id: Result<UploadId, Error>,
        part: Sealed,
        sending: Option<Counted>,
    ) -> Result<PartStored, Error> {
        // A part in memory gets its permit at once, because it was started when one was free. The semaphore is never closed.
        let _place = self.places.acquire().await.map_err(|_| Error::Aborted)?;
        let (body, _sending) = match (part.body, sending) {
            (SealedBody::Memory(blocks), Some(sending)) => (blocks, sending),
            (body, _) => self.shared.load(body, part.len, part.checksum).await?,
        };
        let request = UploadPart {
            upload: id?,
            part_number: part.number,
            body: pieces(body),
            checksum: self.object.checksum.map(|_| part.checksum),
        };
        let answer = self.shared.client.upload_part(&request).await;
        drop(request);
        Ok(PartStored { answer: answer?, checksum: part.checksum })
    }
}

/// Makes the body of a request from blocks, without a copy.
pub(super) fn pieces(blocks: Vec<Block>) -> Vec<Bytes> {
    blocks.into_iter().map(Bytes::from_owner).collect()
}

/// Checks that the parts are the written file: numbered without gaps, together with the `copied` parts, and with the size and checksum of
/// the sent bytes. The error says what differs.
fn review(parts: &[PartStored], copied: &[u32], size: u64, whole: Checksum) -> Result<(), &'static str> {
    let mut numbers: Vec<_> =
        parts.iter().map(|part| part.answer.part_number).chain(copied.iter().copied()).collect();
    numbers.sort_unstable();
    if !numbers.iter().copied().eq(1..=numbers.len() as u32) {
        return Err("a part is missing or exists twice");
    }
    if parts.iter().map(|p| p.answer.size).sum::<u64>() != size {
        return Err("the sizes of the parts don't add up to the file's");
    }
    // The checksum that was sent counts; if checksums are switched off, the engine's.
    let sums = parts.iter().map(|p| (p.answer.checksum.unwrap_or(p.checksum), p.answer.size));
    let combined = sums.reduce(|(a, a_len), (b, b_len)| (a.combine(b, b_len), a_len + b_len));
    match combined {
        Some((sum, _)) if sum == whole => Ok(()),
        Some(_) => Err("the parts' checksums don't combine to the file's"),
        // The store copied all bytes.
        None if !copied.is_empty() => Ok(()),
        None => Err("no parts"),
    }
}

/// Whether the store's checksum equals the engine's, or is of another algorithm, or missing.
pub(super) fn agrees(
    answer: Option<&str>,
    algorithm: Option<ChecksumAlgorithm>,
    whole: Checksum,
    parts: &[Checksum],
) -> bool {
    let (Some(answer), Some(_)) = (answer, algorithm) else { return true };
    let ours = whole.to_base64();
    match answer.split_once('-') {
        Some((value, _)) if value.len() == ours.len() => answer == Checksum::composite(parts),
        None if answer.len() == ours.len() => answer == ours,
        // The checksum is of another algorithm: some stores choose the algorithm themselves. The store checked the one that was sent.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::ETag;

    const CRC: ChecksumAlgorithm = ChecksumAlgorithm::Crc32c;

    fn stored(part_number: u32, bytes: &[u8]) -> PartStored {
        let checksum = Checksum::of(CRC, bytes);
        let etag = ETag::new("\"e\"");
        let size = bytes.len() as u64;
        PartStored { answer: UploadedPart { part_number, etag, size, checksum: Some(checksum) }, checksum }
    }

    #[test]
    fn parts_that_are_not_the_file_are_found_out() {
        let whole = Checksum::of(CRC, b"hello world");
        let good = [stored(1, b"hello "), stored(2, b"world")];
        assert_eq!(review(&good, &[], 11, whole), Ok(()));
        let between = [stored(1, b"hello "), stored(4, b"world")];
        assert_eq!(review(&between, &[2, 3], 11, whole), Ok(()));
        assert!(
            review(&between, &[2], 11, whole).is_err() && review(&between, &[1, 2, 3], 11, whole).is_err()
        );
        for bad in [
            vec![],
            vec![stored(1, b"hello ")],
            vec![stored(1, b"hello "), stored(2, b"worl")],
            vec![stored(1, b"hello "), stored(2, b"World")],
            vec![stored(1, b"world"), stored(2, b"hello ")],
            vec![stored(1, b"hello "), stored(3, b"world")],
            vec![stored(1, b"hello "), stored(1, b"world")],
        ] {
            assert!(review(&bad, &[], 11, whole).is_err(), "{bad:?}");
        }
        let nothing = Checksum::of(CRC, b"");
        assert_eq!(review(&[], &[1, 2], 0, nothing), Ok(()), "the store copies all of it");
        assert!(review(&[], &[], 0, nothing).is_err() && review(&[], &[1], 5, nothing).is_err());
        let mut without = good;
        without.iter_mut().for_each(|p| p.answer.checksum = None);
        assert_eq!(review(&without, &[], 11, whole), Ok(()), "the review needs no checksum on the wire");
    }

    #[test]
    fn the_stores_checksum_is_compared_when_it_is_of_our_kind() {
        let parts = [Checksum::of(CRC, b"hello "), Checksum::of(CRC, b"world")];
        let whole = Checksum::of(CRC, b"hello world");
        let composite = Checksum::composite(&parts);
        let agrees = |answer: &str| agrees(Some(answer), Some(CRC), whole, &parts);
        assert!(agrees(&composite) && agrees(&whole.to_base64()));
        assert!(!agrees("AAAAAQ==") && !agrees("AAAAAQ==-2"));
        assert!(!agrees(&composite.replace("-2", "-3")));
        assert!(agrees("rosUhgoJeYg="), "64 bits: not what we sent");
        assert!(super::agrees(None, Some(CRC), whole, &parts));
    }
}
