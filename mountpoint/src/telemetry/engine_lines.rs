//! The protocol between an engine and the driver of its node, over the socket of `--control-socket`. Enters: a stream. Leaves: one JSON
//! value per line.
//!
//! The first line of each side is its [`Hello`]. Then come requests with a number, one at a time, and answers with the same number. Both
//! sides ignore unknown fields, and answer unknown requests with an error, so either can be upgraded first.
//!
//! Never here: a decision about a request; a line longer than [`LINE_MAX`].

use std::io;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// The version of the protocol. A side that supports a later one supports this one, too.
pub const VERSION: u32 = 1;
/// Longest line, in bytes. Usual lines have some hundreds. A longer one is answered with an error, and its connection ends.
pub const LINE_MAX: usize = 8 << 10;
/// The driver's request for the usage of the engine's cgroup.
pub const USAGE: &str = "usage";
/// The engine's request to register a file of the cache for passthrough. A copy of the FUSE device is sent with it.
pub const OPEN: &str = "open";
/// The engine's request to unregister such a file by its id. A copy of the FUSE device is sent with it.
pub const CLOSE: &str = "close";

/// The driver's request to hand the mount over to the next engine, for an upgrade in place. Once no file is being written, the engine takes
/// no more requests, and exits without an answer. An answer is the reason why it continues.
pub const HAND_OVER: &str = "hand_over";

/// The first line of each side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The latest version of the protocol that this side knows.
    pub version: u32,
    /// Whether this side registers files: the driver does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub registers: bool,
    /// Number of registered files that the engine has; earlier drivers may have registered them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<u32>,
}

/// A request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The number that the answer repeats.
    pub number: u64,
    /// The operation: [`USAGE`], [`OPEN`], [`CLOSE`], [`HAND_OVER`].
    pub request: String,
    /// Path of the file to register, below the cache's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Device number of its file system, as in stat(2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dev: Option<u64>,
    /// Inode number of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ino: Option<u64>,
    /// Id of a registered file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    /// Seconds to wait for files that are being written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<u32>,
}

/// An answer: an error, or the requested value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The number of the request; `None` if the line had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// Id of the file that was registered or unregistered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    /// The usage, if the request was for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The reason why the request failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether the request was not executed, and can be sent again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub busy: bool,
}

/// Any line after the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A request.
    Request(Request),
    /// An answer.
    Answer(Answer),
}

impl Heard {
    /// Parses a line.
    ///
    /// # Errors
    /// The line is neither a request nor an answer.
    pub fn read(line: &[u8]) -> Result<Self, String> {
        let Kind { request } = read(line)?;
        Ok(if request.is_some() { Self::Request(read(line)?) } else { Self::Answer(read(line)?) })
    }
}

/// The field that only requests have.
#[derive(Deserialize)]
struct Kind {
    #[serde(default)]
    request: Option<serde::de::IgnoredAny>,
}

/// Parses a line.
///
/// # Errors
/// The line is not of this type.
pub fn read<T: serde::de::DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    serde_json::from_slice(line).map_err(|error| format!("the line can't be read: {error}"))
}

/// The usage of an engine: of its cgroup, as far as the kernel reports it, and of passthrough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes of memory that the kernel can't reclaim at once: all but inactive pages of files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The limit of the cgroup itself in bytes; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// CPU time of the cgroup's processes, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_us: Option<u64>,
    /// Number of processes that the kernel killed because memory was exhausted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_kills: Option<u64>,
    /// Number of cache files that the kernel reads itself; `None` without a cache whose files the driver can register.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_files: Option<u64>,
}

/// A stream of lines.
#[derive(Debug)]
pub struct Lines<S> {
    stream: S,
    /// Received bytes behind the last line.
    rest: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Lines<S> {
    /// Reads and writes lines on this stream.
    pub fn new(stream: S) -> Self {
        Self { stream, rest: Vec::new() }
    }

    /// The stream.
    pub fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// The next line, without its line end; `None` at the end of the stream. A cancelled call loses no byte.
    ///
    /// # Errors
    /// `InvalidData` if the line is too long; `UnexpectedEof` if the stream ends within a line; errors of the stream.
    pub async fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(at) = self.rest.iter().take(LINE_MAX + 1).position(|&byte| byte == b'\n') {
                let mut line: Vec<u8> = self.rest.drain(..=at).collect();
                line.pop();
                return Ok(Some(line));
            }
            if self.rest.len() > LINE_MAX {
                let text = format!("a line is longer than {LINE_MAX} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            let mut chunk = [0; 1024];
            match self.stream.read(&mut chunk).await? {
                0 if self.rest.is_empty() => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                got => self.rest.extend_from_slice(&chunk[..got]),
            }
        }
    }

    /// Writes a value as a line.
    ///
    /// # Errors
    /// An error of the stream.
    pub async fn write(&mut self, value: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(value).map_err(io::Error::other)?;
        line.push(b'\n');
        self.stream.write_all(&line).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_come_one_by_one_and_a_half_or_long_one_is_an_error() {
        let (mut far, near) = tokio::io::duplex(64 << 10);
        let mut lines = Lines::new(near);
        far.write_all(b"first\n\nthird\nhal").await.unwrap();
        for line in ["first", "", "third"] {
            assert_eq!(lines.read().await.unwrap().unwrap(), line.as_bytes());
        }
        far.write_all(b"f\n").await.unwrap();
        far.write_all(&[vec![b'x'; LINE_MAX], vec![b'\n']].concat()).await.unwrap();
        assert_eq!(lines.read().await.unwrap().unwrap(), b"half");
        assert_eq!(lines.read().await.unwrap().unwrap().len(), LINE_MAX);
        far.write_all(b"no end").await.unwrap();
        drop(far);
        assert_eq!(lines.read().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);

        let (mut far, near) = tokio::io::duplex(64 << 10);
        let mut lines = Lines::new(near);
        far.write_all(&vec![b'x'; LINE_MAX + 1]).await.unwrap();
        assert_eq!(lines.read().await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(far);

        let (far, near) = tokio::io::duplex(64);
        drop(far);
        assert_eq!(Lines::new(near).read().await.unwrap(), None);
    }

    #[test]
    fn fields_of_a_later_release_are_ignored_and_missing_ones_are_unknown() {
        let answer: Answer =
            serde_json::from_str(r#"{"number":3,"new":[1],"usage":{"memory_bytes":7,"swap":1}}"#).unwrap();
        let usage = Usage { memory_bytes: Some(7), ..Usage::default() };
        assert_eq!(answer, Answer { number: Some(3), usage: Some(usage), ..Answer::default() });
        assert_eq!(
            Heard::read(br#"{"number":3,"usage":{"memory_bytes":7}}"#),
            Ok(Heard::Answer(answer.clone()))
        );
        let open = Request { number: 1, request: OPEN.into(), name: Some("a".into()), ..Request::default() };
        assert_eq!(serde_json::to_string(&open).unwrap(), r#"{"number":1,"request":"open","name":"a"}"#);
        assert_eq!(
            Heard::read(br#"{"number":1,"request":"open","name":"a","of_late":[]}"#),
            Ok(Heard::Request(open))
        );
        for none in
            ["7", "[7]", "\"x\"", r#"{"request":"open"}"#, r#"{"number":1,"request":"open","ino":-1}"#]
        {
            Heard::read(none.as_bytes()).unwrap_err();
        }
        assert_eq!(
            serde_json::to_string(&Hello { version: 1, registers: false, ids: None }).unwrap(),
            r#"{"version":1}"#
        );
        assert_eq!(serde_json::to_string(&answer).unwrap(), r#"{"number":3,"usage":{"memory_bytes":7}}"#);
    }
}
