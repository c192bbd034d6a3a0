//! The null file system through the library `fuser`.

use std::ffi::OsStr;
use std::path::Path;
use std::time::UNIX_EPOCH;

use ::fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry, ReplyOpen, Request,
};
use anyhow::Context as _;

use super::{Files, MEMORY, READ_MAX, TTL};
use crate::pattern::fill;

#[derive(Debug)]
struct NullFs {
    files: Files,
    memory: Vec<u8>,
}

pub(super) fn serve(dir: &Path, size: u64) -> anyhow::Result<()> {
    let mut memory = vec![0; MEMORY as usize];
    fill(0, 0, &mut memory);
    let mut config = Config::default();
    config.n_threads = Some(2);
    config.clone_fd = true;
    let fs = NullFs { files: Files::new(size), memory };
    ::fuser::mount(fs, dir, &config).context("mount the null file system")
}

impl NullFs {
    fn attr(&self, inode: INodeNo) -> Option<FileAttr> {
        let (kind, size) = match self.files.size(inode.into()) {
            Some(size) => (FileType::RegularFile, size),
            None if inode == INodeNo::ROOT => (FileType::Directory, 0),
            None => return None,
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
        // A refusal does not matter: the kernel then uses the nearest value that it accepts.
        let _ = config.set_max_readahead(READ_MAX as u32);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.files.inode(name).and_then(|inode| self.attr(INodeNo(inode))) {
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
        match self.files.span(inode.into(), offset, size.into()) {
            Some(span) => reply.data(&self.memory[span]),
            None => reply.error(Errno::ENOENT),
        }
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
