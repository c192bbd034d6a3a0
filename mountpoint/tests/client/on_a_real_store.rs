//! The exam on a store that `ci/stores NAME` installs and starts.

use std::sync::Arc;

use mountpoint::clock::Clock;
use mountpoint::metrics::Metrics;
use mountpoint::s3::{self, Credentials};
use mountpoint::testing::exam::{Traits, exam};
use testkit::{RealStore, hostile_keys};

use crate::{ACCESS_KEY, BUCKET, SECRET_KEY, connect};

/// The reason why a store over a folder may refuse a key: most hostile keys are not paths.
fn refuses(key: &str) -> Option<&'static str> {
    let is_plain = key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '/' | '.'));
    let is_path = !key.split('/').any(|name| matches!(name, "" | "." | "..") || name.len() > 255);
    (!is_plain || !is_path || key.starts_with("twin"))
        .then_some("a key that many stores over a folder refuse")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_s3_client_passes_on_the_store_of_the_environment() {
    let Some(name) = RealStore::named() else { return };
    let folder = tempfile::tempdir().unwrap();
    let store = RealStore::start(&name, folder.path(), [ACCESS_KEY, SECRET_KEY]);
    let endpoint = format!("http://{}", store.address());
    let config =
        s3::Config { endpoint_url: Some(endpoint.clone()), force_path_style: true, ..s3::Config::default() };
    let admin = s3::Store::new(config, &Clock::machine(), &Arc::new(Metrics::default())).unwrap();
    let keys = Credentials::new(ACCESS_KEY, SECRET_KEY, None, None, "test");
    admin.bucket(BUCKET, "us-east-1", Some(keys)).unwrap().create(None).await.unwrap();
    let client = connect(&endpoint).await;
    let traits = Traits::whole("the store of ci/stores").refusing_keys(refuses);
    exam(client, traits, &hostile_keys()).await;
}
