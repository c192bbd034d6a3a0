//! The handshake: rustls says what to send and what it waits for, this file moves the bytes.

use std::io;

use rustls::client::{ClientSessionStore as _, UnbufferedClientConnection};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::net::tcp::Moved;
use crate::net::tls::Client;
use crate::net::tls::record::{HEADER, RECORD_MAX};
use crate::net::tls::session::{Agreed, Session};
use crate::net::tls::stream::{RECEIVE, TlsStream};
use crate::sync::Arc;

/// What rustls waits for.
enum Step {
    /// Nothing: it wants to go on.
    Continue,
    Send,
    Receive,
    Done,
}

/// Agrees with the store named `name` at the other end of `wire`, whose certificate must say so. `moved` counts the bytes of `wire`. The
/// caller limits the time.
///
/// # Errors
/// `InvalidData` with the error of rustls: the store is not to be trusted, or does not speak TLS. Those of `wire`.
pub(super) async fn negotiate<S: AsyncRead + AsyncWrite + Unpin>(
    client: &Client,
    name: ServerName<'static>,
    mut wire: S,
    moved: Moved,
) -> io::Result<TlsStream<S>> {
    let mut rustls =
        UnbufferedClientConnection::new(Arc::clone(&client.config), name.clone()).map_err(invalid)?;
    let (mut received, mut to_send) = (Vec::with_capacity(RECEIVE), Vec::new());
    // Bytes at the front of `received` that rustls sees. It sees one record after another, so that it opens none behind the handshake: what it
    // would keep of one is lost when the stream goes on without it.
    let mut shown = 0;
    loop {
        let UnbufferedStatus { discard, state } = rustls.process_tls_records(&mut received[..shown]);
        let step = match state {
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                encode(&mut to_send, |out| data.encode(out))?;
                Step::Continue
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                data.done();
                Step::Send
            }
            Ok(ConnectionState::BlockedHandshake) => Step::Receive,
            Ok(ConnectionState::WriteTraffic(_)) => Step::Done,
            Ok(state) => {
                let why = format!("the store was in the state {state:?} within the TLS handshake");
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            Err(error) => {
                received.drain(..discard);
                last_words(&mut rustls, &mut received[..shown - discard], &mut to_send)?;
                let _ = wire.write_all(&to_send).await;
                if error == rustls::Error::DecryptError {
                    // The store took up a session of TLS 1.2 and has other keys for it: it would again, and for ever.
                    client.sessions.remove_tls12_session(&name);
                }
                return Err(invalid(error));
            }
        };
        received.drain(..discard);
        shown -= discard;
        match step {
            Step::Continue => {}
            Step::Send => {
                wire.write_all(&to_send).await?;
                to_send.clear();
            }
            Step::Receive => match next_record(&received[shown..]) {
                Some(len) => shown += len,
                // rustls refuses messages that are longer than this.
                None if wire.read_buf(&mut received).await? == 0 => {
                    let why = "the connection ended within the TLS handshake";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
                }
                None => {}
            },
            Step::Done if shown == 0 => break,
            Step::Done => {
                let why = "the store sent more in the last record of its TLS handshake";
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
    }
    let unknown = || io::Error::other("TLS: the handshake is over and nothing was agreed on");
    let agreed = Agreed {
        version: rustls.protocol_version().ok_or_else(unknown)?,
        suite: rustls.negotiated_cipher_suite().ok_or_else(unknown)?,
        certificate: rustls
            .peer_certificates()
            .and_then(|chain| chain.first())
            .cloned()
            .map(CertificateDer::into_owned),
    };
    let (secrets, rustls) = rustls.dangerous_into_kernel_connection().map_err(invalid)?;
    Ok(TlsStream::new(wire, Session::new(secrets, rustls)?, agreed, &received, moved))
}

/// The length of the record that `bytes` begin with, once it is whole. Of one that is too long, all that is there: rustls refuses it.
fn next_record(bytes: &[u8]) -> Option<usize> {
    let header = bytes.first_chunk::<HEADER>()?;
    let len = HEADER + usize::from(u16::from_be_bytes([header[3], header[4]]));
    let is_too_long = len > RECORD_MAX;
    if is_too_long { Some(bytes.len()) } else { (bytes.len() >= len).then_some(len) }
}

/// What rustls has to tell the store behind an error: an alert, and what waited before it.
fn last_words(
    rustls: &mut UnbufferedClientConnection,
    mut received: &mut [u8],
    to_send: &mut Vec<u8>,
) -> io::Result<()> {
    // Only then: else it would open again what it could not open.
    while rustls.wants_write() {
        let UnbufferedStatus { discard, state } = rustls.process_tls_records(received);
        let Ok(ConnectionState::EncodeTlsData(mut data)) = state else { break };
        encode(to_send, |out| data.encode(out))?;
        received = &mut received[discard..];
    }
    Ok(())
}

/// Appends what `encode` writes to `out`.
pub(super) fn encode(
    out: &mut Vec<u8>,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
) -> io::Result<()> {
    let before = out.len();
    let room = match encode(&mut []) {
        Err(EncodeError::InsufficientSize(needs)) => needs.required_size,
        Err(error) => return Err(io::Error::other(error)),
        Ok(_) => 0,
    };
    out.resize(before + room, 0);
    if room > 0 {
        encode(&mut out[before..]).map_err(io::Error::other)?;
    }
    Ok(())
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
