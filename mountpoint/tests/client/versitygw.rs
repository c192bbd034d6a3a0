//! The exam on versitygw, an independent implementation of S3 that is strict on signatures, checksums and conditions.
//!
//! `ci/versitygw` builds it; `MOUNT_S3_VERSITYGW` is its path.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mountpoint::testing::exam::{Traits, exam};

use crate::{ACCESS_KEY, BUCKET, SECRET_KEY, connect};

/// It answers within a second where nothing else runs.
const START_MAX: Duration = Duration::from_secs(60);

/// A gateway over a folder; killed when dropped.
struct Gateway {
    child: Child,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Gateway {
    fn start(binary: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The gateway makes a bucket of each folder below its own.
        std::fs::create_dir_all(folder.path().join("data").join(BUCKET)).unwrap();
        // A port that was free a moment ago.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut command = Command::new(binary);
        command.args(["--port", &address.to_string(), "posix"]).arg(folder.path().join("data"));
        command.env_clear().env("ROOT_ACCESS_KEY", ACCESS_KEY).env("ROOT_SECRET_KEY", SECRET_KEY);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().unwrap_or_else(|error| panic!("{binary}: {error}"));
        let mut gateway = Self { child, address, folder };
        let until = Instant::now() + START_MAX;
        while TcpStream::connect(address).is_err() {
            let ended = gateway.child.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < until, "versitygw: {ended:?}\n{}", gateway.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        gateway
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<_> = log.lines().rev().take(40).collect();
            eprintln!("the last lines of versitygw:");
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// Its keys are paths of a folder.
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
    } else if key
        .chars()
        .any(|c| matches!(c, '\u{1}'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{ffff}'))
    {
        Some("its listings ignore encoding-type=url and replace what XML can't say")
    } else if key.starts_with("twin") {
        Some("a file and a folder of one name exclude each other")
    } else {
        None
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_s3_client_passes_on_versitygw() {
    let binary = std::env::var("MOUNT_S3_VERSITYGW").unwrap_or_default();
    if !testkit::need("MOUNT_S3_VERSITYGW (ci/versitygw prints what to set it to)", !binary.is_empty()) {
        return;
    }
    assert!(Path::new(&binary).is_file(), "MOUNT_S3_VERSITYGW={binary} is no file");
    let gateway = Gateway::start(&binary);
    let client = connect(&format!("http://{}", gateway.address)).await;
    exam(client, Traits::whole("versitygw").refusing_keys(refuses)).await;
}
