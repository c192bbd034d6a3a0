//! The stream beside a store of rustls, by each suite, and beside a store that seals whatever a test wants.

mod faults;
mod floods;
mod keys;
mod rest;

use std::io::{self, Read as _, Write as _};
use std::net;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::thread::{self, JoinHandle};

use rustls::crypto::aws_lc_rs::{ALL_CIPHER_SUITES, cipher_suite, default_provider};
use rustls::crypto::{CipherSuiteCommon, CryptoProvider};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::{ServerSessionMemoryCache, StoresServerSessions};
use rustls::{
    RootCertStore, ServerConfig, ServerConnection, StreamOwned, SupportedCipherSuite, Tls12CipherSuite,
    Tls13CipherSuite,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;

use crate::net::tcp::Moved;
use crate::net::tls::conversation::{Conversation, NAME, Parties};
use crate::net::tls::session::CONTENT_MAX;
use crate::net::tls::stream::TlsStream;
use crate::net::tls::{Client, client, negotiate};
use crate::sync::Arc;

const TLS13: SupportedCipherSuite = cipher_suite::TLS13_AES_128_GCM_SHA256;
const TLS12: SupportedCipherSuite = cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;

/// The suites for which a certificate with an ECDSA key will do.
fn suites() -> impl Iterator<Item = SupportedCipherSuite> {
    ALL_CIPHER_SUITES.iter().copied().filter(|suite| !format!("{:?}", suite.suite()).contains("ECDHE_RSA"))
}

type Server = StreamOwned<ServerConnection, net::TcpStream>;

/// A store of rustls for a certificate of its own, by `suite`, and a client that trusts it.
fn store_of(suite: SupportedCipherSuite) -> (ServerConfig, Client) {
    let (store, roots) = store_and_roots(suite);
    (store, client(default_provider(), roots))
}

/// A store of this cipher suite, and its certificate.
fn store_and_roots(suite: SupportedCipherSuite) -> (ServerConfig, RootCertStore) {
    let key = rcgen::KeyPair::generate().unwrap();
    let own = rcgen::CertificateParams::new(vec![NAME.to_owned()]).unwrap().self_signed(&key).unwrap();
    let mut provider = default_provider();
    provider.cipher_suites = vec![suite];
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let store = ServerConfig::builder_with_provider(provider.into())
        .with_protocol_versions(&[suite.version()])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.der().clone()], key)
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(own.der().clone()).unwrap();
    (store, roots)
}

/// The ciphers of rustls, where one key protects only this many records.
pub(super) fn limited(records: u64) -> CryptoProvider {
    let common = |of: &CipherSuiteCommon| CipherSuiteCommon {
        suite: of.suite,
        hash_provider: of.hash_provider,
        confidentiality_limit: records,
    };
    let suites = ALL_CIPHER_SUITES.iter().map(|suite| match *suite {
        SupportedCipherSuite::Tls13(suite) => {
            SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
                common: common(&suite.common),
                hkdf_provider: suite.hkdf_provider,
                aead_alg: suite.aead_alg,
                quic: None,
            })))
        }
        SupportedCipherSuite::Tls12(suite) => {
            SupportedCipherSuite::Tls12(Box::leak(Box::new(Tls12CipherSuite {
                common: common(&suite.common),
                prf_provider: suite.prf_provider,
                kx: suite.kx,
                sign: suite.sign,
                aead_alg: suite.aead_alg,
            })))
        }
    });
    CryptoProvider { cipher_suites: suites.collect(), ..default_provider() }
}

/// Such a store and its client, in memory.
fn parties(suite: SupportedCipherSuite) -> Parties {
    let key = rcgen::KeyPair::generate().unwrap();
    let own = rcgen::CertificateParams::new(vec![NAME.to_owned()]).unwrap().self_signed(&key).unwrap();
    Parties::by(suite, own.der(), &key.serialize_der())
}

/// The other end of a handshake.
fn handshake(store: Arc<ServerConfig>, mut tcp: net::TcpStream) -> io::Result<Server> {
    let mut tls = ServerConnection::new(store).unwrap();
    while tls.is_handshaking() {
        tls.complete_io(&mut tcp)?;
    }
    Ok(StreamOwned::new(tls, tcp))
}

async fn negotiated<S: AsyncRead + AsyncWrite + Unpin>(client: &Client, wire: S) -> io::Result<TlsStream<S>> {
    negotiate::negotiate(client, ServerName::try_from(NAME).unwrap(), wire, Moved::default()).await
}

/// A connection over a wire of any kind by `suite` to a store of rustls, which `serve` is; the handshake is over.
async fn connected_over<S: AsyncRead + AsyncWrite + Unpin, T: Send + 'static>(
    wire: impl FnOnce(TcpStream) -> S,
    (mut store, client): (ServerConfig, Client),
    tickets: usize,
    serve: impl FnOnce(Server) -> T + Send + 'static,
) -> (TlsStream<S>, JoinHandle<T>) {
    store.send_tls13_tickets = tickets;
    let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let served = thread::spawn(move || serve(handshake(store.into(), listener.accept().unwrap().0).unwrap()));
    let tcp = TcpStream::connect(address).await.unwrap();
    (negotiated(&client, wire(tcp)).await.unwrap(), served)
}

/// Connects client and store over TCP.
async fn connected<T: Send + 'static>(
    suite: SupportedCipherSuite,
    serve: impl FnOnce(Server) -> T + Send + 'static,
) -> (TlsStream<TcpStream>, JoinHandle<T>) {
    connected_over(|tcp| tcp, store_of(suite), 2, serve).await
}

/// A wire that moves few bytes at a time, and reports at every other time that it is not ready.
struct Choppy(TcpStream, fastrand::Rng);

impl Choppy {
    /// The number of bytes that the wire moves now, at most `of`.
    fn turn(&mut self, cx: &Context<'_>, of: usize) -> Poll<usize> {
        if self.1.bool() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.1.usize(1..=9000).min(of))
    }
}

impl AsyncRead for Choppy {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = vec![0; ready!(self.turn(cx, buf.remaining()))];
        let mut piece = ReadBuf::new(&mut bytes);
        ready!(Pin::new(&mut self.0).poll_read(cx, &mut piece))?;
        buf.put_slice(piece.filled());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Choppy {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let n = ready!(self.turn(cx, buf.len()));
        Pin::new(&mut self.0).poll_write(cx, &buf[..n])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Bytes that repeat nowhere near.
fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 % 251) as u8 ^ (i / 251) as u8).collect()
}

/// The store of `bytes_pass_...`: it gets `expected` and sends it back, in pieces of any size.
fn echo(mut server: Server, expected: &[u8]) {
    let mut got = vec![0; expected.len()];
    server.read_exact(&mut got).unwrap();
    assert!(got == expected, "what the store got");
    let mut rng = fastrand::Rng::with_seed(1);
    let mut rest = &got[..];
    while !rest.is_empty() {
        let n = rng.usize(1..=40_000).min(rest.len());
        server.write_all(&rest[..n]).unwrap();
        rest = &rest[n..];
    }
    server.conn.send_close_notify();
    server.flush().unwrap();
}

/// The client's side of [`echo`].
async fn send_and_get_back<S: AsyncRead + AsyncWrite + Unpin>(mut client: TlsStream<S>, sent: &[u8]) {
    let mut rng = fastrand::Rng::with_seed(2);
    let mut rest = sent;
    while !rest.is_empty() {
        let a = rng.usize(0..=90_000).min(rest.len());
        let b = rng.usize(a..=rest.len().min(a + 500));
        let n = client.write_vectored(&[&rest[..a], &[], &rest[a..b]].map(io::IoSlice::new)).await.unwrap();
        assert!(n > 0 || b == 0);
        rest = &rest[n..];
    }
    client.flush().await.unwrap();
    let mut got = Vec::new();
    loop {
        let most = if rng.bool() { 50_000 } else { 50 };
        let mut piece = vec![0xee; rng.usize(1..=most)];
        let n = client.read(&mut piece).await.unwrap();
        if n == 0 {
            break;
        }
        got.extend_from_slice(&piece[..n]);
    }
    assert!(got == sent, "what came back");
}

#[tokio::test]
async fn bytes_pass_unchanged_both_ways_by_each_suite_at_any_size() {
    let sent = bytes(700_000);
    for suite in suites() {
        let expected = sent.clone();
        let (client, served) = connected(suite, move |server| echo(server, &expected)).await;
        send_and_get_back(client, &sent).await;
        served.join().unwrap();
        let expected = sent.clone();
        let choppy = |tcp| Choppy(tcp, fastrand::Rng::with_seed(3));
        let serve = move |server| echo(server, &expected);
        let (client, served) = connected_over(choppy, store_of(suite), 2, serve).await;
        send_and_get_back(client, &sent).await;
        served.join().unwrap();
    }
}

/// Sessions of a store that has other keys for them than its clients.
#[derive(Debug)]
struct Spoiled(Arc<dyn StoresServerSessions>);

impl StoresServerSessions for Spoiled {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.0.put(key, value)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut value = self.0.get(key)?;
        value[20] ^= 1; // in the master secret: behind name, version and suite
        Some(value)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.0.take(key)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn a_session_with_other_keys_fails_one_connection_and_not_the_next() {
    let (mut store, client) = store_of(TLS12);
    store.session_storage = Arc::new(Spoiled(ServerSessionMemoryCache::new(9)));
    let store = Arc::new(store);
    let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let served = thread::spawn(move || {
        (0..3)
            .map(|_| handshake(Arc::clone(&store), listener.accept().unwrap().0).is_ok())
            .collect::<Vec<_>>()
    });
    for works in [true, false, true] {
        let agreed = negotiated(&client, TcpStream::connect(address).await.unwrap()).await;
        assert_eq!(agreed.is_ok(), works, "{:?}", agreed.err());
    }
    assert_eq!(served.join().unwrap(), [true, false, true]);
}

#[tokio::test]
async fn a_store_that_changes_its_keys_is_read_on() {
    let (mut client, served) = connected(TLS13, |mut server| {
        for _ in 0..3 {
            server.write_all(&bytes(50_000)).unwrap();
            server.conn.refresh_traffic_keys().unwrap();
        }
        server.write_all(b"end").unwrap();
        server.flush().unwrap();
        server
    })
    .await;
    let mut got = vec![0; 150_003];
    client.read_exact(&mut got).await.unwrap();
    assert!(got == [bytes(50_000), bytes(50_000), bytes(50_000), b"end".to_vec()].concat());
    drop(served.join().unwrap());
}

#[tokio::test]
async fn an_announced_end_is_the_end_and_an_unannounced_one_is_an_error() {
    for (announces, suite) in [(true, TLS13), (false, TLS13), (true, TLS12), (false, TLS12)] {
        let (mut client, served) = connected(suite, move |mut server| {
            server.write_all(b"all").unwrap();
            if announces {
                server.conn.send_close_notify();
            }
            server.flush().unwrap();
        })
        .await;
        served.join().unwrap();
        let mut got = Vec::new();
        let end = client.read_to_end(&mut got).await;
        assert_eq!(got, b"all");
        assert_eq!(end.as_ref().map_err(io::Error::kind).is_ok(), announces, "{end:?}");
        assert!(end.is_ok() || end.as_ref().unwrap_err().kind() == io::ErrorKind::UnexpectedEof, "{end:?}");
        // And stays what it was.
        assert_eq!(client.read(&mut [0]).await.is_ok(), announces);
    }
}

#[tokio::test]
async fn a_client_that_ends_says_so() {
    let (mut client, served) = connected(TLS13, |mut server| {
        let mut got = Vec::new();
        server.read_to_end(&mut got).map(|_| got)
    })
    .await;
    client.write_all(b"all").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(served.join().unwrap().unwrap(), b"all", "rustls makes an end without close_notify an error");
}
