//! Tests of answers cut in any way, and of requests whose bodies a host takes slowly, refuses or breaks off.

use std::time::Duration;

use futures_util::FutureExt as _;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::clock::Clock;
use crate::net::body::Body;
use crate::net::tcp::Moved;

/// The result of `method` for an answer that comes in pieces of these lengths (the last one again and again), and
/// whether the connection serves on.
fn answer(method: &str, say: &[u8], cuts: &[usize], take: usize) -> Result<(u16, Vec<u8>, bool), Broken> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (method, say, cuts) = (method.to_owned(), say.to_vec(), cuts.to_vec());
    runtime.block_on(async move {
        let (ours, mut theirs) = tokio::io::duplex(64 << 10);
        let server = tokio::spawn(async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(theirs.read_u8().await.unwrap());
            }
            let mut cuts = cuts.into_iter();
            let (mut at, mut cut) = (0, 1);
            while at < say.len() {
                cut = cuts.next().unwrap_or(cut).max(1);
                let end = (at + cut).min(say.len());
                if theirs.write_all(&say[at..end]).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
                at = end;
            }
            (theirs, head)
        });
        let clock = Clock::machine();
        let deadline = clock.now() + Duration::from_secs(20);
        let mut watch = Watch::new(&clock, &Moved::default(), Duration::from_secs(20), deadline);
        let mut http = Http1::new(ours);
        let request =
            http::Request::builder().method(&*method).uri("/b/k?x=y").header("host", "h").body(Bytes::new());
        let response = http.send(request.unwrap(), &mut watch).await?;
        // Kept open unless the body ends with the connection.
        let (theirs, head) = server.await.unwrap();
        assert_eq!(head, format!("{method} /b/k?x=y HTTP/1.1\r\nhost: h\r\n\r\n").as_bytes());
        let theirs = (http.body != Framing::Close).then_some(theirs);
        let mut body = Vec::new();
        let mut into = vec![0; take.max(1)];
        loop {
            let n = http.receive(&mut into, &mut watch).await?;
            if n == 0 {
                break;
            }
            body.extend_from_slice(&into[..n]);
        }
        let reusable = http.is_reusable();
        drop(theirs);
        Ok((response.status().as_u16(), body, reusable))
    })
}

const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nWiki\r\n6;x=y\r\npedia \r\nA\r\nin chunks.\r\n0\r\nx-sum: 1\r\n\r\n";
const LENGTH: &[u8] =
    b"HTTP/1.1 206 Partial\r\nContent-Length: 20\r\nETag: \"x\"\r\n\r\nWikipedia in chunks.";
const INFORMED: &[u8] =
    b"HTTP/1.1 103 Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 20\r\n\r\nWikipedia in chunks.";

proptest! {
    #[test]
    fn however_an_answer_is_cut_it_reads_the_same(
        which in 0..3usize,
        cuts in proptest::collection::vec(1usize..40, 0..12),
        take in 1usize..50,
    ) {
        let say = [CHUNKED, LENGTH, INFORMED][which];
        let (status, body, reusable) = answer("GET", say, &cuts, take).unwrap();
        prop_assert_eq!(status, [200, 206, 200][which]);
        prop_assert_eq!(&body[..], b"Wikipedia in chunks.");
        prop_assert!(reusable);
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), valid in 0..120usize) {
        let say = [&CHUNKED[..valid.min(CHUNKED.len())], &bytes].concat();
        // A body of all there is, or an error; never more bytes than were said.
        if let Ok((_, body, _)) = answer_or_close(&say) {
            prop_assert!(body.len() <= say.len());
        }
    }
}

/// Answers as [`answer`] does, and closes the connection after the bytes.
fn answer_or_close(say: &[u8]) -> Result<(u16, Vec<u8>, bool), Broken> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let say = say.to_vec();
    runtime.block_on(async move {
        let (ours, mut theirs) = tokio::io::duplex(256 << 10);
        theirs.write_all(&say).await.unwrap();
        theirs.shutdown().await.unwrap();
        let clock = Clock::machine();
        let deadline = clock.now() + Duration::from_secs(20);
        let mut watch = Watch::new(&clock, &Moved::default(), Duration::from_secs(20), deadline);
        let mut http = Http1::new(ours);
        let response = http.send(http::Request::new(Bytes::new()), &mut watch).await?;
        let (mut body, mut into) = (Vec::new(), [0; 64]);
        loop {
            let n = http.receive(&mut into, &mut watch).await?;
            if n == 0 {
                return Ok((response.status().as_u16(), body, http.is_reusable()));
            }
            body.extend_from_slice(&into[..n]);
        }
    })
}

/// A host that takes this many bytes of a request, a few at a time, and then none, or resets the connection.
struct Host {
    takes: usize,
    resets: bool,
    taken: Vec<u8>,
}

impl AsyncWrite for Host {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let n = bytes.len().min(self.takes).min(7);
        if n == 0 {
            let reset = Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            return if self.resets { reset } else { Poll::Pending };
        }
        self.takes -= n;
        self.taken.extend_from_slice(&bytes[..n]);
        Poll::Ready(Ok(n))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

const REFUSAL: &[u8] = b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno";

/// The answer to a request with a body of 100 bytes, to a host that says this and closes, and whether the connection serves on.
fn put(host: &mut Host, say: &[u8]) -> Result<(u16, Vec<u8>, bool), Broken> {
    let (clock, long) = (Clock::manual(), Duration::from_secs(60));
    let mut watch = Watch::new(&clock, &Moved::default(), long, clock.now() + long);
    let mut http = Http1::new(tokio::io::join(say, host));
    let body = Body::new(&[Bytes::from_static(&[b'a'; 60]), Bytes::from_static(&[b'b'; 40])]);
    let exchange = async {
        let response = http.send(http::Request::put("/k").body(body).unwrap(), &mut watch).await?;
        let (mut body, mut into) = (Vec::new(), [0; 64]);
        loop {
            match http.receive(&mut into, &mut watch).await? {
                0 => return Ok((response.status().as_u16(), body, http.is_at_rest())),
                n => body.extend_from_slice(&into[..n]),
            }
        }
    };
    exchange.now_or_never().expect("the connection is closed, and nothing is left to wait for")
}

fn request() -> Vec<u8> {
    [&b"PUT /k HTTP/1.1\r\n\r\n"[..], &[b'a'; 60], &[b'b'; 40]].concat()
}

#[test]
fn a_body_is_sent_whole_and_the_connection_serves_on() {
    let mut host = Host { takes: usize::MAX, resets: false, taken: Vec::new() };
    assert!(put(&mut host, LENGTH).unwrap().2);
    assert_eq!(host.taken, request());
}

#[test]
fn a_refusal_before_the_end_of_a_body_is_the_answer() {
    for resets in [false, true] {
        for takes in [0, 10, 21, 50, request().len() - 1] {
            let mut host = Host { takes, resets, taken: Vec::new() };
            let (status, body, serves_on) = put(&mut host, REFUSAL).unwrap();
            assert_eq!((status, &body[..], serves_on), (403, &b"no"[..], false), "{takes} bytes, {resets}");
            assert_eq!(host.taken, request()[..takes], "nothing but the request is sent");
        }
    }
}

#[tokio::test]
async fn interim_answers_do_not_end_the_sending_of_a_body() {
    let (ours, mut theirs) = tokio::io::duplex(8);
    let host = async {
        let (mut head, mut rest) = (vec![0; request().len() - 100], vec![0; 100]);
        theirs.read_exact(&mut head).await.unwrap();
        theirs.write_all(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\n\r\n").await.unwrap();
        theirs.read_exact(&mut rest).await.unwrap();
        theirs.write_all(LENGTH).await.unwrap();
        [head, rest].concat()
    };
    let (clock, long) = (Clock::manual(), Duration::from_secs(60));
    let mut watch = Watch::new(&clock, &Moved::default(), long, clock.now() + long);
    let mut http = Http1::new(ours);
    let body = Body::new(&[Bytes::from_static(&[b'a'; 60]), Bytes::from_static(&[b'b'; 40])]);
    let exchange = async {
        let response = http.send(http::Request::put("/k").body(body).unwrap(), &mut watch).await.unwrap();
        let body = http.piece(100, &mut watch).await.unwrap().unwrap();
        (response.status().as_u16(), body)
    };
    let ((status, body), heard) = tokio::join!(exchange, host);
    assert_eq!((status, &body[..]), (206, &b"Wikipedia in chunks."[..]));
    assert_eq!(heard, request());
    assert!(http.is_at_rest());
}

#[test]
fn a_host_that_closes_before_it_has_the_body_gave_no_answer() {
    for (resets, say) in [(false, &b""[..]), (false, &REFUSAL[..20]), (true, b""), (true, &REFUSAL[..20])] {
        let mut host = Host { takes: 50, resets, taken: Vec::new() };
        let broken = put(&mut host, say).unwrap_err();
        assert!(matches!((resets, &broken), (true, Broken::Io(_)) | (false, Broken::Closed)), "{broken}");
    }
}

#[test]
fn the_answer_to_head_has_no_body_whatever_length_it_names() {
    let say = b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n";
    assert_eq!(answer("HEAD", say, &[], 9).unwrap(), (200, vec![], true));
    let say = b"HTTP/1.1 204 No Content\r\n\r\n";
    assert_eq!(answer("DELETE", say, &[], 9).unwrap(), (204, vec![], true));
}

#[test]
fn a_connection_that_will_close_or_said_too_much_does_not_serve_on() {
    for (say, why) in [
        (&b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: x, Close\r\n\r\nok"[..], "it said close"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.0"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok!", "a byte too many"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            "two kinds of length",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\nok", "the end of the connection is the end of the body"),
    ] {
        let (status, body, reusable) = answer("GET", say, &[1000], 9).unwrap();
        assert_eq!((status, &body[..]), (200, &b"ok"[..]), "{why}");
        assert!(!reusable, "{why}");
    }
}

#[test]
fn an_answer_that_is_no_http_or_lies_about_its_length_is_refused() {
    let long = [b"HTTP/1.1 200 OK\r\nx: ", &[b'a'; HEAD_MAX][..]].concat();
    let endless = b"HTTP/1.1 103 Hints\r\n\r\n".repeat(INFORMED_MAX + 1);
    for say in [
        &b"SSH-2.0-OpenSSH_9.2\r\n"[..],
        b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        &long,
        &endless,
    ] {
        let refused = answer_or_close(say).unwrap_err();
        assert!(
            matches!(refused, Broken::Malformed(_) | Broken::OutOfStep(_)),
            "{refused}: {:?}",
            say.escape_ascii().to_string()
        );
    }
}

#[test]
fn a_body_that_breaks_off_is_an_error_and_no_end() {
    for say in [&LENGTH[..LENGTH.len() - 1], &CHUNKED[..CHUNKED.len() - 2], &CHUNKED[..60], &LENGTH[..20]] {
        assert!(matches!(answer_or_close(say), Err(Broken::Closed)));
    }
}
