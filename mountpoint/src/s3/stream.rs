//! The bytes of one connection, plain or TLS, counted where they pass the kernel.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::tls::TlsStream;
use crate::sync::Arc;

/// Bytes that moved, in both directions. A task that waits on the connection checks whether the count still grows.
#[derive(Clone, Debug, Default)]
pub(super) struct Moved(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    received: AtomicU64,
    sent: AtomicU64,
}

impl Moved {
    pub(super) fn received(&self) -> u64 {
        self.0.received.load(Relaxed)
    }

    pub(super) fn sent(&self) -> u64 {
        self.0.sent.load(Relaxed)
    }

    pub(super) fn total(&self) -> u64 {
        self.received() + self.sent()
    }

    /// Whether this is the last handle to the counts: the connection is gone.
    pub(super) fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    #[cfg(test)]
    pub(super) fn count_received(&self, bytes: u64) {
        self.0.received.fetch_add(bytes, Relaxed);
    }
}

/// A TCP stream that counts.
#[derive(Debug)]
pub(super) struct Tcp {
    inner: TcpStream,
    moved: Moved,
}

impl Tcp {
    pub(super) fn new(inner: TcpStream, moved: Moved) -> Self {
        Self { inner, moved }
    }
}

impl AsyncRead for Tcp {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(cx, buf);
        self.moved.0.received.fetch_add((buf.filled().len() - before) as u64, Relaxed);
        result
    }
}

impl Tcp {
    fn count_sent(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(n)) = result {
            self.moved.0.sent.fetch_add(n as u64, Relaxed);
        }
        result
    }
}

impl AsyncWrite for Tcp {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.count_sent(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.count_sent(result)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Bytes that rustls is given in one piece. It copies each piece to where it encrypts it, 5 bytes beside any alignment. glibc
/// copies what is a little longer than this by an instruction (`rep movsb`) that AMD's processors run at a quarter of their
/// speed there: it took a quarter of all CPU of a writer over TLS.
const SLICE: usize = 2 << 10;
/// Bytes that rustls takes at once.
const ENCRYPTED_AT_ONCE: usize = 64 << 10;

/// Cuts the front of `bufs` into `slices` of at most [`SLICE`]: how many there are.
fn cut<'a>(bufs: &'a [io::IoSlice<'_>], slices: &mut [io::IoSlice<'a>]) -> usize {
    let mut count = 0;
    for (slice, piece) in slices.iter_mut().zip(bufs.iter().flat_map(|buf| buf.chunks(SLICE))) {
        *slice = io::IoSlice::new(piece);
        count += 1;
    }
    count
}

/// The stream that HTTP runs over.
#[derive(Debug)]
pub(super) enum Stream {
    Plain(Tcp),
    Tls(Box<TlsStream>),
}

macro_rules! either {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Stream::Plain(s) => {
                let $stream = Pin::new(s);
                $call
            }
            Stream::Tls(s) => {
                let $stream = Pin::new(s.as_mut());
                $call
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        either!(self, s => s.poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        either!(self, s => s.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Self::Tls(s) => {
                let mut slices = [io::IoSlice::new(&[]); ENCRYPTED_AT_ONCE / SLICE];
                let count = cut(bufs, &mut slices);
                Pin::new(s.as_mut()).poll_write_vectored(cx, &slices[..count])
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, s => s.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, s => s.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_is_the_front_in_order_in_small_pieces() {
        let bytes: Vec<u8> = (0..3 * SLICE + 5).map(|i| (i % 251) as u8).collect();
        let bufs = [&bytes[..7], &[], &bytes[7..]].map(io::IoSlice::new);
        for room in [1, 3, 5, 9] {
            let mut slices = vec![io::IoSlice::new(&[]); room];
            let count = cut(&bufs, &mut slices);
            assert_eq!(count, room.min(4), "7 bytes, two whole pieces, and what is left");
            assert!(slices[..count].iter().all(|slice| (1..=SLICE).contains(&slice.len())));
            let whole: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
            assert!(bytes.starts_with(&whole));
        }
        assert_eq!(cut(&[io::IoSlice::new(&[])], &mut [io::IoSlice::new(&bytes)]), 0);
    }
}
