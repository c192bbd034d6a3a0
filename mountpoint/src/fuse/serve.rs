//! The engine's own transport. Over `/dev/fuse` a few threads each read a request, call the operation, and read the next; over io_uring the
//! threads of `ring/` bring the requests, and one stays with `/dev/fuse`.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::panic::AssertUnwindSafe;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::MountOptions;
use super::answer::Answer;
use super::backing;
use super::caller::{is_dying, is_killed};
use super::capability::{self, Besides, PROTOCOL, PROTOCOL_MIN, init_out};
use super::device::FuseDevice;
use super::encode::{self, DirReply};
use super::operations::Operations;
use super::pages::Pages;
use super::pending::{Interrupted, Pending, Waiter};
use super::reply::{open_flags, refusal};
use super::request::{DecodeError, Operation, Request, decode};
use super::ring::{self, Inbox, Place, Rings};
use super::room::Room;
use crate::clock::Clock;
use crate::fs::{Backings, Error, Fallocate, HandleNo, Result, SetAttr, unsynced};
use crate::inode::InodeNo;
use crate::metrics::Metrics;
use crate::sync::{Arc, Supervisor};

/// How soon a request whose thread was signalled is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Where the answer of a request goes: to where it came from.
#[derive(Clone, Debug)]
pub(super) enum ReplyTo {
    Device,
    Queue(Place),
}

/// A connection that is served.
pub(super) struct Channel<O> {
    device: Arc<FuseDevice>,
    /// Of the queues of the ring, if requests come by one.
    inboxes: Vec<Arc<Inbox>>,
    ops: O,
    pending: Pending,
    pages: Arc<Pages>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
    /// For what runs beside the requests.
    runtime: tokio::runtime::Handle,
    /// Requests of other users are refused but for root's (`allow_root`: the kernel only knows `allow_other`).
    only: Option<u32>,
}

/// A connection whose kernel was greeted.
pub(super) struct Greeted<O> {
    channel: Arc<Channel<O>>,
    rings: Option<Rings<O>>,
}

/// Greets the kernel. By `/dev/fuse` the file system can be used once this returns; by rings, once it is served. `rings` makes them, if the
/// kernel's flags and the device are right.
pub(super) fn greet<O: Operations>(
    device: FuseDevice,
    ops: O,
    options: &MountOptions,
    rings: impl FnOnce(u64, BorrowedFd<'_>) -> Option<Rings<O>>,
    metrics: Arc<Metrics>,
    runtime: tokio::runtime::Handle,
) -> anyhow::Result<Greeted<O>> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Some(n) = device.read(&mut buffer)? else {
            anyhow::bail!("unmounted before the kernel's first request (INIT)")
        };
        let Ok(Request { unique, operation: Operation::Init { major, minor, max_readahead, flags }, .. }) =
            decode(&buffer[..n])
        else {
            anyhow::bail!(
                "/dev/fuse: the first request is not INIT: the device serves another process already"
            )
        };
        if major > PROTOCOL.0 {
            // It will say hello again in our version.
            let mut out = [0; 8];
            out[..4].copy_from_slice(&PROTOCOL.0.to_ne_bytes());
            out[4..].copy_from_slice(&PROTOCOL.1.to_ne_bytes());
            device.reply(unique, 0, [&out[..]])?;
            continue;
        }
        if (major, minor) < PROTOCOL_MIN {
            device.reply(unique, Errno::PROTO.raw_os_error(), [])?;
            anyhow::bail!(
                "the kernel speaks FUSE {major}.{minor}; {}.{} or later is needed (Linux 5.4)",
                PROTOCOL_MIN.0,
                PROTOCOL_MIN.1
            );
        }
        for capability in capability::missing(flags) {
            tracing::debug!("the kernel has no {capability}");
        }
        let passthrough = options.passthrough && capability::has_passthrough(flags) && backing::is_allowed();
        let device = Arc::new(device);
        if passthrough {
            ops.allow_passthrough(backings_of(&device));
        }
        // Before the answer: from then on the kernel holds requests back until it knows the rings.
        let rings = rings(flags, (*device).as_fd());
        let besides = Besides { mapped_direct: options.reads_direct, passthrough, ring: rings.is_some() };
        device.reply(unique, 0, [&init_out(flags, max_readahead, besides)[..]])?;
        let kernel = Arc::clone(&device);
        let pages = Pages::new(move |ino| kernel.drop_pages(ino.0));
        let pending = Pending::default();
        let clock = Clock::machine();
        let inboxes = rings.as_ref().map(Rings::inboxes).unwrap_or_default();
        let owner = || rustix::process::getuid().as_raw();
        let only = (options.allow_root && !options.allow_other).then(owner);
        let channel = Channel { device, inboxes, ops, pending, pages, metrics, clock, runtime, only };
        return Ok(Greeted { channel: Arc::new(channel), rings });
    }
}

/// Rings, if this kernel takes them; else a line in the log.
pub(super) fn rings_for<O: Operations>(offered: u64, device: BorrowedFd<'_>) -> Option<Rings<O>> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let rings = match capability::has_ring(offered) {
        true if ring::is_sound(&release) => Rings::prepare(device),
        true => {
            Err(format!("Linux {} loses memory there; 6.18.3 is the first that does not", release.trim()))
        }
        false => Err("the kernel does not offer it; it needs Linux 6.18.3 and, before the mount, \
                      /sys/module/fuse/parameters/enable_uring = Y"
            .to_owned()),
    };
    rings.map_err(|why| no_ring(&why)).ok()
}

fn no_ring(why: &str) {
    tracing::warn!("no FUSE over io_uring ({why}); requests go through /dev/fuse");
}

/// Files are registered with this device, as long as it lives.
fn backings_of(device: &Arc<FuseDevice>) -> Backings {
    let (here, there) = (Arc::downgrade(device), Arc::downgrade(device));
    let register = move |file: BorrowedFd<'_>| {
        here.upgrade().map_or_else(|| Err(Errno::NODEV.into()), |device| backing::register(&*device, file))
    };
    let forget = move |id| {
        if let Some(device) = there.upgrade()
            && let Err(error) = backing::forget(&*device, id)
        {
            tracing::debug!("/dev/fuse: taking back the registered file {id}: {error}");
        }
    };
    Backings::new(register, forget)
}

/// Starts the threads.
pub(super) fn serve<O: Operations>(
    greeted: Greeted<O>,
    threads: usize,
) -> io::Result<Vec<JoinHandle<io::Result<()>>>> {
    let Greeted { channel, rings } = greeted;
    let mut serving = Vec::new();
    if let Some(rings) = rings {
        match rings.start(&channel) {
            Ok(threads) => serving = threads,
            Err(refusal) if refusal.is_known => no_ring(&refusal.why),
            Err(refusal) => {
                return Err(io::Error::other(format!("FUSE over io_uring: {}", refusal.why)));
            }
        }
    }
    let supervisor = Supervisor { metrics: Arc::clone(&channel.metrics), clock: channel.clock.clone() };
    // What does not come by the ring is little.
    let threads = if serving.is_empty() { threads.max(1) } else { 1 };
    for i in 0..threads {
        let channel = Arc::clone(&channel);
        serving.push(supervisor.thread(format!("fuse-{i}"), move || Arc::clone(&channel).run())?);
    }
    Ok(serving)
}

/// Where one request's answer goes. Dropped unanswered (a panic on the way), it answers EIO.
struct Reply<O> {
    channel: Arc<Channel<O>>,
    unique: u64,
    operation: &'static str,
    started: Instant,
    open: bool,
    reply_to: ReplyTo,
}

impl<O> Reply<O> {
    /// Takes the request off the list; false when it was interrupted.
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

    /// Answers. False if no thread waits any more: the caller may have to undo the operation.
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

impl<O> Drop for Reply<O> {
    fn drop(&mut self) {
        if self.open && self.take() {
            tracing::error!("{}: nothing answered it; answering EIO", self.operation);
            self.write(Errno::IO.raw_os_error(), Answer::Nothing);
        }
    }
}

impl<O> Channel<O> {
    /// Sends an answer to where its request came from.
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
    /// Takes requests from the device until it is unmounted. The queues of a ring may have no entry by which the kernel could tell them.
    fn run(self: Arc<Self>) -> io::Result<()> {
        let outcome = self.read_all();
        self.inboxes.iter().for_each(|inbox| inbox.close());
        outcome
    }

    fn read_all(self: &Arc<Self>) -> io::Result<()> {
        let mut room = Room::new()?;
        let _idle = self.metrics.fuse_idle.raised();
        while let Some(n) = self.device.read(&mut room.bytes)? {
            let _busy = self.metrics.fuse_idle.lowered();
            match decode(&room.bytes[..n]) {
                Ok(request) => {
                    // A panic answers EIO (the reply is dropped) and costs the mount nothing else.
                    let dispatch = AssertUnwindSafe(|| self.dispatch(request, &ReplyTo::Device));
                    if std::panic::catch_unwind(dispatch).is_err() {
                        tracing::error!("/dev/fuse: a request panicked; it was answered EIO");
                    }
                }
                Err(DecodeError::NoHeader) => {
                    return Err(io::Error::other(format!("/dev/fuse: a request of {n} bytes")));
                }
                Err(DecodeError::Body { unique, opcode }) => {
                    tracing::error!("/dev/fuse: can't read request {unique}, opcode {opcode}; answering EIO");
                    self.device.reply(unique, Errno::IO.raw_os_error(), [])?;
                }
            }
            room.done(n, || self.clock.now());
        }
        Ok(())
    }

    /// How many queues of the ring there are.
    pub(super) fn queues(&self) -> usize {
        self.inboxes.len()
    }

    pub(super) fn device(&self) -> BorrowedFd<'_> {
        (*self.device).as_fd()
    }

    /// `waiter`: the thread whose death interrupts it.
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
        if self.only.is_some_and(|owner| request.uid != owner && request.uid != 0)
            && !request.operation.follows_an_open()
        {
            return self.reply(unique, reply_to, "access", None).errno(Errno::ACCESS);
        }
        // A change of names runs to its end. A request that only waits can be interrupted; an interrupted open is undone.
        let waiter = |stores| Some(Waiter { tid: pid, stores, reply_to: reply_to.clone() });
        let waits = |operation| self.reply(unique, reply_to, operation, waiter(None));
        let runs = |operation| self.reply(unique, reply_to, operation, None);
        // The upload of a file goes on without the thread that waited for it.
        let stores =
            |operation, handle| self.reply(unique, reply_to, operation, waiter(Some((handle, operation))));
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
            Operation::Setattr { mode, uid, gid, size, accessed, modified } => {
                let wish = SetAttr { mode, uid, gid, size, accessed, modified };
                ops.setattr(node, wish, attributes(waits("setattr")));
            }
            Operation::Mknod { mode, name } => {
                let reply = runs("mknod");
                if rustix::fs::FileType::from_raw_mode(mode) != rustix::fs::FileType::RegularFile {
                    // No kind of file that this file system has, as mknod(2) says it.
                    return reply.errno(Errno::PERM);
                }
                ops.mknod(node, name.to_owned(), entry(reply));
            }
            Operation::Mkdir { name } => ops.mkdir(node, name.to_owned(), entry(runs("mkdir"))),
            Operation::Unlink { name } => ops.unlink(node, name.to_owned(), runs("unlink").empty()),
            Operation::Rmdir { name } => ops.rmdir(node, name.to_owned(), runs("rmdir").empty()),
            // Never sent to the store: most stores answer RenameObject with 200 and an empty object.
            Operation::Rename { flags: 0 } => runs("rename").errno(Errno::NOSYS),
            Operation::Rename { .. } => runs("rename").errno(Errno::INVAL),
            Operation::Symlink | Operation::Link => runs("link").errno(Errno::PERM),
            Operation::Open { flags } => {
                let (reply, undo) = (waits("open"), ops.clone());
                ops.open(node, open_flags(flags), pid, move |result| match result {
                    Ok(opened) => {
                        if !reply.send(encode::open(&opened)) {
                            undo.take_back(opened.handle, None);
                        }
                    }
                    Err(error) => reply.refuse(&error),
                });
            }
            Operation::Create { flags, name } => {
                let (reply, undo) = (waits("create"), ops.clone());
                ops.create(node, name.to_owned(), open_flags(flags), pid, move |result| match result {
                    Ok((entry, opened)) => {
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
            Operation::Write { handle, data, mapped: true, .. } => {
                let reply = waits("mmap");
                self.metrics.fuse_errors.of("mmap").inc();
                ops.refuse_mapped(node, HandleNo(handle));
                reply.send(encode::written(data.len() as u32));
                self.pages.drop_soon(node);
            }
            Operation::Write { flags, .. } if open_flags(flags).sync => waits("write").refuse(&unsynced()),
            Operation::Write { handle, offset, data, .. } => {
                // Interrupted or not, its bytes are taken in their turn: only the reply was held, until there is room for more.
                let (reply, len) = (waits("write"), data.len() as u32);
                self.metrics.fuse_io.of("write").record(len.into());
                ops.write(HandleNo(handle), offset, data, move |result| match result {
                    Ok(()) => {
                        reply.send(encode::written(len));
                    }
                    Err(error) => reply.refuse(&error),
                });
            }
            Operation::Flush { handle } => {
                let handle = HandleNo(handle);
                ops.flush(handle, pid, stores("close", handle).empty());
                // A thread that was killed closes its files on its way out, and nothing interrupts it there.
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
                        if !reply.send(encode::open_out(no.0, 0)) {
                            undo.releasedir(no);
                        }
                    }
                    Err(error) => reply.refuse(&error),
                });
            }
            Operation::Readdir { handle, offset, size } => {
                let reply = waits("readdir");
                ops.readdir(HandleNo(handle), offset, DirReply::most(size), move |result| match result {
                    Ok(items) => {
                        let mut dir = DirReply::new(size);
                        let _ = items.iter().all(|item| dir.add(item));
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

    /// A signal came to a thread that waits. Only one that ends the thread ends its request: see `caller.rs`. The kernel says it
    /// once, so we look again until either is over.
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
            // Perhaps another thread is about to take it: the kernel sends the INTERRUPT again if it still waits. It does not find those of a
            // ring, whose queue looks by itself.
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

    /// Ends a request that was taken off the list for its waiter's death.
    fn end_interrupted(&self, unique: u64, waiter: &Waiter) {
        if let Some((handle, operation)) = waiter.stores {
            // Before the kernel can release the handle.
            self.ops.nobody_waits(handle, operation);
        }
        let errno = Errno::INTR.raw_os_error();
        if let Err(error) = self.answer(&waiter.reply_to, unique, errno, Answer::Nothing) {
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
