//! The part of this room that fuzz targets reach: the reader of a sidecar.

use super::CACHE_BLOCK;
use super::format::{
    FIXED, LENGTHS, MAGIC, SLOT, Slot, VERSION, block_len, crc32c, decode_header, decode_slot, encode_header,
    encode_slot,
};
use super::sector::Sectors;

/// A sidecar whose header begins with these fields and ends with its checksum, if `rest` has the texts that the lengths promise and four
/// more bytes.
pub fn sidecar(object_size: u64, modified: i64, lengths: [u8; 3], flags: u8, rest: &[u8]) -> Vec<u8> {
    let lengths = lengths.map(u16::from);
    let mut sidecar = [
        &MAGIC[..],
        &VERSION.to_le_bytes(),
        &(CACHE_BLOCK as u32).to_le_bytes(),
        &object_size.to_le_bytes(),
        &modified.to_le_bytes(),
    ]
    .concat();
    debug_assert_eq!(sidecar.len(), LENGTHS);
    lengths.iter().for_each(|len| sidecar.extend_from_slice(&len.to_le_bytes()));
    sidecar.extend_from_slice(&u16::from(flags).to_le_bytes());
    sidecar.extend_from_slice(rest);
    let end = FIXED + lengths.iter().map(|&len| usize::from(len)).sum::<usize>();
    if sidecar.len() >= end + 4 {
        let crc = crc32c(&sidecar[..end]);
        sidecar[end..end + 4].copy_from_slice(&crc.to_le_bytes());
    }
    sidecar
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sidecar_for_the_fuzzer_gets_past_the_header() {
        let mut rest = b"scopekeyetag".to_vec();
        rest.resize(3 * SLOT - FIXED, 0);
        assert_eq!(sectors(&sidecar(1 << 20, -1, [5, 3, 4], 1, &rest)), Some(0));
        assert_eq!(sectors(&sidecar(1 << 20, -1, [5, 3, 4], 2, &rest)), None, "an unknown flag");
    }
}
