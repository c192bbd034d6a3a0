//! One HTTP/1.1 connection, driven by its user: it has no task of its own, so that no byte changes threads.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::http1 as hyper1;
use hyper::ext::on_informational;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::net::authority::Authority;
use crate::net::body::Body;
use crate::net::broken::Broken;
use crate::net::flow::watch::Watch;
use crate::net::handshake::Handshake;
use crate::net::http1::{HEADERS_MAX, Http1, INFORMED_MAX, head_len, too_informed};
use crate::net::proxy::{Forward, Proxy};
use crate::net::stream::Stream;
use crate::net::tcp::{Moved, Tcp};
use crate::net::tls::Tls;
use crate::sync::Arc;

type Driver = Pin<Box<hyper1::Connection<TokioIo<Stream>, Body>>>;

/// Bytes of an answer to a request with a body that are received at once: such answers are short.
const READ_BUFFER: usize = 16 << 10;
/// Bytes of a body that are received at once where the caller lends no memory: most pages of a listing are shorter.
const PIECE: usize = 512 << 10;

/// An open connection.
pub(crate) struct Connection {
    http: Http,
    /// A proxy reads our requests, and passes them on.
    forward: Option<Forward>,
    pub(crate) moved: Moved,
    /// The value of [`Moved::content_sent`] once the request is sent.
    due: u64,
    pub(crate) address: SocketAddr,
    /// Requests that were answered on it.
    pub(crate) served: u64,
    pub(crate) idle_since: Instant,
}

/// The implementation of HTTP that drives the connection.
enum Http {
    /// Ours: requests without a body.
    Ours(Box<Http1>),
    /// hyper: requests with one, since an answer may come while it is being sent.
    /// The driver is `None` once it ended.
    Hyper { sender: hyper1::SendRequest<Body>, driver: Option<Driver> },
    /// None: it ended.
    Ended,
}

/// The body of an answer, which comes on the connection that it came on.
#[derive(Debug)]
pub(crate) enum Answered {
    /// A body that [`Connection::receive_into`] receives.
    Ours,
    /// A body in hyper's buffers.
    Hyper(Incoming),
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Connection {
    /// Opens a connection on `tcp`, which is connected to `address`. The caller limits the time.
    pub(super) async fn open(
        authority: &Authority,
        proxy: Option<&Proxy>,
        tcp: TcpStream,
        address: SocketAddr,
        tls: &Tls,
        now: Instant,
    ) -> io::Result<Self> {
        let moved = Moved::default();
        tcp.set_nodelay(true)?; // a request head is small and must leave at once
        let mut tcp = Tcp::new(tcp, moved.clone());
        let stream = if authority.tls {
            if let Some(proxy) = proxy {
                proxy.tunnel(&mut tcp, authority).await?;
            }
            Stream::Tls(Box::new(tls.connect(&authority.host, tcp).await?))
        } else {
            Stream::Plain(tcp)
        };
        Ok(Self {
            http: Http::Ours(Box::new(Http1::new(stream))),
            forward: proxy.filter(|_| !authority.tls).map(|proxy| Forward::new(proxy, authority)),
            moved,
            due: 0,
            address,
            served: 0,
            idle_since: now,
        })
    }

    /// The handshake of the TLS below, until the first request is sent; `None` without TLS.
    pub(crate) fn handshake(&self) -> Option<Handshake> {
        match &self.http {
            Http::Ours(http) => match http.stream() {
                Stream::Tls(stream) => Some(Handshake::of(stream)),
                Stream::Plain(_) => None,
            },
            Http::Hyper { .. } | Http::Ended => None,
        }
    }

    /// Sends a request and waits for the head of the answer.
    pub(crate) async fn send(
        &mut self,
        request: http::Request<Body>,
        watch: &mut Watch,
    ) -> Result<http::Response<Answered>, Broken> {
        self.due = u64::MAX; // until its length is known
        let request = match &self.forward {
            Some(forward) => forward.addressed(request)?,
            None => request,
        };
        self.due = self.moved.content_sent() + head_len(&request) + request.body().len();
        if request.body().is_end_stream() {
            return Ok(self.ours()?.send(&request, watch).await?.map(|()| Answered::Ours));
        }
        self.hand_to_hyper().await?;
        let Http::Hyper { sender, driver } = &mut self.http else { return Err(Broken::Closed) };
        drive(driver, watch, pin!(sender.ready())).await?.map_err(Broken::Http)?;
        let mut request = request;
        let informed = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&informed);
        on_informational(&mut request, move |_| {
            count.fetch_add(1, Relaxed);
        });
        let mut sending = pin!(sender.send_request(request));
        // hyper itself would read interim answers for ever.
        let answer = std::future::poll_fn(|cx| match informed.load(Relaxed) {
            0..=INFORMED_MAX => sending.as_mut().poll(cx).map_err(Broken::Http),
            _ => Poll::Ready(Err(too_informed())),
        });
        Ok(drive(driver, watch, pin!(answer)).await??.map(Answered::Hyper))
    }

    /// Whether the kernel took the whole request.
    pub(crate) fn has_sent_all(&self) -> bool {
        self.moved.content_sent() >= self.due
    }

    /// The next bytes of a body, or `None` at its end. They may share a read buffer: drop them before asking again.
    pub(crate) async fn receive(
        &mut self,
        body: &mut Answered,
        watch: &mut Watch,
    ) -> Result<Option<Bytes>, Broken> {
        let body = match body {
            Answered::Hyper(body) => body,
            Answered::Ours => return self.ours()?.piece(PIECE, watch).await,
        };
        loop {
            let Http::Hyper { driver, .. } = &mut self.http else { return Err(Broken::Closed) };
            let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx));
            match drive(driver, watch, pin!(frame)).await? {
                None => return Ok(None),
                Some(Err(e)) => return Err(Broken::Http(e)),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => return Ok(Some(data)),
                    _ => {} // trailers and empty chunks say nothing we ask for
                },
            }
        }
    }

    /// The next bytes of the body of a request without a body, straight into the front of `into`, which is not empty:
    /// how many; 0 at the end.
    pub(crate) async fn receive_into(&mut self, into: &mut [u8], watch: &mut Watch) -> Result<usize, Broken> {
        self.ours()?.receive(into, watch).await
    }

    /// Whether another request may be sent: open, and nothing left over from the last one, in neither direction.
    pub(crate) fn is_reusable(&mut self) -> bool {
        if let Http::Hyper { sender, driver } = &mut self.http {
            // Looks without waiting: an end that arrived meanwhile, or bytes without a request, end the driver.
            let mut cx = Context::from_waker(Waker::noop());
            let is_open = driver.as_mut().is_some_and(|d| d.as_mut().poll(&mut cx).is_pending());
            if !is_open || !sender.is_ready() {
                return false;
            }
        }
        // hyper is ready once TLS has its body: what TLS did not send yet would count as a part of the next request.
        self.has_sent_all() && self.ours().is_ok_and(|http| http.is_reusable() && http.stream().is_at_rest())
    }

    /// The line as one that we speak on. Between two requests it changes hands freely.
    fn ours(&mut self) -> Result<&mut Http1, Broken> {
        if let Http::Hyper { .. } = self.http
            && let Http::Hyper { driver: Some(driver), .. } = std::mem::replace(&mut self.http, Http::Ended)
        {
            let parts = Pin::into_inner(driver).into_parts();
            if parts.read_buf.is_empty() {
                self.http = Http::Ours(Box::new(Http1::new(parts.io.into_inner())));
            }
        }
        match &mut self.http {
            Http::Ours(http) => Ok(http),
            _ => Err(Broken::Closed),
        }
    }

    async fn hand_to_hyper(&mut self) -> Result<(), Broken> {
        if let Http::Ours(_) = self.http
            && let Http::Ours(http) = std::mem::replace(&mut self.http, Http::Ended)
            && let Some(stream) = http.into_stream()
        {
            let (sender, driver) = hyper1::Builder::new()
                .read_buf_exact_size(Some(READ_BUFFER))
                .max_headers(HEADERS_MAX)
                .handshake(TokioIo::new(stream))
                .await
                .map_err(Broken::Http)?;
            self.http = Http::Hyper { sender, driver: Some(Box::pin(driver)) };
        }
        Ok(())
    }
}

/// Runs the connection until `wanted` is there.
async fn drive<D: Future + Unpin, F: Future>(
    driver: &mut Option<D>,
    watch: &mut Watch,
    mut wanted: Pin<&mut F>,
) -> Result<F::Output, Broken> {
    std::future::poll_fn(|cx| {
        if let Poll::Ready(output) = wanted.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        let ended = match driver {
            Some(running) => Pin::new(running).poll(cx).is_ready(),
            None => true,
        };
        if ended {
            // Dropped, it wakes the tasks that still wait for it; and an ended driver is not polled again.
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

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpSocket;

    use super::*;
    use crate::clock::Clock;

    #[tokio::test]
    async fn a_connection_whose_last_body_waits_in_our_own_buffers_serves_no_other_request() {
        // Buffers of the kernel that hold little of the body, and of ours that hold it all.
        let body = Bytes::from(vec![7; 300_000]);
        let (listens, dials) = (TcpSocket::new_v4().unwrap(), TcpSocket::new_v4().unwrap());
        listens.set_recv_buffer_size(4096).unwrap();
        dials.set_send_buffer_size(4096).unwrap();
        listens.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = listens.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let tcp = dials.connect(address).await.unwrap();
        let (mut store, _) = listener.accept().await.unwrap();
        let authority = Authority { tls: false, host: "127.0.0.1".into(), port: address.port() };
        let (clock, long) = (Clock::manual(), Duration::from_secs(60));
        let tls = Tls::default();
        let opened = Connection::open(&authority, None, tcp, address, &tls, clock.now()).await;
        let mut connection = opened.unwrap();
        let mut watch = Watch::new(&clock, &connection.moved, long, clock.now() + long);
        let request = http::Request::put("/k").header("content-length", body.len());
        let request = request.body(Body::new(std::slice::from_ref(&body))).unwrap();
        let refusal = async {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(store.read_u8().await.unwrap());
            }
            store.write_all(b"HTTP/1.1 403 X\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        };
        let (answer, ()) = tokio::join!(connection.send(request, &mut watch), refusal);
        assert_eq!(answer.unwrap().status(), 403);
        assert!(!connection.has_sent_all(), "the kernel holds {} bytes of it", connection.moved.sent());
        assert!(!connection.is_reusable());
    }

    /// hyper's own driver forgives a poll behind its end, today: so this one is none of hyper's.
    #[tokio::test]
    async fn a_driver_that_ended_is_not_polled_again_and_whoever_waits_for_it_hears_so() {
        let clock = Clock::manual();
        let patience = Duration::from_secs(1);
        let mut watch = Watch::new(&clock, &Moved::default(), patience, clock.now() + patience);
        // A second poll of it panics.
        let mut driver = Some(Box::pin(async {}));
        let mut polls = 0;
        let answer = poll_fn(|_| {
            polls += 1;
            if polls == 1 { Poll::Pending } else { Poll::Ready("came with the driver's end") }
        });
        let came = drive(&mut driver, &mut watch, pin!(answer)).await.unwrap();
        assert_eq!(came, "came with the driver's end");
        let more = drive(&mut driver, &mut watch, pin!(pending::<()>())).await;
        assert!(matches!(more, Err(Broken::Closed)), "{more:?}");
    }
}
