//! Records that the store of a test encrypts and decrypts on command, with the ciphers of rustls and the keys of a real handshake.

use rustls::crypto::cipher::{
    InboundOpaqueMessage, MessageDecrypter, MessageEncrypter, OutboundPlainMessage,
};
use rustls::{ConnectionTrafficSecrets, ContentType, ProtocolVersion, SupportedCipherSuite};

/// Bytes of a record before the encrypted ones.
const HEADER: usize = 5;

/// The key with which the store encrypts.
pub(super) struct Seals {
    cipher: Box<dyn MessageEncrypter>,
    /// The number of the next record.
    sequence: u64,
}

/// The key with which the store decrypts.
pub(super) struct Opens {
    cipher: Box<dyn MessageDecrypter>,
    sequence: u64,
}

impl Seals {
    pub(super) fn new(
        suite: SupportedCipherSuite,
        (sequence, secrets): (u64, ConnectionTrafficSecrets),
    ) -> Self {
        let (key, iv) = parts(secrets);
        let cipher = match suite {
            SupportedCipherSuite::Tls13(suite) => suite.aead_alg.encrypter(key, iv),
            SupportedCipherSuite::Tls12(suite) => {
                let fixed = suite.aead_alg.key_block_shape().fixed_iv_len;
                let (iv, explicit) = iv.as_ref().split_at(fixed);
                suite.aead_alg.encrypter(key, iv, explicit)
            }
        };
        let mut seals = Self { cipher, sequence: 0 };
        // The cipher accepts the sequence numbers only in order, from 0 on.
        while seals.sequence < sequence {
            seals.seal(ContentType::Alert, &[]);
        }
        seals
    }

    /// Encrypts the next record. In TLS 1.3, type 0 means that the last nonzero byte of `content` is its type.
    ///
    /// # Panics
    /// A record has no room for the content.
    pub(super) fn seal(&mut self, kind: ContentType, content: &[u8]) -> Vec<u8> {
        assert!(content.len() < usize::from(u16::MAX) - 100, "{} bytes of content", content.len());
        let message =
            OutboundPlainMessage { typ: kind, version: ProtocolVersion::TLSv1_2, payload: content.into() };
        let record = self.cipher.encrypt(message, self.sequence).expect("a cipher that seals");
        self.sequence += 1;
        record.encode()
    }
}

impl Opens {
    pub(super) fn new(
        suite: SupportedCipherSuite,
        (sequence, secrets): (u64, ConnectionTrafficSecrets),
    ) -> Self {
        let (key, iv) = parts(secrets);
        let cipher = match suite {
            SupportedCipherSuite::Tls13(suite) => suite.aead_alg.decrypter(key, iv),
            SupportedCipherSuite::Tls12(suite) => {
                let fixed = suite.aead_alg.key_block_shape().fixed_iv_len;
                suite.aead_alg.decrypter(key, &iv.as_ref()[..fixed])
            }
        };
        Self { cipher, sequence }
    }

    /// Opens the record at the beginning of `bytes`. Returns its type and its content; `None` while it is incomplete.
    ///
    /// # Panics
    /// The record does not open.
    pub(super) fn open(&mut self, bytes: &mut Vec<u8>) -> Option<(ContentType, Vec<u8>)> {
        let header = *bytes.first_chunk::<HEADER>()?;
        let len = HEADER + usize::from(u16::from_be_bytes([header[3], header[4]]));
        if bytes.len() < len {
            return None;
        }
        let mut record: Vec<u8> = bytes.drain(..len).collect();
        let version = ProtocolVersion::TLSv1_2;
        let message = InboundOpaqueMessage::new(header[0].into(), version, &mut record[HEADER..]);
        let opened = self.cipher.decrypt(message, self.sequence).expect("a record of the client");
        self.sequence += 1;
        Some((opened.typ, opened.payload.to_vec()))
    }
}

fn parts(secrets: ConnectionTrafficSecrets) -> (rustls::crypto::cipher::AeadKey, rustls::crypto::cipher::Iv) {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (key, iv),
        other => panic!("a suite with unknown keys: {:?}", std::mem::discriminant(&other)),
    }
}
