//! A store that `ci/stores` starts for a test, of the kind in `MOUNT_S3_STORE`, with its data in the test's folder.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::need;
use crate::server::Server;

/// Longest time for the start of a store: a Java machine is slow beside builds.
const START_MAX: Duration = Duration::from_secs(90);

/// A running store without buckets. Dropping it kills it; if the test fails, the last lines of its log are printed.
#[derive(Debug)]
pub struct RealStore {
    _server: Server,
    address: SocketAddr,
}

impl RealStore {
    /// Access key and secret key in the only form that Garage accepts, as does every other store.
    pub const KEYS: [&str; 2] =
        ["GK746573747465737474657374", "7365637265747365637265747365637265747365637265747365637265747365"];

    /// The store's name in `MOUNT_S3_STORE`; `None`, which skips the test, if the variable is not set.
    ///
    /// # Panics
    /// The variable is not set, and `CI=true`.
    pub fn named() -> Option<String> {
        let name = std::env::var("MOUNT_S3_STORE").unwrap_or_default();
        need("MOUNT_S3_STORE (ci/stores NAME sets it)", !name.is_empty()).then_some(name)
    }

    /// Starts a store; its data and its log are below `folder`.
    ///
    /// # Panics
    /// The store ends, or does not listen within a minute and a half.
    pub fn start(name: &str, folder: &Path, keys: [&str; 2]) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../stores");
        // Some stores can't choose a port. Another program may take this one before: then the store ends, and the test reports it.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|it| it.local_addr());
        let address = port.expect("a free port");
        let mut command = Command::new(script);
        command.args(["--serve", name]).arg(folder).arg(address.port().to_string());
        command.env("STORE_ACCESS_KEY", keys[0]).env("STORE_SECRET_KEY", keys[1]);
        let mut server = Server::start(name, &mut command, folder);
        server.listens(START_MAX, address);
        // MinIO listens before it serves, and answers 503 then.
        let end = Instant::now() + START_MAX;
        while answers_503(address).unwrap_or(false) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(100));
        }
        Self { _server: server, address }
    }

    /// The address on which the store listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Whether a store answers 503: it does not serve yet.
fn answers_503(address: SocketAddr) -> io::Result<bool> {
    let mut connection = TcpStream::connect(address)?;
    connection.set_read_timeout(Some(Duration::from_secs(10)))?;
    connection.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut status = [0; 12];
    connection.read_exact(&mut status)?;
    Ok(status.ends_with(b" 503"))
}
