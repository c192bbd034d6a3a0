//! The engines pod, whose engines serve all volumes of a node: its name, the names of its sources, and the node's request for a mounter.
//!
//! The first process of the pod listens in the comm directory. The node sends the name of a source, and gets a mounter with its own
//! directory, in which the mount is handed over as in a Mountpoint Pod. Both sides ignore unknown fields.
//!
//! Never here: a device, a credential.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::rights::{invalid, timed};

/// Value of the label `app` of engines pods, and the name of their DaemonSet.
pub const APP: &str = "s3-csi-engines";
/// Annotation of an engines pod: a digest of the chart's template that it was made from. The node's driver knows the present template's
/// digest.
pub const REVISION: &str = "s3.csi.scality.com/revision";
/// Prefix of the names of sources. Names of Mountpoint Pods have another one.
pub const PREFIX: &str = "sh-";
/// The longest name of a source, in bytes: the name is also a directory.
const NAME_MAX: usize = 63;
/// The longest request, in bytes; a longer one is refused.
const LIMIT: usize = 4 << 10;

/// The request to begin a mounter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Begin {
    /// The name of the source.
    pub source: String,
}

/// The name of a source with this share key. Callers use the first `attempt` whose name is not in use.
#[must_use]
pub fn name(share_key: &str, attempt: u32) -> String {
    let mut name = format!("{PREFIX}{}", super::digest(&[share_key, &attempt.to_string()]));
    name.truncate(NAME_MAX);
    name
}

/// Whether a text is the name of a source, and so can't be a path to another directory.
#[must_use]
pub fn is_source(name: &str) -> bool {
    name.len() <= NAME_MAX
        && name.strip_prefix(PREFIX).is_some_and(|rest| {
            !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        })
}

/// Sends the request.
///
/// # Errors
/// `TimedOut` after `within`; other errors of the socket.
pub fn ask(mut stream: &UnixStream, begin: &Begin, within: Duration) -> io::Result<()> {
    stream.set_write_timeout(Some(within.max(Duration::from_millis(1))))?;
    stream.write_all(&serde_json::to_vec(begin).map_err(io::Error::other)?).map_err(timed)?;
    stream.shutdown(Shutdown::Write)
}

/// Receives a request, until the sender closes its side of the stream.
///
/// # Errors
/// `TimedOut` after `within`; `InvalidData` for any other text.
pub fn receive(mut stream: &UnixStream, within: Duration) -> io::Result<Begin> {
    let until = Instant::now() + within;
    let mut text = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut chunk = [0; 1024];
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(got) => text.extend_from_slice(&chunk[..got]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(timed(error)),
        }
        if text.len() > LIMIT {
            return Err(invalid(format!("the request is longer than {LIMIT} bytes")));
        }
    }
    let begin: Begin = serde_json::from_slice(&text)
        .map_err(|error| invalid(format!("the request is not one for a mounter: {error}")))?;
    if is_source(&begin.source) {
        return Ok(begin);
    }
    Err(invalid(format!("{:?} is not the name of a source", begin.source)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn received(text: &[u8]) -> io::Result<Begin> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&ours).write_all(text).unwrap();
        drop(ours);
        receive(&theirs, LONG)
    }

    #[test]
    fn a_request_is_read_as_sent_and_fields_of_a_later_node_are_ignored() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let begin = Begin { source: name("key", 0) };
        ask(&ours, &begin, LONG).unwrap();
        assert_eq!(receive(&theirs, LONG).unwrap(), begin);
        assert_eq!(received(br#"{"source":"sh-1","more":[1]}"#).unwrap().source, "sh-1");
    }

    #[test]
    fn a_request_that_names_no_source_is_refused() {
        for text in ["", "{", "{}", r#"{"source":7}"#, r#"{"source":"../x"}"#, r#"{"source":"mp-1"}"#] {
            assert_eq!(received(text.as_bytes()).unwrap_err().kind(), io::ErrorKind::InvalidData, "{text}");
        }
        let long = format!(r#"{{"source":"{PREFIX}{}"}}"#, "a".repeat(LIMIT));
        assert_eq!(received(long.as_bytes()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_name_is_a_file_name_and_each_key_and_attempt_has_its_own() {
        let first = name("key", 0);
        assert!(is_source(&first) && first.len() <= NAME_MAX, "{first}");
        assert!(first != name("key", 1) && first != name("other", 0));
        for wrong in ["", "sh-", "sh-.", "sh-a/b", "sh-..", "mp-1", "sh-A", &format!("sh-{}", "a".repeat(64))]
        {
            assert!(!is_source(wrong), "{wrong}");
        }
    }
}
