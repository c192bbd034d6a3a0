//! The holder's status: one line for each held mount. It answers at an abstract socket, which only processes of the node pod's network
//! reach; the holder has no port and no file.
//!
//! Never here: a secret, a change.

use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;

use super::Holds;

/// The name of the socket.
const NAME: &str = "scality-s3-csi-holder";
/// Longest time for one request; a slower client is dropped.
const WITHIN: Duration = Duration::from_secs(5);

/// Pause after a failed accept, mostly for lack of descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Answers requests until the future is dropped. A slow client does not delay others.
///
/// # Errors
/// Another holder of this pod answers at the socket.
pub async fn answer(holds: Holds) -> io::Result<()> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(NAME)?)?;
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    loop {
        let (mut stream, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("accepting a question: {error}");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let text = text(&holds);
        let _ = timeout(WITHIN, stream.write_all(text.as_bytes())).await;
    }
}

fn text(holds: &Holds) -> String {
    let holds = holds.lock();
    let mut text = format!("{} mounts\n", holds.len());
    for (pod, state) in holds.iter() {
        let _ = writeln!(text, "{pod} {state}");
    }
    text
}

/// Asks the holder of this pod for its status.
///
/// # Errors
/// No holder answers in time.
pub fn ask() -> io::Result<String> {
    let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(NAME)?)?;
    stream.set_read_timeout(Some(WITHIN))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    if text.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(text) }
}
