//! POSIX file operations on inodes and handles, by means of names, reads and uploads.
//!
//! Enters: an operation with inode and handle numbers. Leaves: attributes, entries, bytes, or an errno with a sentence.
//! Each operation that memory can answer has a `try_` form that never waits; the other form is async. This room knows POSIX, but
//! neither the bytes of FUSE nor HTTP.

mod append;
mod attr;
mod directories;
mod ending;
mod error;
mod fallocate;
mod file;
mod follow;
mod full;
mod handle;
mod io_mode;
mod kept;
mod listed;
mod mapping;
mod markers;
mod namespace;
mod old_name;
mod outliving;
mod pause;
mod process;
mod read_mode;
mod readers;
mod rename;
mod short;
mod writer;
mod xattr;

pub use attr::{Attr, Attributes, Entry, Maker, Ownership};
pub use error::{Error, Result};
pub use fallocate::Fallocate;
pub use file::{OpenFlags, Opened, Opening, Tried, unsynced};
pub use full::Unsynced;
pub use handle::HandleNo;
pub use kept::Keeping;
pub use namespace::{DirItem, SetAttr, StatFs};

pub use crate::inode::TimeWish;
pub use writer::{MountEnd, Released};

use std::sync::OnceLock;

use tokio::sync::Notify;

use crate::broker;
use crate::clock::Clock;
use crate::inode::InodeTable;
use crate::moves::Mover;
use crate::object::ObjectKey;
use crate::outlive::Journal;
use crate::prefetch::Prefetcher;
use crate::sync::Arc;
use crate::upload::{Stage, Uploader};
use handle::{DirHandle, FileHandle, HandleTable};
pub use io_mode::Backings;
use io_mode::IoModes;
use old_name::OldNames;
use pause::Pauses;
pub use process::{DeviceNo, holds_for};
pub use read_mode::ReadMode;
use read_mode::ReadModes;
pub use rename::RenameErrno;

/// The permissions and attributes of a mount.
#[derive(Clone, Debug)]
pub struct Config {
    /// Owner and modes.
    pub ownership: Ownership,
    /// Whether the mount is read-only.
    pub read_only: bool,
    /// Whether files may be deleted (`--allow-delete`).
    pub allow_delete: bool,
    /// Whether files may be replaced (`--allow-overwrite`).
    pub allow_overwrite: bool,
    /// Whether files may be appended to (`--allow-append`).
    pub allow_append: bool,
    /// The answer to a rename on a mount without `--allow-rename`.
    pub rename_errno: RenameErrno,
    /// Whether a new directory is stored at once, by a marker (`--directory-markers`).
    pub directory_markers: bool,
    /// The answer to attribute changes of stored files.
    pub attributes: Attributes,
    /// Whether reads go through the kernel's page cache.
    pub read_mode: ReadMode,
}

/// A mounted bucket. These files have its operations:
///
/// | file | operations |
/// |---|---|
/// | `file.rs` | open, create, read |
/// | `writer.rs` | write, flush, fsync, release, and the end of the mount |
/// | `namespace.rs` | lookup, attributes, mknod, mkdir, rmdir, unlink, listings, statfs |
/// | `rename.rs`, `follow.rs` | rename; files that are being written |
/// | `pause.rs` | the wait of changes and opens below a directory for its rename |
/// | `kept.rs` | attributes that objects keep, symbolic links |
/// | `xattr.rs` | extended attributes |
/// | `markers.rs` | markers of directories |
/// | `append.rs` | open of a stored file to append to it |
/// | `fallocate.rs` | fallocate |
/// | `mapping.rs` | changed pages of a mapping: refused |
/// | `readers.rs` | open for writing of a file with readers |
/// | `outliving.rs` | handles of a mount that outlives its engine |
/// | `listed.rs`, `short.rs` | reads of a file whose listing names another version or size |
/// | `full/` | all of these for files in the stage (`--mode full`) |
#[derive(Debug)]
pub struct FileSystem {
    inodes: InodeTable,
    prefetcher: Prefetcher,
    uploader: Uploader,
    /// Renames files; present with `--allow-rename`.
    mover: Option<Mover>,
    pauses: Pauses,
    old_names: OldNames,
    /// The files in the stage; present with `--mode full`.
    full: Option<full::Full>,
    /// Keeps attributes, or shows facts of the store; present with `--keep-metadata` or `--xattrs`.
    kept: Option<Keeping>,
    files: HandleTable<FileHandle>,
    dirs: HandleTable<DirHandle>,
    /// The journal of facts for a later engine, if the mount may outlive this one.
    journal: Option<Arc<Journal>>,
    /// Whether the engine or the kernel reads each open file.
    io_modes: IoModes,
    read_modes: ReadModes,
    resized: listed::Resized,
    /// Notified by each release of a handle for reading.
    reader_left: Notify,
    /// The mount of this file system, once it is known.
    mount: OnceLock<process::OwnMount>,
    clock: Clock,
    config: Config,
}

/// Counts of open files; see [`FileSystem::open_files`].
#[derive(Debug, Default)]
pub struct OpenFiles {
    /// Number of files that are open for reading.
    pub reading: u64,
    /// Files that are being written.
    pub writing: Vec<Writing>,
}

/// A file that is being written.
#[derive(Debug)]
pub struct Writing {
    /// Key of the object that the file becomes.
    pub key: ObjectKey,
    /// Bytes of the file so far.
    pub bytes: u64,
    /// The stage of the upload.
    pub stage: Stage,
}

impl FileSystem {
    /// Creates a file system of these parts. `clock` limits the duration of the mount's end.
    pub fn new(
        inodes: InodeTable,
        prefetcher: Prefetcher,
        uploader: Uploader,
        config: Config,
        clock: Clock,
    ) -> Self {
        Self {
            inodes,
            prefetcher,
            uploader,
            mover: None,
            pauses: Pauses::default(),
            old_names: OldNames::default(),
            full: None,
            kept: None,
            files: HandleTable::default(),
            dirs: HandleTable::default(),
            journal: None,
            io_modes: IoModes::default(),
            read_modes: ReadModes::new(config.read_mode),
            resized: listed::Resized::default(),
            reader_left: Notify::new(),
            mount: OnceLock::new(),
            clock,
            config,
        }
    }

    /// The file system with a mover, by which names may change.
    pub fn renaming(self, mover: Mover) -> Self {
        Self { mover: Some(mover), ..self }
    }

    /// Number of files and directories that are open or being stored, and a number that grows with each open.
    pub fn handles(&self) -> (usize, u64) {
        let (files, dirs) = (self.files.count(), self.dirs.count());
        (files.0 + dirs.0, files.1 + dirs.1)
    }

    /// The files that are open now.
    pub fn open_files(&self) -> OpenFiles {
        let mut open = OpenFiles::default();
        for file in self.files.all() {
            match &file.mode {
                handle::Mode::Read(_) => open.reading += 1,
                handle::Mode::Staged(_) => open.reading += 1,
                handle::Mode::Write(writer) => {
                    let (key, upload) = (writer.upload.key(), &writer.upload);
                    open.writing.push(Writing { key, bytes: upload.size(), stage: upload.stage() });
                }
            }
        }
        for staged in self.full.iter().flat_map(full::Full::pending) {
            let (key, bytes) = (staged.key(), staged.size());
            open.writing.push(Writing { key, bytes, stage: Stage::NEW });
        }
        open
    }

    /// Allows the kernel itself to read files of the disk cache or, with `--mode full`, to write those of the stage. Call this before the
    /// first open.
    pub fn allow_passthrough(&self, backings: Backings) {
        match &self.full {
            None => self.io_modes.allow_passthrough(backings),
            // A sandboxed engine may not take a lease.
            Some(full) if full.syncs_writes() && broker::of_this_process().is_none() => {
                self.io_modes.allow_writes(backings);
            }
            Some(_) => tracing::debug!("the engine writes the files of the stage, not the kernel by itself"),
        }
    }

    /// Sets the number that the kernel gave this file system.
    pub fn mounted_as(&self, device: DeviceNo) {
        let _ = self.mount.set(process::OwnMount::of(device));
    }
}

#[cfg(test)]
pub(crate) mod tests;
