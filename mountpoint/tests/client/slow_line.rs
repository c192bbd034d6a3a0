//! Many transfers on one slow line: each moves slowly because the others move, too, and none of them may fail for that.
//!
//! The clocks of this client are short, so that a test takes seconds: alone on the line, each transfer would be done long before its time
//! is up. Together they need longer than that.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mountpoint::buffer::{Fill, Pool, Use};
use mountpoint::object::{ObjectId, ObjectKey};
use mountpoint::s3::{
    Config, Error, GetObject, NewObject, ObjectClient as _, PutObject, S3Client, Timeouts, UploadId,
    UploadPart,
};
use testkit::proxy::{Proxy, Weather};
use testkit::until;
use tokio::task::JoinSet;

use crate::{BUCKET, connect_with};

const KIB: u64 = 1 << 10;
/// Bytes a second of the whole line: eight times the needed rate, so that a busy machine may be eight times as slow.
const LINE: u64 = 4096 * KIB;
const RATE_MIN: u64 = LINE / 8;
/// The size of a part: a part that is sent alone has 7 s.
const PART: u64 = 2560 * KIB;

/// A store behind a slow line.
struct Site {
    // The fields are dropped in this order.
    client: Arc<S3Client>,
    proxy: Proxy,
    _server: s3server::Server,
    _folder: tempfile::TempDir,
}

impl Site {
    async fn new(timeouts: Timeouts) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = s3server::Server::start(s3server::Config::new(folder.path()).bucket(BUCKET)).unwrap();
        let proxy = Proxy::start(server.address());
        let change = |config: &mut Config| (config.timeouts, config.attempts_max) = (timeouts, None);
        let client = connect_with(&proxy.endpoint(), change).await;
        Self { client, proxy, _server: server, _folder: folder }
    }

    /// A site whose client allows each transfer two seconds and the time of its bytes at the least rate.
    async fn hasty() -> Self {
        Self::that_waits(2).await
    }

    /// A site whose client waits for an operation for this number of seconds.
    async fn that_waits(seconds: u64) -> Self {
        let operation = Duration::from_secs(seconds);
        Self::new(Timeouts { operation, rate_min: RATE_MIN, ..Timeouts::default() }).await
    }

    async fn upload(&self) -> UploadId {
        self.client.create_multipart_upload(&object("large")).await.unwrap()
    }
}

fn object(key: &str) -> NewObject {
    NewObject::new(ObjectKey::new(key))
}

fn body(bytes: u64) -> Vec<Bytes> {
    vec![Bytes::from(vec![7; bytes as usize])]
}

fn parts(site: &Site, upload: &UploadId, parts: u32, bytes: u64) -> JoinSet<Result<(), Error>> {
    let mut sending = JoinSet::new();
    for part_number in 1..=parts {
        let part = UploadPart { upload: upload.clone(), part_number, body: body(bytes), checksum: None };
        let client = Arc::clone(&site.client);
        sending.spawn(async move { client.upload_part(&part).await.map(drop) });
    }
    sending
}

/// Asserts that no transfer fails.
async fn all(mut transfers: JoinSet<Result<(), Error>>) {
    while let Some(ended) = transfers.join_next().await {
        ended.unwrap().unwrap_or_else(|error| panic!("{error}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_parts_of_a_large_file_that_share_a_slow_line_are_all_stored() {
    let site = Site::hasty().await;
    let upload = site.upload().await;
    site.proxy.set(Weather::clear().rate(LINE));
    // Each has 7 s, and together they need 10.
    all(parts(&site, &upload, 16, PART)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_becomes_slow_fails_no_part_under_way() {
    let site = Site::hasty().await;
    let upload = site.upload().await;
    site.proxy.set(Weather::clear().rate(4 * LINE));
    let sent = site.proxy.counts().bytes_up;
    let sending = parts(&site, &upload, 16, PART);
    for (share, rate) in [(4, LINE / 2), (2, 2 * LINE)] {
        until("some of it passed", || site.proxy.counts().bytes_up - sent > 16 * PART / share);
        site.proxy.set(Weather::clear().rate(rate));
    }
    all(sending).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_five_small_files_that_share_a_slow_line_are_all_stored() {
    // Each has 8 s, and together they need 16. The proxy takes 128 KiB of each at once: for 1.7 s the store says nothing behind the last byte, and
    // silence may last as long as a call.
    let site = Site::that_waits(5).await;
    site.proxy.set(Weather::clear().rate(LINE));
    let mut sending = JoinSet::new();
    for i in 0..55 {
        let put = PutObject { object: object(&format!("small{i}")), body: body(1200 * KIB), checksum: None };
        let client = Arc::clone(&site.client);
        sending.spawn(async move { client.put_object(&put).await.map(drop) });
    }
    all(sending).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_two_readers_of_a_slow_line_get_all_their_bytes() {
    const PIECE: u64 = 640 * KIB;
    let site = Site::hasty().await;
    let key = ObjectKey::new("read");
    let put = PutObject { object: object("read"), body: body(32 * PIECE), checksum: None };
    let etag = site.client.put_object(&put).await.unwrap().etag;
    site.proxy.set(Weather::clear().rate(LINE));
    let pool = Pool::new(&mountpoint::buffer::Config { target: 128 << 20, network: 0 });
    // Each has 3.25 s, and together they need 5.
    let mut reading = JoinSet::new();
    for i in 0..32 {
        let id = ObjectId::by_etag(key.clone(), etag.clone());
        let get = GetObject { id, range: i * PIECE..(i + 1) * PIECE, object_size: 32 * PIECE };
        let mut into = Fill::new([pool.try_take(Use::Demand, PIECE as usize).unwrap()], drop);
        let client = Arc::clone(&site.client);
        reading.spawn(async move { client.get_object(&get, &mut into).await });
    }
    all(reading).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_waits_in_the_kernel_for_a_slow_line_is_not_silence() {
    let timeouts = Timeouts {
        first_byte: Duration::from_secs(2),
        operation: Duration::from_secs(20),
        ..Timeouts::default()
    };
    let site = Site::new(timeouts).await;
    site.proxy.set(Weather::clear().rate(LINE / 16));
    // Loopback takes megabytes at once, and delivers them in 8 s.
    let put = PutObject { object: object("file"), body: body(2048 * KIB), checksum: None };
    site.client.put_object(&put).await.unwrap();
}
