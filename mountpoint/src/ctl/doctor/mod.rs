//! Examines a bucket's store with the requests of a mount. Enters: the configuration of the engine's S3 client. Leaves: a [`Report`] of
//! what works, what does not, and the flags to mount with.
//!
//! Every request goes through the engine's own client, so the findings are valid for a mount. The examination only reads, unless the user
//! allows writes: then it writes below a new random prefix, and removes its objects at the end. A report contains no secret.

mod advice;
mod clean;
pub(crate) mod command;
mod judge;
mod measure;
mod odd;
mod read;
mod report;
mod write;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use mountpoint::checksum::ChecksumAlgorithm;
use mountpoint::clock::Clock;
use mountpoint::metrics::Metrics;
use mountpoint::s3::{self, Error, ErrorKind, ObjectClient as _, S3Client};
use mountpoint::sync::Arc;

pub(crate) use advice::applied;
pub(crate) use report::{Report, Verdict};

/// Longest wait for a store, even with a longer `--operation-timeout`, because a person waits.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// The store to examine, and the limits of the examination.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The store's settings, as for a mount.
    pub(crate) s3: s3::Config,
    /// The checksum of uploads; `None`: uploads have none.
    pub(crate) checksum: Option<ChecksumAlgorithm>,
    /// Largest read request, in bytes.
    pub(crate) part: u64,
    /// Connections in use at once when throughput is measured. Doubling it shows whether more connections carry more.
    pub(crate) connections: usize,
    /// Whether to write, too.
    pub(crate) write_probes: bool,
}

/// The environment of an examination.
#[derive(Clone, Copy)]
pub(crate) struct Around<'a> {
    /// The clock.
    pub(crate) clock: &'a Clock,
    /// A flag that stops the examination: no further probe begins, and the probes' objects are removed.
    pub(crate) stop: &'a AtomicBool,
    /// Called with the name of each probe that begins.
    pub(crate) progress: &'a (dyn Fn(&str) + Sync),
}

impl std::fmt::Debug for Around<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Around").finish_non_exhaustive()
    }
}

/// The state of an examination.
struct Examination<'a> {
    client: Arc<S3Client>,
    config: Config,
    around: Around<'a>,
    report: Report,
}

/// Examines the store. Must be called within a tokio runtime.
///
/// # Errors
/// `InvalidRequest`: no request can be sent with this configuration. Everything else becomes a finding.
pub(crate) async fn examine(config: Config, around: Around<'_>) -> s3::Result<Report> {
    (around.progress)("the bucket");
    let metrics = Arc::new(Metrics::default());
    let (client, proof) = S3Client::reach(config.s3.clone(), around.clock.clone(), metrics).await?;
    let report = Report::of(&config.s3, &client);
    let mut it = Examination { client, config, around, report };
    it.signature().await;
    it.tls().await;
    match proof {
        Ok(()) => it.all().await,
        Err(error) => it.refused(error).await,
    }
    it.report.store = it.client.store().name().to_owned();
    it.report.close();
    Ok(it.report)
}

impl Examination<'_> {
    async fn all(&mut self) {
        self.report.fine("bucket", "it exists, and its keys may be listed");
        self.addressing().await;
        self.region_and_clock().await;
        let objects = self.listings().await;
        self.history().await;
        let object = read::to_read(&objects);
        match &object {
            Some(object) => self.object(object).await,
            None => self.report.skipped("reading", "no object with bytes in it among the first 1000 keys"),
        }
        if self.config.write_probes {
            self.write(object).await;
            return self.oddities();
        }
        self.report.skipped("writing", "--write-probes tries it, below a new prefix");
        self.measure(object.as_ref()).await;
        self.oddities();
    }

    /// Adds findings that need no request: by the kind of the store, and the answers so far.
    fn oddities(&mut self) {
        self.report.add(judge::parts(self.client.part_limits()));
        let store = self.client.store();
        self.report.add(judge::declared_conditions(store.name(), &store.conditions()));
        if self.client.demands_md5() {
            self.report.note("Content-MD5", "the store demands it", "uploads of a mount carry it");
        }
        if self.client.decompresses() {
            let means = "a mount asks for the stored bytes (Accept-Encoding: gzip)";
            self.report.note("compressed objects", "the store decompresses them for other clients", means);
        }
    }

    /// Announces the next probe. False if the examination was stopped.
    fn begin(&self, what: &str) -> bool {
        (self.around.progress)(what);
        !self.is_stopped()
    }

    fn is_stopped(&self) -> bool {
        self.around.stop.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// An error as a line of the report, with advice.
fn said(error: &Error) -> String {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::Changed | ErrorKind::Exists => error.to_string(),
        _ => format!("{error}; {}", error.advice()),
    }
}
