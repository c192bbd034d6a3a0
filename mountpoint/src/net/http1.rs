//! The engine's own HTTP/1.1: sends a request, and receives the answer into the caller's memory.
//!
//! Enters: a request, and memory for the answer's body. Leaves: the answer's head, parsed by a library, then the bytes of its body,
//! straight from the connection into that memory. A library that first receives bytes into its own buffer costs a copy of each byte. If an
//! answer comes while the request's body is still being sent, sending stops for good, and the connection serves no other request.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::net::broken::Broken;
use crate::net::flow::watch::Watch;
use crate::net::stream::Stream;

/// Most header lines of an answer. With more, the answer is malformed.
const HEADERS_MAX: usize = 1024;
/// Most trailer lines behind a chunked body. With more, the answer is malformed.
const TRAILERS_MAX: usize = 128;
/// Buffer for the head of an answer, in bytes. Doubling it saves a second receive for tiny objects and copies more of every body: body
/// bytes received with the head are copied.
const BUFFER: usize = 4 << 10;
/// Most answers with status 1xx before the final answer; with more, the answer is malformed. S3 sends none, proxies send one.
const INFORMED_MAX: usize = 32;
/// Most bytes of an answer's head. A longer head is malformed.
const HEAD_MAX: usize = 64 << 10;
/// Most pieces of a request in one system call. A piece of a file is a block of 1 MiB, and the kernel takes a few MiB at once. Doubling it
/// saves a call where pieces are short.
const PIECES_MAX: usize = 16;

/// One HTTP/1.1 connection, within an exchange or between two.
#[derive(Debug)]
pub(crate) struct Http1<S = Stream> {
    stream: S,
    /// The request's head, kept so that the next request reuses its memory.
    head: Vec<u8>,
    buffer: Vec<u8>,
    /// Offset in `buffer` of the first byte that was not consumed yet.
    start: usize,
    end: usize,
    body: Framing,
    /// Whether the server keeps the connection open after this answer.
    keeps: bool,
}

/// The rule that ends the body, with the bytes left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Ended,
    Length(u64),
    /// Bytes left of the current chunk.
    Chunk(u64),
    /// A line with the size of the next chunk comes next. Before it comes the line break of the last chunk, unless this is the `first`.
    ChunkSize {
        first: bool,
    },
    /// The body ends when the connection closes.
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

    /// The stream below.
    pub(crate) fn stream(&self) -> &S {
        &self.stream
    }

    /// Whether no exchange is in flight, no received byte is left, and the server keeps the connection open.
    fn is_at_rest(&self) -> bool {
        self.keeps && self.body == Framing::Ended && self.start == self.end
    }

    /// Whether the connection can serve another request: it is open, and no byte is left over from the last answer. Never waits.
    pub(crate) fn is_reusable(&mut self) -> bool {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut byte = [0];
        self.is_at_rest()
            && Pin::new(&mut self.stream).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
    }

    /// Sends `request` and waits for the head of the answer.
    pub(crate) async fn send<B: Buf>(
        &mut self,
        request: http::Request<B>,
        watch: &mut Watch,
    ) -> Result<http::Response<()>, Broken> {
        self.keeps = false; // until the answer says so
        let mut head = std::mem::take(&mut self.head);
        write_head(&request, &mut head);
        let (method, body) = (request.method().clone(), request.into_body());
        let answer = self.exchange(&method, &mut (&head[..]).chain(body), watch).await;
        self.head = head;
        answer
    }

    /// Sends `message`, a request with this method, and receives until the head of the answer is complete. Skips answers with status 1xx.
    async fn exchange(
        &mut self,
        method: &Method,
        message: &mut impl Buf,
        watch: &mut Watch,
    ) -> Result<http::Response<()>, Broken> {
        let mut informed = 0;
        loop {
            if let Some((length, response)) = parse_head(&self.buffer[self.start..self.end])? {
                self.start += length;
                match response.status().as_u16() {
                    100..=199 if informed == INFORMED_MAX => {
                        let why = format!("more than {INFORMED_MAX} answers with status 1xx");
                        return Err(Broken::Malformed(why));
                    }
                    101 => return Err(Broken::Malformed("101: it wants to speak another protocol".into())),
                    100..=199 => {
                        informed += 1; // not the answer yet
                        continue;
                    }
                    _ => {}
                }
                self.body = framing(method, &response)?;
                self.keeps = keeps(&response) && self.body != Framing::Close && !message.has_remaining();
                return Ok(response);
            }
            self.make_room()?;
            let mut into = ReadBuf::new(&mut self.buffer[self.end..]);
            let stream = &mut self.stream;
            patient(watch, |cx| poll_exchange(stream, message, &mut into, cx)).await?;
            match into.filled().len() {
                0 => return Err(Broken::Closed),
                n => self.end += n,
            }
        }
    }

    /// Receives the next bytes of the body into the front of `into`, which is not empty. Returns their number; 0 at the end of the body.
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

    /// The next bytes of the body in a new buffer: `most` bytes, or all up to the end of the body. `None` at the end.
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
        // The trailer is skipped: the engine needs nothing from it.
        while !self.skip_trailer()? {
            self.more(watch).await?;
        }
        self.body = Framing::Ended;
        Ok(())
    }

    /// Skips the trailer behind the last chunk; false while it is incomplete. The array of its lines has 4 KiB, too much for a future that
    /// lives across an await.
    fn skip_trailer(&mut self) -> Result<bool, Broken> {
        let mut lines = [httparse::EMPTY_HEADER; TRAILERS_MAX];
        match httparse::parse_headers(&self.buffer[self.start..self.end], &mut lines) {
            Ok(httparse::Status::Complete((length, _))) => {
                self.start += length;
                Ok(true)
            }
            Ok(httparse::Status::Partial) => Ok(false),
            Err(e) => Err(malformed("the trailer", e)),
        }
    }

    /// Receives more of a head.
    async fn more(&mut self, watch: &mut Watch) -> Result<(), Broken> {
        self.make_room()?;
        let n = read(&mut self.stream, &mut self.buffer[self.end..], watch).await?;
        self.end += n;
        if n == 0 { Err(Broken::Closed) } else { Ok(()) }
    }

    /// Makes room in the buffer for more of a head. A head longer than [`HEAD_MAX`] is an error.
    fn make_room(&mut self) -> Result<(), Broken> {
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
        Ok(())
    }
}

/// Sends more of `message`, and is ready once bytes of the answer are in `into`, or the server has closed its side. A server that refuses a
/// body may answer before the end of the body and close the connection: then its answer counts, and the failed send is ignored.
fn poll_exchange<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    message: &mut impl Buf,
    into: &mut ReadBuf<'_>,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    let sent = poll_send(stream, message, cx);
    let received = Pin::new(stream).poll_read(cx, into);
    match (sent, received) {
        (Poll::Ready(Err(error)), received) if into.filled().is_empty() => {
            drop(received);
            Poll::Ready(Err(error))
        }
        (_, received) => received,
    }
}

/// Sends `message` to its end, and flushes the stream.
fn poll_send<S: AsyncWrite + Unpin>(
    stream: &mut S,
    message: &mut impl Buf,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    while message.has_remaining() {
        let mut pieces = [io::IoSlice::new(&[]); PIECES_MAX];
        let count = message.chunks_vectored(&mut pieces);
        match ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &pieces[..count]))? {
            0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            n => message.advance(n),
        }
    }
    Pin::new(stream).poll_flush(cx)
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

/// Polls until ready, or until `watch` reaches a time limit.
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

/// Length of the head of `request` on the wire, in bytes.
pub(crate) fn head_len<B>(request: &http::Request<B>) -> u64 {
    let mut len = 0;
    for_each_piece(request, |piece| len += piece.len() as u64);
    len
}

/// Passes the head of `request` to `take`, piece by piece.
fn for_each_piece<B>(request: &http::Request<B>, mut take: impl FnMut(&[u8])) {
    let uri = request.uri();
    // The request line has the whole URL for a proxy, and only path and query for other hosts.
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

/// Maps a parse error. An answer begins with the HTTP version, so other bytes are left over from the previous answer.
fn no_head(error: httparse::Error) -> Broken {
    match error {
        httparse::Error::Version => Broken::OutOfStep(format!("the answer is not HTTP: {error}")),
        _ => malformed("the answer", error),
    }
}

/// Parses the head at the beginning of `bytes`. Returns its length too; `None` while it is incomplete.
fn parse_head(bytes: &[u8]) -> Result<Option<(usize, http::Response<()>)>, Broken> {
    // The array stays uninitialised before the parser fills it: initialising would cost more than the parsing.
    let mut lines = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut parsed = httparse::Response::new(&mut []);
    let parser = httparse::ParserConfig::default();
    let length =
        match parser.parse_response_with_uninit_headers(&mut parsed, bytes, &mut lines).map_err(no_head)? {
            httparse::Status::Complete(length) => length,
            httparse::Status::Partial => return Ok(None),
        };
    let wrong = |what: &str| Broken::Malformed(format!("the answer's {what} is not HTTP"));
    let status = parsed.code.and_then(|c| StatusCode::from_u16(c).ok()).ok_or_else(|| wrong("status"))?;
    let version = if parsed.version == Some(0) { http::Version::HTTP_10 } else { http::Version::HTTP_11 };
    // One copy of the head; all header values are slices of it.
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

/// The framing of an answer's body (RFC 9112, 6.3).
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

/// Whether the connection serves further requests after this answer. It does not after an answer with both Transfer-Encoding and
/// Content-Length.
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
mod tests;
