//! The engine's own transport. Over `/dev/fuse` a few threads each read a request, call the operation, and read the next; over io_uring the
//! threads of `ring/` bring the requests, and one stays with `/dev/fuse`.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::panic::AssertUnwindSafe;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use rustix::io::Errno;

use super::backing;
use super::capability::{self, Besides, PROTOCOL, PROTOCOL_MIN, init_out};
use super::channel::Channel;
use super::device::FuseDevice;
use super::operations::Operations;
use super::options::MountOptions;
use super::pending::ReplyTo;
use super::request::{DecodeError, Operation, Request, decode};
use super::request_buffer::RequestBuffer;
use super::ring::{self, Rings};
use crate::fs::Backings;
use crate::metrics::Metrics;
use crate::outlive::{Agreed, Greeting, Journal, Refused, Wished};
use crate::supervise::Supervisor;
use crate::sync::Arc;

/// Longest wait until the kernel repeats an unanswered INIT; after it, INIT counts as answered. Doubling it delays the next engine by as
/// much, if an engine was killed within microseconds of its answer.
const INIT_WITHIN: Duration = Duration::from_millis(200);

/// A connection whose INIT is answered.
pub(super) struct Greeted<O> {
    pub(super) channel: Arc<Channel<O>>,
    rings: Option<Rings<O>>,
}

/// Answers INIT. Over `/dev/fuse`, programs can use the file system after this call; over rings, after it is served. `rings` makes them, if
/// the kernel's flags and the device allow that.
pub(super) fn greet<O: Operations>(
    device: FuseDevice,
    ops: O,
    options: &MountOptions,
    rings: impl FnOnce(u64, BorrowedFd<'_>) -> Option<Rings<O>>,
    metrics: Arc<Metrics>,
    runtime: tokio::runtime::Handle,
    journal: Option<Arc<Journal>>,
) -> anyhow::Result<Greeted<O>> {
    let mut buffer = vec![0; RequestBuffer::LEN];
    let is_greeted = |journal: &Arc<Journal>| journal.agreed().greeting == Greeting::Answering;
    loop {
        let Some(n) = device.read(&mut buffer)? else {
            anyhow::bail!("unmounted before the kernel's first request (INIT)")
        };
        let request = decode(&buffer[..n]);
        let Ok(Request { unique, operation: Operation::Init { major, minor, max_readahead, flags }, .. }) =
            request
        else {
            if let (Ok(request), Some(journal)) = (request, journal.filter(is_greeted)) {
                // The earlier engine was killed right after its answer to INIT.
                let greeted = known(device, ops, options, metrics, runtime, journal)?;
                greeted.channel.dispatch(request, &ReplyTo::Device);
                return Ok(greeted);
            }
            anyhow::bail!(
                "/dev/fuse: the first request is not INIT: the device serves another process already"
            )
        };
        if major > PROTOCOL.0 {
            // The kernel sends INIT again with our version.
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
        let wished = wished(options);
        let may = wished.passthrough;
        let passthrough = may && capability::has_passthrough(flags);
        if may && !passthrough {
            tracing::info!(
                "the kernel can't read cached files, or write staged ones, by itself: that needs Linux 6.9"
            );
        } else if options.passthrough && !may {
            tracing::debug!(
                "the kernel reads and writes no files by itself: this process lacks CAP_SYS_ADMIN"
            );
        }
        let device = Arc::new(device);
        if passthrough {
            ops.allow_passthrough(backings_of(&device, options));
        }
        tell_resized(&device, &ops);
        // The rings come before the answer: after it, the kernel holds requests back until it has the rings.
        let rings = rings(flags, (*device).as_fd());
        let besides = Besides { mapped_direct: wished.mapped_direct, passthrough, ring: rings.is_some() };
        if let Some(journal) = &journal {
            if !capability::can_resend(flags) {
                tracing::warn!(
                    "the kernel can't send requests again (it needs Linux 6.9): the mount ends with this process"
                );
            }
            let wished = Some(wished);
            journal.agree(Agreed {
                greeting: Greeting::Answering,
                passthrough,
                wished,
                ..journal.agreed()
            })?;
        }
        device.reply(unique, 0, [&init_out(flags, max_readahead, besides)[..]])?;
        if let Some(journal) = &journal {
            journal.agree(Agreed { greeting: Greeting::Done, ..journal.agreed() })?;
        }
        let inboxes = rings.as_ref().map(Rings::inboxes).unwrap_or_default();
        let channel = Channel::new(device, inboxes, ops, only(options), metrics, runtime, journal);
        return Ok(Greeted { channel: Arc::new(channel), rings });
    }
}

/// The wish of these flags for the answer to INIT.
fn wished(options: &MountOptions) -> Wished {
    let passthrough = options.passthrough && (backing::is_allowed() || options.registrar.is_some());
    Wished { mapped_direct: options.reads_direct, passthrough }
}

/// The only user besides root whose requests are served; `None` if all users' requests are.
fn only(options: &MountOptions) -> Option<u32> {
    let owner = || rustix::process::getuid().as_raw();
    (options.allow_root && !options.allow_other).then(owner)
}

/// Continues the connection of an earlier engine: the kernel repeats the requests that the earlier engine took and did not answer. Nothing
/// may read from the device before.
pub(super) fn go_on<O: Operations>(
    device: FuseDevice,
    ops: O,
    options: &MountOptions,
    metrics: Arc<Metrics>,
    runtime: tokio::runtime::Handle,
    journal: Arc<Journal>,
) -> anyhow::Result<Greeted<O>> {
    match device.resend() {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
            return Err(Refused::NoResend.into());
        }
        Err(error) => return Err(error).context("/dev/fuse: asking for requests to be sent again"),
    }
    let greets = match journal.agreed().greeting {
        Greeting::Before => true,
        // An INIT without an answer comes again at once.
        Greeting::Answering => device.comes_within(INIT_WITHIN),
        Greeting::Done | Greeting::Ended => false,
    };
    match greets {
        true => greet(device, ops, options, |_, _| None, metrics, runtime, Some(journal)),
        false => known(device, ops, options, metrics, runtime, journal),
    }
}

/// Takes over a connection on which an earlier engine answered INIT.
fn known<O: Operations>(
    device: FuseDevice,
    ops: O,
    options: &MountOptions,
    metrics: Arc<Metrics>,
    runtime: tokio::runtime::Handle,
    journal: Arc<Journal>,
) -> anyhow::Result<Greeted<O>> {
    let device = Arc::new(device);
    tell_resized(&device, &ops);
    let agreed = Agreed { greeting: Greeting::Done, ..journal.agreed() };
    journal.agree(agreed)?;
    let now = wished(options);
    if let Some(before) = agreed.wished.filter(|before| *before != now) {
        tracing::warn!(
            "other flags than at the mount: what the kernel agreed to then stays until the bucket is mounted anew \
             (files past the page cache can be mapped: {}, now {}; the kernel reads cached files: {}, now {})",
            before.mapped_direct,
            now.mapped_direct,
            before.passthrough,
            now.passthrough
        );
    }
    if agreed.passthrough {
        ops.allow_passthrough(backings_of(&device, options));
    } else if options.passthrough {
        tracing::debug!("no passthrough: the engine that mounted had none");
    }
    let channel = Channel::new(device, Vec::new(), ops, only(options), metrics, runtime, Some(journal));
    Ok(Greeted { channel: Arc::new(channel), rings: None })
}

/// Gives the operations a function that makes the kernel drop a file's attributes.
fn tell_resized<O: Operations>(device: &Arc<FuseDevice>, ops: &O) {
    let kernel = Arc::clone(device);
    ops.tell_resized(capability::learns_sizes(&capability::release()), move |ino| {
        if let Err(error) = kernel.drop_attributes(ino.0) {
            tracing::debug!("the attributes of inode {}: {error}", ino.0);
        }
    });
}

/// Creates the rings, if this kernel accepts them; otherwise logs the reason.
pub(super) fn rings_for<O: Operations>(offered: u64, device: BorrowedFd<'_>) -> Option<Rings<O>> {
    let release = capability::release();
    let is_on = capability::has_ring(offered);
    if let Some(warning) = ring::risk::here(&release).filter(|_| is_on) {
        tracing::warn!("{warning}");
    }
    let rings = match is_on {
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

/// The functions that register files with this device, as long as it lives.
fn backings_of(device: &Arc<FuseDevice>, options: &MountOptions) -> Backings {
    if let Some(registrar) = options.registrar.as_ref().filter(|_| !backing::is_allowed()) {
        let device = Arc::downgrade(device);
        registrar.begin(move || (*device.upgrade()?).as_fd().try_clone_to_owned().ok());
        return Backings::of_driver(Arc::clone(registrar));
    }
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

/// Starts the threads that serve the connection.
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
    // Only few requests come by `/dev/fuse` beside a ring.
    let threads = if serving.is_empty() { threads.max(1) } else { 1 };
    for i in 0..threads {
        let channel = Arc::clone(&channel);
        serving.push(supervisor.thread(format!("fuse-{i}"), move || run(&channel))?);
    }
    Ok(serving)
}

/// Takes requests from the device until the unmount.
fn run<O: Operations>(channel: &Arc<Channel<O>>) -> io::Result<()> {
    let outcome = read_all(channel);
    channel.end_queues();
    outcome
}

fn read_all<O: Operations>(channel: &Arc<Channel<O>>) -> io::Result<()> {
    let mut buffer = RequestBuffer::new()?;
    let _idle = channel.metrics.fuse_idle.raised();
    while let Some(n) = channel.device.read(&mut buffer.bytes)? {
        let _busy = channel.metrics.fuse_idle.lowered();
        match decode(&buffer.bytes[..n]) {
            Ok(request) => {
                // A panic answers EIO (the reply is dropped) and costs the mount nothing else.
                let dispatch = AssertUnwindSafe(|| channel.dispatch(request, &ReplyTo::Device));
                if std::panic::catch_unwind(dispatch).is_err() {
                    tracing::error!("/dev/fuse: a request panicked; it was answered EIO");
                }
            }
            Err(DecodeError::NoHeader) => {
                return Err(io::Error::other(format!("/dev/fuse: a request of {n} bytes")));
            }
            Err(DecodeError::Body { unique, opcode }) => {
                tracing::error!("/dev/fuse: can't read request {unique}, opcode {opcode}; answering EIO");
                channel.device.reply(unique, Errno::IO.raw_os_error(), [])?;
            }
        }
        buffer.done(n, || channel.clock.now());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::super::ring::tests::refused::Empty;
    use super::*;
    use crate::testing::log_of;

    /// The log of a greeting by a kernel that offers these capabilities. The other end of a pair of sockets is the kernel.
    fn greeted_by(offered: u64) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (kernel, device) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut init = vec![0_u8; 104];
        let (low, high) = (offered as u32 | 1 << 30, (offered >> 32) as u32);
        for (at, field) in [(0, 104), (4, 26), (8, 1), (40, 7), (44, 39), (52, low), (56, high)] {
            init[at..at + 4].copy_from_slice(&u32::to_ne_bytes(field));
        }
        rustix::io::write(&kernel, &init).unwrap();
        let options =
            MountOptions { passthrough: true, registrar: Some(Arc::default()), ..MountOptions::default() };
        log_of(|| {
            let (device, runtime) = (FuseDevice::adopt(device), runtime.handle().clone());
            greet(device, Empty, &options, |_, _| None, Arc::default(), runtime, None).unwrap();
        })
    }

    #[test]
    fn a_kernel_that_reads_no_files_itself_is_noted_in_one_line() {
        let before = greeted_by(0);
        assert_eq!(before.lines().filter(|line| line.contains("needs Linux 6.9")).count(), 1, "{before}");
        let since = greeted_by(capability::PASSTHROUGH.flag());
        assert!(!since.contains("Linux 6.9"), "{since}");
    }
}
