//! GetObject and HeadObject.

use std::fs::File;
use std::future::Future as _;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};
use tokio::task::JoinHandle;

use super::object::{ReadConditions, checksum, etag};
use super::sse::echo;
use super::{Answer, Folder, error};
use crate::fault::Effect;
use crate::store::Entry;
use crate::wire::Exchange;

/// Bytes of one read from a file. Two buffers of this size fit into the second-level cache, so the last one is still there when the
/// kernel copies it into the socket.
const PIECE: usize = 256 << 10;
/// Most buffers that are kept for later reads; further ones are freed.
const POOLED_MAX: usize = 64;

impl Folder {
    pub(super) fn get_object_(&self, req: S3Request<GetObjectInput>) -> Answer<GetObjectOutput> {
        let struck = |effect: &Effect| req.extensions.get::<Exchange>().is_some_and(|e| e.has(effect));
        let (ignore_if_match, ignore_range) = (struck(&Effect::IgnoreIfMatch), struck(&Effect::IgnoreRange));
        let refuse_if_match = struck(&Effect::RefuseIfMatch);
        let input = req.input;
        if refuse_if_match && input.if_match.is_some() {
            return Err(S3Error::new(S3ErrorCode::PreconditionFailed));
        }
        let bucket = self.store.bucket(&input.bucket).map_err(error::to_s3)?;
        let (file, entry) = bucket.read(&input.key).map_err(|e| self.policy.of_read(error::to_s3(e)))?;
        let conditions = ReadConditions {
            if_match: input.if_match.filter(|_| !ignore_if_match),
            if_none_match: input.if_none_match,
            if_modified_since: input.if_modified_since,
            if_unmodified_since: input.if_unmodified_since,
        };
        conditions.check(&entry)?;
        if let Some("GLACIER" | "DEEP_ARCHIVE") = entry.meta.storage_class.as_deref() {
            return Err(S3Error::new(S3ErrorCode::InvalidObjectState));
        }
        let range = input.range.filter(|_| !ignore_range);
        let part = select(&entry, range, input.part_number)?;
        let size = part.range.end - part.range.start;
        let body = FileBody::new(file, part.range.clone(), self.pool.clone());
        let meta = &entry.meta;
        let kept = |name: &str| meta.headers.get(name).cloned();
        let sums = part.checksum(&entry, input.checksum_mode.is_some());
        let (server_side_encryption, ssekms_key_id) = echo(meta.sse.as_ref());
        Ok(S3Response::new(GetObjectOutput {
            accept_ranges: Some("bytes".into()),
            body: Some(StreamingBlob::from(s3s::Body::http_body(body))),
            cache_control: kept("cache-control"),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            checksum_type: sums.checksum_type,
            content_disposition: kept("content-disposition"),
            content_encoding: kept("content-encoding"),
            content_language: kept("content-language"),
            content_length: Some(size as i64),
            content_range: part.content_range,
            content_type: Some(kept("content-type").unwrap_or_else(|| "binary/octet-stream".into())),
            e_tag: Some(etag(&meta.etag)),
            expires: expires(&entry),
            last_modified: Some(entry.modified().into()),
            metadata: user_metadata(&entry),
            parts_count: part.count,
            server_side_encryption,
            ssekms_key_id,
            storage_class: meta.storage_class.clone().map(StorageClass::from),
            ..GetObjectOutput::default()
        }))
    }

    pub(super) fn head_object_(&self, input: HeadObjectInput) -> Answer<HeadObjectOutput> {
        let bucket = self.store.bucket(&input.bucket).map_err(error::to_s3)?;
        let entry = bucket.head(&input.key).map_err(|e| self.policy.of_read(error::to_s3(e)))?;
        let conditions = ReadConditions {
            if_match: input.if_match,
            if_none_match: input.if_none_match,
            if_modified_since: input.if_modified_since,
            if_unmodified_since: input.if_unmodified_since,
        };
        conditions.check(&entry)?;
        let part = select(&entry, input.range, input.part_number)?;
        let meta = &entry.meta;
        let kept = |name: &str| meta.headers.get(name).cloned();
        let sums = part.checksum(&entry, input.checksum_mode.is_some());
        let (server_side_encryption, ssekms_key_id) = echo(meta.sse.as_ref());
        let status = match part.content_range {
            Some(_) => http::StatusCode::PARTIAL_CONTENT,
            None => http::StatusCode::OK,
        };
        let output = HeadObjectOutput {
            accept_ranges: Some("bytes".into()),
            cache_control: kept("cache-control"),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            checksum_type: sums.checksum_type,
            content_disposition: kept("content-disposition"),
            content_encoding: kept("content-encoding"),
            content_language: kept("content-language"),
            content_length: Some((part.range.end - part.range.start) as i64),
            content_range: part.content_range,
            content_type: Some(kept("content-type").unwrap_or_else(|| "binary/octet-stream".into())),
            e_tag: Some(etag(&meta.etag)),
            expires: expires(&entry),
            last_modified: Some(entry.modified().into()),
            metadata: user_metadata(&entry),
            parts_count: part.count,
            server_side_encryption,
            ssekms_key_id,
            storage_class: meta.storage_class.clone().map(StorageClass::from),
            ..HeadObjectOutput::default()
        };
        let mut response = S3Response::with_status(output, status);
        if !meta.tags.is_empty() {
            response.headers.insert("x-amz-tagging-count", meta.tags.len().into());
        }
        Ok(response)
    }
}

fn expires(entry: &Entry) -> Option<Timestamp> {
    let text = entry.meta.headers.get("expires")?;
    Timestamp::parse(TimestampFormat::HttpDate, text).ok()
}

fn user_metadata(entry: &Entry) -> Option<Metadata> {
    let user = &entry.meta.user;
    (!user.is_empty()).then(|| user.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// The part of the object that is sent.
struct Selected {
    range: std::ops::Range<u64>,
    content_range: Option<String>,
    count: Option<i32>,
}

impl Selected {
    /// The checksum for the answer, if the request asks for one. S3 sends it with a range only if the range is the whole object, and
    /// then without the number of parts of a composite.
    fn checksum(&self, entry: &Entry, asked: bool) -> s3s::dto::Checksum {
        let is_whole = self.range == (0..entry.size()) && self.count.is_none();
        let mut sums = checksum(entry.meta.sum.as_ref().filter(|_| asked && is_whole));
        if self.content_range.is_some() {
            let fields = [
                &mut sums.checksum_crc32,
                &mut sums.checksum_crc32c,
                &mut sums.checksum_sha1,
                &mut sums.checksum_sha256,
            ];
            for field in fields.into_iter().flatten() {
                if let Some((value, _)) = field.split_once('-') {
                    *field = value.to_owned();
                }
            }
        }
        sums
    }
}

fn select(entry: &Entry, range: Option<s3s::dto::Range>, part: Option<i32>) -> S3Result<Selected> {
    let size = entry.size();
    let partial = |range: Range<u64>, count| Selected {
        content_range: Some(format!("bytes {}-{}/{size}", range.start, range.end.max(1) - 1)),
        range,
        count,
    };
    match (range, part) {
        (Some(_), Some(_)) => Err(error::invalid("Range and partNumber exclude each other.")),
        (None, None) => Ok(Selected { range: 0..size, content_range: None, count: None }),
        (Some(range), None) => match range.check(size) {
            Ok(range) if range.start < range.end => Ok(partial(range, None)),
            _ => {
                let mut error = S3Error::new(S3ErrorCode::InvalidRange);
                let mut headers = http::HeaderMap::new();
                if let Ok(value) = http::HeaderValue::from_str(&format!("bytes */{size}")) {
                    headers.insert(http::header::CONTENT_RANGE, value);
                }
                error.set_headers(headers);
                Err(error)
            }
        },
        (None, Some(number)) => {
            let parts = &entry.meta.parts;
            if parts.is_empty() && number == 1 {
                return Ok(if size == 0 {
                    Selected { range: 0..0, content_range: None, count: None }
                } else {
                    partial(0..size, None)
                });
            }
            let index = usize::try_from(number).ok().and_then(|n| n.checked_sub(1));
            let Some((index, &length)) = index.and_then(|i| parts.get(i).map(|length| (i, length))) else {
                let mut error = S3Error::new(S3ErrorCode::InvalidPart);
                error.set_status_code(http::StatusCode::RANGE_NOT_SATISFIABLE);
                return Err(error);
            };
            let start: u64 = parts[..index].iter().sum();
            Ok(partial(start..start + length, i32::try_from(parts.len()).ok()))
        }
    }
}

/// Buffers that are reused for reads.
#[derive(Default)]
pub(super) struct Pool(Mutex<Vec<Vec<u8>>>);

impl Pool {
    fn take(self: &Arc<Self>) -> Buffer {
        let free = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Buffer { bytes: free.unwrap_or_else(|| vec![0; PIECE]), filled: 0, pool: self.clone() }
    }
}

/// A buffer of the pool. It returns to the pool when the last of its `Bytes` is dropped.
struct Buffer {
    bytes: Vec<u8>,
    filled: usize,
    pool: Arc<Pool>,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut free = self.pool.0.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < POOLED_MAX {
            free.push(std::mem::take(&mut self.bytes));
        }
    }
}

/// A range of a file as a body. Bytes in the page cache are read at once, others on a blocking thread.
struct FileBody {
    file: Arc<File>,
    left: Range<u64>,
    pool: Arc<Pool>,
    reading: Option<JoinHandle<io::Result<Buffer>>>,
}

impl FileBody {
    fn new(file: File, range: Range<u64>, pool: Arc<Pool>) -> Self {
        Self { file: Arc::new(file), left: range, pool, reading: None }
    }

    fn next_piece(&self) -> usize {
        usize::try_from(self.left.end - self.left.start).map_or(PIECE, |left| left.min(PIECE))
    }

    /// Reads the next piece from the page cache without waiting; `None` if it is not there.
    fn read_cached(&self, buffer: &mut Buffer, piece: usize) -> Option<()> {
        let into = &mut [IoSliceMut::new(&mut buffer.bytes[..piece])];
        let flags = rustix::io::ReadWriteFlags::NOWAIT;
        let read = rustix::io::preadv2(&*self.file, into, self.left.start, flags).ok()?;
        buffer.filled = read;
        (read > 0).then_some(())
    }
}

impl http_body::Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = &mut *self;
        if this.left.is_empty() {
            return Poll::Ready(None);
        }
        let buffer = match &mut this.reading {
            Some(reading) => {
                let read = ready!(Pin::new(reading).poll(cx));
                this.reading = None;
                read.map_err(io::Error::other).flatten()?
            }
            None => {
                let (mut buffer, piece) = (this.pool.take(), this.next_piece());
                if this.read_cached(&mut buffer, piece).is_none() {
                    let (file, at) = (this.file.clone(), this.left.start);
                    let reading = this.reading.insert(tokio::task::spawn_blocking(move || {
                        file.read_exact_at(&mut buffer.bytes[..piece], at)?;
                        buffer.filled = piece;
                        Ok(buffer)
                    }));
                    let read = ready!(Pin::new(reading).poll(cx));
                    this.reading = None;
                    read.map_err(io::Error::other).flatten()?
                } else {
                    buffer
                }
            }
        };
        this.left.start += buffer.filled as u64;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(buffer)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.end - self.left.start)
    }
}
