//! One mount, the proxy that makes its weather, and a store that keeps the bytes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use s3server::Server;
use testkit::proxy::{Proxy, Weather};
use testkit::scenario::Scene;

use crate::mount::{Mount, Watchdog};
use crate::pattern;
use crate::peers::{Peer, Plan};

const BUCKET: &str = "weather";
/// Distance between the contents of two files in the pattern, in bytes: prime to its period, and not a whole number of pages.
const APART: u64 = 1_000_003;

/// A mount with its proxy and store, dropped in the order of the fields.
#[derive(Debug)]
pub(super) struct Site {
    mount: Mount,
    pub(super) proxy: Proxy,
    server: Server,
    folder: PathBuf,
    _work: tempfile::TempDir,
}

impl Site {
    /// Mounts an empty bucket in clear weather.
    ///
    /// # Errors
    /// The server or the file system does not start.
    pub(super) fn new(peer: &Peer) -> anyhow::Result<Self> {
        let work = tempfile::Builder::new().prefix("s3-weather-").tempdir()?;
        let root = work.path().join("store");
        let mut config = s3server::Config::new(&root).bucket(BUCKET).strict();
        // Every mount of the bench gets these credentials.
        config.access_key = "bench".to_owned();
        config.secret_key = "bench-secret".to_owned();
        let server = Server::start(config).context("start the store")?;
        let proxy = Proxy::start(server.address());
        let plan = Plan {
            bucket: BUCKET,
            endpoint: &proxy.endpoint(),
            ca_file: &work.path().join("none"),
            dir: &work.path().join("mnt"),
            cache: None,
            ttl_s: None,
            memory_mib: None,
            deletes: false,
            renames: false,
            overwrites: false,
            stage: None,
            work: work.path(),
            object_bytes: 0,
        };
        let mount = Mount::start(&peer.command(&plan)?, work.path(), "weather", None)?;
        Ok(Self { mount, proxy, server, folder: root.join(BUCKET), _work: work })
    }

    pub(super) fn place(&self) -> Scene<'_> {
        let fill = |content, offset, into: &mut [u8]| pattern::fill(content * APART, offset, into);
        Scene { mount: self.mount.dir(), folder: &self.folder, proxy: &self.proxy, fill }
    }

    pub(super) fn watchdog(&self, limit: Duration) -> Watchdog {
        Watchdog::arm(self.mount.pid(), limit)
    }

    /// Unmounts in clear weather. Returns the number of uploads that are still in progress.
    pub(super) fn end(self) -> usize {
        self.proxy.set(Weather::clear());
        drop(self.mount);
        self.server.pending_uploads(BUCKET)
    }
}
