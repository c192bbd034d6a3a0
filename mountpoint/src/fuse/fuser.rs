//! The operations behind the trait of the crate `fuser`: one method each, which converts arguments and results.

use std::ffi::OsStr;
use std::io;
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use ::fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, MountOption, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, SessionACL, SessionUnmounter, TimeOrNow, WriteFlags,
};

use super::capability::{self, CAPABILITIES, MAPPED_DIRECT};
use super::device::{AfterFailedRead, after_failed_read};
use super::mounted::{device_behind, device_of};
use super::operations::Operations;
use super::options::{Device, MountOptions};
use super::pages::Pages;
use super::reply::{file_attr, file_type, fopen_flags, open_flags, refusal};
use super::{BACKGROUND_MAX, CONGESTED_AT, TRANSFER_MAX};
use crate::fs::{
    Attr, DeviceNo, DirItem, Entry, Fallocate, HandleNo, Maker, Opened, Result, SetAttr, TimeWish, unsynced,
};
use crate::inode::InodeNo;
use crate::metrics::Metrics;
use crate::sync::Arc;

/// Number of directory entries that are prepared for one reply, because `fuser` does not say how many fit.
const DIR_BATCH: usize = 512;
/// The generation of all inodes. One suffices, because inode numbers are never used twice.
const GENERATION: Generation = Generation(0);

/// A session of `fuser`.
pub(super) struct Started {
    pub(super) serving: JoinHandle<io::Result<()>>,
    /// The unmounter of a mount that this engine made.
    pub(super) unmounter: Option<SessionUnmounter>,
    /// The file system's number from the kernel, if it is known.
    pub(super) number: Option<DeviceNo>,
}

/// Mounts or adopts a device by `fuser`, and serves it on threads of its own.
pub(super) fn start_fuser(
    device: Device,
    ops: impl Operations,
    options: &MountOptions,
    metrics: Arc<Metrics>,
) -> anyhow::Result<Started> {
    let acl = match (options.allow_other, options.allow_root) {
        (true, _) => SessionACL::All,
        (_, true) => SessionACL::RootAndOwner,
        _ => SessionACL::Owner,
    };
    let mut config = ::fuser::Config::default();
    config.acl = acl;
    config.n_threads = Some(options.threads.max(1));
    config.mount_options = vec![
        MountOption::FSName("mountpoint-s3".into()),
        MountOption::Subtype("mount-s3".into()),
        MountOption::DefaultPermissions,
        MountOption::NoAtime,
        MountOption::NoSuid,
        MountOption::NoDev,
    ];
    config.mount_options.extend(options.read_only.then_some(MountOption::RO));
    config.mount_options.extend(options.no_exec.then_some(MountOption::NoExec));
    config.mount_options.extend(options.labels.iter().cloned().map(MountOption::CUSTOM));
    let notifier = Arc::new(OnceLock::<::fuser::Notifier>::new());
    let kernel = Arc::clone(&notifier);
    let pages = Pages::new(move |ino| match kernel.get() {
        Some(notifier) => notifier.inval_inode(INodeNo(ino.0), 0, 0),
        None => Ok(()),
    });
    let adapter = FuserAdapter { ops: ops.clone(), reads_direct: options.reads_direct, pages, metrics };
    let (mut session, ours, number) = match device {
        Device::Mount(dir) => {
            let session = ::fuser::Session::new(adapter, &dir, &config)?;
            // INIT is answered, and no thread reads requests yet.
            (session, true, device_of(&dir))
        }
        // The command line refuses this combination.
        Device::Outliving(_) => anyhow::bail!("a mount that outlives its engine is not served by fuser"),
        Device::Adopted(fd) => {
            let number = device_behind(&fd);
            (::fuser::Session::from_fd(adapter, fd, acl, config)?, false, number)
        }
    };
    number.into_iter().for_each(|number| ops.mounted_as(number));
    let kernel = session.notifier();
    ops.tell_resized(capability::learns_sizes(&capability::release()), move |ino| {
        // The offset -1 names no byte: the file's pages stay.
        if let Err(error) = kernel.inval_inode(INodeNo(ino.0), -1, 0) {
            tracing::debug!("the attributes of inode {}: {error}", ino.0);
        }
    });
    let _ = notifier.set(session.notifier());
    let unmounter = ours.then(|| session.unmount_callable());
    let serving = std::thread::Builder::new().name("fuse".into()).spawn(move || ended(session.run()))?;
    Ok(Started { serving, unmounter, number })
}

/// The result of serving. `fuser` reports one of the kernel's two signs of an unmount as a failure; here both are success.
fn ended(served: io::Result<()>) -> io::Result<()> {
    let is_unmounted = |error: &io::Error| {
        let errno = rustix::io::Errno::from_io_error(error);
        errno.is_some_and(|errno| after_failed_read(errno) == AfterFailedRead::Unmounted)
    };
    match served {
        Err(error) if is_unmounted(&error) => Ok(()),
        served => served,
    }
}

/// The adapter of the file system for `fuser`.
pub(super) struct FuserAdapter<O> {
    pub(super) ops: O,
    pub(super) reads_direct: bool,
    pub(super) pages: Arc<Pages>,
    pub(super) metrics: Arc<Metrics>,
}

fn ino(number: INodeNo) -> InodeNo {
    InodeNo(number.0)
}

fn maker(request: &Request, mode: u32) -> Maker {
    Maker { mode, uid: request.uid(), gid: request.gid() }
}

fn handle(number: FileHandle) -> HandleNo {
    HandleNo(number.0)
}

impl<O: Operations> FuserAdapter<O> {
    fn errno(&self, operation: &'static str) -> impl FnOnce(&crate::fs::Error) -> Errno + Send + use<O> {
        // The bell is rung here because nearly every operation passes here: `fuser` has no other place for it.
        self.metrics.work.ring();
        let metrics = Arc::clone(&self.metrics);
        move |error| Errno::from_i32(refusal(operation, error, &metrics))
    }

    fn entry(
        &self,
        operation: &'static str,
        reply: ReplyEntry,
    ) -> impl FnOnce(Result<Entry>) + Send + use<O> {
        let errno = self.errno(operation);
        move |result| match result {
            Ok(entry) => reply.entry_with_ttls(
                &entry.attr.valid_for,
                &entry.valid_for,
                &file_attr(&entry.attr),
                GENERATION,
            ),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn attr(&self, operation: &'static str, reply: ReplyAttr) -> impl FnOnce(Result<Attr>) + Send + use<O> {
        let errno = self.errno(operation);
        move |result| match result {
            Ok(attr) => reply.attr(&attr.valid_for, &file_attr(&attr)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn empty(&self, operation: &'static str, reply: ReplyEmpty) -> impl FnOnce(Result<()>) + Send + use<O> {
        let errno = self.errno(operation);
        move |result| match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// Sends an extended attribute, or the list of names. A caller with size 0 gets only the length; one with too little room gets ERANGE.
    fn attribute(
        &self,
        operation: &'static str,
        size: u32,
        reply: ReplyXattr,
    ) -> impl FnOnce(Result<Vec<u8>>) + Send + use<O> {
        let errno = self.errno(operation);
        move |result| match result {
            Ok(value) if size == 0 => reply.size(value.len() as u32),
            Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
            Ok(value) => reply.data(&value),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn opened(&self, reply: ReplyOpen) -> impl FnOnce(Result<Opened>) + Send + use<O> {
        let errno = self.errno("open");
        move |result| match result {
            Ok(opened) => reply.opened(FileHandle(opened.handle.0), fopen_flags(&opened)),
            Err(error) => reply.error(errno(&error)),
        }
    }
}

impl<O: Operations> Filesystem for FuserAdapter<O> {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for capability in CAPABILITIES.iter().chain(self.reads_direct.then_some(&MAPPED_DIRECT)) {
            if config.add_capabilities(InitFlags::from_bits_retain(capability.flag())).is_err() {
                tracing::debug!("the kernel has no {capability}");
            }
        }
        let _ = config.set_max_write(TRANSFER_MAX);
        // All that the kernel offers; its own limit is the device's read_ahead_kb.
        if let Err(offered) = config.set_max_readahead(TRANSFER_MAX) {
            let _ = config.set_max_readahead(offered);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        let _ = config.set_congestion_threshold(CONGESTED_AT);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.ops.lookup(ino(parent), name, self.entry("lookup", reply));
    }

    fn forget(&self, _req: &Request, number: INodeNo, nlookup: u64) {
        self.ops.forget(ino(number), nlookup);
        self.metrics.work.ring();
    }

    fn getattr(&self, _req: &Request, number: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.ops.getattr(ino(number), self.attr("getattr", reply));
    }

    fn setattr(
        &self,
        _req: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let wish = |time| match time {
            TimeOrNow::Now => TimeWish::Now,
            TimeOrNow::SpecificTime(time) => TimeWish::At(time),
        };
        let (accessed, modified) = (atime.map(wish), mtime.map(wish));
        let wish = SetAttr { mode, uid, gid, size, handle: fh.map(handle), accessed, modified };
        self.ops.setattr(ino(number), wish, self.attr("setattr", reply));
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        if rustix::fs::FileType::from_raw_mode(mode) != rustix::fs::FileType::RegularFile {
            return reply.error(Errno::EPERM);
        }
        self.ops.mknod(ino(parent), name.to_owned(), maker(req, mode), self.entry("mknod", reply));
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        self.ops.mkdir(ino(parent), name.to_owned(), maker(req, mode), self.entry("mkdir", reply));
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.ops.unlink(ino(parent), name.to_owned(), self.empty("unlink", reply));
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.ops.rmdir(ino(parent), name.to_owned(), self.empty("rmdir", reply));
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (old, new) = ((ino(parent), name.to_owned()), (ino(newparent), newname.to_owned()));
        self.ops.rename(old.0, old.1, new.0, new.1, flags.bits(), self.empty("rename", reply));
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let errno = self.errno("create");
        self.ops.create(
            ino(parent),
            name.to_owned(),
            open_flags(flags),
            maker(req, mode),
            req.pid(),
            move |result| match result {
                Ok((entry, opened)) => reply.created(
                    &entry.valid_for.min(entry.attr.valid_for),
                    &file_attr(&entry.attr),
                    GENERATION,
                    FileHandle(opened.handle.0),
                    fopen_flags(&opened),
                ),
                Err(error) => reply.error(errno(&error)),
            },
        );
    }

    fn open(&self, req: &Request, number: INodeNo, flags: ::fuser::OpenFlags, reply: ReplyOpen) {
        self.ops.open(ino(number), open_flags(flags.0), req.pid(), self.opened(reply));
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: ::fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let (errno, metrics) = (self.errno("read"), Arc::clone(&self.metrics));
        self.ops.read(handle(fh), offset, size as usize, move |result| match result {
            Ok(bytes) => {
                metrics.fuse_io.of("read").record(bytes.len() as u64);
                match bytes.as_single() {
                    Some(slice) => reply.data(slice),
                    None => reply.data(&bytes.to_vec()),
                }
            }
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn write(
        &self,
        req: &Request,
        number: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: ::fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let syncs = !write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) && open_flags(flags.0).sync;
        if syncs && !self.ops.syncs_writes() {
            return reply.error(self.errno("write")(&unsynced()));
        }
        let len = data.len() as u32;
        if write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) && !self.ops.takes_mapped(handle(fh)) {
            self.metrics.fuse_errors.of("mmap").inc();
            self.ops.refuse_mapped(ino(number), handle(fh));
            reply.written(len);
            return self.pages.drop_soon(ino(number));
        }
        self.metrics.fuse_io.of("write").record(len.into());
        let errno = self.errno("write");
        let (handle, syncs) = (handle(fh), syncs.then(|| self.ops.clone()));
        let answer = move |result| match result {
            Ok(()) => reply.written(len),
            Err(error) => reply.error(errno(&error)),
        };
        self.ops.write(handle, offset, data, req.pid(), move |result| match (result, syncs) {
            (Ok(()), Some(ops)) => ops.fsync(handle, answer),
            (result, _) => answer(result),
        });
    }

    fn flush(&self, req: &Request, _ino: INodeNo, fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        self.ops.flush(handle(fh), req.pid(), self.empty("close", reply));
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.ops.fsync(handle(fh), self.empty("fsync", reply));
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: ::fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.ops.release(handle(fh), self.empty("release", reply));
    }

    fn opendir(&self, _req: &Request, number: INodeNo, _flags: ::fuser::OpenFlags, reply: ReplyOpen) {
        let errno = self.errno("opendir");
        self.ops.opendir(ino(number), move |result| match result {
            Ok(no) => reply.opened(FileHandle(no.0), FopenFlags::empty()),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn readdir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let errno = self.errno("readdir");
        self.ops.readdir(handle(fh), offset, DIR_BATCH, move |result| match result {
            Ok(items) => {
                for item in &items {
                    let kind = file_type(item.attr.kind);
                    if reply.add(INodeNo(item.attr.ino.0), item.offset, kind, item.name()) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn readdirplus(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let errno = self.errno("readdirplus");
        let ops = self.ops.clone();
        self.ops.readdir(handle(fh), offset, DIR_BATCH, move |result| match result {
            Ok(items) => {
                add_plus(&ops, handle(fh), &items, &mut reply);
                reply.ok();
            }
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: ::fuser::OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.ops.releasedir(handle(fh));
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let s = self.ops.statfs();
        reply.statfs(s.blocks, s.blocks, s.blocks, s.files, s.files, s.block_size, s.name_max, s.block_size);
    }

    fn getxattr(&self, _req: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.ops.getxattr(ino(number), name.to_owned(), self.attribute("getxattr", size, reply));
    }

    fn setxattr(
        &self,
        _req: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (name, value) = (name.to_owned(), value.to_vec()); // copy: the buffer is only lent
        self.ops.setxattr(ino(number), name, value, flags as u32, self.empty("setxattr", reply));
    }

    fn listxattr(&self, _req: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        self.ops.listxattr(ino(number), self.attribute("listxattr", size, reply));
    }

    fn removexattr(&self, _req: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.ops.removexattr(ino(number), name.to_owned(), self.empty("removexattr", reply));
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let wish = Fallocate { offset, len, mode: mode as u32 };
        self.ops.fallocate(handle(fh), wish, self.empty("fallocate", reply));
    }

    fn fsyncdir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.ops.fsyncdir(handle(fh), self.empty("fsync of a directory", reply));
    }

    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let errno = self.errno("lseek");
        self.ops.lseek(handle(fh), offset as u64, whence as u32, move |result| match result {
            Ok(place) => reply.offset(place as i64),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &std::path::Path,
        reply: ReplyEntry,
    ) {
        let target = target.as_os_str().to_owned();
        let maker = maker(req, 0o777);
        self.ops.symlink(ino(parent), name.to_owned(), target, maker, self.entry("symlink", reply));
    }

    fn readlink(&self, _req: &Request, number: INodeNo, reply: ReplyData) {
        let errno = self.errno("readlink");
        self.ops.readlink(ino(number), move |result| match result {
            Ok(target) => reply.data(target.as_encoded_bytes()),
            Err(error) => reply.error(errno(&error)),
        });
    }
}

/// Puts as many items into the reply as fit. Only these items give the kernel a reference.
fn add_plus(ops: &impl Operations, dir: HandleNo, items: &[DirItem], reply: &mut ReplyDirectoryPlus) {
    for item in items {
        let entry = ops.remember(dir, std::slice::from_ref(item)).pop().flatten();
        let (attr, ttl) = match &entry {
            Some(entry) => (&entry.attr, entry.valid_for.min(entry.attr.valid_for)),
            None => (&item.attr, Duration::ZERO),
        };
        if reply.add(INodeNo(attr.ino.0), item.offset, item.name(), &ttl, &file_attr(attr), GENERATION) {
            if entry.is_some() {
                ops.forget(attr.ino, 1);
            }
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_was_unmounted_while_a_request_was_taken_ended_well() {
        use rustix::io::Errno;
        assert!(ended(Ok(())).is_ok());
        assert!(ended(Err(Errno::CONNABORTED.into())).is_ok());
        assert!(ended(Err(Errno::NODEV.into())).is_ok());
        assert!(ended(Err(Errno::IO.into())).is_err());
        assert!(ended(Err(io::ErrorKind::InvalidData.into())).is_err());
    }
}
