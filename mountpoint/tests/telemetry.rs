//! Reports of a real mount about itself: to Prometheus, to its log, and to `mount-s3-ctl`, as users run it.

#[expect(dead_code, unused_imports, reason = "what tests of mounts use")]
mod common;

/// The transport of requests.
const TRANSPORT: &str = "dev";

/// Whether reads go through the page cache.
const READ_MODE: &str = "auto";

/// The store that the tests mount.
const STORE: common::Kind = common::Kind::S3server;

/// The modules lie in `telemetry/`.
mod telemetry {
    mod ctl;
    mod doctor;
    mod engine_socket;
    mod metrics;
    mod otlp;
    mod prometheus;
    mod warm;
}

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::{Setup, Store, TestMount};

/// A mount whose socket is in a folder of the test.
fn mount(store: &std::sync::Arc<Store>, runtime_dir: &Path, options: &[&str]) -> Option<TestMount> {
    TestMount::of(store, &Setup::new(options).env("XDG_RUNTIME_DIR", runtime_dir.to_str().unwrap()))
}

/// `mount-s3-ctl` with these words.
fn ctl(runtime_dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mount-s3-ctl"));
    command.args(words).env_clear().env("XDG_RUNTIME_DIR", runtime_dir).stdin(Stdio::null());
    command
}

/// Runs a command to its end: exit code and output.
fn end(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// The answer to a GET at a Unix socket.
fn get(socket: &Path, path: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The JSON of a command is as its schema in the docs says.
fn valid(command: &str, json: &serde_json::Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/schemas/{command}.json"));
    let schema = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let wrong: Vec<String> =
        validator.iter_errors(json).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(wrong.is_empty(), "{wrong:#?} in {json:#}");
}
