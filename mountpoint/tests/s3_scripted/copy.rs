//! Copies and deletes with conditions: the requests, and the meaning of refusals, late errors and lost answers.

use mountpoint::object::{ETag, ObjectId, ObjectKey, Second};
use mountpoint::s3::{CopyObject, CopyPart, ErrorKind, ObjectClient as _, Replaces, UploadId};

use super::server::{Step, Then};
use super::{PATIENCE, bench};

const DATE: (&str, &str) = ("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT");
const MD5: &str = "5d41402abc4b2a76b9719d911017c592";

fn copy(replaces: Replaces) -> CopyObject {
    CopyObject {
        source: ObjectId::by_etag(ObjectKey::new("a b/ü"), ETag::new(MD5)),
        size: 5,
        checksum: None,
        to: ObjectKey::new("to"),
        replaces,
        properties: None,
        storage_class: Some("STANDARD_IA".into()),
    }
}

fn copied() -> Step {
    let document = format!("<CopyObjectResult><ETag>&quot;{MD5}&quot;</ETag></CopyObjectResult>");
    Step::answer(200, &[], document.as_bytes())
}

/// The answer of a HEAD about an object of five bytes.
fn head(etag: &str) -> Step {
    Step::answer(200, &[DATE, ("etag", &format!("\"{etag}\"")), ("content-length", "5")], b"")
}

fn missing() -> Step {
    Step::answer(404, &[], b"")
}

#[tokio::test]
async fn a_copy_names_its_source_and_the_version() {
    let bench = bench(vec![copied()]).await;
    let stored = bench.client.copy_object(&copy(Replaces::Anything)).await.unwrap();
    assert!(stored.etag.matches(MD5));
    let request = &bench.asked()[0];
    assert!(request.line.starts_with("PUT /bucket/to HTTP"), "{}", request.line);
    assert_eq!(request.header("x-amz-copy-source"), Some("/bucket/a%20b/%C3%BC"));
    assert_eq!(request.header("x-amz-copy-source-if-match"), Some(&*format!("\"{MD5}\"")));
    assert_eq!(request.header("x-amz-storage-class"), Some("STANDARD_IA"));
    assert_eq!((request.header("if-match"), request.header("if-none-match")), (None, None));
    assert_eq!(request.header("content-length"), Some("0"));
}

#[tokio::test]
async fn a_copy_that_says_200_and_an_error_is_sent_again() {
    let late = Step::answer(200, &[], b"  \n <Error><Code>InternalError</Code></Error>");
    let bench = bench(vec![late, copied()]).await;
    bench.client.copy_object(&copy(Replaces::Anything)).await.unwrap();
    assert_eq!(bench.asked().len(), 2);
    let denied = Step::answer(200, &[], b"<Error><Code>AccessDenied</Code></Error>");
    let bench = super::bench(vec![denied]).await;
    let error = bench.client.copy_object(&copy(Replaces::Anything)).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (&ErrorKind::Denied, Some("AccessDenied")), "{error}");
}

#[tokio::test]
async fn a_copy_whose_answer_is_lost_is_known_by_its_bytes() {
    // The store of no known kind is asked what is there; its answer is lost; and then what is in the way is our own copy.
    let script = |found: Step| {
        vec![missing(), Step::silence(Then::Close), Step::error(412, "PreconditionFailed"), found]
    };
    let bench = bench(script(head(MD5))).await;
    let stored = bench.client.copy_object(&copy(Replaces::Nothing)).await.unwrap();
    assert!(stored.etag.matches(MD5));
    let bench = super::bench(script(head("0cc175b9c0f1b6a831c399e269772661"))).await;
    let error = bench.client.copy_object(&copy(Replaces::Nothing)).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unknown, "nothing tells whether it is ours: {error}");
    let larger = Step::answer(200, &[DATE, ("etag", "\"other\""), ("content-length", "6")], b"");
    let bench = super::bench([script(larger), vec![head(MD5)]].concat()).await;
    let error = bench.client.copy_object(&copy(Replaces::Nothing)).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Exists, "it is another object: {error}");
}

#[tokio::test]
async fn refusals_tell_the_source_from_the_target() {
    let refused = || Step::error(412, "PreconditionFailed");
    for (replaces, script, kind) in [
        (Replaces::Anything, vec![refused(), head("other")], ErrorKind::Changed),
        (Replaces::Anything, vec![Step::error(404, "NoSuchKey"), missing()], ErrorKind::NotFound),
        (Replaces::Nothing, vec![missing(), refused(), head(MD5)], ErrorKind::Exists),
        (Replaces::Nothing, vec![head("there")], ErrorKind::Exists),
        (Replaces::Version(ETag::new("v1")), vec![head("v2")], ErrorKind::Exists),
        (Replaces::Version(ETag::new("v1")), vec![missing()], ErrorKind::Exists),
    ] {
        let asked = script.len();
        let bench = bench(script).await;
        let error = bench.client.copy_object(&copy(replaces.clone())).await.unwrap_err();
        assert_eq!(*error.kind(), kind, "{replaces:?}: {error}");
        assert_eq!(bench.asked().len(), asked, "{replaces:?}");
    }
}

#[tokio::test]
async fn a_part_is_copied_by_its_range() {
    let part = Step::answer(200, &[], b"<CopyPartResult><ETag>\"p\"</ETag></CopyPartResult>");
    let bench = bench(vec![part]).await;
    let request = CopyPart {
        upload: UploadId { key: ObjectKey::new("to"), id: "u/1".into() },
        part_number: 3,
        source: copy(Replaces::Anything).source,
        range: 10..20,
    };
    let part = bench.client.upload_part_copy(&request).await.unwrap();
    assert_eq!((part.part_number, part.size, part.etag), (3, 10, ETag::new("\"p\"")));
    let asked = &bench.asked()[0];
    assert!(asked.line.starts_with("PUT /bucket/to?partNumber=3&uploadId=u%2F1 HTTP"), "{}", asked.line);
    assert_eq!(asked.header("x-amz-copy-source-range"), Some("bytes=10-19"));
}

#[tokio::test]
async fn a_version_is_deleted_only_while_it_is_there() {
    let id = ObjectId::by_etag(ObjectKey::new("k"), ETag::new("v1"));
    for (script, deleted) in [
        (vec![head("v1"), Step::answer(204, &[], b"")], true),
        (vec![head("v2"), head("v2")], false),
        (vec![missing(), missing()], true),
        // The source was replaced between the two requests.
        (vec![head("v1"), Step::error(412, "PreconditionFailed"), head("v2")], false),
        // The answer was lost, and some stores refuse the condition on a key that is gone.
        (
            vec![head("v1"), Step::silence(Then::Close), Step::error(412, "PreconditionFailed"), missing()],
            true,
        ),
    ] {
        let asked = script.len();
        let bench = bench(script).await;
        let outcome = bench.client.delete_version(&id).await;
        match deleted {
            true => outcome.unwrap(),
            false => assert_eq!(*outcome.unwrap_err().kind(), ErrorKind::Changed),
        }
        assert_eq!(bench.asked().len(), asked);
        let delete = bench.asked().into_iter().find(|request| request.line.starts_with("DELETE"));
        assert!(delete.is_none_or(|request| request.header("if-match") == Some("\"v1\"")));
    }
}

#[tokio::test]
async fn a_store_without_copies_is_remembered() {
    let bench = bench(vec![Step::error(501, "NotImplemented")]).await;
    assert!(!bench.client.refuses_copies());
    let error = bench.client.copy_object(&copy(Replaces::Anything)).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(bench.client.refuses_copies());
}

#[tokio::test]
async fn a_copy_that_takes_minutes_is_waited_for_and_sent_once() {
    let document = format!("<CopyObjectResult><ETag>{MD5}</ETag></CopyObjectResult>");
    // Longer each time than other requests are waited for.
    let slow = Step::answer(200, &[], document.as_bytes()).after(2 * PATIENCE);
    let spaces = Step::answer(200, &[], format!("  {document}").as_bytes());
    let spaces = spaces.pause(document.len() + 1, 2 * PATIENCE);
    let bench = bench(vec![slow, spaces]).await;
    for _ in 0..2 {
        bench.client.copy_object(&copy(Replaces::Anything)).await.unwrap();
    }
    assert_eq!(bench.asked().len(), 2, "each was sent once");
}

/// An object of five bytes with this ETag, as it is, stored at this date.
fn odd(etag: &str, date: &str) -> Step {
    Step::answer(200, &[("last-modified", date), ("etag", etag), ("content-length", "5")], b"")
}

#[tokio::test]
async fn a_version_that_no_header_can_name_is_looked_at_before_a_change() {
    let later = "Wed, 21 Oct 2015 07:28:01 GMT";
    for etag in ["W/\"v1\"", "", "\"\""] {
        let id = ObjectId {
            key: ObjectKey::new("k"),
            etag: ETag::new(etag),
            modified: Second::from_epoch(1_445_412_480),
        };
        let of_id = || CopyObject { source: id.clone(), ..copy(Replaces::Anything) };
        let bench = super::bench(vec![odd(etag, DATE.1), copied()]).await;
        bench.client.copy_object(&of_id()).await.unwrap();
        let asked = bench.asked();
        assert!(asked[0].line.starts_with("HEAD /bucket/k "), "{etag}: {}", asked[0].line);
        assert_eq!(asked[1].header("x-amz-copy-source-if-match"), None, "{etag}");
        let bench = super::bench(vec![odd(etag, later)]).await;
        let error = bench.client.copy_object(&of_id()).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Changed, "{etag}: {error}");
        let bench = super::bench(vec![odd(etag, DATE.1), Step::answer(204, &[], b"")]).await;
        bench.client.delete_version(&id).await.unwrap();
        let asked = bench.asked();
        assert!(asked[1].line.starts_with("DELETE "), "{etag}: {}", asked[1].line);
        assert_eq!(asked[1].header("if-match"), None, "{etag}");
        let bench = super::bench(vec![odd("\"v2\"", DATE.1), odd("\"v2\"", DATE.1)]).await;
        let error = bench.client.delete_version(&id).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Changed, "{etag}: {error}");
    }
}
