//! versitygw, an independent S3 server over a folder, strict about signatures, checksums and conditions.
//!
//! `ci/versitygw` builds it; `MOUNT_S3_VERSITYGW` is the path of its binary.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::need;
use crate::server::Server;

/// Longest time for the start of versitygw, which takes less than a second on an idle machine.
const START_MAX: Duration = Duration::from_secs(60);

/// A running gateway. Dropping it kills it; if the test fails, the last lines of its log are printed.
#[derive(Debug)]
pub struct Versitygw {
    _server: Server,
    address: SocketAddr,
}

impl Versitygw {
    /// The binary in `MOUNT_S3_VERSITYGW`; `None`, which skips the test, if the variable is not set.
    ///
    /// # Panics
    /// The file does not exist; or the variable is not set, and `CI=true`.
    pub fn binary() -> Option<PathBuf> {
        let binary = PathBuf::from(std::env::var_os("MOUNT_S3_VERSITYGW").unwrap_or_default());
        let there = !binary.as_os_str().is_empty();
        if !need("MOUNT_S3_VERSITYGW (ci/versitygw prints what to set it to)", there) {
            return None;
        }
        assert!(binary.is_file(), "MOUNT_S3_VERSITYGW={} is not a file", binary.display());
        Some(binary)
    }

    /// Starts versitygw over `folder/data`, in which each folder is a bucket. `tls` has the files of a certificate and its key; with it
    /// versitygw serves HTTPS.
    ///
    /// # Panics
    /// versitygw does not listen within a minute.
    pub fn start(
        binary: &Path,
        folder: &Path,
        bucket: &str,
        keys: [&str; 2],
        tls: Option<[&Path; 2]>,
    ) -> Self {
        let data = folder.join("data");
        fs::create_dir_all(data.join(bucket)).expect("make the folder of the bucket");
        let mut command = Command::new(binary);
        // With port 0 the kernel chooses a free port, which no other process can take.
        command.args(["--port", "127.0.0.1:0"]);
        if let Some([certificate, key]) = tls {
            command.arg("--cert").arg(certificate).arg("--key").arg(key);
        }
        // Buckets with versioning keep old versions in this folder.
        let versions = folder.join("versions");
        fs::create_dir_all(&versions).expect("make the folder of versions");
        command.args(["posix", "--versioning-dir"]).arg(versions).arg(data).env_clear();
        command.env("ROOT_ACCESS_KEY", keys[0]).env("ROOT_SECRET_KEY", keys[1]);
        let mut server = Server::start("versitygw", &mut command, folder);
        Self { address: server.picked_address(START_MAX), _server: server }
    }

    /// The address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
