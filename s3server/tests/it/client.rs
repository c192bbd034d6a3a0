//! A client of one request at a time: signed by AWS's own signer, sent by hyper, nothing hidden.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::SystemTime;

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings,
    UriPathNormalizationMode, sign,
};
use aws_sigv4::sign::v4;
use bytes::Bytes;
use futures_util::stream::pending;
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3server::{Config, Server};
use tokio::net::TcpStream;

pub(crate) const BUCKET: &str = "bucket";
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const PLAIN_PATH: &AsciiSet = &PLAIN.remove(b'/');

/// A server over a fresh folder, and a client of it.
pub(crate) struct Lab {
    pub(crate) server: Option<Server>,
    pub(crate) root: tempfile::TempDir,
    /// The address for requests: the server's in this process, or another one.
    pub(crate) address: SocketAddr,
    change: fn(Config) -> Config,
    runtime: tokio::runtime::Runtime,
}

/// An answer, read completely. `broken`: the body ended before its length, with the client's error.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Vec<u8>,
    pub(crate) broken: Option<String>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// The text of each element of this name, in order.
    pub(crate) fn all(&self, element: &str) -> Vec<String> {
        let (open, close) = (format!("<{element}>"), format!("</{element}>"));
        let text = self.text();
        let pieces = text.split(&open).skip(1);
        pieces.map(|piece| unescape(piece.split(&close).next().unwrap())).collect()
    }

    pub(crate) fn first(&self, element: &str) -> String {
        self.all(element).into_iter().next().unwrap_or_default()
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert!((200..300).contains(&self.status), "{} {}", self.status, String::from_utf8_lossy(&self.body));
        self
    }

    /// Asserts an error by status and code.
    #[track_caller]
    pub(crate) fn fails(self, status: u16, code: &str) -> Self {
        let text = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status, status, "{text}");
        assert!(text.contains(&format!("<Code>{code}</Code>")), "{text}");
        self
    }
}

fn unescape(text: &str) -> String {
    text.replace("&quot;", "\"")
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&apos;", "'")
        .replace("&amp;", "&")
}

/// A request being written.
pub(crate) struct Request<'a> {
    lab: &'a Lab,
    method: &'static str,
    path: String,
    query: Vec<(String, String)>,
    headers: Vec<(String, String)>,
    body: Bytes,
    secret: String,
    signed_payload: bool,
    tampered: bool,
}

impl Lab {
    pub(crate) fn new() -> Self {
        Self::with(|config| config)
    }

    /// A lab whose server starts with this change of its configuration, also after a restart.
    pub(crate) fn with(change: fn(Config) -> Config) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut lab = Self {
            server: None,
            root,
            change,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            runtime: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap(),
        };
        lab.start();
        lab
    }

    pub(crate) fn start(&mut self) {
        let server = Server::start((self.change)(Config::new(self.root.path()).bucket(BUCKET))).unwrap();
        self.address = server.address();
        self.server = Some(server);
    }

    pub(crate) fn restart(&mut self) {
        self.server.take().unwrap().stop();
        self.start();
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    /// The folder of the bucket.
    pub(crate) fn folder(&self) -> std::path::PathBuf {
        self.root.path().join(BUCKET)
    }

    pub(crate) fn request(&self, method: &'static str, path: &str) -> Request<'_> {
        Request {
            lab: self,
            method,
            path: utf8_percent_encode(path, PLAIN_PATH).to_string(),
            query: Vec::new(),
            headers: Vec::new(),
            body: Bytes::new(),
            secret: "testsecret".into(),
            signed_payload: false,
            tampered: false,
        }
    }

    pub(crate) fn object(&self, method: &'static str, key: &str) -> Request<'_> {
        self.request(method, &format!("/{BUCKET}/{key}"))
    }

    pub(crate) fn bucket(&self, method: &'static str) -> Request<'_> {
        self.request(method, &format!("/{BUCKET}"))
    }

    pub(crate) fn put(&self, key: &str, body: &[u8]) -> Answer {
        self.object("PUT", key).body(body).send().ok()
    }

    pub(crate) fn get(&self, key: &str) -> Answer {
        self.object("GET", key).send()
    }

    /// Keys and common prefixes of a whole listing, read in pages.
    pub(crate) fn list(&self, prefix: &str, delimiter: &str, page: usize) -> (Vec<String>, Vec<String>) {
        let (mut keys, mut prefixes) = (Vec::new(), Vec::new());
        let mut token: Option<String> = None;
        loop {
            let mut request = self.bucket("GET").query("list-type", "2").query("encoding-type", "url");
            request = request.query("prefix", prefix).query("delimiter", delimiter);
            request = request.query("max-keys", &page.to_string());
            if let Some(token) = &token {
                request = request.query("continuation-token", token);
            }
            let answer = request.send().ok();
            let decode = |text: &String| {
                let spaced = text.replace('+', " ");
                percent_encoding::percent_decode_str(&spaced).decode_utf8().unwrap().into_owned()
            };
            keys.extend(answer.all("Key").iter().map(decode));
            let text = answer.text();
            for piece in text.split("<CommonPrefixes><Prefix>").skip(1) {
                prefixes.push(decode(&piece.split('<').next().unwrap().to_owned()));
            }
            match answer.first("NextContinuationToken") {
                next if next.is_empty() => return (keys, prefixes),
                next => token = Some(next),
            }
        }
    }
}

impl Request<'_> {
    pub(crate) fn query(mut self, name: &str, value: &str) -> Self {
        self.query.push((name.into(), value.into()));
        self
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub(crate) fn body(mut self, body: &[u8]) -> Self {
        self.body = Bytes::copy_from_slice(body);
        self
    }

    pub(crate) fn secret(mut self, secret: &str) -> Self {
        self.secret = secret.into();
        self
    }

    /// The signature covers a hash of the body.
    pub(crate) fn signed_payload(mut self) -> Self {
        self.signed_payload = true;
        self
    }

    /// Sends other bytes than the signed ones.
    pub(crate) fn tampered(mut self) -> Self {
        self.tampered = true;
        self
    }

    pub(crate) fn send(self) -> Answer {
        self.try_send().unwrap()
    }

    /// Sends the head alone, which announces a body of this length; the server answers before any of the body comes.
    pub(crate) fn send_head(self, length: u64) -> Answer {
        let (lab, address) = (self.lab, self.lab.address);
        let request = self.header("content-length", &length.to_string()).signed(address);
        let never = StreamBody::new(pending::<Result<Frame<Bytes>, Infallible>>());
        lab.runtime.block_on(exchange(address, request.map(|_| never))).unwrap()
    }

    /// Err when the connection ended before an answer.
    pub(crate) fn try_send(self) -> Result<Answer, String> {
        let lab = self.lab;
        let address = lab.address;
        let request = self.signed(address);
        lab.runtime.block_on(exchange(address, request))
    }

    fn signed(mut self, address: SocketAddr) -> http::Request<Full<Bytes>> {
        let encode = |text: &str| utf8_percent_encode(text, PLAIN).to_string();
        let query: Vec<_> = self.query.iter().map(|(n, v)| format!("{}={}", encode(n), encode(v))).collect();
        let target = match query.is_empty() {
            true => self.path.clone(),
            false => format!("{}?{}", self.path, query.join("&")),
        };
        self.headers.push(("host".into(), address.to_string()));
        let mut settings = SigningSettings::default();
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        let identity = Credentials::from_keys("test", &self.secret, None).into();
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region("us-east-1")
            .name("s3")
            .time(SystemTime::now())
            .settings(settings)
            .build()
            .unwrap()
            .into();
        let streamed = self.headers.iter().any(|(name, _)| name == "x-amz-trailer");
        let body = match (self.signed_payload, streamed) {
            (true, _) => SignableBody::Bytes(&self.body),
            (false, true) => SignableBody::StreamingUnsignedPayloadTrailer,
            (false, false) => SignableBody::UnsignedPayload,
        };
        let uri = format!("http://{address}{target}");
        let headers = self.headers.iter().map(|(n, v)| (n.as_str(), v.as_str()));
        let signable = SignableRequest::new(self.method, &uri, headers, body).unwrap();
        let (instructions, _) = sign(signable, &params).unwrap().into_parts();
        let mut request = http::Request::builder().method(self.method).uri(target);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let sent = if self.tampered { self.body.iter().map(|byte| !byte).collect() } else { self.body };
        let mut request = request.body(Full::new(sent)).unwrap();
        instructions.apply_to_request_http1x(&mut request);
        request
    }
}

async fn exchange<B>(address: SocketAddr, request: http::Request<B>) -> Result<Answer, String>
where
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let stream = TcpStream::connect(address).await.map_err(|e| format!("{e:?}"))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| format!("{e:?}"))?;
    let connection = tokio::spawn(connection);
    let response = sender.send_request(request).await.map_err(|e| format!("{e:?}"))?;
    let (head, mut incoming) = response.into_parts();
    let mut body = Vec::new();
    let mut broken = None;
    while let Some(frame) = incoming.frame().await {
        match frame {
            Ok(frame) => body.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
            Err(error) => {
                broken = Some(format!("{error:?}"));
                break;
            }
        }
    }
    drop(sender);
    connection.abort();
    Ok(Answer { status: head.status.as_u16(), headers: head.headers, body, broken })
}
