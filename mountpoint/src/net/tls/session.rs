//! A TLS session without a socket: rustls between two buffers. Received bytes enter and content leaves; content enters and bytes to send
//! leave.
//!
//! rustls decrypts a record in place and returns its content in a vector; this file copies the content into the reader's memory. rustls
//! decides about keys, records and alerts.

use std::io;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::CertificateDer;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus, WriteTraffic,
};
use rustls::{ProtocolVersion, SupportedCipherSuite};
use tokio::io::ReadBuf;

use crate::net::tcp::Moved;
use crate::net::tls::buffers::{Kept, Received, ToSend};

/// Most bytes of content in a record.
pub(super) const CONTENT_MAX: usize = 16 << 10;
/// Most bytes that a record has besides its content: a header, a nonce, a type and a tag.
pub(super) const OVERHEAD: usize = 5 + 8 + 1 + 16;
/// Most bytes of records without content in a row: more than two of the longest session tickets. Beyond it the connection fails. rustls
/// limits empty records, key updates and warnings by number. Doubling it lets a store waste twice the time.
pub(super) const SILENT_MAX: usize = 256 << 10;

/// The result of the handshake.
#[derive(Clone, Debug)]
pub(in crate::net) struct Agreed {
    pub(in crate::net) version: ProtocolVersion,
    pub(in crate::net) suite: SupportedCipherSuite,
    /// The store's own certificate.
    pub(in crate::net) certificate: Option<CertificateDer<'static>>,
}

/// The state of rustls after it worked on the received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Content moved to the reader.
    Content,
    /// The handshake waits for the store.
    Handshaking,
    /// No record is left to open, and content may be sent.
    Open,
    /// Both sides have sent close_notify.
    Over,
}

/// The reason why no more bytes can be read. Every later read reports it again.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    Rustls(rustls::Error),
    /// The connection ended without the store's close_notify.
    BareEnd,
    Flood,
    TooLong,
}

impl From<&Failure> for io::Error {
    fn from(failure: &Failure) -> Self {
        let (kind, why) = match failure {
            Failure::Rustls(rustls::Error::AlertReceived(alert)) => {
                (io::ErrorKind::ConnectionAborted, format!("the store ended TLS with the alert {alert:?}"))
            }
            Failure::Rustls(error @ rustls::Error::DecryptError) => (
                io::ErrorKind::InvalidData,
                format!("a TLS record was altered on its way from the store: {error}"),
            ),
            Failure::Rustls(error) => {
                (io::ErrorKind::InvalidData, format!("the store broke the rules of TLS: {error}"))
            }
            Failure::BareEnd => (
                io::ErrorKind::UnexpectedEof,
                "the connection ended, and the store did not say that it would (TLS close_notify)".to_owned(),
            ),
            Failure::Flood => (
                io::ErrorKind::InvalidData,
                format!(
                    "the store sent more than {SILENT_MAX} bytes of TLS records without content in a row"
                ),
            ),
            Failure::TooLong => (
                io::ErrorKind::InvalidData,
                "the store sent a message of the TLS handshake that is too long".to_owned(),
            ),
        };
        Self::new(kind, why)
    }
}

/// One TLS session: rustls, and the buffers between it and the socket.
pub(super) struct Session {
    rustls: UnbufferedClientConnection,
    /// Counters of the bytes on the wire.
    moved: Moved,
    pub(super) received: Received,
    pub(super) kept: Kept,
    pub(super) to_send: ToSend,
    /// Bytes of records without content since the last record with content.
    silent: usize,
    /// Number of content records that were encrypted.
    sealed: u64,
    /// Whether the store sent close_notify.
    pub(super) has_peer_closed: bool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("sealed", &self.sealed)
            .field("has_peer_closed", &self.has_peer_closed)
            .finish_non_exhaustive()
    }
}

/// An action for the state in which rustls can send content.
type Say<'a> = &'a mut dyn FnMut(&mut WriteTraffic<'_, ClientConnectionData>, &mut ToSend);

impl Session {
    pub(super) fn new(rustls: UnbufferedClientConnection, moved: Moved) -> Self {
        Self {
            rustls,
            moved,
            received: Received::new(),
            kept: Kept::default(),
            to_send: ToSend::default(),
            silent: 0,
            sealed: 0,
            has_peer_closed: false,
        }
    }

    /// The result of the handshake; `None` before its end.
    pub(super) fn agreed(&self) -> Option<Agreed> {
        let chain = self.rustls.peer_certificates();
        Some(Agreed {
            version: self.rustls.protocol_version()?,
            suite: self.rustls.negotiated_cipher_suite()?,
            certificate: chain.and_then(|chain| chain.first()).cloned(),
        })
    }

    /// Whether the session has used up half of the records that its key may protect, and can't change the key. TLS 1.2 has no key update.
    pub(super) fn is_worn(&self) -> bool {
        match self.rustls.negotiated_cipher_suite() {
            Some(SupportedCipherSuite::Tls12(suite)) => self.sealed >= suite.common.confidentiality_limit / 2,
            _ => false,
        }
    }

    /// Whether the store sent more than [`SILENT_MAX`] bytes of records without content in a row.
    pub(super) fn is_flooded(&self) -> bool {
        self.silent > SILENT_MAX
    }

    /// Decrypts received records, until content moved into `buf` or no complete record is left. Content without room in `buf` is kept.
    ///
    /// # Errors
    /// The store can't be trusted, or broke a rule. The alert of rustls is in [`Session::to_send`].
    pub(super) fn open(&mut self, buf: &mut ReadBuf<'_>) -> Result<Progress, rustls::Error> {
        self.run(buf, None)
    }

    /// Encrypts `content`, at most [`CONTENT_MAX`] bytes, as a record behind the waiting bytes. Content that was received before is kept.
    ///
    /// # Errors
    /// `Ok(Err(_))`: the keys are used up. Otherwise the same as [`Session::open`].
    pub(super) fn seal(&mut self, content: &[u8]) -> Result<io::Result<()>, rustls::Error> {
        let mut sealed = Err(io::ErrorKind::BrokenPipe.into());
        let moved = self.moved.clone();
        self.run_and_say(&mut |traffic, to_send| {
            sealed = append(to_send, content.len() + OVERHEAD, |out| traffic.encrypt(content, out));
        })?;
        Ok(sealed.map(|bytes| {
            moved.sends_beside(bytes - content.len());
            self.sealed += 1;
        }))
    }

    /// Queues the answer to a key update. rustls delays the answer until the next record is sent, but a reader may never send again.
    ///
    /// # Errors
    /// The same as [`Session::open`].
    pub(super) fn answer(&mut self) -> Result<(), rustls::Error> {
        if self.rustls.protocol_version() == Some(ProtocolVersion::TLSv1_3) {
            // rustls refuses to encrypt without room for a record, but first queues the messages that must precede the record.
            self.run_and_say(&mut |traffic, _| {
                let _ = traffic.encrypt(&[0], &mut []);
            })?;
        }
        Ok(())
    }

    /// Queues close_notify.
    ///
    /// # Errors
    /// The same as [`Session::open`].
    pub(super) fn close(&mut self) -> Result<(), rustls::Error> {
        let moved = self.moved.clone();
        self.run_and_say(&mut |traffic, to_send| {
            if let Ok(bytes) = append(to_send, OVERHEAD, |out| traffic.queue_close_notify(out)) {
                moved.sends_beside(bytes);
            }
        })
    }

    /// Decrypts and keeps all received content, and then calls `say`.
    fn run_and_say(&mut self, say: Say<'_>) -> Result<(), rustls::Error> {
        let mut nowhere = ReadBuf::new(&mut []);
        while self.run(&mut nowhere, Some(say))? == Progress::Content {}
        // Takes the records that rustls queued.
        self.run(&mut nowhere, None)?;
        Ok(())
    }

    fn run(&mut self, buf: &mut ReadBuf<'_>, mut say: Option<Say<'_>>) -> Result<Progress, rustls::Error> {
        loop {
            let UnbufferedStatus { mut discard, state } =
                self.rustls.process_tls_records(self.received.filled());
            let mut content = 0;
            let progress = match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record?;
                        let room = if self.kept.is_empty() { buf.remaining() } else { 0 };
                        let (now, later) = record.payload.split_at(record.payload.len().min(room));
                        buf.put_slice(now); // copy: from rustls's vector into the reader's memory
                        self.kept.keep(later);
                        content += record.payload.len();
                        discard += record.discard;
                    }
                    Some(Progress::Content)
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    if let Ok(bytes) = append(&mut self.to_send, 0, |out| data.encode(out)) {
                        self.moved.sends_beside(bytes);
                    }
                    None
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done(); // it is sent in turn
                    None
                }
                Ok(ConnectionState::PeerClosed) => {
                    self.has_peer_closed = true;
                    None
                }
                Ok(ConnectionState::BlockedHandshake) => Some(Progress::Handshaking),
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    if let Some(say) = say.take() {
                        say(&mut traffic, &mut self.to_send);
                    }
                    Some(Progress::Open)
                }
                Ok(ConnectionState::Closed) => Some(Progress::Over),
                Ok(state) => return Err(rustls::Error::General(format!("the TLS state {state:?}"))),
                Err(error) => {
                    self.received.discard(discard);
                    self.last_words();
                    return Err(error);
                }
            };
            self.received.discard(discard);
            self.moved.received_beside(discard - content);
            self.silent = if content > 0 { 0 } else { self.silent + discard };
            if let Some(progress) = progress {
                return Ok(progress);
            }
        }
    }

    /// Queues the last messages of rustls after an error: an alert, and records that waited before it.
    fn last_words(&mut self) {
        // The loop runs only while rustls wants to write; otherwise rustls would decrypt the faulty record again.
        while self.rustls.wants_write() {
            let UnbufferedStatus { state, .. } = self.rustls.process_tls_records(self.received.filled());
            let Ok(ConnectionState::EncodeTlsData(mut data)) = state else { break };
            if let Ok(bytes) = append(&mut self.to_send, 0, |out| data.encode(out)) {
                self.moved.sends_beside(bytes);
            }
        }
    }

    #[cfg(feature = "testing")]
    pub(super) fn memory(&self) -> usize {
        self.received.memory() + self.kept.memory() + self.to_send.memory()
    }
}

/// The reason why rustls wrote nothing.
enum Refusal {
    /// The buffer needs this much room.
    Room(usize),
    Never(io::Error),
}

impl From<EncodeError> for Refusal {
    fn from(error: EncodeError) -> Self {
        match error {
            EncodeError::InsufficientSize(InsufficientSizeError { required_size }) => {
                Self::Room(required_size)
            }
            error => Self::Never(io::Error::other(error)),
        }
    }
}

impl From<EncryptError> for Refusal {
    fn from(error: EncryptError) -> Self {
        match error {
            EncryptError::InsufficientSize(InsufficientSizeError { required_size }) => {
                Self::Room(required_size)
            }
            EncryptError::EncryptExhausted => Self::Never(io::Error::other(
                "this TLS connection has sent as much as its keys may protect; the next request uses another connection",
            )),
        }
    }
}

/// Appends the output of `write` to the waiting bytes: first with this much room, then with as much as `write` needs. Returns the number of
/// bytes written.
fn append<E: Into<Refusal>>(
    to_send: &mut ToSend,
    mut room: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, E>,
) -> io::Result<usize> {
    loop {
        match write(to_send.spare(room)).map_err(Into::into) {
            Ok(bytes) => {
                to_send.fill(bytes);
                return Ok(bytes);
            }
            Err(Refusal::Room(more)) if more > room => room = more,
            Err(Refusal::Room(room)) => {
                return Err(io::Error::other(format!(
                    "rustls refuses {room} bytes of room, and asked for them"
                )));
            }
            Err(Refusal::Never(why)) => return Err(why),
        }
    }
}
