//! CPU time and peak memory of a daemon and all its helper processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::time::{ClockId, clock_gettime};

/// A set of processes whose CPU time is counted together. As root, or in a delegated group, the bench creates a control group, which counts
/// in microseconds and includes ended processes. Otherwise it sums `/proc`, in steps of 10 ms and without ended
/// processes.
#[derive(Debug)]
pub(crate) struct Group {
    cgroup: Option<PathBuf>,
}

impl Group {
    pub(crate) fn new(name: &str) -> Self {
        // Moving a process into a group below ours needs write access to our group.
        let home = cgroup_home()
            .filter(|home| fs::File::options().write(true).open(home.join("cgroup.procs")).is_ok());
        let path = home.map(|home| home.join(format!("bench-{}-{name}", std::process::id())));
        let cgroup = path.filter(|path| fs::create_dir(path).is_ok());
        let cgroup = cgroup.filter(|path| {
            let usable = usage_s(path).is_some();
            if !usable {
                let _ = fs::remove_dir(path);
            }
            usable
        });
        Self { cgroup }
    }

    /// The way in which CPU time is counted, for the report.
    pub(crate) fn method(&self) -> &'static str {
        if self.cgroup.is_some() { "control group" } else { "/proc, 10 ms" }
    }

    /// A shell command that runs in this group from its first instruction on.
    pub(crate) fn command(&self, shell: &str) -> Command {
        let mut command = Command::new("sh");
        let enter = match &self.cgroup {
            Some(path) => format!("echo $$ > '{}/cgroup.procs' && ", path.display()),
            None => String::new(),
        };
        command.arg("-c").arg(format!("{enter}exec {shell}"));
        command
    }

    /// CPU seconds of the group so far, or of `root` and its descendants.
    pub(crate) fn cpu_s(&self, root: u32) -> f64 {
        match &self.cgroup {
            Some(path) => usage_s(path).unwrap_or(0.0),
            None => family(root).into_iter().filter_map(cpu_of).sum(),
        }
    }

    /// Peak memory of the processes in bytes: the sum of their peaks.
    pub(crate) fn peak_rss(&self, root: u32) -> u64 {
        self.processes(root).into_iter().filter_map(|pid| status_of(pid, "VmHWM:")).sum()
    }

    /// Present memory of the processes in bytes.
    pub(crate) fn rss(&self, root: u32) -> u64 {
        self.processes(root).into_iter().filter_map(|pid| status_of(pid, "VmRSS:")).sum()
    }

    /// The processes of the group, or `root` and its descendants.
    pub(crate) fn processes(&self, root: u32) -> Vec<u32> {
        let listed = self.cgroup.as_ref().and_then(|path| fs::read_to_string(path.join("cgroup.procs")).ok());
        match listed {
            Some(text) => text.lines().filter_map(|line| line.parse().ok()).collect(),
            None => family(root),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(path) = &self.cgroup {
            // The kernel refuses to remove a group with processes. Then the group stays, and costs nothing.
            let _ = fs::remove_dir(path);
        }
    }
}

/// CPU seconds of this process so far.
pub(crate) fn own_cpu_s() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// This process's control group (version 2).
fn cgroup_home() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?.to_owned();
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
    Some(Path::new(&mount).join(own))
}

fn usage_s(cgroup: &Path) -> Option<f64> {
    let text = fs::read_to_string(cgroup.join("cpu.stat")).ok()?;
    let microseconds: f64 =
        text.lines().find_map(|line| line.strip_prefix("usage_usec "))?.trim().parse().ok()?;
    Some(microseconds / 1e6)
}

/// The process `root` and all its descendants.
fn family(root: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return vec![root] };
    let parents: Vec<(u32, u32)> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, stat_field(pid, 4)?.parse().ok()?)))
        .collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

/// A field of `/proc/PID/stat`, numbered from 1 as in its manual page.
fn stat_field(pid: u32, number: usize) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, field 2, is in parentheses and may hold anything.
    let rest = &text[text.rfind(')')? + 2..];
    rest.split(' ').nth(number - 3).map(str::to_owned)
}

fn cpu_of(pid: u32) -> Option<f64> {
    // The fields utime and stime, and those of children that were waited for.
    let ticks = (14..=17).map(|number| stat_field(pid, number)?.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// A line of `/proc/PID/status` that has KiB, in bytes.
fn status_of(pid: u32, line: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib: u64 =
        text.lines().find_map(|text| text.strip_prefix(line))?.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_of_a_busy_child_is_seen_by_either_way_of_counting() {
        for group in [Group::new("test-busy"), Group { cgroup: None }] {
            let mut child = group
                .command("sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; exec sleep 30'")
                .spawn()
                .unwrap();
            let begun = std::time::Instant::now();
            while group.cpu_s(child.id()) < 0.05 && begun.elapsed().as_secs() < 60 {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            let (cpu, rss) = (group.cpu_s(child.id()), group.peak_rss(child.id()));
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(cpu >= 0.05, "{}: {cpu}", group.method());
            assert!(rss > 100 << 10, "{}: {rss}", group.method());
        }
    }
}
