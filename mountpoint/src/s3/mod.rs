//! The engine's requests to a bucket, and the client that sends them. Also requests about whole buckets, for the CSI driver.
//!
//! Enters: a plain request of a type below. Leaves: a plain answer with every field checked, or an [`Error`] with a kind that says what to
//! do next. Retries, signatures, connections and differences between stores stay in this room. It never looks at a path, a handle or a
//! cache.

mod abilities;
mod admin;
mod answer;
mod attempts;
mod auth;
mod client;
mod config;
mod courier;
mod date;
mod endpoint;
mod error;
mod failure;
#[cfg(feature = "testing")]
pub mod fuzzing;
mod hedge;
mod kind;
mod oddities;
mod ops;
mod outage;
mod probe;
mod replaces;
mod retry;
mod sums;
mod url;
mod wire;
mod xml;

use std::fmt::Debug;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::time::SystemTime;

use bytes::Bytes;

pub use admin::{Bucket, Store};
pub(crate) use auth::arn::check as check_arn;
pub(crate) use auth::printed::SourceOfKeys;
pub use aws_credential_types::Credentials;
pub use client::S3Client;
pub use config::{Config, Timeouts};
pub use courier::Courier;
pub use error::{Error, ErrorKind};
pub use kind::{PartLimits, StoreKind};
pub use ops::bucket::{Created, Deleted};
pub(crate) use ops::complete::etag_of_parts;
pub use ops::properties::{Described, Properties};
pub use ops::tagging::Tagging;
pub use probe::{ProbeAnswer, ProbeRequest, Signed};
pub use replaces::Replaces;
pub use url::without_password;
pub use xml::{Tags, Version, VersionMarkers, VersionPage};

use crate::buffer::{Block, BlockMut, Fill};
use crate::checksum::Checksum;
use crate::object::{ETag, ObjectId, ObjectKey, ObjectMeta};

/// The source of the credentials of this profile, or of the one in the environment, as far as a sandbox must know it (`broker/`).
pub(crate) async fn source_of_keys(profile: Option<&str>) -> SourceOfKeys {
    auth::printed::source(profile).await
}

/// Result of a request.
pub type Result<T> = std::result::Result<T, Error>;

/// A boxed future: one allocation per request to the store, never per read of a program.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A client of one bucket, with the operations that a file system needs.
///
/// Every implementation passes the exam in `testing::exam`. Each call retries transient failures within its own time limit; its error is
/// final.
pub trait ObjectClient: Debug + Send + Sync + 'static {
    /// Bytes moved to and from the store so far, if the client counts them. While the number grows, the store is working.
    fn moved(&self) -> u64 {
        0
    }

    /// The checksum of all bytes of this version of `size` bytes, if a recent answer to this client contained it.
    fn checksum(&self, _id: &ObjectId, _size: u64) -> Option<Checksum> {
        None
    }

    /// The limits on parts, as far as the client knows them. The upload of each new file takes them from here.
    fn part_limits(&self) -> PartLimits {
        PartLimits::default()
    }

    /// The metadata of one object. `NotFound` if it does not exist.
    fn head_object<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<ObjectMeta>>;

    /// One page of a listing, in the store's order.
    fn list_objects<'a>(&'a self, request: &'a ListObjects) -> BoxFuture<'a, Result<ListPage>>;

    /// Receives a range of one object version into `into`, whose room is exactly that range.
    ///
    /// Fills `into` on success. ETag, date, Content-Range and length of every answer are checked: bytes of another version never reach
    /// `into` (the error is `Changed`). If a body breaks off or stalls, the rest is requested again from the first missing byte. After an
    /// error `into` has the verified bytes that came.
    fn get_object<'a>(&'a self, request: &'a GetObject, into: &'a mut Fill) -> BoxFuture<'a, Result<()>>;

    /// The metadata of an object, and as many of its bytes as `room` holds, in one GET. The bytes belong to the version in the metadata;
    /// with `etag`, both belong to that version, or the error is `Changed`. If the store refuses the GET for a reason that may not concern
    /// a HEAD (no bytes, an archive tier), or breaks the body off, the answer has only the metadata.
    fn get_first<'a>(&'a self, request: &'a GetFirst, room: BlockMut) -> BoxFuture<'a, Result<First>>;

    /// Stores an object in one request. The store gets the checksum, and refuses bytes that do not match it.
    fn put_object<'a>(&'a self, request: &'a PutObject) -> BoxFuture<'a, Result<Stored>>;

    /// Starts a multipart upload.
    fn create_multipart_upload<'a>(&'a self, request: &'a NewObject) -> BoxFuture<'a, Result<UploadId>>;

    /// Sends one part. The store gets its checksum, and refuses bytes that do not match it.
    fn upload_part<'a>(&'a self, request: &'a UploadPart) -> BoxFuture<'a, Result<UploadedPart>>;

    /// Makes the object from its parts. The error `Unknown` means that the object may exist: the client has checked with a HEAD, without a
    /// clear result.
    fn complete_multipart_upload<'a>(&'a self, request: &'a CompleteUpload) -> BoxFuture<'a, Result<Stored>>;

    /// Aborts an upload and frees its parts. A missing upload is a success.
    fn abort_multipart_upload<'a>(&'a self, upload: &'a UploadId) -> BoxFuture<'a, Result<()>>;

    /// Lists uploads of keys with this prefix that were neither completed nor aborted.
    fn list_multipart_uploads<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<PendingUpload>>>;

    /// Deletes an object. A missing object is a success.
    fn delete_object<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<()>>;

    /// Deletes an object if it is this version. A missing object is a success; another version stays, with the error `Changed`.
    fn delete_version<'a>(&'a self, _id: &'a ObjectId) -> BoxFuture<'a, Result<()>> {
        unsupported("DeleteObject")
    }

    /// All metadata that a HEAD returns about an object. `BadAnswer` if it has metadata that can't be kept unchanged.
    fn describe_object<'a>(&'a self, _key: &'a ObjectKey) -> BoxFuture<'a, Result<Described>> {
        unsupported("HeadObject")
    }

    /// The tags of an object.
    fn object_tags<'a>(&'a self, _key: &'a ObjectKey) -> BoxFuture<'a, Result<Tags>> {
        unsupported("GetObjectTagging")
    }

    /// Makes the store copy an object of at most 5 GiB. `NotFound`, `Changed`: the source does not exist, or is another version. `Exists`:
    /// the object under the new key must not be replaced. `Unknown`: the copy may exist; the client has checked without a clear result.
    fn copy_object<'a>(&'a self, _request: &'a CopyObject) -> BoxFuture<'a, Result<Stored>> {
        unsupported("CopyObject")
    }

    /// Makes the store copy a range of an object into a part. `NotFound`, `Changed`: the source does not exist, or is another version, or
    /// the upload does not exist.
    fn upload_part_copy<'a>(&'a self, _request: &'a CopyPart) -> BoxFuture<'a, Result<UploadedPart>> {
        unsupported("UploadPartCopy")
    }
}

fn unsupported<'a, T: Send + 'a>(operation: &'static str) -> BoxFuture<'a, Result<T>> {
    let error = Error::new(ErrorKind::Unsupported, operation).message("this client has no such request");
    Box::pin(std::future::ready(Err(error)))
}

/// The request for one page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListObjects {
    /// Prefix of the keys to list.
    pub prefix: String,
    /// Group keys by the next `/` behind the prefix into `common_prefixes`.
    pub delimited: bool,
    /// Most entries of a page (1 to 1000).
    pub max_keys: u16,
    /// Key after which the listing begins (first page only).
    pub start_after: Option<String>,
    /// Token from the end of the previous page.
    pub continuation_token: Option<String>,
}

/// One page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// Objects, in the store's order.
    pub objects: Vec<ListedObject>,
    /// Prefixes in place of the grouped keys, each with its `/`.
    pub common_prefixes: Vec<String>,
    /// The token for the next page; `None` on the last one.
    pub next_token: Option<String>,
    /// Whether the store listed entries that can't be read. Such a page proves no name absent.
    pub has_left_out: bool,
}

/// One object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedObject {
    /// The object's key, decoded.
    pub key: ObjectKey,
    /// The object's metadata in the listing.
    pub meta: ObjectMeta,
    /// The storage class; `None` for STANDARD, or if the store does not report it.
    pub storage_class: Option<String>,
}

/// A range of one object version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetObject {
    /// The version to read: sent as If-Match, and compared with the answer's ETag and date.
    pub id: ObjectId,
    /// The bytes to read; not empty, within the object.
    pub range: Range<u64>,
    /// The object's whole size, compared with the answer's.
    pub object_size: u64,
}

/// A request for the first, middle or last bytes of an object, of a given version or of any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetFirst {
    /// The object's key.
    pub key: ObjectKey,
    /// The version to read, `None` for any: sent as If-Match and compared with the answer's ETag.
    pub etag: Option<ETag>,
    /// The position of the bytes to read.
    pub begin: Begin,
    /// Whether the object is expected to fit the room as a whole. Then the request has no range, because most stores give no checksum for a
    /// range.
    pub is_whole: bool,
    /// Whether the request is for a lookup, which needs no bytes: if the store fails for the moment, or is silent, a HEAD follows.
    pub is_lookup: bool,
}

/// The position of the bytes that [`GetFirst`] requests: as many as there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// The bytes from this offset on.
    At(u64),
    /// The last bytes of an object of unknown size.
    Tail,
}

/// The answer to [`GetFirst`].
#[derive(Clone, Debug)]
pub struct First {
    /// The object's metadata.
    pub meta: ObjectMeta,
    /// Bytes of the object, with the offset of the first of them; `None` if the answer has only the metadata.
    pub bytes: Option<(u64, Block)>,
}

/// The key and the properties of a new object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewObject {
    /// The new object's key.
    pub key: ObjectKey,
    /// Headers, metadata, tags and storage class.
    pub properties: Properties,
    /// The object that may be replaced.
    pub replaces: Replaces,
    /// The checksum algorithm of its parts; `None` if checksums are switched off.
    pub checksum: Option<crate::checksum::ChecksumAlgorithm>,
}

impl NewObject {
    /// An object without properties that replaces any object under the key.
    pub fn new(key: impl Into<ObjectKey>) -> Self {
        let (properties, replaces) = (Properties::default(), Replaces::Anything);
        Self { key: key.into(), properties, replaces, checksum: None }
    }
}

/// A copy of a whole object, made by the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyObject {
    /// The version to copy: sent as a condition.
    pub source: ObjectId,
    /// Size of the source in bytes.
    pub size: u64,
    /// Checksum of the source, if it is known. It identifies the copy if the answer is lost.
    pub checksum: Option<String>,
    /// The key of the copy.
    pub to: ObjectKey,
    /// The object that may be replaced.
    pub replaces: Replaces,
    /// The properties of the copy; `None` for the source's own.
    pub properties: Option<Properties>,
    /// The storage class of the copy, which stores do not take from the source. `None` for the store's default.
    pub storage_class: Option<String>,
}

/// A part that the store copies from an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyPart {
    /// The upload that takes the part.
    pub upload: UploadId,
    /// Number of the part, 1 to 10,000.
    pub part_number: u32,
    /// The version to copy: sent as a condition.
    pub source: ObjectId,
    /// The bytes to copy; not empty, within the object, at most 5 GiB.
    pub range: Range<u64>,
}

/// An object that is stored in one request.
#[derive(Clone, Debug)]
pub struct PutObject {
    /// The new object's key and properties.
    pub object: NewObject,
    /// The object's bytes, in pieces.
    pub body: Vec<Bytes>,
    /// The checksum of all bytes.
    pub checksum: Option<Checksum>,
}

/// The identity of a multipart upload: its key, and the store's id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UploadId {
    /// Key of the object that the upload makes.
    pub key: ObjectKey,
    /// The store's id of the upload.
    pub id: String,
}

/// An unfinished multipart upload, found in the bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingUpload {
    /// The upload's key and id.
    pub upload: UploadId,
    /// The start of the upload, by the store's clock.
    pub initiated: SystemTime,
}

/// One part to send.
#[derive(Clone, Debug)]
pub struct UploadPart {
    /// The upload of the part.
    pub upload: UploadId,
    /// Number of the part, 1 to 10,000.
    pub part_number: u32,
    /// The part's bytes, in pieces.
    pub body: Vec<Bytes>,
    /// The checksum of all bytes.
    pub checksum: Option<Checksum>,
}

/// One stored part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadedPart {
    /// Number of the part, 1 to 10,000.
    pub part_number: u32,
    /// The ETag of the part.
    pub etag: ETag,
    /// Size in bytes.
    pub size: u64,
    /// The checksum that was sent with the part.
    pub checksum: Option<Checksum>,
}

/// The request to make an object from its parts.
#[derive(Clone, Debug)]
pub struct CompleteUpload {
    /// The upload to complete.
    pub upload: UploadId,
    /// All parts of the object, by ascending number.
    pub parts: Vec<UploadedPart>,
    /// The object that may be replaced.
    pub replaces: Replaces,
}

/// The result of storing an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The ETag of the new object.
    pub etag: ETag,
    /// The checksum in the store's answer and spelling, if it had one. For a multipart object it may be a composite (`value-N`), otherwise
    /// it covers all bytes.
    pub checksum: Option<String>,
    /// Time of the object by the store, or of the answer if the store names none; in whole seconds, which may differ by one.
    pub modified: Option<SystemTime>,
}
