//! Silence on the way to the store: nothing is closed, nobody says anything, and the clocks of the engine must notice.
//!
//! A proxy stands between mount and server. What it stalls stays so until the test lets go, so no test passes because a server
//! gives up first.

use std::fs::File;
use std::io::Read as _;

use testkit::proxy::{Proxy, Weather};

use crate::common::{Pattern, Setup, Store, TestMount};

const LEN: usize = 24 << 20;

/// A file of [`LEN`] bytes behind a proxy.
fn behind_a_proxy(setup: Setup) -> Option<(Proxy, TestMount)> {
    let store = Store::new();
    store.plant("file", &Pattern(1).bytes(0, LEN));
    let proxy = Proxy::start(store.address());
    let mount = TestMount::of(&store, &setup.through(&proxy))?;
    Some((proxy, mount))
}

#[test]
fn a_read_goes_on_when_every_connection_dies_without_a_word_in_its_middle() {
    let Some((proxy, mount)) = behind_a_proxy(Setup::new(&[])) else { return };
    let mut file = File::open(mount.path("file")).unwrap();
    let mut bytes = vec![0; 1 << 20];
    file.read_exact(&mut bytes).unwrap();
    // Requests are under way, for what is read next.
    let before = proxy.counts().connections;
    proxy.set(Weather::clear().half_open());
    file.read_to_end(&mut bytes).unwrap();
    assert!(bytes.len() == LEN && Pattern(1).is(0, &bytes), "wrong bytes");
    assert!(proxy.counts().connections > before, "it went on over connections that were dead");
}
