//! The null file system: four files out of memory through the library `fuser`. What the kernel's FUSE and that library
//! cost by themselves; it never speaks to a server.

use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context as _;
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry, ReplyOpen, Request,
};

use crate::pattern::{PERIOD, base_of, fill};

/// Largest FUSE read in bytes.
const READ_MAX: u64 = 1 << 20;
/// How long the kernel may keep what we say about names.
const TTL: Duration = Duration::from_secs(3600);
/// Files that the null file system shows.
const FILES: u64 = 4;

/// Four files of `size` bytes, read from memory.
#[derive(Debug)]
struct NullFs {
    size: u64,
    /// The pattern, and as much of its beginning again as one read may need.
    memory: Vec<u8>,
    bases: Vec<u64>,
}

/// Serves a null file system on `dir` until it is unmounted.
///
/// # Errors
/// The mount is refused.
pub(crate) fn serve(dir: &Path, size: u64) -> anyhow::Result<()> {
    let mut memory = vec![0; (PERIOD + READ_MAX) as usize];
    fill(0, 0, &mut memory);
    let bases = (0..FILES).map(|number| base_of(&format!("{number:08}"))).collect();
    let mut config = Config::default();
    config.n_threads = Some(2);
    config.clone_fd = true;
    fuser::mount(NullFs { size, memory, bases }, dir, &config).context("mount the null file system")
}

impl NullFs {
    fn attr(&self, inode: INodeNo) -> Option<FileAttr> {
        let number = u64::from(inode);
        let (kind, size) = match number {
            1 => (FileType::Directory, 0),
            2.. if number < 2 + FILES => (FileType::RegularFile, self.size),
            _ => return None,
        };
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

impl Filesystem for NullFs {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // A refusal names the nearest value that the kernel takes, and that is what it keeps.
        let _ = config.set_max_readahead(READ_MAX as u32);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let number = name.to_str().and_then(|name| name.parse::<u64>().ok());
        match number.and_then(|number| self.attr(INodeNo(number + 2))) {
            Some(attr) => reply.entry(&TTL, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(inode) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(base) = self.bases.get(u64::from(inode).wrapping_sub(2) as usize) else {
            return reply.error(Errno::ENOENT);
        };
        let from = ((base + offset) % PERIOD) as usize;
        let len = u64::from(size).min(self.size.saturating_sub(offset)).min(READ_MAX) as usize;
        reply.data(&self.memory[from..from + len]);
    }

    fn readdir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        reply: ReplyDirectory,
    ) {
        reply.ok();
    }
}
