//! A file that receives bytes. It is invisible until it is moved, and removed if it is dropped before.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::meta::Identity;

/// A temporary file in the server's hidden folder.
#[derive(Debug)]
pub(crate) struct Staged {
    file: Arc<File>,
    /// The file's path; empty after the file was moved to its final place.
    path: PathBuf,
}

impl Staged {
    pub(super) fn create(path: PathBuf) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        Ok(Self { file: Arc::new(file), path })
    }

    /// The file, for writing from other threads.
    pub(crate) fn file(&self) -> Arc<File> {
        self.file.clone()
    }

    pub(super) fn identity(&self) -> io::Result<Identity> {
        Ok(Identity::of(&self.file.metadata()?))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Notes that the file was moved, so a drop does not remove it.
    pub(super) fn moved(mut self) {
        self.path = PathBuf::new();
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            // A file that can't be removed now is removed at the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}
