//! Secrets stay in their places: the keys of the store are canaries, and no file, output or process of a mount contains them.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use s3server::{Effect, Fault};

use crate::common::canary::{EXPORTER, TOKEN, assert_none_below, assert_none_of, canary_in};
use crate::common::{Pattern, Setup, Store, TestMount, until};

#[test]
fn no_secret_is_in_what_a_mount_writes_shows_and_starts() {
    let (runtime, logs, cache) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let socket = runtime.path().join("metrics.sock");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let listen = format!("unix:{}", text(&socket));
    let options = [
        "--auto-unmount",
        "--debug",
        "--allow-delete",
        "--log-directory",
        &text(logs.path()),
        "--cache",
        &text(cache.path()),
        "--metrics-listen",
        &listen,
        "--state-dir",
        &text(&runtime.path().join("state")),
    ];
    let store = Store::new();
    store.put("file", Pattern(1).bytes(0, 1 << 20));
    let setup = Setup::new(&options)
        .env("XDG_RUNTIME_DIR", runtime.path().to_str().unwrap())
        .env("AWS_SESSION_TOKEN", TOKEN)
        .env("OTEL_EXPORTER_OTLP_HEADERS", &format!("authorization={EXPORTER}"));
    let Some(mut mount) = TestMount::of(&store, &setup) else { return };
    // Reads, writes, a refusal by the store, an upload that is noted.
    assert_eq!(fs::read(mount.path("file")).unwrap().len(), 1 << 20);
    let denied = Effect::Error { status: 403, code: "SignatureDoesNotMatch".to_owned() };
    store.faults().add(Fault::on("PutObject", denied));
    let mut refused = fs::File::create_new(mount.path("refused")).unwrap();
    refused.write_all(b"1").and_then(|()| refused.sync_all()).expect_err("the store refuses it");
    drop(refused);
    let mut open = fs::File::create_new(mount.path("open")).unwrap();
    Pattern(2).write_to(&mut open, 20 << 20, 1 << 20).unwrap();
    until("the upload is noted", || assert_none_below(&runtime.path().join("state")) > 0);
    assert!(assert_none_of(mount.pid()) > 0, "the watcher of --auto-unmount runs");
    let mut ctl = Command::new(env!("CARGO_BIN_EXE_mount-s3-ctl"));
    ctl.args(["status", "--json"]).arg(mount.dir()).env_clear().env("XDG_RUNTIME_DIR", runtime.path());
    until("the mount answers on its socket", || {
        let said = ctl.output().unwrap();
        assert_eq!(canary_in(&[said.stdout.clone(), said.stderr].concat()), None, "mount-s3-ctl");
        String::from_utf8_lossy(&said.stdout).contains("serving")
    });
    let page = metrics(&socket);
    assert!(page.contains("s3_request_count"), "{page}");
    assert_eq!(canary_in(page.as_bytes()), None, "metrics");

    drop(open);
    mount.kill_9();
    assert_eq!(canary_in(mount.log().as_bytes()), None, "standard output and error");
    assert!(assert_none_below(logs.path()) > 0, "the log is a file");
    assert!(assert_none_below(cache.path()) > 0, "the cache has files");
    assert_none_below(runtime.path());
    assert_none_below(store.home());
}

fn metrics(socket: &Path) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(stream, "GET /metrics HTTP/1.0\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
