//! The cost for a user: the number of requests of common operations.

use std::fs;

use crate::common::{Pattern, Setup, Store, TestMount};

const FILES: u64 = 20;
const LEN: usize = 100 << 10;

fn store() -> std::sync::Arc<Store> {
    let store = Store::new();
    for i in 0..FILES {
        store.plant(&format!("files/{i}"), &Pattern(i).bytes(0, LEN));
    }
    store
}

fn read(mount: &TestMount, i: u64) {
    let bytes = fs::read(mount.path(&format!("files/{i}"))).unwrap();
    assert!(bytes.len() == LEN && Pattern(i).is(0, &bytes));
}

#[test]
fn a_cold_small_file_takes_three_requests() {
    let store = store();
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let mut costs: Vec<u64> = (0..FILES)
        .map(|i| {
            store.requests().reset();
            read(&mount, i);
            assert_eq!(store.requests().count("GetObject"), 1);
            store.requests().total()
        })
        .collect();
    costs.sort_unstable();
    // HEAD and LIST for the name, GET for the bytes. The median: on a machine that stands still between a look-up and its
    // open, or for longer than a folder's second, some names are asked for again.
    assert!(costs[costs.len() / 2] <= 3, "{costs:?}");
}

#[test]
fn a_small_file_of_a_listing_takes_one_request_while_names_are_trusted() {
    let store = store();
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--metadata-ttl", "600"])) else { return };
    assert_eq!(fs::read_dir(mount.path("files")).unwrap().count() as u64, FILES);
    store.requests().reset();
    (0..FILES).for_each(|i| read(&mount, i));
    assert_eq!(store.requests().total(), FILES, "{:?}", store.requests().all());
}
