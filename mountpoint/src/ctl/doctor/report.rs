//! The findings of an examination. The names of the fields are an interface, which `docs/schemas/doctor.json` describes.

use mountpoint::s3::{self, S3Client};
use serde::Serialize;

use super::advice::Advice;

/// All results of an examination.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// Bucket, access point or its ARN.
    pub(crate) bucket: String,
    /// The prefix; empty without one.
    pub(crate) prefix: String,
    /// Scheme, host and port of the requests.
    pub(crate) endpoint: String,
    /// Region in the signatures of the requests.
    pub(crate) region: String,
    /// Kind of the store.
    pub(crate) store: String,
    /// The findings, in the order of the probes.
    pub(crate) findings: Vec<Finding>,
    /// The latency of small requests, if it was measured.
    pub(crate) latency: Option<Latency>,
    /// The throughput of reads, by number of connections.
    pub(crate) throughput: Vec<Throughput>,
    /// Features of a mount that will not work on this store.
    pub(crate) will_not_work: Vec<String>,
    /// Objects of the probes that could not be removed.
    pub(crate) kept: Vec<Kept>,
    /// Flags to add, to set or to leave out.
    #[serde(skip)]
    pub(crate) advice: Vec<Advice>,
}

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// Name of the probe.
    pub(crate) probe: &'static str,
    /// The verdict.
    pub(crate) verdict: Verdict,
    /// The observation, as text.
    pub(crate) found: String,
    /// The consequence for a mount, if it is not obvious.
    pub(crate) means: Option<String>,
}

/// The verdict on an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// The store behaves as expected.
    Fine,
    /// An oddity that does not break a mount: the mount copes with it, or does not need the feature.
    Note,
    /// A feature of a mount will not work.
    Fails,
    /// The probe was not made.
    Skipped,
}

/// Latencies of requests, in microseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Latency {
    /// The S3 name of the requests.
    pub(crate) request: &'static str,
    /// Number of requests.
    pub(crate) count: usize,
    /// The median.
    pub(crate) p50_us: u64,
    /// The 99th percentile.
    pub(crate) p99_us: u64,
}

/// The throughput of reads with some number of connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Throughput {
    /// Number of concurrent reads.
    pub(crate) connections: usize,
    /// Number of received bytes.
    pub(crate) bytes: u64,
    /// Duration of the measurement, in milliseconds.
    pub(crate) took_ms: u64,
    /// Bytes per second.
    pub(crate) bytes_per_s: u64,
}

/// An object of the probes that is still in the bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Kept {
    /// The key of the object, or the prefix of several.
    pub(crate) key: String,
    /// The version of the object, if the bucket has versions.
    pub(crate) version: Option<String>,
    /// The reason why it could not be removed.
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

    /// Whether no probe found a feature that fails.
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

    /// Completes the report after the last probe: lists the features that will not work.
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
