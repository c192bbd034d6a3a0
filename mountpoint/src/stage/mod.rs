//! A local disk in front of the bucket (`--mode full`): files that programs change at any place, and what becomes of them.
//!
//! Enters: bytes at any offset, sizes, a key. Leaves: those bytes at once, to every reader of this mount; one whole object, sent under a
//! condition; or a file in `kept/` and its name. Only whole files are sent, and never over a version that was not seen here. This room knows
//! neither inodes nor handles nor errno.

mod error;
mod folder;
mod image;
mod log;
mod runs;
mod send;
mod staged;

use std::path::PathBuf;

pub use error::Error;
pub use send::Turn;
pub use staged::Staged;

use crate::buffer::Pool;
use crate::clock::Clock;
use crate::first::First;
use crate::object::{ObjectId, ObjectKey};
use crate::prefetch::Prefetcher;
use crate::sync::Arc;
use crate::upload::Uploader;
use folder::Folder;

/// The settings of a stage.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory (`--stage`), of this mount alone.
    pub dir: PathBuf,
    /// Bytes that files in it may have together (`--stage-size`). Doubling it takes twice the disk.
    pub size_max: u64,
    /// The bucket, for the names of kept files.
    pub bucket: String,
    /// The part of the bucket that is mounted.
    pub prefix: String,
    /// The URL of the store.
    pub endpoint: String,
}

/// The staged files of one mount. Clones are the same stage.
#[derive(Clone, Debug)]
pub struct Area(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    folder: Folder,
    uploader: Uploader,
    prefetcher: Prefetcher,
    pool: Pool,
    runtime: tokio::runtime::Handle,
}

/// The object of which a staged file begins as a copy.
#[derive(Debug)]
pub struct Base {
    /// The version of the object.
    pub id: ObjectId,
    /// The object's size in bytes.
    pub size: u64,
    /// First bytes that are here already.
    pub first: Option<First>,
}

impl Area {
    /// Takes the directory. What an earlier mount left there is moved to `kept/`, and the log has a line for each.
    ///
    /// # Errors
    /// The directory can't be used, or another mount has it.
    pub fn open(
        config: Config,
        uploader: Uploader,
        prefetcher: Prefetcher,
        pool: Pool,
        clock: Clock,
        runtime: tokio::runtime::Handle,
    ) -> anyhow::Result<Self> {
        let Config { dir, size_max, bucket, prefix, endpoint } = config;
        let boot = procfs::sys::kernel::random::boot_id().unwrap_or_default();
        let mount = log::Mount { bucket, prefix, endpoint, boot };
        let (folder, left) = Folder::open(&dir, mount, size_max, clock)?;
        for kept in left {
            let key = kept
                .key
                .as_deref()
                .map_or_else(|| "a file of unknown name".to_owned(), |key| format!("{key:?}"));
            let part = if kept.is_partial { "; only the bytes that were written are in it" } else { "" };
            tracing::error!(
                "{key} was not stored before an earlier mount ended: what was written is in {}{part}",
                kept.file.display()
            );
        }
        Ok(Self(Arc::new(Shared { folder, uploader, prefetcher, pool, runtime })))
    }

    /// A staged file that is to be stored under `key`: a new one, or one that begins as a copy of `base`.
    ///
    /// # Errors
    /// The errors of the disk.
    pub async fn create(&self, key: ObjectKey, base: Option<Base>) -> Result<Arc<Staged>, Error> {
        let shared = Arc::clone(&self.0);
        let made = self.0.runtime.spawn_blocking(move || Staged::create(shared, key, base));
        Ok(Arc::new(made.await.map_err(std::io::Error::other)??))
    }

    /// Bytes of the files in the stage.
    pub fn used(&self) -> u64 {
        self.0.folder.used()
    }
}
