//! moto, a store in Python that accepts every key and supports S3's storage classes. It checks neither signatures nor checksums.
//!
//! `ci/moto` installs it; `MOUNT_S3_MOTO` is the path of its command.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::need;
use crate::server::Server;

/// Longest time for the start of moto, which takes some seconds on an idle machine.
const START_MAX: Duration = Duration::from_secs(60);

/// A running server. Dropping it kills it; if the test fails, the last lines of its log are printed.
#[derive(Debug)]
pub struct Moto {
    _server: Server,
    address: SocketAddr,
}

impl Moto {
    /// The command in `MOUNT_S3_MOTO`; `None`, which skips the test, if the variable is not set.
    ///
    /// # Panics
    /// The file does not exist; or the variable is not set, and `CI=true`.
    pub fn binary() -> Option<PathBuf> {
        let binary = PathBuf::from(std::env::var_os("MOUNT_S3_MOTO").unwrap_or_default());
        let there = !binary.as_os_str().is_empty();
        if !need("MOUNT_S3_MOTO (ci/moto prints what to set it to)", there) {
            return None;
        }
        assert!(binary.is_file(), "MOUNT_S3_MOTO={} is not a file", binary.display());
        Some(binary)
    }

    /// Starts moto with an empty bucket; its output goes to `folder/log`.
    ///
    /// # Panics
    /// moto does not listen within a minute, or does not create the bucket.
    pub fn start(binary: &Path, folder: &Path, bucket: &str) -> Self {
        let mut command = Command::new(binary);
        // With port 0 the kernel chooses a free port, which no other process can take.
        command.args(["-H", "127.0.0.1", "-p", "0"]).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let mut server = Server::start("moto", &mut command, folder);
        let moto = Self { address: server.picked_address(START_MAX), _server: server };
        let answer = moto.make(bucket).expect("ask for a bucket");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        moto
    }

    /// The address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Creates a bucket, by a request without a signature, which moto does not need.
    fn make(&self, bucket: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        let address = self.address;
        write!(
            stream,
            "PUT /{bucket} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}
