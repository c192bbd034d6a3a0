//! The paths below `/-/`, by which the bench fills buckets, sets the pace and reads the counters. The server neither counts nor delays
//! these requests.

use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context as _, bail};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::counters::{Counts, Meters};
use super::http::{Answer, Body, Head};
use super::store::{Shape, Store};

/// Longest wait for an answer of the bench's own server. Filling a bucket with millions of names takes seconds.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Executes a control request, and answers it.
pub(crate) fn answer(store: &Store, meters: &Meters, head: &Head) -> Answer {
    match act(store, meters, head) {
        Ok(text) => Answer::new(200).body(Body::Text(text)),
        Err(error) => Answer::new(400).body(Body::Text(format!("{error:#}"))),
    }
}

fn act(store: &Store, meters: &Meters, head: &Head) -> anyhow::Result<String> {
    let text = |name: &str| head.query(name).with_context(|| format!("{} needs {name}=", head.path));
    let number = |name: &str| -> anyhow::Result<u64> {
        text(name)?.parse().with_context(|| format!("{name} is not a number"))
    };
    Ok(match head.path.as_str() {
        "/-/counters" => serde_json::to_string(&meters.counts())?,
        "/-/reset" => {
            meters.reset();
            store.forget_removed();
            String::new()
        }
        "/-/pace" => {
            meters.latency_us.store(number("latency_us")?, Relaxed);
            meters.rate_bytes_per_s.store(number("rate_bytes_per_s")?, Relaxed);
            String::new()
        }
        "/-/stall" => {
            meters.stall_us.store(number("stall_us")?, Relaxed);
            meters.stall_every.store(number("every")?, Relaxed);
            String::new()
        }
        "/-/fill" => {
            let shape = text("shape")?.parse::<Shape>()?;
            store.fill(text("bucket")?, text("prefix")?, shape, number("count")?, number("size")?)?;
            String::new()
        }
        "/-/empty" => {
            store.with_mut(text("bucket")?, std::collections::BTreeMap::clear).context("no such bucket")?;
            String::new()
        }
        "/-/count" => {
            let count = store.count(text("bucket")?, text("prefix")?);
            serde_json::to_string(&count.context("no such bucket")?)?
        }
        "/-/stored" => {
            let (bucket, prefix) = (text("bucket")?, text("prefix")?);
            let there = store.count(bucket, prefix).context("no such bucket")?;
            let removed = store.count_removed(bucket, prefix);
            serde_json::to_string(&(there.0 + removed.0, there.1 + removed.1))?
        }
        "/-/uploads" => store.open_uploads().to_string(),
        other => bail!("no such control path: {other}"),
    })
}

/// The bench's side: sends control requests to a server, each on a new connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Control {
    server: SocketAddr,
}

impl Control {
    pub(crate) fn new(server: SocketAddr) -> Self {
        Self { server }
    }

    pub(crate) fn counts(&self) -> anyhow::Result<Counts> {
        Ok(serde_json::from_str(&self.ask("counters", &[])?)?)
    }

    pub(crate) fn reset(&self) -> anyhow::Result<()> {
        self.ask("reset", &[]).map(drop)
    }

    /// Sets the latency of each request, and the rate of each connection in bytes per second (0: no limit).
    pub(crate) fn pace(&self, latency: Duration, rate_bytes_per_s: u64) -> anyhow::Result<()> {
        let latency = latency.as_micros().to_string();
        self.ask("pace", &[("latency_us", &latency), ("rate_bytes_per_s", &rate_bytes_per_s.to_string())])
            .map(drop)
    }

    /// Delays the answer of one in `every` later GETs by `stall`; 0 delays none.
    pub(crate) fn stall(&self, every: u64, stall: Duration) -> anyhow::Result<()> {
        let stall = stall.as_micros().to_string();
        self.ask("stall", &[("every", &every.to_string()), ("stall_us", &stall)]).map(drop)
    }

    /// Creates a bucket, and `count` objects of `size` bytes below `prefix`.
    pub(crate) fn fill(
        &self,
        bucket: &str,
        prefix: &str,
        shape: &str,
        count: u64,
        size: u64,
    ) -> anyhow::Result<()> {
        let (count, size) = (count.to_string(), size.to_string());
        let args =
            [("bucket", bucket), ("prefix", prefix), ("shape", shape), ("count", &count), ("size", &size)];
        self.ask("fill", &args).map(drop)
    }

    pub(crate) fn empty(&self, bucket: &str) -> anyhow::Result<()> {
        self.ask("empty", &[("bucket", bucket)]).map(drop)
    }

    /// Number of the objects below a prefix, and their bytes.
    pub(crate) fn count(&self, bucket: &str, prefix: &str) -> anyhow::Result<(u64, u64)> {
        Ok(serde_json::from_str(&self.ask("count", &[("bucket", bucket), ("prefix", prefix)])?)?)
    }

    /// Number and bytes of the objects below a prefix, including those that were removed since the last reset.
    pub(crate) fn stored(&self, bucket: &str, prefix: &str) -> anyhow::Result<(u64, u64)> {
        Ok(serde_json::from_str(&self.ask("stored", &[("bucket", bucket), ("prefix", prefix)])?)?)
    }

    fn ask(&self, command: &str, args: &[(&str, &str)]) -> anyhow::Result<String> {
        let mut path = format!("/-/{command}?");
        for (name, value) in args {
            let _ = write!(path, "{name}={}&", utf8_percent_encode(value, NON_ALPHANUMERIC));
        }
        let (status, body) =
            request(self.server, &format!("GET {path} HTTP/1.1\r\nconnection: close\r\n\r\n"))
                .with_context(|| format!("ask the bench's server at {} for {command}", self.server))?;
        if status != 200 {
            bail!("the bench's server refused {command}: {body}");
        }
        Ok(body)
    }
}

/// Sends one request. Returns status and body of the answer, which must have a Content-Length.
fn request(server: SocketAddr, request: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut response = httparse::Response::new(&mut headers);
        if let httparse::Status::Complete(head) = response.parse(&bytes).map_err(io::Error::other)? {
            let length =
                response.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
            let length =
                length.and_then(|header| std::str::from_utf8(header.value).ok()?.parse().ok()).unwrap_or(0);
            let status = response.code.unwrap_or(0);
            let mut body = bytes.split_off(head);
            let have = body.len();
            body.resize(length, 0);
            stream.read_exact(&mut body[have.min(length)..])?;
            return Ok((status, String::from_utf8_lossy(&body).into_owned()));
        }
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => bytes.extend_from_slice(&chunk[..count]),
        }
    }
}
