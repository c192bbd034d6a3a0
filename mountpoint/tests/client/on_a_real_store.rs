//! The exam on a store that `ci/stores NAME` installs and starts.

use std::sync::Arc;

use mountpoint::clock::Clock;
use mountpoint::metrics::Metrics;
use mountpoint::s3::{self, Credentials};
use mountpoint::testing::exam::{Traits, survey};
use testkit::{RealStore, hostile_keys};

use crate::{ACCESS_KEY, BUCKET, SECRET_KEY, connect};

/// The reason why a store over a folder may refuse a key: most hostile keys are not paths.
fn refuses(key: &str) -> Option<&'static str> {
    let is_plain = key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '/' | '.'));
    let is_path = !key.split('/').any(|name| matches!(name, "" | "." | "..") || name.len() > 255);
    // The last are beside keys below them, or a store's own folder: a file and a folder of one name exclude each other.
    (!is_plain || !is_path || ["twin", ".s3server", ".sgwtmp"].iter().any(|begin| key.starts_with(begin)))
        .then_some("a key that many stores over a folder refuse")
}

/// The promises that a store breaks, as `docs/stores.md` says.
fn broken(name: &str) -> &'static [&'static str] {
    match name {
        // Wrong checksums are taken, conditions of other requests than PutObject are ignored, and a part of an aborted upload is a 500.
        "moto" => &[
            "put_with_a_wrong_checksum_is_refused",
            "a_wrong_part_checksum_is_refused",
            "complete_over_a_version_spares_another",
            "abort_frees_and_twice_is_fine",
            "a_copy_of_another_version_is_refused",
            "ranges_are_copied_into_parts",
        ],
        // Conditions of writes are ignored, checksums are neither taken for parts nor compared, names are in the order of UTF-16, and those of
        // 255 bytes are refused.
        "s3proxy" => &[
            "put_only_if_absent_spares_what_is_there",
            "put_with_a_wrong_checksum_is_refused",
            "put_over_a_version_spares_another",
            "keys_are_in_the_order_of_their_bytes",
            "three_parts_read_back_whole",
            "nothing_is_visible_before_complete",
            "a_wrong_part_checksum_is_refused",
            "complete_only_if_absent_spares_what_is_there",
            "complete_over_a_version_spares_another",
            "complete_replaces_what_is_there",
            "abort_frees_and_twice_is_fine",
            "every_key_is_a_source",
            "every_key_comes_back_as_it_went",
        ],
        _ => &[],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_of_the_environment_breaks_the_promises_that_are_known() {
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
    assert_eq!(survey(client, traits, &hostile_keys()).await, broken(&name), "{name}");
}
