//! The client against the embedded server: checked signatures, any key, every operation.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mountpoint::buffer::{Fill, Pool, Use};
use mountpoint::checksum::{Checksum, ChecksumAlgorithm};
use mountpoint::clock::Clock;
use mountpoint::metrics::Metrics;
use mountpoint::object::{ObjectId, ObjectKey};
use mountpoint::s3::{
    CompleteUpload, Config, Created, Credentials, Deleted, ErrorKind, GetObject, ListObjects, NewObject,
    ObjectClient as _, PutObject, Replaces, S3Client, Tagging, UploadPart, VersionMarkers,
};
use s3server::{Effect, Fault, Server};
use testkit::hostile_keys;

struct Store {
    client: Arc<S3Client>,
    metrics: Arc<Metrics>,
    server: Server,
    _folder: tempfile::TempDir,
}

fn config(server: &Server) -> Config {
    let shape = s3server::Config::new("unused");
    Config {
        bucket: "bucket".into(),
        region: Some("us-east-1".into()),
        endpoint_url: Some(server.endpoint()),
        credentials: Some(Credentials::new(shape.access_key, shape.secret_key, None, None, "test")),
        ..Config::default()
    }
}

async fn store(change: impl FnOnce(&mut Config)) -> Store {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(s3server::Config::new(folder.path()).bucket("bucket")).unwrap();
    let mut config = config(&server);
    change(&mut config);
    let metrics = Arc::new(Metrics::default());
    let client = S3Client::connect(config, Clock::machine(), Arc::clone(&metrics)).await.unwrap();
    Store { client, metrics, server, _folder: folder }
}

fn new_object(key: &str, checksum: Option<ChecksumAlgorithm>) -> NewObject {
    NewObject { checksum, ..NewObject::new(key) }
}

fn put(key: &str, data: &[u8]) -> PutObject {
    PutObject {
        object: new_object(key, Some(ChecksumAlgorithm::Crc32c)),
        body: data.chunks(1000).map(Bytes::copy_from_slice).collect(),
        checksum: Some(Checksum::of(ChecksumAlgorithm::Crc32c, data)),
    }
}

async fn read(client: &S3Client, key: &str, range: std::ops::Range<u64>) -> Vec<u8> {
    let key = ObjectKey::new(key);
    let meta = client.head_object(&key).await.unwrap();
    let pool = Pool::new(&mountpoint::buffer::Config::default());
    let (send, receive) = std::sync::mpsc::channel();
    let blocks: Vec<_> = range
        .clone()
        .step_by(1 << 20)
        .map(|at| pool.try_take(Use::Demand, (range.end - at).min(1 << 20) as usize).unwrap())
        .collect();
    let mut fill = Fill::new(blocks, move |b| send.send(b).unwrap());
    let id = ObjectId::of(key, &meta);
    client.get_object(&GetObject { id, range, object_size: meta.size }, &mut fill).await.unwrap();
    receive.try_iter().flat_map(|b| b.to_vec()).collect()
}

#[tokio::test]
async fn any_key_is_stored_listed_read_and_removed_under_its_own_name() {
    let store = store(|_| {}).await;
    let mut keys = hostile_keys();
    for key in &keys {
        store.client.put_object(&put(key, key.as_bytes())).await.unwrap();
    }
    let (mut listed, mut request) = (Vec::new(), ListObjects { max_keys: 5, ..ListObjects::default() });
    loop {
        let page = store.client.list_objects(&request).await.unwrap();
        listed.extend(page.objects.iter().map(|o| o.key.as_str().to_owned()));
        request.continuation_token = page.next_token;
        if request.continuation_token.is_none() {
            break;
        }
    }
    keys.sort_unstable();
    assert_eq!(listed, keys);
    for key in &keys {
        assert_eq!(read(&store.client, key, 0..key.len() as u64).await, key.as_bytes());
        store.client.delete_object(&ObjectKey::new(key)).await.unwrap();
        let gone = store.client.head_object(&ObjectKey::new(key)).await.unwrap_err();
        assert_eq!(*gone.kind(), ErrorKind::NotFound);
    }
    // A busy machine may make an answer late: then the request goes out once more, on a connection of its own.
    let most = 2 + store.metrics.s3_hedges.get();
    assert!(store.metrics.s3_connections.get() <= most, "requests in a row share a connection");
    assert_eq!(store.metrics.s3_retries.get(), 0);
}

#[tokio::test]
async fn a_signed_payload_is_accepted_and_a_wrong_checksum_refused() {
    let store = store(|c| c.sign_payload = true).await;
    let data = vec![7; 2_500_000];
    store.client.put_object(&put("k", &data)).await.unwrap();
    assert_eq!(read(&store.client, "k", 1_000_000..2_500_000).await, data[1_000_000..]);
    let mut wrong = put("k", &data);
    wrong.checksum = Some(Checksum { algorithm: ChecksumAlgorithm::Crc32c, value: 1 });
    let refused = store.client.put_object(&wrong).await.unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::Corrupt, "{refused}");
}

#[tokio::test]
async fn parts_become_one_object_whatever_the_checksum() {
    let store = store(|_| {}).await;
    let part = |n: u8| vec![n; 5 << 20];
    for algorithm in [None, Some(ChecksumAlgorithm::Crc32c), Some(ChecksumAlgorithm::Crc64Nvme)] {
        let object = new_object("dir/multi part", algorithm);
        let upload = store.client.create_multipart_upload(&object).await.unwrap();
        let pending = store.client.list_multipart_uploads("dir/").await.unwrap();
        assert_eq!(pending.iter().map(|p| &p.upload).collect::<Vec<_>>(), [&upload]);
        let mut parts = Vec::new();
        for n in 1..=2 {
            let body = part(n);
            let checksum = algorithm.map(|a| Checksum::of(a, &body));
            let request = UploadPart {
                upload: upload.clone(),
                part_number: n.into(),
                body: vec![body.into()],
                checksum,
            };
            parts.push(store.client.upload_part(&request).await.unwrap());
        }
        let complete = CompleteUpload { upload: upload.clone(), parts, replaces: Replaces::Anything };
        store.client.complete_multipart_upload(&complete).await.unwrap();
        let whole = read(&store.client, "dir/multi part", 0..10 << 20).await;
        assert!(whole == [part(1), part(2)].concat());
        store.client.abort_multipart_upload(&upload).await.unwrap();
    }
}

#[tokio::test]
async fn a_wrong_secret_is_denied_and_never_shown() {
    let store = store(|_| {}).await;
    let wrong = Config {
        credentials: Some(Credentials::new(
            s3server::Config::new("unused").access_key,
            "CANARY-SECRET",
            None,
            None,
            "test",
        )),
        ..config(&store.server)
    };
    assert!(!format!("{wrong:?}").contains("CANARY"));
    let metrics = Arc::new(Metrics::default());
    let error = S3Client::connect(wrong, Clock::machine(), metrics).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Denied);
    assert!(!format!("{error} {error:?}").contains("CANARY"));
}

/// An upload of two parts that wait for Complete.
async fn ready_to_complete(client: &S3Client, key: &str) -> CompleteUpload {
    let algorithm = ChecksumAlgorithm::Crc32c;
    let upload = client.create_multipart_upload(&new_object(key, Some(algorithm))).await.unwrap();
    let mut parts = Vec::new();
    for part_number in 1..=2 {
        let body = vec![part_number as u8; if part_number == 1 { 5 << 20 } else { 1 }];
        let checksum = Some(Checksum::of(algorithm, &body));
        let request = UploadPart { upload: upload.clone(), part_number, body: vec![body.into()], checksum };
        parts.push(client.upload_part(&request).await.unwrap());
    }
    CompleteUpload { upload, parts, replaces: Replaces::Anything }
}

/// Runs CompleteMultipartUpload under faults, for a client that waits half a second for an answer (or `complete`). Returns the number of
/// requests. The accepted ETag is that of the object that stays.
async fn completes_under(faults: &[Fault], complete: Duration) -> u64 {
    let store = store(|c| {
        c.timeouts.first_byte = Duration::from_millis(500);
        c.timeouts.complete = complete;
    })
    .await;
    let request = ready_to_complete(&store.client, "k").await;
    let server = &store.server;
    faults.iter().for_each(|fault| server.faults().add(fault.clone()));
    let stored = store.client.complete_multipart_upload(&request).await.unwrap();
    assert_eq!(server.faults().fired(), faults.len() as u64);
    // A Complete that is under way still would make its object now.
    let times = server.requests().count("CompleteMultipartUpload");
    let again = store.client.complete_multipart_upload(&request).await.unwrap();
    let meta = store.client.head_object(&"k".into()).await.unwrap();
    assert_eq!((&stored.etag, &again.etag), (&meta.etag, &meta.etag), "of the object that stays");
    times
}

#[tokio::test]
async fn a_store_that_takes_long_to_join_the_parts_is_asked_once() {
    let slow = Fault::on("CompleteMultipartUpload", Effect::Slow { for_ms: 1500 }).nth(1);
    assert_eq!(completes_under(&[slow], Duration::from_secs(60)).await, 1);
}

#[tokio::test]
async fn an_answer_that_was_lost_is_looked_up_and_nothing_is_sent_again() {
    let lost = Fault::on("CompleteMultipartUpload", Effect::DropAnswer).nth(1);
    assert_eq!(completes_under(&[lost], Duration::from_secs(60)).await, 1);
}

#[tokio::test]
async fn a_gone_upload_is_looked_for_while_its_complete_may_be_at_work() {
    let slow = Fault::on("CompleteMultipartUpload", Effect::Slow { for_ms: 4000 }).nth(1);
    let gone = Effect::Error { status: 404, code: "NoSuchUpload".into() };
    // The store is at work when the client's patience ends, and knows nothing of the upload when it is asked again.
    let gone = Fault::on("CompleteMultipartUpload", gone).nth(2);
    assert_eq!(completes_under(&[slow, gone], Duration::from_millis(700)).await, 2);
}

#[tokio::test]
async fn a_second_complete_takes_the_etag_of_the_object_that_stays() {
    let slow = Fault::on("CompleteMultipartUpload", Effect::Slow { for_ms: 2500 }).nth(1);
    assert!(completes_under(&[slow], Duration::from_millis(700)).await >= 2);
}

#[tokio::test]
async fn a_name_of_white_space_takes_several_parts_as_any_other() {
    let store = store(|_| {}).await;
    for key in [" ", "\t", " / ", "\n\n"] {
        let request = ready_to_complete(&store.client, key).await;
        let pending = store.client.list_multipart_uploads(key).await.unwrap();
        assert_eq!(pending.iter().map(|p| &p.upload).collect::<Vec<_>>(), [&request.upload]);
        store.client.complete_multipart_upload(&request).await.unwrap();
        assert_eq!(store.client.head_object(&key.into()).await.unwrap().size, (5 << 20) + 1, "{key:?}");
        let given_up = ready_to_complete(&store.client, key).await.upload;
        store.client.abort_multipart_upload(&given_up).await.unwrap();
        assert_eq!(store.client.list_multipart_uploads(key).await.unwrap(), []);
    }
}

fn buckets(server: &Server) -> mountpoint::s3::Store {
    mountpoint::s3::Store::new(config(server), &Clock::machine(), &Arc::default()).unwrap()
}

fn keys_of_server() -> Credentials {
    let shape = s3server::Config::new("unused");
    Credentials::new(shape.access_key, shape.secret_key, None, None, "test")
}

#[tokio::test]
async fn a_bucket_is_made_once_tagged_emptied_and_removed() {
    let store = store(|_| {}).await;
    let admin = buckets(&store.server);
    let bucket = admin.bucket("made", "us-east-1", Some(keys_of_server())).unwrap();
    assert_eq!(*bucket.head().await.unwrap_err().kind(), ErrorKind::NoSuchBucket);
    assert_eq!(*bucket.tags().await.unwrap_err().kind(), ErrorKind::NoSuchBucket);
    assert_eq!(bucket.create(Some("eu-west-1")).await.unwrap(), Created::New);
    assert_eq!(bucket.create(None).await.unwrap(), Created::Yours { perhaps_by_us: false });
    bucket.head().await.unwrap();
    assert_eq!(bucket.tags().await.unwrap(), Tagging::Tags([].into()));
    let tags = [("a/b".to_owned(), "c d".to_owned()), ("e".to_owned(), String::new())].into();
    assert!(bucket.set_tags(&tags).await.unwrap());
    assert_eq!(bucket.tags().await.unwrap(), Tagging::Tags(tags));

    let client = S3Client::connect(
        Config { bucket: "made".into(), ..config(&store.server) },
        Clock::machine(),
        Arc::default(),
    );
    let client = client.await.unwrap();
    for key in ["p/a", "p/b c", "p2"] {
        client.put_object(&put(key, b"x")).await.unwrap();
    }
    assert_eq!(bucket.delete().await.unwrap(), Deleted::NotEmpty);
    let page = bucket.versions("p/", &VersionMarkers::default()).await.unwrap();
    assert!(
        page.versions.iter().map(|v| v.key.as_str()).eq(["p/a", "p/b c"]) && page.next.is_none(),
        "{page:?}"
    );
    for version in page.versions {
        bucket.delete_object(&version.key, Some(&version.id)).await.unwrap();
        bucket.delete_object(&version.key, Some(&version.id)).await.unwrap();
    }
    bucket.delete_object(&ObjectKey::new("p2"), None).await.unwrap();
    assert_eq!(bucket.delete().await.unwrap(), Deleted::Gone);
    assert_eq!(bucket.delete().await.unwrap(), Deleted::Gone);
}

#[tokio::test]
async fn answers_about_others_buckets_and_missing_tags_are_not_errors() {
    let folder = tempfile::tempdir().unwrap();
    let mut shape = s3server::Config::new(folder.path()).bucket("bucket");
    shape.bucket_tagging = false;
    let server = Server::start(shape).unwrap();
    let bucket = buckets(&server).bucket("bucket", "us-east-1", Some(keys_of_server())).unwrap();
    assert_eq!(bucket.tags().await.unwrap(), Tagging::Unsupported);
    assert!(!bucket.set_tags(&[("a".to_owned(), "b".to_owned())].into()).await.unwrap());
    let faults = server.faults();
    faults.add(Fault::on("CreateBucket", Effect::Error { status: 409, code: "BucketAlreadyExists".into() }));
    assert_eq!(bucket.create(None).await.unwrap(), Created::Others);
}

/// Goal: a caller can tell a bucket that it made itself, although no answer showed that, from an older one.
#[tokio::test]
async fn a_bucket_whose_answer_was_lost_is_perhaps_by_us() {
    let store = store(|_| {}).await;
    let bucket = buckets(&store.server).bucket("made", "us-east-1", Some(keys_of_server())).unwrap();
    store.server.faults().add(Fault::on("CreateBucket", Effect::DropAnswer).nth(1));
    assert_eq!(bucket.create(None).await.unwrap(), Created::Yours { perhaps_by_us: true });
}
