//! Floors: lower limits for every file system, each measured by a separate process beside the peers: a receive loop, the page cache, a
//! copy in memory. The null file systems are in `null_fs`.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use rustls::{ClientConnection, StreamOwned};
use serde::{Deserialize, Serialize};

use crate::meter::own_cpu_s;
use crate::null_fs::Transport;
use crate::pattern;
use crate::server::tls;

/// Receive buffer in bytes: small enough for the processor's cache, big enough for huge pages.
const RECEIVE_BUFFER: usize = 8 << 20;
/// Bytes per receive, read or copy.
const PIECE: usize = 1 << 20;
/// Size of the memory for copies and cached reads, in bytes: more than most processors' caches.
const MEMORY: usize = 256 << 20;

/// A floor that is measured beside the peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Floor {
    /// A null file system over memory, mounted like a peer: see `Peer::floors`.
    NullFs(Transport),
    /// A file on the disk of the caches, bound to a directory; mounted like a peer, too.
    PlainFile,
    /// A program that receives one object, over TLS if the workload uses it.
    Receive,
    /// A program that reads a file in memory: the cost of the kernel's copy to a reader.
    PageCache,
    /// A program that copies memory to memory.
    Memcpy,
}

impl Floor {
    /// Whether the floor is mounted like a file system, and read by the workload's own reader.
    pub(crate) fn is_mounted(self) -> bool {
        matches!(self, Self::NullFs(_) | Self::PlainFile)
    }

    /// The name of the floor's row.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NullFs(Transport::Dev) => "(null fs, dev)",
            Self::NullFs(Transport::Fuser) => "(null fs, fuser)",
            Self::PlainFile => "(file on disk)",
            Self::Receive => "(receive loop)",
            Self::PageCache => "(page cache)",
            Self::Memcpy => "(memcpy)",
        }
    }
}

/// The cost of one measured pass.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Pass {
    pub(crate) seconds: f64,
    pub(crate) cpu_s: f64,
    pub(crate) bytes: u64,
}

impl Pass {
    /// Measures the time and CPU of `work`, which returns the number of bytes that it moved.
    fn of(work: impl FnOnce() -> anyhow::Result<u64>) -> anyhow::Result<Self> {
        let (before, begun) = (own_cpu_s(), Instant::now());
        let bytes = work()?;
        Ok(Self { seconds: begun.elapsed().as_secs_f64(), cpu_s: own_cpu_s() - before, bytes })
    }
}

/// Receives one object and drops it; over TLS if `ca_file` names a certificate to trust.
///
/// # Errors
/// The server does not answer, does not have the certificate's key, or sends nothing.
pub(crate) fn receive(server: SocketAddr, path: &str, ca_file: Option<&Path>) -> anyhow::Result<Pass> {
    let stream = TcpStream::connect(server).with_context(|| format!("connect to {server}"))?;
    let Some(ca_file) = ca_file else { return receive_from(stream, path) };
    let session = ClientConnection::new(tls::client(ca_file)?, tls::HOST.try_into()?)?;
    let mut stream = StreamOwned::new(session, tls::Buffered::new(stream));
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).with_context(|| format!("speak TLS with {server}"))?;
    }
    receive_from(stream, path)
}

fn receive_from(mut stream: impl Read + Write, path: &str) -> anyhow::Result<Pass> {
    let mut memory = touched(RECEIVE_BUFFER);
    Pass::of(|| {
        stream.write_all(format!("GET {path} HTTP/1.1\r\nconnection: close\r\n\r\n").as_bytes())?;
        let (mut bytes, mut at) = (0, 0);
        loop {
            let count = stream.read(&mut memory[at..at + PIECE])?;
            if count == 0 {
                break;
            }
            bytes += count as u64;
            at = (at + PIECE) % RECEIVE_BUFFER;
        }
        ensure!(bytes > 0, "nothing came of {path}");
        Ok(bytes)
    })
}

/// Reads `bytes` of a file in memory, from its start to its end, again and again.
///
/// # Errors
/// No memory for the file.
pub(crate) fn page_cache(bytes: u64) -> anyhow::Result<Pass> {
    let size = (MEMORY as u64).min(bytes);
    let file = File::from(rustix::fs::memfd_create("bench-floor", rustix::fs::MemfdFlags::CLOEXEC)?);
    let mut piece = touched(PIECE);
    for offset in (0..size).step_by(PIECE) {
        pattern::fill(0, offset, &mut piece);
        file.write_all_at(&piece, offset).context("fill a file in memory")?;
    }
    let pass = Pass::of(|| {
        for offset in (0..bytes).step_by(PIECE) {
            file.read_exact_at(&mut piece, offset % size)?;
        }
        Ok(bytes)
    })?;
    pattern::check(0, (bytes - PIECE as u64) % size, &piece)?;
    Ok(pass)
}

/// Copies `bytes` of memory, one piece at a time, from one half of it to the other.
///
/// # Errors
/// The copy differs.
pub(crate) fn memcpy(bytes: u64) -> anyhow::Result<Pass> {
    let mut memory = touched(MEMORY.min(2 * bytes as usize));
    let (from, to) = memory.split_at_mut(MEMORY.min(2 * bytes as usize) / 2);
    pattern::fill(0, 0, from);
    let pass = Pass::of(|| {
        for offset in (0..bytes).step_by(PIECE) {
            let at = (offset % from.len() as u64) as usize;
            to[at..at + PIECE].copy_from_slice(&from[at..at + PIECE]);
            std::hint::black_box(&mut *to);
        }
        Ok(bytes)
    })?;
    ensure!(from == to, "a copy differs from what was copied");
    Ok(pass)
}

/// Memory whose pages are allocated before the measurement.
fn touched(size: usize) -> Vec<u8> {
    let mut memory = vec![0; size];
    memory.fill(1);
    memory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_floor_moves_as_many_bytes_as_it_was_told() {
        let size = 3 * PIECE as u64;
        assert_eq!(page_cache(size).unwrap().bytes, size);
        assert_eq!(memcpy(size).unwrap().bytes, size);
        let folder = tempfile::tempdir().unwrap();
        let ca_file = folder.path().join("ca.pem");
        let server = crate::server::Server::bind(0, Some(&ca_file)).unwrap();
        let (plain, over_tls) = server.addresses().unwrap();
        std::thread::spawn(move || server.run());
        crate::server::control::Control::new(plain).fill("b", "", "counter", 1, size).unwrap();
        // The answer's head is counted, too.
        for (address, ca_file) in [(plain, None), (over_tls.unwrap(), Some(ca_file.as_path()))] {
            let bytes = receive(address, "/b/00000000", ca_file).unwrap().bytes;
            assert!(bytes > size && bytes < size + 1000, "{bytes}");
        }
    }
}
