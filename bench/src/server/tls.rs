//! TLS of the bench's server. Each start makes a new authority and a certificate for loopback. The server accepts only TLS 1.3, so
//! the bench never compares two versions. The keys stay in memory; the server writes only the authority's certificate, for
//! clients to trust.

use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// The subject of the certificate: clients connect to this address, not to a name.
pub(crate) const HOST: &str = "127.0.0.1";
/// Most bytes of one receive: several records of 16 KiB per system call.
const SOCKET_BUFFER: usize = 256 << 10;

/// Makes an authority and a certificate for [`HOST`], and writes the authority's certificate as PEM into `ca_file`.
///
/// # Errors
/// The file can't be written.
pub(crate) fn server(ca_file: &Path) -> anyhow::Result<Arc<ServerConfig>> {
    let mut authority = named("bench authority", Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate()?;
    let root = authority.self_signed(&authority_key)?;
    let key = KeyPair::generate()?;
    let mut certificate = named(HOST, vec![HOST.to_owned()])?;
    certificate.use_authority_key_identifier_extension = true;
    let certificate = certificate.signed_by(&key, &Issuer::new(authority, authority_key))?;
    std::fs::write(ca_file, root.pem())
        .with_context(|| format!("write the authority's certificate to {}", ca_file.display()))?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)?;
    Ok(Arc::new(config))
}

/// Parameters with a name that differs for each certificate: OpenSSL takes a certificate with equal subject and issuer for self-signed.
fn named(name: &str, hosts: Vec<String>) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

/// The configuration of a client that trusts only the authority in `ca_file`.
///
/// # Errors
/// The file is not a certificate.
pub(crate) fn client(ca_file: &Path) -> anyhow::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add(
        CertificateDer::from_pem_file(ca_file)
            .with_context(|| format!("read the certificate in {}", ca_file.display()))?,
    )?;
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// A socket with large reads and unbuffered writes: rustls alone reads only 4 KiB at a time.
#[derive(Debug)]
pub(crate) struct Buffered(BufReader<TcpStream>);

impl Buffered {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self(BufReader::with_capacity(SOCKET_BUFFER, stream))
    }
}

impl Read for Buffered {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for Buffered {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(buf)
    }

    fn write_vectored(&mut self, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.get_mut().write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.get_mut().flush()
    }
}
