//! A store that `ci/stores` starts: of the kind that `MOUNT_S3_STORE` names, over a folder of the test.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::{need, until_within};

/// The time that a Java machine needs beside builds.
const START_MAX: Duration = Duration::from_secs(90);

/// A running store without buckets; killed when dropped. If the test fails, the last lines of its log are printed.
#[derive(Debug)]
pub struct RealStore {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

impl RealStore {
    /// The name of the store; `None` if the test is to be skipped because none is named.
    ///
    /// # Panics
    /// None is named, and `CI=true`.
    pub fn named() -> Option<String> {
        let name = std::env::var("MOUNT_S3_STORE").unwrap_or_default();
        need("MOUNT_S3_STORE (ci/stores NAME sets it)", !name.is_empty()).then_some(name)
    }

    /// Starts it; what it keeps and says goes below `folder`.
    ///
    /// # Panics
    /// It ends, or does not listen within a minute and a half.
    pub fn start(name: &str, folder: &Path, keys: [&str; 2]) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../stores");
        let log = folder.join("log");
        let file = File::create(&log).expect("a log file");
        // Not every store can be told to pick a port. Another program may take this one in between: then the store ends, and the test says so.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|it| it.local_addr());
        let address = port.expect("a free port");
        let mut command = Command::new(script);
        command.args(["--serve", name]).arg(folder).arg(address.port().to_string());
        command.env("STORE_ACCESS_KEY", keys[0]).env("STORE_SECRET_KEY", keys[1]);
        command.stdin(Stdio::null()).stdout(file.try_clone().expect("a second handle")).stderr(file);
        let child = command.spawn().unwrap_or_else(|error| panic!("{script}: {error}"));
        let mut store = Self { child, address, log };
        until_within(START_MAX, "the store listens", || {
            let ended = store.child.try_wait().expect("the state of the store");
            assert!(ended.is_none(), "{name} ended: {ended:?}");
            TcpStream::connect(store.address).is_ok()
        });
        store
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for RealStore {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let tail: Vec<_> = log.lines().rev().take(40).collect();
            eprintln!("the last lines of the store:");
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}
