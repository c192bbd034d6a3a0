//! Tests of the messages, decoded as a receiver does it: with the types of the published protocol.

use std::collections::VecDeque;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest as Published;
use opentelemetry_proto::tonic::common::v1::any_value;
use opentelemetry_proto::tonic::metrics::v1::{metric, number_data_point};

use super::super::tests::telemetry;
use super::*;

/// A receiver, with its received messages and its answers.
#[derive(Clone, Default)]
struct Receiver {
    got: Arc<Mutex<Vec<Request<Bytes>>>>,
    answers: Arc<Mutex<VecDeque<Result<u16, String>>>>,
}

impl Receiver {
    fn post(&self) -> Post {
        let this = self.clone();
        Arc::new(move |request| {
            this.got.lock().push(request);
            let answer = this.answers.lock().pop_front().unwrap_or(Ok(200));
            Box::pin(async move { answer })
        })
    }

    fn last(&self) -> Published {
        Published::decode(self.got.lock().last().expect("a request").body().clone())
            .expect("the published message")
    }
}

fn exporter(receiver: &Receiver, told: &Telemetry, variables: &[(&str, &str)]) -> Exporter {
    let variable =
        |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, v)| (*v).to_owned());
    let settings = Settings::read(Some("http://collector:4318"), None, &variable).unwrap().unwrap();
    Exporter::new(settings, receiver.post(), told.started)
}

fn data(message: &Published, name: &str) -> metric::Data {
    let metrics = &message.resource_metrics[0].scope_metrics[0].metrics;
    metrics.iter().find(|metric| metric.name == name).and_then(|metric| metric.data.clone()).expect(name)
}

/// The value of the counter's point with this attribute, its span and its temporality.
fn sum(message: &Published, name: &str, attribute: &str) -> (i64, u64, i32) {
    let metric::Data::Sum(sum) = data(message, name) else { panic!("{name} is not a sum") };
    assert!(sum.is_monotonic);
    let has = |value: &str| {
        let value = any_value::Value::StringValue(value.to_owned());
        move |pair: &opentelemetry_proto::tonic::common::v1::KeyValue| {
            pair.value.as_ref().and_then(|v| v.value.as_ref()) == Some(&value)
        }
    };
    let point =
        sum.data_points.iter().find(|point| point.attributes.iter().any(has(attribute))).expect("a point");
    assert!(point.attributes.iter().any(has("photos")) && point.attributes.iter().any(has("/mnt/p")));
    let Some(number_data_point::Value::AsInt(value)) = point.value else { panic!("{point:?}") };
    (value, point.time_unix_nano - point.start_time_unix_nano, sum.aggregation_temporality)
}

#[tokio::test]
async fn a_standard_receiver_reads_names_units_attributes_and_values() {
    let (receiver, told) = (Receiver::default(), telemetry());
    told.metrics.s3_requests.of("GetObject").add(3);
    told.metrics.fuse_latency.of("read").took(Duration::from_micros(40));
    let variables =
        [("OTEL_RESOURCE_ATTRIBUTES", "team=storage"), ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=hush")];
    told.clock.advance(Duration::from_secs(60));
    exporter(&receiver, &told, &variables).export(&told).await;

    let message = receiver.last();
    let resource = message.resource_metrics[0].resource.clone().unwrap();
    let keys: Vec<_> = resource.attributes.iter().map(|pair| pair.key.as_str()).collect();
    assert_eq!(keys, ["team", "service.name"]);
    assert_eq!(sum(&message, "s3.request_count", "GetObject"), (3, 60_000_000_000, DELTA));
    assert_eq!(sum(&message, "s3.request_count", "PutObject").0, 0);
    let metric::Data::Histogram(histogram) = data(&message, "fuse.request_latency") else {
        panic!("no histogram")
    };
    let point = &histogram.data_points[0];
    assert_eq!(
        (point.count, point.sum, point.bucket_counts.len()),
        (1, Some(40.0), point.explicit_bounds.len() + 1)
    );
    let place = point.explicit_bounds.iter().position(|bound| *bound == 50.0).unwrap();
    assert_eq!(point.bucket_counts[place], 1);
    let metric::Data::Gauge(gauge) = data(&message, "memory.target") else { panic!("no gauge") };
    assert_eq!(gauge.data_points[0].value, Some(number_data_point::Value::AsInt(128 << 20)));
    let metrics = &message.resource_metrics[0].scope_metrics[0].metrics;
    assert_eq!(metrics.iter().find(|m| m.name == "fuse.request_latency").unwrap().unit, "us");

    let got = receiver.got.lock();
    assert_eq!(got[0].uri(), "http://collector:4318/v1/metrics");
    assert_eq!(
        (&got[0].headers()["content-type"], &got[0].headers()["x-key"]),
        (&"application/x-protobuf".parse().unwrap(), &"hush".parse().unwrap())
    );
}

#[tokio::test]
async fn changes_of_an_export_that_failed_are_in_the_next_one() {
    let (receiver, told) = (Receiver::default(), telemetry());
    let exporter = exporter(&receiver, &told, &[]);
    let export = async |count: u64| {
        told.metrics.s3_requests.of("GetObject").add(count);
        told.clock.advance(Duration::from_secs(60));
        exporter.export(&told).await;
        let (value, span, temporality) = sum(&receiver.last(), "s3.request_count", "GetObject");
        assert_eq!(temporality, DELTA);
        (value, span / 1_000_000_000)
    };
    assert_eq!(export(5).await, (5, 60));
    receiver.answers.lock().extend([Ok(503), Err("no connection".to_owned())]);
    assert_eq!(export(1).await, (1, 60));
    assert_eq!(export(1).await, (2, 120));
    assert_eq!(export(1).await, (3, 180));
    assert_eq!(export(0).await, (0, 60));
}

#[tokio::test]
async fn cumulative_sums_begin_with_the_mount() {
    let (receiver, told) = (Receiver::default(), telemetry());
    let exporter =
        exporter(&receiver, &told, &[("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "cumulative")]);
    for wanted in [(5, 60), (10, 120)] {
        told.metrics.s3_requests.of("GetObject").add(5);
        told.clock.advance(Duration::from_secs(60));
        exporter.export(&told).await;
        let (value, span, temporality) = sum(&receiver.last(), "s3.request_count", "GetObject");
        assert_eq!((value, span / 1_000_000_000, temporality), (wanted.0, wanted.1, CUMULATIVE));
    }
}

#[test]
fn the_log_says_once_that_exports_fail_and_once_that_they_work_again() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (receiver, told) = (Receiver::default(), telemetry());
    receiver.answers.lock().extend([Ok(401), Ok(401), Ok(200), Ok(200)]);
    let exporter = exporter(&receiver, &told, &[("OTEL_EXPORTER_OTLP_HEADERS", "x-key=hush")]);
    let log = crate::testing::log_of(|| {
        for _ in 0..4 {
            runtime.block_on(exporter.export(&told));
        }
    });
    assert_eq!(log.matches("can't be exported to http://collector:4318/v1/metrics").count(), 1, "{log}");
    assert_eq!(log.matches("exported again").count(), 1, "{log}");
    assert!(!log.contains("hush"), "{log}");
}
