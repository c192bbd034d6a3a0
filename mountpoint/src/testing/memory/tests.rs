//! Tests of the double's own behaviour; the exam tests the behaviour that it shares with S3.

use crate::s3::Replaces;
use std::time::Duration;

use super::*;
use crate::buffer::{Config, Pool, Use};
use crate::object::ObjectId;

/// The outcome of a GET: success if all bytes came, the bytes, and their number.
async fn get(client: &MemoryClient, key: &str, range: Range<u64>) -> (Result<()>, Vec<u8>, u64) {
    let meta = client.meta(key).unwrap();
    let id = ObjectId::of(key.into(), &meta);
    let pool = Pool::new(&Config::default());
    let received = Arc::new(Mutex::new(Vec::new()));
    let block = pool.try_take(Use::Demand, (range.end - range.start) as usize).unwrap();
    let mut fill = Fill::new([block], {
        let received = Arc::clone(&received);
        move |block| received.lock().extend_from_slice(&block)
    });
    let result = client.get_object(&GetObject { id, range, object_size: meta.size }, &mut fill).await;
    let bytes = received.lock().clone();
    (result, bytes, fill.filled())
}

fn put(key: &str) -> PutObject {
    let object = NewObject::new(key);
    PutObject { object, body: vec![Bytes::from_static(b"new")], checksum: None }
}

#[tokio::test]
async fn the_nth_call_fails_and_is_in_the_log() {
    let client = MemoryClient::new();
    client.inject(FaultPlan::on(Op::HeadObject).nth(2).fail(ErrorKind::Throttled));
    client.insert("a", "1");
    let key = ObjectKey::new("a");
    assert!(client.head_object(&key).await.is_ok());
    assert_eq!(*client.head_object(&key).await.unwrap_err().kind(), ErrorKind::Throttled);
    assert!(client.head_object(&key).await.is_ok());
    assert_eq!(client.calls(Op::HeadObject), 3);
    client.reset_log();
    assert_eq!(client.log(), []);
}

#[tokio::test]
async fn a_broken_body_leaves_its_first_bytes() {
    let client = MemoryClient::new();
    client.insert("a", "0123456789");
    client.inject(FaultPlan::on(Op::GetObject).break_after(3));
    let (result, _, came) = get(&client, "a", 2..8).await;
    assert_eq!(*result.unwrap_err().kind(), ErrorKind::Network);
    assert_eq!(came, 3);
    let (result, bytes, _) = get(&client, "a", 2..8).await;
    result.unwrap();
    assert_eq!(bytes, b"234567");
    assert_eq!(client.log()[0].range, Some(2..8));
}

#[tokio::test]
async fn a_lost_answer_hides_a_put_that_happened() {
    let client = MemoryClient::new();
    client.inject(FaultPlan::on(Op::PutObject).answer_lost());
    assert_eq!(*client.put_object(&put("a")).await.unwrap_err().kind(), ErrorKind::Unknown);
    assert_eq!(client.object("a").unwrap(), "new");
}

async fn gates_order_calls() {
    let client = MemoryClient::new();
    client.insert("a", "old");
    let requests = client.hold(FaultPlan::on(Op::PutObject));
    let answers = client.hold_answer(FaultPlan::on(Op::HeadObject));
    let writer = tokio::spawn({
        let client = client.clone();
        async move { client.put_object(&put("a")).await }
    });
    let reader = tokio::spawn({
        let client = client.clone();
        async move { client.head_object(&"a".into()).await }
    });
    requests.arrived(1).await;
    answers.arrived(1).await;
    let old = client.meta("a").unwrap();
    assert_eq!(client.object("a").unwrap(), "old", "held before its effect");
    requests.release();
    let stored = writer.await.unwrap().unwrap();
    answers.pass_one();
    let seen = reader.await.unwrap().unwrap();
    assert_eq!(seen.etag, old.etag, "the answer was made before the put");
    assert_ne!(seen.etag, stored.etag);
}

#[tokio::test]
async fn gates_order_calls_on_one_thread() {
    gates_order_calls().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gates_order_calls_on_many_threads() {
    gates_order_calls().await;
}

#[tokio::test]
async fn a_delay_passes_on_the_clients_clock() {
    let clock = Clock::manual();
    let client = MemoryClient::with(Settings { clock: clock.clone(), ..Settings::default() });
    client.inject(FaultPlan::on(Op::DeleteObject).delay(Duration::from_secs(9)));
    client.insert("a", "");
    let slow = tokio::spawn({
        let client = client.clone();
        async move { client.delete_object(&"a".into()).await }
    });
    while client.calls(Op::DeleteObject) == 0 {
        tokio::task::yield_now().await;
    }
    assert!(client.object("a").is_some());
    clock.advance(Duration::from_secs(9));
    slow.await.unwrap().unwrap();
    assert!(client.object("a").is_none());
}

#[tokio::test]
async fn an_archived_object_is_listed_and_cannot_be_read() {
    let client = MemoryClient::new();
    client.insert("a", "0123");
    client.archive("a");
    let (result, ..) = get(&client, "a", 0..1).await;
    assert_eq!(*result.unwrap_err().kind(), ErrorKind::Archived);
    let request = ListObjects { max_keys: 9, ..ListObjects::default() };
    assert!(!client.list_objects(&request).await.unwrap().objects[0].meta.readable);
}

#[tokio::test]
async fn a_part_before_the_last_has_a_smallest_size() {
    let client = MemoryClient::new();
    let object = put("a").object;
    let upload = client.create_multipart_upload(&object).await.unwrap();
    let mut parts = Vec::new();
    for part_number in 1..=2 {
        let body = vec![Bytes::from_static(b"small")];
        let request = UploadPart { upload: upload.clone(), part_number, body, checksum: None };
        parts.push(client.upload_part(&request).await.unwrap());
    }
    let request = CompleteUpload { upload, parts, replaces: Replaces::Anything };
    let error = client.complete_multipart_upload(&request).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::InvalidRequest);
    assert_eq!(client.pending_uploads().len(), 1);
}
