//! What the driver of a node tells Prometheus of the kubelet's calls. Enters: calls as they end. Leaves: a page of text.
//!
//! Never here: a clock, the name of a volume: a volume's own figures are its engine's and the reconciler's.

use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::error::Result;

/// Upper bounds of times of calls, in seconds. A mount at a pod that runs takes milliseconds, one that waits for its pod a second or more.
const CALL_BOUNDS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0, 120.0];

/// Labels of a series.
type Labels = Vec<(&'static str, String)>;

/// The counters of a driver; copies count together.
#[derive(Clone, Debug)]
pub struct Metrics {
    calls: Family<Labels, Counter>,
    seconds: Family<Labels, Histogram>,
}

impl Default for Metrics {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(CALL_BOUNDS);
        Self { calls: Family::default(), seconds: Family::new_with_constructor(histogram) }
    }
}

impl Metrics {
    /// A call has ended.
    pub fn called<T>(&self, call: &'static str, result: &Result<T>, took: Duration) {
        let code = result.as_ref().err().map_or_else(|| "OK".to_owned(), |error| format!("{:?}", error.kind));
        self.calls.get_or_create(&vec![("call", call.to_owned()), ("code", code)]).inc();
        self.seconds.get_or_create(&vec![("call", call.to_owned())]).observe(took.as_secs_f64());
    }

    /// All of it, as OpenMetrics.
    #[must_use]
    pub fn page(&self) -> String {
        let mut registry = Registry::with_prefix("mount_s3_csi_node");
        registry.register("calls", "Calls of the kubelet, by their gRPC code", self.calls.clone());
        registry.register_with_unit(
            "call",
            "How long calls of the kubelet took",
            Unit::Seconds,
            self.seconds.clone(),
        );
        let mut page = String::new();
        // It only fails where a `String` can't grow.
        let _ = encode(&mut page, &registry);
        page
    }
}
