//! Goal: an object that is moved is under one key or the other at every moment, and what another client stored is never lost. Method: each
//! request in turn fails, or its answer is lost, or another client comes between.

mod directory;
mod mark;

use std::collections::BTreeMap;

use super::*;
use crate::object::ObjectKey;
use crate::s3::{ErrorKind, NewObject, Properties, PutObject, Replaces};
use crate::testing::{FaultPlan, MemoryClient, Op, Settings};

const BYTES: &[u8] = b"0123456789abcdef-the bytes";

/// Small parts, so that an object of some bytes has several.
fn mover(client: &MemoryClient, copy_max: u64) -> Mover {
    let config = Config { copy_max, part: 10, parts_at_once: 2, ..Config::default() };
    Mover::new(client.arc(), config)
}

fn bucket() -> MemoryClient {
    MemoryClient::with(Settings { part_size_min: 0, ..Settings::default() })
}

/// Puts this many objects below `from/`, by number. Requests count from here on.
fn fill_with(client: &MemoryClient, objects: usize) {
    for number in 0..objects {
        client.insert(format!("from/{number}"), "1");
    }
    client.reset_log();
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(name)
}

async fn put(client: &MemoryClient) -> Properties {
    let properties = Properties {
        content_type: Some("text/plain".into()),
        storage_class: Some("STANDARD_IA".into()),
        user: [("a".to_owned(), "b".to_owned())].into(),
        tags: [("team".to_owned(), "x".to_owned())].into(),
        ..Properties::default()
    };
    let object = NewObject { properties: properties.clone(), ..NewObject::new("from") };
    let request = PutObject { object, body: vec![BYTES.into()], checksum: None };
    client.arc().put_object(&request).await.unwrap();
    client.reset_log();
    properties
}

/// Copy and delete, as a rename does it.
async fn moved(mover: &Mover, replaces: &Replaces) -> Result<Source> {
    let copied = mover.copy(&key("from"), &key("to"), replaces).await?;
    mover.delete_source(&copied).await
}

#[tokio::test]
async fn an_object_is_moved_with_all_that_it_carries() {
    for copy_max in [1000, 5] {
        let client = bucket();
        let properties = put(&client).await;
        assert_eq!(moved(&mover(&client, copy_max), &Replaces::Nothing).await.unwrap(), Source::Deleted);
        assert_eq!(client.keys(), ["to"]);
        assert_eq!(client.object("to").unwrap(), BYTES);
        let told = client.arc().describe_object(&key("to")).await.unwrap();
        let tags = client.arc().object_tags(&key("to")).await.unwrap();
        assert_eq!(Properties { tags, ..told.properties }, properties);
        assert_eq!(client.calls(Op::GetObject), 0, "no byte passes");
        assert_eq!(client.pending_uploads(), []);
    }
}

#[tokio::test]
async fn whichever_request_fails_one_of_the_names_has_the_object() {
    let kinds = [ErrorKind::Denied, ErrorKind::Network, ErrorKind::ServerError, ErrorKind::Unknown];
    let ops = [
        Op::HeadObject,
        Op::CopyObject,
        Op::GetObjectTagging,
        Op::CreateMultipartUpload,
        Op::UploadPartCopy,
        Op::CompleteMultipartUpload,
        Op::AbortMultipartUpload,
        Op::DeleteObject,
    ];
    let mut failed = 0;
    for copy_max in [1000, 5] {
        for (op, nth) in ops.iter().flat_map(|op| (1..=3).map(move |nth| (*op, nth))) {
            for (kind, lost) in kinds.iter().flat_map(|kind| [(kind, false), (kind, true)]) {
                let client = bucket();
                put(&client).await;
                let plan = FaultPlan::on(op).nth(nth).fail(kind.clone());
                client.inject(if lost { plan.answer_lost() } else { plan });
                let outcome = moved(&mover(&client, copy_max), &Replaces::Nothing).await;
                let (from, to) = (client.object("from"), client.object("to"));
                let both = [&from, &to].map(|bytes| bytes.as_ref().is_none_or(|bytes| bytes == BYTES));
                assert!(
                    both == [true, true] && (from.is_some() || to.is_some()),
                    "{op:?} {nth} {kind:?} {lost}"
                );
                match outcome {
                    Ok(source) => assert!(source == Source::Deleted && to.is_some() && from.is_none()),
                    Err(_) => failed += 1,
                }
                let deletes = client.log().iter().any(|call| call.op == Op::DeleteObject);
                assert!(
                    !deletes || to.is_some(),
                    "deleted before it was copied: {op:?} {nth} {kind:?} {lost}"
                );
            }
        }
    }
    assert!(failed > 40, "only {failed} failed: the faults did not strike");
}

#[tokio::test]
async fn a_copy_whose_answer_is_lost_is_known_by_its_bytes() {
    for (copy_max, op) in [(1000, Op::CopyObject), (5, Op::CompleteMultipartUpload)] {
        let lost = || FaultPlan::on(op).fail(ErrorKind::Unknown).answer_lost();
        let client = bucket();
        put(&client).await;
        client.inject(lost());
        assert_eq!(moved(&mover(&client, copy_max), &Replaces::Nothing).await.unwrap(), Source::Deleted);
        assert_eq!((client.keys(), client.object("to").unwrap()), (vec!["to".to_owned()], BYTES.into()));
        assert_eq!(client.calls(Op::GetObject), 0, "no byte passes");
        assert_eq!(client.pending_uploads(), []);

        // Another client replaces the copy at once, with as many other bytes: they do not pass for the copy, and the source stays.
        let client = bucket();
        let properties = put(&client).await;
        client.inject(lost());
        let gate = client.hold_answer(FaultPlan::on(op));
        let mover = super::tests::mover(&client, copy_max);
        let renames = tokio::spawn(async move { moved(&mover, &Replaces::Nothing).await });
        gate.arrived(1).await;
        let theirs = BYTES.to_ascii_uppercase();
        let object = NewObject { properties, ..NewObject::new("to") };
        let request = PutObject { object, body: vec![theirs.clone().into()], checksum: None };
        client.arc().put_object(&request).await.unwrap();
        gate.release();
        assert!(matches!(renames.await.unwrap(), Err(Error::Taken)));
        assert_eq!(client.object("from").unwrap(), BYTES);
        assert_eq!(client.object("to").unwrap(), theirs);
        assert_eq!(client.pending_uploads(), []);
    }
}

#[tokio::test]
async fn what_another_client_stores_meanwhile_is_never_lost() {
    for copy_max in [1000, 5] {
        // The source is replaced before it is copied: the new version is moved.
        let client = bucket();
        put(&client).await;
        let gate = client.hold_answer(FaultPlan::on(Op::HeadObject));
        let mover = mover(&client, copy_max);
        let renames = tokio::spawn({
            let mover = mover.clone();
            async move { moved(&mover, &Replaces::Nothing).await }
        });
        gate.arrived(1).await;
        client.insert("from", "newer bytes");
        gate.release();
        assert_eq!(renames.await.unwrap().unwrap(), Source::Deleted);
        assert_eq!((client.object("from"), client.object("to").unwrap()), (None, "newer bytes".into()));

        // The source is replaced after it was copied: both stay.
        let client = bucket();
        put(&client).await;
        let gate = client.hold(FaultPlan::on(Op::DeleteObject));
        let mover = super::tests::mover(&client, copy_max);
        let renames = tokio::spawn(async move { moved(&mover, &Replaces::Nothing).await });
        gate.arrived(1).await;
        client.insert("from", "newer bytes");
        gate.release();
        assert_eq!(renames.await.unwrap().unwrap(), Source::Replaced);
        assert_eq!(client.object("from").unwrap(), "newer bytes");
        assert_eq!(client.object("to").unwrap(), BYTES);

        // Another client takes the new name.
        let client = bucket();
        put(&client).await;
        client.insert("to", "theirs");
        let mover = super::tests::mover(&client, copy_max);
        assert!(matches!(moved(&mover, &Replaces::Nothing).await, Err(Error::Taken)));
        let older = Replaces::Version(client.meta("from").unwrap().etag);
        assert!(matches!(moved(&mover, &older).await, Err(Error::Taken)));
        assert_eq!(client.object("to").unwrap(), "theirs");
        assert_eq!(client.object("from").unwrap(), BYTES);
        assert_eq!(client.pending_uploads(), []);
        let there = Replaces::Version(client.meta("to").unwrap().etag);
        assert_eq!(moved(&mover, &there).await.unwrap(), Source::Deleted);
        assert_eq!((client.keys(), client.object("to").unwrap()), (vec!["to".to_owned()], BYTES.into()));
    }
}

#[tokio::test]
async fn a_missing_or_archived_source_is_said_so() {
    let client = bucket();
    let mover = mover(&client, 1000);
    assert!(matches!(moved(&mover, &Replaces::Nothing).await, Err(Error::Gone)));
    put(&client).await;
    client.archive("from");
    let error = moved(&mover, &Replaces::Nothing).await.unwrap_err();
    assert!(matches!(error, Error::Remote(error) if *error.kind() == ErrorKind::Archived));
}

#[tokio::test]
async fn a_copy_is_taken_back_only_while_its_source_is_there() {
    let client = bucket();
    put(&client).await;
    let mover = mover(&client, 1000);
    let copied = mover.copy(&key("from"), &key("to"), &Replaces::Nothing).await.unwrap();
    mover.take_back(&copied).await;
    assert_eq!(client.keys(), ["from"]);
    let copied = mover.copy(&key("from"), &key("to"), &Replaces::Nothing).await.unwrap();
    client.insert("from", "newer");
    mover.take_back(&copied).await;
    assert_eq!(client.object("to").unwrap(), BYTES, "the copy is all there is of these bytes");
}

#[tokio::test]
async fn whichever_request_of_a_change_of_metadata_fails_the_bytes_stay() {
    let ops = [
        Op::HeadObject,
        Op::CopyObject,
        Op::CreateMultipartUpload,
        Op::UploadPartCopy,
        Op::CompleteMultipartUpload,
    ];
    let words: BTreeMap<_, _> = [("mode".to_owned(), "33188".to_owned())].into();
    for copy_max in [1000, 5] {
        for (op, lost) in ops.into_iter().map(Some).chain([None]).flat_map(|op| [(op, false), (op, true)]) {
            let client = bucket();
            let properties = put(&client).await;
            let described = client.arc().describe_object(&key("from")).await.unwrap();
            if let Some(op) = op {
                let plan = FaultPlan::on(op).fail(ErrorKind::ServerError);
                client.inject(if lost { plan.answer_lost() } else { plan });
            }
            let restated = mover(&client, copy_max).restate(&key("from"), described, words.clone()).await;
            client.clear_faults();
            assert_eq!(client.object("from").unwrap(), BYTES, "{op:?} {lost}");
            assert_eq!(client.keys(), ["from"]);
            let now = client.arc().describe_object(&key("from")).await.unwrap();
            let tags = client.arc().object_tags(&key("from")).await.unwrap();
            let is_new = now.properties.user == words;
            assert!(is_new || now.properties.user == properties.user, "{op:?} {lost}");
            assert_eq!(
                Properties { tags, user: BTreeMap::new(), ..now.properties },
                Properties { user: BTreeMap::new(), ..properties }
            );
            match restated {
                Ok(restated) => assert!(is_new && restated.id == ObjectId::of(key("from"), &now.meta)),
                Err(_) => assert!(op.is_some(), "nothing failed"),
            }
        }
    }
}

#[tokio::test]
async fn a_change_of_metadata_spares_another_clients_version() {
    let client = bucket();
    put(&client).await;
    let described = client.arc().describe_object(&key("from")).await.unwrap();
    client.insert("from", "another");
    let words = [("mode".to_owned(), "33188".to_owned())].into();
    let error = mover(&client, 1000).restate(&key("from"), described.clone(), words).await.unwrap_err();
    assert!(matches!(error, Error::Changing), "{error}");
    assert_eq!(client.object("from").unwrap(), "another");
    client.remove("from");
    let error = mover(&client, 1000).restate(&key("from"), described, BTreeMap::new()).await.unwrap_err();
    assert!(matches!(error, Error::Changing), "{error}");
    assert_eq!(client.keys(), [""; 0]);
}
