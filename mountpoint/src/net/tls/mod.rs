//! The certificates that TLS trusts: the system's roots, or the CA bundle in their place, and the extra bundles besides. Nothing turns
//! verification off.
//!
//! rustls, over aws-lc, makes the handshake, decrypts and encrypts the records, and changes keys. `session` lends it buffers; `negotiate`
//! and `stream` move the bytes.

mod buffers;
#[cfg(feature = "testing")]
pub(super) mod conversation;
#[cfg(feature = "testing")]
mod forge;
mod negotiate;
mod session;
mod stream;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustls::client::{ClientSessionMemoryCache, ClientSessionStore, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use crate::broker;
use crate::net::tcp::Tcp;
use crate::net::{Error, Result};
use crate::sync::Arc;

/// Most sessions kept for resumption: rustls's default. A store needs one session, or one for each bucket.
const SESSIONS: usize = 256;

/// A TLS stream over TCP.
pub(super) type TlsStream = stream::TlsStream<Tcp>;

/// The configuration of the client, with its trusted certificates, and the cache of sessions that later connections resume.
#[derive(Debug)]
struct Client {
    config: Arc<ClientConfig>,
    /// The cache of sessions within `config`, which gives no access to it.
    sessions: Arc<ClientSessionMemoryCache>,
}

/// Makes TLS streams; sessions are resumed across connections.
#[derive(Clone, Default)]
pub(super) struct Tls(Arc<OnceLock<Client>>);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Reads the bundles now, so faults in them show at the start. The system's roots alone are read at the first connection: a mount over
    /// HTTP does not pay for them. A sandboxed engine reads them now, too: later it can't open their files.
    pub(super) fn new(ca_bundle: Option<&Path>, extra: &[PathBuf]) -> Result<Self> {
        let tls = Self::default();
        if ca_bundle.is_some() || !extra.is_empty() || broker::of_this_process().is_some() {
            let mut roots = match ca_bundle {
                Some(path) => bundle(path)?,
                None => system(),
            };
            for path in extra {
                roots.roots.extend(bundle(path)?.roots);
            }
            let _ = tls.0.set(client(default_provider(), roots));
        }
        Ok(tls)
    }

    /// Makes the handshake with `host`, whose certificate must contain this name.
    pub(super) async fn connect(&self, host: &str, tcp: Tcp) -> io::Result<TlsStream> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let moved = tcp.moved().clone();
        negotiate::negotiate(self.0.get_or_init(|| client(default_provider(), system())), name, tcp, moved)
            .await
    }
}

fn bundle(path: &Path) -> Result<RootCertStore> {
    let wrong = |what: String| Error::new("TLS", format!("the CA bundle {} {what}", path.display()));
    let mut roots = RootCertStore::empty();
    let file = CertificateDer::pem_file_iter(path).map_err(|e| wrong(format!("can't be read: {e}")))?;
    for certificate in file {
        let certificate = certificate.map_err(|e| wrong(format!("is not a PEM file: {e}")))?;
        roots.add(certificate).map_err(|e| wrong(format!("holds a broken certificate: {e}")))?;
    }
    if roots.is_empty() {
        return Err(wrong("holds no certificate".into()));
    }
    Ok(roots)
}

/// Reads the system's roots. Without roots no certificate can be verified, and each handshake fails with that reason.
fn system() -> RootCertStore {
    let system = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (_, broken) = roots.add_parsable_certificates(system.certs);
    tracing::debug!(roots = roots.len(), broken, errors = system.errors.len(), "the system's TLS roots");
    roots
}

fn client(provider: CryptoProvider, roots: RootCertStore) -> Client {
    let mut config = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .expect("the provider has the cipher suites of TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let sessions = Arc::new(ClientSessionMemoryCache::new(SESSIONS));
    config.resumption = Resumption::store(Arc::clone(&sessions) as Arc<dyn ClientSessionStore>);
    Client { config: Arc::new(config), sessions }
}
