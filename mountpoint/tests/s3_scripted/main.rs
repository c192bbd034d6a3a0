//! The client against a server that sends exactly the bytes of a script: the faults of real networks and stores. Each test gives the
//! script, makes the calls and checks the requests.

mod connect;
mod copy;
mod encryption;
mod first;
mod get;
mod hedge;
mod names;
mod options;
mod server;
mod stores;
mod upload;
mod weather;

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use mountpoint::buffer::{Fill, Pool, Use};
use mountpoint::metrics::Metrics;
use mountpoint::object::{ETag, ObjectId, ObjectKey};
use mountpoint::s3::{Config, Credentials, GetObject, S3Client, Timeouts};

use server::{EMPTY_LISTING, Scripted, Step};

/// Longest wait of a client for an answer, and within one: as long as only the server's rests last.
const PATIENCE: Duration = Duration::from_secs(2_000);

/// A client with a server of its own, on the server's clock.
struct Bench {
    client: Arc<S3Client>,
    server: Scripted,
    metrics: Arc<Metrics>,
}

/// Far longer each than the clock creeps while a test runs; in their order as by default.
fn timeouts() -> Timeouts {
    Timeouts {
        connect: PATIENCE,
        first_byte: PATIENCE,
        stall: PATIENCE,
        complete: 10 * PATIENCE,
        operation: 10 * PATIENCE,
        idle: 10 * PATIENCE,
        resolve: 10 * PATIENCE,
        ..Timeouts::default()
    }
}

fn config(server: &Scripted) -> Config {
    Config {
        bucket: "bucket".into(),
        region: Some("us-east-1".into()),
        endpoint_url: Some(server.url()),
        credentials: Some(Credentials::new("AKID", "SECRET", None, None, "test")),
        attempts_max: Some(4),
        timeouts: timeouts(),
        ..Config::default()
    }
}

/// A connected client. `script`: the server's steps after the proof of the bucket.
async fn bench(script: Vec<Step>) -> Bench {
    bench_of(Scripted::start([vec![Step::answer(200, &[], EMPTY_LISTING)], script].concat())).await
}

/// A client of this server, whose first step is the proof of the bucket.
async fn bench_of(server: Scripted) -> Bench {
    let metrics = Arc::new(Metrics::default());
    let client = S3Client::connect(config(&server), server.clock(), Arc::clone(&metrics)).await.unwrap();
    Bench { client, server, metrics }
}

impl Bench {
    /// Requests after the proof of the bucket.
    fn asked(&self) -> Vec<server::Request> {
        self.server.requests().split_off(1)
    }
}

/// The bytes of a received body.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<u8>>>);

impl Received {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

fn fill(len: usize) -> (Fill, Received) {
    let pool = Pool::new(&mountpoint::buffer::Config { target: 128 << 20, network: 0 });
    let received = Received::default();
    let into = received.clone();
    let block = pool.try_take(Use::Demand, len).unwrap();
    (Fill::new([block], move |b| into.0.lock().unwrap().extend_from_slice(&b)), received)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 % 251) as u8).collect()
}

fn get_request(range: std::ops::Range<u64>, object_size: u64) -> GetObject {
    let id = ObjectId::by_etag(ObjectKey::new("k"), ETag::new("\"v1\""));
    GetObject { id, range, object_size }
}

fn http_date(at: SystemTime) -> String {
    let seconds = at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
    aws_smithy_types::DateTime::from_secs(seconds).fmt(aws_smithy_types::date_time::Format::HttpDate).unwrap()
}
