//! The TLS handshake: rustls decides about the messages, and this file moves the bytes.

use std::io;

use rustls::client::{ClientSessionStore as _, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};

use crate::net::tcp::Moved;
use crate::net::tls::Client;
use crate::net::tls::session::{Failure, Progress, Session};
use crate::net::tls::stream::TlsStream;
use crate::sync::Arc;

/// Makes a TLS handshake over `wire` with the store, whose certificate must contain `name`. `moved` counts the bytes of `wire`. The caller
/// limits the time.
///
/// # Errors
/// `InvalidData` with the error of rustls: the store can't be trusted, or does not speak TLS. Also the errors of `wire`.
pub(super) async fn negotiate<S: AsyncRead + AsyncWrite + Unpin>(
    client: &Client,
    name: ServerName<'static>,
    mut wire: S,
    moved: Moved,
) -> io::Result<TlsStream<S>> {
    let rustls =
        UnbufferedClientConnection::new(Arc::clone(&client.config), name.clone()).map_err(invalid)?;
    let mut session = Session::new(rustls, moved);
    loop {
        // Content that the store sends before it got a request is kept, and the connection then serves no request.
        let progress = session.open(&mut ReadBuf::new(&mut []));
        let sent = wire.write_all(session.to_send.bytes()).await;
        session.to_send.sent(session.to_send.bytes().len());
        match progress {
            Ok(Progress::Content) => {}
            Ok(Progress::Handshaking) => sent?,
            Ok(Progress::Open | Progress::Over) => {
                sent?;
                break;
            }
            Err(error) => {
                if error == rustls::Error::DecryptError {
                    // The store resumed a session of TLS 1.2 for which it has other keys. It would do so each time, so the client drops the
                    // session.
                    client.sessions.remove_tls12_session(&name);
                }
                return Err(invalid(error));
            }
        }
        if progress == Ok(Progress::Handshaking) {
            receive(&mut session, &mut wire).await?;
        }
    }
    let agreed = session.agreed();
    let agreed = agreed.ok_or_else(|| io::Error::other("TLS: the handshake ended without an agreement"))?;
    Ok(TlsStream::new(wire, session, agreed))
}

/// Receives more bytes of a handshake message.
async fn receive(session: &mut Session, wire: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let spare = session.received.spare();
    if spare.is_empty() {
        return Err((&Failure::TooLong).into());
    }
    match wire.read(spare).await? {
        0 => {
            let why = "the connection ended within the TLS handshake";
            Err(io::Error::new(io::ErrorKind::UnexpectedEof, why))
        }
        n => {
            session.received.fill(n);
            Ok(())
        }
    }
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
