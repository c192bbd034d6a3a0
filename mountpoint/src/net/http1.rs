//! The engine's own HTTP/1.1: sends a request without a body, and receives the answer into the caller's memory.
//!
//! Enters: a request's head, and memory for the answer's body. Leaves: the answer's head, parsed by a library, then the bytes
//! of its body, straight from the connection into that memory. A library that receives them into its own buffer first costs a copy of
//! each byte. This file does not send requests with a body: an answer may come while the body is still being sent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::net::broken::Broken;
use crate::net::flow::watch::Watch;
use crate::net::stream::Stream;

/// Header lines of an answer that are accepted.
pub(crate) const HEADERS_MAX: usize = 128;
/// Bytes received at once while a head is read. Doubling it saves the second receive of tiny objects and copies
/// more of every body: what comes with the head is copied.
const BUFFER: usize = 4 << 10;
/// Answers with status 1xx that are accepted before the answer itself: S3 sends none, proxies one.
pub(crate) const INFORMED_MAX: usize = 32;
/// Bytes of an answer's head that are accepted.
const HEAD_MAX: usize = 64 << 10;

/// There were more than [`INFORMED_MAX`].
pub(crate) fn too_informed() -> Broken {
    Broken::Malformed(format!("more than {INFORMED_MAX} answers with status 1xx"))
}

/// One connection, between two answers or within one.
#[derive(Debug)]
pub(crate) struct Http1<S = Stream> {
    stream: S,
    /// The request's head, kept for its memory.
    head: Vec<u8>,
    buffer: Vec<u8>,
    /// The offset in `buffer` of the first byte that was not taken yet.
    start: usize,
    end: usize,
    body: Framing,
    /// The other side said that it will serve on.
    keeps: bool,
}

/// How the end of the body will be known, and what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Ended,
    Length(u64),
    /// Bytes of the chunk that are left.
    Chunk(u64),
    /// The line with the next chunk's size, after the line that ends the last one.
    ChunkSize {
        first: bool,
    },
    /// The end of the connection.
    Close,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Http1<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            head: Vec::new(),
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            body: Framing::Ended,
            keeps: true,
        }
    }

    /// The connection as such; `None` if received bytes were left over.
    pub(crate) fn into_stream(self) -> Option<S> {
        self.is_at_rest().then_some(self.stream)
    }

    /// The stream below.
    pub(crate) fn stream(&self) -> &S {
        &self.stream
    }

    /// Whether nothing is under way, and the other side serves on.
    fn is_at_rest(&self) -> bool {
        self.keeps && self.body == Framing::Ended && self.start == self.end
    }

    /// Whether another request may be sent: open, and nothing left over from the last one. Looks without waiting.
    pub(crate) fn is_reusable(&mut self) -> bool {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut byte = [0];
        self.is_at_rest()
            && Pin::new(&mut self.stream).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
    }

    /// Sends the head of `request` and waits for the head of the answer.
    pub(crate) async fn send<B>(
        &mut self,
        request: &http::Request<B>,
        watch: &mut Watch,
    ) -> Result<http::Response<()>, Broken> {
        self.keeps = false; // until the answer says so
        write_head(request, &mut self.head);
        let mut sent = 0;
        while sent < self.head.len() {
            let (stream, head) = (&mut self.stream, &self.head);
            let n = patient(watch, |cx| Pin::new(&mut *stream).poll_write(cx, &head[sent..])).await?;
            if n == 0 {
                return Err(Broken::Closed);
            }
            sent += n;
        }
        let stream = &mut self.stream;
        patient(watch, |cx| Pin::new(&mut *stream).poll_flush(cx)).await?;
        let mut informed = 0;
        loop {
            if let Some((length, response)) = parse_head(&self.buffer[self.start..self.end])? {
                self.start += length;
                match response.status().as_u16() {
                    100..=199 if informed == INFORMED_MAX => return Err(too_informed()),
                    101 => return Err(Broken::Malformed("101: it wants to speak another protocol".into())),
                    100..=199 => {
                        informed += 1; // not the answer yet
                        continue;
                    }
                    _ => {}
                }
                self.body = framing(request.method(), &response)?;
                self.keeps = keeps(&response) && self.body != Framing::Close;
                return Ok(response);
            }
            self.more(watch).await?;
        }
    }

    /// The next bytes of the body into the front of `into`, which is not empty: how many; 0 at the end of the body.
    pub(crate) async fn receive(&mut self, into: &mut [u8], watch: &mut Watch) -> Result<usize, Broken> {
        let left = loop {
            match self.body {
                Framing::Ended => return Ok(0),
                Framing::Length(left) | Framing::Chunk(left) => break left,
                Framing::Close => break u64::MAX,
                Framing::ChunkSize { first } => self.next_chunk(first, watch).await?,
            }
        };
        let room = usize::try_from(left).unwrap_or(usize::MAX).min(into.len());
        let buffered = &self.buffer[self.start..self.end];
        let n = if buffered.is_empty() {
            read(&mut self.stream, &mut into[..room], watch).await?
        } else {
            let n = room.min(buffered.len());
            into[..n].copy_from_slice(&buffered[..n]); // copy: what came with the head
            self.start += n;
            n
        };
        self.body = match self.body {
            Framing::Close if n == 0 => Framing::Ended,
            _ if n == 0 => return Err(Broken::Closed),
            Framing::Length(left) if left == n as u64 => Framing::Ended,
            Framing::Length(left) => Framing::Length(left - n as u64),
            Framing::Chunk(left) if left == n as u64 => Framing::ChunkSize { first: false },
            Framing::Chunk(left) => Framing::Chunk(left - n as u64),
            other => other,
        };
        Ok(n)
    }

    /// The next bytes of the body in memory of their own: `most`, or all up to its end. `None` at the end.
    pub(crate) async fn piece(&mut self, most: usize, watch: &mut Watch) -> Result<Option<Bytes>, Broken> {
        let most = match self.body {
            Framing::Ended => return Ok(None),
            Framing::Length(left) => usize::try_from(left).unwrap_or(usize::MAX).min(most),
            _ => most,
        };
        let mut piece = vec![0; most];
        let mut filled = 0;
        while filled < most {
            let n = self.receive(&mut piece[filled..], watch).await?;
            if n == 0 {
                break;
            }
            filled += n;
        }
        piece.truncate(filled);
        Ok((filled > 0).then(|| piece.into()))
    }

    async fn next_chunk(&mut self, first: bool, watch: &mut Watch) -> Result<(), Broken> {
        let wrong = || Broken::Malformed("a chunk of the body does not begin with its size".into());
        if !first {
            while self.end - self.start < 2 {
                self.more(watch).await?;
            }
            if &self.buffer[self.start..self.start + 2] != b"\r\n" {
                return Err(wrong());
            }
            self.start += 2;
        }
        let size = loop {
            match httparse::parse_chunk_size(&self.buffer[self.start..self.end]) {
                Ok(httparse::Status::Complete((length, size))) => {
                    self.start += length;
                    break size;
                }
                Ok(httparse::Status::Partial) => self.more(watch).await?,
                Err(_) => return Err(wrong()),
            }
        };
        if size > 0 {
            self.body = Framing::Chunk(size);
            return Ok(());
        }
        // Trailers say nothing that we ask for.
        loop {
            let mut lines = [httparse::EMPTY_HEADER; HEADERS_MAX];
            match httparse::parse_headers(&self.buffer[self.start..self.end], &mut lines) {
                Ok(httparse::Status::Complete((length, _))) => {
                    self.start += length;
                    self.body = Framing::Ended;
                    return Ok(());
                }
                Ok(httparse::Status::Partial) => self.more(watch).await?,
                Err(e) => return Err(malformed("the trailer", e)),
            }
        }
    }

    /// Receives more of a head.
    async fn more(&mut self, watch: &mut Watch) -> Result<(), Broken> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.buffer.len() && self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.buffer.len() {
            if self.end >= HEAD_MAX {
                return Err(Broken::Malformed(format!("the head is longer than {HEAD_MAX} bytes")));
            }
            self.buffer.resize(self.end * 2, 0);
        }
        let n = read(&mut self.stream, &mut self.buffer[self.end..], watch).await?;
        self.end += n;
        if n == 0 { Err(Broken::Closed) } else { Ok(()) }
    }
}

async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    into: &mut [u8],
    watch: &mut Watch,
) -> Result<usize, Broken> {
    let mut into = ReadBuf::new(into);
    patient(watch, |cx| Pin::new(&mut *stream).poll_read(cx, &mut into)).await?;
    Ok(into.filled().len())
}

/// Waits for `poll`, as long as `watch` does.
async fn patient<T>(
    watch: &mut Watch,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<io::Result<T>>,
) -> Result<T, Broken> {
    std::future::poll_fn(|cx| match poll(cx) {
        Poll::Ready(done) => Poll::Ready(done.map_err(Broken::Io)),
        Poll::Pending => watch.poll_expired(cx).map(|e| Err(Broken::Expired(e))),
    })
    .await
}

fn write_head<B>(request: &http::Request<B>, head: &mut Vec<u8>) {
    head.clear();
    for_each_piece(request, |piece| head.extend_from_slice(piece));
}

/// Bytes of the head of `request` on the wire, by whomever it is sent.
pub(crate) fn head_len<B>(request: &http::Request<B>) -> u64 {
    let mut len = 0;
    for_each_piece(request, |piece| len += piece.len() as u64);
    len
}

/// The head of `request`, piece by piece.
fn for_each_piece<B>(request: &http::Request<B>, mut take: impl FnMut(&[u8])) {
    let uri = request.uri();
    // Whole for a proxy, without scheme and host for everybody else.
    let whole = uri.scheme().map(|_| uri.to_string());
    let target = whole.as_deref().or_else(|| Some(uri.path_and_query()?.as_str())).unwrap_or("/");
    for piece in [request.method().as_str(), " ", target, " HTTP/1.1\r\n"] {
        take(piece.as_bytes());
    }
    for (name, value) in request.headers() {
        for piece in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            take(piece);
        }
    }
    take(b"\r\n");
}

fn malformed(what: &str, error: httparse::Error) -> Broken {
    Broken::Malformed(format!("{what} is not HTTP: {error}"))
}

/// An answer begins with the version: other bytes are left over from the one before.
fn no_head(error: httparse::Error) -> Broken {
    match error {
        httparse::Error::Version => Broken::OutOfStep(format!("the answer is not HTTP: {error}")),
        _ => malformed("the answer", error),
    }
}

/// The head that `bytes` begin with and its length; `None` while it is not whole.
fn parse_head(bytes: &[u8]) -> Result<Option<(usize, http::Response<()>)>, Broken> {
    let mut lines = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Response::new(&mut lines);
    let length = match parsed.parse(bytes).map_err(no_head)? {
        httparse::Status::Complete(length) => length,
        httparse::Status::Partial => return Ok(None),
    };
    let wrong = |what: &str| Broken::Malformed(format!("the answer's {what} is not HTTP"));
    let status = parsed.code.and_then(|c| StatusCode::from_u16(c).ok()).ok_or_else(|| wrong("status"))?;
    let version = if parsed.version == Some(0) { http::Version::HTTP_10 } else { http::Version::HTTP_11 };
    // One copy of the head, of which all values are slices.
    let owned = Bytes::copy_from_slice(&bytes[..length]);
    let mut headers = HeaderMap::with_capacity(parsed.headers.len());
    for line in parsed.headers.iter() {
        let name = HeaderName::from_bytes(line.name.as_bytes()).map_err(|_| wrong("header name"))?;
        let at = line.value.as_ptr() as usize - bytes.as_ptr() as usize;
        let value = HeaderValue::from_maybe_shared(owned.slice(at..at + line.value.len()))
            .map_err(|_| wrong("header value"))?;
        headers.append(name, value);
    }
    let mut response = http::Response::new(());
    (*response.status_mut(), *response.version_mut(), *response.headers_mut()) = (status, version, headers);
    Ok(Some((length, response)))
}

/// RFC 9112, 6.3.
fn framing(method: &Method, response: &http::Response<()>) -> Result<Framing, Broken> {
    let headers = response.headers();
    if *method == Method::HEAD || matches!(response.status().as_u16(), 204 | 304) {
        return Ok(Framing::Ended);
    }
    if headers.contains_key(TRANSFER_ENCODING) {
        let codings: Vec<_> = words(headers, &TRANSFER_ENCODING).collect();
        return match codings[..] {
            [only] if only.eq_ignore_ascii_case("chunked") => Ok(Framing::ChunkSize { first: true }),
            _ => Err(Broken::Malformed(format!(
                "its body is encoded as {codings:?}, which the request did not ask for"
            ))),
        };
    }
    let mut length = None;
    for word in words(headers, &CONTENT_LENGTH) {
        // parse would take a sign
        let said = word.bytes().all(|b| b.is_ascii_digit()).then(|| word.parse::<u64>().ok()).flatten();
        let said =
            said.ok_or_else(|| Broken::Malformed(format!("Content-Length: {word:?} is not a length")))?;
        if length.replace(said).is_some_and(|before| before != said) {
            return Err(Broken::Malformed("it has two different lengths".into()));
        }
    }
    Ok(match length {
        None => Framing::Close,
        Some(0) => Framing::Ended,
        Some(length) => Framing::Length(length),
    })
}

/// Whether the connection serves on after this answer. One with both kinds of length is not trusted further.
fn keeps(response: &http::Response<()>) -> bool {
    let headers = response.headers();
    let said = |what: &str| words(headers, &CONNECTION).any(|w| w.eq_ignore_ascii_case(what));
    let by_version = response.version() == http::Version::HTTP_11 || said("keep-alive");
    by_version
        && !said("close")
        && !(headers.contains_key(TRANSFER_ENCODING) && headers.contains_key(CONTENT_LENGTH))
}

/// The comma-separated words of all lines of a header.
fn words<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().flat_map(|v| v.to_str().unwrap_or("?").split(',').map(str::trim))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::clock::Clock;
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
                http::Request::builder().method(&*method).uri("/b/k?x=y").header("host", "h").body(());
            let response = http.send(&request.unwrap(), &mut watch).await?;
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

    /// Like [`answer`], with the connection closed behind the bytes.
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
            let response = http.send(&http::Request::new(()), &mut watch).await?;
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
        for say in [&LENGTH[..LENGTH.len() - 1], &CHUNKED[..CHUNKED.len() - 2], &CHUNKED[..60], &LENGTH[..20]]
        {
            assert!(matches!(answer_or_close(say), Err(Broken::Closed)));
        }
    }
}
