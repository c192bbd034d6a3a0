//! The part of this room that fuzz targets reach: the reader of a sidecar.

use super::format::{SLOT, Slot, block_len, crc32c, decode_header, decode_slot, encode_header, encode_slot};
use super::sector::Sectors;

/// Offset of the texts in a sidecar.
const TEXTS: usize = 32;
/// Offset of their lengths.
const LENGTHS: usize = 24;

/// Corrects the header's checksum, behind the texts whose lengths the header gives, so the reader accepts it. Shorter bytes stay unchanged.
pub fn seal(sidecar: &mut [u8]) {
    let Some(lengths) = sidecar.get(LENGTHS..LENGTHS + 6) else { return };
    let texts: usize =
        lengths.as_chunks::<2>().0.iter().map(|&len| usize::from(u16::from_le_bytes(len))).sum();
    let end = TEXTS + texts;
    if sidecar.len() >= end + 4 {
        let crc = crc32c(&sidecar[..end]);
        sidecar[end..end + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Reads a sidecar to its end and returns the number of sectors that it lists. `None` if the bytes are not a sidecar of ours.
///
/// # Panics
/// The decoded sidecar gives other bytes when it is encoded again, or has sectors behind the object's end.
pub fn sectors(sidecar: &[u8]) -> Option<usize> {
    let header = decode_header(sidecar)?;
    let head = header.slots_at as usize;
    assert_eq!(
        encode_header(&header.identity, header.object_size, header.is_proven),
        sidecar[..head],
        "the header, written again"
    );
    let name = header.identity.name();
    let mut count = 0;
    for (block, slot) in (0..).zip(sidecar[head..].as_chunks::<SLOT>().0) {
        if let Slot::Filled(sums) = decode_slot(&name, block, header.object_size, slot) {
            let len = block_len(header.object_size, u64::from(block));
            assert!(
                Sectors::touching(&(0..len as u64)).contains(sums.present()),
                "sectors behind the object's end"
            );
            assert_eq!(encode_slot(&name, block, &sums, len)[..], slot[..], "a slot, written again");
            count += sums.present().count();
        }
    }
    Some(count)
}
