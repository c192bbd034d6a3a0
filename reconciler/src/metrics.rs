//! Metrics for Prometheus about the reconciler and its volumes. Enters: finished effects, observed pods, the caches. Leaves: a page of
//! text.
//!
//! Never here: a call to the API server, a clock. Counters begin at zero with the process, and only the leading replica counts; gauges
//! are read from the caches at each request for the page, so all replicas agree.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::observed::{Cache, InUse};

/// The content type of the page.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper bounds of the histogram of creation times, in seconds: a pod whose image is present runs within one second, others pull for
/// minutes.
const CREATION_BOUNDS: [f64; 12] = [0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0];
/// Most pods whose creation is timed at once. The times of pods beyond it are not recorded.
const CREATING_MAX: usize = 4096;

/// Labels of a counter.
type Labels = Vec<(&'static str, String)>;

/// The counters.
#[derive(Debug)]
pub struct Metrics {
    created: Counter,
    creation_failures: Family<Labels, Counter>,
    creation_seconds: Histogram,
    failures: Counter,
    conflicts: Counter,
    leads: AtomicBool,
    /// The times at which the creation of pods began, by name of the pod.
    creating: Mutex<BTreeMap<String, Instant>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            created: Counter::default(),
            creation_failures: Family::default(),
            creation_seconds: Histogram::new(CREATION_BOUNDS),
            failures: Counter::default(),
            conflicts: Counter::default(),
            leads: AtomicBool::new(false),
            creating: Mutex::default(),
        }
    }
}

impl Metrics {
    /// Counts a Mountpoint Pod that the API server created, or had already; `began` is the time of the call.
    pub fn pod_created(&self, name: &str, began: Instant) {
        self.created.inc();
        let mut creating = self.creating.lock().unwrap_or_else(PoisonError::into_inner);
        if creating.len() < CREATING_MAX {
            creating.entry(name.to_owned()).or_insert(began);
        }
    }

    /// Counts a Mountpoint Pod whose creation failed.
    pub fn pod_not_created(&self, reason: &'static str) {
        self.creation_failures.get_or_create(&vec![("reason", reason.to_owned())]).inc();
    }

    /// Notes that a pod runs, and records its creation time if it is known.
    pub fn pod_runs(&self, name: &str, now: Instant) {
        if let Some(began) = self.forget(name) {
            self.creation_seconds.observe(now.saturating_duration_since(began).as_secs_f64());
        }
    }

    /// Notes that a pod has ended or is gone.
    pub fn pod_ended(&self, name: &str) {
        self.forget(name);
    }

    /// Counts a plan that was dropped, because its facts had changed (`conflict`) or because an effect failed.
    pub fn plan_left(&self, conflict: bool) {
        let counter = if conflict { &self.conflicts } else { &self.failures };
        counter.inc();
    }

    /// Notes whether this replica leads.
    pub fn leads(&self, leads: bool) {
        self.leads.store(leads, Ordering::Relaxed);
    }

    /// The page, as OpenMetrics.
    #[must_use]
    pub fn page(&self, cache: &Cache) -> String {
        let mut registry = Registry::with_prefix("mount_s3_csi");
        let ours = &mut registry;
        ours.register("mountpoint_pods_created", "Mountpoint Pods that were created", self.created.clone());
        ours.register(
            "mountpoint_pod_creation_failures",
            "Mountpoint Pods that could not be created",
            self.creation_failures.clone(),
        );
        ours.register_with_unit(
            "mountpoint_pod_creation",
            "From the request for a Mountpoint Pod until it runs",
            Unit::Seconds,
            self.creation_seconds.clone(),
        );
        ours.register("reconcile_failures", "Plans that failed and are tried again", self.failures.clone());
        ours.register(
            "reconcile_conflicts",
            "Plans that were made again because their facts had changed",
            self.conflicts.clone(),
        );
        let leader = i64::from(self.leads.load(Ordering::Relaxed));
        ours.register("leader", "1 in the leading replica", ConstGauge::new(leader));
        ours.register_collector(Box::new(Shown(cache.in_use())));
        let mut page = String::new();
        // Writing to a `String` does not fail.
        let _ = encode(&mut page, &registry);
        page
    }

    fn forget(&self, name: &str) -> Option<Instant> {
        self.creating.lock().unwrap_or_else(PoisonError::into_inner).remove(name)
    }
}

/// The collector of the gauges, which are read from the caches.
#[derive(Debug)]
struct Shown(InUse);

impl Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let InUse { attachments, mountpoint_pods, volumes } = &self.0;
        let number = |count: usize| ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
        let gauge = encoder.encode_descriptor(
            "attachments",
            "Number of MountpointS3PodAttachments",
            None,
            MetricType::Gauge,
        )?;
        number(*attachments).encode(gauge)?;
        let mut family = encoder.encode_descriptor(
            "mountpoint_pods",
            "Number of Mountpoint Pods, by phase",
            None,
            MetricType::Gauge,
        )?;
        for (phase, count) in mountpoint_pods {
            number(*count).encode(family.encode_family(&[("phase", *phase)])?)?;
        }
        let mut family = encoder.encode_descriptor(
            "attached_workloads",
            "Pods with this volume on this node",
            None,
            MetricType::Gauge,
        )?;
        for (volume, count) in volumes {
            let labels = [
                ("node", volume.node.as_str()),
                ("persistentvolume", &volume.volume),
                ("persistentvolumeclaim", &volume.claim),
                ("claim_namespace", &volume.claim_namespace),
            ];
            number(*count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
