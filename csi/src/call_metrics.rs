//! Metrics for Prometheus about the calls that a service answers. Enters: finished calls. Leaves: a page of text.
//!
//! Never here: a clock; the name of a volume: the engine and the reconciler count by volume.

use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::error::Result;

/// Upper bounds of the histogram of calls, in seconds. A mount at a running pod takes milliseconds, one that waits for its pod a second or
/// more.
const CALL_BOUNDS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0, 120.0];

/// Labels of a series.
type Labels = Vec<(&'static str, String)>;

/// The counters of a service. Clones share them.
#[derive(Clone, Debug)]
pub struct CallMetrics {
    service: &'static str,
    calls: Family<Labels, Counter>,
    seconds: Family<Labels, Histogram>,
}

impl CallMetrics {
    /// Counters of a service; their names begin with `service`.
    #[must_use]
    pub fn of(service: &'static str) -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(CALL_BOUNDS);
        Self { service, calls: Family::default(), seconds: Family::new_with_constructor(histogram) }
    }

    /// Counts a call that has ended.
    pub fn called<T>(&self, call: &'static str, result: &Result<T>, took: Duration) {
        let code = result.as_ref().err().map_or_else(|| "OK".to_owned(), |error| format!("{:?}", error.kind));
        self.calls.get_or_create(&vec![("call", call.to_owned()), ("code", code)]).inc();
        self.seconds.get_or_create(&vec![("call", call.to_owned())]).observe(took.as_secs_f64());
    }

    /// The page as OpenMetrics. `other` is a further counter of the service: name, help, counter.
    #[must_use]
    pub fn page(&self, other: Option<(&'static str, &'static str, Counter)>) -> String {
        let mut registry = Registry::with_prefix(self.service);
        registry.register("calls", "Calls by their gRPC code", self.calls.clone());
        if let Some((name, help, counter)) = other {
            registry.register(name, help, counter);
        }
        registry.register_with_unit("call", "How long calls took", Unit::Seconds, self.seconds.clone());
        let mut page = String::new();
        // Writing to a `String` does not fail.
        let _ = encode(&mut page, &registry);
        page
    }
}
