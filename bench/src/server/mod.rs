//! An S3 server that costs almost nothing, so the bench measures the client. Enters: S3 requests over HTTP. Leaves: answers.
//! The server sends bytes by sendfile from one file with the pattern; the kernel drops written bytes, and the server keeps only their
//! number. Over TLS both cost encryption. The server checks no signatures and stores nothing on disk.

pub(crate) mod control;
pub(crate) mod counters;
pub(crate) mod http;
pub(crate) mod list;
pub(crate) mod ops;
pub(crate) mod store;
#[cfg(test)]
mod tests;
pub(crate) mod tls;
mod wire;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustls::ServerConfig;

use crate::pattern::{self, PERIOD};
use counters::{Kind, Meters, PACED_CHUNK, Pace};
use http::{Answer, Body, Connection, Head};
use store::Store;
use wire::Wire;

/// Most connections at once; a further one is closed at once.
const CONNECTIONS_MAX: usize = 2048;
/// Stack of a connection's thread, in bytes.
const STACK: usize = 256 << 10;
/// Most bytes that one receive drops.
const DROP_MAX: usize = 4 << 20;

/// A server that listens.
#[derive(Debug)]
pub(crate) struct Server {
    listener: TcpListener,
    tls: Option<(TcpListener, Arc<ServerConfig>)>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: Store,
    meters: Meters,
    pattern: OwnedFd,
    connected: AtomicUsize,
}

impl Server {
    /// Listens on loopback; with port 0 the kernel chooses one. With `ca_file` it also listens on a port for TLS, and writes the authority
    /// of its certificate to that file. Both ports serve the same buckets and counters.
    ///
    /// # Errors
    /// The port is taken, there is no memory for the pattern, or the file can't be written.
    pub(crate) fn bind(port: u16, ca_file: Option<&Path>) -> anyhow::Result<Self> {
        let listen = |port| {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port))
                .with_context(|| format!("listen on 127.0.0.1:{port}"))
        };
        let listener = listen(port)?;
        let tls = ca_file.map(|file| anyhow::Ok((listen(0)?, tls::server(file)?))).transpose()?;
        let pattern = pattern_file().context("make the pattern in memory (64 MiB)")?;
        let shared = Shared {
            store: Store::default(),
            meters: Meters::default(),
            pattern,
            connected: AtomicUsize::new(0),
        };
        Ok(Self { listener, tls, shared: Arc::new(shared) })
    }

    /// The addresses of the server: plain, and for TLS.
    ///
    /// # Errors
    /// The socket has no address, which does not happen after bind(2).
    pub(crate) fn addresses(&self) -> anyhow::Result<(SocketAddr, Option<SocketAddr>)> {
        let tls = self.tls.as_ref().map(|(listener, _)| listener.local_addr()).transpose()?;
        Ok((self.listener.local_addr()?, tls))
    }

    /// Serves until the process ends, with one thread per connection.
    ///
    /// # Errors
    /// No more connections can be accepted.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        if let Some((listener, config)) = self.tls {
            let shared = Arc::clone(&self.shared);
            std::thread::spawn(move || {
                // If the second port fails, the server must end: clients of that port would wait for ever.
                if let Err(error) = accept(&listener, &shared, Some(&config)) {
                    eprintln!("{error:#}");
                    std::process::exit(1);
                }
            });
        }
        accept(&self.listener, &self.shared, None)
    }
}

fn accept(
    listener: &TcpListener,
    shared: &Arc<Shared>,
    tls: Option<&Arc<ServerConfig>>,
) -> anyhow::Result<()> {
    loop {
        let (stream, _) = listener.accept().context("accept a connection")?;
        if shared.connected.fetch_add(1, Relaxed) >= CONNECTIONS_MAX {
            shared.connected.fetch_sub(1, Relaxed);
            continue;
        }
        shared.meters.connections.fetch_add(1, Relaxed);
        let (shared, tls) = (Arc::clone(shared), tls.cloned());
        let thread = std::thread::Builder::new().stack_size(STACK);
        thread
            .spawn(move || {
                // A client may close its connection at any time: that is not an error.
                let _ = Wire::new(stream, tls).and_then(|wire| serve(&shared, Connection::new(wire)));
                shared.connected.fetch_sub(1, Relaxed);
            })
            .context("start a connection's thread")?;
    }
}

/// The pattern as a file in memory.
fn pattern_file() -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("bench-pattern", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut page = vec![0; 4096];
    for offset in (0..PERIOD).step_by(page.len()) {
        pattern::fill(0, offset, &mut page);
        rustix::io::pwrite(&file, &page, offset)?;
    }
    Ok(file)
}

fn serve(shared: &Shared, mut connection: Connection) -> io::Result<()> {
    let mut pace = Pace::new();
    let mut scratch = Vec::new();
    while let Some(head) = connection.next()? {
        if head.path.starts_with("/-/") {
            let answer = control::answer(&shared.store, &shared.meters, &head);
            connection.wire().send((answer.head() + answer.text()).as_bytes(), false)?;
            continue;
        }
        let kind = ops::kind(&head);
        shared.meters.count(kind);
        let (Some(length), Some(payload), None) =
            (head.content_length(), head.payload_length(), head.header("transfer-encoding"))
        else {
            let refusal = Answer::error(411, "MissingContentLength");
            return send_answer(shared, &mut connection, &refusal, &mut pace);
        };
        connection.go_on(&head)?;
        let kept = take_body(shared, &mut connection, kind, length, &mut scratch, &mut pace)?;
        let latency = shared.meters.latency_us.load(Relaxed);
        if latency > 0 {
            std::thread::sleep(Duration::from_micros(latency));
        }
        if let Some(stall) = shared.meters.stall(kind) {
            std::thread::sleep(stall);
        }
        let answer = ops::answer(&shared.store, kind, &head, &kept, payload);
        if answer.status >= 400 {
            shared.meters.errors.fetch_add(1, Relaxed);
        }
        send_answer(shared, &mut connection, &answer, &mut pace)?;
        if closes(&head) {
            break;
        }
    }
    connection.wire().finish();
    Ok(())
}

fn closes(head: &Head) -> bool {
    head.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
}

/// Receives a body. Returns it if the operation needs it, otherwise drops it at the connection's pace.
fn take_body(
    shared: &Shared,
    connection: &mut Connection,
    kind: Kind,
    length: u64,
    scratch: &mut Vec<u8>,
    pace: &mut Pace,
) -> io::Result<String> {
    if matches!(kind, Kind::CompleteUpload | Kind::Delete | Kind::CreateUpload) {
        return connection.keep(length);
    }
    if length > 0 && scratch.is_empty() {
        // The kernel drops the bytes without touching the buffer, which takes only address space.
        *scratch = vec![0; DROP_MAX];
    }
    let rate = shared.meters.rate_bytes_per_s.load(Relaxed);
    let mut left = length;
    while left > 0 {
        let at_most = if rate > 0 { left.min(PACED_CHUNK) } else { left };
        let count = connection.drop_some(usize::try_from(at_most).unwrap_or(usize::MAX), scratch)? as u64;
        shared.meters.bytes_received.fetch_add(count, Relaxed);
        left -= count;
        if rate > 0 {
            std::thread::sleep(pace.spend(count, rate, Instant::now()));
        }
    }
    Ok(String::new())
}

fn send_answer(
    shared: &Shared,
    connection: &mut Connection,
    answer: &Answer,
    pace: &mut Pace,
) -> io::Result<()> {
    let mut head = answer.head();
    let wire = connection.wire();
    shared.meters.keys_sent.fetch_add(answer.keys as u64, Relaxed);
    match &answer.body {
        Body::Length(_) => wire.send(head.as_bytes(), false),
        Body::Text(text) => {
            shared.meters.bytes_sent.fetch_add(text.len() as u64, Relaxed);
            head.push_str(text);
            wire.send(head.as_bytes(), false)
        }
        Body::Pattern { base, offset, len } => {
            wire.send(head.as_bytes(), *len > 0)?;
            send_pattern(shared, wire, base + offset, *len, pace)
        }
    }
}

fn send_pattern(shared: &Shared, wire: &mut Wire, from: u64, len: u64, pace: &mut Pace) -> io::Result<()> {
    let rate = shared.meters.rate_bytes_per_s.load(Relaxed);
    let (mut position, mut left) = (from % PERIOD, len);
    while left > 0 {
        let at_most = if rate > 0 { left.min(PACED_CHUNK) } else { left };
        let count = at_most.min(PERIOD - position);
        let sent = wire.send_file(&shared.pattern, position, count as usize)? as u64;
        shared.meters.bytes_sent.fetch_add(sent, Relaxed);
        position = (position + sent) % PERIOD;
        left -= sent;
        if rate > 0 {
            std::thread::sleep(pace.spend(sent, rate, Instant::now()));
        }
    }
    Ok(())
}
