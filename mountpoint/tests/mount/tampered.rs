//! Protection by TLS: the engine notices a bit that flips on the way, and each request goes to the bucket's own host.

use std::fs::{self, File};

use testkit::proxy::{Proxy, Weather};

use crate::common::{BUCKET, Pattern, Setup, Store, TestMount};

const LEN: usize = 12 << 20;

#[test]
fn a_bit_that_flips_under_tls_is_never_read_and_never_stored() {
    let store = Store::new();
    store.plant("read", &Pattern(1).bytes(0, LEN));
    let proxy = Proxy::start(store.front().expect("TLS").address());
    let setup = Setup::new(&[]).env("HTTPS_PROXY", &proxy.endpoint());
    let Some(mount) = TestMount::of(&store, &setup) else { return };
    proxy.set(Weather::clear().flip_answer_byte(400_000));
    let read = fs::read(mount.path("read")).unwrap();
    assert!(read.len() == LEN && Pattern(1).is(0, &read), "wrong bytes");
    proxy.set(Weather::clear().flip_request_byte(400_000));
    let mut file = File::create_new(mount.path("written")).unwrap();
    Pattern(2).write_to(&mut file, LEN as u64, 1 << 20).unwrap();
    file.sync_all().unwrap();
    let stored = store.get("written").unwrap();
    assert!(stored.len() == LEN && Pattern(2).is(0, &stored), "wrong bytes");
    assert_eq!(proxy.counts().bits_flipped, 2);
}

#[test]
fn requests_go_to_the_host_that_begins_with_the_bucket() {
    let store = Store::new();
    store.plant("in", b"1");
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    assert_eq!(fs::read(mount.path("in")).unwrap(), b"1");
    fs::write(mount.path("out"), b"2").unwrap();
    let hosts = store.front().expect("TLS").hosts();
    assert!(
        !hosts.is_empty() && hosts.iter().all(|host| *host == format!("{BUCKET}.s3.test:443")),
        "{hosts:?}"
    );
}
