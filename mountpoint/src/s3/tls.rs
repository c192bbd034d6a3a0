//! TLS: rustls over aws-lc-rs. It trusts the system's roots, or the CA bundle in their place, and the extra bundles besides. Nothing turns
//! verification off.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::BufReader;
use tokio_rustls::TlsConnector;

use super::stream::Tcp;
use super::{Error, ErrorKind, Result};
use crate::sync::Arc;

/// Bytes received at once. rustls by itself asks the kernel for 4 KiB at a time: a call for every quarter of a record.
const RECEIVE: usize = 64 << 10;

/// A stream that is encrypted on the wire.
pub(super) type TlsStream = tokio_rustls::client::TlsStream<BufReader<Tcp>>;

/// Makes TLS streams; sessions are resumed across connections.
#[derive(Clone, Default)]
pub(super) struct Tls(Arc<OnceLock<TlsConnector>>);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Reads the bundles now, so that what is wrong with them is known at start. The system's roots alone are read when they
    /// are first needed: a mount over HTTP does not pay for them.
    pub(super) fn new(ca_bundle: Option<&Path>, extra: &[PathBuf]) -> Result<Self> {
        let tls = Self::default();
        if ca_bundle.is_some() || !extra.is_empty() {
            let mut roots = match ca_bundle {
                Some(path) => bundle(path)?,
                None => system(),
            };
            for path in extra {
                roots.roots.extend(bundle(path)?.roots);
            }
            let _ = tls.0.set(connector(roots));
        }
        Ok(tls)
    }

    /// The handshake with `host`, whose certificate must say so.
    pub(super) async fn connect(&self, host: &str, tcp: Tcp) -> io::Result<TlsStream> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        self.0.get_or_init(|| connector(system())).connect(name, BufReader::with_capacity(RECEIVE, tcp)).await
    }
}

fn bundle(path: &Path) -> Result<RootCertStore> {
    let wrong = |what: String| {
        Error::new(ErrorKind::InvalidRequest, "TLS")
            .message(format!("the CA bundle {} {what}", path.display()))
    };
    let mut roots = RootCertStore::empty();
    let file = CertificateDer::pem_file_iter(path).map_err(|e| wrong(format!("can't be read: {e}")))?;
    for certificate in file {
        let certificate = certificate.map_err(|e| wrong(format!("is no PEM file: {e}")))?;
        roots.add(certificate).map_err(|e| wrong(format!("holds a broken certificate: {e}")))?;
    }
    if roots.is_empty() {
        return Err(wrong("holds no certificate".into()));
    }
    Ok(roots)
}

/// A system without roots verifies nothing: each handshake then says so.
fn system() -> RootCertStore {
    let system = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (_, broken) = roots.add_parsable_certificates(system.certs);
    tracing::debug!(roots = roots.len(), broken, errors = system.errors.len(), "the system's TLS roots");
    roots
}

fn connector(roots: RootCertStore) -> TlsConnector {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has the cipher suites of TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(config))
}
