//! versitygw, an independent S3 server that is strict on signatures, checksums and conditions, over a folder.
//!
//! `ci/versitygw` builds it; `MOUNT_S3_VERSITYGW` is the path of its binary.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::port::listens_on;
use crate::{need, until_within};

/// The limit on its start. It answers within a second where nothing else runs.
const START_MAX: Duration = Duration::from_secs(60);

/// A running gateway; killed when dropped. If the test fails, the last lines of its log are printed.
#[derive(Debug)]
pub struct Versitygw {
    child: Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl Versitygw {
    /// The binary that `MOUNT_S3_VERSITYGW` names; `None` if the test is to be skipped for lack of it.
    ///
    /// # Panics
    /// The variable names no file; or it is not set, and `CI=true`.
    pub fn binary() -> Option<PathBuf> {
        let binary = PathBuf::from(std::env::var_os("MOUNT_S3_VERSITYGW").unwrap_or_default());
        let there = !binary.as_os_str().is_empty();
        if !need("MOUNT_S3_VERSITYGW (ci/versitygw prints what to set it to)", there) {
            return None;
        }
        assert!(binary.is_file(), "MOUNT_S3_VERSITYGW={} is not a file", binary.display());
        Some(binary)
    }

    /// Starts it over `folder/data`, where each folder is a bucket. With `tls`, a certificate and its key as files, it speaks HTTPS.
    ///
    /// # Panics
    /// It does not listen within a minute.
    pub fn start(
        binary: &Path,
        folder: &Path,
        bucket: &str,
        keys: [&str; 2],
        tls: Option<[&Path; 2]>,
    ) -> Self {
        let data = folder.join("data");
        fs::create_dir_all(data.join(bucket)).expect("make the folder of the bucket");
        let log = File::create(folder.join("log")).expect("a log file");
        let mut command = Command::new(binary);
        // Port 0: the kernel picks one, and nobody else can have it.
        command.args(["--port", "127.0.0.1:0"]);
        if let Some([certificate, key]) = tls {
            command.arg("--cert").arg(certificate).arg("--key").arg(key);
        }
        // Buckets with versioning keep versions there.
        let versions = folder.join("versions");
        fs::create_dir_all(&versions).expect("make the folder of versions");
        command.args(["posix", "--versioning-dir"]).arg(versions).arg(data).env_clear();
        command.env("ROOT_ACCESS_KEY", keys[0]).env("ROOT_SECRET_KEY", keys[1]);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a second handle")).stderr(log);
        let child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", binary.display()));
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut gateway = Self { child, address: nowhere, folder: folder.to_owned() };
        until_within(START_MAX, "versitygw listens", || {
            let ended = gateway.child.try_wait().expect("the state of versitygw");
            assert!(ended.is_none(), "versitygw ended: {ended:?}");
            let port = listens_on(gateway.child.id());
            gateway.address.set_port(port.unwrap_or(0));
            port.is_some() && TcpStream::connect(gateway.address).is_ok()
        });
        gateway
    }

    /// The address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

impl Drop for Versitygw {
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
