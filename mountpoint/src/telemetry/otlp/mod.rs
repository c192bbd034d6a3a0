//! Metrics in OpenTelemetry's protocol (OTLP, http/protobuf), posted every interval and once more at the end of the mount.
//!
//! Enters: snapshots of the metrics, and a [`Post`] that sends requests. Leaves: one message per interval. A failed export is not repeated:
//! the next one includes its changes.

mod message;
mod settings;

use std::future::Future;
use std::pin::Pin;
use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderValue, Request, header};
use prost::Message as _;

pub use settings::{Settings, Variable};

use super::{Origin, Telemetry};
use crate::metrics::{Kind, Label, Metric, Series, Unit, Value};
use crate::sync::{Arc, Mutex};
use message::{
    AnyValue, CUMULATIVE, DELTA, Data, ExportMetricsServiceRequest, Gauge, Histogram, HistogramDataPoint,
    KeyValue, NumberDataPoint, Resource, ResourceMetrics, Scope, ScopeMetrics, Sum,
};

/// Posts a request and returns the status of its answer, or the reason why there was none, as a sentence.
pub type Post =
    Arc<dyn Fn(Request<Bytes>) -> Pin<Box<dyn Future<Output = Result<u16, String>> + Send>> + Send + Sync>;

/// Exports the metrics of one mount.
pub(super) struct Exporter {
    settings: Settings,
    post: Post,
    last: Mutex<Last>,
}

/// The state after the last successful export.
struct Last {
    metrics: Vec<Metric>,
    at: SystemTime,
    failing: bool,
}

impl Exporter {
    pub(super) fn new(settings: Settings, post: Post, began: SystemTime) -> Self {
        Self { settings, post, last: Mutex::new(Last { metrics: Vec::new(), at: began, failing: false }) }
    }

    /// Exports every interval, for ever.
    pub(super) async fn keep(&self, telemetry: &Telemetry) {
        loop {
            telemetry.clock.sleep(self.settings.interval).await;
            self.export(telemetry).await;
        }
    }

    /// Exports once. Logs a line when exports begin to fail, and when they succeed again.
    pub(super) async fn export(&self, telemetry: &Telemetry) {
        telemetry.measure();
        let (now, at) = (telemetry.metrics.snapshot(), telemetry.clock.wall());
        let message = {
            let last = self.last.lock();
            let since = if self.settings.delta { last.at } else { telemetry.started };
            let before = if self.settings.delta { last.metrics.as_slice() } else { &[] };
            message(
                &now,
                before,
                &Span { since, at, delta: self.settings.delta },
                &self.settings,
                &telemetry.origin,
            )
        };
        let sent = match self.request(message) {
            Ok(request) => match telemetry.clock.timeout(self.settings.timeout, (self.post)(request)).await {
                Some(Ok(200..=299)) => Ok(()),
                Some(Ok(status)) => Err(format!("the receiver answers {status}")),
                Some(Err(why)) => Err(why),
                None => Err(format!("no answer within {} ms", self.settings.timeout.as_millis())),
            },
            Err(error) => Err(error.to_string()),
        };
        let mut last = self.last.lock();
        let failed_before = std::mem::replace(&mut last.failing, sent.is_err());
        match sent {
            Ok(()) => {
                (last.metrics, last.at) = (now, at);
                if failed_before {
                    tracing::warn!("metrics are exported again to {}", self.settings.url);
                }
            }
            Err(why) if !failed_before => tracing::warn!(
                "metrics can't be exported to {}: {why}; look at the receiver and at --otlp-endpoint; the mount goes on",
                self.settings.url
            ),
            Err(why) => tracing::debug!("metrics can't be exported: {why}"),
        }
    }

    fn request(&self, message: ExportMetricsServiceRequest) -> http::Result<Request<Bytes>> {
        let mut request = Request::post(&self.settings.url).body(Bytes::from(message.encode_to_vec()))?;
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        headers.insert(
            header::USER_AGENT,
            HeaderValue::from_static(concat!("mount-s3/", env!("CARGO_PKG_VERSION"))),
        );
        headers.extend(self.settings.headers.iter().cloned());
        Ok(request)
    }
}

/// The time that a message covers.
struct Span {
    since: SystemTime,
    at: SystemTime,
    delta: bool,
}

impl Span {
    fn nanos(at: SystemTime) -> u64 {
        let since_1970 = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX)
    }

    fn temporality(&self) -> i32 {
        if self.delta { DELTA } else { CUMULATIVE }
    }
}

fn pair(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { string_value: Some(value.to_owned()) }) }
}

/// All metrics in one message. `before` is empty if values are cumulative.
fn message(
    now: &[Metric],
    before: &[Metric],
    span: &Span,
    settings: &Settings,
    origin: &Origin,
) -> ExportMetricsServiceRequest {
    let metrics = now.iter().filter_map(|metric| {
        let earlier = before.iter().find(|earlier| earlier.name == metric.name);
        let data = data(metric, earlier, span, origin)?;
        Some(message::Metric {
            name: metric.name.to_owned(),
            description: metric.help.to_owned(),
            unit: match metric.unit {
                Unit::Count => "1",
                Unit::Bytes => "By",
                Unit::Micros => "us",
                Unit::Seconds => "s",
            }
            .to_owned(),
            data: Some(data),
        })
    });
    let scope = Scope { name: "mount-s3".to_owned(), version: origin.version.clone() };
    let scope_metrics = vec![ScopeMetrics { scope: Some(scope), metrics: metrics.collect() }];
    let resource =
        Resource { attributes: settings.resource.iter().map(|(key, value)| pair(key, value)).collect() };
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics { resource: Some(resource), scope_metrics }],
    }
}

/// The data points of one metric; `None` without any.
fn data(metric: &Metric, earlier: Option<&Metric>, span: &Span, origin: &Origin) -> Option<Data> {
    let then =
        |series: &Series| earlier?.series.iter().find(|s| s.labels == series.labels).map(|s| s.value.clone());
    let (start, end) = (Span::nanos(span.since), Span::nanos(span.at));
    let (mut numbers, mut histograms) = (Vec::new(), Vec::new());
    for series in &metric.series {
        let attributes = attributes(&series.labels, origin);
        match (&series.value, then(series)) {
            (Value::Number(now), then) => {
                let then = match then {
                    Some(Value::Number(then)) if metric.kind == Kind::Counter => then,
                    _ => 0,
                };
                let changed = now.saturating_sub(then);
                numbers.push(NumberDataPoint {
                    start_time_unix_nano: if metric.kind == Kind::Counter { start } else { 0 },
                    time_unix_nano: end,
                    as_int: Some(i64::try_from(changed).unwrap_or(i64::MAX)),
                    attributes,
                });
            }
            (Value::Distribution(now), then) => {
                let values = match then {
                    Some(Value::Distribution(then)) => now.since(&then),
                    _ => now.clone(),
                };
                histograms.push(HistogramDataPoint {
                    start_time_unix_nano: start,
                    time_unix_nano: end,
                    count: values.count(),
                    sum: Some(values.sum as f64),
                    explicit_bounds: values.bounds.iter().map(|bound| *bound as f64).collect(),
                    bucket_counts: values.counts,
                    attributes,
                });
            }
        }
    }
    let aggregation_temporality = span.temporality();
    match metric.kind {
        _ if numbers.is_empty() && histograms.is_empty() => None,
        Kind::Gauge => Some(Data::Gauge(Gauge { data_points: numbers })),
        Kind::Counter => {
            Some(Data::Sum(Sum { data_points: numbers, aggregation_temporality, is_monotonic: true }))
        }
        Kind::Histogram => {
            Some(Data::Histogram(Histogram { data_points: histograms, aggregation_temporality }))
        }
    }
}

fn attributes(labels: &[Label], origin: &Origin) -> Vec<KeyValue> {
    let mount = [
        ("bucket", origin.bucket.as_str()),
        ("prefix", &origin.prefix),
        ("mount_point", &origin.mount_point),
    ];
    mount.into_iter().chain(labels.iter().copied()).map(|(key, value)| pair(key, value)).collect()
}

#[cfg(test)]
mod tests;
