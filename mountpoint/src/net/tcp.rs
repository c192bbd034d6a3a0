//! A TCP stream that counts the bytes which the kernel takes and delivers.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::net::unsent::Socket;
use crate::sync::Arc;

/// The direction of bytes. A line may carry far more one way than the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Received,
    Sent,
}

/// Bytes by direction.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Bytes {
    pub(crate) received: u64,
    pub(crate) sent: u64,
}

impl Bytes {
    pub(crate) fn of(self, direction: Direction) -> u64 {
        match direction {
            Direction::Received => self.received,
            Direction::Sent => self.sent,
        }
    }

    /// The bytes of both directions.
    pub(crate) fn sum(self) -> u64 {
        self.received + self.sent
    }
}

/// Counters of moved bytes, in both directions. A waiting task checks whether they still grow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moved(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    received: AtomicU64,
    sent: AtomicU64,
    /// Bytes among them, received and to be sent, that belong to TLS itself: handshakes, headers, tags, alerts.
    received_beside: AtomicU64,
    sent_beside: AtomicU64,
    socket: Socket,
}

impl Moved {
    pub(crate) fn received(&self) -> u64 {
        self.0.received.load(Relaxed)
    }

    pub(crate) fn sent(&self) -> u64 {
        self.0.sent.load(Relaxed)
    }

    pub(crate) fn total(&self) -> Bytes {
        Bytes { received: self.received(), sent: self.sent() }
    }

    /// Received bytes of content. A TLS record that is not decrypted yet counts as a whole.
    pub(crate) fn content_received(&self) -> u64 {
        self.received().saturating_sub(self.0.received_beside.load(Relaxed))
    }

    /// Bytes of content that the kernel took: never an overcount, and exact once all records are sent.
    pub(crate) fn content_sent(&self) -> u64 {
        self.sent().saturating_sub(self.0.sent_beside.load(Relaxed))
    }

    /// Counts received bytes that are not content.
    pub(crate) fn received_beside(&self, bytes: usize) {
        self.0.received_beside.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts bytes to send that are not content.
    pub(crate) fn sends_beside(&self, bytes: usize) {
        self.0.sent_beside.fetch_add(bytes as u64, Relaxed);
    }

    /// Bytes that moved, without sent bytes that this machine still holds. The number grows as long as the line carries bytes. Makes a
    /// system call.
    pub(crate) fn delivered(&self) -> Bytes {
        // The order matters: bytes sent in between make the result smaller for a moment, never larger.
        let Bytes { received, sent } = self.total();
        Bytes { received, sent: sent.saturating_sub(self.0.socket.unsent()) }
    }

    /// Whether no stream holds the counters any more: the connection is closed.
    pub(crate) fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    pub(crate) fn count_received(&self, bytes: u64) {
        self.0.received.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn count_sent(&self, bytes: u64) {
        self.0.sent.fetch_add(bytes, Relaxed);
    }
}

/// A TCP stream that counts its bytes.
#[derive(Debug)]
pub(crate) struct Tcp {
    inner: TcpStream,
    moved: Moved,
}

impl Tcp {
    pub(crate) fn new(inner: TcpStream, moved: Moved) -> Self {
        moved.0.socket.opened(&inner);
        Self { inner, moved }
    }

    pub(crate) fn moved(&self) -> &Moved {
        &self.moved
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.moved.0.socket.closes();
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
        self.moved.count_received((buf.filled().len() - before) as u64);
        result
    }
}

impl Tcp {
    fn count_sent(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(n)) = result {
            self.moved.count_sent(n as u64);
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
