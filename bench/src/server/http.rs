//! The part of HTTP/1.1 that S3 needs: reads a request's head from a socket, writes an answer.

use std::fmt::Write as _;
use std::io;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str};

use super::wire::Wire;

/// The bytes to escape in a key: all but the slash and those that S3 does not escape.
pub(crate) const KEY_ESCAPES: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');
/// Longest head of a request in bytes; a longer one ends the connection.
const HEAD_MAX: usize = 64 << 10;
/// Most headers in one request; more end the connection.
const HEADERS_MAX: usize = 64;
/// Longest body that is kept, in bytes (the XML of Complete and Delete); a longer one ends the connection.
const BODY_KEPT_MAX: u64 = 16 << 20;

/// The head of a request, decoded.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) method: String,
    /// The path, percent-decoded, with its leading slash.
    pub(crate) path: String,
    /// The query, percent-decoded; a name without `=` has an empty value.
    query: Vec<(String, String)>,
    /// The headers, with names in lower case.
    pub(crate) headers: Vec<(String, String)>,
}

impl Head {
    /// Value of a query parameter.
    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        find(&self.query, name)
    }

    /// Value of a header; `name` must be in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// Length of the body on the wire, in bytes.
    pub(crate) fn content_length(&self) -> Option<u64> {
        self.header("content-length").map_or(Some(0), |text| text.parse().ok())
    }

    /// Length of the body without chunk signatures, in bytes.
    pub(crate) fn payload_length(&self) -> Option<u64> {
        match self.header("x-amz-decoded-content-length") {
            Some(text) => text.parse().ok(),
            None => self.content_length(),
        }
    }

    fn parse(bytes: &[u8]) -> io::Result<Option<(Self, usize)>> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        let httparse::Status::Complete(length) = request.parse(bytes).map_err(io::Error::other)? else {
            return Ok(None);
        };
        let target = request.path.unwrap_or("/");
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(&value.replace('+', " ")))
        });
        let headers = request.headers.iter().map(|header| {
            (header.name.to_ascii_lowercase(), String::from_utf8_lossy(header.value).trim().to_owned())
        });
        let head = Self {
            method: request.method.unwrap_or_default().to_owned(),
            path: decode(path),
            query: query.collect(),
            headers: headers.collect(),
        };
        Ok(Some((head, length)))
    }
}

fn find<'a>(pairs: &'a [(String, String)], name: &str) -> Option<&'a str> {
    pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum Body {
    /// No body; HEAD reports this length.
    Length(u64),
    Text(String),
    /// `len` bytes of the pattern, from `offset` of an object that begins at `base`.
    Pattern {
        base: u64,
        offset: u64,
        len: u64,
    },
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Body,
    /// Number of keys and common prefixes, if the answer is a page of a listing.
    pub(crate) keys: usize,
}

impl Answer {
    pub(crate) fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Body::Length(0), keys: 0 }
    }

    pub(crate) fn xml(status: u16, text: String) -> Self {
        Self::new(status).with("content-type", "application/xml").body(Body::Text(text))
    }

    /// An error in S3's form.
    pub(crate) fn error(status: u16, code: &str) -> Self {
        let text = format!(
            r#"<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code}</Message></Error>"#
        );
        Self::xml(status, text)
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn body(mut self, body: Body) -> Self {
        self.body = body;
        self
    }

    /// The body if it is text, else empty.
    pub(crate) fn text(&self) -> &str {
        if let Body::Text(text) = &self.body { text } else { "" }
    }

    /// The answer's head as it is sent.
    pub(crate) fn head(&self) -> String {
        let length = match &self.body {
            Body::Length(length) => *length,
            Body::Text(text) => text.len() as u64,
            Body::Pattern { len, .. } => *len,
        };
        let mut out = String::with_capacity(512);
        let _ = write!(out, "HTTP/1.1 {} {}\r\n", self.status, reason(self.status));
        out.push_str("x-amz-request-id: 0123456789ABCDEF\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\n");
        if self.status != 204 && self.status != 304 {
            let _ = write!(out, "content-length: {length}\r\n");
        }
        for (name, value) in &self.headers {
            let _ = write!(out, "{name}: {value}\r\n");
        }
        out.push_str("\r\n");
        out
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        206 => "Partial Content",
        304 => "Not Modified",
        404 => "Not Found",
        411 => "Length Required",
        412 => "Precondition Failed",
        416 => "Requested Range Not Satisfiable",
        501 => "Not Implemented",
        _ => "Status",
    }
}

/// One connection, with received bytes that belong to the next request (`early`).
#[derive(Debug)]
pub(crate) struct Connection {
    wire: Wire,
    early: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(wire: Wire) -> Self {
        Self { wire, early: Vec::with_capacity(8 << 10) }
    }

    /// The wire on which answers are sent.
    pub(crate) fn wire(&mut self) -> &mut Wire {
        &mut self.wire
    }

    /// Reads the next request's head; `None` if the client has closed the connection.
    ///
    /// # Errors
    /// The connection broke, or the bytes are not HTTP.
    pub(crate) fn next(&mut self) -> io::Result<Option<Head>> {
        loop {
            if !self.early.is_empty()
                && let Some((head, length)) = Head::parse(&self.early)?
            {
                self.early.drain(..length);
                return Ok(Some(head));
            }
            if self.early.len() >= HEAD_MAX {
                return Err(io::Error::other("request head too long"));
            }
            let mut bytes = [0; 8 << 10];
            match self.wire.read(&mut bytes)? {
                0 => return Ok(None),
                count => self.early.extend_from_slice(&bytes[..count]),
            }
        }
    }

    /// Tells a client that waits for `100 Continue` to send its body.
    pub(crate) fn go_on(&mut self, head: &Head) -> io::Result<()> {
        if head.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")) {
            self.wire.send(b"HTTP/1.1 100 Continue\r\n\r\n", false)?;
        }
        Ok(())
    }

    /// Receives up to `at_most` bytes of a body and drops them; over plain TCP the kernel does not copy them. Returns their number.
    pub(crate) fn drop_some(&mut self, at_most: usize, scratch: &mut [u8]) -> io::Result<usize> {
        if !self.early.is_empty() {
            let count = at_most.min(self.early.len());
            self.early.drain(..count);
            return Ok(count);
        }
        let at_most = at_most.min(scratch.len());
        let count = self.wire.discard(&mut scratch[..at_most])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(count.min(at_most))
    }

    /// Receives a body and returns it.
    pub(crate) fn keep(&mut self, length: u64) -> io::Result<String> {
        if length > BODY_KEPT_MAX {
            return Err(io::Error::other("body too long to keep"));
        }
        let length = length as usize;
        let mut body: Vec<u8> = self.early.drain(..length.min(self.early.len())).collect();
        let have = body.len();
        body.resize(length, 0);
        self.wire.read_exact(&mut body[have..])?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }
}
