//! lseek to data or a hole, on a mount with a stage.

use super::full::promising;
use super::renames::{ino, read};
use super::*;
use crate::stage::Commit;

const MIB: u64 = 1 << 20;
/// SEEK_DATA and SEEK_HOLE.
const WHENCES: [u32; 2] = [3, 4];

/// The next data and the next hole from an offset on.
async fn places(fs: &FileSystem, handle: HandleNo, offset: u64) -> [std::result::Result<u64, Errno>; 2] {
    let mut places = [Ok(0); 2];
    for (place, whence) in places.iter_mut().zip(WHENCES) {
        *place = fs.seek(handle, offset, whence).await.map_err(|error| error.errno());
    }
    places
}

async fn release(fs: &FileSystem, handle: HandleNo) {
    if let Some(due) = fs.release(handle).unwrap() {
        fs.finish_released(handle, due).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hole_is_where_nothing_was_written_and_the_buckets_bytes_are_data() {
    let (client, dir, me) = (MemoryClient::new(), tempfile::tempdir().unwrap(), std::process::id());
    client.insert("file", vec![1; MIB as usize]);
    let fs = promising(Commit::Disk, &client, dir.path(), Clock::manual());
    let file = ino(&fs, "file").await.unwrap();
    let reader = fs.open(file, OpenFlags::default(), me).await.unwrap().handle;
    assert_eq!(places(&fs, reader, 5).await, [Ok(5), Ok(MIB)], "outside the stage");
    assert_eq!(places(&fs, reader, MIB).await, [Err(Errno::NXIO); 2]);
    let to_write = OpenFlags { write: true, ..OpenFlags::default() };
    let writer = fs.open(file, to_write, me).await.unwrap().handle;
    fs.write(writer, 3 * MIB, &vec![2; MIB as usize], 0, |written| written.unwrap());
    let wish = SetAttr { size: Some(6 * MIB), handle: Some(writer), ..SetAttr::default() };
    fs.setattr(file, wish).await.unwrap();
    for handle in [reader, writer] {
        for (at, expected) in [
            (5, [Ok(5), Ok(MIB)]),
            (MIB, [Ok(3 * MIB), Ok(MIB)]),
            (3 * MIB + 5, [Ok(3 * MIB + 5), Ok(4 * MIB)]),
            (5 * MIB, [Err(Errno::NXIO), Ok(5 * MIB)]),
            (6 * MIB, [Err(Errno::NXIO); 2]),
            (u64::MAX, [Err(Errno::NXIO); 2]),
        ] {
            assert_eq!(places(&fs, handle, at).await, expected, "from {at}");
        }
    }
    assert_eq!(fs.seek(writer, 0, 7).await.unwrap_err().errno(), Errno::INVAL);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_may_be_mapped_for_writing_is_all_data_until_its_release() {
    let (client, dir, me) = (MemoryClient::new(), tempfile::tempdir().unwrap(), std::process::id());
    let fs = promising(Commit::Disk, &client, dir.path(), Clock::manual());
    let (flags, maker) = (OpenFlags::default(), Maker::default());
    let (made, writer) = fs.create(ROOT, OsStr::new("file"), flags, maker, me).await.unwrap();
    let (file, writer) = (made.attr.ino, writer.handle);
    fs.setattr(file, SetAttr { size: Some(MIB), handle: Some(writer), ..SetAttr::default() }).await.unwrap();
    let is_hole = [Err(Errno::NXIO), Ok(0)];
    assert_eq!(places(&fs, writer, 0).await, is_hole);
    let to_map = OpenFlags { write: true, read: true, ..OpenFlags::default() };
    let mappers = [fs.open(file, to_map, me).await.unwrap(), fs.open(file, to_map, me).await.unwrap()];
    for mapper in mappers {
        assert_eq!(places(&fs, writer, 0).await, [Ok(0), Ok(MIB)], "the kernel may have a page of it");
        release(&fs, mapper.handle).await;
    }
    assert_eq!(places(&fs, writer, 0).await, is_hole);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_punched_hole_is_one_and_takes_no_room_in_the_stage() {
    let (client, dir, me) = (MemoryClient::new(), tempfile::tempdir().unwrap(), std::process::id());
    client.insert("file", vec![1; MIB as usize]);
    let fs = promising(Commit::Disk, &client, dir.path(), Clock::manual());
    let file = ino(&fs, "file").await.unwrap();
    let to_write = OpenFlags { write: true, ..OpenFlags::default() };
    let handle = fs.open(file, to_write, me).await.unwrap().handle;
    fs.write(handle, MIB, &vec![2; 3 * MIB as usize], 0, |written| written.unwrap());
    // FALLOC_FL_PUNCH_HOLE and FALLOC_FL_KEEP_SIZE.
    let punch = |offset, len| fs.fallocate(handle, Fallocate { offset, len, mode: 3 }).unwrap();
    let (start, end) = (MIB / 2, 5 * MIB / 2);
    punch(start, end - start);
    assert_eq!(places(&fs, handle, 0).await, [Ok(0), Ok(start)]);
    assert_eq!(places(&fs, handle, start).await, [Ok(end), Ok(start)]);
    for (at, byte) in [(start - 1, 1_u8), (start, 0), (MIB, 0), (end - 1, 0), (end, 2)] {
        assert_eq!(read(&fs, handle, at, 1).await.unwrap(), [byte], "at {at}");
    }
    // More than the stage takes.
    let wish = SetAttr { size: Some(4 << 30), handle: Some(handle), ..SetAttr::default() };
    fs.setattr(file, wish).await.unwrap();
    punch(4 * MIB, 3 << 30);
    assert!(fs.stage().unwrap().bytes < 8 * MIB);
}
