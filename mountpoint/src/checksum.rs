//! CRC32, CRC32C and CRC64NVME: computed over bytes as they pass, combined for whole objects, encoded for headers and decoded.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crc_fast::CrcAlgorithm;

/// An algorithm that S3 supports and whose checksums can be combined. Uploads carry the first two; objects of other clients may have any of
/// the three.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ChecksumAlgorithm {
    /// 32 bits, Castagnoli. Parts carry their own; the whole is a checksum of checksums ("composite").
    #[default]
    Crc32c,
    /// 64 bits, NVME. Parts combine to the checksum of the whole object ("full object").
    Crc64Nvme,
    /// 32 bits, as in zip files: the default of many SDKs. The engine's uploads do not use it.
    Crc32,
}

impl ChecksumAlgorithm {
    /// All algorithms, in the order in which the engine prefers them.
    pub const ALL: [Self; 3] = [Self::Crc64Nvme, Self::Crc32c, Self::Crc32];

    fn params(self) -> CrcAlgorithm {
        match self {
            Self::Crc32c => CrcAlgorithm::Crc32Iscsi,
            Self::Crc64Nvme => CrcAlgorithm::Crc64Nvme,
            Self::Crc32 => CrcAlgorithm::Crc32IsoHdlc,
        }
    }

    /// Name of the header with the value, in lower case.
    pub fn header(self) -> &'static str {
        match self {
            Self::Crc32c => "x-amz-checksum-crc32c",
            Self::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Self::Crc32 => "x-amz-checksum-crc32",
        }
    }

    /// The algorithm's name, in S3's spelling for requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "CRC32C",
            Self::Crc64Nvme => "CRC64NVME",
            Self::Crc32 => "CRC32",
        }
    }
}

/// A finished checksum. CRC32C and CRC32 use the low 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checksum {
    /// The algorithm of the checksum.
    pub algorithm: ChecksumAlgorithm,
    /// The value.
    pub value: u64,
}

impl Checksum {
    /// The checksum of `bytes`.
    pub fn of(algorithm: ChecksumAlgorithm, bytes: &[u8]) -> Self {
        Self { algorithm, value: crc_fast::checksum(algorithm.params(), bytes) }
    }

    /// Base64 of the big-endian value: S3's form in headers and XML.
    pub fn to_base64(self) -> String {
        match self.algorithm {
            ChecksumAlgorithm::Crc32c | ChecksumAlgorithm::Crc32 => {
                STANDARD.encode((self.value as u32).to_be_bytes())
            }
            ChecksumAlgorithm::Crc64Nvme => STANDARD.encode(self.value.to_be_bytes()),
        }
    }

    /// The value of a text from [`Checksum::to_base64`]; `None` for other text, such as a composite.
    pub fn from_base64(algorithm: ChecksumAlgorithm, text: &str) -> Option<Self> {
        let bytes = STANDARD.decode(text).ok()?;
        let value = match algorithm {
            ChecksumAlgorithm::Crc32c | ChecksumAlgorithm::Crc32 => {
                u32::from_be_bytes(bytes.try_into().ok()?).into()
            }
            ChecksumAlgorithm::Crc64Nvme => u64::from_be_bytes(bytes.try_into().ok()?),
        };
        Some(Self { algorithm, value })
    }

    /// The composite of parts' CRC32C that S3 returns for a multipart object: the checksum over the parts' big-endian values, and the
    /// number of parts behind a dash.
    pub fn composite(parts: &[Self]) -> String {
        let mut joined = Vec::with_capacity(parts.len() * 8);
        let algorithm = parts.first().map_or(ChecksumAlgorithm::Crc32c, |p| p.algorithm);
        for part in parts {
            match part.algorithm {
                ChecksumAlgorithm::Crc32c | ChecksumAlgorithm::Crc32 => {
                    joined.extend_from_slice(&(part.value as u32).to_be_bytes());
                }
                ChecksumAlgorithm::Crc64Nvme => joined.extend_from_slice(&part.value.to_be_bytes()),
            }
        }
        format!("{}-{}", Self::of(algorithm, &joined).to_base64(), parts.len())
    }

    /// The checksum of `self`'s bytes followed by `next`'s, which were `next_len` bytes long.
    pub fn combine(self, next: Self, next_len: u64) -> Self {
        let value = crc_fast::checksum_combine(self.algorithm.params(), self.value, next.value, next_len);
        Self { algorithm: self.algorithm, value }
    }
}

/// A checksum being computed.
#[derive(Clone, Debug)]
pub struct Hasher {
    algorithm: ChecksumAlgorithm,
    digest: crc_fast::Digest,
}

impl Hasher {
    /// A hasher that has taken no bytes.
    pub fn new(algorithm: ChecksumAlgorithm) -> Self {
        Self { algorithm, digest: crc_fast::Digest::new(algorithm.params()) }
    }

    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
    }

    /// The checksum of all bytes taken so far.
    pub fn finish(&self) -> Checksum {
        Checksum { algorithm: self.algorithm, value: self.digest.finalize() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_values_of_the_catalogue() {
        assert_eq!(Checksum::of(ChecksumAlgorithm::Crc32c, b"123456789").value, 0xe306_9283);
        assert_eq!(Checksum::of(ChecksumAlgorithm::Crc64Nvme, b"123456789").value, 0xae8b_1486_0a79_9888);
        assert_eq!(Checksum::of(ChecksumAlgorithm::Crc32, b"123456789").value, 0xcbf4_3926);
    }

    #[test]
    fn combining_two_halves_is_the_checksum_of_the_whole() {
        let data: Vec<u8> = (0..100_000u32).map(|i| (i * 31) as u8).collect();
        for algorithm in ChecksumAlgorithm::ALL {
            let (a, b) = data.split_at(12_345);
            let joined = Checksum::of(algorithm, a).combine(Checksum::of(algorithm, b), b.len() as u64);
            assert_eq!(joined, Checksum::of(algorithm, &data));
            let mut hasher = Hasher::new(algorithm);
            data.chunks(777).for_each(|c| hasher.update(c));
            assert_eq!(hasher.finish(), joined);
        }
    }

    #[test]
    fn base64_is_big_endian() {
        let c = Checksum { algorithm: ChecksumAlgorithm::Crc32c, value: 1 };
        assert_eq!(c.to_base64(), "AAAAAQ==");
    }

    #[test]
    fn what_was_encoded_is_decoded_and_nothing_else_is() {
        for algorithm in ChecksumAlgorithm::ALL {
            let sum = Checksum::of(algorithm, b"123456789");
            assert_eq!(Checksum::from_base64(algorithm, &sum.to_base64()), Some(sum));
            let composite = Checksum::composite(&[sum, sum]);
            for other in [composite.as_str(), "", "AAAA", "AAAAAQ", "AAAAAQ==\n", "4waSgw==="] {
                assert_eq!(Checksum::from_base64(algorithm, other), None, "{algorithm:?} {other:?}");
            }
        }
        let of_64_bits = Checksum::of(ChecksumAlgorithm::Crc64Nvme, b"x").to_base64();
        assert_eq!(Checksum::from_base64(ChecksumAlgorithm::Crc32c, &of_64_bits), None);
    }
}
