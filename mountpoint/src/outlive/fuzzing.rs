//! The part of this room that fuzz targets reach: the reader of a journal's slots.

use super::header::Marks;
use super::record::{decode, encode, seal};
use super::restored::Restored;

/// Reads slots at consecutive places and puts the records together, as an engine does that follows another one. Returns the number of
/// valid records. The function corrects the checksums first, so that the reader gets past them.
///
/// # Panics
/// A record differs after it is written again, or a valid record has no parent.
pub fn records(slots: Vec<Vec<u8>>, inodes: u64, handles: u64) -> usize {
    let mut records = Vec::new();
    for (place, mut slot) in slots.into_iter().enumerate() {
        if slot.len() < 16 {
            assert!(decode(&slot, place as u64).is_none(), "there is no head");
            continue;
        }
        let len = u16::try_from(slot.len()).unwrap_or(u16::MAX);
        slot.truncate(len.into());
        slot[4..6].copy_from_slice(&len.to_le_bytes());
        seal(&mut slot, place as u64);
        if let Some((record, store)) = decode(&slot, place as u64) {
            let mut again = encode(&record, store).expect("what was read is sound");
            seal(&mut again, place as u64);
            assert_eq!(decode(&again, place as u64), Some((record.clone(), store)));
            records.push(record);
        }
    }
    let (restored, _) = Restored::of(records.into_iter().collect(), Marks { inodes, handles });
    let mut known = vec![1];
    for directory in &restored.directories {
        assert!(known.contains(&directory.parent) && directory.number < inodes, "{directory:?}");
        known.push(directory.number);
    }
    assert!(restored.files.iter().all(|it| known.contains(&it.parent) && it.handle < handles));
    assert!(restored.listings.iter().all(|it| known.contains(&it.ino) && it.handle < handles));
    restored.directories.len() + restored.files.len() + restored.listings.len()
}
