//! An authority of a test's own, and a certificate that it signed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// The certificate of one server: in memory, and as the files `ca.pem`, `certificate.pem` and `key.pem` of a folder.
#[derive(Debug)]
pub(crate) struct Certificates {
    certificate: rcgen::Certificate,
    key: KeyPair,
    folder: tempfile::TempDir,
}

impl Certificates {
    /// A certificate for these names or addresses.
    pub(crate) fn of(names: &[&str]) -> Self {
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate().unwrap();
        let root = authority.self_signed(&authority_key).unwrap();
        let key = KeyPair::generate().unwrap();
        let issuer = Issuer::new(authority, authority_key);
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), root.pem()).unwrap();
        Self { certificate, key, folder }
    }

    /// The certificate authority, as a bundle to trust.
    pub(crate) fn ca_bundle(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// The certificate and its key as files.
    pub(crate) fn files(&self) -> (PathBuf, PathBuf) {
        let write = |name: &str, text: String| {
            let path = Path::join(self.folder.path(), name);
            std::fs::write(&path, text).unwrap();
            path
        };
        (write("certificate.pem", self.certificate.pem()), write("key.pem", self.key.serialize_pem()))
    }

    /// The TLS configuration of a server inside the test.
    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let chain = vec![self.certificate.der().clone()];
        Arc::new(tls.with_no_client_auth().with_single_cert(chain, key).unwrap())
    }
}
