//! The records of TLS once the handshake is over (RFC 8446 section 5, RFC 5246 section 6.2): the keys of one direction open and seal them.
//!
//! Enters: a record as it came, or content to send. Leaves: its content in the caller's memory, or a record. rustls negotiates the keys and
//! makes new ones; aws-lc encrypts. Records of rustls cost three more copies of a received byte, and one more of a sent one.

use std::io;
use std::ops::Range;

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rustls::{
    AlertDescription, ConnectionTrafficSecrets, ContentType, ProtocolVersion, SupportedCipherSuite,
};

/// Bytes of a record before what is encrypted.
pub(super) const HEADER: usize = 5;
/// Bytes of content that a record holds at most.
pub(super) const CONTENT_MAX: usize = 16 << 10;
/// Bytes of a record at most: TLS 1.2 lets encryption add 2 KiB, TLS 1.3 lets it add 256 bytes.
pub(super) const RECORD_MAX: usize = HEADER + CONTENT_MAX + (2 << 10);
/// Bytes that a record that we seal has besides its content.
pub(super) const OVERHEAD: usize = HEADER + EXPLICIT + 1 + TAG;
/// Bytes of the tag behind what is encrypted; all suites have this.
const TAG: usize = 16;
/// Bytes of a nonce.
const NONCE: usize = 12;
/// Bytes of the nonce that each record of AES-GCM brings in TLS 1.2.
const EXPLICIT: usize = 8;

/// Why a connection can't go on: the alert that says it to the store, and the words that say it to a person.
#[derive(Clone, Debug)]
pub(super) struct Fatal {
    pub(super) alert: AlertDescription,
    pub(super) kind: io::ErrorKind,
    pub(super) why: String,
}

impl Fatal {
    pub(super) fn new(alert: AlertDescription, why: impl Into<String>) -> Self {
        Self { alert, kind: io::ErrorKind::InvalidData, why: why.into() }
    }

    /// The store sent what it may not send now.
    pub(super) fn unexpected(why: impl Into<String>) -> Self {
        Self::new(AlertDescription::UnexpectedMessage, why)
    }
}

impl From<&Fatal> for io::Error {
    fn from(fatal: &Fatal) -> Self {
        Self::new(fatal.kind, fatal.why.clone())
    }
}

/// How a version of TLS forms its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// The type of the content is encrypted behind it, and zeros may follow.
    Tls13,
    /// The record begins with a part of the nonce.
    Tls12Gcm,
    /// Nothing but content is encrypted.
    Tls12ChaCha,
}

impl Form {
    /// Bytes between the header and what is encrypted.
    fn explicit(self) -> usize {
        match self {
            Self::Tls12Gcm => EXPLICIT,
            Self::Tls13 | Self::Tls12ChaCha => 0,
        }
    }

    /// Bytes that are encrypted behind the content of a record that we seal.
    fn behind(self) -> usize {
        usize::from(self == Self::Tls13)
    }
}

/// A record that is whole in memory: its length with the header, as the header says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) len: usize,
}

impl Frame {
    /// The record that `bytes` begin with; `None` while it is not whole.
    ///
    /// # Errors
    /// It is longer than a record may be, or of no type that comes encrypted.
    pub(super) fn of(bytes: &[u8]) -> Result<Option<Self>, Fatal> {
        let Some((header, _)) = bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
        let encrypted = [ContentType::ApplicationData, ContentType::Handshake, ContentType::Alert];
        if !encrypted.contains(&header[0].into()) || header[1..3] != [3, 3] {
            let why = format!("the store sent bytes that are no TLS record: {header:02x?}");
            return Err(Fatal::unexpected(why));
        }
        let len = HEADER + usize::from(u16::from_be_bytes([header[3], header[4]]));
        if len > RECORD_MAX {
            let why = format!("the store sent a TLS record of {len} bytes, and {RECORD_MAX} are allowed");
            return Err(Fatal::new(AlertDescription::RecordOverflow, why));
        }
        Ok((bytes.len() >= len).then_some(Self { len }))
    }
}

/// The keys of one direction.
pub(super) struct Keys {
    key: LessSafeKey,
    iv: [u8; NONCE],
    form: Form,
    /// The number of the next record. No two records of one key have the same.
    sequence: u64,
    /// From this number on another key is due.
    limit: u64,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys")
            .field("form", &self.form)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

impl Keys {
    /// # Errors
    /// A suite that this file does not know.
    pub(super) fn new(
        suite: SupportedCipherSuite,
        (sequence, secrets): (u64, ConnectionTrafficSecrets),
    ) -> io::Result<Self> {
        let unknown =
            || io::Error::other(format!("the TLS suite {:?} has keys of an unknown kind", suite.suite()));
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(unknown()),
        };
        let (form, limit) = match suite {
            SupportedCipherSuite::Tls13(suite) => (Form::Tls13, suite.common.confidentiality_limit),
            SupportedCipherSuite::Tls12(suite) => {
                let is_gcm = !matches!(secrets, ConnectionTrafficSecrets::Chacha20Poly1305 { .. });
                let form = if is_gcm { Form::Tls12Gcm } else { Form::Tls12ChaCha };
                (form, suite.common.confidentiality_limit)
            }
        };
        let key = UnboundKey::new(algorithm, key.as_ref()).map_err(|_| unknown())?;
        let iv = iv.as_ref().try_into().map_err(|_| unknown())?;
        Ok(Self { key: LessSafeKey::new(key), iv, form, sequence, limit })
    }

    /// Whether so many records have this key that the next one should have another.
    pub(super) fn are_used_up(&self) -> bool {
        self.sequence >= self.limit
    }

    /// Whether half of that is reached.
    pub(super) fn are_half_used_up(&self) -> bool {
        self.sequence >= self.limit / 2
    }

    #[cfg(test)]
    pub(super) fn use_up_after(&mut self, records: u64) {
        self.limit = self.sequence + records;
    }

    /// Bytes of memory that [`Keys::open_into`] needs for this record.
    ///
    /// # Errors
    /// The record is too short to be one.
    pub(super) fn room(&self, record: &[u8]) -> Result<usize, Fatal> {
        let least = HEADER + self.form.explicit() + self.form.behind() + TAG;
        match record.len().checked_sub(least) {
            Some(content) => Ok(content + self.form.behind()),
            None => Err(Fatal::new(
                AlertDescription::DecodeError,
                "the store sent a TLS record that is too short",
            )),
        }
    }

    /// Opens `record`, which is whole, into `out`, which has exactly [`Keys::room`] bytes: its type, and how many of them are content.
    /// After an error `out` holds anything.
    ///
    /// # Errors
    /// The record is not what the store sealed, or is out of turn.
    pub(super) fn open_into(&mut self, record: &[u8], out: &mut [u8]) -> Result<(ContentType, usize), Fatal> {
        let (nonce, aad) = self.next(record, out.len());
        let (encrypted, tag) = record[HEADER + self.form.explicit()..].split_at(out.len());
        let opened = self.key.open_separate_gather(nonce, Aad::from(aad.bytes()), encrypted, tag, out);
        opened.map_err(|_| altered())?;
        self.content(record[0].into(), out)
    }

    /// Opens `record`, which is whole, where it is: its type, and where in it the content is.
    ///
    /// # Errors
    /// As [`Keys::open_into`].
    pub(super) fn open_in_place(&mut self, record: &mut [u8]) -> Result<(ContentType, Range<usize>), Fatal> {
        let room = self.room(record)?;
        let (nonce, aad) = self.next(record, room);
        let outer = record[0].into();
        let start = HEADER + self.form.explicit();
        let opened = self.key.open_in_place(nonce, Aad::from(aad.bytes()), &mut record[start..]);
        let opened = opened.map_err(|_| altered())?;
        let (kind, len) = self.content(outer, opened)?;
        Ok((kind, start..start + len))
    }

    /// The nonce and the authenticated data of the next record to open, whose header is in `record`.
    fn next(&mut self, record: &[u8], room: usize) -> (Nonce, Authenticated) {
        let mut nonce = self.nonce();
        if self.form == Form::Tls12Gcm {
            nonce[NONCE - EXPLICIT..].copy_from_slice(&record[HEADER..HEADER + EXPLICIT]);
        }
        let aad = match self.form {
            Form::Tls13 => Authenticated::header(&record[..HEADER]),
            Form::Tls12Gcm | Form::Tls12ChaCha => Authenticated::numbered(self.sequence, record[0], room),
        };
        self.sequence += 1;
        (Nonce::assume_unique_for_key(nonce), aad)
    }

    fn nonce(&self) -> [u8; NONCE] {
        let mut nonce = self.iv;
        for (byte, of_number) in nonce[NONCE - 8..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= of_number;
        }
        nonce
    }

    /// The type and the length of the content of what was opened.
    fn content(&self, outer: ContentType, opened: &[u8]) -> Result<(ContentType, usize), Fatal> {
        let (kind, len) = match self.form {
            Form::Tls13 => match opened.iter().rposition(|&byte| byte != 0) {
                Some(at) if outer == ContentType::ApplicationData => (opened[at].into(), at),
                _ => return Err(Fatal::unexpected("the store sent a TLS record without a type")),
            },
            Form::Tls12Gcm | Form::Tls12ChaCha => (outer, opened.len()),
        };
        // Padding counts.
        match opened.len() - self.form.behind() {
            0..=CONTENT_MAX => Ok((kind, len)),
            long => {
                let why =
                    format!("the store sent a TLS record with {long} bytes, and {CONTENT_MAX} are allowed");
                Err(Fatal::new(AlertDescription::RecordOverflow, why))
            }
        }
    }

    /// Seals `content`, of at most [`CONTENT_MAX`] bytes, into the front of `out`, which has room for it and [`OVERHEAD`]: the length of the
    /// record.
    ///
    /// # Errors
    /// The suite can't; nothing that we know of leads here.
    pub(super) fn seal(&mut self, kind: ContentType, content: &[u8], out: &mut [u8]) -> io::Result<usize> {
        let (explicit, behind) = (self.form.explicit(), self.form.behind());
        let body = explicit + content.len() + behind + TAG;
        let outer = if self.form == Form::Tls13 { ContentType::ApplicationData } else { kind };
        out[0] = outer.into();
        out[1..3].copy_from_slice(&ProtocolVersion::TLSv1_2.to_array());
        out[3..HEADER].copy_from_slice(&u16::try_from(body).expect("at most CONTENT_MAX").to_be_bytes());
        let nonce = self.nonce();
        let aad = match self.form {
            Form::Tls13 => Authenticated::header(&out[..HEADER]),
            Form::Tls12Gcm | Form::Tls12ChaCha => {
                Authenticated::numbered(self.sequence, outer.into(), content.len())
            }
        };
        // The number is spent even if the seal fails.
        self.sequence += 1;
        let (explicit_nonce, rest) = out[HEADER..HEADER + body].split_at_mut(explicit);
        explicit_nonce.copy_from_slice(&nonce[NONCE - explicit..]);
        let (encrypted, rest) = rest.split_at_mut(content.len());
        let inner = [u8::from(kind)];
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key
            .seal_out_of_place_scatter(
                nonce,
                Aad::from(aad.bytes()),
                content,
                encrypted,
                &inner[..behind],
                rest,
            )
            .map_err(|_| io::Error::other("TLS: encryption failed"))?;
        Ok(HEADER + body)
    }
}

fn altered() -> Fatal {
    Fatal::new(AlertDescription::BadRecordMac, "a TLS record was altered on its way from the store")
}

/// What is authenticated beside the encrypted bytes.
struct Authenticated {
    bytes: [u8; 13],
    len: usize,
}

impl Authenticated {
    /// In TLS 1.3: the header.
    fn header(header: &[u8]) -> Self {
        let mut bytes = [0; 13];
        bytes[..HEADER].copy_from_slice(header);
        Self { bytes, len: HEADER }
    }

    /// In TLS 1.2: the number of the record and a header for the content alone.
    fn numbered(sequence: u64, kind: u8, content: usize) -> Self {
        let mut bytes = [0; 13];
        bytes[..8].copy_from_slice(&sequence.to_be_bytes());
        bytes[8] = kind;
        bytes[9..11].copy_from_slice(&ProtocolVersion::TLSv1_2.to_array());
        bytes[11..]
            .copy_from_slice(&u16::try_from(content).expect("a record's length is 16 bits").to_be_bytes());
        Self { bytes, len: 13 }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
