//! Goal: a directory that is renamed is whole at every moment, whatever fails and wherever the process is killed, and what another client stored is never
//! lost. Method: each request in turn fails, or its answer is lost, or the rename ends there and the next mount goes on.

use super::*;
use crate::moves::note::tests as notes;

const NAMES: [&str; 5] = ["", "a", "b/c", "b/d", "z"];

fn directories(client: &MemoryClient, notes: Option<NotesConfig>, at_once: usize) -> Mover {
    let config =
        Config { copy_max: 40, part: 10, parts_at_once: 2, at_once, names_max: 6, folder_marks: true, notes };
    Mover::new(client.arc(), config)
}

/// The bytes of an object; that of one is too long for one copy.
fn bytes(name: &str) -> String {
    match name {
        "b/c" => "0123456789".repeat(5),
        name => format!("bytes of {name:?}"),
    }
}

fn fill(client: &MemoryClient) {
    for name in NAMES {
        client.insert(format!("from/{name}"), bytes(name));
    }
    client.insert("from-other", "1");
    client.reset_log();
}

async fn renamed(mover: &Mover) -> Result<Vec<ObjectKey>> {
    let copied = mover.copy_directory(&key("from/"), &key("to/")).await?;
    mover.delete_directory(copied).await
}

/// Each object is whole under one name at least, and no other object is there.
fn check(client: &MemoryClient, what: &str) {
    for name in NAMES {
        let there = [client.object(format!("from/{name}")), client.object(format!("to/{name}"))];
        assert!(there.iter().any(Option::is_some), "{what}: {name:?} is gone");
        assert!(
            there.iter().flatten().all(|there| *there == bytes(name)),
            "{what}: {name:?} has other bytes"
        );
    }
    assert_eq!(client.object("from-other").unwrap(), "1");
}

fn are_below(client: &MemoryClient, prefix: &str) -> usize {
    client.keys().iter().filter(|key| key.starts_with(prefix)).count()
}

#[tokio::test]
async fn a_directory_is_copied_at_once_proven_by_one_listing_and_deleted() {
    let client = bucket();
    let mover = Mover::new(client.arc(), Config::default());
    fill_with(&client, 1500);
    let gate = client.hold(FaultPlan::on(Op::CopyObject).times(64));
    let renames = tokio::spawn({
        let mover = mover.clone();
        async move { renamed(&mover).await }
    });
    gate.arrived(64).await;
    assert_eq!(client.calls(Op::CopyObject), 64);
    gate.release();
    assert!(renames.await.unwrap().unwrap().is_empty());
    assert_eq!((are_below(&client, "from/"), are_below(&client, "to/")), (0, 1500));
    let of = |op| client.calls(op);
    assert_eq!((of(Op::CopyObject), of(Op::DeleteObject), of(Op::HeadObject)), (1500, 1500, 0));
    assert_eq!(of(Op::ListObjects), 2 + 1 + 2, "the old name, whether the new one is free, and the proof");
}

#[tokio::test]
async fn the_pages_that_prove_a_directory_are_asked_for_at_once() {
    let client = bucket();
    let mover = Mover::new(client.arc(), Config::default());
    fill_with(&client, 3500);
    // The pages before are the four of the old name, one behind the other, and the one that shows that the new name is free.
    let gate = client.hold(FaultPlan::on(Op::ListObjects).nth(6).times(4));
    let renames = tokio::spawn(async move { renamed(&mover).await });
    gate.arrived(4).await;
    gate.release();
    assert!(renames.await.unwrap().unwrap().is_empty());
    assert_eq!((are_below(&client, "from/"), are_below(&client, "to/")), (0, 3500));
    assert_eq!((client.calls(Op::ListObjects), client.calls(Op::HeadObject)), (4 + 1 + 4, 0));
}

#[tokio::test]
async fn a_store_that_ignores_where_a_listing_begins_proves_by_one_listing() {
    let client = MemoryClient::with(Settings { ignores_start_after: true, ..Settings::default() });
    let mover = Mover::new(client.arc(), Config::default());
    fill_with(&client, 3500);
    assert!(renamed(&mover).await.unwrap().is_empty());
    assert_eq!((are_below(&client, "from/"), are_below(&client, "to/")), (0, 3500));
    // The old name, whether the new one is free, a page for each bound, of which the first leads to its own end, and the one listing.
    assert_eq!((client.calls(Op::ListObjects), client.calls(Op::HeadObject)), (4 + 1 + 4 + 4, 0));
}

#[tokio::test]
async fn whichever_request_of_a_directory_fails_each_object_has_a_name() {
    let ops = [
        Op::ListObjects,
        Op::HeadObject,
        Op::CopyObject,
        Op::CreateMultipartUpload,
        Op::UploadPartCopy,
        Op::CompleteMultipartUpload,
        Op::AbortMultipartUpload,
        Op::DeleteObject,
    ];
    let mut failed = 0;
    for op in ops {
        for (kind, lost) in [ErrorKind::Denied, ErrorKind::Network, ErrorKind::Unknown]
            .iter()
            .flat_map(|kind| [(kind, false), (kind, true)])
        {
            for nth in 1.. {
                let client = bucket();
                fill(&client);
                let plan = FaultPlan::on(op).nth(nth).fail(kind.clone());
                client.inject(if lost { plan.answer_lost() } else { plan });
                let outcome = renamed(&directories(&client, None, 2)).await;
                let what = format!("{op:?} {nth} {kind:?} lost: {lost}");
                check(&client, &what);
                match &outcome {
                    Ok(stay) => {
                        assert!(stay.is_empty(), "{what}");
                        assert_eq!(
                            (are_below(&client, "from/"), are_below(&client, "to/")),
                            (0, 5),
                            "{what}"
                        );
                    }
                    Err(Error::Partial { .. }) => assert_eq!(are_below(&client, "to/"), 5, "{what}"),
                    Err(_) => assert_eq!(are_below(&client, "from/"), 5, "{what}"),
                }
                failed += usize::from(outcome.is_err());
                if client.calls(op) < nth {
                    break;
                }
            }
        }
    }
    assert!(failed > 60, "only {failed} failed: the faults did not strike");
}

#[tokio::test]
async fn the_next_mount_goes_on_wherever_a_rename_was_killed() {
    let ops = [
        Op::ListObjects,
        Op::HeadObject,
        Op::CopyObject,
        Op::CreateMultipartUpload,
        Op::UploadPartCopy,
        Op::CompleteMultipartUpload,
        Op::DeleteObject,
    ];
    let mut killed = 0;
    for (op, is_done) in ops.iter().flat_map(|op| [(*op, false), (*op, true)]) {
        for nth in 1.. {
            let dir = tempfile::tempdir().unwrap();
            let client = bucket();
            fill(&client);
            let plan = FaultPlan::on(op).nth(nth);
            let gate = if is_done { client.hold_answer(plan) } else { client.hold(plan) };
            let mover = directories(&client, Some(notes::config(dir.path())), 1);
            let mut renames = tokio::spawn(async move { renamed(&mover).await });
            let what = format!("{op:?} {nth} done: {is_done}");
            tokio::select! {
                () = gate.arrived(1) => {}
                outcome = &mut renames => {
                    assert!(outcome.unwrap().unwrap().is_empty(), "{what}");
                    assert!(client.calls(op) < nth, "{what}");
                    break;
                }
            }
            renames.abort();
            let _ = renames.await;
            gate.release();
            check(&client, &what);
            killed += 1;
            let was_begun = client.log().iter().any(|call| call.op == Op::CopyObject);
            notes::kill_owners(dir.path());
            directories(&client, Some(notes::config(dir.path())), 2).go_on().await;
            check(&client, &what);
            let names = (are_below(&client, "from/"), are_below(&client, "to/"));
            assert!(names == (0, 5) || !was_begun && names == (5, 0), "{what}: {names:?}");
            // The store has begun an upload, and the process died before it heard of it: nothing can name that one.
            let unheard = op == Op::CreateMultipartUpload && is_done;
            assert!(unheard || client.pending_uploads().is_empty(), "{what}");
            let left = std::fs::read_dir(dir.path().join("renames")).unwrap().count();
            assert_eq!(left, 0, "{what}: its note has gone");
        }
    }
    assert!(killed > 40, "{killed}");
}

#[tokio::test]
async fn a_rename_in_parts_that_was_killed_leaves_no_upload_behind() {
    for op in [Op::UploadPartCopy, Op::CompleteMultipartUpload, Op::DeleteObject] {
        let dir = tempfile::tempdir().unwrap();
        let client = bucket();
        client.insert("from", bytes("b/c"));
        client.insert("from2", "another");
        let gate = client.hold(FaultPlan::on(op));
        let mover = directories(&client, Some(notes::config(dir.path())), 1);
        let renames = tokio::spawn(async move { moved(&mover, &Replaces::Nothing).await });
        gate.arrived(1).await;
        renames.abort();
        let _ = renames.await;
        gate.release();
        notes::kill_owners(dir.path());
        directories(&client, Some(notes::config(dir.path())), 1).go_on().await;
        assert_eq!(client.pending_uploads(), [], "{op:?}");
        assert_eq!(
            (client.keys(), client.object("to").unwrap()),
            (vec!["from2".to_owned(), "to".to_owned()], bytes("b/c").into())
        );
    }
}

#[tokio::test]
async fn what_another_client_stored_since_a_kill_stays() {
    let dir = tempfile::tempdir().unwrap();
    let client = bucket();
    fill(&client);
    let gate = client.hold(FaultPlan::on(Op::DeleteObject).nth(2));
    let mover = directories(&client, Some(notes::config(dir.path())), 1);
    let renames = tokio::spawn(async move { renamed(&mover).await });
    gate.arrived(1).await;
    renames.abort();
    let _ = renames.await;
    gate.release();
    notes::kill_owners(dir.path());
    client.insert("from/new", "theirs");
    client.insert("from/z", "theirs");
    client.insert("to/a", "theirs");
    client.remove("to/b/d");
    directories(&client, Some(notes::config(dir.path())), 1).go_on().await;
    let object = |name: &str| client.object(name).map(|bytes| String::from_utf8(bytes.to_vec()).unwrap());
    assert_eq!(object("from/new").as_deref(), Some("theirs"), "it came later");
    assert_eq!(object("from/z").as_deref(), Some("theirs"), "it is another version");
    assert_eq!(object("from/a"), Some(bytes("a")), "its copy was replaced: it is the only one");
    assert_eq!(object("from/b/d"), Some(bytes("b/d")), "its copy was removed");
    assert_eq!((object("from/b/c"), object("to/b/c")), (None, Some(bytes("b/c"))));
    assert_eq!(object("to/a").as_deref(), Some("theirs"));
}

#[tokio::test]
async fn a_copy_of_a_killed_process_that_arrives_late_is_known_as_such() {
    for is_theirs in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let client = bucket();
        fill(&client);
        let killed = client.hold(FaultPlan::on(Op::CopyObject));
        let mover = directories(&client, Some(notes::config(dir.path())), 1);
        let renames = tokio::spawn(async move { renamed(&mover).await });
        killed.arrived(1).await;
        renames.abort();
        let _ = renames.await;
        killed.release();
        notes::kill_owners(dir.path());
        let next = client.hold(FaultPlan::on(Op::CopyObject));
        let mover = directories(&client, Some(notes::config(dir.path())), 1);
        let goes_on = tokio::spawn(async move { mover.go_on().await });
        // The new name was listed without the copy.
        next.arrived(1).await;
        client.insert("to/", if is_theirs { "theirs".to_owned() } else { bytes("") });
        next.release();
        goes_on.await.unwrap();
        let names = (are_below(&client, "from/"), are_below(&client, "to/"));
        assert_eq!(names, if is_theirs { (1, 5) } else { (0, 5) });
    }
}

#[tokio::test]
async fn another_client_between_copy_and_delete_loses_nothing() {
    // The other client replaces a source after its copy: the new version stays.
    let client = bucket();
    fill(&client);
    let gate = client.hold(FaultPlan::on(Op::DeleteObject));
    let mover = directories(&client, None, 2);
    let renames = tokio::spawn(async move { renamed(&mover).await });
    gate.arrived(1).await;
    client.insert("from/z", "newer");
    gate.release();
    assert_eq!(renames.await.unwrap().unwrap(), [key("from/z")]);
    assert_eq!(
        (client.object("from/z").unwrap(), client.object("to/z").unwrap()),
        ("newer".into(), bytes("z").into())
    );

    // The other client replaces a copy before the proof: nothing is deleted.
    let client = bucket();
    fill(&client);
    let gate = client.hold(FaultPlan::on(Op::ListObjects).nth(3));
    let mover = directories(&client, None, 2);
    let renames = tokio::spawn(async move { renamed(&mover).await });
    gate.arrived(1).await;
    client.insert("to/z", "theirs");
    gate.release();
    assert!(matches!(renames.await.unwrap(), Err(Error::Taken)));
    assert_eq!(client.object("to/z").unwrap(), "theirs");
    assert_eq!((are_below(&client, "from/"), are_below(&client, "to/")), (5, 1));
}

#[tokio::test]
async fn what_can_not_be_renamed_is_refused_before_the_first_copy() {
    let client = bucket();
    fill(&client);
    let mover = directories(&client, None, 2);
    client.insert("to/theirs", "1");
    assert!(matches!(renamed(&mover).await, Err(Error::NotEmpty)));
    client.remove("to/theirs");
    client.archive("from/z");
    assert!(
        matches!(renamed(&mover).await, Err(Error::Remote(error)) if *error.kind() == ErrorKind::Archived)
    );
    client.insert("from/z", bytes("z"));
    let long = format!("{}/", "x".repeat(1022));
    let copied = mover.copy_directory(&key("from/"), &key(&long)).await;
    assert!(matches!(copied, Err(Error::NameTooLong(_))));
    client.insert("from/6", "1");
    client.insert("from/7", "1");
    assert!(matches!(renamed(&mover).await, Err(Error::TooMany(6))));
    client.remove("from/7");
    let dir = tempfile::tempdir().unwrap();
    let with_notes = directories(&client, Some(notes::config(dir.path())), 2);
    std::fs::remove_dir(dir.path().join("renames")).unwrap();
    assert!(matches!(renamed(&with_notes).await, Err(Error::Note(_))));
    assert_eq!(client.calls(Op::CopyObject), 0);
    // The object that marks a directory may be replaced by the other one's.
    client.insert("to/", "");
    assert!(renamed(&mover).await.unwrap().is_empty());
    assert_eq!((are_below(&client, "from/"), are_below(&client, "to/")), (0, 6));
}
