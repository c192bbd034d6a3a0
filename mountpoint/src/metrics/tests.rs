//! Each metric counts its events, and a snapshot shows them.

use std::time::Duration;

use super::*;

fn metric(metrics: &Metrics, name: &str) -> Metric {
    metrics.snapshot().into_iter().find(|metric| metric.name == name).unwrap()
}

#[test]
fn a_name_that_a_dimension_does_not_know_counts_as_other() {
    let metrics = Metrics::default();
    metrics.s3_requests.of("GetObject").add(2);
    metrics.s3_requests.of("InventObject").inc();
    assert_eq!(metrics.s3_requests.get(), 3);
    let series = metric(&metrics, "s3.request_count").series;
    let of = |name| series.iter().find(|s| s.labels == [("s3_request", name)]).map(|s| s.value.clone());
    assert_eq!(of("GetObject"), Some(Value::Number(2)));
    assert_eq!(of("PutObject"), Some(Value::Number(0)), "a rate needs the zero before");
    assert_eq!(of("other"), Some(Value::Number(1)));
    assert_eq!(of("InventObject"), None);
}

#[test]
fn errors_have_the_request_and_the_status() {
    let metrics = Metrics::default();
    metrics.s3_errors.of("HeadObject").of("403").inc();
    metrics.s3_errors.of("HeadObject").of("418").inc();
    let series = metric(&metrics, "s3.request_errors").series;
    assert_eq!(
        series.iter().map(|s| s.labels.as_slice()).collect::<Vec<_>>(),
        [
            [("s3_request", "HeadObject"), ("http_status", "403")],
            [("s3_request", "HeadObject"), ("http_status", "other")]
        ]
    );
    assert_eq!(metrics.s3_errors.get(), 2);
}

#[test]
fn a_value_counts_below_the_first_limit_that_it_does_not_exceed() {
    let histogram = Histogram::of_micros();
    for micros in [0, 10, 11, 60_000_000, 60_000_001, u64::MAX / 4] {
        histogram.took(Duration::from_micros(micros));
    }
    let seen = histogram.get();
    assert_eq!((seen.counts[0], seen.counts[1]), (2, 1));
    assert_eq!((seen.counts[seen.bounds.len() - 1], seen.counts[seen.bounds.len()]), (1, 2));
    assert_eq!((seen.count(), seen.sum), (6, 21 + 120_000_001 + u64::MAX / 4));
}

#[test]
fn a_gauge_goes_back_when_its_guards_are_dropped() {
    let gauge = Gauge::default();
    let (thread, other) = (gauge.raised(), gauge.raised());
    let busy = gauge.lowered();
    assert_eq!(gauge.get(), 1);
    drop(busy);
    drop(other);
    assert_eq!(gauge.get(), 1);
    drop(thread);
    assert_eq!(gauge.get(), 0);
}

#[test]
fn limits_of_histograms_grow() {
    for histogram in [Histogram::of_micros(), Histogram::of_bytes()] {
        let bounds = histogram.get().bounds;
        assert!(bounds.windows(2).all(|pair| pair[0] < pair[1]), "{bounds:?}");
    }
}

#[test]
fn a_quantile_is_the_limit_that_so_many_values_stay_below() {
    let histogram = Histogram::of_micros();
    assert_eq!(histogram.get().quantile(0.5), None);
    (0..98).for_each(|_| histogram.record(20));
    let before = histogram.get();
    histogram.record(900);
    histogram.record(100_000_000);
    let seen = histogram.get();
    assert_eq!(
        [0.0, 0.5, 0.99, 1.0].map(|share| seen.quantile(share)),
        [25, 25, 1_000, 60_000_000].map(Some)
    );
    assert_eq!(seen.since(&before).quantile(0.5), Some(1_000));
    assert_eq!(seen.since(&before).sum, 100_000_900);
}

#[test]
fn every_metric_has_a_name_of_its_own_and_a_sentence() {
    let snapshot = Metrics::default().snapshot();
    let mut names: Vec<_> = snapshot.iter().map(|metric| metric.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), snapshot.len());
    for metric in snapshot {
        assert!(metric.help.ends_with('.') && !metric.help.starts_with(' '), "{metric:?}");
    }
}
