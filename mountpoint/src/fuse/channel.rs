//! A FUSE connection: calls the operation of each request, and sends the answer back over the transport of the request.
//!
//! Never here: the threads that bring requests. Those are above, in `serve.rs` and `ring/`, and nothing here makes them wait.

use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::answer::Answer;
use super::caller::{is_dying, is_killed};
use super::device::FuseDevice;
use super::encode::{self, DirReply};
use super::gate::{Gate, Requests};
use super::inbox::Inbox;
use super::operations::Operations;
use super::pages::Pages;
use super::pending::{GoesOn, Interrupted, Pending, ReplyTo, Waiter};
use super::reply::{open_flags, refusal};
use super::request::{Operation, Request};
use crate::clock::Clock;
use crate::fs::{Error, Fallocate, HandleNo, Maker, Result, SetAttr, unsynced};
use crate::inode::InodeNo;
use crate::metrics::Metrics;
use crate::outlive::Journal;
use crate::sync::Arc;

/// Interval between checks of a request whose thread got a signal. Doubling it ends the request of a killed thread up to that much later.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// A served connection.
pub(super) struct Channel<O> {
    pub(super) device: Arc<FuseDevice>,
    /// The inboxes of the ring's queues, if requests come by a ring.
    inboxes: Vec<Arc<Inbox>>,
    ops: O,
    pending: Arc<Pending>,
    pages: Arc<Pages>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
    /// The runtime for work beside the requests.
    runtime: tokio::runtime::Handle,
    /// The only user beside root whose requests are served (`allow_root`; the kernel has only `allow_other`).
    only: Option<u32>,
    /// The journal of a mount that outlives its engine.
    journal: Option<Arc<Journal>>,
    /// The gate before the operations of a supervised mount.
    gate: Option<Arc<Gate>>,
}

/// The destination of one request's answer. Dropping it without an answer (after a panic) answers EIO.
struct Reply<O> {
    channel: Arc<Channel<O>>,
    unique: u64,
    operation: &'static str,
    started: Instant,
    open: bool,
    reply_to: ReplyTo,
}

impl<O> Reply<O> {
    /// Removes the request from the pending ones. False if an interrupt has ended it.
    fn take(&mut self) -> bool {
        self.open = false;
        let wanted = self.channel.pending.end(self.unique);
        if wanted {
            let took = self.channel.clock.now().saturating_duration_since(self.started);
            self.channel.metrics.fuse_latency.of(self.operation).took(took);
        }
        self.channel.metrics.work.ring();
        wanted
    }

    fn write(&self, errno: i32, answer: Answer) {
        if let Err(error) = self.channel.answer(&self.reply_to, self.unique, errno, answer) {
            tracing::error!("{}: the kernel did not take the reply: {error}", self.operation);
        }
    }

    /// Sends the answer. False if no thread waits for it any more: the caller may have to undo the operation.
    fn send(mut self, answer: impl Into<Answer>) -> bool {
        let wanted = self.take();
        if wanted {
            self.write(0, answer.into());
        }
        wanted
    }

    fn refuse(mut self, error: &Error) {
        if self.take() {
            let errno = refusal(self.operation, error, &self.channel.metrics);
            self.write(errno, Answer::Nothing);
        } else {
            tracing::debug!("{}, which was interrupted: {error}", self.operation);
        }
    }

    fn errno(mut self, errno: Errno) {
        if self.take() {
            self.write(errno.raw_os_error(), Answer::Nothing);
        }
    }

    fn empty(self) -> impl FnOnce(Result<()>) + Send + 'static
    where
        O: Operations,
    {
        move |result| match result {
            Ok(()) => {
                self.send(());
            }
            Err(error) => self.refuse(&error),
        }
    }
}

impl<O: Operations> Reply<O> {
    /// The answer to the removal of a name. `is_resent`: an earlier engine may have removed the name already.
    fn removed(self, is_resent: bool) -> impl FnOnce(Result<()>) + Send + 'static {
        move |result| match result {
            Err(error) if is_resent && error.errno() == Errno::NOENT => {
                self.send(());
            }
            result => self.empty()(result),
        }
    }
}

impl<O> Drop for Reply<O> {
    fn drop(&mut self) {
        if self.open && self.take() {
            tracing::error!("{}: nothing answered it; answering EIO", self.operation);
            self.write(Errno::IO.raw_os_error(), Answer::Nothing);
        }
    }
}

impl<O> Channel<O> {
    /// Creates the channel of a connection after INIT. `inboxes` belong to the queues of the ring, if there is one; `only` is the user
    /// whose requests are served, besides root.
    pub(super) fn new(
        device: Arc<FuseDevice>,
        inboxes: Vec<Arc<Inbox>>,
        ops: O,
        only: Option<u32>,
        metrics: Arc<Metrics>,
        runtime: tokio::runtime::Handle,
        journal: Option<Arc<Journal>>,
    ) -> Self {
        let kernel = Arc::clone(&device);
        let pages = Pages::new(move |ino| kernel.drop_pages(ino.0));
        let (pending, clock) = (Arc::default(), Clock::machine());
        let gate = journal.is_some().then(Arc::default);
        Self { device, inboxes, ops, pending, pages, metrics, clock, runtime, only, journal, gate }
    }

    /// The requests of a mount that outlives this process.
    pub(super) fn requests(&self) -> Option<Requests> {
        let gate = self.gate.clone()?;
        Some(Requests::new(gate, Arc::clone(&self.pending), Arc::clone(&self.device)))
    }

    /// Number of queues of the ring.
    pub(super) fn queues(&self) -> usize {
        self.inboxes.len()
    }

    /// Ends the queues of a ring after the end of the connection: the kernel may have no free entry to report it.
    pub(super) fn end_queues(&self) {
        self.inboxes.iter().for_each(|inbox| inbox.close());
    }

    /// Sends an answer over the transport of its request.
    fn answer(&self, reply_to: &ReplyTo, unique: u64, errno: i32, answer: Answer) -> io::Result<()> {
        match reply_to {
            ReplyTo::Device => self.device.reply(unique, errno, answer.slices()),
            ReplyTo::Queue(place) => {
                place.answer(unique, errno, answer);
                Ok(())
            }
        }
    }
}

impl<O: Operations> Channel<O> {
    /// Registers a request and returns the destination of its answer. `waiter`: the thread whose death interrupts the request.
    fn reply(
        self: &Arc<Self>,
        unique: u64,
        reply_to: &ReplyTo,
        operation: &'static str,
        waiter: Option<Waiter>,
    ) -> Reply<O> {
        self.pending.begin(unique, waiter);
        let (channel, reply_to, started) = (Arc::clone(self), reply_to.clone(), self.clock.now());
        Reply { channel, unique, operation, started, open: true, reply_to }
    }

    /// Calls the operation; the answer goes to `reply_to`.
    pub(super) fn dispatch(self: &Arc<Self>, request: Request<'_>, reply_to: &ReplyTo) {
        let (unique, node, pid) = (request.unique, InodeNo(request.node), request.pid);
        let ops = &self.ops;
        if let Some(gate) = &self.gate
            && request.operation.is_answered()
        {
            gate.pass();
        }
        let maker = |mode| Maker { mode, uid: request.uid, gid: request.gid };
        if self.only.is_some_and(|owner| request.uid != owner && request.uid != 0)
            && !request.operation.follows_an_open()
        {
            return self.reply(unique, reply_to, "access", None).errno(Errno::ACCESS);
        }
        let is_resent = Journal::is_resent(unique);
        if is_resent {
            ops.asked_again(unique);
        }
        if is_resent && self.kills_engines(&request) {
            return self.reply(unique, reply_to, "other", None).errno(Errno::IO);
        }
        // A change of names runs to its end. A request without effects can be interrupted; an interrupted open is undone.
        let waiter = |goes_on| {
            let may_end = !matches!(goes_on, GoesOn::Written(_));
            Some(Waiter { tid: pid, may_end, goes_on, reply_to: reply_to.clone() })
        };
        let waits = |operation| self.reply(unique, reply_to, operation, waiter(GoesOn::Nothing));
        let runs = |operation| self.reply(unique, reply_to, operation, None);
        // The upload of a file goes on without the thread that waited for it.
        let stores = |operation, handle| {
            self.reply(unique, reply_to, operation, waiter(GoesOn::Storing(handle, operation)))
        };
        match request.operation {
            Operation::Lookup { name } => {
                let (reply, undo) = (waits("lookup"), ops.clone());
                ops.lookup(node, name, move |result| match result {
                    Ok(entry) => {
                        if !reply.send(encode::entry(&entry)) {
                            undo.forget(entry.attr.ino, 1);
                        }
                    }
                    Err(error) => reply.refuse(&error),
                });
            }
            Operation::Forget { count } => {
                ops.forget(node, count);
                self.metrics.work.ring();
            }
            Operation::BatchForget { nodes } => {
                nodes.into_iter().for_each(|(node, count)| ops.forget(InodeNo(node), count));
                self.metrics.work.ring();
            }
            Operation::Getattr => ops.getattr(node, attributes(waits("getattr"))),
            Operation::Setattr { mode, uid, gid, size, handle, accessed, modified } => {
                let wish = SetAttr { mode, uid, gid, size, handle: handle.map(HandleNo), accessed, modified };
                ops.setattr(node, wish, attributes(waits("setattr")));
            }
            Operation::Mknod { mode, name } => {
                let reply = runs("mknod");
                if rustix::fs::FileType::from_raw_mode(mode) != rustix::fs::FileType::RegularFile {
                    // mknod(2) demands EPERM for a kind of file that the file system does not have.
                    return reply.errno(Errno::PERM);
                }
                ops.mknod(node, name.to_owned(), maker(mode), entry(reply));
            }
            Operation::Mkdir { mode, name } => {
                ops.mkdir(node, name.to_owned(), maker(mode), entry(runs("mkdir")));
            }
            Operation::Unlink { name } => {
                ops.unlink(node, name.to_owned(), runs("unlink").removed(is_resent));
            }
            Operation::Rmdir { name } => ops.rmdir(node, name.to_owned(), runs("rmdir").removed(is_resent)),
            Operation::Rename { name, new_parent, new_name, flags } => {
                let (name, new_name) = (name.to_owned(), new_name.to_owned());
                ops.rename(node, name, InodeNo(new_parent), new_name, flags, runs("rename").empty());
            }
            Operation::Symlink { name, target } => {
                let (name, target) = (name.to_owned(), target.to_owned());
                ops.symlink(node, name, target, maker(0o777), entry(runs("symlink")));
            }
            Operation::Readlink => {
                let reply = waits("readlink");
                ops.readlink(node, move |result| match result {
                    Ok(target) => {
                        reply.send(target.into_vec());
                    }
                    Err(error) => reply.refuse(&error),
                });
            }
            Operation::Link { .. } => runs("link").errno(Errno::PERM),
            Operation::Getxattr { name, size } => {
                ops.getxattr(node, name.to_owned(), attribute(waits("getxattr"), size));
            }
            Operation::Listxattr { size } => ops.listxattr(node, attribute(waits("listxattr"), size)),
            Operation::Setxattr { name, value, flags } => {
                let (name, value) = (name.to_owned(), value.to_vec()); // copy: the buffer is only lent
                ops.setxattr(node, name, value, flags, runs("setxattr").empty());
            }
            Operation::Removexattr { name } => {
                ops.removexattr(node, name.to_owned(), runs("removexattr").empty());
            }
            Operation::Fsyncdir { handle } => {
                ops.fsyncdir(HandleNo(handle), waits("fsync of a directory").empty());
            }
            Operation::Lseek { handle, offset, whence } => {
                let reply = waits("lseek");
                ops.lseek(HandleNo(handle), offset, whence, move |result| match result {
                    Ok(place) => {
                        reply.send(place.to_ne_bytes());
                    }
                    Err(error) => reply.refuse(&error),
                });
            }
            Operation::Open { flags } => {
                let (reply, undo) = (waits("open"), ops.clone());
                ops.open(node, open_flags(flags), pid, move |result| match result {
                    Ok(opened) => {
                        undo.gives_file(opened.handle, unique);
                        if !reply.send(encode::open(&opened)) {
                            undo.take_back(opened.handle, None);
                        }
                    }
                    Err(error) => reply.refuse(&error),
                });
            }
            Operation::Create { flags, mode, name } => {
                let (reply, undo) = (waits("create"), ops.clone());
                let (name, flags) = (name.to_owned(), open_flags(flags));
                ops.create(node, name, flags, maker(mode), pid, move |result| match result {
                    Ok((entry, opened)) => {
                        undo.gives_file(opened.handle, unique);
                        if !reply.send(encode::create(&entry, &opened)) {
                            undo.take_back(opened.handle, Some(entry.attr.ino));
                        }
                    }
                    Err(error) => reply.refuse(&error),
                });
            }
            Operation::Read { handle, offset, size } => {
                let reply = waits("read");
                ops.read(HandleNo(handle), offset, size as usize, move |result| match result {
                    Ok(bytes) => {
                        reply.channel.metrics.fuse_io.of("read").record(bytes.len() as u64);
                        reply.send(bytes);
                    }
                    Err(error) => reply.refuse(&error),
                });
            }
            Operation::Write { handle, data, mapped: true, .. } if !ops.takes_mapped(HandleNo(handle)) => {
                let reply = waits("mmap");
                self.metrics.fuse_errors.of("mmap").inc();
                ops.refuse_mapped(node, HandleNo(handle));
                reply.send(encode::written(data.len() as u32));
                self.pages.drop_soon(node);
            }
            Operation::Write { flags, .. } if open_flags(flags).sync && !ops.syncs_writes() => {
                waits("write").refuse(&unsynced());
            }
            Operation::Write { handle, offset, data, flags, .. } => {
                // The bytes of a write are taken in their turn, even if the write is interrupted. Only the reply waits until there is room
                // for more bytes. An interrupt ends that wait, and its answer says that the bytes are taken.
                let len = data.len() as u32;
                let reply = self.reply(unique, reply_to, "write", waiter(GoesOn::Written(len)));
                self.metrics.fuse_io.of("write").record(len.into());
                let (handle, syncs) = (HandleNo(handle), open_flags(flags).sync.then(|| ops.clone()));
                let answer = move |result| match result {
                    Ok(()) => {
                        reply.send(encode::written(len));
                    }
                    Err(error) => reply.refuse(&error),
                };
                ops.write(handle, offset, data, pid, move |result| match (result, syncs) {
                    (Ok(()), Some(ops)) => ops.fsync(handle, answer),
                    (result, _) => answer(result),
                });
                self.pending.may_end(unique);
            }
            Operation::Flush { handle } => {
                let handle = HandleNo(handle);
                ops.flush(handle, pid, stores("close", handle).empty());
                // A killed thread closes its files while it exits, when no signal can interrupt it.
                if let Interrupted::Now(waiter) = self.pending.interrupt(unique, is_killed) {
                    self.end_interrupted(unique, &waiter);
                }
            }
            Operation::Fsync { handle } => {
                let handle = HandleNo(handle);
                ops.fsync(handle, stores("fsync", handle).empty());
            }
            Operation::Fallocate { handle, offset, len, mode } => {
                ops.fallocate(HandleNo(handle), Fallocate { offset, len, mode }, runs("fallocate").empty());
            }
            Operation::Release { handle } => ops.release(HandleNo(handle), runs("release").empty()),
            Operation::Opendir => {
                let (reply, undo) = (waits("opendir"), ops.clone());
                ops.opendir(node, move |result| match result {
                    Ok(no) => {
                        undo.gives_directory(no, unique);
                        if !reply.send(encode::open_out(no.0, 0)) {
                            undo.releasedir(no);
                        }
                    }
                    Err(error) => reply.refuse(&error),
                });
            }
            Operation::Readdir { handle, offset, size } => {
                let (reply, dir_ops) = (waits("readdir"), ops.clone());
                ops.readdir(HandleNo(handle), offset, DirReply::most(size), move |result| match result {
                    Ok(items) => {
                        let mut dir = DirReply::new(size);
                        if let Some(last) = items.iter().take_while(|item| dir.add(item)).last() {
                            dir_ops.gives(HandleNo(handle), offset, last);
                        }
                        reply.send(dir.into_bytes());
                    }
                    Err(error) => reply.refuse(&error),
                });
            }
            Operation::Readdirplus { handle, offset, size } => {
                let (reply, dir_ops) = (waits("readdirplus"), ops.clone());
                let most = DirReply::most_plus(size);
                ops.readdir(HandleNo(handle), offset, most, move |result| match result {
                    Ok(items) => {
                        let mut dir = DirReply::new(size);
                        let items = &items[..dir.fit_plus(&items)];
                        let entries = dir_ops.remember(HandleNo(handle), items);
                        if let Some(last) = items.last() {
                            dir_ops.gives(HandleNo(handle), offset, last);
                        }
                        for (item, entry) in items.iter().zip(&entries) {
                            dir.add_plus(item, entry.as_ref());
                        }
                        if !reply.send(dir.into_bytes()) {
                            entries.iter().flatten().for_each(|entry| dir_ops.forget(entry.attr.ino, 1));
                        }
                    }
                    Err(error) => reply.refuse(&error),
                });
            }
            Operation::Releasedir { handle } => {
                ops.releasedir(HandleNo(handle));
                runs("releasedir").send(());
            }
            Operation::Statfs => {
                runs("statfs").send(encode::statfs(&ops.statfs()));
            }
            Operation::Interrupt { unique: target } => self.interrupt(unique, target),
            Operation::Destroy => {
                runs("destroy").send(());
            }
            Operation::Init { .. } => runs("init").errno(Errno::IO),
            Operation::Other { opcode } => {
                tracing::debug!("the engine does not implement opcode {opcode}");
                runs("other").errno(Errno::NOSYS);
            }
        }
    }

    /// Whether to refuse a repeated request, because several engines in a row ended with it.
    fn kills_engines(&self, request: &Request<'_>) -> bool {
        let is_answered = request.operation.is_answered();
        let Some(journal) = self.journal.as_ref().filter(|_| is_answered) else { return false };
        let refuses = journal.refuses(request.unique, self.clock.wall());
        if refuses {
            tracing::error!(
                "/dev/fuse: a request on inode {} was under way when three engines ended within a minute; answering EIO",
                request.node
            );
        }
        refuses
    }

    /// Handles a signal to a waiting thread. Only a signal that ends the thread ends its request: see `caller.rs`. The kernel reports the
    /// signal once, so this task looks again until the thread or the request is over.
    fn interrupt(self: &Arc<Self>, unique: u64, target: u64) {
        match self.pending.interrupt(target, is_dying) {
            Interrupted::Now(waiter) => self.end_interrupted(target, &waiter),
            Interrupted::NotYet => {
                let channel = Arc::clone(self);
                self.runtime.spawn(async move {
                    loop {
                        channel.clock.sleep(LOOK_AGAIN).await;
                        match channel.pending.interrupt(target, is_dying) {
                            Interrupted::NotYet => {}
                            Interrupted::Now(waiter) => return channel.end_interrupted(target, &waiter),
                            Interrupted::Never | Interrupted::Unknown => return,
                        }
                    }
                });
            }
            Interrupted::Never => {}
            // Another thread may be about to take the request: the kernel sends the INTERRUPT again while the request waits. Requests of a
            // ring get no second INTERRUPT: their queue checks itself.
            Interrupted::Unknown => {
                if let Err(error) = self.device.reply(unique, Errno::AGAIN.raw_os_error(), []) {
                    tracing::debug!("interrupt of {target}: {error}");
                }
            }
        }
    }

    /// Ends a request if its thread was killed meanwhile.
    pub(super) fn look_at(&self, unique: u64) {
        if let Interrupted::Now(waiter) = self.pending.interrupt(unique, is_dying) {
            self.end_interrupted(unique, &waiter);
        }
    }

    /// Answers a request that was removed from the pending ones because its thread dies.
    fn end_interrupted(&self, unique: u64, waiter: &Waiter) {
        let interrupted = (Errno::INTR.raw_os_error(), Answer::Nothing);
        let (errno, answer) = match waiter.goes_on {
            GoesOn::Nothing => interrupted,
            GoesOn::Storing(handle, operation) => {
                // This comes before the answer, after which the kernel can release the handle.
                self.ops.nobody_waits(handle, operation);
                interrupted
            }
            GoesOn::Written(len) => (0, encode::written(len).into()),
        };
        if let Err(error) = self.answer(&waiter.reply_to, unique, errno, answer) {
            tracing::debug!("interrupt of {unique}: {error}");
        }
    }
}

fn attributes<O: Operations>(reply: Reply<O>) -> impl FnOnce(Result<crate::fs::Attr>) + Send + 'static {
    move |result| match result {
        Ok(attr) => {
            reply.send(encode::attributes(&attr));
        }
        Err(error) => reply.refuse(&error),
    }
}

fn entry<O: Operations>(reply: Reply<O>) -> impl FnOnce(Result<crate::fs::Entry>) + Send + 'static {
    move |result| match result {
        Ok(entry) => {
            reply.send(encode::entry(&entry));
        }
        Err(error) => reply.refuse(&error),
    }
}

/// Sends an extended attribute, or the list of names. A caller with size 0 gets only the length; one with too little room gets ERANGE.
fn attribute<O: Operations>(reply: Reply<O>, size: u32) -> impl FnOnce(Result<Vec<u8>>) + Send + 'static {
    move |result| match result {
        Ok(value) if size == 0 => {
            reply.send(encode::attribute_len(value.len()));
        }
        Ok(value) if value.len() > size as usize => reply.errno(Errno::RANGE),
        Ok(value) => {
            reply.send(value);
        }
        Err(error) => reply.refuse(&error),
    }
}
