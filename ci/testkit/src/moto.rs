//! moto, a store in Python that keeps any key and knows the storage classes of S3. It checks neither signatures nor checksums.
//!
//! `ci/moto` installs it; `MOUNT_S3_MOTO` is the path of its command.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::port::listens_on;
use crate::{need, until_within};

/// The limit on its start. It answers within some seconds where nothing else runs.
const START_MAX: Duration = Duration::from_secs(60);

/// A running server; killed when dropped. If the test fails, the last lines of its log are printed.
#[derive(Debug)]
pub struct Moto {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

impl Moto {
    /// The command that `MOUNT_S3_MOTO` names; `None` if the test is to be skipped for lack of it.
    ///
    /// # Panics
    /// The variable names no file; or it is not set, and `CI=true`.
    pub fn binary() -> Option<PathBuf> {
        let binary = PathBuf::from(std::env::var_os("MOUNT_S3_MOTO").unwrap_or_default());
        let there = !binary.as_os_str().is_empty();
        if !need("MOUNT_S3_MOTO (ci/moto prints what to set it to)", there) {
            return None;
        }
        assert!(binary.is_file(), "MOUNT_S3_MOTO={} is not a file", binary.display());
        Some(binary)
    }

    /// Starts it with an empty bucket; what it says goes to `folder/log`.
    ///
    /// # Panics
    /// It does not listen within a minute, or does not make the bucket.
    pub fn start(binary: &Path, folder: &Path, bucket: &str) -> Self {
        let log = folder.join("log");
        let file = File::create(&log).expect("a log file");
        let mut command = Command::new(binary);
        // Port 0: the kernel picks one, and nobody else can have it.
        command.args(["-H", "127.0.0.1", "-p", "0"]).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.stdin(Stdio::null()).stdout(file.try_clone().expect("a second handle")).stderr(file);
        let child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", binary.display()));
        let mut moto = Self { child, address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), log };
        until_within(START_MAX, "moto listens", || {
            let ended = moto.child.try_wait().expect("the state of moto");
            assert!(ended.is_none(), "moto ended: {ended:?}");
            let port = listens_on(moto.child.id());
            moto.address.set_port(port.unwrap_or(0));
            port.is_some()
        });
        let answer = moto.make(bucket).expect("ask for a bucket");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        moto
    }

    /// The address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes a bucket, with a request that needs no signature there.
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

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let tail: Vec<_> = log.lines().rev().take(40).collect();
            eprintln!("the last lines of moto:");
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}
