//! The stream beside a store of rustls, by each suite, and beside a store that seals whatever a test wants.

mod floods;
mod keys;
mod rest;

use std::io::{self, Read as _, Write as _};
use std::net;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::thread::{self, JoinHandle};

use rustls::crypto::aws_lc_rs::{ALL_CIPHER_SUITES, cipher_suite, default_provider};
use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::{ServerSessionMemoryCache, StoresServerSessions};
use rustls::{
    AlertDescription, ConnectionTrafficSecrets, ContentType, RootCertStore, ServerConfig, ServerConnection,
    StreamOwned, SupportedCipherSuite,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;

use crate::net::tcp::Moved;
use crate::net::tls::conversation::{Conversation, NAME, Parties};
use crate::net::tls::record::{CONTENT_MAX, Fatal, Frame, Keys, OVERHEAD};
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
    (store, client(roots))
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

/// The same over TCP.
async fn connected<T: Send + 'static>(
    suite: SupportedCipherSuite,
    serve: impl FnOnce(Server) -> T + Send + 'static,
) -> (TlsStream<TcpStream>, JoinHandle<T>) {
    connected_over(|tcp| tcp, store_of(suite), 2, serve).await
}

/// A wire that moves few bytes at a time, and at every other time says that it is not ready.
struct Choppy(TcpStream, fastrand::Rng);

impl Choppy {
    /// How many bytes it moves now, of so many.
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

/// A connection whose store is the returned socket: what it sends is sealed by the returned keys.
async fn forged(suite: SupportedCipherSuite) -> (TlsStream<TcpStream>, TcpStream, Keys) {
    let (mut client, served) = connected_over(|tcp| tcp, store_of(suite), 0, |server| server.sock).await;
    client.opens_with(keys(suite));
    let store = served.join().unwrap();
    store.set_nonblocking(true).unwrap();
    (client, TcpStream::from_std(store).unwrap(), keys(suite))
}

/// The length of what the client says to `store` by itself, while it reads and nothing comes; and the type of its record.
async fn answer(client: &mut TlsStream<TcpStream>, store: &mut TcpStream) -> (usize, ContentType) {
    let mut answer = [0; 100];
    let n = tokio::select! {
        got = client.read_u8() => panic!("{got:?} came"),
        n = store.read(&mut answer) => n.unwrap(),
    };
    (n, answer[0].into())
}

/// Keys that only depend on the suite.
fn keys(suite: SupportedCipherSuite) -> Keys {
    let (key, iv) = (AeadKey::from([7; 32]), Iv::from([9; 12]));
    let secrets = match format!("{:?}", suite.suite()).contains("CHACHA") {
        true => ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv },
        false => ConnectionTrafficSecrets::Aes256Gcm { key, iv },
    };
    Keys::new(suite, (0, secrets)).unwrap()
}

fn sealed(keys: &mut Keys, kind: ContentType, content: &[u8]) -> Vec<u8> {
    let mut record = vec![0; content.len() + OVERHEAD];
    let len = keys.seal(kind, content, &mut record).unwrap();
    record.truncate(len);
    record
}

/// Bytes that repeat nowhere near.
fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 % 251) as u8 ^ (i / 251) as u8).collect()
}

/// What the store does in `bytes_pass_...`: it gets `expected` and sends it back, in pieces of any size.
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

/// And what the client does.
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
async fn bytes_pass_unchanged_in_both_directions_by_each_suite_whatever_the_sizes_of_reads_and_writes() {
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
async fn a_session_for_which_the_store_has_other_keys_fails_one_connection_and_not_the_next() {
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

#[test]
fn a_record_that_was_altered_shortened_repeated_or_left_out_opens_neither_in_place_nor_elsewhere() {
    /// Opens the record both ways, which must agree.
    fn open(suite: SupportedCipherSuite, skipped: u64, record: &[u8]) -> Result<Vec<u8>, Fatal> {
        let open = |in_place: bool| {
            let mut keys = keys(suite);
            for _ in 0..skipped {
                keys.open_in_place(&mut sealed(&mut self::keys(suite), ContentType::ApplicationData, b""))
                    .unwrap();
            }
            let frame = Frame::of(record)?;
            let mut record = record[..frame.map_or(record.len(), |frame| frame.len)].to_vec();
            if in_place {
                let (kind, content) = keys.open_in_place(&mut record)?;
                Ok((kind, record[content].to_vec()))
            } else {
                let mut out = vec![0; keys.room(&record)?];
                let (kind, len) = keys.open_into(&record, &mut out)?;
                Ok((kind, out[..len].to_vec()))
            }
        };
        let (here, there): (Result<_, Fatal>, Result<_, Fatal>) = (open(true), open(false));
        assert_eq!(here.as_ref().map_err(|e| &e.why), there.as_ref().map_err(|e| &e.why));
        here.map(|(kind, content)| {
            assert_eq!(kind, ContentType::ApplicationData);
            content
        })
    }
    for suite in suites().filter(|suite| !format!("{:?}", suite.suite()).contains("AES_128")) {
        let mut seals = keys(suite);
        let first = sealed(&mut seals, ContentType::ApplicationData, b"");
        let record = sealed(&mut seals, ContentType::ApplicationData, b"content");
        assert_eq!(open(suite, 0, &first).unwrap(), b"");
        for at in 0..record.len() {
            for bit in 0..8 {
                let mut altered = record.clone();
                altered[at] ^= 1 << bit;
                let mut keys = keys(suite);
                keys.open_in_place(&mut first.clone()).unwrap();
                let opened = Frame::of(&altered).and_then(|frame| match frame {
                    Some(frame) => keys.open_in_place(&mut altered[..frame.len]).map(drop),
                    None => Err(Fatal::new(AlertDescription::DecodeError, "it waits for more")),
                });
                opened.unwrap_err();
            }
        }
        open(suite, 0, &record).unwrap_err(); // the first one was left out
        let mut opens = keys(suite);
        opens.open_in_place(&mut first.clone()).unwrap();
        opens.open_in_place(&mut first.clone()).unwrap_err();
        assert_eq!(Frame::of(&record[..record.len() - 1]).unwrap(), None);
        for short in 0..24 {
            let mut record = vec![23, 3, 3, 0, short];
            record.resize(5 + usize::from(short), 0);
            open(suite, 0, &record).unwrap_err();
        }
    }
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
async fn a_store_that_asks_for_new_keys_is_written_to_with_new_keys() {
    let (mut client, mut store, mut seals) = forged(TLS13).await;
    store.write_all(&sealed(&mut seals, ContentType::Handshake, &[24, 0, 0, 1, 1])).await.unwrap();
    let update = 5 + 5 + 1 + 16;
    assert_eq!(answer(&mut client, &mut store).await, (update, ContentType::ApplicationData));
}

#[tokio::test]
async fn a_key_that_has_sealed_as_many_records_as_it_may_is_replaced_and_the_store_reads_on() {
    let sent = bytes(300_000);
    let expected = sent.clone();
    let (mut client, served) = connected(TLS13, move |mut server| {
        let mut got = vec![0; expected.len()];
        server.read_exact(&mut got).unwrap();
        assert!(got == expected);
    })
    .await;
    for piece in sent.chunks(50_000) {
        client.use_up_the_key_after(2);
        client.write_all(piece).await.unwrap();
    }
    client.flush().await.unwrap();
    served.join().unwrap();

    // TLS 1.2 has no way to do so.
    let (mut client, served) = connected(TLS12, |mut server| server.read(&mut [0; 10]).unwrap()).await;
    client.use_up_the_key_after(1);
    client.write_all(b"a").await.unwrap();
    let error = client.write_all(b"b").await.unwrap_err();
    assert!(error.to_string().contains("as much as one key may protect"), "{error}");
    assert_eq!(served.join().unwrap(), 1);
}

#[tokio::test]
async fn an_end_that_the_store_announced_is_the_end_and_one_that_it_did_not_is_an_error() {
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

#[tokio::test]
async fn what_a_store_may_send_beside_content_ends_nothing() {
    let (mut client, mut store, mut seals) = forged(TLS13).await;
    let canceled = [1, AlertDescription::UserCanceled.into()];
    for _ in 0..3 {
        for _ in 0..15 {
            store.write_all(&sealed(&mut seals, ContentType::Alert, &canceled)).await.unwrap();
            store.write_all(&sealed(&mut seals, ContentType::ApplicationData, b"")).await.unwrap();
        }
        // A type behind the content, then zeros; the type 0 is the last of them.
        // A session ticket, in two records.
        let ticket = [4, 0, 0, 14, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 1, 7, 0, 0];
        for part in [&ticket[..5], &ticket[5..]] {
            store.write_all(&sealed(&mut seals, ContentType::Handshake, part)).await.unwrap();
        }
        store.write_all(&sealed(&mut seals, ContentType::Unknown(0), b"padded\x17\0\0")).await.unwrap();
        store
            .write_all(&sealed(&mut seals, ContentType::ApplicationData, &bytes(CONTENT_MAX)))
            .await
            .unwrap();
    }
    let mut got = vec![0; 3 * (6 + CONTENT_MAX)];
    client.read_exact(&mut got).await.unwrap();
    assert!(got == [b"padded".to_vec(), bytes(CONTENT_MAX)].concat().repeat(3));

    let (mut client, mut store, mut seals) = forged(TLS12).await;
    store.write_all(&sealed(&mut seals, ContentType::Handshake, &[0, 0, 0, 0])).await.unwrap();
    store.write_all(&sealed(&mut seals, ContentType::Alert, &[1, 90])).await.unwrap();
    store.write_all(&sealed(&mut seals, ContentType::ApplicationData, b"x")).await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), b'x');
    let no_renegotiation = 5 + 8 + 2 + 16;
    assert_eq!(answer(&mut client, &mut store).await, (no_renegotiation, ContentType::Alert));
}

#[tokio::test]
async fn what_a_store_may_not_send_ends_the_connection_in_words_and_with_an_alert() {
    let data = ContentType::ApplicationData;
    let handshake = ContentType::Handshake;
    type Records = Vec<(ContentType, Vec<u8>)>;
    let refused: [(SupportedCipherSuite, Records, &str); 16] = [
        (TLS13, vec![(data, vec![]); 33], "more than 32 TLS records in a row"),
        (TLS13, vec![(ContentType::Alert, vec![1]); 1], "alert that is none"),
        (TLS13, vec![(ContentType::ChangeCipherSpec, vec![1])], "type ChangeCipherSpec"),
        (TLS13, vec![(ContentType::Unknown(0), vec![0; 9])], "without a type"),
        (TLS13, vec![(handshake, vec![1, 0, 0, 0])], "ClientHello behind the TLS handshake"),
        (TLS13, vec![(handshake, vec![0, 0, 0, 0])], "HelloRequest behind the TLS handshake"),
        (TLS13, vec![(handshake, vec![24, 0, 0, 1, 2])], "key update that is none"),
        (TLS13, vec![(handshake, vec![24, 0, 0, 1, 0, 4])], "KeyUpdate behind the TLS handshake"),
        (TLS13, vec![(handshake, vec![4, 0, 0, 1, 0])], "session ticket that is none"),
        (
            TLS13,
            vec![(handshake, vec![4, 2]), (handshake, vec![0, 0])],
            "message of the TLS handshake of 131076 bytes",
        ),
        (TLS13, vec![(data, vec![0; CONTENT_MAX + 1])], "16385 bytes, and 16384 are allowed"),
        (
            TLS13,
            vec![(ContentType::Unknown(0), [vec![23], vec![0; CONTENT_MAX]].concat())],
            "16385 bytes, and 16384",
        ),
        (TLS13, vec![(handshake, vec![4, 0]), (data, vec![1])], "in the middle of a message"),
        (TLS12, vec![(handshake, vec![0; 8])], "a second time"),
        (TLS12, vec![(handshake, vec![24, 0, 0, 1, 0])], "key update"),
        (TLS12, vec![(handshake, vec![4, 0, 0, 1, 0])], "session ticket"),
    ];
    for (suite, records, why) in refused {
        let (mut client, mut store, mut seals) = forged(suite).await;
        store.write_all(&sealed(&mut seals, data, b"before")).await.unwrap();
        for (kind, content) in records {
            store.write_all(&sealed(&mut seals, kind, &content)).await.unwrap();
        }
        store.write_all(&sealed(&mut seals, data, b"behind")).await.unwrap();
        let mut got = Vec::new();
        let error = client.read_to_end(&mut got).await.unwrap_err();
        assert!(error.to_string().contains(why), "{error}, and not {why}");
        assert_eq!(got, b"before", "{why}");
        let again = client.read(&mut [0; 100]).await.unwrap_err();
        assert_eq!(again.to_string(), error.to_string());
        assert!(store.read(&mut [0; 100]).await.unwrap() > 7, "{why}: an alert");
    }
    for (raw, why) in [
        (&b"HTTP/1.1 200 OK\r\n"[..], "no TLS record"),
        (&[23, 3, 3, 0x50, 0], "18437 are allowed"),
        (&[23, 3, 3, 0, 3, 1, 2, 3], "too short"),
        (&[23, 3, 3, 0, 17, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17], "altered"),
    ] {
        let (mut client, mut store, _) = forged(TLS13).await;
        store.write_all(raw).await.unwrap();
        let error = client.read_u8().await.unwrap_err();
        assert!(error.to_string().contains(why), "{error}, and not {why}");
        assert!(store.read(&mut [0; 100]).await.unwrap() > 7, "{why}: an alert");
    }
    let (mut client, mut store, mut seals) = forged(TLS13).await;
    store
        .write_all(&sealed(&mut seals, ContentType::Alert, &[2, AlertDescription::InternalError.into()]))
        .await
        .unwrap();
    let error = client.read_u8().await.unwrap_err();
    assert!(error.to_string().contains("the alert InternalError"), "{error}");
}
