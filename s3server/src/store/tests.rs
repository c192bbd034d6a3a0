//! The store over a folder: its lock.

use super::*;

#[test]
fn a_dropped_store_frees_its_folder_though_a_fork_holds_the_lock_open() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    // A fork has another descriptor of the same open file until it executes.
    let of_fork = store._lock.0.try_clone().unwrap();
    assert!(Store::open(folder.path()).is_err(), "it is in use");
    drop(store);
    Store::open(folder.path()).unwrap();
    drop(of_fork);
}
