//! Our own loop over `/dev/fuse`: a few threads that each read a request, call the operation, and read the next.

use std::io;
use std::panic::AssertUnwindSafe;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;

use super::device::FuseDevice;
use super::encode::{self, DirReply};
use super::ops::Operations;
use super::pending::{Interrupted, Pending};
use super::process::is_dying;
use super::reply::{open_flags, refusal};
use super::request::{DecodeError, HEADER_LEN, Operation, Request, decode};
use super::{BACKGROUND_MAX, DIR_BATCH, TRANSFER_MAX};
use crate::fs::{Error, HandleNo, Result, SetAttr};
use crate::inode::InodeNo;
use crate::metrics::Metrics;
use crate::sync::Arc;

/// What the kernel must at least speak: 7.31 is Linux 5.4.
const PROTOCOL: (u32, u32) = (7, 31);
/// What we speak; the kernel falls back to it.
const PROTOCOL_OURS: (u32, u32) = (7, 40);

/// Capabilities we ask for where the kernel offers them, with the reason for each.
const CAPABILITIES: [(u64, &str); 9] = [
    (1 << 0, "ASYNC_READ: several reads of one handle at once"),
    (1 << 3, "ATOMIC_O_TRUNC: replacing a file is one decision, at open"),
    (1 << 5, "BIG_WRITES: writes above a page"),
    (1 << 13, "DO_READDIRPLUS: a listing's attributes save the lookups; always, as S3 sends them anyway"),
    (1 << 18, "PARALLEL_DIROPS: lookups in one directory at once"),
    (1 << 22, "MAX_PAGES: requests of a whole block"),
    (1 << 30, "INIT_EXT: the upper half of these bits"),
    (1 << 36, "DIRECT_IO_ALLOW_MMAP: mmap of a file opened with O_DIRECT"),
    (1 << 38, "NO_EXPORT_SUPPORT: no file handles by inode number, so no NFS re-export"),
];

/// How soon a request whose thread was signalled is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// A connection that is served.
pub(super) struct Channel {
    device: FuseDevice,
    ops: Operations,
    pending: Pending,
    metrics: Arc<Metrics>,
    /// Requests of other users are refused but for root's (`allow_root`: the kernel only knows `allow_other`).
    only: Option<u32>,
}

/// Greets the kernel. Once this returns, the file system can be used.
pub(super) fn greet(
    device: FuseDevice,
    ops: Operations,
    only: Option<u32>,
    metrics: Arc<Metrics>,
) -> anyhow::Result<Arc<Channel>> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Some(n) = device.read(&mut buffer)? else {
            anyhow::bail!("unmounted before the kernel said hello")
        };
        let Ok(Request { unique, operation: Operation::Init { major, minor, max_readahead, flags }, .. }) =
            decode(&buffer[..n])
        else {
            anyhow::bail!(
                "/dev/fuse: the first request is not INIT: the device serves another process already"
            )
        };
        if major > PROTOCOL_OURS.0 {
            // It will say hello again in our version.
            let mut out = [0; 8];
            out[..4].copy_from_slice(&PROTOCOL_OURS.0.to_ne_bytes());
            out[4..].copy_from_slice(&PROTOCOL_OURS.1.to_ne_bytes());
            device.reply(unique, 0, [&out[..]])?;
            continue;
        }
        if (major, minor) < PROTOCOL {
            device.reply(unique, Errno::PROTO.raw_os_error(), [])?;
            anyhow::bail!(
                "the kernel speaks FUSE {major}.{minor}; {}.{} or later is needed (Linux 5.4)",
                PROTOCOL.0,
                PROTOCOL.1
            );
        }
        device.reply(unique, 0, [&init_out(flags, max_readahead)[..]])?;
        return Ok(Arc::new(Channel { device, ops, pending: Pending::default(), metrics, only }));
    }
}

/// `struct fuse_init_out`, 64 bytes.
fn init_out(offered: u64, max_readahead: u32) -> Vec<u8> {
    let flags = CAPABILITIES.iter().map(|(bit, _)| bit & offered).sum::<u64>();
    let mut out = Vec::with_capacity(64);
    for field in [PROTOCOL_OURS.0, PROTOCOL_OURS.1, max_readahead.max(TRANSFER_MAX), flags as u32] {
        out.extend(field.to_ne_bytes());
    }
    out.extend(BACKGROUND_MAX.to_ne_bytes());
    out.extend((BACKGROUND_MAX / 4 * 3).to_ne_bytes());
    out.extend(TRANSFER_MAX.to_ne_bytes());
    out.extend(1u32.to_ne_bytes()); // times to the nanosecond
    out.extend(((TRANSFER_MAX / 4096) as u16).to_ne_bytes());
    out.extend(0u16.to_ne_bytes());
    out.extend(((flags >> 32) as u32).to_ne_bytes());
    out.resize(64, 0);
    out
}

/// Starts the threads.
pub(super) fn serve(channel: &Arc<Channel>, threads: usize) -> io::Result<Vec<JoinHandle<io::Result<()>>>> {
    (0..threads.max(1))
        .map(|i| {
            let channel = Arc::clone(channel);
            std::thread::Builder::new().name(format!("fuse-{i}")).spawn(move || channel.run())
        })
        .collect()
}

/// Where one request's answer goes. Dropped unanswered (a panic on the way), it answers EIO.
struct Reply {
    channel: Arc<Channel>,
    unique: u64,
    operation: &'static str,
    open: bool,
}

impl Reply {
    /// Takes the request off the list; false when it was interrupted.
    fn take(&mut self) -> bool {
        self.open = false;
        self.channel.pending.end(self.unique)
    }

    fn write<'a>(&self, errno: i32, slices: impl IntoIterator<Item = &'a [u8]>) {
        if let Err(error) = self.channel.device.reply(self.unique, errno, slices) {
            tracing::error!("{}: the kernel did not take the reply: {error}", self.operation);
        }
    }

    /// Answers. False when nobody waits any more: what the operation did may have to be undone.
    fn send<'a>(mut self, slices: impl IntoIterator<Item = &'a [u8]>) -> bool {
        let wanted = self.take();
        if wanted {
            self.write(0, slices);
        }
        wanted
    }

    fn refuse(mut self, error: &Error) {
        let errno = refusal(self.operation, error, &self.channel.metrics);
        if self.take() {
            self.write(errno, []);
        }
    }

    fn errno(mut self, errno: Errno) {
        if self.take() {
            self.write(errno.raw_os_error(), []);
        }
    }

    fn empty(self) -> impl FnOnce(Result<()>) + Send + 'static {
        move |result| match result {
            Ok(()) => {
                self.send([]);
            }
            Err(error) => self.refuse(&error),
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.open && self.take() {
            tracing::error!("{}: left unanswered; answering EIO", self.operation);
            self.write(Errno::IO.raw_os_error(), []);
        }
    }
}

impl Channel {
    fn run(self: Arc<Self>) -> io::Result<()> {
        // As much as the kernel may send at once: a WRITE of the largest size and its headers.
        let mut buffer = vec![0; TRANSFER_MAX as usize + 4096 + HEADER_LEN];
        while let Some(n) = self.device.read(&mut buffer)? {
            match decode(&buffer[..n]) {
                Ok(request) => {
                    // A panic answers EIO (the reply is dropped) and costs the mount nothing else.
                    let dispatch = AssertUnwindSafe(|| self.dispatch(request));
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
        }
        Ok(())
    }

    /// `waiter`: the thread that may be interrupted in it.
    fn reply(self: &Arc<Self>, unique: u64, operation: &'static str, waiter: Option<u32>) -> Reply {
        self.pending.begin(unique, waiter);
        Reply { channel: Arc::clone(self), unique, operation, open: true }
    }

    fn dispatch(self: &Arc<Self>, request: Request<'_>) {
        let (unique, node, pid) = (request.unique, InodeNo(request.node), request.pid);
        let ops = &self.ops;
        if self.only.is_some_and(|owner| request.uid != owner && request.uid != 0)
            && !request.operation.follows_an_open()
        {
            return self.reply(unique, "access", None).errno(Errno::ACCESS);
        }
        // What changes names or may have changed them runs to its end; what only waits can be interrupted.
        let waits = |operation| self.reply(unique, operation, Some(pid));
        let runs = |operation| self.reply(unique, operation, None);
        match request.operation {
            Operation::Lookup { name } => {
                let (reply, undo) = (waits("lookup"), ops.clone());
                ops.lookup(node, name, move |result| match result {
                    Ok(entry) => {
                        if !reply.send([&encode::entry(&entry)[..]]) {
                            undo.forget(entry.attr.ino, 1);
                        }
                    }
                    Err(error) => reply.refuse(&error),
                });
            }
            Operation::Forget { count } => ops.forget(node, count),
            Operation::BatchForget { nodes } => {
                nodes.into_iter().for_each(|(node, count)| ops.forget(InodeNo(node), count));
            }
            Operation::Getattr => ops.getattr(node, attributes(waits("getattr"))),
            Operation::Setattr { mode_or_owner, size, times } => {
                ops.setattr(node, SetAttr { mode_or_owner, size, times }, attributes(runs("setattr")));
            }
            Operation::Mknod { mode, name } => {
                let reply = runs("mknod");
                if rustix::fs::FileType::from_raw_mode(mode) != rustix::fs::FileType::RegularFile {
                    return reply.errno(Errno::INVAL);
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
                let flags = open_flags(flags);
                // To undo an open for writing would be to store an empty file: it runs to its end.
                let reply = if flags.write { runs("open") } else { waits("open") };
                let undo = ops.clone();
                ops.open(node, flags, pid, move |result| match result {
                    Ok(opened) => {
                        if !reply.send([&encode::open(&opened)[..]]) {
                            undo.release(opened.handle, |_| {});
                        }
                    }
                    Err(error) => reply.refuse(&error),
                });
            }
            Operation::Create { flags, name } => {
                let reply = runs("create");
                ops.create(node, name.to_owned(), open_flags(flags), pid, move |result| match result {
                    Ok((entry, opened)) => {
                        reply.send([&encode::create(&entry, &opened)[..]]);
                    }
                    Err(error) => reply.refuse(&error),
                });
            }
            Operation::Read { handle, offset, size } => {
                let reply = waits("read");
                ops.read(HandleNo(handle), offset, size as usize, move |result| match result {
                    Ok(bytes) => {
                        reply.send(bytes.slices());
                    }
                    Err(error) => reply.refuse(&error),
                });
            }
            Operation::Write { handle, offset, data } => {
                let (reply, len) = (runs("write"), data.len() as u32);
                ops.write(HandleNo(handle), offset, data, move |result| match result {
                    Ok(()) => {
                        reply.send([&encode::written(len)[..]]);
                    }
                    Err(error) => reply.refuse(&error),
                });
            }
            Operation::Flush { handle } => {
                ops.flush(HandleNo(handle), pid, outcome_told(waits("close"), node))
            }
            Operation::Fsync { handle } => ops.fsync(HandleNo(handle), outcome_told(waits("fsync"), node)),
            Operation::Release { handle } => ops.release(HandleNo(handle), runs("release").empty()),
            Operation::Opendir => {
                let (reply, undo) = (waits("opendir"), ops.clone());
                ops.opendir(node, move |result| match result {
                    Ok(no) => {
                        if !reply.send([&encode::open_out(no.0, 0)[..]]) {
                            undo.releasedir(no);
                        }
                    }
                    Err(error) => reply.refuse(&error),
                });
            }
            Operation::Readdir { handle, offset, size } => {
                let reply = waits("readdir");
                ops.readdir(HandleNo(handle), offset, DIR_BATCH, move |result| match result {
                    Ok(items) => {
                        let mut dir = DirReply::new(size);
                        let _ = items.iter().all(|item| dir.add(item));
                        reply.send([dir.bytes()]);
                    }
                    Err(error) => reply.refuse(&error),
                });
            }
            Operation::Readdirplus { handle, offset, size } => {
                let (reply, dir_ops) = (waits("readdirplus"), ops.clone());
                ops.readdir(HandleNo(handle), offset, DIR_BATCH, move |result| match result {
                    Ok(items) => {
                        let mut dir = DirReply::new(size);
                        let mut taken = Vec::new();
                        for item in &items {
                            if !dir.fits_plus(item) {
                                break;
                            }
                            let entry = dir_ops.remember(HandleNo(handle), item);
                            dir.add_plus(item, entry.as_ref());
                            taken.extend(entry.map(|e| e.attr.ino));
                        }
                        if !reply.send([dir.bytes()]) {
                            taken.into_iter().for_each(|ino| dir_ops.forget(ino, 1));
                        }
                    }
                    Err(error) => reply.refuse(&error),
                });
            }
            Operation::Releasedir { handle } => {
                ops.releasedir(HandleNo(handle));
                runs("releasedir").send([]);
            }
            Operation::Statfs => {
                runs("statfs").send([&encode::statfs(&ops.statfs())[..]]);
            }
            Operation::Interrupt { unique: target } => self.interrupt(unique, target),
            Operation::Destroy => {
                runs("destroy").send([]);
            }
            Operation::Init { .. } => runs("init").errno(Errno::IO),
            Operation::Other { opcode } => {
                tracing::debug!("opcode {opcode} is not for us");
                runs("other").errno(Errno::NOSYS);
            }
        }
    }

    /// A signal came to a thread that waits. Only one that ends the thread ends its request: programs do not expect EINTR from
    /// close, stat or readdir for a SIGCHLD. The kernel says it once, so we look again until either is over.
    fn interrupt(self: &Arc<Self>, unique: u64, target: u64) {
        match self.pending.interrupt(target, is_dying) {
            Interrupted::Now => self.answer_interrupted(target, Errno::INTR),
            Interrupted::NotYet => {
                let channel = Arc::clone(self);
                self.ops.spawn(async move {
                    loop {
                        tokio::time::sleep(LOOK_AGAIN).await;
                        match channel.pending.interrupt(target, is_dying) {
                            Interrupted::NotYet => {}
                            Interrupted::Now => return channel.answer_interrupted(target, Errno::INTR),
                            Interrupted::Never | Interrupted::Unknown => return,
                        }
                    }
                });
            }
            Interrupted::Never => {}
            // Perhaps another thread is about to take it: the kernel sends the INTERRUPT again if it still waits.
            Interrupted::Unknown => self.answer_interrupted(unique, Errno::AGAIN),
        }
    }

    fn answer_interrupted(&self, unique: u64, errno: Errno) {
        if let Err(error) = self.device.reply(unique, errno.raw_os_error(), []) {
            tracing::debug!("interrupt of {unique}: {error}");
        }
    }
}

fn attributes(reply: Reply) -> impl FnOnce(Result<crate::fs::Attr>) + Send + 'static {
    move |result| match result {
        Ok(attr) => {
            reply.send([&encode::attributes(&attr)[..]]);
        }
        Err(error) => reply.refuse(&error),
    }
}

fn entry(reply: Reply) -> impl FnOnce(Result<crate::fs::Entry>) + Send + 'static {
    move |result| match result {
        Ok(entry) => {
            reply.send([&encode::entry(&entry)[..]]);
        }
        Err(error) => reply.refuse(&error),
    }
}

/// A close or fsync that was interrupted goes on; its outcome, which nobody waits for, goes to the log.
fn outcome_told(reply: Reply, node: InodeNo) -> impl FnOnce(Result<()>) + Send + 'static {
    move |result| {
        let operation = reply.operation;
        match result {
            Ok(()) => {
                if !reply.send([]) {
                    tracing::warn!(
                        "inode {}: the {operation} that was interrupted did store the object",
                        node.0
                    );
                }
            }
            Err(error) => {
                tracing::debug!("inode {}: {operation}: {error}", node.0);
                reply.refuse(&error);
            }
        }
    }
}
