//! A snapshot: each metric with its description, and a value for each combination of labels.

use super::by_name::ByName;
use super::counter::{Counter, Gauge};
use super::histogram::{Distribution, Histogram};

/// One metric at one moment.
#[derive(Clone, Debug)]
pub struct Metric {
    /// The name with dots, in the form of AWS's mount-s3 and OpenTelemetry.
    pub name: &'static str,
    /// The meaning, in one sentence.
    pub help: &'static str,
    /// The unit of the values.
    pub unit: Unit,
    /// The kind of all values.
    pub kind: Kind,
    /// The values, one for each set of labels.
    pub series: Vec<Series>,
}

/// One value and its labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// The labels; none for a metric without dimensions.
    pub labels: Vec<Label>,
    /// The value.
    pub value: Value,
}

/// The name of a dimension and its value.
pub type Label = (&'static str, &'static str);

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A sum that only grows.
    Counter,
    /// A measurement.
    Gauge,
    /// A distribution of values.
    Histogram,
}

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of things.
    Count,
    /// Bytes.
    Bytes,
    /// Microseconds.
    Micros,
    /// Seconds.
    Seconds,
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// The value of a counter or a gauge.
    Number(u64),
    /// The counts of a histogram.
    Distribution(Distribution),
}

/// A metric of which a snapshot can be taken.
pub(super) trait Collect {
    const KIND: Kind;

    fn series(&self) -> Vec<Series>;
}

impl Collect for Counter {
    const KIND: Kind = Kind::Counter;

    fn series(&self) -> Vec<Series> {
        vec![Series { labels: Vec::new(), value: Value::Number(self.get()) }]
    }
}

impl Collect for Gauge {
    const KIND: Kind = Kind::Gauge;

    fn series(&self) -> Vec<Series> {
        vec![Series { labels: Vec::new(), value: Value::Number(self.get()) }]
    }
}

impl Collect for Histogram {
    const KIND: Kind = Kind::Histogram;

    /// An empty one says nothing, and takes more lines than all counters.
    fn series(&self) -> Vec<Series> {
        let distribution = self.get();
        let is_empty = distribution.count() == 0;
        let series = Series { labels: Vec::new(), value: Value::Distribution(distribution) };
        if is_empty { Vec::new() } else { vec![series] }
    }
}

impl<T: Collect> Collect for ByName<T> {
    const KIND: Kind = T::KIND;

    /// The series of a metric: `other` only if it counted, and pairs of two dimensions only if they occurred together.
    fn series(&self) -> Vec<Series> {
        let names = self
            .all()
            .flat_map(|(name, metric)| metric.series().into_iter().map(move |series| (name, series)));
        names
            .filter(|(name, series)| {
                series.value != Value::Number(0) || (series.labels.is_empty() && *name != "other")
            })
            .map(|(name, mut series)| {
                series.labels.insert(0, (self.label(), name));
                series
            })
            .collect()
    }
}
