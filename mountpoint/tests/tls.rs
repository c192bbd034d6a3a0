//! The client over TLS: trusted servers, refused servers, and no data for a refused server.

#[path = "common/certificates.rs"]
mod certificates;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use bytes::Bytes;
use certificates::Certificates;
use mountpoint::buffer::{Fill, Pool, Use};
use mountpoint::clock::Clock;
use mountpoint::metrics::Metrics;
use mountpoint::net::ProxyVariables;
use mountpoint::object::{ETag, ObjectId, ObjectKey};
use mountpoint::s3::{
    Config, Credentials, ErrorKind, GetObject, NewObject, ObjectClient as _, PutObject, S3Client,
};
use rustls::{HandshakeKind, ServerConfig, ServerConnection, StreamOwned};

const LEN: usize = 300_000;

fn contents() -> Vec<u8> {
    (0..LEN).map(|i| (i * 7 % 251) as u8).collect()
}

type Stream = StreamOwned<ServerConnection, TcpStream>;

/// A store behind TLS with one object, whose certificate an authority of its own signed. Runs until the test ends.
struct Store {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
    handshakes_failed: Arc<Mutex<usize>>,
    /// Whether each connection resumed the keys of an earlier one.
    resumed: Arc<Mutex<Vec<bool>>>,
    /// Whether the store sends close_notify behind each listing, and leaves the TCP connection open.
    takes_leave: Arc<AtomicBool>,
    certificates: Certificates,
}

impl Store {
    /// A store with a certificate for this name.
    fn certified_for(name: &str) -> Self {
        let certificates = Certificates::of(&[name]);
        let tls = certificates.server();

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let store = Self {
            port,
            requests: Arc::default(),
            handshakes_failed: Arc::default(),
            resumed: Arc::default(),
            takes_leave: Arc::default(),
            certificates,
        };
        let (requests, failed) = (Arc::clone(&store.requests), Arc::clone(&store.handshakes_failed));
        let (resumed, leave) = (Arc::clone(&store.resumed), Arc::clone(&store.takes_leave));
        thread::spawn(move || {
            for tcp in listener.incoming() {
                let (tls, requests, failed) = (Arc::clone(&tls), Arc::clone(&requests), Arc::clone(&failed));
                let (resumed, leave) = (Arc::clone(&resumed), Arc::clone(&leave));
                thread::spawn(move || serve(tls, tcp.unwrap(), &requests, &failed, &resumed, &leave));
            }
        });
        store
    }

    /// A server that proves its bucket, and passes each other request to `answer` with its number, after reading the head alone. The
    /// connection serves further requests if `answer` returns it.
    fn scripted(answer: impl Fn(usize, &str, Stream) -> Option<Stream> + Send + Sync + 'static) -> Self {
        let certificates = Certificates::of(&["127.0.0.1"]);
        let (tls, answer) = (certificates.server(), Arc::new(answer));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let store = Self {
            port: listener.local_addr().unwrap().port(),
            requests: Arc::default(),
            handshakes_failed: Arc::default(),
            resumed: Arc::default(),
            takes_leave: Arc::default(),
            certificates,
        };
        let (requests, asked) = (Arc::clone(&store.requests), Arc::new(AtomicUsize::new(0)));
        thread::spawn(move || {
            for tcp in listener.incoming() {
                let (tls, answer) = (Arc::clone(&tls), Arc::clone(&answer));
                let (requests, asked) = (Arc::clone(&requests), Arc::clone(&asked));
                thread::spawn(move || {
                    let mut stream = StreamOwned::new(ServerConnection::new(tls).unwrap(), tcp.unwrap());
                    while let Some(head) = head(&mut stream) {
                        requests.lock().unwrap().push(head.lines().next().unwrap().to_owned());
                        if head.contains("list-type=2") {
                            say(&mut stream, "200 OK", "", LISTING);
                            continue;
                        }
                        let number = asked.fetch_add(1, Ordering::SeqCst);
                        let Some(kept) = answer(number, &head, stream) else { return };
                        stream = kept;
                    }
                });
            }
        });
        store
    }

    fn ca_bundle(&self) -> PathBuf {
        self.certificates.ca_bundle()
    }

    /// Reads the object once.
    async fn read(&self, client: &S3Client) {
        let pool = Pool::new(&mountpoint::buffer::Config { target: 128 << 20, network: 0 });
        let received = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&received);
        let block = pool.try_take(Use::Demand, LEN).unwrap();
        let mut fill = Fill::new([block], move |bytes| sink.lock().unwrap().extend_from_slice(&bytes));
        let id = ObjectId::by_etag(ObjectKey::new("k"), ETag::new("\"v1\""));
        let request = GetObject { id, range: 0..LEN as u64, object_size: LEN as u64 };
        client.get_object(&request, &mut fill).await.unwrap();
        assert!(*received.lock().unwrap() == contents());
    }

    async fn connect(&self, ca_bundle: Option<PathBuf>) -> mountpoint::s3::Result<Arc<S3Client>> {
        self.connect_through(ProxyVariables::default(), ca_bundle).await
    }

    async fn connect_through(
        &self,
        proxies: ProxyVariables,
        ca_bundle: Option<PathBuf>,
    ) -> mountpoint::s3::Result<Arc<S3Client>> {
        self.connect_with(Config { proxies, ca_bundle, ..Config::default() }).await
    }

    async fn connect_with(&self, config: Config) -> mountpoint::s3::Result<Arc<S3Client>> {
        let config = Config {
            bucket: "bucket".into(),
            region: Some("us-east-1".into()),
            endpoint_url: Some(format!("https://127.0.0.1:{}", self.port)),
            force_path_style: true,
            credentials: Some(Credentials::new("AKID", "SECRET", None, None, "test")),
            ..config
        };
        S3Client::connect(config, Clock::machine(), Arc::new(Metrics::default())).await
    }

    /// Asserts that the client refuses the certificate, in clear words, before its first request.
    async fn is_refused(&self, ca_bundle: Option<PathBuf>, why: &str) {
        let error = self.connect(ca_bundle).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Network, "{error}");
        let said = error.to_string();
        assert!(said.contains("certificate") && said.contains(why), "{said}");
        assert!(!said.contains("SECRET"));
        assert_eq!(*self.requests.lock().unwrap(), Vec::<String>::new(), "nobody asks a stranger");
        // The store hears of it a moment after the client knows.
        testkit::until("it was the handshake that failed", || *self.handshakes_failed.lock().unwrap() > 0);
    }
}

const LISTING: &[u8] = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
const PARTIAL: &str = "206 Partial Content";

/// The headers of the answer that carries the object.
fn headers() -> String {
    format!("etag: \"v1\"\r\ncontent-range: bytes 0-{}/{LEN}\r\n", LEN - 1)
}

/// The head of the next request; `None` at the end.
fn head(stream: &mut Stream) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

/// An answer. What the client does not take any more is lost.
fn say(stream: &mut Stream, status: &str, headers: &str, body: &[u8]) {
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
    let _ = stream.write_all(&[head.as_bytes(), body].concat()).and_then(|()| stream.flush());
}

/// Announces its end, and reads nothing more: the connection stays open until the test ends.
fn goes_deaf(mut stream: Stream) -> Option<Stream> {
    stream.conn.send_close_notify();
    let _ = stream.flush();
    let _ = stream.sock.shutdown(Shutdown::Write);
    std::mem::forget(stream);
    None
}

/// A file of this many bytes.
fn put(len: usize) -> PutObject {
    let object = NewObject::new(ObjectKey::new("k"));
    PutObject { object, body: vec![Bytes::from(vec![7; len])], checksum: None }
}

/// More bytes than the sockets hold.
const MORE: usize = 64 << 20;

/// Answers requests, if the handshake succeeds.
fn serve(
    tls: Arc<ServerConfig>,
    mut tcp: TcpStream,
    requests: &Mutex<Vec<String>>,
    failed: &Mutex<usize>,
    resumed: &Mutex<Vec<bool>>,
    takes_leave: &AtomicBool,
) {
    let mut session = ServerConnection::new(tls).unwrap();
    while session.is_handshaking() {
        if session.complete_io(&mut tcp).is_err() {
            *failed.lock().unwrap() += 1;
            return;
        }
    }
    resumed.lock().unwrap().push(session.handshake_kind() == Some(HandshakeKind::Resumed));
    let mut stream = StreamOwned::new(session, tcp);
    let mut served = false;
    loop {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                // A client may notice only after its own last word that it does not trust us.
                Err(_) if head.is_empty() && !served => {
                    *failed.lock().unwrap() += 1;
                    return;
                }
                _ => return,
            }
        }
        let line = String::from_utf8(head).unwrap().lines().next().unwrap().to_owned();
        let is_list = line.contains("list-type=2");
        requests.lock().unwrap().push(line);
        served = true;
        let (status, headers, body) = if is_list {
            ("200 OK", String::new(), LISTING.to_vec())
        } else {
            (PARTIAL, format!("{}connection: close\r\n", headers()), contents())
        };
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
        if is_list && takes_leave.load(Ordering::SeqCst) {
            // In one piece with the answer: a reader of the one has received the other.
            stream.conn.writer().write_all(&[head.as_bytes(), &body].concat()).unwrap();
            stream.conn.send_close_notify();
            stream.conn.write_tls(&mut stream.sock).unwrap();
            continue;
        }
        if stream.write_all(&[head.as_bytes(), &body].concat()).and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn a_store_whose_authority_is_in_the_ca_bundle_is_trusted_and_read() {
    let store = Store::certified_for("127.0.0.1");
    let client = store.connect(Some(store.ca_bundle())).await.unwrap();
    store.read(&client).await;
    let requests = store.requests.lock().unwrap();
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert!(requests[1].starts_with("GET /bucket/k"), "{requests:?}");
    assert_eq!(*store.handshakes_failed.lock().unwrap(), 0);
}

#[tokio::test]
async fn extra_bundles_are_trusted_beside_the_bundle_and_the_systems_roots() {
    let (store, other) = (Store::certified_for("127.0.0.1"), Store::certified_for("127.0.0.1"));
    let both = vec![other.ca_bundle(), store.ca_bundle()];
    for ca_bundle in [None, Some(other.ca_bundle())] {
        let config = Config { ca_bundle, extra_ca_bundles: both.clone(), ..Config::default() };
        store.read(&store.connect_with(config).await.unwrap()).await;
    }
    let config = Config {
        ca_bundle: Some(store.ca_bundle()),
        extra_ca_bundles: vec![other.ca_bundle()],
        ..Config::default()
    };
    store.read(&store.connect_with(config).await.unwrap()).await;
    assert_eq!(*store.handshakes_failed.lock().unwrap(), 0);
    // A file without a certificate is named at start.
    let (_, key) = store.certificates.files();
    let config = Config { extra_ca_bundles: vec![key.clone()], ..Config::default() };
    let error = store.connect_with(config).await.unwrap_err().to_string();
    assert!(error.contains("holds no certificate") && error.contains(key.to_str().unwrap()), "{error}");
}

#[tokio::test]
async fn a_second_connection_resumes_the_session_of_the_first() {
    let store = Store::certified_for("127.0.0.1");
    let client = store.connect(Some(store.ca_bundle())).await.unwrap();
    for _ in 0..3 {
        store.read(&client).await; // this store closes the connection behind each object
    }
    assert_eq!(*store.resumed.lock().unwrap(), [false, true, true]);
}

#[tokio::test]
async fn a_connection_whose_store_took_leave_is_closed_though_tcp_is_not() {
    let store = Store::certified_for("127.0.0.1");
    store.takes_leave.store(true, Ordering::SeqCst);
    let client = store.connect(Some(store.ca_bundle())).await.unwrap();
    store.read(&client).await;
    let requests = store.requests.lock().unwrap();
    assert_eq!(requests.len(), 2, "nothing was said to a store that had left: {requests:?}");
    assert_eq!(store.resumed.lock().unwrap().len(), 2, "the object came on a second connection");
}

#[tokio::test]
async fn a_refusal_before_the_body_is_heard_and_the_next_file_goes_elsewhere() {
    for (status, code, kind) in
        [("503 X", "SlowDown", ErrorKind::Throttled), ("400 X", "EntityTooLarge", ErrorKind::TooLarge)]
    {
        let store = Store::scripted(move |number, _, mut stream| {
            if number == 0 {
                let document = format!("<Error><Code>{code}</Code><Message>m</Message></Error>");
                say(&mut stream, status, "", document.as_bytes());
                return goes_deaf(stream);
            }
            let mut body = vec![0; 1000];
            stream.read_exact(&mut body).unwrap();
            say(&mut stream, "200 OK", "etag: \"v1\"\r\n", b"");
            Some(stream)
        });
        let config =
            Config { attempts_max: Some(1), ca_bundle: Some(store.ca_bundle()), ..Config::default() };
        let client = store.connect_with(config).await.unwrap();
        let error = client.put_object(&put(MORE)).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), (&kind, Some(code)), "{error}");
        client.put_object(&put(1000)).await.unwrap();
    }
}

#[tokio::test]
async fn a_success_that_comes_before_the_body_was_sent_stores_nothing() {
    let store = Store::scripted(|_, _, mut stream| {
        say(&mut stream, "200 OK", "etag: \"v1\"\r\n", b"");
        goes_deaf(stream)
    });
    let config = Config { attempts_max: Some(2), ca_bundle: Some(store.ca_bundle()), ..Config::default() };
    let client = store.connect_with(config).await.unwrap();
    let error = client.put_object(&put(MORE)).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Network, "{error}");
    assert!(error.to_string().contains("before the whole body was sent"), "{error}");
}

#[tokio::test]
async fn an_idle_connection_that_the_store_takes_leave_of_costs_no_try() {
    let store = Store::scripted(|number, _, mut stream| {
        if number == 1 {
            // The server was about to close, and the request was on its way.
            stream.conn.send_close_notify();
            stream.flush().unwrap();
            return None;
        }
        say(&mut stream, PARTIAL, &headers(), &contents());
        Some(stream)
    });
    let config = Config { attempts_max: Some(1), ca_bundle: Some(store.ca_bundle()), ..Config::default() };
    let client = store.connect_with(config).await.unwrap();
    store.read(&client).await;
    store.read(&client).await;
    assert_eq!(store.requests.lock().unwrap().len(), 4, "one of them was sent twice");
}

#[tokio::test]
async fn a_store_whose_authority_nobody_knows_is_refused() {
    let store = Store::certified_for("127.0.0.1");
    Box::pin(store.is_refused(None, "UnknownIssuer")).await;
    let stranger = Store::certified_for("127.0.0.1");
    Box::pin(store.is_refused(Some(stranger.ca_bundle()), "")).await;
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let store = Store::certified_for("s3.example.org");
    Box::pin(store.is_refused(Some(store.ca_bundle()), "127.0.0.1")).await;
}

/// A proxy that makes tunnels to this port, and the request lines that it received.
fn proxy_to(port: u16, answer: &'static str) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let lines = Arc::clone(&asked);
    thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, lines) = (client.unwrap(), Arc::clone(&lines));
            thread::spawn(move || -> std::io::Result<()> {
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") {
                    client.read_exact(&mut byte)?;
                    head.push(byte[0]);
                }
                lines.lock().unwrap().push(String::from_utf8_lossy(&head).lines().next().unwrap().to_owned());
                client.write_all(answer.as_bytes())?;
                let mut store = TcpStream::connect(("127.0.0.1", port))?;
                let (mut from_client, mut to_store) = (client.try_clone()?, store.try_clone()?);
                thread::spawn(move || std::io::copy(&mut from_client, &mut to_store));
                std::io::copy(&mut store, &mut client).map(drop)
            });
        }
    });
    (address, asked)
}

#[tokio::test]
async fn through_a_proxy_tls_goes_by_a_tunnel() {
    let store = Store::certified_for("127.0.0.1");
    let (address, asked) = proxy_to(store.port, "HTTP/1.1 200 OK\r\n\r\n");
    let proxies = ProxyVariables { https: Some(address), ..ProxyVariables::default() };
    let client = store.connect_through(proxies, Some(store.ca_bundle())).await.unwrap();
    store.read(&client).await;
    assert_eq!(store.requests.lock().unwrap().len(), 2);
    let asked = asked.lock().unwrap();
    assert!(!asked.is_empty());
    let line = format!("CONNECT 127.0.0.1:{} HTTP/1.1", store.port);
    assert!(asked.iter().all(|l| *l == line), "{asked:?}");
}

#[tokio::test]
async fn a_proxy_that_refuses_is_named() {
    let store = Store::certified_for("127.0.0.1");
    let (address, _) = proxy_to(store.port, "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n");
    let proxies = ProxyVariables { https: Some(address.clone()), ..ProxyVariables::default() };
    let error = store.connect_through(proxies, Some(store.ca_bundle())).await.unwrap_err().to_string();
    assert!(error.contains(address.trim_start_matches("http://")) && error.contains("407"), "{error}");
}
