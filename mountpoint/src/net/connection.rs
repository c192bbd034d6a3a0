//! One HTTP/1.1 connection, driven by the task that uses it. The connection has no task of its own, so no byte changes threads.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use tokio::net::TcpStream;

use crate::net::authority::Authority;
use crate::net::body::Body;
use crate::net::broken::Broken;
use crate::net::flow::watch::Watch;
use crate::net::handshake::Handshake;
use crate::net::http1::{Http1, head_len};
use crate::net::proxy::{Forward, Proxy};
use crate::net::stream::Stream;
use crate::net::tcp::{Moved, Tcp};
use crate::net::tls::Tls;

/// Most bytes received into one buffer if the caller lends no memory. Most pages of a listing are shorter.
const PIECE: usize = 512 << 10;

/// An open connection.
pub(crate) struct Connection {
    http: Http1,
    /// The proxy that forwards the connection's plain HTTP requests, if there is one.
    forward: Option<Forward>,
    pub(crate) moved: Moved,
    /// Value of [`Moved::content_sent`] at which the whole request is sent.
    due: u64,
    pub(crate) address: SocketAddr,
    /// Number of requests that were answered on this connection.
    pub(crate) served: u64,
    pub(crate) idle_since: Instant,
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
            http: Http1::new(stream),
            forward: proxy.filter(|_| !authority.tls).map(|proxy| Forward::new(proxy, authority)),
            moved,
            due: 0,
            address,
            served: 0,
            idle_since: now,
        })
    }

    /// The result of the TLS handshake, for a connection that has not sent a request yet; `None` without TLS.
    pub(crate) fn handshake(&self) -> Option<Handshake> {
        match self.http.stream() {
            Stream::Tls(stream) => Some(Handshake::of(stream)),
            Stream::Plain(_) => None,
        }
    }

    /// Sends a request and waits for the head of the answer.
    pub(crate) async fn send(
        &mut self,
        request: http::Request<Body>,
        watch: &mut Watch,
    ) -> Result<http::Response<()>, Broken> {
        self.due = u64::MAX; // until its length is known
        let request = match &self.forward {
            Some(forward) => forward.addressed(request)?,
            None => request,
        };
        self.due = self.moved.content_sent() + head_len(&request) + request.body().len();
        self.http.send(request, watch).await
    }

    /// Whether the kernel took the whole request.
    pub(crate) fn has_sent_all(&self) -> bool {
        self.moved.content_sent() >= self.due
    }

    /// The next bytes of the answer's body, or `None` at its end.
    pub(crate) async fn receive(&mut self, watch: &mut Watch) -> Result<Option<Bytes>, Broken> {
        self.http.piece(PIECE, watch).await
    }

    /// Receives the next bytes of the answer's body straight into the front of `into`, which is not empty. Returns their number; 0 at the
    /// end.
    pub(crate) async fn receive_into(&mut self, into: &mut [u8], watch: &mut Watch) -> Result<usize, Broken> {
        self.http.receive(into, watch).await
    }

    /// Whether the connection can serve another request: it is open, the last request is sent, and no byte of the last answer is left.
    pub(crate) fn is_reusable(&mut self) -> bool {
        // Bytes that TLS has not sent yet would count as a part of the next request.
        self.has_sent_all() && self.http.is_reusable() && self.http.stream().is_at_rest()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpSocket;

    use super::*;
    use crate::clock::Clock;

    #[tokio::test]
    async fn a_connection_with_an_unsent_body_serves_no_other_request() {
        // Buffers of the kernel that hold little of the body.
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
}
