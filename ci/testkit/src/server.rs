//! A server of another project, which a test starts with a log, waits for, and kills.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::port::listens_on;
use crate::until_within;

/// A running server. Dropping it kills it; if the test fails, the last lines of its log are printed.
#[derive(Debug)]
pub(crate) struct Server {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Server {
    /// Starts `command`; its output goes to `folder/log`.
    pub(crate) fn start(name: &str, command: &mut Command, folder: &Path) -> Self {
        let log = folder.join("log");
        let file = File::create(&log).expect("a log file");
        command.stdin(Stdio::null()).stdout(file.try_clone().expect("a second handle")).stderr(file);
        let child = command.spawn().unwrap_or_else(|error| panic!("{:?}: {error}", command.get_program()));
        Self { name: name.to_owned(), child, log }
    }

    /// Waits until the server listens on loopback, on a port that the kernel chose. Returns the address.
    pub(crate) fn picked_address(&mut self, limit: Duration) -> SocketAddr {
        let mut address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        self.until(limit, |pid| {
            address.set_port(listens_on(pid).unwrap_or(0));
            address.port() > 0 && TcpStream::connect(address).is_ok()
        });
        address
    }

    /// Waits until the server listens at `address`.
    pub(crate) fn listens(&mut self, limit: Duration, address: SocketAddr) {
        self.until(limit, |_| TcpStream::connect(address).is_ok());
    }

    fn until(&mut self, limit: Duration, mut listens: impl FnMut(u32) -> bool) {
        let name = &self.name;
        until_within(limit, &format!("{name} listens"), || {
            let ended = self.child.try_wait().expect("the state of a server");
            assert!(ended.is_none(), "{name} ended: {ended:?}");
            listens(self.child.id())
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let tail: Vec<_> = log.lines().rev().take(40).collect();
            eprintln!("the last lines of {}:", self.name);
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}
