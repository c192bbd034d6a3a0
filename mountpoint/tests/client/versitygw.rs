//! The exam on versitygw, an independent implementation of S3 that is strict on signatures, checksums and conditions.

use mountpoint::s3::StoreKind;
use mountpoint::testing::exam::{Traits, exam};
use testkit::{Versitygw, hostile_keys};

use crate::{ACCESS_KEY, BUCKET, SECRET_KEY, connect};

/// The reason why versitygw refuses a key: keys are paths of a folder there.
fn refuses(key: &str) -> Option<&'static str> {
    if key.split('/').any(|name| matches!(name, "." | "..")) {
        Some("relative paths are refused or name another object")
    } else if key.starts_with('/') || key.contains("//") {
        Some("a path has no empty names")
    } else if key.split('/').any(|name| name.len() > 255) {
        Some("a file name has at most 255 bytes")
    } else if key.ends_with('/') {
        Some("a key that ends in a slash is a folder, which has no bytes")
    } else if key.starts_with(".sgwtmp") {
        Some("its own folder for uploads")
    } else if key.chars().any(
        |c| matches!(c, '\u{1}'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}'..='\u{ffff}'),
    ) {
        Some("its listings ignore encoding-type=url and replace what XML can't say")
    } else if key.contains('\0') {
        Some("a path ends at a NUL")
    } else if key.starts_with("twin") || key.starts_with(".s3server") {
        Some("a file and a folder of one name exclude each other")
    } else {
        None
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_s3_client_passes_on_versitygw() {
    let Some(binary) = Versitygw::binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let gateway = Versitygw::start(&binary, folder.path(), BUCKET, [ACCESS_KEY, SECRET_KEY], None);
    let client = connect(&format!("http://{}", gateway.address())).await;
    assert_eq!(client.store(), StoreKind::Versitygw);
    exam(client, Traits::whole("versitygw").refusing_keys(refuses), &hostile_keys()).await;
}
