//! Parts of long new files that go out before the close: tests of what the close sends, and of what ends the early upload.

use super::*;
use crate::s3::{ErrorKind, PartLimits, Replaces};
use crate::testing::Settings;

/// Two full parts, and a half.
const LEN: usize = 20 * MIB;

fn close_engine(dir: &Path, client: &MemoryClient) -> Engine {
    engine_of(dir, "one", client, (1 << 30, Commit::Close))
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len as u32).map(|n| (n / 7) as u8).collect()
}

/// Writes all bytes in order, as a program does.
fn write(staged: &Arc<Staged>, at: usize, bytes: &[u8]) {
    for (piece, n) in bytes.chunks(MIB).zip(0..) {
        let size = staged.write((at + n * MIB) as u64, piece).unwrap();
        staged.send_ahead(size);
    }
}

/// Returns once the store has this many parts, each of which a call counts.
async fn parts_sent(client: &MemoryClient, parts: usize) {
    while client.calls(Op::UploadPart) < parts {
        tokio::task::yield_now().await;
    }
}

/// A new file whose two full parts went out.
async fn begun(engine: &Engine, client: &MemoryClient, key: &str) -> Arc<Staged> {
    let (staged, before) = (engine.new_file(key), client.calls(Op::UploadPart));
    write(&staged, 0, &bytes(LEN));
    parts_sent(client, before + 2).await;
    staged
}

async fn store(staged: &Arc<Staged>) -> Result<Option<crate::object::ObjectMeta>, Error> {
    let turn = staged.turn().await;
    staged.store(&turn).await
}

/// Number of requests of each kind that make objects.
fn requests(client: &MemoryClient) -> [usize; 4] {
    [Op::CreateMultipartUpload, Op::UploadPart, Op::CompleteMultipartUpload, Op::PutObject]
        .map(|op| client.calls(op))
}

#[tokio::test(flavor = "multi_thread")]
async fn full_parts_go_out_early_and_the_close_sends_the_last_one() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = close_engine(dir.path(), &client);
    let staged = begun(&engine, &client, "long").await;
    assert_eq!(client.object("long"), None, "nothing shows before the close");
    store(&staged).await.unwrap().expect("there was a change");
    assert!(stored(&client, "long") == bytes(LEN));
    assert_eq!(requests(&client), [1, 3, 1, 0]);
    assert!(!staged.is_dirty());
    // Later writes change that object, and go out in the places that changed.
    write(&staged, LEN, &bytes(LEN));
    assert_eq!(client.calls(Op::UploadPart), 3);
    store(&staged).await.unwrap().expect("there was a change");
    assert!(stored(&client, "long") == [bytes(LEN), bytes(LEN)].concat());
    assert!(client.pending_uploads().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_changed_after_it_was_sent_goes_again_under_its_number() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = close_engine(dir.path(), &client);
    let staged = begun(&engine, &client, "long").await;
    let mut expected = bytes(LEN);
    for at in [5, 100] {
        write(&staged, at, b"header");
        expected[at..at + 6].copy_from_slice(b"header");
    }
    store(&staged).await.unwrap().expect("there was a change");
    assert!(stored(&client, "long") == expected);
    assert_eq!(requests(&client), [1, 4, 1, 0]);
    assert!(client.pending_uploads().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_one_part_and_one_with_a_hole_go_out_at_their_close() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = close_engine(dir.path(), &client);
    let short = engine.new_file("short");
    write(&short, 0, &bytes(8 * MIB));
    store(&short).await.unwrap().expect("there was a change");
    assert_eq!(requests(&client), [0, 0, 0, 1]);
    let holed = engine.new_file("holed");
    holed.set_size(LEN as u64).unwrap();
    write(&holed, MIB, &bytes(LEN));
    write(&holed, LEN + MIB, &bytes(LEN));
    holed.send_full_parts().await;
    assert_eq!(requests(&client), [0, 0, 0, 1], "a hole may be filled later");
    store(&holed).await.unwrap().expect("there was a change");
    assert!(stored(&client, "holed") == [vec![0; MIB], bytes(LEN), bytes(LEN)].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_makes_the_early_upload_worthless_ends_it() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = close_engine(dir.path(), &client);
    let ended = async || {
        engine.shared.uploader.aborted().await;
        assert!(client.pending_uploads().is_empty());
    };
    let cut = begun(&engine, &client, "cut").await;
    cut.set_size(9 << 20).unwrap();
    ended().await;
    write(&cut, 9 * MIB, &bytes(LEN));
    store(&cut).await.unwrap().expect("there was a change");
    assert!(stored(&client, "cut") == [&bytes(LEN)[..9 * MIB], &bytes(LEN)].concat());

    let renamed = begun(&engine, &client, "old").await;
    renamed.renamed("new".into(), Replaces::Nothing).unwrap();
    ended().await;
    store(&renamed).await.unwrap().expect("there was a change");
    assert!(stored(&client, "new") == bytes(LEN) && client.object("old").is_none());

    let unlinked = begun(&engine, &client, "unlinked").await;
    unlinked.unlinked().unwrap();
    ended().await;

    let kept = begun(&engine, &client, "kept").await;
    kept.keep("a test").await.unwrap();
    ended().await;

    drop(begun(&engine, &client, "dropped").await);
    while !client.pending_uploads().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(client.keys(), ["cut", "new"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_of_the_early_upload_does_not_fail_the_close() {
    let faults = [
        (Op::CreateMultipartUpload, ErrorKind::Denied),
        (Op::UploadPart, ErrorKind::Denied),
        (Op::UploadPart, ErrorKind::NotFound),
        (Op::CompleteMultipartUpload, ErrorKind::NotFound),
    ];
    for (op, kind) in faults {
        for nth in 1..=if op == Op::UploadPart { 3 } else { 1 } {
            let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
            let engine = close_engine(dir.path(), &client);
            client.inject(FaultPlan::on(op).nth(nth).fail(kind.clone()));
            let staged = engine.new_file("long");
            write(&staged, 0, &bytes(LEN));
            // The early upload meets the fault, or the close does in its last part or request.
            match op {
                Op::CreateMultipartUpload => {
                    while client.calls(op) < 1 {
                        tokio::task::yield_now().await;
                    }
                }
                Op::UploadPart => parts_sent(&client, nth.min(2)).await,
                _ => parts_sent(&client, 2).await,
            }
            store(&staged).await.unwrap().expect("there was a change");
            assert!(stored(&client, "long") == bytes(LEN), "{op:?} {kind:?} {nth}");
            engine.shared.uploader.aborted().await;
            assert!(client.pending_uploads().is_empty(), "{op:?} {kind:?} {nth}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_waits_once_for_a_store_that_is_away() {
    for op in [Op::UploadPart, Op::CompleteMultipartUpload] {
        let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
        let engine = close_engine(dir.path(), &client);
        let staged = begun(&engine, &client, "long").await;
        let going = staged.going().expect("two parts went out");
        going.upload.arrived().await.unwrap();
        for op in [op, Op::CreateMultipartUpload, Op::PutObject] {
            client.inject(FaultPlan::on(op).always().fail(ErrorKind::Timeout));
        }
        let before = requests(&client);
        assert!(matches!(store(&staged).await, Err(Error::Send(_))), "{op:?}");
        let [begun, _, completed, put] = requests(&client);
        assert_eq!([begun, put], [before[0], before[3]], "{op:?}: no second upload begins");
        assert_eq!(completed, usize::from(op == Op::CompleteMultipartUpload));
        assert!(staged.is_dirty() && !staged.is_kept());
        // The next one sends all bytes.
        client.clear_faults();
        store(&staged).await.unwrap().expect("there was a change");
        assert!(stored(&client, "long") == bytes(LEN), "{op:?}");
        engine.shared.uploader.aborted().await;
        assert!(client.pending_uploads().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_clients_version_wins_over_an_early_upload() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = close_engine(dir.path(), &client);
    let new = begun(&engine, &client, "new").await;
    client.insert("new", b"theirs".to_vec());
    assert!(matches!(store(&new).await, Err(Error::Conflict { .. })));
    let etag = client.insert("emptied", b"before".to_vec());
    let emptied = engine.over("emptied", etag, 6);
    emptied.set_size(0).unwrap();
    let before = client.calls(Op::UploadPart);
    write(&emptied, 0, &bytes(LEN));
    parts_sent(&client, before + 2).await;
    client.insert("emptied", b"theirs".to_vec());
    assert!(matches!(store(&emptied).await, Err(Error::Conflict { .. })));
    assert_eq!(
        (stored(&client, "new"), stored(&client, "emptied")),
        (b"theirs".to_vec(), b"theirs".to_vec())
    );
    engine.shared.uploader.aborted().await;
    assert!(client.pending_uploads().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_during_the_last_request_of_an_early_upload_is_not_lost() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = close_engine(dir.path(), &client);
    let staged = begun(&engine, &client, "long").await;
    let gate = client.hold(FaultPlan::on(Op::CompleteMultipartUpload));
    let sender = Arc::clone(&staged);
    let send = tokio::spawn(async move { store(&sender).await });
    gate.arrived(1).await;
    let mut expected = bytes(LEN);
    write(&staged, 7, b"later");
    expected[7..12].copy_from_slice(b"later");
    write(&staged, LEN, &bytes(LEN));
    expected.extend(bytes(LEN));
    gate.release();
    send.await.unwrap().unwrap().expect("there was a change");
    assert!(stored(&client, "long") == bytes(LEN), "the object is of one moment");
    assert!(staged.is_dirty());
    store(&staged).await.unwrap().expect("there was a change");
    assert!(stored(&client, "long") == expected);
}

/// The numbers in the two blocks that a writer changes one after the other.
fn blocks(object: &[u8]) -> (u64, u64) {
    let at = |at: usize| u64::from_le_bytes(object[at..at + 8].try_into().unwrap());
    (at(0), at(9 * MIB))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_an_early_upload_is_of_one_moment() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = close_engine(dir.path(), &client);
    for round in 0..8_u64 {
        let key = format!("{round}");
        let staged = engine.new_file(&key);
        write(&staged, 0, &vec![0; LEN]);
        let (writer, last) = (Arc::clone(&staged), round * 40);
        let writes = tokio::task::spawn_blocking(move || {
            for number in 1..=last {
                for at in [0, 9 << 20] {
                    let size = writer.write(at, &number.to_le_bytes()).unwrap();
                    writer.send_ahead(size);
                    std::thread::yield_now();
                }
            }
        });
        store(&staged).await.unwrap().expect("there was a change");
        let (first, second) = blocks(&stored(&client, &key));
        assert!(first == second || first == second + 1, "{first} {second}");
        writes.await.unwrap();
        store(&staged).await.unwrap();
        assert_eq!(blocks(&stored(&client, &key)), (last, last));
    }
    engine.shared.uploader.aborted().await;
    assert!(client.pending_uploads().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn files_beyond_the_most_early_uploads_go_out_at_their_close() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = close_engine(dir.path(), &client);
    let begin = || engine.shared.uploader.ahead("other".into(), Replaces::Nothing);
    let mut others: Vec<_> = std::iter::from_fn(begin).collect();
    let staged = engine.new_file("long");
    write(&staged, 0, &bytes(LEN));
    store(&staged).await.unwrap().expect("there was a change");
    assert!(stored(&client, "long") == bytes(LEN));
    assert!(begin().is_none());
    others.pop();
    assert!(begin().is_some(), "one that ended makes room for another");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_few_equal_parts_gets_such_parts_early() {
    let parts = PartLimits { parts_max: 3, are_equal: true };
    let client = MemoryClient::with(Settings { parts, ..Settings::default() });
    let dir = tempfile::tempdir().unwrap();
    let engine = close_engine(dir.path(), &client);
    let staged = begun(&engine, &client, "long").await;
    write(&staged, 5, b"header");
    store(&staged).await.unwrap().expect("there was a change");
    let mut expected = bytes(LEN);
    expected[5..11].copy_from_slice(b"header");
    assert!(stored(&client, "long") == expected);
    assert_eq!(requests(&client), [1, 4, 1, 0]);
    let longer = begun(&engine, &client, "too long").await;
    write(&longer, LEN, &bytes(LEN));
    assert!(matches!(store(&longer).await, Err(Error::Send(upload::Error::TooLarge))));
    engine.shared.uploader.aborted().await;
    assert!(client.pending_uploads().is_empty());
}
