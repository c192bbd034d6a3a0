//! The rows of a run of programs, their table, and whether each is as expected.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use s3server::Server;
use serde::{Deserialize, Serialize};

use super::process::Said;
use super::table::{Kind, Outcome, TASKS, Task};
use crate::machine::Machine;
use crate::stats::{Spread, short};

/// The name of mount-s3's rows.
pub(super) const OURS: &str = "mount-s3";
/// The name of rows without a mount, with the program's own library for S3.
pub(super) const DIRECT: &str = "direct";
/// The mode of a mount that accepts every write, with a local stage.
pub(super) const FULL: &str = "--mode full";
/// Most characters of an error in a table.
const WORDS_MAX: usize = 140;

/// A whole run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) libraries: Vec<String>,
    pub(crate) rounds: usize,
    pub(crate) latency_ms: f64,
    pub(crate) small: bool,
    /// Read-ahead that every mount was given, in KiB.
    #[serde(default)]
    pub(crate) read_ahead_kb: Option<u64>,
    pub(crate) rows: Vec<Row>,
}

/// One program on one file system.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) program: String,
    about: String,
    pub(crate) file_system: String,
    pub(crate) mode: String,
    pub(crate) verdict: Verdict,
    /// Fewest bytes that the task must read, if the program tells it.
    needed: Option<u64>,
    pub(crate) samples: Vec<Sample>,
}

/// The result of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// The program has not run yet.
    Open,
    /// The program succeeded, with the same digest as on a local folder.
    Passes,
    /// The program met an error of the file system.
    Fails { errno: Option<String>, words: String },
    /// The run can't be judged: the program or the mount hung or died, or the program ran on another device.
    Broken { why: String },
    /// A library or a tool is missing.
    NotInstalled { what: String },
}

/// One run of a program.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) seconds: f64,
    pub(crate) program_cpu_s: f64,
    pub(crate) daemon_cpu_s: f64,
    /// Requests by operation.
    pub(crate) requests: BTreeMap<String, u64>,
    pub(crate) bytes_sent: u64,
    #[serde(skip)]
    pub(super) digest: Option<String>,
    #[serde(skip)]
    pub(super) errno: Option<String>,
    #[serde(skip)]
    pub(super) words: Option<String>,
}

impl Sample {
    pub(super) fn of(said: &Said) -> Self {
        Self {
            seconds: said.seconds,
            program_cpu_s: said.cpu_s,
            digest: said.digest.clone(),
            errno: said.errno.clone(),
            words: said.words.clone(),
            ..Self::default()
        }
    }

    /// Sets the counts of the store.
    pub(super) fn count(&mut self, server: &Server) {
        self.requests = server.requests().all();
        self.bytes_sent = server.requests().bytes_sent();
    }

    fn requests_in_all(&self) -> u64 {
        self.requests.values().sum()
    }
}

impl Row {
    pub(super) fn new(task: &Task, file_system: &str, mode: &str) -> Self {
        Self {
            program: task.name.to_owned(),
            about: task.about().to_owned(),
            file_system: file_system.to_owned(),
            mode: mode.to_owned(),
            verdict: Verdict::Open,
            needed: None,
            samples: Vec::new(),
        }
    }

    pub(super) fn absent(mut self, what: &str) -> Self {
        self.verdict = Verdict::NotInstalled { what: what.to_owned() };
        self
    }

    pub(super) fn broken(mut self, why: &str) -> Self {
        self.breaks(why);
        self
    }

    pub(super) fn breaks(&mut self, why: &str) {
        self.verdict = Verdict::Broken { why: why.to_owned() };
    }

    pub(super) fn is_going_on(&self) -> bool {
        matches!(self.verdict, Verdict::Open | Verdict::Passes)
    }

    /// Adds a run. `local` is the digest on a local folder, the expected one.
    pub(super) fn add(&mut self, sample: Sample, local: Option<&str>, needed: Option<u64>) {
        self.needed = needed;
        self.verdict = match (&sample.words, &sample.digest) {
            (Some(words), _) => Verdict::Fails { errno: sample.errno.clone(), words: words.clone() },
            (None, Some(digest)) if Some(digest.as_str()) == local => Verdict::Passes,
            (None, digest) => Verdict::Broken { why: format!("digest {digest:?}, locally {local:?}") },
        };
        self.samples.push(sample);
    }

    fn spread(&self, figure: impl Fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(&self.samples.iter().map(figure).collect::<Vec<_>>())
    }

    /// The largest number of requests of a run.
    pub(crate) fn requests(&self) -> u64 {
        self.samples.iter().map(Sample::requests_in_all).max().unwrap_or(0)
    }

    /// Bytes that the store sent per byte that the task needs.
    fn fetched(&self) -> Option<f64> {
        let needed = self.needed.filter(|needed| *needed > 0)?;
        Some(self.spread(|sample| sample.bytes_sent as f64 / needed as f64)?.median)
    }

    fn outcome(&self) -> String {
        let text = match &self.verdict {
            Verdict::Open => "not run".to_owned(),
            Verdict::Passes => return "passes".to_owned(),
            Verdict::NotInstalled { what } => return format!("not installed: {what}"),
            Verdict::Fails { errno, words } => {
                format!("**{}** {words}", errno.as_deref().unwrap_or("error"))
            }
            Verdict::Broken { why } => format!("**failed** {why}"),
        };
        text.replace(['|', '\n'], "/").chars().take(WORDS_MAX).collect()
    }

    /// The line about this row, to show progress.
    pub(super) fn progress(&self) -> String {
        let seconds = self.samples.last().map(|sample| format!(", {} s", short(sample.seconds)));
        let requests = format!(", {} requests", self.requests());
        let Self { program, file_system, mode, .. } = self;
        format!("{program} {file_system} {mode}: {}{}{requests}", self.outcome(), seconds.unwrap_or_default())
    }

    fn line(&self) -> String {
        let range = |spread: Option<Spread>| match spread {
            Some(Spread { median, min, max }) if min < max => {
                format!("{} ({}-{})", short(median), short(min), short(max))
            }
            Some(spread) => short(spread.median),
            None => String::new(),
        };
        let is_mounted = !self.mode.is_empty();
        let requests =
            if is_mounted && !self.samples.is_empty() { self.requests().to_string() } else { String::new() };
        let fetched = self.fetched().filter(|_| is_mounted).map(short).unwrap_or_default();
        let daemon = if is_mounted && self.file_system != DIRECT {
            range(self.spread(|sample| sample.daemon_cpu_s))
        } else {
            String::new()
        };
        format!(
            " {} | {} | {} | {} | {requests} | {fetched} | {daemon} | {} |",
            self.file_system,
            self.mode,
            self.outcome(),
            range(self.spread(|sample| sample.seconds)),
            range(self.spread(|sample| sample.program_cpu_s)),
        )
    }

    /// The difference between a row of mount-s3 and the expectation in the table of programs; `None` if there is none.
    pub(super) fn surprise(&self, small: bool) -> Option<String> {
        let task = TASKS.iter().find(|task| task.name == self.program)?;
        let is_extra = task.is_on_demand() || self.file_system == DIRECT;
        if matches!(self.verdict, Verdict::NotInstalled { .. }) && is_extra {
            return None;
        }
        let is_ours = self.file_system == OURS;
        let expected = match task.kind {
            Kind::Writes { default, allowed } if is_ours => match self.mode.as_str() {
                "default" => default,
                FULL => Outcome::Works,
                _ => allowed,
            },
            _ => Outcome::Works,
        };
        let is_expected = match (&self.verdict, expected) {
            (Verdict::Passes, Outcome::Works) => true,
            (Verdict::Fails { errno, .. }, Outcome::Fails(wanted)) => {
                errno.as_deref().unwrap_or_default() == wanted
            }
            _ => false,
        };
        if !is_expected {
            return Some(format!("{}, and expected is {expected:?}", self.outcome()));
        }
        let most = self.too_many(small)?;
        let kinds = self.samples.last().map(|sample| &sample.requests);
        Some(format!("{} requests, and at most {most} are expected: {kinds:?}", self.least_requests()))
    }

    /// The limit of requests of this row of mount-s3, if each of its runs exceeded it.
    pub(super) fn too_many(&self, small: bool) -> Option<u64> {
        let task = TASKS.iter().find(|task| task.name == self.program)?;
        let Kind::Reads { requests_max, with_ttl_max } = task.kind else { return None };
        let most = match self.mode.as_str() {
            "default" => requests_max,
            "names for 60 s" => with_ttl_max,
            _ => return None,
        };
        (small && self.file_system == OURS && self.least_requests() > most).then_some(most)
    }

    fn least_requests(&self) -> u64 {
        self.samples.iter().map(Sample::requests_in_all).min().unwrap_or(0)
    }
}

impl Report {
    /// The rows of these programs; all without names.
    pub(crate) fn only(mut self, names: &[String]) -> Self {
        self.rows.retain(|row| names.is_empty() || names.contains(&row.program));
        self
    }

    /// A line for each row that is not as expected.
    pub(crate) fn surprises(&self) -> Vec<String> {
        let told = |row: &Row| {
            let surprise = row.surprise(self.small)?;
            Some(format!("{} on {} {}: {surprise}", row.program, row.file_system, row.mode))
        };
        self.rows.iter().filter_map(told).collect()
    }
}

/// The run as a Markdown table.
pub(crate) fn markdown(report: &Report) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}.", report.machine.line());
    let scale = if report.small { "small" } else { "full" };
    let read_ahead = report.read_ahead_kb.map(|kib| format!(", read-ahead of {kib} KiB")).unwrap_or_default();
    let _ = writeln!(
        out,
        "Medians of {} interleaved rounds (least to most), {} ms a request{read_ahead}, data of the {scale} scale. {}.\n",
        report.rounds,
        short(report.latency_ms),
        report.libraries.join(", ")
    );
    out.push_str("| program | on | flags | outcome | seconds | requests | fetched/needed | daemon CPU s | program CPU s |\n");
    out.push_str("|---|---|---|---|---|---|---|---|---|\n");
    let mut last = "";
    for row in &report.rows {
        let title =
            if row.program == last { String::new() } else { format!("**{}**: {}", row.program, row.about) };
        last = &row.program;
        let _ = writeln!(out, "| {title} |{}", row.line());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, file_system: &str, mode: &str) -> Row {
        Row::new(TASKS.iter().find(|task| task.name == name).unwrap(), file_system, mode)
    }

    fn sample(digest: &str, requests: u64) -> Sample {
        Sample {
            seconds: 0.5,
            requests: BTreeMap::from([("GetObject".to_owned(), requests)]),
            bytes_sent: 1200,
            digest: Some(digest.to_owned()),
            ..Sample::default()
        }
    }

    #[test]
    fn only_the_digest_of_the_local_run_passes() {
        let mut good = row("copy_up", "mount-s3", "default");
        good.add(sample("a", 3), Some("a"), Some(1000));
        assert_eq!((good.verdict.clone(), good.requests()), (Verdict::Passes, 3));
        assert!(good.line().contains("| passes | 0.50 | 3 | 1.20 |"), "{}", good.line());
        for (other, local) in
            [(sample("b", 3), Some("a")), (sample("a", 3), None), (Sample::default(), Some("a"))]
        {
            let mut bad = row("copy_up", "mount-s3", "default");
            bad.add(other, local, None);
            assert!(matches!(bad.verdict, Verdict::Broken { .. }), "{bad:?}");
            assert!(bad.surprise(true).is_some());
        }
    }

    #[test]
    fn a_saved_run_shows_the_same_table_and_has_every_round() {
        let mut good = row("copy_up", "mount-s3", "default");
        for (seconds, requests) in [(0.5, 3), (0.4, 5), (0.9, 4)] {
            let sample = Sample { daemon_cpu_s: 0.25, program_cpu_s: 0.75, seconds, ..sample("a", requests) };
            good.add(sample, Some("a"), Some(1000));
        }
        assert!(
            good.line().ends_with("| passes | 0.50 (0.40-0.90) | 5 | 1.20 | 0.25 | 0.75 |"),
            "{}",
            good.line()
        );
        let report = Report {
            machine: Machine::here(),
            libraries: vec!["numpy==2.4.6".to_owned()],
            rounds: 3,
            latency_ms: 20.0,
            small: false,
            read_ahead_kb: Some(2048),
            rows: vec![good, row("zarr_chunks", "local", "").absent("zarr")],
        };
        let saved: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(saved.rows[0].samples.len(), 3);
        assert_eq!(markdown(&saved), markdown(&report));
        assert!(markdown(&saved).contains("20.0 ms a request, read-ahead of 2048 KiB, "));
        let one = markdown(&saved.only(&["zarr_chunks".to_owned()]));
        assert!(one.contains("not installed: zarr") && !one.contains("copy_up"), "{one}");
    }

    #[test]
    fn a_program_that_writes_may_fail_with_its_errno_alone() {
        for (errno, is_expected) in [("EINVAL", true), ("EPERM", false)] {
            let mut fails = row("write_npz", "mount-s3", "default");
            let words = Some("OSError: of the library".to_owned());
            let sample = Sample { errno: Some(errno.to_owned()), words, ..Sample::default() };
            fails.add(sample, Some("a"), None);
            assert!(
                fails.line().contains(&format!("| **{errno}** OSError: of the library |")),
                "{}",
                fails.line()
            );
            assert_eq!(fails.surprise(true).is_none(), is_expected, "{errno}");
        }
        let mut works = row("write_npz", "mount-s3", "default");
        works.add(sample("a", 3), Some("a"), None);
        assert!(works.surprise(true).is_some(), "a pass is as unexpected");
    }

    #[test]
    fn a_missing_program_is_not_installed_and_never_passes() {
        let absent = row("zarr_chunks", "local", "").absent("zarr");
        assert!(absent.line().contains("not installed: zarr"), "{}", absent.line());
        assert!(absent.surprise(true).unwrap().contains("not installed"));
        assert_eq!(row("bam_index", "local", "").absent("pysam").surprise(true), None, "on demand");
    }

    #[test]
    fn more_requests_than_expected_are_a_surprise_at_the_small_scale() {
        let mut many = row("zarr_chunks", "mount-s3", "default");
        many.add(sample("a", 10_000), Some("a"), None);
        assert!(many.surprise(true).unwrap().contains("10000 requests"));
        assert_eq!(many.surprise(false), None);
        many.add(sample("a", 3), Some("a"), None);
        assert_eq!(many.surprise(true), None, "one run in three is enough");
        let mut peer = row("zarr_chunks", "other", "default");
        peer.add(sample("a", 10_000), Some("a"), None);
        assert_eq!(peer.surprise(true), None);
    }
}
