//! A kernel that agreed to requests by a ring, and then refuses the ring, on a real mount.

use std::ffi::OsStr;
use std::time::SystemTime;

use super::super::super::device::FuseDevice;
use super::super::super::mounted::unmount_directory;
use super::super::super::serve::{greet, serve};
use super::super::super::{MountOptions, Transport};
use super::*;
use crate::fs::{Attr, DirItem, Entry, Error, HandleNo, OpenFlags, Opened, Result, StatFs};
use crate::inode::{InodeNo, Kind, ROOT};
use crate::prefetch::Bytes;
use crate::testing::log_of;

/// A file system with only a root.
#[derive(Clone)]
pub(in super::super::super) struct Empty;

fn absent<T>() -> Result<T> {
    Err(Error::new(Errno::NOENT, "there is nothing"))
}

impl Operations for Empty {
    fn lookup(&self, _: InodeNo, _: &OsStr, done: impl FnOnce(Result<Entry>) + Send + 'static) {
        done(absent());
    }
    fn forget(&self, _: InodeNo, _: u64) {}
    fn getattr(&self, ino: InodeNo, done: impl FnOnce(Result<Attr>) + Send + 'static) {
        let (accessed, modified) = (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH);
        let valid_for = std::time::Duration::ZERO;
        let kind = Kind::Directory;
        let root =
            Attr { ino, kind, size: 0, accessed, modified, mode: 0o755, links: 1, uid: 0, gid: 0, valid_for };
        done(if ino == ROOT { Ok(root) } else { absent() });
    }
    fn open(&self, _: InodeNo, _: OpenFlags, _: u32, done: impl FnOnce(Result<Opened>) + Send + 'static) {
        done(absent());
    }
    fn read(&self, _: HandleNo, _: u64, _: usize, done: impl FnOnce(Result<Bytes>) + Send + 'static) {
        done(absent());
    }
    fn flush(&self, _: HandleNo, _: u32, done: impl FnOnce(Result<()>) + Send + 'static) {
        done(Ok(()));
    }
    fn fsync(&self, _: HandleNo, done: impl FnOnce(Result<()>) + Send + 'static) {
        done(Ok(()));
    }
    fn nobody_waits(&self, _: HandleNo, _: &'static str) {}
    fn take_back(&self, _: HandleNo, _: Option<InodeNo>) {}
    fn release(&self, _: HandleNo, done: impl FnOnce(Result<()>) + Send + 'static) {
        done(Ok(()));
    }
    fn opendir(&self, _: InodeNo, done: impl FnOnce(Result<HandleNo>) + Send + 'static) {
        done(absent());
    }
    fn readdir(
        &self,
        _: HandleNo,
        _: u64,
        _: usize,
        done: impl FnOnce(Result<Vec<DirItem>>) + Send + 'static,
    ) {
        done(absent());
    }
    fn remember(&self, _: HandleNo, items: &[DirItem]) -> Vec<Option<Entry>> {
        vec![None; items.len()]
    }
    fn releasedir(&self, _: HandleNo) {}
    fn statfs(&self) -> StatFs {
        StatFs { blocks: 0, block_size: 4096, files: 0, name_max: 255 }
    }
}

/// The log of a mount whose rings have payloads of `payload` bytes. The mount must answer.
fn mounted_with(payload: usize) -> String {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let options = MountOptions { transport: Transport::IoUring, ..MountOptions::default() };
    let device = FuseDevice::mount(dir.path(), &options).unwrap();
    let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
    let shape = entries::Shape { entries: 4, payload };
    let rings = |_, _: BorrowedFd<'_>| Rings::prepare_shaped(queues(&possible).unwrap(), shape).ok();
    log_of(|| {
        let greeted =
            greet(device, Empty, &options, rings, Arc::default(), runtime.handle().clone(), None).unwrap();
        let serving = serve(greeted, 2).unwrap();
        assert!(std::fs::metadata(dir.path()).unwrap().is_dir());
        unmount_directory(dir.path(), None, false).unwrap();
        for thread in serving {
            thread.join().unwrap().unwrap();
        }
    })
}

#[test]
fn a_ring_refused_after_the_greeting_leaves_a_mount_by_dev_fuse() {
    let fuse = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    if !testkit::need("/dev/fuse", fuse.is_ok()) || !testkit::need_fuse_over_io_uring() {
        return;
    }
    let log = mounted_with(4096);
    assert!(log.contains("no FUSE over io_uring (the kernel refused its memory"), "{log}");
    let log = mounted_with(shape(1, rustix::param::page_size()).unwrap().payload);
    assert!(!log.contains("no FUSE over io_uring"), "{log}");
}
