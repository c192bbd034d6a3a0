//! The engine's file system as operations: the calling thread answers if memory has the answer, otherwise the thread that receives
//! it.

use std::ffi::{OsStr, OsString};
use std::future::Future;
use std::task::{Context, Poll, Waker};

use super::operations::{Operations, unknown};
use crate::fs::{
    Attr, Backings, DeviceNo, DirItem, Entry, Fallocate, FileSystem, HandleNo, Maker, OpenFlags, Opened,
    Result, SetAttr, StatFs, Tried,
};
use crate::inode::InodeNo;
use crate::prefetch::Bytes;
use crate::sync::Arc;

/// A file system, and the runtime of its waiting operations.
#[derive(Clone)]
pub(super) struct OnRuntime {
    fs: Arc<FileSystem>,
    runtime: tokio::runtime::Handle,
}

impl OnRuntime {
    pub(super) fn new(fs: Arc<FileSystem>, runtime: tokio::runtime::Handle) -> Self {
        Self { fs, runtime }
    }

    /// Runs `work` on the runtime, and answers with its outcome.
    fn later<T, F, W>(&self, work: W, done: impl FnOnce(T) + Send + 'static)
    where
        T: Send + 'static,
        F: Future<Output = T> + Send,
        W: FnOnce(Arc<FileSystem>) -> F + Send + 'static,
    {
        let fs = Arc::clone(&self.fs);
        self.runtime.spawn(async move { done(work(fs).await) });
    }

    /// Runs `work` on the calling thread until it has to wait, and the rest where waiting is allowed. For work that most often needs only
    /// memory and the local disk's page cache: it spares two threads a wake-up.
    fn at_once<T, F, W>(&self, work: W, done: impl FnOnce(T) + Send + 'static)
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
        W: FnOnce(Arc<FileSystem>) -> F,
    {
        let mut work = Box::pin(work(Arc::clone(&self.fs)));
        let begun = {
            let _of_timers_and_tasks = self.runtime.enter();
            work.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        };
        match begun {
            Poll::Ready(outcome) => done(outcome),
            // The first poll on the runtime registers the waker that counts.
            Poll::Pending => drop(self.runtime.spawn(async move { done(work.await) })),
        }
    }

    /// Does the same as [`OnRuntime::at_once`] on a mount with a stage, which answers most such operations itself; elsewhere they ask the store.
    fn soon<T, F, W>(&self, work: W, done: impl FnOnce(T) + Send + 'static)
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
        W: FnOnce(Arc<FileSystem>) -> F + Send + 'static,
    {
        if self.fs.has_stage() { self.at_once(work, done) } else { self.later(work, done) }
    }
}

impl Operations for OnRuntime {
    fn mounted_as(&self, device: DeviceNo) {
        self.fs.mounted_as(device);
    }

    fn allow_passthrough(&self, backings: Backings) {
        self.fs.allow_passthrough(backings);
    }

    fn tell_resized(&self, learns_sizes: bool, tell: impl Fn(InodeNo) + Send + Sync + 'static) {
        self.fs.tell_resized(learns_sizes, tell);
    }

    fn lookup(&self, parent: InodeNo, name: &OsStr, done: impl FnOnce(Result<Entry>) + Send + 'static) {
        if let Some(result) = self.fs.try_lookup(parent, name) {
            return done(result);
        }
        let name = name.to_owned();
        self.later(move |fs| async move { fs.lookup(parent, &name).await }, done);
    }

    fn forget(&self, ino: InodeNo, count: u64) {
        self.fs.forget(ino, count);
    }

    fn getattr(&self, ino: InodeNo, done: impl FnOnce(Result<Attr>) + Send + 'static) {
        if let Some(result) = self.fs.try_getattr(ino) {
            return done(result);
        }
        self.later(move |fs| async move { fs.getattr(ino).await }, done);
    }

    fn setattr(&self, ino: InodeNo, wish: SetAttr, done: impl FnOnce(Result<Attr>) + Send + 'static) {
        self.soon(move |fs| async move { fs.setattr(ino, wish).await }, done);
    }

    fn mknod(
        &self,
        parent: InodeNo,
        name: OsString,
        maker: Maker,
        done: impl FnOnce(Result<Entry>) + Send + 'static,
    ) {
        self.later(move |fs| async move { fs.make_file(parent, &name, maker).await }, done);
    }

    fn mkdir(
        &self,
        parent: InodeNo,
        name: OsString,
        maker: Maker,
        done: impl FnOnce(Result<Entry>) + Send + 'static,
    ) {
        self.later(move |fs| async move { fs.mkdir(parent, &name, maker).await }, done);
    }

    fn unlink(&self, parent: InodeNo, name: OsString, done: impl FnOnce(Result<()>) + Send + 'static) {
        self.soon(move |fs| async move { fs.unlink(parent, &name).await }, done);
    }

    fn rmdir(&self, parent: InodeNo, name: OsString, done: impl FnOnce(Result<()>) + Send + 'static) {
        self.later(move |fs| async move { fs.rmdir(parent, &name).await }, done);
    }

    fn rename(
        &self,
        parent: InodeNo,
        name: OsString,
        new_parent: InodeNo,
        new_name: OsString,
        flags: u32,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        self.soon(
            move |fs| async move { fs.rename(parent, &name, new_parent, &new_name, flags).await },
            done,
        );
    }

    fn symlink(
        &self,
        parent: InodeNo,
        name: OsString,
        target: OsString,
        maker: Maker,
        done: impl FnOnce(Result<Entry>) + Send + 'static,
    ) {
        self.later(move |fs| async move { fs.symlink(parent, &name, &target, maker).await }, done);
    }

    fn readlink(&self, ino: InodeNo, done: impl FnOnce(Result<OsString>) + Send + 'static) {
        self.later(move |fs| async move { fs.readlink(ino).await }, done);
    }

    fn getxattr(&self, ino: InodeNo, name: OsString, done: impl FnOnce(Result<Vec<u8>>) + Send + 'static) {
        if let Some(result) = self.fs.try_getxattr(ino, &name) {
            return done(result);
        }
        self.later(move |fs| async move { fs.getxattr(ino, &name).await }, done);
    }

    fn listxattr(&self, ino: InodeNo, done: impl FnOnce(Result<Vec<u8>>) + Send + 'static) {
        self.later(move |fs| async move { fs.listxattr(ino).await }, done);
    }

    fn setxattr(
        &self,
        ino: InodeNo,
        name: OsString,
        value: Vec<u8>,
        flags: u32,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        self.later(move |fs| async move { fs.setxattr(ino, &name, &value, flags).await }, done);
    }

    fn removexattr(&self, ino: InodeNo, name: OsString, done: impl FnOnce(Result<()>) + Send + 'static) {
        self.later(move |fs| async move { fs.removexattr(ino, &name).await }, done);
    }

    fn create(
        &self,
        parent: InodeNo,
        name: OsString,
        flags: OpenFlags,
        maker: Maker,
        pid: u32,
        done: impl FnOnce(Result<(Entry, Opened)>) + Send + 'static,
    ) {
        self.soon(move |fs| async move { fs.create(parent, &name, flags, maker, pid).await }, done);
    }

    fn open(
        &self,
        ino: InodeNo,
        flags: OpenFlags,
        pid: u32,
        done: impl FnOnce(Result<Opened>) + Send + 'static,
    ) {
        match self.fs.try_open(ino, flags, pid) {
            Some(Tried::Done(result)) => done(result),
            Some(Tried::Asks(opening)) => {
                self.later(move |fs| async move { fs.finish_open(*opening).await }, done);
            }
            None => self.soon(move |fs| async move { fs.open(ino, flags, pid).await }, done),
        }
    }

    fn read(
        &self,
        handle: HandleNo,
        offset: u64,
        len: usize,
        done: impl FnOnce(Result<Bytes>) + Send + 'static,
    ) {
        self.fs.read(handle, offset, len, done);
    }

    fn write(
        &self,
        handle: HandleNo,
        offset: u64,
        data: &[u8],
        tid: u32,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        self.fs.write(handle, offset, data, tid, done);
    }

    fn syncs_writes(&self) -> bool {
        self.fs.syncs_writes()
    }

    fn takes_mapped(&self, handle: HandleNo) -> bool {
        self.fs.takes_mapped(handle)
    }

    fn refuse_mapped(&self, ino: InodeNo, handle: HandleNo) {
        self.fs.refuse_mapped(ino, handle);
    }

    fn flush(&self, handle: HandleNo, pid: u32, done: impl FnOnce(Result<()>) + Send + 'static) {
        if let Some(result) = self.fs.try_flush(handle, pid) {
            return done(result);
        }
        self.fsync(handle, done);
    }

    fn fsync(&self, handle: HandleNo, done: impl FnOnce(Result<()>) + Send + 'static) {
        self.soon(move |fs| async move { fs.fsync(handle).await }, done);
    }

    fn fsyncdir(&self, _handle: HandleNo, done: impl FnOnce(Result<()>) + Send + 'static) {
        if !self.fs.syncs_names() {
            return done(unknown());
        }
        self.soon(move |fs| async move { fs.sync_names().await }, done);
    }

    fn fallocate(&self, handle: HandleNo, wish: Fallocate, done: impl FnOnce(Result<()>) + Send + 'static) {
        done(self.fs.fallocate(handle, wish));
    }

    fn nobody_waits(&self, handle: HandleNo, operation: &'static str) {
        self.fs.nobody_waits(handle, operation);
    }

    fn take_back(&self, handle: HandleNo, created: Option<InodeNo>) {
        let undo = move |fs: Arc<FileSystem>| async move {
            fs.take_back(handle).await;
            if let Some(ino) = created {
                fs.forget(ino, 1);
            }
        };
        self.later(undo, |()| {});
    }

    fn release(&self, handle: HandleNo, done: impl FnOnce(Result<()>) + Send + 'static) {
        let due = match self.fs.release(handle) {
            Ok(due) => due,
            Err(error) => return done(Err(error)),
        };
        done(Ok(()));
        if let Some(due) = due {
            self.soon(move |fs| async move { fs.finish_released(handle, due).await }, |()| {});
        }
    }

    fn opendir(&self, ino: InodeNo, done: impl FnOnce(Result<HandleNo>) + Send + 'static) {
        self.soon(move |fs| async move { fs.opendir(ino).await }, done);
    }

    fn readdir(
        &self,
        handle: HandleNo,
        offset: u64,
        max: usize,
        done: impl FnOnce(Result<Vec<DirItem>>) + Send + 'static,
    ) {
        if let Some(result) = self.fs.try_readdir(handle, offset, max) {
            return done(result);
        }
        self.later(move |fs| async move { fs.readdir(handle, offset, max).await }, done);
    }

    fn remember(&self, handle: HandleNo, items: &[DirItem]) -> Vec<Option<Entry>> {
        self.fs.remember(handle, items)
    }

    fn gives(&self, handle: HandleNo, offset: u64, last: &DirItem) {
        self.fs.gives(handle, offset, last);
    }

    fn releasedir(&self, handle: HandleNo) {
        self.fs.releasedir(handle);
    }

    fn statfs(&self) -> StatFs {
        self.fs.statfs()
    }
}
