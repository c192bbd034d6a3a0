//! The figures of a run: stored as samples, shown as medians with their spread.

use std::collections::BTreeSet;
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
    /// CPU seconds per second of the kernel's own threads, before anything was measured.
    #[serde(default)]
    pub(crate) kernel_threads_idle: Option<f64>,
    pub(crate) rows: Vec<Row>,
}

impl Report {
    /// Keeps only the rows of these workloads, in their order; all rows without names. `floors`: whether to keep floors.
    ///
    /// # Errors
    /// The report has no such workload.
    pub(crate) fn only(mut self, workloads: &[String], floors: bool) -> anyhow::Result<Self> {
        self.rows.retain(|row| floors || !row.is_floor);
        if workloads.is_empty() {
            return Ok(self);
        }
        let mut rows = Vec::new();
        for name in workloads {
            let of_it = self.rows.iter().filter(|row| row.workload == *name);
            let before = rows.len();
            rows.extend(of_it.cloned());
            anyhow::ensure!(rows.len() > before, "the run has no workload {name}");
        }
        self.rows = rows;
        Ok(self)
    }
}

/// One peer in one workload.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) workload: String,
    pub(crate) about: String,
    pub(crate) unit: Unit,
    pub(crate) peer: String,
    pub(crate) is_floor: bool,
    /// The reason for missing figures.
    pub(crate) failure: Option<String>,
    pub(crate) read_ahead_kb: Option<u64>,
    /// A remark for the reader about how the peer was started.
    #[serde(default)]
    pub(crate) remark: Option<String>,
    pub(crate) samples: Vec<Sample>,
}

/// A figure that tables and comparisons show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Metric {
    /// GiB/s, items per second, milliseconds each, or seconds, according to the unit.
    Speed,
    /// The daemon's CPU time: seconds per GiB or in all, milliseconds per item.
    Cpu,
    ClientCpu,
    /// CPU time of the kernel's own threads, which work for all programs.
    KernelThreads,
    PeakRss,
    /// Requests per unit.
    Requests,
    /// Bytes of bodies that the daemon received per byte that the client got.
    Fetched,
    /// Price of the requests per unit, in GETs.
    Cost,
    /// Milliseconds until the first name of a listing arrives.
    FirstName,
    /// The 99th percentile of the latency of reads, in milliseconds.
    P99,
    /// Listed keys that the client did not see, in per cent of the names that it saw.
    InVain,
    /// The daemon's CPU time for each name that the client saw, in microseconds.
    CpuName,
    /// The daemon's memory some time after the work. The next metric: after the kernel has forgotten all names.
    RestRss,
    ForgottenRss,
    /// Calls of futex by the daemon's threads, per unit. The next metrics: waits for kernel locks, context switches, migrations.
    Futex,
    KernelLocks,
    Switches,
    Migrations,
}

impl Metric {
    pub(crate) const ALL: [Self; 18] = [
        Self::Speed,
        Self::Cpu,
        Self::ClientCpu,
        Self::KernelThreads,
        Self::PeakRss,
        Self::Requests,
        Self::Fetched,
        Self::Cost,
        Self::FirstName,
        Self::P99,
        Self::InVain,
        Self::CpuName,
        Self::RestRss,
        Self::ForgottenRss,
        Self::Futex,
        Self::KernelLocks,
        Self::Switches,
        Self::Migrations,
    ];
    /// Metrics whose column is shown only if a row has a figure for it.
    const RARE: [Self; 11] = [
        Self::KernelThreads,
        Self::FirstName,
        Self::P99,
        Self::InVain,
        Self::CpuName,
        Self::RestRss,
        Self::ForgottenRss,
        Self::Futex,
        Self::KernelLocks,
        Self::Switches,
        Self::Migrations,
    ];

    /// The figure of one sample; `None` if the metric does not apply.
    pub(crate) fn of(self, sample: &Sample, unit: Unit) -> Option<f64> {
        let gib = sample.bytes as f64 / GIB;
        let items = sample.items as f64;
        let per = match unit {
            Unit::GiB => gib,
            Unit::PerSecond | Unit::Each => items,
            Unit::Whole => 1.0,
        };
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let names = sample.names as f64;
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
            Self::KernelThreads => cpu(sample.kernel_cpu_s?),
            Self::PeakRss => mib(sample.peak_rss_bytes),
            Self::Requests => sample.counts.requests() as f64 / per,
            Self::Fetched if sample.counts.bytes_received > 0 => return None,
            Self::Fetched => sample.counts.bytes_sent as f64 / sample.bytes as f64,
            Self::Cost => sample.counts.cost() as f64 / per,
            Self::FirstName => sample.first_s? * 1e3,
            Self::P99 => sample.p99_s? * 1e3,
            Self::InVain | Self::CpuName if sample.names == 0 => return None,
            Self::InVain => (sample.counts.keys_sent as f64 - names).max(0.0) / names * 100.0,
            Self::CpuName => sample.daemon_cpu_s * 1e6 / names,
            Self::RestRss => mib(sample.rest_rss_bytes?),
            Self::ForgottenRss => mib(sample.forgotten_rss_bytes?),
            Self::Futex => sample.waits?.futex as f64 / per,
            Self::KernelLocks => sample.waits?.kernel_locks as f64 / per,
            Self::Switches => sample.waits?.switches as f64 / per,
            Self::Migrations => sample.waits?.migrations as f64 / per,
        };
        figure.is_finite().then_some(figure)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Speed => "speed",
            Self::Cpu => "daemon CPU",
            Self::ClientCpu => "client CPU",
            Self::KernelThreads => "kernel threads",
            Self::PeakRss => "peak RSS",
            Self::Requests => "requests",
            Self::Fetched => "fetched/asked",
            Self::Cost => "request cost",
            Self::FirstName => "first name",
            Self::P99 => "99 of 100 within",
            Self::InVain => "keys in vain",
            Self::CpuName => "daemon CPU a name",
            Self::RestRss => "RSS at rest",
            Self::ForgottenRss => "RSS once forgotten",
            Self::Futex => "futex calls",
            Self::KernelLocks => "waits for kernel locks",
            Self::Switches => "thread switches",
            Self::Migrations => "to another processor",
        }
    }

    /// The title of the metric's column.
    fn title(self) -> &'static str {
        match self {
            Self::PeakRss => "peak RSS MiB",
            Self::Cost => "cost",
            other => other.name(),
        }
    }

    /// Whether a larger figure is better.
    pub(crate) fn more_is_better(self, unit: Unit) -> bool {
        self == Self::Speed && matches!(unit, Unit::GiB | Unit::PerSecond)
    }

    pub(crate) fn unit(self, unit: Unit) -> &'static str {
        match (self, unit) {
            (Self::Speed, Unit::GiB) => "GiB/s",
            (Self::Speed, Unit::PerSecond) => "/s",
            (Self::Speed, Unit::Each) => "ms each",
            (Self::Speed | Self::Cpu | Self::ClientCpu | Self::KernelThreads, Unit::Whole) => "s",
            (Self::Cpu | Self::ClientCpu | Self::KernelThreads, Unit::GiB) => "s/GiB",
            (Self::Cpu | Self::ClientCpu | Self::KernelThreads, Unit::PerSecond | Unit::Each) => "ms each",
            (Self::PeakRss | Self::RestRss | Self::ForgottenRss, _) => "MiB",
            (Self::FirstName | Self::P99, _) => "ms",
            (Self::InVain, _) => "%",
            (Self::CpuName, _) => "us",
            (Self::Fetched, _) => "",
            // All other metrics are counts.
            (_, Unit::GiB) => "/GiB",
            (_, Unit::PerSecond | Unit::Each) => "each",
            (_, Unit::Whole) => "",
        }
    }
}

impl Report {
    /// The metrics of the tables. Rare ones are included if a row has a figure.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let seen = |metric| self.rows.iter().any(|row| row.spread(metric).is_some());
        let shown = |metric: &Metric| !Metric::RARE.contains(metric) || seen(*metric);
        Metric::ALL.into_iter().filter(shown).collect()
    }

    /// The conditions of the run, for the head: how CPU time was counted, the CPU time of kernel threads before, the mounts' read-ahead.
    pub(crate) fn conditions(&self) -> String {
        let mut out = self.cpu_counted_by.clone();
        if let Some(idle) = self.kernel_threads_idle {
            let _ = write!(out, "; kernel threads {} s a second before the run", short(idle));
        }
        let mut mounts: Vec<(&str, BTreeSet<u64>)> = Vec::new();
        for row in &self.rows {
            let Some(kib) = row.read_ahead_kb else { continue };
            if let Some((_, known)) = mounts.iter_mut().find(|(peer, _)| *peer == row.peer) {
                known.insert(kib);
            } else {
                mounts.push((&row.peer, BTreeSet::from([kib])));
            }
        }
        let all: BTreeSet<u64> = mounts.iter().flat_map(|(_, known)| known).copied().collect();
        let shown = |known: &BTreeSet<u64>| {
            let known: Vec<_> = known.iter().map(u64::to_string).collect();
            format!("{} KiB", known.join(" or "))
        };
        if all.len() == 1 {
            let _ = write!(out, "; read-ahead of every mount {}", shown(&all));
        } else if !all.is_empty() {
            let each: Vec<_> =
                mounts.iter().map(|(peer, known)| format!("{peer} {}", shown(known))).collect();
            let _ = write!(out, "; read-ahead: {}", each.join(", "));
        }
        out
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

    /// The spread of a figure over all rounds; `None` for a peer that failed.
    pub(crate) fn spread(&self, metric: Metric) -> Option<Spread> {
        if self.failure.is_some() {
            return None;
        }
        let figures: Vec<f64> =
            self.samples.iter().filter_map(|sample| metric.of(sample, self.unit)).collect();
        Spread::of(&figures)
    }

    /// Speed and CPU of the last round, to show progress.
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

    /// Whether the store did not have everything when close returned, in any round.
    pub(crate) fn stores_later(&self) -> bool {
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
    let Report { machine, scale, rounds, rows, .. } = report;
    let metrics = report.metrics();
    let _ = writeln!(out, "{}.", machine.line());
    let _ = writeln!(
        out,
        "Medians of {rounds} interleaved rounds (least to most); big files of {} MiB, {} small files, {} names, a tree of {} \
         files; CPU counted by {}.\n",
        scale.big_bytes >> 20,
        scale.files,
        scale.names,
        scale.tree,
        report.conditions(),
    );
    let titles: String = metrics.iter().map(|metric| format!(" {} |", metric.title())).collect();
    let _ = writeln!(out, "| workload | file system |{titles} |");
    let _ = writeln!(out, "|{}", "---|".repeat(metrics.len() + 3));
    let mut last = "";
    for row in rows {
        let title =
            if row.workload == last { String::new() } else { format!("**{}**: {}", row.workload, row.about) };
        last = &row.workload;
        let _ = write!(out, "| {title} | {} |", row.peer);
        if let Some(failure) = &row.failure {
            let reason: String = failure.replace(['|', '\n'], "/").chars().take(200).collect();
            let _ = writeln!(out, " failed |{} {reason} |", " |".repeat(metrics.len() - 1));
            continue;
        }
        for metric in metrics.iter().copied() {
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

/// A figure as the text of a cell.
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
    use crate::waits::Waits;

    fn sample() -> Sample {
        Sample {
            seconds: 2.0,
            bytes: 4 << 30,
            items: 8,
            daemon_cpu_s: 1.0,
            client_cpu_s: 0.5,
            kernel_cpu_s: Some(0.25),
            peak_rss_bytes: 64 << 20,
            counts: Counts { get: 12, list: 1, bytes_sent: 6 << 30, ..Counts::default() },
            ..Sample::default()
        }
    }

    #[test]
    fn each_unit_counts_speed_and_cost_its_own_way() {
        let figures = |unit| {
            Metric::ALL.into_iter().filter_map(|metric| metric.of(&sample(), unit)).collect::<Vec<_>>()
        };
        assert_eq!(figures(Unit::GiB), [2.0, 0.25, 0.125, 0.0625, 64.0, 3.25, 1.5, 6.0]);
        assert_eq!(figures(Unit::PerSecond), [4.0, 125.0, 62.5, 31.25, 64.0, 1.625, 1.5, 3.0]);
        assert_eq!(figures(Unit::Each), [250.0, 125.0, 62.5, 31.25, 64.0, 1.625, 1.5, 3.0]);
        assert_eq!(figures(Unit::Whole), [2.0, 1.0, 0.5, 0.25, 64.0, 13.0, 1.5, 24.0]);
    }

    #[test]
    fn a_listing_has_figures_of_its_own() {
        let counts = Counts { list: 3, keys_sent: 1100, ..Counts::default() };
        let sample = Sample {
            seconds: 2.0,
            daemon_cpu_s: 0.002,
            counts,
            names: 1000,
            first_s: Some(0.045),
            p99_s: Some(0.25),
            rest_rss_bytes: Some(300 << 20),
            forgotten_rss_bytes: Some(40 << 20),
            waits: Some(Waits { futex: 5, kernel_locks: 6, switches: 7, migrations: 8 }),
            ..Sample::default()
        };
        let figure = |metric: Metric| metric.of(&sample, Unit::Whole).unwrap();
        let figures = Metric::RARE.into_iter().filter(|metric| *metric != Metric::KernelThreads).map(figure);
        assert_eq!(figures.collect::<Vec<_>>(), [45.0, 250.0, 10.0, 2.0, 300.0, 40.0, 5.0, 6.0, 7.0, 8.0]);
        assert_eq!(figure(Metric::Cost), 36.0);
        let other = Sample { names: 0, first_s: None, ..sample.clone() };
        assert_eq!(Metric::InVain.of(&other, Unit::Whole), None);
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
    fn the_kernel_s_threads_have_a_column_where_they_could_be_seen() {
        let mut row = Row::new(&crate::workload::WORKLOADS[0], "x", false);
        row.samples = vec![sample()];
        let seen = Report { rows: vec![row.clone()], kernel_threads_idle: Some(0.01), ..Report::default() };
        let shown = markdown(&seen);
        assert!(shown.contains("| client CPU | kernel threads | peak RSS MiB |"), "{shown}");
        assert!(shown.contains("| 0.12 s/GiB | 0.062 s/GiB | 64.0 |"), "{shown}");
        assert!(shown.contains("kernel threads 0.010 s a second before"), "{shown}");
        row.samples[0].kernel_cpu_s = None;
        let unseen = markdown(&Report { rows: vec![row], ..Report::default() });
        assert!(unseen.contains("| client CPU | peak RSS MiB |") && !unseen.contains("kernel threads"));
        for table in [shown, unseen] {
            let cells: Vec<_> = table.lines().filter(|line| line.starts_with('|')).map(columns).collect();
            assert!(cells.windows(2).all(|two| two[0] == two[1]), "{table}");
        }
    }

    #[test]
    fn a_picture_has_the_named_workloads_in_order_and_floors_only_on_demand() {
        let row =
            |workload: usize, peer: &str, floor| Row::new(&crate::workload::WORKLOADS[workload], peer, floor);
        let rows = vec![row(0, "a", false), row(0, "floor", true), row(1, "a", false), row(2, "a", false)];
        let report = Report { rows, ..Report::default() };
        let name = |of: usize| crate::workload::WORKLOADS[of].name.to_owned();
        let seen = |names: &[String], floors| {
            let rows = report.clone().only(names, floors).unwrap().rows;
            rows.into_iter().map(|row| (row.workload, row.peer)).collect::<Vec<_>>()
        };
        assert_eq!(seen(&[], true).len(), 4);
        let chosen = [(name(2), "a".to_owned()), (name(0), "a".to_owned())];
        assert_eq!(seen(&[name(2), name(0)], false), chosen);
        let unknown = report.clone().only(&["none".to_owned()], true).unwrap_err().to_string();
        assert!(unknown.contains("no workload none"), "{unknown}");
    }

    /// A report as the first version of the bench wrote it.
    const OLD: &str = r#"{
        "machine": {"kernel": "6.1", "processor": "x", "cores": 2, "memory_mib": 4096, "transparent_huge_pages": "always",
            "load": 0.1, "commit": "c"},
        "scale": {"name": "full", "big_bytes": 1073741824, "files": 1, "names": 1, "tree": 1, "created": 1,
            "random_for": {"secs": 5, "nanos": 0}, "check_all": false},
        "rounds": 1, "cpu_counted_by": "control group",
        "rows": [{"workload": "seq_read", "about": "one file", "unit": "GiB", "peer": "mount-s3", "is_floor": false,
            "failure": null, "read_ahead_kb": 1024, "samples": [{"seconds": 2.0, "bytes": 1073741824, "items": 1,
                "daemon_cpu_s": 0.5, "client_cpu_s": 0.25, "server_cpu_s": 0.1, "peak_rss_bytes": 1048576,
                "counts": {"get": 4, "head": 1, "list": 1, "put": 0, "upload_part": 0, "create_upload": 0,
                    "complete_upload": 0, "delete": 0, "other": 0, "bytes_sent": 1073741824, "bytes_received": 0,
                    "connections": 4, "errors": 0}, "stored_at_close": null}]}]
    }"#;

    #[test]
    fn a_report_of_an_older_bench_is_shown_without_what_it_did_not_measure() {
        let report: Report = serde_json::from_str(OLD).unwrap();
        let shown = markdown(&report);
        assert!(shown.contains("| mount-s3 | 0.50 GiB/s | 0.50 s/GiB | 0.25 s/GiB | 1.00 |"), "{shown}");
        assert!(!shown.contains("kernel threads"), "{shown}");
    }

    #[test]
    fn the_head_says_the_read_ahead_of_each_mount_or_once_that_of_all() {
        let row = |peer: &str, kib: Option<u64>| {
            let mut row = Row::new(&crate::workload::WORKLOADS[0], peer, false);
            row.read_ahead_kb = kib;
            row
        };
        let shown = |rows: &[Row]| {
            Report { rows: rows.to_vec(), cpu_counted_by: "x".to_owned(), ..Report::default() }.conditions()
        };
        assert_eq!(shown(&[row("a", None)]), "x");
        let same = [row("a", Some(128)), row("b", Some(128)), row("c", None)];
        assert_eq!(shown(&same), "x; read-ahead of every mount 128 KiB");
        let different = [row("a", Some(1024)), row("b", Some(128)), row("a", Some(128)), row("b", Some(128))];
        assert_eq!(shown(&different), "x; read-ahead: a 128 or 1024 KiB, b 128 KiB");
        assert!(
            markdown(&Report { rows: same.to_vec(), ..Report::default() }).contains("every mount 128 KiB.")
        );
    }

    fn columns(line: &str) -> usize {
        line.matches('|').count()
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
