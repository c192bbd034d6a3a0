//! The machine, the build and the settings of a run.

use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// Facts of the machine that influence the figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_mib: u64,
    pub(crate) transparent_huge_pages: String,
    /// Load average of the last minute at the beginning of the run: above 0.5 or so the figures are noisy.
    pub(crate) load: f64,
    /// Commit of the working directory.
    pub(crate) commit: String,
    /// The user. Only root may raise a mount's read-ahead, and create control groups without delegation.
    #[serde(default)]
    pub(crate) user: String,
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
            commit: commit.map_or_else(
                || "unknown".to_owned(),
                |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            ),
            user: name_of(rustix::process::geteuid().as_raw(), &read("/etc/passwd")),
        }
    }

    /// A line about the machine, for the head of a table.
    pub(crate) fn line(&self) -> String {
        let Self { kernel, processor, cores, memory_mib, transparent_huge_pages, load, commit, user } = self;
        let by = if user.is_empty() { String::new() } else { format!(", run by {user}") };
        let gib = (memory_mib + 512) / 1024;
        format!(
            "{cores} cores of {processor}, {gib} GiB, Linux {kernel}, huge pages {transparent_huge_pages}, load {load} at \
             the start, commit {commit}{by}"
        )
    }
}

/// The name of a user id in the text of /etc/passwd.
fn name_of(uid: u32, users: &str) -> String {
    let uid = uid.to_string();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then_some(name)
    });
    name.map_or_else(|| format!("uid {uid}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_names_who_ran_it() {
        let users = "root:x:0:0:root:/root:/bin/sh\nme:x:1000:0::/:\n";
        assert_eq!(name_of(0, users), "root");
        assert_eq!(name_of(1000, users), "me");
        assert_eq!(name_of(10, users), "uid 10");
        let by = |user: &str| Machine { user: user.to_owned(), ..Machine::default() }.line();
        assert!(by("me").ends_with(", run by me") && !by("").contains("run by"), "{}", by("me"));
    }
}
