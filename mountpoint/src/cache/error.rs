//! Errors of the opening of a cache: the user must fix them before the mount starts.

use std::path::PathBuf;

/// An error of opening a cache. A running cache has no errors: a failure is a miss.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory does not exist.
    #[error("cache directory {}: does not exist; create it, or name another one", .0.display())]
    Missing(PathBuf),
    /// The path names something else than a directory.
    #[error("cache directory {}: is not a directory", .0.display())]
    NotADirectory(PathBuf),
    /// This process may not write, or the file system is read-only or full.
    #[error("cache directory {}: can't be written: {source}; check its owner, its mode and the file system", .dir.display())]
    NotWritable {
        /// The cache directory.
        dir: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Another process uses the directory.
    #[error(
        "cache directory {}: in use by {}; give each mount its own directory, or unmount the other first",
        .dir.display(),
        .pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
    )]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// The other process, if the lock file names it.
        pid: Option<u32>,
    },
    /// A link or another user's folder has the name of the cache's folder.
    #[error("cache folder {}: {why}; remove it, or name another cache directory", .path.display())]
    NotOurs {
        /// The folder.
        path: PathBuf,
        /// The problem with the folder.
        why: &'static str,
    },
    /// Any other error of the system.
    #[error("cache directory {}: {what}: {source}", .dir.display())]
    Io {
        /// The directory.
        dir: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}
