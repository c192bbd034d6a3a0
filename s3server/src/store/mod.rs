//! The folder: buckets, objects and uploads as files.
//!
//! Enters: keys, staged files with their metadata, conditions. Leaves: open files with their metadata, pages of listings, or
//! an [`Error`]. All calls block on the file system. Never here: HTTP, XML.
//!
//! ```text
//! ROOT/BUCKET/...                    objects whose key is a safe path, as ordinary files
//! ROOT/.s3server/escaped/BUCKET/...  objects with other keys, or whose path was taken
//! ROOT/.s3server/journal/BUCKET      metadata, one line per version
//! ROOT/.s3server/tags/BUCKET         tags of a bucket, as JSON
//! ROOT/.s3server/uploads/ID/         multipart uploads under way
//! ROOT/.s3server/staged/             files being received
//! ROOT/.s3server/lock                held by the running server
//! ```

mod bucket;
mod entry;
mod error;
mod folders;
mod journal;
pub(crate) mod keys;
pub(crate) mod list;
pub(crate) mod meta;
mod staged;
mod upload;
mod walk;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

pub(crate) use bucket::{Bucket, Condition};
pub(crate) use entry::Entry;
use error::absent_is_fine;
pub(crate) use error::{Error, Result};
pub(crate) use staged::Staged;
pub(crate) use upload::{NewUpload, Upload, Wanted, append};

/// Longest path of the root, in bytes: escaped names have up to 3 KiB, and Linux accepts paths of 4 KiB.
const ROOT_PATH_MAX: usize = 512;

/// A folder that is served.
#[derive(Debug)]
pub(crate) struct Store {
    root: PathBuf,
    hidden: PathBuf,
    buckets: RwLock<BTreeMap<String, Arc<Bucket>>>,
    uploads: Mutex<BTreeMap<String, Arc<Upload>>>,
    marks: Marks,
    _lock: Lock,
}

/// The lock of the folder while this value lives.
#[derive(Debug)]
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // The lock is released by a call, not by closing the file: a child process of this one has the file open, too, until it
        // executes.
        let _ = rustix::fs::flock(&self.0, rustix::fs::FlockOperation::Unlock);
    }
}

impl Store {
    /// Opens a folder, or creates it if it is missing, and reads all its buckets. Fails if another server uses the folder.
    pub(crate) fn open(root: &Path) -> anyhow::Result<Self> {
        use anyhow::Context as _;
        fs::create_dir_all(root).with_context(|| format!("can't make the folder {}", root.display()))?;
        let root = root.canonicalize().with_context(|| format!("can't open {}", root.display()))?;
        anyhow::ensure!(
            root.as_os_str().len() <= ROOT_PATH_MAX,
            "the path {} is longer than {ROOT_PATH_MAX} bytes: escaped names would not fit below it",
            root.display()
        );
        let hidden = root.join(".s3server");
        for folder in ["", "escaped", "journal", "tags", "uploads", "staged"] {
            let path = hidden.join(folder);
            fs::create_dir_all(&path).with_context(|| format!("can't make the folder {}", path.display()))?;
        }
        let lock = File::create(hidden.join("lock"))
            .with_context(|| format!("can't write below {}", hidden.display()))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .with_context(|| format!("another server is using {}", root.display()))?;
        for left in fs::read_dir(hidden.join("staged"))? {
            fs::remove_file(left?.path())?;
        }
        let store = Self {
            buckets: RwLock::new(BTreeMap::new()),
            uploads: Mutex::new(BTreeMap::new()),
            marks: Marks::new().context("can't read random bytes")?,
            hidden,
            root,
            _lock: Lock(lock),
        };
        store.load().map_err(|e| anyhow::anyhow!("can't read {}: {e:?}", store.root.display()))?;
        Ok(store)
    }

    fn load(&self) -> Result<()> {
        let reading = || Error::io("read the folder");
        for found in fs::read_dir(&self.root).map_err(reading())? {
            let found = found.map_err(reading())?;
            if let Ok(name) = found.file_name().into_string()
                && s3s::path::check_bucket_name(&name)
                && found.file_type().map_err(reading())?.is_dir()
            {
                self.adopt(&name)?;
            }
        }
        let uploads =
            Upload::load_all(&self.hidden.join("uploads")).map_err(Error::io("read the uploads"))?;
        *self.uploads.lock().unwrap_or_else(PoisonError::into_inner) = uploads;
        Ok(())
    }

    fn adopt(&self, name: &str) -> Result<Arc<Bucket>> {
        // The lock is held to the end: a bucket that two threads open at once would have two journals.
        let mut buckets = self.buckets.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = buckets.get(name) {
            return Ok(bucket.clone());
        }
        let escaped = self.hidden.join("escaped").join(name);
        fs::create_dir_all(&escaped).map_err(Error::io("make the folder of escaped names"))?;
        let journal = self.hidden.join("journal").join(name);
        let bucket = Arc::new(Bucket::open(self.root.join(name), escaped, &journal)?);
        buckets.insert(name.to_owned(), bucket.clone());
        Ok(bucket)
    }

    /// A bucket by name. A folder that was created by hand becomes a bucket at its first request.
    pub(crate) fn bucket(&self, name: &str) -> Result<Arc<Bucket>> {
        if let Some(bucket) = self.buckets.read().unwrap_or_else(PoisonError::into_inner).get(name) {
            return Ok(bucket.clone());
        }
        let is_folder = fs::symlink_metadata(self.root.join(name)).is_ok_and(|stat| stat.is_dir());
        if is_folder && s3s::path::check_bucket_name(name) {
            self.adopt(name)
        } else {
            Err(Error::NoSuchBucket)
        }
    }

    /// All buckets, by name.
    pub(crate) fn buckets(&self) -> Vec<(String, Arc<Bucket>)> {
        let buckets = self.buckets.read().unwrap_or_else(PoisonError::into_inner);
        buckets.iter().map(|(name, bucket)| (name.clone(), bucket.clone())).collect()
    }

    /// Creates a bucket.
    pub(crate) fn create_bucket(&self, name: &str) -> Result<()> {
        match fs::create_dir(self.root.join(name)) {
            Ok(()) => self.adopt(name).map(drop),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(Error::BucketExists),
            Err(e) => Err(Error::io("make the bucket's folder")(e)),
        }
    }

    /// Removes an empty bucket.
    pub(crate) fn delete_bucket(&self, name: &str) -> Result<()> {
        self.bucket(name)?.remove()?;
        self.buckets.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        let journal = self.hidden.join("journal").join(name);
        absent_is_fine(fs::remove_file(journal)).map_err(Error::io("remove the journal"))?;
        absent_is_fine(fs::remove_file(self.tags_path(name))).map_err(Error::io("remove the tags"))?;
        for upload in self.uploads_of(name) {
            self.forget_upload(&upload)?;
        }
        Ok(())
    }

    fn tags_path(&self, bucket: &str) -> PathBuf {
        self.hidden.join("tags").join(bucket)
    }

    /// The tags of a bucket, in their original order; `None` if it has no tags.
    pub(crate) fn tags(&self, bucket: &str) -> Result<Option<Vec<(String, String)>>> {
        self.bucket(bucket)?;
        let reading = || Error::io("read the tags");
        match fs::read(self.tags_path(bucket)) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|e| reading()(io::Error::from(e))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(reading()(e)),
        }
    }

    /// Replaces the tags of a bucket; `None` removes them.
    pub(crate) fn set_tags(&self, bucket: &str, tags: Option<Vec<(String, String)>>) -> Result<()> {
        self.bucket(bucket)?;
        let writing = || Error::io("write the tags");
        let path = self.tags_path(bucket);
        let Some(tags) = tags else {
            return absent_is_fine(fs::remove_file(path)).map_err(writing());
        };
        let text = serde_json::to_vec(&tags).map_err(|e| writing()(io::Error::from(e)))?;
        // The file is renamed into place, so a reader finds either the old tags or the new ones.
        let fresh = self.hidden.join("staged").join(self.marks.next());
        fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, path)).map_err(writing())
    }

    /// A new temporary file for received bytes.
    pub(crate) fn stage(&self) -> Result<Staged> {
        let path = self.hidden.join("staged").join(self.marks.next());
        Staged::create(path).map_err(Error::io("make a temporary file"))
    }

    /// A new ETag, which no other version has. Like the ETag of a multipart upload, it ends in `-1`: clients do not take it for an MD5 of
    /// the bytes.
    pub(crate) fn new_etag(&self) -> String {
        format!("{}-1", self.marks.next())
    }

    /// A new ETag for an object with several parts.
    pub(crate) fn new_etag_of_parts(&self, parts: usize) -> String {
        format!("{}-{parts}", self.marks.next())
    }

    /// Starts an upload into a bucket.
    pub(crate) fn create_upload(&self, new: NewUpload) -> Result<Arc<Upload>> {
        let id = self.marks.next();
        let upload = Upload::create(self.hidden.join("uploads").join(&id), id, new)
            .map_err(Error::io("make the upload's folder"))?;
        let upload = Arc::new(upload);
        let mut uploads = self.uploads.lock().unwrap_or_else(PoisonError::into_inner);
        uploads.insert(upload.id().to_owned(), upload.clone());
        Ok(upload)
    }

    /// The upload in progress with this bucket, key and id.
    pub(crate) fn upload(&self, bucket: &str, key: &str, id: &str) -> Result<Arc<Upload>> {
        let uploads = self.uploads.lock().unwrap_or_else(PoisonError::into_inner);
        let found = uploads.get(id).filter(|u| u.bucket() == bucket && u.key() == key);
        found.cloned().ok_or(Error::NoSuchUpload)
    }

    /// The uploads in progress of a bucket, by key and then by start.
    pub(crate) fn uploads_of(&self, bucket: &str) -> Vec<Arc<Upload>> {
        let uploads = self.uploads.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<_> = uploads.values().filter(|u| u.bucket() == bucket).cloned().collect();
        drop(uploads);
        found.sort_by(|a, b| (a.key(), a.initiated(), a.id()).cmp(&(b.key(), b.initiated(), b.id())));
        found
    }

    /// Ends an upload and removes its parts.
    pub(crate) fn forget_upload(&self, upload: &Upload) -> Result<()> {
        let mut uploads = self.uploads.lock().unwrap_or_else(PoisonError::into_inner);
        let known = uploads.remove(upload.id());
        drop(uploads);
        known.ok_or(Error::NoSuchUpload)?.remove().map_err(Error::io("remove the upload's folder"))
    }
}

/// Unique names: a count, followed by a random number of this server's start.
#[derive(Debug)]
struct Marks {
    random: [u8; 8],
    count: AtomicU64,
}

impl Marks {
    fn new() -> io::Result<Self> {
        use std::io::Read as _;
        let mut bytes = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let [random, count] = [0, 8].map(|at| std::array::from_fn(|i| bytes[at + i]));
        Ok(Self { random, count: AtomicU64::new(u64::from_le_bytes(count)) })
    }

    fn next(&self) -> String {
        // Multiplication by an odd factor permutes the numbers: successive ones differ in more than the last digit.
        let count = self.count.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        format!("{}{}", crate::sums::hex(&count.to_be_bytes()), crate::sums::hex(&self.random))
    }
}

#[cfg(test)]
mod tests;
