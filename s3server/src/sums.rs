//! Checksums of S3, computed while bytes pass, and combined for objects with several parts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crc_fast::{CrcAlgorithm, Digest};
use s3s::crypto::{Checksum as _, Md5, Sha1, Sha256};
use serde::{Deserialize, Serialize};

/// The algorithms that a client may choose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Algorithm {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
}

impl Algorithm {
    pub(crate) const ALL: [Self; 5] = [Self::Crc32, Self::Crc32c, Self::Crc64Nvme, Self::Sha1, Self::Sha256];

    /// The algorithm's name in S3's requests.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "CRC32",
            Self::Crc32c => "CRC32C",
            Self::Crc64Nvme => "CRC64NVME",
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
        }
    }

    pub(crate) fn header(self) -> &'static str {
        match self {
            Self::Crc32 => "x-amz-checksum-crc32",
            Self::Crc32c => "x-amz-checksum-crc32c",
            Self::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Self::Sha1 => "x-amz-checksum-sha1",
            Self::Sha256 => "x-amz-checksum-sha256",
        }
    }

    pub(crate) fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.name().eq_ignore_ascii_case(name))
    }

    pub(crate) fn of_header(header: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.header().eq_ignore_ascii_case(header))
    }

    fn crc(self) -> Option<CrcAlgorithm> {
        match self {
            Self::Crc32 => Some(CrcAlgorithm::Crc32IsoHdlc),
            Self::Crc32c => Some(CrcAlgorithm::Crc32Iscsi),
            Self::Crc64Nvme => Some(CrcAlgorithm::Crc64Nvme),
            Self::Sha1 | Self::Sha256 => None,
        }
    }
}

/// A finished checksum in S3's spelling.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Sum {
    pub(crate) algorithm: Algorithm,
    /// The value in base64 (big-endian); a composite of N parts' checksums ends in `-N`.
    pub(crate) value: String,
}

impl Sum {
    pub(crate) fn is_composite(&self) -> bool {
        self.value.contains('-')
    }

    /// Whether the value has the length of its algorithm.
    pub(crate) fn is_well_formed(&self) -> bool {
        let length = match self.algorithm {
            Algorithm::Crc32 | Algorithm::Crc32c => 4,
            Algorithm::Crc64Nvme => 8,
            Algorithm::Sha1 => 20,
            Algorithm::Sha256 => 32,
        };
        STANDARD.decode(&self.value).is_ok_and(|bytes| bytes.len() == length)
    }
}

enum State {
    Crc(CrcAlgorithm, Box<Digest>),
    Sha1(Box<Sha1>),
    Sha256(Box<Sha256>),
}

/// A checksum of one body in progress, and optionally its MD5, in one pass.
pub(crate) struct Hasher {
    algorithm: Algorithm,
    state: State,
    md5: Option<Box<Md5>>,
}

impl Hasher {
    /// A new checksum. MD5 costs more than all other work of a PUT, so it is computed only on request.
    pub(crate) fn new(algorithm: Algorithm, md5: bool) -> Self {
        let state = match (algorithm, algorithm.crc()) {
            (_, Some(crc)) => State::Crc(crc, Box::new(Digest::new(crc))),
            (Algorithm::Sha1, None) => State::Sha1(Box::new(Sha1::new())),
            (_, None) => State::Sha256(Box::new(Sha256::new())),
        };
        Self { algorithm, state, md5: md5.then(|| Box::new(Md5::new())) }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match &mut self.state {
            State::Crc(_, digest) => digest.update(bytes),
            State::Sha1(digest) => digest.update(bytes),
            State::Sha256(digest) => digest.update(bytes),
        }
        if let Some(md5) = &mut self.md5 {
            md5.update(bytes);
        }
    }

    /// The checksum, and the MD5 if it was requested in [`Hasher::new`].
    pub(crate) fn finish(self) -> (Sum, Option<[u8; 16]>) {
        let value = match self.state {
            State::Crc(algorithm, digest) => STANDARD.encode(crc_bytes(algorithm, digest.finalize())),
            State::Sha1(digest) => STANDARD.encode(digest.finalize()),
            State::Sha256(digest) => STANDARD.encode(digest.finalize()),
        };
        (Sum { algorithm: self.algorithm, value }, self.md5.map(|md5| md5.finalize()))
    }
}

fn crc_bytes(algorithm: CrcAlgorithm, value: u64) -> Vec<u8> {
    match algorithm {
        CrcAlgorithm::Crc64Nvme => value.to_be_bytes().to_vec(),
        _ => (value as u32).to_be_bytes().to_vec(),
    }
}

/// The checksum of the whole object from its parts' checksums and sizes; `None` if the algorithm can't combine, or a part's sum is missing.
pub(crate) fn full_object(algorithm: Algorithm, parts: &[(&Sum, u64)]) -> Option<Sum> {
    let crc = algorithm.crc()?;
    let mut whole: Option<u64> = None;
    for (sum, size) in parts {
        let bytes = STANDARD.decode(&sum.value).ok().filter(|_| sum.algorithm == algorithm)?;
        let value = bytes.iter().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
        whole = Some(match whole {
            None => value,
            Some(before) => crc_fast::checksum_combine(crc, before, value, *size),
        });
    }
    Some(Sum { algorithm, value: STANDARD.encode(crc_bytes(crc, whole?)) })
}

/// The checksum of the parts' checksums, followed by a dash and the number of parts.
pub(crate) fn composite(algorithm: Algorithm, parts: &[(&Sum, u64)]) -> Option<Sum> {
    let mut hasher = Hasher::new(algorithm, false);
    for (sum, _) in parts {
        hasher.update(&STANDARD.decode(&sum.value).ok().filter(|_| sum.algorithm == algorithm)?);
    }
    let (mut sum, _) = hasher.finish();
    sum.value = format!("{}-{}", sum.value, parts.len());
    Some(sum)
}

/// MD5 of a few bytes.
pub(crate) fn md5(bytes: &[u8]) -> [u8; 16] {
    let mut md5 = Md5::new();
    md5.update(bytes);
    md5.finalize()
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    base16ct::lower::encode_string(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(algorithm: Algorithm, bytes: &[u8]) -> Sum {
        let mut hasher = Hasher::new(algorithm, false);
        bytes.chunks(7).for_each(|chunk| hasher.update(chunk));
        hasher.finish().0
    }

    #[test]
    fn check_values_of_the_catalogues() {
        let expected = [
            (Algorithm::Crc32, vec![0xcb, 0xf4, 0x39, 0x26]),
            (Algorithm::Crc32c, vec![0xe3, 0x06, 0x92, 0x83]),
            (Algorithm::Crc64Nvme, vec![0xae, 0x8b, 0x14, 0x86, 0x0a, 0x79, 0x98, 0x88]),
        ];
        for (algorithm, value) in expected {
            assert_eq!(of(algorithm, b"123456789").value, STANDARD.encode(value));
        }
        assert_eq!(of(Algorithm::Sha1, b"abc").value, "qZk+NkcGgWq6PiVxeFDCbJzQ2J0=");
        assert_eq!(of(Algorithm::Sha256, b"abc").value, "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
        assert_eq!(hex(&md5(b"abc")), "900150983cd24fb0d6963f7d28e17f72");
    }

    #[test]
    fn crcs_of_parts_combine_to_the_crc_of_the_whole() {
        let data: Vec<u8> = (0..50_000u32).map(|i| (i * 31) as u8).collect();
        for algorithm in Algorithm::ALL.into_iter().filter(|a| a.crc().is_some()) {
            let pieces: Vec<_> = data.chunks(17_001).collect();
            let sums: Vec<_> = pieces.iter().map(|p| of(algorithm, p)).collect();
            let parts: Vec<_> = sums.iter().zip(&pieces).map(|(s, p)| (s, p.len() as u64)).collect();
            assert_eq!(full_object(algorithm, &parts), Some(of(algorithm, &data)));
        }
    }

    #[test]
    fn a_composite_counts_its_parts() {
        let a = of(Algorithm::Crc32c, b"a");
        let b = of(Algorithm::Crc32c, b"b");
        let sum = composite(Algorithm::Crc32c, &[(&a, 1), (&b, 1)]).unwrap();
        assert!(sum.value.ends_with("-2") && sum.is_composite());
        assert_eq!(full_object(Algorithm::Sha256, &[(&of(Algorithm::Sha256, b"a"), 1)]), None);
    }
}
