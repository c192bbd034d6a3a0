//! Operations on a mount while the weather changes: checked by the engine's tests, measured by the bench beside other file systems.
//!
//! Enters: a mount, the proxy before its store, and the folder where the store keeps each object as a plain file. Leaves: an [`Outcome`].
//! A scenario never fails because of the file system: errors are in its outcome. It panics if the work can't begin.

mod link;
mod outage;
mod work;

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

pub use link::{Timed, among_readers, among_writers};
pub use outage::{Outage, broken_answers, one_in_ten, outage};

use crate::proxy::Proxy;
use work::Trouble;

const MIB: u64 = 1 << 20;

/// A mounted directory and its store.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// The mount point.
    pub mount: &'a Path,
    /// The bucket as a folder: each object is a file under its key, which may be read, and written before the mount has seen it.
    pub folder: &'a Path,
    /// The proxy between the mount and its store.
    pub proxy: &'a Proxy,
    /// Fills a buffer with the bytes at an offset of the content with this number.
    pub fill: fn(content: u64, offset: u64, into: &mut [u8]),
}

impl Scene<'_> {
    /// Number of multipart uploads with a part. `s3server` keeps them beside its buckets, each part as a file named by its number.
    fn uploads_with_parts(&self) -> usize {
        let parts = |upload: &Path| fs::read_dir(upload).into_iter().flatten().flatten();
        let is_part = |name: OsString| name.to_str().is_some_and(|name| name.parse::<u32>().is_ok());
        let uploads = self.folder.with_file_name(".s3server").join("uploads");
        let uploads = fs::read_dir(uploads).into_iter().flatten().flatten();
        uploads.filter(|upload| parts(&upload.path()).any(|part| is_part(part.file_name()))).count()
    }
}

/// The results of the operations: reads of whole files, writes with `fsync`, `stat`, `ls`.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The number of operations.
    pub operations: usize,
    /// Operations that failed: the operation, its object, and the error.
    pub errors: Vec<String>,
    /// Operations that succeeded with wrong bytes, read or stored.
    pub wrong: Vec<String>,
    /// The time from the change of weather until the last operation ended.
    pub took: Duration,
}

impl Outcome {
    /// Whether no operation failed and all bytes were right.
    pub fn is_clean(&self) -> bool {
        self.errors.is_empty() && self.wrong.is_empty()
    }

    fn add(&mut self, what: &str, result: Result<(), Trouble>) {
        self.operations += 1;
        match result {
            Ok(()) => {}
            Err(Trouble::Failed(error)) => self.errors.push(format!("{what}: {error}")),
            Err(Trouble::Wrong(how)) => self.wrong.push(format!("{what}: {how}")),
        }
    }
}
