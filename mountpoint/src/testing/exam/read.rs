//! Reads ranges of one version, and never of another.

use futures_util::future::join_all;

use super::Exam;
use crate::buffer::BLOCK;
use crate::object::{ETag, ObjectMeta};
use crate::s3::{Begin, ErrorKind};

pub(super) async fn every_range_reads_its_bytes(exam: &Exam) {
    const LEN: usize = 300_007;
    let (key, bytes) = (exam.key("o"), exam.bytes(1, LEN));
    exam.put(&key, &bytes).await;
    let meta = exam.head(&key).await;
    for range in [0..1, 0..LEN, LEN - 1..LEN, 1..2, 4095..4097, 100_000..LEN, 0..LEN - 1] {
        let got = exam.get(&key, &meta, range.start as u64..range.end as u64).await;
        got.result.unwrap_or_else(|error| panic!("{range:?}: {error}"));
        assert!(got.bytes == bytes[range.clone()], "{range:?} reads other bytes");
    }
}

pub(super) async fn a_range_over_several_blocks_fills_them_in_order(exam: &Exam) {
    let (key, bytes) = (exam.key("o"), exam.bytes(1, 4 * BLOCK));
    exam.put(&key, &bytes).await;
    let meta = exam.head(&key).await;
    let range = 5..3 * BLOCK + 17;
    let got = exam.get(&key, &meta, range.start as u64..range.end as u64).await;
    got.result.expect("get");
    assert!(got.bytes == bytes[range], "other bytes, or in another order");
}

pub(super) async fn a_stale_version_reads_nothing(exam: &Exam) {
    let key = exam.key("o");
    exam.put(&key, &exam.bytes(1, 10_000)).await;
    let old = exam.head(&key).await;
    exam.put(&key, &exam.bytes(2, 10_000)).await;
    let got = exam.get(&key, &old, 0..10_000).await;
    let error = got.result.expect_err("the version is gone");
    assert_eq!(*error.kind(), ErrorKind::Changed, "{error}");
    assert_eq!(got.filled, 0, "not a byte of another version");
    let new = exam.head(&key).await;
    exam.get(&key, &new, 0..10_000).await.result.expect("the new version is there");
}

pub(super) async fn a_wrong_size_reads_nothing(exam: &Exam) {
    let key = exam.key("o");
    exam.put(&key, &exam.bytes(1, 10_000)).await;
    let meta = exam.head(&key).await;
    let larger = ObjectMeta { size: 20_000, ..meta };
    let got = exam.get(&key, &larger, 0..5_000).await;
    let error = got.result.expect_err("that is another object");
    assert_eq!(*error.kind(), ErrorKind::Changed, "{error}");
    assert_eq!(got.filled, 0);
}

pub(super) async fn get_of_a_missing_object_is_not_found(exam: &Exam) {
    let key = exam.key("o");
    exam.put(&key, &exam.bytes(1, 10)).await;
    let meta = exam.head(&key).await;
    exam.client.delete_object(&key).await.expect("delete");
    let got = exam.get(&key, &meta, 0..10).await;
    let error = got.result.expect_err("it is gone");
    assert_eq!(*error.kind(), ErrorKind::NotFound, "{error}");
    assert_eq!(got.filled, 0);
    let never = ObjectMeta { etag: ETag::new("\"0123456789abcdef0123456789abcdef\""), ..meta };
    let error = exam.get(&exam.key("never"), &never, 0..10).await.result.expect_err("it never was");
    assert_eq!(*error.kind(), ErrorKind::NotFound, "{error}");
}

pub(super) async fn first_bytes_come_with_the_metadata_of_their_version(exam: &Exam) {
    const ROOM: usize = 10_000;
    for len in [1, ROOM - 1, ROOM, ROOM + 1, 300_007] {
        let (key, bytes) = (exam.key(&format!("o{len}")), exam.bytes(len as u64, len));
        exam.put(&key, &bytes).await;
        let meta = exam.head(&key).await;
        for etag in [None, Some(meta.etag.clone())] {
            for (begin, from) in [(Begin::At(0), 0), (Begin::Tail, len.saturating_sub(ROOM))] {
                let first = exam.first(&key, etag.clone(), begin, ROOM).await;
                let first = first.unwrap_or_else(|error| panic!("{begin:?} of {len}: {error}"));
                assert_eq!(first.meta, meta, "as a HEAD says");
                let (at, came) = first.bytes.expect("with bytes");
                assert_eq!(at, from as u64, "{begin:?} of {len}");
                assert!(came[..] == bytes[from..len.min(from + ROOM)], "{begin:?} of {len}: other bytes");
            }
        }
    }
}

pub(super) async fn first_bytes_of_another_version_are_refused(exam: &Exam) {
    let key = exam.key("o");
    exam.put(&key, &exam.bytes(1, 10_000)).await;
    let old = exam.head(&key).await;
    exam.put(&key, &exam.bytes(2, 10_000)).await;
    let error = exam.first(&key, Some(old.etag), Begin::At(0), 4096).await.expect_err("the version is gone");
    assert_eq!(*error.kind(), ErrorKind::Changed, "{error}");
    exam.client.delete_object(&key).await.expect("delete");
    let error = exam.first(&key, None, Begin::Tail, 4096).await.expect_err("it is gone");
    assert_eq!(*error.kind(), ErrorKind::NotFound, "{error}");
}

pub(super) async fn an_object_without_bytes_has_metadata_alone(exam: &Exam) {
    let key = exam.key("o");
    exam.put(&key, &exam.bytes(1, 0)).await;
    for begin in [Begin::At(0), Begin::Tail] {
        let first = exam.first(&key, None, begin, 4096).await.expect("it is there");
        assert_eq!((first.meta, first.bytes.is_none()), (exam.head(&key).await, true), "{begin:?}");
    }
}

pub(super) async fn many_requests_at_once_do_not_mix(exam: &Exam) {
    const MANY: u64 = 48;
    join_all((0..MANY).map(|i| async move {
        let (key, bytes) = (exam.key(&format!("o{i}")), exam.bytes(i, 20_000 + i as usize));
        exam.put(&key, &bytes).await;
        exam.assert_object(&key, &bytes).await;
    }))
    .await;
    join_all((0..MANY).map(|i| async move {
        exam.assert_object(&exam.key(&format!("o{i}")), &exam.bytes(i, 20_000 + i as usize)).await;
    }))
    .await;
}
