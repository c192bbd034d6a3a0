//! The lines of `--log-metrics`: the changes since the last lines, as text.

use std::fmt::Write as _;

use crate::metrics::{Distribution, Kind, Label, Metric, Unit, Value};

/// A line for each counter that changed, each gauge, and each histogram with new values.
pub(super) fn lines(before: &[Metric], now: &[Metric]) -> Vec<String> {
    let mut lines = Vec::new();
    for metric in now {
        let earlier = before.iter().find(|earlier| earlier.name == metric.name);
        for series in &metric.series {
            let then =
                earlier.and_then(|e| e.series.iter().find(|s| s.labels == series.labels)).map(|s| &s.value);
            let text = match (&series.value, then) {
                (Value::Number(now), _) if metric.kind == Kind::Gauge => Some(now.to_string()),
                (Value::Number(now), Some(Value::Number(then))) => moved(now.saturating_sub(*then), *now),
                (Value::Number(now), _) => moved(*now, *now),
                (Value::Distribution(now), Some(Value::Distribution(then))) => {
                    spread(&now.since(then), metric.unit)
                }
                (Value::Distribution(now), _) => spread(now, metric.unit),
            };
            lines.extend(text.map(|text| format!("{}{}: {text}", metric.name, labels(&series.labels))));
        }
    }
    lines
}

fn moved(by: u64, to: u64) -> Option<String> {
    (by > 0).then(|| format!("+{by} = {to}"))
}

fn spread(values: &Distribution, unit: Unit) -> Option<String> {
    let count = values.count();
    let quantile = |share| values.quantile(share).unwrap_or_default();
    let unit = match unit {
        Unit::Micros => " us",
        Unit::Bytes => " bytes",
        Unit::Seconds => " s",
        Unit::Count => "",
    };
    (count > 0).then(|| {
        format!(
            "n={count} mean={} p50<={} p90<={} p99<={} max<={}{unit}",
            values.sum / count,
            quantile(0.5),
            quantile(0.9),
            quantile(0.99),
            quantile(1.0)
        )
    })
}

fn labels(labels: &[Label]) -> String {
    let mut text = String::new();
    for (i, (name, value)) in labels.iter().enumerate() {
        let _ = write!(text, "{}{name}={value}", if i == 0 { "[" } else { "," });
    }
    if !text.is_empty() {
        text.push(']');
    }
    text
}
