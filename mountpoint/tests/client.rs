//! The exam of `testing::exam` on every client: in memory, and over HTTP with signatures against `s3server` and versitygw. Then the client on
//! a slow line.

mod client {
    mod on_a_real_store;
    mod slow_line;
    mod versitygw;
}

use std::sync::Arc;

use aws_credential_types::Credentials;
use mountpoint::clock::Clock;
use mountpoint::metrics::Metrics;
use mountpoint::s3::{self, S3Client};
use mountpoint::testing::MemoryClient;
use mountpoint::testing::exam::{Traits, exam};
use testkit::hostile_keys;

const BUCKET: &str = "bucket";
const ACCESS_KEY: &str = "test";
const SECRET_KEY: &str = "testsecret";

/// The engine's client of a bucket on loopback.
async fn connect(endpoint: &str) -> Arc<S3Client> {
    connect_with(endpoint, |_| {}).await
}

/// A client with another configuration.
async fn connect_with(endpoint: &str, change: impl FnOnce(&mut s3::Config)) -> Arc<S3Client> {
    let mut config = s3::Config {
        bucket: BUCKET.to_owned(),
        region: Some("us-east-1".to_owned()),
        endpoint_url: Some(endpoint.to_owned()),
        force_path_style: true,
        credentials: Some(Credentials::new(ACCESS_KEY, SECRET_KEY, None, None, "test")),
        // A request that is refused for its checksum is sent again; the exam asks for that often, and has seen it after the first.
        attempts_max: Some(2),
        ..s3::Config::default()
    };
    change(&mut config);
    let client = S3Client::connect(config, Clock::machine(), Arc::new(Metrics::default())).await;
    client.unwrap_or_else(|error| panic!("connect to {endpoint}: {error}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_client_passes() {
    exam(MemoryClient::new().arc(), Traits::whole("memory"), &hostile_keys()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_s3_client_passes_on_s3server() {
    let folder = tempfile::tempdir().unwrap();
    let config = s3server::Config::new(folder.path()).bucket(BUCKET);
    assert_eq!((config.access_key.as_str(), config.secret_key.as_str()), (ACCESS_KEY, SECRET_KEY));
    let server = s3server::Server::start(config).unwrap();
    exam(connect(&server.endpoint()).await, Traits::whole("s3server"), &hostile_keys()).await;
}
