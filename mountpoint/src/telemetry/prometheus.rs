//! The metrics page in the OpenMetrics format of Prometheus.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{self, Registry};

use super::Origin;
use crate::metrics::{Kind, Metric, Unit, Value};

/// The content type of the page.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The page with all metrics, labelled with bucket, prefix and mount point.
pub(super) fn page(metrics: &[Metric], origin: &Origin) -> String {
    let labels =
        [("bucket", &origin.bucket), ("prefix", &origin.prefix), ("mount_point", &origin.mount_point)];
    let labels = labels.into_iter().map(|(name, value)| (name.into(), value.clone().into()));
    let mut registry = Registry::with_labels(labels);
    registry.register_collector(Box::new(Snapshot(metrics.to_vec())));
    let mut page = String::new();
    // Encoding fails only if a `String` can't grow.
    let _ = encode(&mut page, &registry);
    page
}

#[derive(Debug)]
struct Snapshot(Vec<Metric>);

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for metric in self.0.iter().filter(|metric| !metric.series.is_empty()) {
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let (name, unit) = (metric.name.replace('.', "_"), unit(metric));
            let help = metric.help.strip_suffix('.').unwrap_or(metric.help);
            let mut family = encoder.encode_descriptor(&name, help, unit.as_ref(), kind)?;
            for series in &metric.series {
                if series.labels.is_empty() {
                    value(&mut family, metric.kind, &series.value)?;
                } else {
                    value(&mut family.encode_family(&series.labels)?, metric.kind, &series.value)?;
                }
            }
        }
        Ok(())
    }
}

/// The unit to append to the metric's name, unless the name contains it.
fn unit(metric: &Metric) -> Option<registry::Unit> {
    match metric.unit {
        Unit::Count => None,
        Unit::Bytes if metric.name.contains("bytes") => None,
        Unit::Bytes => Some(registry::Unit::Bytes),
        Unit::Seconds => Some(registry::Unit::Seconds),
        Unit::Micros => Some(registry::Unit::Other("microseconds".to_owned())),
    }
}

fn value(encoder: &mut MetricEncoder<'_>, kind: Kind, value: &Value) -> Result<(), std::fmt::Error> {
    match (kind, value) {
        (Kind::Gauge, Value::Number(number)) => encoder.encode_gauge(number),
        (_, Value::Number(number)) => encoder.encode_counter::<NoLabelSet, _, u64>(number, None),
        (_, Value::Distribution(values)) => {
            let bounds = values.bounds.iter().map(|bound| *bound as f64).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(values.counts.iter().copied()).collect();
            encoder.encode_histogram::<NoLabelSet>(values.sum as f64, values.count(), &buckets, None)
        }
    }
}
