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
use crate::outlive;
use crate::prefetch::Bytes;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A file system, and the runtime of its waiting operations.
#[derive(Clone)]
pub(super) struct OnRuntime {
    fs: Arc<FileSystem>,
    runtime: tokio::runtime::Handle,
    /// Threads that run an operation themselves now, and the most that may: the local disk may let all of them wait.
    inside: Arc<AtomicUsize>,
    inside_max: usize,
}

impl OnRuntime {
    /// Runs operations of `fs`. `inside_max`: most of the calling threads that may wait for the local disk, which reads and writes may
    /// exceed as long as one thread is left; 0: reads and writes are done by the calling thread all the same.
    pub(super) fn new(fs: Arc<FileSystem>, runtime: tokio::runtime::Handle, inside_max: usize) -> Self {
        Self { fs, runtime, inside: Arc::default(), inside_max }
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
    /// memory and the local disk's page cache: it spares two threads a wake-up. While as many threads as may are at such work, another
    /// thread does it: the others answer what needs no disk.
    fn at_once<T, F, W>(&self, work: W, done: impl FnOnce(T) + Send + 'static)
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
        W: FnOnce(Arc<FileSystem>) -> F + Send + 'static,
    {
        let fs = Arc::clone(&self.fs);
        if let Some(inside) = Inside::enter(&self.inside, self.inside_max) {
            return begin(&self.runtime, Some(inside), work(fs), done);
        }
        // The runtime's own threads carry what waits for the store.
        let runtime = self.runtime.clone();
        drop(self.runtime.spawn_blocking(move || begin(&runtime, None, work(fs), done)));
    }

    /// A place for a read or a write on this thread. `None`: the local disk may hang, and has most of the threads already.
    fn enter_disk(&self) -> Option<Inside> {
        let max = match self.inside_max {
            // At least one thread is left, and two of an odd number.
            max if max > 0 && self.fs.has_stage() => 2 * max - 1,
            _ => usize::MAX,
        };
        Inside::enter(&self.inside, max)
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

/// Runs `work` on this thread until it has to wait, and the rest on the runtime.
fn begin<T, F>(
    runtime: &tokio::runtime::Handle,
    inside: Option<Inside>,
    work: F,
    done: impl FnOnce(T) + Send + 'static,
) where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut work = Box::pin(work);
    let begun = {
        let _of_timers_and_tasks = runtime.enter();
        work.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    };
    drop(inside);
    match begun {
        Poll::Ready(outcome) => done(outcome),
        // The first poll on the runtime registers the waker that counts.
        Poll::Pending => drop(runtime.spawn(async move { done(work.await) })),
    }
}

/// A thread of the transport that runs an operation itself.
struct Inside(Arc<AtomicUsize>);

impl Inside {
    /// `None`: as many threads as may are inside.
    fn enter(inside: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let entered = Self(Arc::clone(inside));
        (inside.fetch_add(1, Relaxed) < max).then_some(entered)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
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
        self.later(move |fs| async move { fs.mknod(parent, &name, maker).await }, done);
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
        let read = move |fs: &FileSystem| fs.read(handle, offset, len, done);
        match self.enter_disk() {
            Some(_inside) => read(&self.fs),
            None => {
                let fs = Arc::clone(&self.fs);
                drop(self.runtime.spawn_blocking(move || read(&fs)));
            }
        }
    }

    fn write(
        &self,
        handle: HandleNo,
        offset: u64,
        data: &[u8],
        tid: u32,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        match self.enter_disk() {
            Some(_inside) => self.fs.write(handle, offset, data, tid, done),
            None => {
                let (fs, data) = (Arc::clone(&self.fs), data.to_vec()); // copy: a write while many wait for the local disk
                drop(self.runtime.spawn_blocking(move || fs.write(handle, offset, &data, tid, done)));
            }
        }
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

    fn fsyncdir(&self, handle: HandleNo, done: impl FnOnce(Result<()>) + Send + 'static) {
        if !self.fs.syncs_names() {
            return done(unknown());
        }
        self.soon(move |fs| async move { fs.sync_names(handle).await }, done);
    }

    fn lseek(
        &self,
        handle: HandleNo,
        offset: u64,
        whence: u32,
        done: impl FnOnce(Result<u64>) + Send + 'static,
    ) {
        // The kernel takes the answer for all later calls, and then answers them itself: a file is all data.
        if !self.fs.has_stage() {
            return done(unknown());
        }
        self.soon(move |fs| async move { fs.seek(handle, offset, whence).await }, done);
    }

    fn fallocate(&self, handle: HandleNo, wish: Fallocate, done: impl FnOnce(Result<()>) + Send + 'static) {
        if !self.fs.has_stage() {
            return done(self.fs.fallocate(handle, wish));
        }
        let fs = Arc::clone(&self.fs);
        drop(self.runtime.spawn_blocking(move || done(fs.fallocate(handle, wish))));
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

    fn gives_file(&self, handle: HandleNo, unique: u64) {
        self.fs.gives_file(handle, unique);
    }

    fn gives_directory(&self, handle: HandleNo, unique: u64) {
        self.fs.gives_directory(handle, unique);
    }

    fn asked_again(&self, unique: u64) {
        match self.fs.unanswered(unique) {
            Some(outlive::Handle::File(no)) => self.take_back(HandleNo(no), None),
            Some(outlive::Handle::Listing(no)) => self.releasedir(HandleNo(no)),
            None => {}
        }
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;
    use crate::clock::Clock;
    use crate::fs::tests::full::promising;
    use crate::inode::ROOT;
    use crate::stage::Commit;
    use crate::testing::MemoryClient;

    /// Threads that take requests.
    const THREADS: usize = 4;

    type Request = Box<dyn FnOnce(&OnRuntime) + Send>;

    /// A transport: threads that take requests in turn.
    struct Transport {
        ops: OnRuntime,
        requests: std::sync::mpsc::SyncSender<Request>,
        threads: Vec<std::thread::JoinHandle<()>>,
    }

    impl Transport {
        fn new(fs: &Arc<FileSystem>) -> Self {
            let ops = OnRuntime::new(Arc::clone(fs), tokio::runtime::Handle::current(), THREADS / 2);
            let (requests, next) = sync_channel::<Request>(64);
            let next = Arc::new(crate::sync::Mutex::new(next));
            let thread = |_| {
                let (next, ops) = (Arc::clone(&next), ops.clone());
                std::thread::spawn(move || {
                    let take = || next.lock().recv();
                    while let Ok(request) = take() {
                        request(&ops);
                    }
                })
            };
            Self { threads: (0..THREADS).map(thread).collect(), ops, requests }
        }

        fn send(&self, request: impl FnOnce(&OnRuntime) + Send + 'static) {
            self.requests.send(Box::new(request)).unwrap();
        }

        /// Returns once requests are answered that need memory alone, or the store.
        async fn answers(&self, directory: InodeNo) {
            let (answer, mut answers) = tokio::sync::mpsc::channel(2);
            let found = answer.clone();
            self.send(move |ops| ops.getattr(directory, move |attr| answer.try_send(attr.is_ok()).unwrap()));
            self.send(move |ops| {
                let done = move |entry: Result<_>| found.try_send(entry.is_ok()).unwrap();
                ops.lookup(ROOT, OsStr::new("stored"), done);
            });
            assert_eq!((answers.recv().await, answers.recv().await), (Some(true), Some(true)));
        }

        fn end(self) {
            let Self { ops, requests, threads } = self;
            drop(requests);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(ops.inside.load(Relaxed), 0);
        }
    }

    /// A file system of which the bucket has a file, and a directory that was made in it.
    async fn mounted(client: &MemoryClient, dir: &std::path::Path) -> (Arc<FileSystem>, InodeNo) {
        client.insert("stored", "content");
        let fs = promising(Commit::Disk, client, dir, Clock::machine());
        let directory = fs.mkdir(ROOT, OsStr::new("d"), Maker::default()).await.unwrap().attr.ino;
        (fs, directory)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_disk_that_hangs_holds_up_no_request_that_needs_no_disk() {
        let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
        let (fs, directory) = mounted(&client, dir.path()).await;
        let transport = Transport::new(&fs);
        fs.hold_disk(true);
        let (made, mut made_by) = tokio::sync::mpsc::channel(2 * THREADS);
        for n in 0..2 * THREADS {
            let (made, name) = (made.clone(), n.to_string().into());
            transport.send(move |ops| {
                let done = move |created: Result<_>| made.try_send(created.is_ok()).unwrap();
                ops.create(directory, name, OpenFlags::default(), Maker::default(), 1, done);
            });
        }
        transport.answers(directory).await;
        assert!(made_by.try_recv().is_err(), "the disk hangs");
        fs.hold_disk(false);
        for _ in 0..2 * THREADS {
            assert_eq!(made_by.recv().await, Some(true));
        }
        transport.end();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn writes_and_syncs_to_a_disk_that_hangs_hold_up_no_look_up() {
        let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
        let (fs, directory) = mounted(&client, dir.path()).await;
        let mut handles = Vec::new();
        for n in 0..2 * THREADS {
            let (name, flags) = (n.to_string(), OpenFlags::default());
            let made = fs.create(directory, OsStr::new(&name), flags, Maker::default(), 1).await.unwrap();
            handles.push(made.1.handle);
        }
        let transport = Transport::new(&fs);
        let (done, mut done_by) = tokio::sync::mpsc::channel(2 * THREADS);
        for is_sync in [false, true] {
            fs.hold_disk(true);
            for handle in handles.clone() {
                let done = done.clone();
                let done = move |done_so: Result<()>| done.try_send(done_so.is_ok()).unwrap();
                transport.send(move |ops| match is_sync {
                    true => ops.fsync(handle, done),
                    false => ops.write(handle, 0, b"content", 1, done),
                });
            }
            transport.answers(directory).await;
            assert!(done_by.try_recv().is_err(), "the disk hangs");
            fs.hold_disk(false);
            for _ in 0..2 * THREADS {
                assert_eq!(done_by.recv().await, Some(true));
            }
        }
        transport.end();
    }
}
