//! Long files with changes in a part, and files for which the stage has no room: tests of the bytes that are sent, copied and fetched.

use super::*;
use crate::s3::ErrorKind;

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_does_not_fit_into_the_stage_is_sent_from_disk_and_bucket() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let mut expected: Vec<u8> = (0..12 << 20).map(|n: u32| (n / 7) as u8).collect();
    let etag = client.insert("long", expected.clone());
    let engine = engine_with(dir.path(), "one", &client, 1 << 20);
    let staged = engine.over("long", etag, expected.len() as u64);
    let write = |expected: &mut Vec<u8>, at: usize, bytes: &[u8]| {
        staged.write(at as u64, bytes).unwrap();
        expected.resize(expected.len().max(at + bytes.len()), 0);
        expected[at..at + bytes.len()].copy_from_slice(bytes);
    };
    write(&mut expected, 5, b"start");
    write(&mut expected, 7 << 20, &[1; 300_000]);
    write(&mut expected, (12 << 20) + 100, b"behind a hole");
    let turn = staged.turn().await;
    staged.store(&turn).await.unwrap().expect("there was a change");
    assert!(stored(&client, "long") == expected);
    assert!(engine.shared.folder.used() < 1 << 20, "the rest was not fetched into the stage");
    // The new object has the bytes that the local file lacks, for reads, sizes and the next send.
    staged.set_size(11 << 20).unwrap();
    expected.truncate(11 << 20);
    write(&mut expected, 3 << 20, b"again");
    assert!(left(dir.path(), &client).await.0["long"][..1 << 20] == expected[..1 << 20]);
    assert!(read(&staged, 13 << 19, 1 << 20).await.unwrap() == expected[13 << 19..15 << 19]);
    staged.store(&turn).await.unwrap().expect("there was a change");
    assert!(stored(&client, "long") == expected);
    // Another client's version is a conflict, for whichever request meets it.
    client.insert("long", b"theirs".to_vec());
    staged.write(0, b"ours").unwrap();
    assert!(matches!(staged.store(&turn).await, Err(Error::Conflict { .. })));
    assert_eq!(stored(&client, "long"), b"theirs");
    assert!(client.pending_uploads().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_while_the_object_is_replaced_waits_for_the_new_version() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let bytes: Vec<u8> = (0..40 << 20).map(|n: u32| (n / 7) as u8).collect();
    let etag = client.insert("long", bytes.clone());
    let engine = engine_with(dir.path(), "one", &client, 1 << 20);
    let staged = engine.over("long", etag, bytes.len() as u64);
    staged.write(5, b"start").unwrap();
    let gate = client.hold_answer(FaultPlan::on(Op::CompleteMultipartUpload));
    let sender = Arc::clone(&staged);
    let send = tokio::spawn(async move {
        let turn = sender.turn().await;
        sender.store(&turn).await
    });
    gate.arrived(1).await;
    assert!(stored(&client, "long").starts_with(&bytes[..5]), "the version that was opened is gone");
    let (gets, reader) = (client.calls(Op::GetObject), Arc::clone(&staged));
    let reads = tokio::spawn(async move { read(&reader, 3 << 20, 1 << 20).await });
    while client.calls(Op::GetObject) == gets {
        tokio::task::yield_now().await;
    }
    drop(gate);
    assert!(reads.await.unwrap().unwrap() == bytes[3 << 20..4 << 20]);
    send.await.unwrap().unwrap().expect("there was a change");
}

/// A long object, and a staged file over it with changes in ten places. Returns the file and its expected bytes.
fn patched_in_ten_places(engine: &Engine, client: &MemoryClient) -> (Arc<Staged>, Vec<u8>) {
    let mut bytes: Vec<u8> = (0..160 * MIB as u32).map(|n| (n / 7) as u8).collect();
    let etag = client.insert("long", bytes.clone());
    let staged = engine.over("long", etag, bytes.len() as u64);
    for at in (0..10).map(|n| (n * 16 + 5) * MIB + n) {
        staged.write(at as u64, b"patch").unwrap();
        bytes[at..at + 5].copy_from_slice(b"patch");
    }
    client.reset_log();
    (staged, bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patch_sends_little_more_than_what_was_changed() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let (staged, mut expected) = patched_in_ten_places(&engine, &client);
    let turn = staged.turn().await;
    staged.store(&turn).await.unwrap().expect("there was a change");
    assert!(stored(&client, "long") == expected);
    let fetched: u64 =
        client.log().iter().filter_map(|call| call.range.clone()).map(|range| range.end - range.start).sum();
    assert!(fetched <= 64 * MIB as u64, "{} MiB were fetched", fetched / MIB as u64);
    assert_eq!((client.calls(Op::UploadPart), client.calls(Op::UploadPartCopy)), (10, 11));
    assert!(client.log().len() <= 40, "{:#?}", client.log());
    assert_eq!(engine.shared.folder.used(), 50, "what was not changed takes no room");
    // The next send copies the bytes of the last one.
    staged.write(80 * MIB as u64, b"once more").unwrap();
    expected[80 * MIB..80 * MIB + 9].copy_from_slice(b"once more");
    client.reset_log();
    staged.store(&turn).await.unwrap().expect("there was a change");
    assert!(stored(&client, "long") == expected);
    assert_eq!((client.calls(Op::UploadPart), client.calls(Op::UploadPartCopy)), (1, 2));
    // A file that became shorter and longer again shares only the bytes that were never cut off.
    staged.set_size(100 * MIB as u64).unwrap();
    staged.write(110 * MIB as u64, b"behind a hole").unwrap();
    expected.truncate(100 * MIB);
    expected.resize(110 * MIB, 0);
    expected.extend(b"behind a hole");
    staged.store(&turn).await.unwrap().expect("there was a change");
    assert!(stored(&client, "long") == expected);
    assert!(client.pending_uploads().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patch_of_which_any_request_fails_changes_nothing_and_is_sent_again() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let (staged, expected) = patched_in_ten_places(&engine, &client);
    let before = stored(&client, "long");
    let turn = staged.turn().await;
    let ops = [
        (Op::CreateMultipartUpload, 1),
        (Op::UploadPart, 1),
        (Op::UploadPart, 10),
        (Op::UploadPartCopy, 1),
        (Op::UploadPartCopy, 11),
        (Op::CompleteMultipartUpload, 1),
    ];
    for (op, nth) in ops {
        client.inject(FaultPlan::on(op).nth(nth).fail(ErrorKind::ServerError));
        assert!(staged.store(&turn).await.is_err(), "{op:?} {nth}");
        assert!(stored(&client, "long") == before && client.pending_uploads().is_empty(), "{op:?} {nth}");
        client.clear_faults();
    }
    staged.store(&turn).await.unwrap().expect("there was a change");
    assert!(stored(&client, "long") == expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_of_another_client_wins_over_a_patch_at_each_of_its_requests() {
    for op in [Op::UploadPartCopy, Op::CompleteMultipartUpload] {
        let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
        let engine = engine(dir.path(), "one", &client);
        let (staged, _) = patched_in_ten_places(&engine, &client);
        let gate = client.hold(FaultPlan::on(op));
        let sender = Arc::clone(&staged);
        let send = tokio::spawn(async move {
            let turn = sender.turn().await;
            sender.store(&turn).await
        });
        gate.arrived(1).await;
        client.insert("long", b"theirs".to_vec());
        drop(gate);
        assert!(matches!(send.await.unwrap(), Err(Error::Conflict { .. })), "{op:?}");
        assert_eq!(stored(&client, "long"), b"theirs");
        let kept = kept_in(dir.path()).unwrap();
        assert!(kept.len() == 1 && kept[0].is_partial, "{kept:?}");
        assert!(fs::read(&kept[0].file).unwrap()[5 * MIB..].starts_with(b"patch"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_file_that_was_made_here_is_patched_until_it_replaces_another() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let staged = engine.new_file("new");
    let mut expected: Vec<u8> = (0..70 * MIB as u32).map(|n| (n / 7) as u8).collect();
    staged.write(0, &expected).unwrap();
    let turn = staged.turn().await;
    staged.store(&turn).await.unwrap().expect("it is new");
    client.reset_log();
    staged.write(30, b"patch").unwrap();
    expected[30..35].copy_from_slice(b"patch");
    staged.store(&turn).await.unwrap().expect("there was a change");
    assert!(stored(&client, "new") == expected);
    assert_eq!((client.calls(Op::UploadPart), client.calls(Op::GetObject)), (1, 0));
    // The object to replace has other bytes.
    let other = client.insert("other", vec![7; 80 * MIB]);
    staged.renamed("other".into(), crate::s3::Replaces::Version(other)).unwrap();
    staged.write(31, b"PATCH").unwrap();
    expected[31..36].copy_from_slice(b"PATCH");
    client.reset_log();
    staged.store(&turn).await.unwrap().expect("there was a change");
    assert!(stored(&client, "other") == expected);
    assert_eq!(client.calls(Op::UploadPartCopy), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_copies_no_parts_is_sent_the_whole_file() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let (staged, expected) = patched_in_ten_places(&engine, &client);
    client.inject(FaultPlan::on(Op::UploadPartCopy).always().fail(ErrorKind::Unsupported));
    let turn = staged.turn().await;
    staged.store(&turn).await.unwrap().expect("there was a change");
    assert!(stored(&client, "long") == expected && client.pending_uploads().is_empty());
    let copies = client.calls(Op::UploadPartCopy);
    staged.write(0, b"again").unwrap();
    staged.store(&turn).await.unwrap().expect("there was a change");
    assert_eq!(client.calls(Op::UploadPartCopy), copies, "it is not asked again");
    assert!(stored(&client, "long")[5..] == expected[5..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patch_whose_answer_was_lost_is_known_again_by_its_etag() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let etag = client.insert("file", b"0123456789".to_vec());
    let first = engine(dir.path(), "one", &client);
    let staged = first.over("file", etag, 10);
    staged.write(3, b"abc").unwrap();
    let ours = client.insert("file", b"012abc6789".to_vec());
    let image = log::Digest { size: 10, sha256: String::new(), etag: Some(ours.as_str().to_owned()) };
    first.shared.folder.append(&[log::Record::Sending { file: staged.number(), image }]).unwrap();
    let killed = tempfile::tempdir().unwrap();
    copy(dir.path(), killed.path());
    let second = engine(killed.path(), "one", &client);
    let staged = Arc::new(Staged::pending(Arc::clone(&second.shared), second.pending[0].clone()));
    staged.write(9, b"!").unwrap();
    let turn = staged.turn().await;
    staged.store(&turn).await.unwrap().expect("its own version does not conflict");
    assert_eq!(stored(&client, "file"), b"012abc678!");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_file_that_is_only_cut_or_set_to_its_own_size_is_stored() {
    for size in [100 * MIB, 160 * MIB] {
        let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
        let engine = engine(dir.path(), "one", &client);
        let mut bytes: Vec<u8> = (0..160 * MIB as u32).map(|n| (n / 7) as u8).collect();
        let etag = client.insert("long", bytes.clone());
        let staged = engine.over("long", etag, bytes.len() as u64);
        staged.set_size(size as u64).unwrap();
        bytes.truncate(size);
        let turn = staged.turn().await;
        staged.store(&turn).await.unwrap().expect("there was a change");
        assert!(stored(&client, "long") == bytes);
        assert_eq!((client.calls(Op::UploadPart), client.calls(Op::GetObject)), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patched_file_is_read_whatever_date_and_etag_the_last_answer_has() {
    for hides_etags in [false, true] {
        let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
        let engine = engine(dir.path(), "one", &client);
        let (staged, mut expected) = patched_in_ten_places(&engine, &client);
        if hides_etags {
            client.hide_etags();
        }
        let turn = staged.turn().await;
        staged.store(&turn).await.unwrap().expect("there was a change");
        assert!(read(&staged, 3 * MIB as u64, MIB).await.unwrap() == expected[3 * MIB..4 * MIB]);
        staged.write(MIB as u64, b"again").unwrap();
        expected[MIB..MIB + 5].copy_from_slice(b"again");
        staged.store(&turn).await.unwrap().expect("there was a change");
        assert!(stored(&client, "long") == expected);
        // Another client's version has the same size.
        client.insert("long", vec![7; expected.len()]);
        assert!(read(&staged, 9 * MIB as u64, MIB).await.is_err(), "it is not the one that was stored");
        staged.write(2 * MIB as u64, b"once more").unwrap();
        assert!(matches!(staged.store(&turn).await, Err(Error::Conflict { .. })));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_whose_rest_finds_no_room_on_the_disk_is_sent_all_the_same() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let staged = engine.file_over(&client, "file");
    staged.write(3, b"abc").unwrap();
    let turn = staged.turn().await;
    engine.shared.folder.disk().fail(1..2);
    staged.store(&turn).await.unwrap().expect("there was a change");
    assert_eq!(stored(&client, "file"), b"012abc6789");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patch_that_fails_is_aborted_only_after_the_store_has_made_its_copies() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let (staged, expected) = patched_in_ten_places(&engine, &client);
    let before = stored(&client, "long");
    let gate = client.hold_answer(FaultPlan::on(Op::UploadPartCopy).always());
    // After a part that failed, no copy would begin.
    let refusal = client.hold(FaultPlan::on(Op::UploadPart).always().fail(ErrorKind::Denied));
    let sender = Arc::clone(&staged);
    let mut send = tokio::spawn(async move {
        let turn = sender.turn().await;
        sender.store(&turn).await
    });
    gate.arrived(11).await;
    refusal.release();
    // A store goes on with a copy whose client has left: its part would come behind the abort, and stay.
    let early = tokio::time::timeout(std::time::Duration::from_millis(300), &mut send).await;
    assert!(early.is_err(), "aborted beside its copies: {early:?}");
    assert_eq!(client.calls(Op::AbortMultipartUpload), 0);
    drop(gate);
    assert!(send.await.unwrap().is_err());
    assert_eq!(client.calls(Op::AbortMultipartUpload), 1);
    assert!(client.pending_uploads().is_empty() && stored(&client, "long") == before);
    client.clear_faults();
    let turn = staged.turn().await;
    staged.store(&turn).await.unwrap().expect("there was a change");
    assert!(stored(&client, "long") == expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_after_all_other_bytes_were_fetched_outlives_a_kill() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let left = || async { left(dir.path(), &client).await.0 };
    let file = engine.file_over(&client, "file");
    file.write(8, b"AB").unwrap();
    // An unlink or a rename that the store then refuses does so.
    file.make_whole(&file.turn().await).await.unwrap();
    file.write(0, b"--").unwrap();
    assert_eq!(left().await, files([("file", b"--234567AB")]));
    file.set_size(4).unwrap();
    file.set_size(6).unwrap();
    assert_eq!(left().await, files([("file", b"--23\0\0")]));
    file.unlinked().unwrap();
    // A fetch that ended midway, and the file ends there since.
    let cut = engine.file_over(&client, "cut");
    cut.write(9, b"X").unwrap();
    cut.fill(0, b"0123").unwrap();
    cut.set_size(4).unwrap();
    cut.write(1, b"-").unwrap();
    assert_eq!(left().await, files([("cut", b"0-23")]));
}
