//! The wiring: turns a configuration into connected rooms and a session with the kernel. Only this file knows all rooms.

use std::time::Duration;

use anyhow::Context as _;

use crate::buffer::Pool;
use crate::cache::{BlockCache, DiskCache};
use crate::clock::Clock;
use crate::config::Config;
use crate::fs::{FileSystem, MountEnd};
use crate::fuse::{Device, MountOptions, Session, Unmounter};
use crate::inode::InodeTable;
use crate::metrics::Metrics;
use crate::prefetch::Prefetcher;
use crate::s3::S3Client;
use crate::sync::{Arc, Supervisor};
use crate::upload::Uploader;

/// How often idle memory is given back.
const TRIM_EVERY: Duration = Duration::from_secs(20);
/// How long uploads that were under way at the end may take to be aborted.
const GOODBYE_WITHIN: Duration = Duration::from_secs(10);

/// A bucket that is mounted.
#[derive(Debug)]
pub struct Mounted {
    session: Session,
    fs: Arc<FileSystem>,
    metrics: Arc<Metrics>,
    runtime: tokio::runtime::Runtime,
}

/// A bucket that answered, with all rooms but the kernel's side.
#[derive(Debug)]
pub struct Connected {
    fs: Arc<FileSystem>,
    uploads: Uploader,
    device: Device,
    options: MountOptions,
    metrics: Arc<Metrics>,
    runtime: tokio::runtime::Runtime,
}

/// Asks the store whether the bucket is there, opens the cache, and joins the rooms. Nothing is mounted yet.
///
/// # Errors
/// One line that says what could not be reached, found or read, and what to look at.
pub fn connect(config: Config) -> anyhow::Result<Connected> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("mount-s3")
        .enable_all()
        .build()
        .context("starting the threads of the network")?;
    let (clock, metrics) = (Clock::machine(), Arc::new(Metrics::default()));
    let client = runtime
        .block_on(S3Client::connect(config.s3, clock.clone(), Arc::clone(&metrics)))
        .with_context(|| format!("bucket {}", config.name))?;
    let pool = Pool::new(&config.buffer);
    let cache: Option<Arc<dyn BlockCache>> = match config.cache {
        Some(mut cache) => {
            cache.endpoint = client.endpoint_url().unwrap_or_default().to_owned();
            Some(Arc::new(DiskCache::open(cache, clock.clone(), Arc::clone(&metrics)).context("--cache")?))
        }
        None => None,
    };
    let mut upload = config.upload;
    if let Some(journal) = &mut upload.journal {
        journal.endpoint = client.endpoint_url().unwrap_or_default().to_owned();
    }
    let handle = runtime.handle().clone();
    let inodes = InodeTable::new(client.clone(), config.inode, clock.clone(), Arc::clone(&metrics));
    let prefetcher = Prefetcher::new(
        client.clone(),
        cache,
        pool.clone(),
        config.prefetch,
        clock.clone(),
        Arc::clone(&metrics),
        handle.clone(),
    );
    let uploader = Uploader::new(client, pool.clone(), upload, clock.clone(), Arc::clone(&metrics), handle);
    let uploads = uploader.clone();
    let fs = Arc::new(FileSystem::new(inodes, prefetcher, uploader, config.fs, clock.clone()));
    let supervisor = Supervisor { metrics: Arc::clone(&metrics), clock };
    let clock = supervisor.clock.clone();
    supervisor.task(runtime.handle(), "giving idle memory back", move || {
        let (clock, pool) = (clock.clone(), pool.clone());
        async move {
            loop {
                clock.sleep(TRIM_EVERY).await;
                pool.trim();
            }
        }
    });
    Ok(Connected { fs, uploads, device: config.device, options: config.mount, metrics, runtime })
}

impl Connected {
    /// Mounts. Returns when the directory can be used.
    ///
    /// # Errors
    /// An error of the kernel or of fusermount3; nothing is left mounted then.
    pub fn mount(self) -> anyhow::Result<Mounted> {
        let Self { fs, uploads, device, options, metrics, runtime } = self;
        let handle = runtime.handle().clone();
        let session = Session::start(device, Arc::clone(&fs), &options, Arc::clone(&metrics), handle)
            .context("mounting: is fuse3 installed, and may this user mount? (/dev/fuse, and user_allow_other in /etc/fuse.conf for --allow-other)")?;
        // Nobody waits for it: the store is asked once the mount serves.
        uploads.abort_left_behind();
        Ok(Mounted { session, fs, metrics, runtime })
    }
}

impl Mounted {
    /// A handle that unmounts, from any thread.
    pub fn unmounter(&self) -> Unmounter {
        self.session.unmounter()
    }

    /// A handle that completes closed files and gives up open ones, for a mount that another process unmounts.
    pub fn farewell(&self) -> Farewell {
        Farewell { fs: Arc::clone(&self.fs), runtime: self.runtime.handle().clone() }
    }

    /// The counters of this mount.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Serves until the unmount, then completes what was closed and gives up what was still being written.
    ///
    /// # Errors
    /// The FUSE device failed otherwise than by an unmount; it is unmounted then.
    pub fn wait(self) -> anyhow::Result<()> {
        let (farewell, unmounter) = (self.farewell(), self.unmounter());
        let served = self.session.wait().context("serving /dev/fuse");
        if served.is_err() {
            let _ = unmounter.unmount();
        }
        farewell.say(MountEnd::Unmounted);
        self.runtime.shutdown_timeout(Duration::from_secs(1));
        served
    }
}

/// See [`Mounted::farewell`].
#[derive(Clone, Debug)]
pub struct Farewell {
    fs: Arc<FileSystem>,
    runtime: tokio::runtime::Handle,
}

impl Farewell {
    /// Completes what was closed and gives up what was still being written, within ten seconds. Not for a thread of the runtime.
    pub fn say(&self, how: MountEnd) {
        self.runtime.block_on(self.fs.end(GOODBYE_WITHIN, how));
    }
}
