//! The operations of a file system, which the transports call. Every answer goes through a callback, once.

use std::ffi::{OsStr, OsString};

use rustix::io::Errno;

use crate::fs::{
    Attr, Backings, DeviceNo, DirItem, Entry, Error, Fallocate, HandleNo, Maker, OpenFlags, Opened, Result,
    SetAttr, StatFs,
};
use crate::inode::InodeNo;
use crate::prefetch::Bytes;

/// A file system that a [`Session`](super::Session) serves. Cheap to clone, and shared by all threads of a transport.
///
/// An operation calls `done` once: on the calling thread if memory has the answer, else later on another. An operation never waits: the
/// calling thread takes the kernel's next request. Operations that change something answer EROFS unless they are implemented.
pub trait Operations: Clone + Send + Sync + 'static {
    /// Receives the device number that the kernel gave the file system. Called before the first request, if the number is known.
    fn mounted_as(&self, _device: DeviceNo) {}

    /// Receives the functions that register files which the kernel reads itself (passthrough). Called before the first request, by
    /// transports that have them.
    fn allow_passthrough(&self, _backings: Backings) {}

    /// Receives a function that makes the kernel request a file's attributes again, and whether the kernel learns the end of a file from a
    /// short answer. Called before the first open.
    fn tell_resized(&self, _learns_sizes: bool, _tell: impl Fn(InodeNo) + Send + Sync + 'static) {}

    /// Looks a name up. The kernel holds one more reference to the inode that is found.
    fn lookup(&self, parent: InodeNo, name: &OsStr, done: impl FnOnce(Result<Entry>) + Send + 'static);

    /// Releases `count` of the kernel's references to an inode.
    fn forget(&self, ino: InodeNo, count: u64);

    /// Returns the attributes of an inode.
    fn getattr(&self, ino: InodeNo, done: impl FnOnce(Result<Attr>) + Send + 'static);

    /// Changes attributes.
    fn setattr(&self, _ino: InodeNo, _wish: SetAttr, done: impl FnOnce(Result<Attr>) + Send + 'static) {
        done(read_only());
    }

    /// Makes a new, empty file. The kernel holds a reference to it.
    fn mknod(
        &self,
        _parent: InodeNo,
        _name: OsString,
        _maker: Maker,
        done: impl FnOnce(Result<Entry>) + Send + 'static,
    ) {
        done(read_only());
    }

    /// Makes a new directory. The kernel holds a reference to it.
    fn mkdir(
        &self,
        _parent: InodeNo,
        _name: OsString,
        _maker: Maker,
        done: impl FnOnce(Result<Entry>) + Send + 'static,
    ) {
        done(read_only());
    }

    /// Deletes a file.
    fn unlink(&self, _parent: InodeNo, _name: OsString, done: impl FnOnce(Result<()>) + Send + 'static) {
        done(read_only());
    }

    /// Removes a directory.
    fn rmdir(&self, _parent: InodeNo, _name: OsString, done: impl FnOnce(Result<()>) + Send + 'static) {
        done(read_only());
    }

    /// Renames a file or directory, perhaps into another directory. `flags`: those of renameat2(2).
    fn rename(
        &self,
        _parent: InodeNo,
        _name: OsString,
        _new_parent: InodeNo,
        _new_name: OsString,
        _flags: u32,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        done(read_only());
    }

    /// Makes a new symbolic link. The kernel holds a reference to it.
    fn symlink(
        &self,
        _parent: InodeNo,
        _name: OsString,
        _target: OsString,
        _maker: Maker,
        done: impl FnOnce(Result<Entry>) + Send + 'static,
    ) {
        done(read_only());
    }

    /// The target of a symbolic link.
    fn readlink(&self, _ino: InodeNo, done: impl FnOnce(Result<OsString>) + Send + 'static) {
        done(unknown());
    }

    /// The value of an extended attribute.
    fn getxattr(&self, _ino: InodeNo, _name: OsString, done: impl FnOnce(Result<Vec<u8>>) + Send + 'static) {
        done(unknown());
    }

    /// The names of all extended attributes, each followed by a NUL.
    fn listxattr(&self, _ino: InodeNo, done: impl FnOnce(Result<Vec<u8>>) + Send + 'static) {
        done(unknown());
    }

    /// Sets an extended attribute. `flags`: those of setxattr(2).
    fn setxattr(
        &self,
        _ino: InodeNo,
        _name: OsString,
        _value: Vec<u8>,
        _flags: u32,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        done(unknown());
    }

    /// Removes an extended attribute.
    fn removexattr(&self, _ino: InodeNo, _name: OsString, done: impl FnOnce(Result<()>) + Send + 'static) {
        done(unknown());
    }

    /// Stores the names of an open directory.
    fn fsyncdir(&self, _handle: HandleNo, done: impl FnOnce(Result<()>) + Send + 'static) {
        done(unknown());
    }

    /// The next data or hole of an open file from `offset` on. `whence`: that of lseek(2).
    fn lseek(
        &self,
        _handle: HandleNo,
        _offset: u64,
        _whence: u32,
        done: impl FnOnce(Result<u64>) + Send + 'static,
    ) {
        done(unknown());
    }

    /// Makes a new file, opened by the process or thread `pid`. The kernel holds a reference to the file.
    fn create(
        &self,
        _parent: InodeNo,
        _name: OsString,
        _flags: OpenFlags,
        _maker: Maker,
        _pid: u32,
        done: impl FnOnce(Result<(Entry, Opened)>) + Send + 'static,
    ) {
        done(read_only());
    }

    /// Opens a file for the process or thread `pid`.
    fn open(
        &self,
        ino: InodeNo,
        flags: OpenFlags,
        pid: u32,
        done: impl FnOnce(Result<Opened>) + Send + 'static,
    );

    /// Up to `len` bytes of an open file from `offset` on; fewer only at its end.
    fn read(
        &self,
        handle: HandleNo,
        offset: u64,
        len: usize,
        done: impl FnOnce(Result<Bytes>) + Send + 'static,
    );

    /// Writes all of `data`, which is borrowed for the call. Thread `tid` made the request.
    fn write(
        &self,
        _handle: HandleNo,
        _offset: u64,
        _data: &[u8],
        _tid: u32,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        done(read_only());
    }

    /// Whether a write may be made durable before its return (O_SYNC, O_DSYNC, RWF_DSYNC). If so, the transport calls [`Operations::fsync`]
    /// after such a write; otherwise it refuses the write.
    fn syncs_writes(&self) -> bool {
        false
    }

    /// Whether pages that a program changed in a mapping are written like any other bytes of this handle.
    fn takes_mapped(&self, _handle: HandleNo) -> bool {
        false
    }

    /// Handles pages that a program changed in a mapping of a file (`mmap`), written by a handle that the kernel chose among those of the
    /// file. The pages are not stored. The transport answers with success and makes the kernel drop them: after an error, the kernel would
    /// fail the next close of the file, also by a program that only read it.
    fn refuse_mapped(&self, _ino: InodeNo, _handle: HandleNo) {}

    /// Handles the close of a descriptor of an open file by the process or thread `pid`.
    fn flush(&self, handle: HandleNo, pid: u32, done: impl FnOnce(Result<()>) + Send + 'static);

    /// Stores the written bytes.
    fn fsync(&self, handle: HandleNo, done: impl FnOnce(Result<()>) + Send + 'static);

    /// Notes that the close or fsync of this handle was interrupted: no program receives its result.
    fn nobody_waits(&self, handle: HandleNo, operation: &'static str);

    /// Reserves room for bytes of an open file, as fallocate(2) does.
    fn fallocate(&self, _handle: HandleNo, _wish: Fallocate, done: impl FnOnce(Result<()>) + Send + 'static) {
        done(read_only());
    }

    /// Undoes an open whose caller was killed before the reply reached it: the kernel never names this handle. `created`: the open made
    /// the file, and the kernel did not take its reference.
    fn take_back(&self, handle: HandleNo, created: Option<InodeNo>);

    /// Closes a handle, after the close of its last descriptor.
    fn release(&self, handle: HandleNo, done: impl FnOnce(Result<()>) + Send + 'static);

    /// Opens a directory.
    fn opendir(&self, ino: InodeNo, done: impl FnOnce(Result<HandleNo>) + Send + 'static);

    /// Up to `max` names of an open directory from `offset` on; none at the end.
    fn readdir(
        &self,
        handle: HandleNo,
        offset: u64,
        max: usize,
        done: impl FnOnce(Result<Vec<DirItem>>) + Send + 'static,
    );

    /// Counts one more reference of the kernel to each of these items of a listing: the kernel takes them as looked up. `None` for an item
    /// of which the kernel takes no reference.
    fn remember(&self, handle: HandleNo, items: &[DirItem]) -> Vec<Option<Entry>>;

    /// Notes that the kernel is about to learn this handle of a file, by the answer to its request `unique`.
    fn gives_file(&self, _handle: HandleNo, _unique: u64) {}

    /// Notes that the kernel is about to learn this handle of a directory, by the answer to its request `unique`.
    fn gives_directory(&self, _handle: HandleNo, _unique: u64) {}

    /// Undoes what an earlier engine did for a request that the kernel has sent again: the answer did not reach the kernel, which knows no
    /// handle from it.
    fn asked_again(&self, _unique: u64) {}

    /// Notes that the kernel requested names from `offset` on, and is about to get those up to `last`.
    fn gives(&self, _handle: HandleNo, _offset: u64, _last: &DirItem) {}

    /// Closes a directory.
    fn releasedir(&self, handle: HandleNo);

    /// Size and limits of the file system.
    fn statfs(&self) -> StatFs;
}

fn read_only<T>() -> Result<T> {
    Err(Error::new(Errno::ROFS, "this file system can't be changed"))
}

/// Answers ENOSYS: the kernel makes no further request of this kind.
pub(super) fn unknown<T>() -> Result<T> {
    Err(Error::new(Errno::NOSYS, "this file system does not know the operation"))
}
