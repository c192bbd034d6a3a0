//! `--control-socket` of a real engine: what a CSI driver hears there.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;

use crate::common::{Store, need};
use crate::mount;

/// The first line, and the answer to one request.
fn asked(socket: &Path) -> (String, Value) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(b"{\"version\":1}\n{\"number\":7,\"request\":\"usage\"}\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    (lines.next().unwrap(), serde_json::from_str(&lines.next().unwrap()).unwrap())
}

#[test]
fn a_sandboxed_engine_tells_its_control_groups_usage() {
    if !need("root", rustix::process::geteuid().is_root()) {
        return;
    }
    for sandbox in ["off", "on"] {
        let (store, here) = (Store::new(), tempfile::tempdir().unwrap());
        let socket = here.path().join("engine.sock");
        // Left by an engine that was killed.
        let left = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        rustix::net::shutdown(&left, rustix::net::Shutdown::Both).unwrap();
        drop(left);
        let options = ["--control-socket", socket.to_str().unwrap(), "--sandbox", sandbox];
        let Some(mount) = mount(&store, here.path(), &options) else { return };
        let (hello, first) = asked(&socket);
        assert_eq!((hello.as_str(), &first["number"]), ("{\"version\":1,\"ids\":0}", &7.into()));
        let cpu = |answer: &Value| answer["usage"]["cpu_us"].as_u64();
        if need("a control group that counts the time of CPU", cpu(&first).is_some()) {
            let (_, second) = asked(&socket);
            assert!(cpu(&second) >= cpu(&first) && cpu(&first) > Some(0), "{first} {second}");
        }
        drop(mount);
    }
}

#[test]
fn a_mount_serves_without_the_drivers_socket_if_it_can_not_have_it() {
    let (store, here) = (Store::new(), tempfile::tempdir().unwrap());
    let socket = here.path().join("no-folder/engine.sock");
    let Some(mount) = mount(&store, here.path(), &["--control-socket", socket.to_str().unwrap()]) else {
        return;
    };
    std::fs::read_dir(mount.dir()).unwrap().for_each(|entry| drop(entry.unwrap()));
    assert!(!socket.exists());
}
