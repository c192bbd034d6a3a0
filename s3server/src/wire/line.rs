//! A TCP connection that counts its bytes, and that a fault can cut.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::requests::RequestLog;

/// The way in which a fault closes a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cut {
    /// Close in order (FIN).
    Close = 1,
    /// Reset (RST).
    Reset = 2,
}

/// The state of one connection that hyper's side and a body share.
#[derive(Debug, Default)]
pub(super) struct Line {
    cut: AtomicU8,
    flushing: Mutex<Flushing>,
}

#[derive(Debug, Default)]
enum Flushing {
    #[default]
    Idle,
    Wanted(Waker),
    Done,
}

impl Line {
    pub(super) fn cut(&self, cut: Cut) {
        self.cut.store(cut as u8, Ordering::Relaxed);
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed) != 0
    }

    fn is_reset(&self) -> bool {
        self.cut.load(Ordering::Relaxed) == Cut::Reset as u8
    }

    /// Waits until the kernel has all bytes that hyper got before.
    pub(super) fn poll_flushed(&self, cx: &Context<'_>) -> Poll<()> {
        let mut flushing = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Flushing::Done = *flushing {
            *flushing = Flushing::Idle;
            return Poll::Ready(());
        }
        *flushing = Flushing::Wanted(cx.waker().clone());
        Poll::Pending
    }

    /// Wakes the body that waits for a flush. hyper flushes the connection only when its own buffer is empty.
    fn flushed(&self) {
        let mut flushing = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Flushing::Wanted(waker) = std::mem::take(&mut *flushing) {
            *flushing = Flushing::Done;
            waker.wake();
        }
    }
}

/// The connection, as an I/O object for hyper.
pub(super) struct Connection {
    stream: TcpStream,
    line: Arc<Line>,
    log: RequestLog,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, line: Arc<Line>, log: RequestLog) -> Self {
        Self { stream, line, log }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.line.is_reset() {
            // Without lingering, close(2) sends RST.
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.log.received(buf.filled().len() - before);
        polled
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(written)) = polled {
            self.log.sent(written);
        }
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        if let Poll::Ready(Ok(written)) = polled {
            self.log.sent(written);
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        if let Poll::Ready(Ok(())) = polled {
            self.line.flushed();
        }
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.line.is_reset() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
