//! What a user pays for: how many requests everyday things take.

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

fn read_all(mount: &TestMount) {
    for i in 0..FILES {
        let bytes = fs::read(mount.path(&format!("files/{i}"))).unwrap();
        assert!(bytes.len() == LEN && Pattern(i).is(0, &bytes));
    }
}

#[test]
fn a_cold_small_file_takes_three_requests() {
    let store = store();
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    fs::metadata(mount.path("files")).unwrap();
    store.requests().reset();
    read_all(&mount);
    let (gets, total) = (store.requests().count("GetObject"), store.requests().total());
    assert_eq!(gets, FILES, "one GET each");
    // HEAD and LIST for the name, GET for the bytes; a busy machine may have to ask for a name twice, or for the folder.
    assert!(
        total <= 3 * FILES + FILES / 2,
        "{total} requests for {FILES} files: {:?}",
        store.requests().all()
    );
}

#[test]
fn a_small_file_of_a_listing_takes_one_request_while_names_are_trusted() {
    let store = store();
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--metadata-ttl", "600"])) else { return };
    assert_eq!(fs::read_dir(mount.path("files")).unwrap().count() as u64, FILES);
    store.requests().reset();
    read_all(&mount);
    assert_eq!(store.requests().total(), FILES, "{:?}", store.requests().all());
}
