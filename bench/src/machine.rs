//! On what, and with what, a run was made.

use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// Facts of the machine that move the figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_mib: u64,
    pub(crate) transparent_huge_pages: String,
    /// Load of the last minute when the run began: above 0.5 or so the figures are noisy.
    pub(crate) load: f64,
    /// Commit of the working directory.
    pub(crate) commit: String,
}

impl Machine {
    pub(crate) fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.trim_start_matches([' ', '\t', ':']).trim().to_owned()
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0);
        let huge = read("/sys/kernel/mm/transparent_hugepage/enabled");
        let chosen =
            huge.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("", |(chosen, _)| chosen);
        let git = Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=10"]).output();
        let commit = git.ok().filter(|output| output.status.success());
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor: field(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_mib: memory / 1024,
            transparent_huge_pages: chosen.to_owned(),
            load: read("/proc/loadavg").split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0),
            commit: commit
                .map_or_else(String::new, |output| String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        }
    }

    /// One line for the head of a table.
    pub(crate) fn line(&self) -> String {
        let Self { kernel, processor, cores, memory_mib, transparent_huge_pages, load, commit } = self;
        let gib = (memory_mib + 512) / 1024;
        format!(
            "{cores} cores of {processor}, {gib} GiB, Linux {kernel}, huge pages {transparent_huge_pages}, load {load} at \
             the start, commit {commit}"
        )
    }
}
