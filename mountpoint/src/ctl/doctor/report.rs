//! The findings of an examination. The fields' names are an interface: `docs/schemas/doctor.json` describes them.

use mountpoint::s3::{self, S3Client};
use serde::Serialize;

use super::advice::Advice;

/// The whole.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// Bucket, access point or its ARN.
    pub(crate) bucket: String,
    /// Prefix, or empty.
    pub(crate) prefix: String,
    /// Scheme, host and port that requests go to.
    pub(crate) endpoint: String,
    /// The region that requests are signed for.
    pub(crate) region: String,
    /// Kind of the store.
    pub(crate) store: String,
    /// One finding for each probe, in the order of the probes.
    pub(crate) findings: Vec<Finding>,
    /// The latency of small requests, one after another.
    pub(crate) latency: Option<Latency>,
    /// The throughput of reads, by number of connections.
    pub(crate) throughput: Vec<Throughput>,
    /// Features that will not work on this store.
    pub(crate) will_not_work: Vec<String>,
    /// Objects that the probes could not remove.
    pub(crate) kept: Vec<Kept>,
    /// Flags to add or to leave out.
    #[serde(skip)]
    pub(crate) advice: Vec<Advice>,
}

/// The outcome of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The name of the probe.
    pub(crate) probe: &'static str,
    /// The verdict in a word.
    pub(crate) verdict: Verdict,
    /// The observation.
    pub(crate) found: String,
    /// The consequence for a mount, if it is not obvious.
    pub(crate) means: Option<String>,
}

/// A finding in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// The store behaves as expected.
    Fine,
    /// Worth knowing: a mount copes with it, or does not need it.
    Note,
    /// Something will not work.
    Fails,
    /// The probe was not tried.
    Skipped,
}

/// Durations of requests, in microseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Latency {
    /// The requests' S3 name.
    pub(crate) request: &'static str,
    /// Number of requests.
    pub(crate) count: usize,
    /// The median of their times.
    pub(crate) p50_us: u64,
    /// 99 of 100.
    pub(crate) p99_us: u64,
}

/// The throughput of some connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Throughput {
    /// Reads at once.
    pub(crate) connections: usize,
    /// Bytes that came.
    pub(crate) bytes: u64,
    /// Duration of the examination in milliseconds.
    pub(crate) took_ms: u64,
    /// The one by the other.
    pub(crate) bytes_per_s: u64,
}

/// Something that is still in the bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Kept {
    /// The key of the object, or the prefix above it.
    pub(crate) key: String,
    /// The version of the object, if there are several.
    pub(crate) version: Option<String>,
    /// The reason why the object is still there.
    pub(crate) why: String,
}

impl Report {
    pub(super) fn of(config: &s3::Config, client: &S3Client) -> Self {
        Self {
            bucket: config.bucket.clone(),
            prefix: config.prefix.clone(),
            endpoint: client.origin(),
            region: client.region().to_owned(),
            store: client.store().name().to_owned(),
            findings: Vec::new(),
            latency: None,
            throughput: Vec::new(),
            will_not_work: Vec::new(),
            kept: Vec::new(),
            advice: Vec::new(),
        }
    }

    /// Whether a mount can do everything that the probes tried.
    #[must_use]
    pub(crate) fn is_fine(&self) -> bool {
        self.findings.iter().all(|finding| finding.verdict != Verdict::Fails)
    }

    pub(super) fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    pub(super) fn fine(&mut self, probe: &'static str, found: impl Into<String>) {
        self.add(Finding::new(probe, Verdict::Fine, found));
    }

    pub(super) fn skipped(&mut self, probe: &'static str, found: impl Into<String>) {
        self.add(Finding::new(probe, Verdict::Skipped, found));
    }

    pub(super) fn note(&mut self, probe: &'static str, found: impl Into<String>, means: impl Into<String>) {
        self.add(Finding::new(probe, Verdict::Note, found).meaning(means));
    }

    pub(super) fn fails(&mut self, probe: &'static str, found: impl Into<String>, means: impl Into<String>) {
        self.add(Finding::new(probe, Verdict::Fails, found).meaning(means));
    }

    pub(super) fn advise(&mut self, advice: Advice) {
        if !self.advice.contains(&advice) {
            self.advice.push(advice);
        }
    }

    /// Completes the report after the last probe.
    pub(super) fn close(&mut self) {
        let failed = self.findings.iter().filter(|finding| finding.verdict == Verdict::Fails);
        self.will_not_work = failed
            .map(|finding| match &finding.means {
                Some(means) => means.clone(),
                None => format!("{}: {}", finding.probe, finding.found),
            })
            .collect();
    }
}

impl Finding {
    pub(super) fn new(probe: &'static str, verdict: Verdict, found: impl Into<String>) -> Self {
        Self { probe, verdict, found: found.into(), means: None }
    }

    pub(super) fn meaning(self, means: impl Into<String>) -> Self {
        Self { means: Some(means.into()), ..self }
    }
}
