//! The engine's requests to a bucket, and the client that sends them; also the requests about buckets as a whole, for the CSI driver.
//!
//! Enters: one of the plain requests below. Leaves: a plain answer with every field checked, or an [`Error`] with a kind that says
//! what to do next. Retries, signatures, connections and differences between stores stay in this room. It never
//! looks at a path, a handle or a cache.

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

/// The source of the credentials of this profile, or of the one in the environment, as far as it matters to a sandbox (`broker/`).
pub(crate) async fn source_of_keys(profile: Option<&str>) -> SourceOfKeys {
    auth::printed::source(profile).await
}

/// Result of a request.
pub type Result<T> = std::result::Result<T, Error>;

/// A boxed future: one allocation per request to the store, never per read.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A bucket, seen through the operations a file system needs.
///
/// Every implementation passes the exam in `testing::exam`. Each call repeats failures that may pass, within its own deadline; an error is
/// final for this call.
pub trait ObjectClient: Debug + Send + Sync + 'static {
    /// Bytes moved to and from the store so far, if the client counts them: while the number grows, the store is at work.
    fn moved(&self) -> u64 {
        0
    }

    /// The checksum of all bytes of this version, if a recent answer to this client had it.
    fn checksum(&self, _id: &ObjectId) -> Option<Checksum> {
        None
    }

    /// The limits of parts, as far as the client knows them. Each new file asks for them.
    fn part_limits(&self) -> PartLimits {
        PartLimits::default()
    }

    /// The metadata of one object. `NotFound` if it does not exist.
    fn head_object<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<ObjectMeta>>;

    /// One page of a listing, in the store's order.
    fn list_objects<'a>(&'a self, request: &'a ListObjects) -> BoxFuture<'a, Result<ListPage>>;

    /// Receives a range of one object version into `into`, which has room for exactly that range.
    ///
    /// On success `into` is full. The ETag, the date, the Content-Range and the length of every answer are checked: bytes
    /// of another version never reach `into` (`Changed` is the error). A body that breaks off or stalls is
    /// asked for again from the first missing byte. On an error `into` holds the verified bytes that came.
    fn get_object<'a>(&'a self, request: &'a GetObject, into: &'a mut Fill) -> BoxFuture<'a, Result<()>>;

    /// The metadata of an object and as many of its first bytes as `room` holds, in one GET. The bytes belong to the version in the
    /// metadata; with `etag`, both belong to that version, or the error is `Changed`. If the store refuses the GET for a reason that a
    /// HEAD may not share (no bytes, an archive tier), or breaks the body off, the answer has only the metadata.
    fn get_first<'a>(&'a self, request: &'a GetFirst, room: BlockMut) -> BoxFuture<'a, Result<First>>;

    /// Stores an object in one request. The store is sent the checksum and refuses other bytes.
    fn put_object<'a>(&'a self, request: &'a PutObject) -> BoxFuture<'a, Result<Stored>>;

    /// Starts a multipart upload.
    fn create_multipart_upload<'a>(&'a self, request: &'a NewObject) -> BoxFuture<'a, Result<UploadId>>;

    /// Sends one part; the store is sent its checksum and refuses other bytes.
    fn upload_part<'a>(&'a self, request: &'a UploadPart) -> BoxFuture<'a, Result<UploadedPart>>;

    /// Makes the object of its parts. An error after which the object may be there all the same has kind `Unknown`;
    /// the client has then already looked (HEAD) and could not tell.
    fn complete_multipart_upload<'a>(&'a self, request: &'a CompleteUpload) -> BoxFuture<'a, Result<Stored>>;

    /// Aborts an upload and frees its parts. An upload that is gone already is a success.
    fn abort_multipart_upload<'a>(&'a self, upload: &'a UploadId) -> BoxFuture<'a, Result<()>>;

    /// Uploads that were started under this prefix and neither completed nor aborted.
    fn list_multipart_uploads<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<PendingUpload>>>;

    /// Removes an object. A missing object is a success.
    fn delete_object<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<()>>;

    /// Removes an object if it is this version. A missing object is a success; another version stays, and is `Changed`.
    fn delete_version<'a>(&'a self, _id: &'a ObjectId) -> BoxFuture<'a, Result<()>> {
        unsupported("DeleteObject")
    }

    /// All facts of a HEAD about an object. `BadAnswer` if it has metadata that can't be kept unchanged.
    fn describe_object<'a>(&'a self, _key: &'a ObjectKey) -> BoxFuture<'a, Result<Described>> {
        unsupported("HeadObject")
    }

    /// The tags of an object.
    fn object_tags<'a>(&'a self, _key: &'a ObjectKey) -> BoxFuture<'a, Result<Tags>> {
        unsupported("GetObjectTagging")
    }

    /// Makes the store copy an object of at most 5 GiB by itself. `NotFound`, `Changed`: the source is gone, or another version.
    /// `Exists`: the object under the new key may not be replaced. `Unknown`: the copy may exist, and the client has looked without a
    /// result.
    fn copy_object<'a>(&'a self, _request: &'a CopyObject) -> BoxFuture<'a, Result<Stored>> {
        unsupported("CopyObject")
    }

    /// The store copies a range of an object into a part. `NotFound`, `Changed`: the source is gone, or another version, or the upload is
    /// gone.
    fn upload_part_copy<'a>(&'a self, _request: &'a CopyPart) -> BoxFuture<'a, Result<UploadedPart>> {
        unsupported("UploadPartCopy")
    }
}

fn unsupported<'a, T: Send + 'a>(operation: &'static str) -> BoxFuture<'a, Result<T>> {
    let error = Error::new(ErrorKind::Unsupported, operation).message("this client has no such request");
    Box::pin(std::future::ready(Err(error)))
}

/// A listing to ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListObjects {
    /// The prefix of the keys to list.
    pub prefix: String,
    /// Roll keys up at the next `/` behind the prefix into `common_prefixes`.
    pub delimited: bool,
    /// The most entries of a page (1 to 1000).
    pub max_keys: u16,
    /// The key after which the listing begins (first page only).
    pub start_after: Option<String>,
    /// The token with which the page before ended.
    pub continuation_token: Option<String>,
}

/// One page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// Objects, in the store's order.
    pub objects: Vec<ListedObject>,
    /// Prefixes that keys were rolled up to, each with its `/`.
    pub common_prefixes: Vec<String>,
    /// The token for the next page; `None` on the last one.
    pub next_token: Option<String>,
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

/// The first bytes to ask for, of whichever version there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetFirst {
    /// The object's key.
    pub key: ObjectKey,
    /// The version to read, `None` for any: sent as If-Match and compared with the answer's ETag.
    pub etag: Option<ETag>,
    /// The place of the bytes to read.
    pub begin: Begin,
    /// The object is believed to fit the room as a whole: no range is named, because most stores give no checksum for a range.
    pub is_whole: bool,
    /// A look-up asks, which needs no bytes: where the store fails for the moment, or is silent, a HEAD follows.
    pub is_lookup: bool,
}

/// The place of the bytes that [`GetFirst`] asks for: as many as there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// The bytes from this offset on.
    At(u64),
    /// The last bytes of the object, whose size is unknown.
    Tail,
}

/// The answer to [`GetFirst`].
#[derive(Clone, Debug)]
pub struct First {
    /// The object's metadata.
    pub meta: ObjectMeta,
    /// The object's bytes, and the offset of the first of them.
    pub bytes: Option<(u64, Block)>,
}

/// The key and the properties of a new object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewObject {
    /// The new object's key.
    pub key: ObjectKey,
    /// Headers, metadata, tags, class.
    pub properties: Properties,
    /// The object that may be replaced.
    pub replaces: Replaces,
    /// The checksum its parts will carry; `None` when switched off.
    pub checksum: Option<crate::checksum::ChecksumAlgorithm>,
}

impl NewObject {
    /// An object without properties that replaces any object under the key.
    pub fn new(key: impl Into<ObjectKey>) -> Self {
        let (properties, replaces) = (Properties::default(), Replaces::Anything);
        Self { key: key.into(), properties, replaces, checksum: None }
    }
}

/// A copy that the store makes by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyObject {
    /// The version to copy: sent as a condition.
    pub source: ObjectId,
    /// The size in bytes.
    pub size: u64,
    /// The checksum of the source, if it is known: it identifies a copy whose answer is lost.
    pub checksum: Option<String>,
    /// The key of the copy.
    pub to: ObjectKey,
    /// The object that may be replaced.
    pub replaces: Replaces,
    /// The properties of the copy; `None` for the source's own.
    pub properties: Option<Properties>,
    /// The storage class of the copy, which a store does not take from the source. `None` for the store's default.
    pub storage_class: Option<String>,
}

/// A part that the store copies by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyPart {
    /// The upload that takes the part.
    pub upload: UploadId,
    /// 1 to 10,000.
    pub part_number: u32,
    /// The version to copy: sent as a condition.
    pub source: ObjectId,
    /// The bytes to copy; not empty, within the object, at most 5 GiB.
    pub range: Range<u64>,
}

/// An object in one request.
#[derive(Clone, Debug)]
pub struct PutObject {
    /// The new object's key and properties.
    pub object: NewObject,
    /// The object's bytes, in pieces.
    pub body: Vec<Bytes>,
    /// The checksum of all bytes.
    pub checksum: Option<Checksum>,
}

/// Names an upload in progress.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UploadId {
    /// The key of the object that the upload becomes.
    pub key: ObjectKey,
    /// The store's name for the upload.
    pub id: String,
}

/// An upload found in the bucket.
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
    /// 1 to 10,000.
    pub part_number: u32,
    /// The part's bytes, in pieces.
    pub body: Vec<Bytes>,
    /// The checksum of all bytes.
    pub checksum: Option<Checksum>,
}

/// One stored part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadedPart {
    /// 1 to 10,000.
    pub part_number: u32,
    /// Version mark of the part.
    pub etag: ETag,
    /// Bytes.
    pub size: u64,
    /// The checksum that went with the part.
    pub checksum: Option<Checksum>,
}

/// The parts that make an object, in order.
#[derive(Clone, Debug)]
pub struct CompleteUpload {
    /// The upload to complete.
    pub upload: UploadId,
    /// All parts of the object, by ascending number.
    pub parts: Vec<UploadedPart>,
    /// The object that may be replaced.
    pub replaces: Replaces,
}

/// An object that was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The object's new version mark.
    pub etag: ETag,
    /// The checksum in the store's answer and spelling, if it had one: of the bytes after a single PUT, possibly a composite (`value-N`)
    /// for a multipart object.
    pub checksum: Option<String>,
    /// The time of the object by the store, or else the time of the answer; in whole seconds, which may differ by one.
    pub modified: Option<SystemTime>,
}
