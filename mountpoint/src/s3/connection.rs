//! One HTTP/1.1 connection, driven by whoever uses it: no task of its own, so that no byte changes threads on its way.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::body::Body;
use super::endpoint::Authority;
use super::stream::{Moved, Stream, Tcp};
use super::tls::Tls;
use super::watch::{Expired, Watch};

type Driver = Pin<Box<http1::Connection<TokioIo<Stream>, Body>>>;

/// Header lines and bytes of an answer's head that are accepted.
const HEADERS_MAX: usize = 128;

/// An open connection.
pub(super) struct Connection {
    sender: http1::SendRequest<Body>,
    /// `None` once it ended.
    driver: Option<Driver>,
    pub(super) moved: Moved,
    pub(super) address: SocketAddr,
    /// Requests that were answered on it.
    pub(super) served: u64,
    pub(super) idle_since: Instant,
}

/// Why an exchange broke off.
#[derive(Debug)]
pub(super) enum Broken {
    /// The connection: closed, reset, or no HTTP.
    Http(hyper::Error),
    /// It ended without a word.
    Closed,
    /// Our patience.
    Expired(Expired),
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Http(e) => e.fmt(f),
            Self::Closed => f.write_str("the connection was closed"),
            Self::Expired(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Broken {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Http(e) => std::error::Error::source(e),
            Self::Closed | Self::Expired(_) => None,
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects. The caller limits the time.
    pub(super) async fn open(
        authority: &Authority,
        address: SocketAddr,
        tls: &Tls,
        read_buffer: usize,
        now: Instant,
    ) -> io::Result<Self> {
        let moved = Moved::default();
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?; // a request head is small and must leave at once
        let tcp = Tcp::new(tcp, moved.clone());
        let stream = if authority.tls {
            Stream::Tls(Box::new(tls.connect(&authority.host, tcp).await?))
        } else {
            Stream::Plain(tcp)
        };
        let (sender, driver) = http1::Builder::new()
            .read_buf_exact_size(Some(read_buffer))
            .max_headers(HEADERS_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        let driver = Some(Box::pin(driver));
        Ok(Self { sender, driver, moved, address, served: 0, idle_since: now })
    }

    /// Sends a request and waits for the head of the answer.
    pub(super) async fn send(
        &mut self,
        request: http::Request<Body>,
        watch: &mut Watch,
    ) -> Result<http::Response<Incoming>, Broken> {
        let driver = &mut self.driver;
        {
            let ready = pin!(self.sender.ready());
            drive(driver, watch, ready).await?.map_err(Broken::Http)?;
        }
        let answer = pin!(self.sender.send_request(request));
        drive(driver, watch, answer).await?.map_err(Broken::Http)
    }

    /// The next bytes of a body, or `None` at its end. They share the read buffer: drop them before asking again.
    pub(super) async fn receive(
        &mut self,
        body: &mut Incoming,
        watch: &mut Watch,
    ) -> Result<Option<Bytes>, Broken> {
        loop {
            let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx));
            match drive(&mut self.driver, watch, pin!(frame)).await? {
                None => return Ok(None),
                Some(Err(e)) => return Err(Broken::Http(e)),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => return Ok(Some(data)),
                    _ => {} // trailers and empty chunks say nothing we ask for
                },
            }
        }
    }

    /// Whether another request may be sent: open, and nothing left over from the last one.
    pub(super) fn is_reusable(&mut self) -> bool {
        // Looks without waiting: an end that arrived meanwhile, or bytes that nobody asked for, end the driver.
        let mut cx = Context::from_waker(Waker::noop());
        self.driver.as_mut().is_some_and(|d| d.as_mut().poll(&mut cx).is_pending()) && self.sender.is_ready()
    }
}

/// Runs the connection until `wanted` is there.
async fn drive<F: Future>(
    driver: &mut Option<Driver>,
    watch: &mut Watch,
    mut wanted: Pin<&mut F>,
) -> Result<F::Output, Broken> {
    std::future::poll_fn(|cx| {
        if let Poll::Ready(output) = wanted.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        let ended = match driver {
            Some(running) => running.as_mut().poll(cx).is_ready(),
            None => true,
        };
        if ended {
            // Dropped, it tells whoever still waits for it.
            *driver = None;
        }
        match wanted.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending if ended => Poll::Ready(Err(Broken::Closed)),
            Poll::Pending => watch.poll_expired(cx).map(|e| Err(Broken::Expired(e))),
        }
    })
    .await
}
