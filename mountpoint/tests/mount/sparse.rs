//! An object of 5 TiB, the most that S3 keeps: its size, and bytes at places that 32 bits, and the page cache's numbers, don't reach. On the
//! store's disk it is a file of holes.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;

use crate::common::{Pattern, Setup, Store, TestMount, need};

const LEN: u64 = 5 << 40;
const MARK: usize = 100_000;
/// Offsets of bytes that are not zero: at the beginning, about 4 GiB, at 1 TiB, in an odd place, at the end.
const MARKS: [u64; 6] =
    [0, (4 << 30) - 777, 1 << 40, (3 << 40) + 12_345, (5 << 40) - (1 << 30), LEN - MARK as u64];

#[test]
fn a_file_of_5_tib_has_its_size_and_the_right_bytes_at_any_place() {
    let store = Store::new();
    let path = store.bucket_folder().join("huge");
    let file = File::create_new(&path).unwrap();
    if !need("a disk whose files may have 5 TiB", file.set_len(LEN).is_ok()) {
        return;
    }
    for (n, at) in MARKS.into_iter().enumerate() {
        file.write_all_at(&Pattern(n as u64).bytes(0, MARK), at).unwrap();
    }
    drop(file);
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    assert_eq!(fs::metadata(mount.path("huge")).unwrap().len(), LEN);
    let mut huge = File::open(mount.path("huge")).unwrap();
    assert_eq!(huge.seek(SeekFrom::End(0)).unwrap(), LEN);
    for (n, at) in MARKS.into_iter().enumerate() {
        let mut bytes = vec![7; MARK];
        huge.read_exact_at(&mut bytes, at).unwrap();
        assert!(Pattern(n as u64).is(0, &bytes), "at {at}");
    }
    let mut hole = vec![7; 4096];
    huge.read_exact_at(&mut hole, 2 << 40).unwrap();
    assert!(hole.iter().all(|byte| *byte == 0));
    // At the end, and beyond it.
    huge.seek(SeekFrom::Start(LEN - 10)).unwrap();
    let mut rest = Vec::new();
    huge.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len(), 10);
    assert_eq!(huge.read_at(&mut [0; 10], LEN).unwrap(), 0);
}
