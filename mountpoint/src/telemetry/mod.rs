//! The reports of a mount about itself: lines in the log, a page for Prometheus, exports by OTLP, a socket for `mount-s3-ctl`, and one for
//! the CSI driver.
//!
//! Enters: the metrics that the other rooms count, and a [`Mount`] that measures the rest on demand. Leaves: text, JSON and HTTP answers.
//! Nothing here waits for the store, and no request of a program for a file passes through. This room knows no secret.

mod cgroup;
mod control;
pub mod engine_lines;
mod engine_socket;
mod handing;
mod http;
mod log;
pub mod otlp;
mod prometheus;
mod rates;
mod status;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use futures_util::future::BoxFuture;

pub use control::{Entry, PERMITTED, SocketFolder, places, read_entries};
pub use http::{Listen, SYNC, UPGRADE};
pub use status::{
    Cache, ErrorLine, Hits, Latency, Memory, OpenFiles, Origin, Requests, Stage, Status, Synced, Throughput,
    Unsynced, Upload,
};

use crate::broker::Registrar;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::supervise::Supervisor;
use crate::sync::Arc;
use rates::Rates;

/// Interval of the lines of `--log-metrics`, the same as in AWS's mount-s3.
const LOG_EVERY: Duration = Duration::from_secs(5);
/// The user of the node's CSI driver: root.
const ROOT: u32 = 0;
/// Longest delay of the mount's end by the last export.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The receivers of telemetry, and the mount's origin.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Whether to log metrics.
    pub log: bool,
    /// The address of the page for Prometheus.
    pub listen: Option<Listen>,
    /// Folders for the socket of `mount-s3-ctl`. The first usable one is used.
    pub control: Vec<SocketFolder>,
    /// Path of the socket for the node's CSI driver.
    pub driver: Option<PathBuf>,
    /// Exports by OpenTelemetry's protocol.
    pub otlp: Option<otlp::Settings>,
    /// Bucket, mount point and process of the mount.
    pub origin: Origin,
}

/// The facts about a mount that its metrics lack. The calls come on the network's threads, so none may block.
pub trait Mount: Send + Sync + 'static {
    /// Sets the gauges.
    fn measure(&self, metrics: &Metrics);

    /// Files being written.
    fn uploads(&self) -> Vec<Upload>;

    /// The stage, with `--mode full`.
    fn stage(&self) -> Option<Stage>;

    /// The last errors and warnings of the log.
    fn errors(&self) -> Vec<ErrorLine>;

    /// Hands the mount over to the installed program once no file is being written, within this time. On success that program replaces this
    /// process; a returned text is the reason why this one continues.
    fn hand_over(&self, within: Duration) -> BoxFuture<'static, String>;

    /// Stores the pending files at this path below the mount point, or under it. Returns the files that can't be stored within this time,
    /// or the reason why none can.
    fn sync(&self, below: PathBuf, within: Duration) -> BoxFuture<'static, Result<Synced, String>>;
}

/// The sources of all reports about a mount.
pub(crate) struct Telemetry {
    origin: Origin,
    metrics: Arc<Metrics>,
    mount: Box<dyn Mount>,
    rates: Rates,
    clock: Clock,
    started: SystemTime,
}

/// Bound sockets that are not served yet. Dropping this removes them.
#[derive(Debug)]
pub struct Bound {
    config: Config,
    http: Option<http::Bound>,
    driver: Option<engine_socket::Bound>,
    registrar: Option<Arc<Registrar>>,
}

/// A guard that keeps the mount's sockets. Dropping it removes them.
pub struct Told {
    exporter: Option<(Arc<otlp::Exporter>, Arc<Telemetry>)>,
    _control: Option<control::Registered>,
    _http: Option<http::Path>,
    _driver: Option<http::Path>,
}

impl Config {
    /// The folders in which the mount removes its own sockets at its end.
    pub fn folders(&self) -> Vec<PathBuf> {
        let page = match &self.listen {
            Some(Listen::Unix(path)) => path.parent().map(std::path::Path::to_owned),
            _ => None,
        };
        self.control.iter().map(|place| place.folder.clone()).chain(page).collect()
    }

    /// Binds the sockets of `--metrics-listen` and `--control-socket`, before the file system is mounted.
    ///
    /// # Errors
    /// The address of `--metrics-listen` can't be bound; the error names it. If the driver's socket can't be bound, that is only logged,
    /// and the mount works without it.
    pub fn bind(self) -> anyhow::Result<Bound> {
        let http = self.listen.as_ref().map(http::Listen::bind).transpose();
        let driver = self.driver.as_deref().and_then(|path| {
            let bound = engine_socket::Bound::at(path);
            bound.inspect_err(|error| tracing::warn!("--control-socket: {error:#}")).ok()
        });
        let registrar = driver.as_ref().map(|_| Arc::default());
        Ok(Bound { http: http.context("--metrics-listen")?, driver, registrar, config: self })
    }
}

impl Bound {
    /// The queue of requests to the node's driver, which registers files; `None` without its socket.
    pub fn registrar(&self) -> Option<Arc<Registrar>> {
        self.registrar.clone()
    }

    /// Starts the reports. The caller keeps the result until the mount ends.
    ///
    /// # Errors
    /// A socket can't be served. A missing control socket is only logged.
    pub fn start(
        self,
        mount: impl Mount,
        post: otlp::Post,
        supervisor: &Supervisor,
        runtime: &tokio::runtime::Handle,
    ) -> anyhow::Result<Told> {
        let Config { log, control, origin, otlp, .. } = self.config;
        let clock = supervisor.clock.clone();
        let telemetry = Arc::new(Telemetry {
            metrics: Arc::clone(&supervisor.metrics),
            mount: Box::new(mount),
            rates: Rates::default(),
            started: clock.wall(),
            clock,
            origin,
        });
        let of_rates = Arc::clone(&telemetry);
        supervisor.task(runtime, "measuring throughput", move || {
            let telemetry = Arc::clone(&of_rates);
            async move { telemetry.rates.keep(&telemetry.metrics, &telemetry.clock).await }
        });
        if log {
            let of_log = Arc::clone(&telemetry);
            supervisor.task(runtime, "logging metrics", move || {
                let telemetry = Arc::clone(&of_log);
                async move { telemetry.log_for_ever(LOG_EVERY).await }
            });
        }
        let exporter = otlp.map(|settings| Arc::new(otlp::Exporter::new(settings, post, telemetry.started)));
        if let Some(exporter) = &exporter {
            let (exporter, telemetry) = (Arc::clone(exporter), Arc::clone(&telemetry));
            supervisor.task(runtime, "exporting metrics", move || {
                let (exporter, telemetry) = (Arc::clone(&exporter), Arc::clone(&telemetry));
                async move { exporter.keep(&telemetry).await }
            });
        }
        let http = match self.http {
            Some(bound) => bound.serve(&telemetry, supervisor, runtime).context("--metrics-listen")?,
            None => None,
        };
        let of_upgrade = Arc::clone(&telemetry);
        let of_driver = engine_socket::Served {
            peer: ROOT,
            root: PathBuf::from("/"),
            registrar: self.registrar,
            hand_over: Arc::new(move |within| of_upgrade.mount.hand_over(within)),
        };
        let driver = self.driver.map(|bound| bound.serve(of_driver, supervisor, runtime));
        let driver = driver.transpose().context("--control-socket")?;
        let control = control::Registered::serve_or_say(&control, &telemetry, supervisor, runtime);
        let exporter = exporter.map(|exporter| (exporter, telemetry));
        Ok(Told { exporter, _control: control, _http: http, _driver: driver })
    }
}

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Told").finish_non_exhaustive()
    }
}

impl Told {
    /// Exports the last interval at the end of the mount, within five seconds.
    pub async fn last_words(self) {
        if let Some((exporter, telemetry)) = &self.exporter {
            let _ = telemetry.clock.timeout(LAST_WORDS, exporter.export(telemetry)).await;
        }
    }
}

impl Telemetry {
    /// Updates all gauges.
    fn measure(&self) {
        self.mount.measure(&self.metrics);
        let started = self.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.metrics.process_start.set(started.as_secs());
    }

    /// The page for Prometheus.
    fn page(&self) -> String {
        self.measure();
        prometheus::page(&self.metrics.snapshot(), &self.origin)
    }

    /// The answer to `mount-s3-ctl status`.
    fn status(&self) -> Status {
        self.measure();
        status::of(self)
    }

    async fn log_for_ever(&self, every: Duration) {
        // The first lines count from the beginning: a request may come before this task runs.
        let mut before = Vec::new();
        loop {
            self.clock.sleep(every).await;
            self.measure();
            let now = self.metrics.snapshot();
            for line in log::lines(&before, &now) {
                tracing::info!(target: "mountpoint::metrics", "{line}");
            }
            before = now;
        }
    }
}

#[cfg(test)]
mod tests;
