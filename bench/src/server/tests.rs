//! Tests of the server over a real socket, with a minimal client.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustls::{ClientConnection, StreamOwned};

use super::control::Control;
use super::ops::between;
use super::store::Shape;
use super::{Server, tls};
use crate::pattern;

struct Client<S = TcpStream> {
    stream: S,
    control: Control,
}

struct Response {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Response {
    fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map_or_else(|| panic!("no header {name} in {:?}", self.headers), |(_, value)| value.as_str())
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

impl Client {
    /// A client of a server of its own; the server's thread ends with the process.
    fn start() -> Self {
        let server = Server::bind(0, None).unwrap();
        let (address, over_tls) = server.addresses().unwrap();
        assert_eq!(over_tls, None);
        std::thread::spawn(move || server.run());
        Self { stream: connect(address), control: Control::new(address) }
    }
}

impl Client<StreamOwned<ClientConnection, TcpStream>> {
    /// Starts a server, and a client of the server over TLS.
    fn start_tls() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ca_file = folder.path().join("ca.pem");
        let server = Server::bind(0, Some(&ca_file)).unwrap();
        let (address, over_tls) = server.addresses().unwrap();
        std::thread::spawn(move || server.run());
        let host = tls::HOST.try_into().unwrap();
        let session = ClientConnection::new(tls::client(&ca_file).unwrap(), host).unwrap();
        let stream = StreamOwned::new(session, connect(over_tls.unwrap()));
        Self { stream, control: Control::new(address) }
    }
}

impl<S: Read + Write> Client<S> {
    fn send(&mut self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        let mut head = format!("{method} {target} HTTP/1.1\r\nHost: x\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        self.stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        self.stream.write_all(body).unwrap();
        self.receive(method == "HEAD")
    }

    fn receive(&mut self, head_only: bool) -> Response {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).unwrap();
            bytes.push(byte[0]);
        }
        let head = String::from_utf8(bytes).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let headers: Vec<(String, String)> = head
            .lines()
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let length = if head_only { 0 } else { length.map_or(0, |(_, value)| value.parse().unwrap()) };
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).unwrap();
        Response { status, headers, body }
    }
}

#[test]
fn a_range_gives_the_bytes_of_the_pattern_and_says_which() {
    let mut client = Client::start();
    client.control.fill("b", "f", "counter", 1, 3 * pattern::PERIOD).unwrap();
    let base = pattern::base_of("f00000000");
    let size = 3 * pattern::PERIOD;
    for (range, first, last) in [
        ("bytes=0-0", 0, 0),
        ("bytes=1000-5000", 1000, 5000),
        (
            &*format!("bytes={}-{}", pattern::PERIOD - 10, pattern::PERIOD + 2_000_000),
            pattern::PERIOD - 10,
            pattern::PERIOD + 2_000_000,
        ),
        (&*format!("bytes={}-", size - 77), size - 77, size - 1),
        ("bytes=-5", size - 5, size - 1),
    ] {
        let response = client.send("GET", "/b/f00000000", &[("Range", range)], b"");
        assert_eq!(response.status, 206);
        assert_eq!(response.header("content-range"), format!("bytes {first}-{last}/{size}"));
        assert_eq!(response.body.len() as u64, last - first + 1);
        pattern::check(base, first, &response.body).unwrap();
    }
    assert_eq!(client.send("GET", "/b/f00000000", &[("range", &format!("bytes={size}-"))], b"").status, 416);
    assert_eq!(client.send("GET", "/b/nothing", &[], b"").status, 404);
}

#[test]
fn another_etag_is_refused_with_412() {
    let mut client = Client::start();
    client.control.fill("b", "f", "counter", 1, 100).unwrap();
    let etag = client.send("HEAD", "/b/f00000000", &[], b"").header("etag").to_owned();
    assert_eq!(client.send("GET", "/b/f00000000", &[("if-match", &etag)], b"").status, 200);
    assert_eq!(client.send("GET", "/b/f00000000", &[("if-match", "\"other\"")], b"").status, 412);
    assert_eq!(client.send("PUT", "/b/f00000000", &[("if-none-match", "*")], b"new").status, 412);
    assert_eq!(client.send("PUT", "/b/f00000000", &[("if-match", &etag)], b"new").status, 200);
    assert_eq!(client.send("GET", "/b/f00000000", &[("if-match", &etag)], b"").status, 412);
}

#[test]
fn what_was_put_is_headed_listed_and_read_with_its_metadata() {
    let mut client = Client::start();
    client.control.fill("b", "", "counter", 0, 0).unwrap();
    let mut body = vec![0; 70_000];
    pattern::fill(pattern::base_of("dir/a b"), 0, &mut body);
    let headers =
        [("x-amz-meta-mtime", "17"), ("content-type", "text/x"), ("x-amz-checksum-crc32c", "AAAAAA==")];
    let put = client.send("PUT", "/b/dir/a%20b", &headers, &body);
    assert_eq!((put.status, put.header("x-amz-checksum-crc32c")), (200, "AAAAAA=="));
    let head = client.send("HEAD", "/b/dir/a%20b", &[], b"");
    assert_eq!(head.header("content-length"), "70000");
    assert_eq!((head.header("x-amz-meta-mtime"), head.header("content-type")), ("17", "text/x"));
    assert_eq!(head.header("etag"), put.header("etag"));
    assert_eq!(client.send("GET", "/b/dir/a%20b", &[], b"").body, body);
    let listing = client.send("GET", "/b?list-type=2&prefix=dir/&encoding-type=url", &[], b"");
    assert!(listing.text().contains("<Key>dir/a%20b</Key>"), "{}", listing.text());
    assert_eq!(client.send("DELETE", "/b/dir/a%20b", &[], b"").status, 204);
    assert_eq!(client.send("HEAD", "/b/dir/a%20b", &[], b"").status, 404);
}

#[test]
fn what_was_stored_is_counted_also_after_it_was_removed() {
    let mut client = Client::start();
    let control = client.control;
    control.fill("b", "", "counter", 1, 5).unwrap();
    for (key, body) in [("job.0", &b"four"[..]), ("job.1", b"three"), ("job.1", b"another"), ("joke", b"x")] {
        assert_eq!(client.send("PUT", &format!("/b/{key}"), &[], body).status, 200);
    }
    let counted = || (control.count("b", "job.").unwrap(), control.stored("b", "job.").unwrap());
    assert_eq!(counted(), ((2, 11), (2, 11)), "an object that is replaced counts once, as it is now");
    for key in ["job.0", "job.0", "00000000"] {
        assert_eq!(client.send("DELETE", &format!("/b/{key}"), &[], b"").status, 204);
    }
    let many = b"<Delete><Object><Key>job.1</Key></Object><Object><Key>never</Key></Object></Delete>";
    assert_eq!(client.send("POST", "/b?delete", &[], many).status, 200);
    assert_eq!(counted(), ((0, 0), (2, 11)));
    assert_eq!(client.send("PUT", "/b/job.0", &[], b"again").status, 200);
    assert_eq!(counted(), ((1, 5), (3, 16)));
    control.reset().unwrap();
    assert_eq!(counted(), ((1, 5), (1, 5)));
}

#[test]
fn parts_become_one_object_of_their_sizes() {
    let mut client = Client::start();
    client.control.fill("b", "", "counter", 0, 0).unwrap();
    let created = client.send("POST", "/b/big?uploads", &[("x-amz-meta-k", "v")], b"");
    let id = between(created.text(), "<UploadId>", "</UploadId>").next().unwrap().to_owned();
    let part = vec![7; 6 << 20];
    for number in 1..=2 {
        assert_eq!(
            client.send("PUT", &format!("/b/big?partNumber={number}&uploadId={id}"), &[], &part).status,
            200
        );
    }
    assert_eq!(client.send("HEAD", "/b/big", &[], b"").status, 404, "visible before Complete");
    let numbers = b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber></Part><Part><PartNumber>2</PartNumber></Part></CompleteMultipartUpload>";
    assert_eq!(client.send("POST", &format!("/b/big?uploadId={id}"), &[], numbers).status, 200);
    let head = client.send("HEAD", "/b/big", &[], b"");
    assert_eq!((head.header("content-length"), head.header("x-amz-meta-k")), ("12582912", "v"));
    let counts = client.control.counts().unwrap();
    assert_eq!((counts.upload_part, counts.bytes_received), (2, 12 << 20));
}

#[test]
fn the_pages_of_100_000_keys_are_complete_and_in_order() {
    let mut client = Client::start();
    client.control.fill("names", "d/", "counter", 100_000, 1).unwrap();
    for version in ["&list-type=2", ""] {
        let (mut keys, mut token) = (Vec::new(), String::new());
        loop {
            let resume = match (version, token.as_str()) {
                (_, "") => String::new(),
                ("", token) => format!("&marker={token}"),
                (_, token) => format!("&continuation-token={}", token.replace('%', "%25")),
            };
            let target = format!("/names?prefix=d/&delimiter=%2F&encoding-type=url{version}{resume}");
            let page = client.send("GET", &target, &[], b"");
            keys.extend(between(page.text(), "<Key>", "</Key>").map(str::to_owned));
            let tag = if version.is_empty() { "NextMarker" } else { "NextContinuationToken" };
            let next =
                between(page.text(), &format!("<{tag}>"), &format!("</{tag}>")).next().map(str::to_owned);
            match next {
                Some(next) => token = next,
                None => break,
            }
        }
        assert_eq!(keys.len(), 100_000);
        assert!(keys.is_sorted());
        assert_eq!((keys[0].as_str(), keys[99_999].as_str()), ("d/00000000", "d/00099999"));
    }
    let counts = client.control.counts().unwrap();
    assert_eq!((counts.list, counts.cost()), (200, 2400));
    client.control.reset().unwrap();
    assert_eq!(client.control.counts().unwrap().list, 0);
}

#[test]
fn the_names_of_each_shape_are_unique_in_order_and_all_there() {
    let mut client = Client::start();
    let count = 100_000;
    for shape in ["counter", "hex", "dates", "deep"] {
        client.control.fill(shape, "dir/", shape, count, 1).unwrap();
        let (mut keys, mut token) = (Vec::new(), String::new());
        loop {
            let page = client.send("GET", &format!("/{shape}?list-type=2{token}"), &[], b"");
            keys.extend(between(page.text(), "<Key>", "</Key>").map(str::to_owned));
            let next = between(page.text(), "<NextContinuationToken>", "</NextContinuationToken>").next();
            match next {
                Some(next) => token = format!("&continuation-token={}", next.replace('%', "%25")),
                None => break,
            }
        }
        assert_eq!(keys.len() as u64, count, "{shape}");
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "{shape}: not in order, or twice");
        let name = |number| format!("dir/{}", shape.parse::<Shape>().unwrap().name(number));
        let mut expected: Vec<String> = (0..count).map(name).collect();
        expected.sort();
        assert_eq!(keys, expected, "{shape}");
    }
}

#[test]
fn latency_and_rate_hold_an_answer_back() {
    let mut client = Client::start();
    client.control.fill("b", "f", "counter", 1, 4 << 20).unwrap();
    client.control.pace(Duration::from_millis(30), 40 << 20).unwrap();
    let begun = std::time::Instant::now();
    assert_eq!(client.send("GET", "/b/f00000000", &[], b"").body.len(), 4 << 20);
    // 30 ms of latency and 100 ms for 4 MiB at 40 MiB/s, less the burst and the last chunk (6.25 ms), which is there
    // before it is paid for; a slow machine only takes longer.
    assert!(begun.elapsed() >= Duration::from_millis(121), "{:?}", begun.elapsed());
}

#[test]
fn an_expected_body_is_asked_for_before_it_comes() {
    let mut client = Client::start();
    client.control.fill("b", "", "counter", 0, 0).unwrap();
    let head = "PUT /b/k HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n";
    client.stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(client.receive(true).status, 100);
    client.stream.write_all(b"abc").unwrap();
    assert_eq!(client.receive(false).status, 200);
    assert_eq!(client.control.count("b", "k").unwrap(), (1, 3));
}

#[test]
fn over_tls_every_byte_of_the_pattern_comes_and_bodies_are_counted() {
    let mut client = Client::start_tls();
    let size = pattern::PERIOD + (1 << 20);
    client.control.fill("b", "f", "counter", 1, size).unwrap();
    let whole = client.send("GET", "/b/f00000000", &[], b"");
    assert_eq!((whole.status, whole.body.len() as u64), (200, size));
    pattern::check(pattern::base_of("f00000000"), 0, &whole.body).unwrap();
    let range = client.send("GET", "/b/f00000000", &[("range", "bytes=5000-70000")], b"");
    assert_eq!((range.status, range.body.len()), (206, 65_001));
    pattern::check(pattern::base_of("f00000000"), 5000, &range.body).unwrap();
    let body = vec![7; 300_000];
    assert_eq!(client.send("PUT", "/b/k", &[], &body).status, 200);
    assert_eq!(client.control.count("b", "k").unwrap(), (1, 300_000));
    let counts = client.control.counts().unwrap();
    assert_eq!((counts.bytes_sent, counts.bytes_received), (size + 65_001, 300_000));
    assert_eq!(client.stream.conn.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
}

#[test]
fn over_tls_the_last_word_is_a_goodbye_and_no_cut() {
    let mut client = Client::start_tls();
    client.control.fill("b", "f", "counter", 1, 10).unwrap();
    client.stream.write_all(b"GET /b/f00000000 HTTP/1.1\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    client.stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
}

#[test]
fn a_client_that_trusts_another_authority_is_told_nothing() {
    let folder = tempfile::tempdir().unwrap();
    tls::server(&folder.path().join("other.pem")).unwrap();
    let stranger = tls::client(&folder.path().join("other.pem")).unwrap();
    let mut client = Client::start_tls();
    client.stream.conn = ClientConnection::new(stranger, tls::HOST.try_into().unwrap()).unwrap();
    let refused = client.stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap_err();
    assert!(refused.to_string().contains("certificate"), "{refused}");
}
