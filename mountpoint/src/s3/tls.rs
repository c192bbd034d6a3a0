//! TLS: rustls over aws-lc-rs, trusting the system's roots or the CA bundle in their place. Nothing turns verification off.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::stream::Tcp;
use super::{Error, ErrorKind, Result};

/// Makes TLS streams; sessions are resumed across connections.
#[derive(Clone)]
pub(super) struct Tls(TlsConnector);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Reads the roots. A CA bundle that can't be read is an error; a system without roots is one only once
    /// something has to be verified.
    pub(super) fn new(ca_bundle: Option<&Path>) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        match ca_bundle {
            Some(path) => {
                let wrong = |what: String| {
                    Error::new(ErrorKind::InvalidRequest, "TLS")
                        .message(format!("the CA bundle {} {what}", path.display()))
                };
                for certificate in
                    CertificateDer::pem_file_iter(path).map_err(|e| wrong(format!("can't be read: {e}")))?
                {
                    let certificate = certificate.map_err(|e| wrong(format!("is no PEM file: {e}")))?;
                    roots.add(certificate).map_err(|e| wrong(format!("holds a broken certificate: {e}")))?;
                }
                if roots.is_empty() {
                    return Err(wrong("holds no certificate".into()));
                }
            }
            None => {
                let system = rustls_native_certs::load_native_certs();
                let (_, broken) = roots.add_parsable_certificates(system.certs);
                tracing::debug!(
                    roots = roots.len(),
                    broken,
                    errors = system.errors.len(),
                    "system's TLS roots"
                );
            }
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::new(ErrorKind::Network, "TLS").source(e))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// The handshake with `host`, whose certificate must say so.
    pub(super) async fn connect(&self, host: &str, tcp: Tcp) -> io::Result<TlsStream<Tcp>> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        self.0.connect(name, tcp).await
    }
}
