//! Notifications to a service manager: the mount is ready, or the reason of its failure.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::ready::{Engine, LIMIT, has_fuse};
use crate::common::{Setup, Store, command, is_mounted};

/// A service manager's socket, and an engine of its making.
fn notified(store: &Store, dir: &Path, bucket: &str) -> (Child, UnixDatagram, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let setup = Setup { bucket: bucket.to_owned(), ..Setup::new(&[]) };
    let mut engine = command(store, dir, &setup);
    engine.env("NOTIFY_SOCKET", &path).stdout(Stdio::null()).stderr(Stdio::null());
    (engine.spawn().unwrap(), socket, folder)
}

fn word(socket: &UnixDatagram) -> String {
    let mut words = [0; 4096];
    let len = socket.recv(&mut words).unwrap();
    String::from_utf8(words[..len].to_vec()).unwrap()
}

#[test]
fn a_service_manager_hears_of_readiness_and_restarts_over_the_dead_mount() {
    if !has_fuse() {
        return;
    }
    let (store, dir) = (Store::new(), tempfile::tempdir().unwrap());
    store.plant("file", b"1");
    let mut engines = Vec::new();
    for crashes in [true, false] {
        let (child, socket, _folder) = notified(&store, dir.path(), Setup::new(&[]).bucket.as_str());
        let mut engine = Engine::of(child, dir.path());
        assert_eq!(word(&socket), "READY=1\nSTATUS=mounted\n");
        assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"1");
        if crashes {
            engine.child.kill().unwrap();
            engine.wait();
        }
        engines.push(engine);
    }
    // Unmounts both mounts.
    let flags = rustix::mount::UnmountFlags::DETACH;
    rustix::mount::unmount(dir.path(), flags).unwrap();
    rustix::mount::unmount(dir.path(), flags).unwrap();
    assert_eq!(engines.pop().unwrap().wait().code(), Some(0));
}

#[test]
fn a_new_engine_over_a_dead_mount_behind_a_link_ends_by_a_signal() {
    if !has_fuse() {
        return;
    }
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let (dir, link) = (folder.path().join("dir"), folder.path().join("link"));
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink("dir", &link).unwrap();
    store.plant("file", b"1");
    let bucket = Setup::new(&[]).bucket;
    let (child, socket, _folder) = notified(&store, &link, &bucket);
    let mut dead = Engine::of(child, &dir);
    assert_eq!(word(&socket), "READY=1\nSTATUS=mounted\n");
    dead.child.kill().unwrap();
    dead.wait();
    let (child, socket, _folder) = notified(&store, &link, &bucket);
    let mut engine = Engine::of(child, &dir);
    assert_eq!(word(&socket), "READY=1\nSTATUS=mounted\n");
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"1");
    kill_process(Pid::from_child(&engine.child), Signal::TERM).unwrap();
    assert_eq!(engine.wait().code(), Some(0));
    // The dead one is left: it is another engine's.
    assert!(is_mounted(&dir));
    rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert!(!is_mounted(&dir));
}

#[test]
fn a_mount_below_a_directory_that_was_renamed_ends_by_a_signal() {
    if !has_fuse() {
        return;
    }
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let [before, after] = ["before", "after"].map(|name| folder.path().join(name));
    let (dir, moved) = (before.join("mnt"), after.join("mnt"));
    fs::create_dir_all(&dir).unwrap();
    let (child, socket, _folder) = notified(&store, &dir, &Setup::new(&[]).bucket);
    let mut engine = Engine::of(child, &moved);
    assert_eq!(word(&socket), "READY=1\nSTATUS=mounted\n");
    fs::rename(&before, &after).unwrap();
    assert!(is_mounted(&moved));
    kill_process(Pid::from_child(&engine.child), Signal::TERM).unwrap();
    assert_eq!(engine.wait().code(), Some(0));
    assert!(!is_mounted(&moved));
}

#[test]
fn a_service_manager_hears_what_went_wrong() {
    let (store, dir) = (Store::new(), tempfile::tempdir().unwrap());
    let (mut child, socket, _folder) = notified(&store, dir.path(), "no-such-bucket");
    let said = word(&socket);
    assert!(
        said.starts_with("STATUS=") && said.contains("NoSuchBucket") && said.lines().count() == 1,
        "{said}"
    );
    assert!(!said.contains("READY") && !said.contains(Store::SECRET_KEY), "{said}");
    assert_eq!(child.wait().unwrap().code(), Some(1));
}
