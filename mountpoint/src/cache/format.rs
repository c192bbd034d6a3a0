//! The format of a sidecar, byte by byte. Pure: this file touches no disk.
//!
//! ```text
//! header   8 magic "MS3CACHE" | u32 version | u32 block size | u64 object size | i64 second of its date, or 0
//!          u16 scope, key, ETag lengths | u16 1 if proven
//!          scope, key, ETag | u32 CRC32C of all before | zeros up to a multiple of 512
//! slots    512 bytes for block 0, 1, 2 ...: 64 times u32 CRC32C of a sector | u64 which sectors are here | u32 length of the
//!          block | u32 mark | zeros | u32 CRC32C of the file's name, the block's index and the 508 bytes before; all zeros: nothing
//!          of the block is here
//! ```
//! Numbers are little-endian. A slot is written in place after its data, and lies in one sector of a disk: whatever a crash leaves
//! (data without slot, slot without data, half a slot) is either not here or has another CRC.

use sha2::{Digest, Sha256};

use super::sector::{SECTORS, Sectors};
use super::sums::Sums;
use super::{BlockIndex, CACHE_BLOCK};
use crate::checksum::{Checksum, ChecksumAlgorithm};
use crate::object::ObjectKey;

/// Bytes of a slot.
pub(super) const SLOT: usize = 512;

/// Longest header with its padding to whole slots, in bytes. The loader's first read is at least as long, so it gets the whole header.
pub(super) const HEADER_MAX: usize = FIXED + 2 * TEXT_MAX + ObjectKey::LEN_MAX + 4 + SLOT;

/// Largest object that is cached, in bytes; larger ones are not cached. The limit keeps block numbers within 32 bits and sidecars, which
/// are sparse, within 32 GiB.
pub(super) const OBJECT_MAX: u64 = 64 << 40;

pub(super) const MAGIC: &[u8; 8] = b"MS3CACHE";
pub(super) const VERSION: u32 = 3;
/// The offset of each of a slot's fields.
const PRESENT: usize = 4 * SECTORS;
const LEN: usize = PRESENT + 8;
const MARKED: usize = LEN + 4;
const CHECK: usize = SLOT - 4;
/// The offset of the lengths of the header's texts, and the bytes before the texts.
pub(super) const LENGTHS: usize = 32;
pub(super) const FIXED: usize = 40;
const TEXT_MAX: usize = 1024;
const MARK: u32 = 0x4b4c_4202;
const _: () = assert!(OBJECT_MAX / CACHE_BLOCK <= u32::MAX as u64);

/// The name of an object version's two files: SHA-256 of scope, key, ETag and date.
pub(super) type Name = [u8; 32];

/// The object version whose blocks a file has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Identity<'a> {
    /// Endpoint and bucket.
    pub(super) scope: &'a str,
    /// The object's key.
    pub(super) key: &'a str,
    /// The object's ETag without quotes, which listings and GETs of some stores spell differently.
    pub(super) etag: &'a str,
    /// Last-Modified in whole seconds since 1970; 0 if the store does not give it. Some stores give different bytes the same ETag.
    pub(super) modified: i64,
}

/// A decoded header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header<'a> {
    /// The object version.
    pub(super) identity: Identity<'a>,
    /// Bytes of the whole object.
    pub(super) object_size: u64,
    /// The offset at which the slots begin, in bytes.
    pub(super) slots_at: u64,
    /// Whether all cached bytes came over TLS, or were compared with the store's checksum.
    pub(super) is_proven: bool,
}

/// A decoded slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Slot {
    /// The block is not cached.
    Empty,
    /// The slot is damaged.
    Broken,
    /// Checksums of the cached sectors. A sector is valid if its bytes have its CRC32C.
    Filled(Sums),
}

impl Identity<'_> {
    /// Whether the identity fits into a header.
    pub(super) fn fits(&self) -> bool {
        self.scope.len() <= TEXT_MAX && self.etag.len() <= TEXT_MAX && self.key.len() <= ObjectKey::LEN_MAX
    }

    /// The name of the version's files.
    pub(super) fn name(&self) -> Name {
        let mut hash = Sha256::new();
        for text in [self.scope, self.key, self.etag] {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        hash.update(self.modified.to_le_bytes());
        hash.finalize().into()
    }
}

/// Length of a block of an object of this size, in bytes; 0 beyond the object's end.
pub(super) fn block_len(object_size: u64, block: BlockIndex) -> usize {
    let start = block.saturating_mul(CACHE_BLOCK);
    object_size.saturating_sub(start).min(CACHE_BLOCK) as usize
}

/// CRC32C of bytes.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    Checksum::of(ChecksumAlgorithm::Crc32c, bytes).value as u32
}

/// The offset of a block's slot in the sidecar.
pub(super) fn slot_at(slots_at: u64, block: u32) -> u64 {
    slots_at + u64::from(block) * SLOT as u64
}

/// Whether later runs may use a version of this scope only after a comparison with the store's checksum. Over plain HTTP, only TCP's own
/// checksum protects the bytes.
pub(super) fn needs_proof(scope: &str) -> bool {
    scope.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http://"))
}

/// Encodes a header. The slots follow it without a gap.
pub(super) fn encode_header(identity: &Identity<'_>, object_size: u64, is_proven: bool) -> Vec<u8> {
    debug_assert!(identity.fits());
    let texts = [identity.scope, identity.key, identity.etag];
    let mut out = Vec::with_capacity(HEADER_MAX);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(CACHE_BLOCK as u32).to_le_bytes());
    out.extend_from_slice(&object_size.to_le_bytes());
    out.extend_from_slice(&identity.modified.to_le_bytes());
    for text in texts {
        out.extend_from_slice(&(text.len() as u16).to_le_bytes());
    }
    out.extend_from_slice(&u16::from(is_proven).to_le_bytes());
    for text in texts {
        out.extend_from_slice(text.as_bytes());
    }
    out.extend_from_slice(&crc32c(&out).to_le_bytes());
    out.resize(out.len().next_multiple_of(SLOT), 0);
    out
}

/// Decodes a header from the first bytes of a sidecar; `None` if the bytes are not a complete header of this format.
pub(super) fn decode_header(bytes: &[u8]) -> Option<Header<'_>> {
    let fixed = bytes.get(..FIXED)?;
    if &fixed[..8] != MAGIC || u32_at(fixed, 8) != VERSION || u32_at(fixed, 12) != CACHE_BLOCK as u32 {
        return None;
    }
    let u64_at = |at| u64::from(u32_at(fixed, at)) | u64::from(u32_at(fixed, at + 4)) << 32;
    let (object_size, modified) = (u64_at(16), u64_at(24).cast_signed());
    let lens = [LENGTHS, LENGTHS + 2, LENGTHS + 4]
        .map(|at| usize::from(u16::from_le_bytes([fixed[at], fixed[at + 1]])));
    let end = FIXED + lens.iter().sum::<usize>();
    let stored = bytes.get(end..end + 4)?;
    let flags = u16::from_le_bytes([fixed[LENGTHS + 6], fixed[LENGTHS + 7]]);
    if u32_at(stored, 0) != crc32c(&bytes[..end]) || object_size > OBJECT_MAX || flags > 1 {
        return None;
    }
    let mut rest = &bytes[FIXED..end];
    let mut text = |len| {
        let (head, tail) = rest.split_at_checked(len)?;
        rest = tail;
        std::str::from_utf8(head).ok()
    };
    let identity = Identity { scope: text(lens[0])?, key: text(lens[1])?, etag: text(lens[2])?, modified };
    let slots_at = (end + 4).next_multiple_of(SLOT);
    let padded = bytes.get(end + 4..slots_at)?.iter().all(|&byte| byte == 0);
    let is_proven = flags == 1;
    (identity.fits() && padded).then_some(Header {
        identity,
        object_size,
        slots_at: slots_at as u64,
        is_proven,
    })
}

/// Encodes a filled slot.
pub(super) fn encode_slot(name: &Name, block: u32, sums: &Sums, len: usize) -> [u8; SLOT] {
    let mut out = [0; SLOT];
    for (n, crc) in sums.each() {
        out[4 * n..4 * n + 4].copy_from_slice(&crc.to_le_bytes());
    }
    out[PRESENT..LEN].copy_from_slice(&sums.present().bits().to_le_bytes());
    out[LEN..MARKED].copy_from_slice(&(len as u32).to_le_bytes());
    out[MARKED..MARKED + 4].copy_from_slice(&MARK.to_le_bytes());
    let check = slot_check(name, block, &out);
    out[CHECK..].copy_from_slice(&check.to_le_bytes());
    out
}

/// Decodes the slot of `block` of an object of this size.
pub(super) fn decode_slot(name: &Name, block: u32, object_size: u64, slot: &[u8; SLOT]) -> Slot {
    if slot == &[0; SLOT] {
        return Slot::Empty;
    }
    let len = block_len(object_size, u64::from(block));
    let present = u64::from(u32_at(slot, PRESENT)) | u64::from(u32_at(slot, PRESENT + 4)) << 32;
    let present = Sectors::from_bits(present);
    let sound = u32_at(slot, CHECK) == slot_check(name, block, slot)
        && u32_at(slot, MARKED) == MARK
        && len > 0
        && u32_at(slot, LEN) == len as u32
        && Sectors::touching(&(0..len as u64)).contains(present)
        && !present.is_empty();
    if sound { Slot::Filled(Sums::new(present, |n| u32_at(slot, 4 * n))) } else { Slot::Broken }
}

fn slot_check(name: &Name, block: u32, slot: &[u8; SLOT]) -> u32 {
    let mut bytes = [0; 36 + CHECK];
    bytes[..32].copy_from_slice(name);
    bytes[32..36].copy_from_slice(&block.to_le_bytes());
    bytes[36..].copy_from_slice(&slot[..CHECK]);
    crc32c(&bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FIRST: Sectors = Sectors::from_bits(1);
    const WHO: Identity<'_> = Identity { scope: "http://s3|b", key: "a/ä\n", etag: "d41d8cd9", modified: 7 };

    #[test]
    fn the_longest_header_fits_what_is_read_at_once() {
        let long = "x".repeat(1024);
        let who = Identity { scope: &long, key: &long, etag: &long, modified: i64::MIN };
        assert!(who.fits());
        let bytes = encode_header(&who, OBJECT_MAX, false);
        assert!(bytes.len() <= HEADER_MAX);
        assert_eq!(decode_header(&bytes).unwrap().identity, who);
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_detected_or_harmless() {
        let bytes = encode_header(&WHO, 12_345, true);
        let whole = decode_header(&bytes).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            if let Some(header) = decode_header(&bad) {
                assert_eq!(header, whole, "bit {bit}");
            }
        }
        for len in 0..bytes.len() {
            assert_eq!(decode_header(&bytes[..len]), None, "cut to {len} bytes");
        }
    }

    #[test]
    fn every_flipped_bit_of_a_slot_is_detected() {
        let name = WHO.name();
        let size = 2 * CACHE_BLOCK + 7;
        let sums = Sums::new(FIRST, |_| 0xdead_beef);
        let slot = encode_slot(&name, 2, &sums, 7);
        assert_eq!(decode_slot(&name, 2, size, &slot), Slot::Filled(sums));
        for bit in 0..SLOT * 8 {
            let mut bad = slot;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_slot(&name, 2, size, &bad), Slot::Broken, "bit {bit}");
        }
        assert_eq!(decode_slot(&name, 2, size, &[0; SLOT]), Slot::Empty);
    }

    #[test]
    fn a_slot_of_another_block_file_or_size_is_not_believed() {
        let name = WHO.name();
        let slot = encode_slot(&name, 2, &Sums::new(FIRST, |_| 1), 7);
        let size = 2 * CACHE_BLOCK + 7;
        assert_eq!(decode_slot(&name, 1, size, &slot), Slot::Broken);
        assert_eq!(decode_slot(&name, 2, size + 1, &slot), Slot::Broken);
        let beyond = encode_slot(&name, 2, &Sums::new(Sectors::from_bits(3), |_| 1), 7);
        assert_eq!(decode_slot(&name, 2, size, &beyond), Slot::Broken, "it has one sector");
        let other = Identity { key: "a/b", ..WHO }.name();
        assert_eq!(decode_slot(&other, 2, size, &slot), Slot::Broken);
    }

    #[test]
    fn only_what_came_over_plain_http_needs_a_proof() {
        for (scope, needs) in [
            ("http://10.0.0.1:9000\nb", true),
            ("HTTP://s3\nb", true),
            ("https://s3\nb", false),
            ("", false),
            ("htt", false),
        ] {
            assert_eq!(needs_proof(scope), needs, "{scope:?}");
        }
    }

    #[test]
    fn names_depend_on_each_part_and_on_where_one_ends() {
        let names = [
            WHO,
            Identity { scope: "http://s3|c", ..WHO },
            Identity { etag: "d41d8cd8", ..WHO },
            Identity { modified: 8, ..WHO },
            Identity { scope: "", key: "ab", etag: "c", modified: 0 },
            Identity { scope: "", key: "a", etag: "bc", modified: 0 },
        ]
        .map(|i| i.name());
        for (i, a) in names.iter().enumerate() {
            assert!(names[..i].iter().all(|b| a != b));
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(scope in ".{0,40}", key in ".{1,200}", etag in ".{0,40}", modified: i64, size in 0..=OBJECT_MAX, proven in any::<bool>()) {
            let who = Identity { scope: &scope, key: &key, etag: &etag, modified };
            let bytes = encode_header(&who, size, proven);
            let header = decode_header(&bytes).unwrap();
            prop_assert_eq!(header.identity, who);
            prop_assert_eq!((header.object_size, header.is_proven), (size, proven));
            prop_assert_eq!(header.slots_at, bytes.len() as u64);
        }

        #[test]
        fn any_bytes_are_decoded_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(decode_header(&bytes), None);
        }
    }
}
