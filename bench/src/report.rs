//! The figures of a run: kept as samples, shown as medians with their spread.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::stats::{Spread, short};
use crate::workload::{Sample, Scale, Unit, Workload};

const GIB: f64 = (1_u64 << 30) as f64;

/// A whole run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) scale: Scale,
    pub(crate) rounds: usize,
    pub(crate) cpu_counted_by: String,
    pub(crate) rows: Vec<Row>,
}

/// One peer in one workload.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) workload: String,
    pub(crate) about: String,
    pub(crate) unit: Unit,
    pub(crate) peer: String,
    pub(crate) is_floor: bool,
    /// Why there are no figures.
    pub(crate) failure: Option<String>,
    pub(crate) read_ahead_kb: Option<u64>,
    /// What a reader must know of how the peer was started.
    #[serde(default)]
    pub(crate) remark: Option<String>,
    pub(crate) samples: Vec<Sample>,
}

/// A figure that tables and comparisons show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Metric {
    /// GiB/s, items a second, milliseconds each, or seconds: what the unit says.
    Speed,
    /// The daemon's CPU: seconds per GiB or for all, milliseconds per item.
    Cpu,
    ClientCpu,
    PeakRss,
    /// Requests per unit.
    Requests,
    /// Bytes of bodies fetched per byte that the client got.
    Fetched,
    /// What the requests cost per unit, where a GET costs 1.
    Cost,
}

impl Metric {
    pub(crate) const ALL: [Self; 7] =
        [Self::Speed, Self::Cpu, Self::ClientCpu, Self::PeakRss, Self::Requests, Self::Fetched, Self::Cost];

    /// Of one sample; none where it means nothing.
    pub(crate) fn of(self, sample: &Sample, unit: Unit) -> Option<f64> {
        let gib = sample.bytes as f64 / GIB;
        let items = sample.items as f64;
        let per = match unit {
            Unit::GiB => gib,
            Unit::PerSecond | Unit::Each => items,
            Unit::Whole => 1.0,
        };
        let cpu = |seconds: f64| match unit {
            Unit::GiB | Unit::Whole => seconds / per,
            Unit::PerSecond | Unit::Each => seconds * 1e3 / per,
        };
        let figure = match self {
            Self::Speed => match unit {
                Unit::GiB => gib / sample.seconds,
                Unit::PerSecond => items / sample.seconds,
                Unit::Each => sample.seconds * 1e3 / items,
                Unit::Whole => sample.seconds,
            },
            Self::Cpu => cpu(sample.daemon_cpu_s),
            Self::ClientCpu => cpu(sample.client_cpu_s),
            Self::PeakRss => sample.peak_rss_bytes as f64 / f64::from(1 << 20),
            Self::Requests => sample.counts.requests() as f64 / per,
            Self::Fetched if sample.counts.bytes_received > 0 => return None,
            Self::Fetched => sample.counts.bytes_sent as f64 / sample.bytes as f64,
            Self::Cost => sample.counts.cost() as f64 / per,
        };
        figure.is_finite().then_some(figure)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Speed => "speed",
            Self::Cpu => "daemon CPU",
            Self::ClientCpu => "client CPU",
            Self::PeakRss => "peak RSS",
            Self::Requests => "requests",
            Self::Fetched => "fetched/asked",
            Self::Cost => "request cost",
        }
    }

    /// Whether more of it is better.
    pub(crate) fn more_is_better(self, unit: Unit) -> bool {
        self == Self::Speed && matches!(unit, Unit::GiB | Unit::PerSecond)
    }

    pub(crate) fn unit(self, unit: Unit) -> &'static str {
        match (self, unit) {
            (Self::Speed, Unit::GiB) => "GiB/s",
            (Self::Speed, Unit::PerSecond) => "/s",
            (Self::Speed, Unit::Each) => "ms each",
            (Self::Speed | Self::Cpu | Self::ClientCpu, Unit::Whole) => "s",
            (Self::Cpu | Self::ClientCpu, Unit::GiB) => "s/GiB",
            (Self::Cpu | Self::ClientCpu, Unit::PerSecond | Unit::Each) => "ms each",
            (Self::PeakRss, _) => "MiB",
            (Self::Requests | Self::Cost, Unit::GiB) => "/GiB",
            (Self::Requests | Self::Cost, Unit::PerSecond | Unit::Each) => "each",
            (Self::Requests | Self::Cost, Unit::Whole) | (Self::Fetched, _) => "",
        }
    }
}

impl Row {
    pub(crate) fn new(workload: &Workload, peer: &str, is_floor: bool) -> Self {
        Self {
            workload: workload.name.to_owned(),
            about: workload.about.to_owned(),
            unit: workload.unit,
            peer: peer.to_owned(),
            is_floor,
            failure: None,
            read_ahead_kb: None,
            remark: None,
            samples: Vec::new(),
        }
    }

    /// A figure over all rounds; none for a peer that failed.
    pub(crate) fn spread(&self, metric: Metric) -> Option<Spread> {
        if self.failure.is_some() {
            return None;
        }
        let figures: Vec<f64> =
            self.samples.iter().filter_map(|sample| metric.of(sample, self.unit)).collect();
        Spread::of(&figures)
    }

    /// Speed and CPU of the last round, for the person who waits.
    pub(crate) fn latest(&self) -> String {
        let Some(sample) = self.samples.last() else { return "nothing yet".to_owned() };
        let shown = [Metric::Speed, Metric::Cpu].into_iter().filter_map(|metric| {
            Some(format!(
                "{} {} {}",
                metric.name(),
                short(metric.of(sample, self.unit)?),
                metric.unit(self.unit)
            ))
        });
        shown.collect::<Vec<_>>().join(", ")
    }

    /// Whether close returned before the store had everything, in any round.
    fn stores_later(&self) -> bool {
        self.samples.iter().any(|sample| sample.stored_at_close == Some(false))
    }

    pub(crate) fn notes(&self) -> String {
        let mut notes: Vec<String> = self.remark.iter().cloned().collect();
        if self.stores_later() {
            notes.push("close returns before it is stored: no rival".to_owned());
        }
        if let Some(errors) =
            self.samples.iter().map(|sample| sample.counts.errors).max().filter(|errors| *errors > 0)
        {
            notes.push(format!("4xx: {errors}"));
        }
        notes.join("; ")
    }
}

/// The run as a Markdown table.
pub(crate) fn markdown(report: &Report) -> String {
    let mut out = String::new();
    let Report { machine, scale, rounds, cpu_counted_by, rows } = report;
    let _ = writeln!(out, "{}.", machine.line());
    let _ = writeln!(
        out,
        "Medians of {rounds} interleaved rounds (least to most); big files of {} MiB, {} small files, {} names, a tree of {} \
         files; CPU counted by {cpu_counted_by}.\n",
        scale.big_bytes >> 20,
        scale.files,
        scale.names,
        scale.tree,
    );
    out.push_str("| workload | file system | speed | daemon CPU | client CPU | peak RSS MiB | requests | fetched/asked | cost | |\n");
    out.push_str("|---|---|---|---|---|---|---|---|---|---|\n");
    let mut last = "";
    for row in rows {
        let title =
            if row.workload == last { String::new() } else { format!("**{}**: {}", row.workload, row.about) };
        last = &row.workload;
        let _ = write!(out, "| {title} | {} |", row.peer);
        if let Some(failure) = &row.failure {
            let reason: String = failure.replace(['|', '\n'], "/").chars().take(200).collect();
            let _ = writeln!(out, " failed | | | | | | | {reason} |");
            continue;
        }
        for metric in Metric::ALL {
            let _ = write!(
                out,
                " {} |",
                row.spread(metric).map_or_else(String::new, |spread| cell(metric, row.unit, spread))
            );
        }
        let _ = writeln!(out, " {} |", row.notes());
    }
    out
}

/// A figure as tables show it.
pub(crate) fn cell(metric: Metric, unit: Unit, spread: Spread) -> String {
    let Spread { median, min, max } = spread;
    match metric {
        Metric::Speed | Metric::Cpu if min < max => {
            format!("{} {} ({}-{})", short(median), metric.unit(unit), short(min), short(max))
        }
        Metric::PeakRss | Metric::Fetched => short(median),
        _ => format!("{} {}", short(median), metric.unit(unit)).trim_end().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::counters::Counts;

    fn sample() -> Sample {
        Sample {
            seconds: 2.0,
            bytes: 4 << 30,
            items: 8,
            daemon_cpu_s: 1.0,
            client_cpu_s: 0.5,
            peak_rss_bytes: 64 << 20,
            counts: Counts { get: 12, list: 1, bytes_sent: 6 << 30, ..Counts::default() },
            ..Sample::default()
        }
    }

    #[test]
    fn each_unit_counts_speed_and_cost_its_own_way() {
        let figures = |unit| Metric::ALL.map(|metric| metric.of(&sample(), unit).unwrap());
        assert_eq!(figures(Unit::GiB), [2.0, 0.25, 0.125, 64.0, 3.25, 1.5, 6.0]);
        assert_eq!(figures(Unit::PerSecond), [4.0, 125.0, 62.5, 64.0, 1.625, 1.5, 3.0]);
        assert_eq!(figures(Unit::Each), [250.0, 125.0, 62.5, 64.0, 1.625, 1.5, 3.0]);
        assert_eq!(figures(Unit::Whole), [2.0, 1.0, 0.5, 64.0, 13.0, 1.5, 24.0]);
    }

    #[test]
    fn a_peer_that_failed_is_shown_with_its_reason_and_without_figures() {
        let mut row = Row::new(&crate::workload::WORKLOADS[0], "x", false);
        row.samples.push(sample());
        let report = |row: Row| markdown(&Report { rows: vec![row], ..Report::default() });
        assert!(report(row.clone()).contains("2.00 GiB/s"));
        row.failure = Some("it | fell".to_owned());
        let shown = report(row);
        assert!(
            shown.contains("failed") && shown.contains("it / fell") && !shown.contains("GiB/s"),
            "{shown}"
        );
    }

    #[test]
    fn a_writer_that_stores_after_close_is_marked() {
        let mut row = Row::new(&crate::workload::WORKLOADS[0], "x", false);
        row.samples = vec![Sample { stored_at_close: Some(true), ..sample() }];
        assert_eq!(row.notes(), "");
        row.samples.push(Sample { stored_at_close: Some(false), ..sample() });
        assert!(row.notes().contains("no rival"));
    }
}
