//! A client and a store that speak TLS in memory, for tests and fuzz targets. The wire between them delays and cuts bytes on command. The
//! store encrypts any record, with valid keys.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt as _;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::kernel::KernelConnection;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
use rustls::{ContentType, HandshakeType, RootCertStore, ServerConfig, SupportedCipherSuite};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::net::tcp::Moved;
#[cfg(test)]
use crate::net::tls::Client;
use crate::net::tls::client;
use crate::net::tls::forge::{Opens, Seals};
use crate::net::tls::negotiate::negotiate;
use crate::net::tls::stream::TlsStream;
use crate::sync::Arc;

/// The name in the certificate of the store.
pub const NAME: &str = "s3.test";
/// Most bytes of one handshake message of the store.
const FLIGHT_MAX: usize = 64 << 10;

/// A store with a certificate, and a client that trusts it.
#[derive(Debug)]
pub struct Parties {
    store: Arc<ServerConfig>,
    provider: CryptoProvider,
    roots: RootCertStore,
}

impl Parties {
    /// A store and a client that speak TLS 1.3, or else 1.2. The self-signed certificate is for [`NAME`]; `key` is its key (PKCS #8,
    /// ECDSA).
    ///
    /// # Panics
    /// Panics if key and certificate do not match.
    pub fn new(is_tls13: bool, certificate: &[u8], key: &[u8]) -> Self {
        match is_tls13 {
            true => Self::by(cipher_suite::TLS13_AES_128_GCM_SHA256, certificate, key),
            false => Self::by(cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, certificate, key),
        }
    }

    /// A store and a client that speak this cipher suite.
    pub(super) fn by(suite: SupportedCipherSuite, certificate: &[u8], key: &[u8]) -> Self {
        let mut provider = default_provider();
        provider.cipher_suites = vec![suite];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.to_vec()));
        let certificate = CertificateDer::from(certificate.to_vec());
        let mut store = ServerConfig::builder_with_provider(provider.into())
            .with_protocol_versions(&[suite.version()])
            .expect("a version of the suite")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .expect("a certificate and its key");
        store.enable_secret_extraction = true;
        store.send_tls13_tickets = 0;
        store.session_storage = Arc::new(NoServerSessionStorage {});
        let mut roots = RootCertStore::empty();
        roots.add(certificate).expect("a certificate");
        Self { store: store.into(), provider: default_provider(), roots }
    }

    /// Limits each key of the client to this number of records.
    #[cfg(test)]
    pub(super) fn limited(mut self, records: u64) -> Self {
        self.provider = super::tests::limited(records);
        self
    }
}

/// The wire: delivers the store's bytes in pieces, and accepts the client's bytes up to a limit.
#[derive(Default)]
struct Wire {
    /// The store's end, during the handshake.
    store: Option<UnbufferedServerConnection>,
    to_client: Vec<u8>,
    /// Bytes of `to_client` that the client has.
    given: usize,
    /// Sizes of the pieces in which the wire delivers bytes, used in turn; empty: all bytes at once.
    pieces: Vec<usize>,
    turn: usize,
    to_store: Vec<u8>,
    /// Number of bytes that the wire still accepts.
    takes: usize,
    has_ended: bool,
    moved: Moved,
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.given == self.to_client.len() {
            self.shake_hands();
        }
        let left = self.to_client.len() - self.given;
        if left == 0 {
            return if self.has_ended { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        let piece = match self.pieces.len() {
            0 => left,
            pieces => self.pieces[self.turn % pieces].max(1),
        };
        let n = piece.min(left).min(buf.remaining());
        buf.put_slice(&self.to_client[self.given..self.given + n]);
        self.given += n;
        self.turn += 1;
        self.moved.count_received(n as u64);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let n = buf.len().min(self.takes);
        if n == 0 && !buf.is_empty() {
            return Poll::Pending;
        }
        self.takes -= n;
        self.to_store.extend_from_slice(&buf[..n]);
        self.moved.count_sent(n as u64);
        Poll::Ready(Ok(n))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Wire {
    /// Continues the store's part of the handshake. Returns whether the handshake is complete.
    fn shake_hands(&mut self) -> bool {
        let Some(store) = &mut self.store else { return true };
        loop {
            let UnbufferedStatus { discard, state } = store.process_tls_records(&mut self.to_store);
            let is_over = match state.expect("the client is trusted") {
                ConnectionState::EncodeTlsData(mut data) => {
                    let mut flight = vec![0; FLIGHT_MAX];
                    let len = data.encode(&mut flight).expect("a part of the handshake");
                    self.to_client.extend_from_slice(&flight[..len]);
                    None
                }
                ConnectionState::TransmitTlsData(data) => {
                    data.done();
                    None
                }
                ConnectionState::BlockedHandshake => Some(false),
                ConnectionState::WriteTraffic(_) => Some(true),
                state => panic!("a handshake does not come to {state:?}"),
            };
            self.to_store.drain(..discard);
            if let Some(is_over) = is_over {
                return is_over;
            }
        }
    }
}

/// A connection after its handshake.
pub struct Conversation {
    client: TlsStream<Wire>,
    #[cfg(test)]
    known: Client,
    store: KernelConnection<ServerConnectionData>,
    seals: Seals,
    opens: Opens,
}

impl std::fmt::Debug for Conversation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conversation").field("client", &self.client).finish_non_exhaustive()
    }
}

impl Conversation {
    /// Makes the handshake. The wire delivers all bytes at once and accepts all bytes.
    ///
    /// # Panics
    /// Panics if the handshake fails.
    pub fn begin(parties: &Parties) -> Self {
        let moved = Moved::default();
        let store = UnbufferedServerConnection::new(Arc::clone(&parties.store)).expect("a store");
        let wire = Wire { store: Some(store), takes: usize::MAX, moved: moved.clone(), ..Wire::default() };
        let name = ServerName::try_from(NAME).expect("a name");
        let known = client(parties.provider.clone(), parties.roots.clone());
        let handshake = negotiate(&known, name, wire, moved).now_or_never();
        let mut client = handshake.expect("a store that answers at once").expect("a handshake");
        assert!(client.wire().shake_hands(), "the store has heard the end of the handshake");
        let store = client.wire().store.take().expect("it was not taken yet");
        let (secrets, store) = store.dangerous_into_kernel_connection().expect("keys of the store");
        let suite = store.negotiated_cipher_suite();
        let (seals, opens) = (Seals::new(suite, secrets.tx), Opens::new(suite, secrets.rx));
        Self {
            client,
            #[cfg(test)]
            known,
            store,
            seals,
            opens,
        }
    }

    /// Encrypts the next record of the store without sending it. In TLS 1.3, type 0 means that the last nonzero byte of `content` is its
    /// type.
    ///
    /// # Panics
    /// The content is longer than a record.
    pub fn sealed(&mut self, kind: u8, content: &[u8]) -> Vec<u8> {
        self.seals.seal(kind.into(), content)
    }

    /// Makes the store encrypt with new keys from the next record on; false with TLS 1.2, which has no key update.
    pub fn renew(&mut self) -> bool {
        let Ok(secret) = self.store.update_tx_secret() else { return false };
        self.seals = Seals::new(self.store.negotiated_cipher_suite(), secret);
        true
    }

    /// Makes the store send these bytes as they are.
    pub fn say(&mut self, bytes: &[u8]) {
        let wire = self.client.wire();
        wire.to_client.drain(..std::mem::take(&mut wire.given));
        wire.to_client.extend_from_slice(bytes);
    }

    /// Encrypts this content as one record of the store, and sends it.
    pub fn tell(&mut self, kind: u8, content: &[u8]) {
        let record = self.sealed(kind, content);
        self.say(&record);
    }

    /// Ends the connection after the store's bytes.
    pub fn hang_up(&mut self) {
        self.client.wire().has_ended = true;
    }

    /// Sets the sizes of the pieces in which the wire delivers bytes, used in turn.
    pub fn pieces(&mut self, pieces: Vec<usize>) {
        self.client.wire().pieces = pieces;
    }

    /// Makes the wire accept this many more bytes, and none after them.
    pub fn takes(&mut self, bytes: usize) {
        self.client.wire().takes = bytes;
    }

    /// Makes the client read up to this many bytes, once. Returns the bytes; `None` if the read is pending.
    pub fn read(&mut self, room: usize) -> Option<io::Result<Vec<u8>>> {
        let mut bytes = vec![0; room];
        let mut buf = ReadBuf::new(&mut bytes);
        let polled = Pin::new(&mut self.client).poll_read(&mut idle(), &mut buf);
        let got = buf.filled().to_vec();
        match polled {
            Poll::Ready(read) => Some(read.map(|()| got)),
            Poll::Pending => None,
        }
    }

    /// Makes the client read up to this many bytes at a time. Returns all bytes, and the result that ended the reads; `None` if one is
    /// pending.
    pub fn read_all(&mut self, room: usize) -> (Vec<u8>, Option<io::Result<()>>) {
        let mut all = Vec::new();
        loop {
            match self.read(room) {
                Some(Ok(bytes)) if !bytes.is_empty() => all.extend(bytes),
                end => return (all, end.map(|end| end.map(drop))),
            }
        }
    }

    /// Makes the client write, once. Returns the number of accepted bytes; `None` if the write is pending.
    pub fn write(&mut self, bytes: &[u8]) -> Option<io::Result<usize>> {
        match Pin::new(&mut self.client).poll_write(&mut idle(), bytes) {
            Poll::Ready(written) => Some(written),
            Poll::Pending => None,
        }
    }

    /// Makes the client flush its written bytes; false if the flush is pending.
    pub fn flush(&mut self) -> bool {
        Pin::new(&mut self.client).poll_flush(&mut idle()).is_ready()
    }

    /// Records that the store received since the last call: types and contents of whole records, decrypted with the current keys.
    ///
    /// # Panics
    /// A record does not open.
    pub fn heard(&mut self) -> Vec<(u8, Vec<u8>)> {
        let mut heard = Vec::new();
        while let Some((kind, content)) = self.opens.open(&mut self.client.wire().to_store) {
            if kind == ContentType::Handshake && content[0] == u8::from(HandshakeType::KeyUpdate) {
                let secret = self.store.update_rx_secret().expect("TLS 1.3");
                self.opens = Opens::new(self.store.negotiated_cipher_suite(), secret);
            }
            heard.push((kind.into(), content));
        }
        heard
    }

    /// Bytes of memory that the client uses for the connection.
    pub fn memory(&self) -> usize {
        self.client.memory()
    }

    /// The counters of the client's end.
    #[cfg(test)]
    pub(super) fn moved(&mut self) -> Moved {
        self.client.wire().moved.clone()
    }

    /// Takes the sessions that the client stored. Returns their number.
    #[cfg(test)]
    pub(super) fn tickets(&self) -> usize {
        use rustls::client::ClientSessionStore as _;
        let name = ServerName::try_from(NAME).expect("a name");
        std::iter::from_fn(|| self.known.sessions.take_tls13_ticket(&name)).count()
    }

    /// The client's end.
    #[cfg(test)]
    pub(super) fn client(&mut self) -> &mut TlsStream<impl AsyncRead + AsyncWrite + Unpin> {
        &mut self.client
    }
}

fn idle() -> Context<'static> {
    Context::from_waker(Waker::noop())
}
