//! Tests that take gigabytes: only with `MOUNT_S3_LARGE=1`.

use std::fs::File;
use std::time::Duration;

use rustix::fs::statvfs;

use crate::common::{Pattern, Setup, TestMount, hash_file, need, need_large};

const MIB: usize = 1 << 20;

/// 6 GiB through the mount and back: parts, their growing sizes, offsets beyond 32 bits, and no memory that grows with them.
#[test]
fn six_gibibytes_come_back_with_the_same_checksum() {
    const LEN: u64 = (6 << 30) + 12_345;
    if !need_large() {
        return;
    }
    let tmp = statvfs(std::env::temp_dir()).unwrap();
    let free = tmp.f_bavail * tmp.f_frsize;
    if !need(
        &format!("room for the object and its parts in TMPDIR (10 GiB; {} GiB are free)", free >> 30),
        free > 10 << 30,
    ) {
        return;
    }
    let setup = Setup::new(&["--memory-target", "512"]).limit(Duration::from_secs(1200));
    let Some(mount) = TestMount::with(&setup) else { return };
    let mut file = File::create_new(mount.path("large")).unwrap();
    let written = Pattern(9).write_to(&mut file, LEN, MIB).unwrap();
    file.sync_all().unwrap();
    drop(file);
    mount.store().requests().reset();
    let read = hash_file(&mount.path("large"), MIB).unwrap();
    assert_eq!(read, (LEN, written));
    assert!(mount.store().requests().bytes_sent() >= LEN, "it was read from the bucket");
    assert!(mount.peak_rss() <= (512 + 64) << 20, "peak RSS {} MiB", mount.peak_rss() >> 20);
}
