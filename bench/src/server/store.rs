//! The content of the buckets: names and sizes, never bytes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, RwLock};

use anyhow::{Context as _, bail};

use crate::pattern::{base_of, hash, stir};

/// The time of every object in headers. It never changes, so two runs list the same bytes.
pub(crate) const LAST_MODIFIED_HTTP: &str = "Thu, 01 Jan 2026 00:00:00 GMT";
/// The time of every object, in the form of listings.
pub(crate) const LAST_MODIFIED_ISO: &str = "2026-01-01T00:00:00.000Z";
/// Most objects that one call may create; more are refused.
const FILL_MAX: u64 = 10_000_000;

/// An object; its bytes are the pattern from `base` on.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) size: u64,
    /// The object's offset in the pattern, in bytes.
    pub(crate) base: u64,
    /// A number that each write changes, for a new ETag.
    generation: u64,
    /// Headers that are stored with the object and returned: content type and `x-amz-meta-*`.
    pub(crate) headers: Headers,
}

/// Name and value pairs, names in lower case.
pub(crate) type Headers = Vec<(String, String)>;

impl Object {
    pub(crate) fn new(key: &str, size: u64, generation: u64) -> Self {
        Self { size, base: base_of(key), generation, headers: Vec::new() }
    }

    /// The ETag without its quotes. It ends in `-1` like that of a multipart upload, so clients do not take it for an MD5.
    pub(crate) fn etag(&self) -> String {
        format!("{:016x}{:016x}-1", stir(self.base ^ self.size), stir(self.generation))
    }
}

/// The form of the names in a filled bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `00000042`
    Counter,
    /// `9ae16a3b2f90404f`
    Hex,
    /// `2026/03/17/00000042`
    Dates,
    /// `012/034/00000042`: ten files per folder, ten folders per folder
    Tree,
    /// `012/03/00000042`: 25 files per folder, twenty folders per folder
    Folders,
    /// All names in one folder, eight levels down
    Deep,
    /// `00000042/file`: one file per folder
    Singles,
}

impl std::str::FromStr for Shape {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        Ok(match text {
            "counter" => Self::Counter,
            "hex" => Self::Hex,
            "dates" => Self::Dates,
            "tree" => Self::Tree,
            "folders" => Self::Folders,
            "deep" => Self::Deep,
            "singles" => Self::Singles,
            other => bail!("no such shape: {other} (counter, hex, dates, tree, folders, deep)"),
        })
    }
}

impl Shape {
    /// The shape's name in a control request.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Hex => "hex",
            Self::Dates => "dates",
            Self::Tree => "tree",
            Self::Folders => "folders",
            Self::Deep => "deep",
            Self::Singles => "singles",
        }
    }

    /// Name of the object with this number, relative to the prefix.
    pub(crate) fn name(self, number: u64) -> String {
        match self {
            Self::Counter => format!("{number:08}"),
            Self::Hex => format!("{:016x}", stir(number)),
            Self::Dates => {
                let day = number / 100;
                format!("{}/{:02}/{:02}/{number:08}", 2020 + day / 336, day / 28 % 12 + 1, day % 28 + 1)
            }
            Self::Tree => format!("{:03}/{:03}/{number:08}", number / 100, number / 10 % 10),
            Self::Folders => format!("{:03}/{:02}/{number:08}", number / 500, number / 25 % 20),
            Self::Deep => format!("eight/folders/down/one/after/the/other/lies/{number:08}"),
            Self::Singles => format!("{number:08}/file"),
        }
    }
}

/// A multipart upload.
#[derive(Debug)]
struct Upload {
    bucket: String,
    key: String,
    headers: Headers,
    parts: BTreeMap<u32, u64>,
}

/// All buckets, and the uploads in progress.
#[derive(Debug, Default)]
pub(crate) struct Store {
    buckets: RwLock<HashMap<String, BTreeMap<String, Object>>>,
    uploads: Mutex<Uploads>,
    /// Objects that were removed since the last reset, by bucket and key: number of removals, and bytes.
    removed: Mutex<BTreeMap<(String, String), (u64, u64)>>,
}

#[derive(Debug, Default)]
struct Uploads {
    made: u64,
    open: HashMap<String, Upload>,
}

fn poisoned<T>(result: std::sync::LockResult<T>) -> T {
    result.unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Store {
    /// Calls `look` with the objects of a bucket; `None` if the bucket does not exist.
    pub(crate) fn with<T>(
        &self,
        bucket: &str,
        look: impl FnOnce(&BTreeMap<String, Object>) -> T,
    ) -> Option<T> {
        poisoned(self.buckets.read()).get(bucket).map(look)
    }

    /// Calls `change` with the objects of a bucket; `None` if the bucket does not exist.
    pub(crate) fn with_mut<T>(
        &self,
        bucket: &str,
        change: impl FnOnce(&mut BTreeMap<String, Object>) -> T,
    ) -> Option<T> {
        poisoned(self.buckets.write()).get_mut(bucket).map(change)
    }

    /// Creates the bucket if it is missing, and `count` objects of `size` bytes in it.
    ///
    /// # Errors
    /// `count` exceeds the limit.
    pub(crate) fn fill(
        &self,
        bucket: &str,
        prefix: &str,
        shape: Shape,
        count: u64,
        size: u64,
    ) -> anyhow::Result<()> {
        anyhow::ensure!(count <= FILL_MAX, "at most {FILL_MAX} objects a call, not {count}");
        let mut buckets = poisoned(self.buckets.write());
        let objects = buckets.entry(bucket.to_owned()).or_default();
        for number in 0..count {
            let key = format!("{prefix}{}", shape.name(number));
            let object = Object::new(&key, size, 0);
            objects.insert(key, object);
        }
        Ok(())
    }

    /// Stores an object with its headers. Returns the new ETag; `None` if the bucket does not exist.
    pub(crate) fn put(
        &self,
        bucket: &str,
        key: &str,
        size: u64,
        base: Option<u64>,
        headers: Headers,
    ) -> Option<String> {
        self.with_mut(bucket, |objects| {
            let generation = objects.get(key).map_or(1, |old| old.generation + 1);
            let mut object = Object::new(key, size, generation);
            object.base = base.unwrap_or(object.base);
            object.headers = headers;
            let etag = object.etag();
            objects.insert(key.to_owned(), object);
            etag
        })
    }

    /// Removes an object if it exists, and records its size.
    pub(crate) fn remove(&self, bucket: &str, key: &str) {
        if let Some(object) = self.with_mut(bucket, |objects| objects.remove(key)).flatten() {
            let mut removed = poisoned(self.removed.lock());
            let (times, bytes) = removed.entry((bucket.to_owned(), key.to_owned())).or_default();
            *times += 1;
            *bytes += object.size;
        }
    }

    /// Forgets the removed objects.
    pub(crate) fn forget_removed(&self) {
        poisoned(self.removed.lock()).clear();
    }

    /// Number of the objects below a prefix, and their bytes.
    pub(crate) fn count(&self, bucket: &str, prefix: &str) -> Option<(u64, u64)> {
        self.with(bucket, |objects| {
            let below = objects.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
            below.fold((0, 0), |sum, (_, object)| (sum.0 + 1, sum.1 + object.size))
        })
    }

    /// Number and bytes of the objects that were removed since the last reset.
    pub(crate) fn count_removed(&self, bucket: &str, prefix: &str) -> (u64, u64) {
        let removed = poisoned(self.removed.lock());
        let below = removed.range((bucket.to_owned(), prefix.to_owned())..);
        let below = below.take_while(|((of, key), _)| of == bucket && key.starts_with(prefix));
        below.fold((0, 0), |sum, (_, (times, bytes))| (sum.0 + times, sum.1 + bytes))
    }

    /// Begins an upload. Returns its id.
    pub(crate) fn begin(&self, bucket: &str, key: &str, headers: Headers) -> String {
        let mut uploads = poisoned(self.uploads.lock());
        uploads.made += 1;
        let id = format!("{:016x}", stir(uploads.made ^ hash(key.as_bytes())));
        let upload =
            Upload { bucket: bucket.to_owned(), key: key.to_owned(), headers, parts: BTreeMap::new() };
        uploads.open.insert(id.clone(), upload);
        id
    }

    /// Records a part; `false` if the upload does not exist.
    pub(crate) fn part(&self, id: &str, number: u32, size: u64) -> bool {
        let mut uploads = poisoned(self.uploads.lock());
        let upload = uploads.open.get_mut(id);
        upload.map(|upload| upload.parts.insert(number, size)).is_some()
    }

    /// Completes an upload with the parts in `numbers`. Returns the new ETag.
    ///
    /// # Errors
    /// The upload does not exist, or a part was never uploaded.
    pub(crate) fn complete(&self, id: &str, numbers: &[u32]) -> anyhow::Result<String> {
        let mut uploads = poisoned(self.uploads.lock());
        let upload = uploads.open.get(id).context("NoSuchUpload")?;
        let mut size = 0;
        for number in numbers {
            size += upload.parts.get(number).context("InvalidPart")?;
        }
        let upload = uploads.open.remove(id).context("NoSuchUpload")?;
        self.put(&upload.bucket, &upload.key, size, None, upload.headers).context("NoSuchBucket")
    }

    /// Removes an upload; false if it does not exist.
    pub(crate) fn abort(&self, id: &str) -> bool {
        poisoned(self.uploads.lock()).open.remove(id).is_some()
    }

    /// Number of uploads in progress.
    pub(crate) fn open_uploads(&self) -> usize {
        poisoned(self.uploads.lock()).open.len()
    }
}
