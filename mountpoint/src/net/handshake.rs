//! The parameters that a TLS connection agreed on, and the store's certificate, for a diagnosis. Pure.

use std::time::{Duration, SystemTime};

use x509_parser::parse_x509_certificate;

use crate::net::tls::TlsStream;

/// Version, cipher and certificate of a TLS connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// The version, such as `TLS 1.3`.
    pub version: String,
    /// The name of the cipher suite.
    pub cipher: String,
    /// The store's own certificate, if it could be read.
    pub certificate: Option<Certificate>,
}

/// The fields of a certificate that a diagnosis shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The name of the signer.
    pub issuer: String,
    /// The name of the owner.
    pub subject: String,
    /// The end of the certificate's validity.
    pub expires: SystemTime,
}

impl Handshake {
    pub(super) fn of(stream: &TlsStream) -> Self {
        let agreed = stream.agreed();
        let version = match agreed.version {
            rustls::ProtocolVersion::TLSv1_3 => "TLS 1.3".to_owned(),
            rustls::ProtocolVersion::TLSv1_2 => "TLS 1.2".to_owned(),
            other => format!("{other:?}"),
        };
        let cipher = format!("{:?}", agreed.suite.suite());
        let certificate = agreed.certificate.as_ref().and_then(|der| Certificate::read(der));
        Self { version, cipher, certificate }
    }
}

impl Certificate {
    fn read(der: &[u8]) -> Option<Self> {
        let (_, certificate) = parse_x509_certificate(der).ok()?;
        let expires = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
        Some(Self {
            issuer: certificate.issuer().to_string(),
            subject: certificate.subject().to_string(),
            expires: SystemTime::UNIX_EPOCH + Duration::from_secs(expires),
        })
    }

    /// Whether the certificate is self-signed: issuer and subject are equal.
    #[must_use]
    pub fn is_self_signed(&self) -> bool {
        self.issuer == self.subject
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issuer_subject_and_end_of_a_certificate_are_read_and_junk_is_none() {
        let mut params = rcgen::CertificateParams::new(vec!["s3.test".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2030, 5, 4);
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, "store");
        let own = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        let read = Certificate::read(own.der()).unwrap();
        assert_eq!((read.issuer.as_str(), read.subject.as_str()), ("CN=store", "CN=store"));
        assert!(read.is_self_signed());
        assert_eq!(read.expires, SystemTime::UNIX_EPOCH + Duration::from_secs(1_904_083_200));
        assert_eq!(Certificate::read(&own.der()[..100]), None);
    }
}
