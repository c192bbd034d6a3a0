//! Resource usage of this process's own cgroup, of version 1, 2 or both. Enters: `/proc` and the mounted cgroups. Leaves: numbers; `None`
//! for each file that is missing or can't be read.
//!
//! Never here: parent or child groups; a limit that another group sets.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::engine_lines::Usage;
use crate::mountinfo::{self, Line};

/// The smallest value in a v1 limit file that means "no limit". The kernel writes the largest number of whole pages; no machine has half of
/// that.
const NO_LIMIT: u64 = 1 << 62;

/// The current usage. `root` is the directory that contains `proc` and the cgroups.
pub(super) fn usage(root: &Path) -> Usage {
    let groups = own(root);
    let number = |name: &str| groups.iter().find_map(|group| group.number(name));
    let v2 = groups.iter().find(|group| group.number("memory.current").is_some());
    let v1 = groups.iter().find(|group| group.number("memory.usage_in_bytes").is_some());
    let (memory_bytes, memory_limit_bytes, oom_kills) = match (v2, v1) {
        (Some(group), _) => (
            group.used("memory.current", "inactive_file"),
            group.number("memory.max"),
            group.entry("memory.events", "oom_kill"),
        ),
        (None, Some(group)) => (
            group.used("memory.usage_in_bytes", "total_inactive_file"),
            group.number("memory.limit_in_bytes").filter(|&limit| limit < NO_LIMIT),
            group.entry("memory.oom_control", "oom_kill"),
        ),
        (None, None) => (None, None, None),
    };
    // Version 1 precedes: if it counts CPU time at all, version 2 beside it has none of the processes.
    let of_v1 = number("cpuacct.usage").map(|ns| ns / 1000);
    let cpu_us = of_v1.or_else(|| groups.iter().find_map(|group| group.entry("cpu.stat", "usage_usec")));
    Usage { memory_bytes, memory_limit_bytes, cpu_us, oom_kills, kernel_files: None }
}

/// The directory of one group's files.
#[derive(Debug)]
struct Group(PathBuf);

impl Group {
    fn number(&self, name: &str) -> Option<u64> {
        fs::read_to_string(self.0.join(name)).ok()?.trim().parse().ok()
    }

    /// The number after a word in a file.
    fn entry(&self, name: &str, word: &str) -> Option<u64> {
        let text = fs::read_to_string(self.0.join(name)).ok()?;
        text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' ')?.trim().parse().ok())
    }

    /// Memory in use without inactive pages of files, which the kernel frees first: the working set of the kubelet.
    fn used(&self, all: &str, inactive: &str) -> Option<u64> {
        let inactive = self.entry("memory.stat", inactive).unwrap_or_default();
        Some(self.number(all)?.saturating_sub(inactive))
    }
}

/// The groups of this process, one in each mounted hierarchy.
fn own(root: &Path) -> Vec<Group> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = fs::read(root.join("proc/self/mountinfo")).unwrap_or_default();
    let mounts: Vec<_> = mountinfo::lines(&mounts).collect();
    let of_line = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, group) = (fields.next()?, fields.next()?);
        let mount = mounts.iter().find(|mount| has(mount, controllers))?;
        Some(Group(directory(root, mount, Path::new(group))))
    };
    groups.lines().filter_map(of_line).collect()
}

/// Whether this mount is the hierarchy of these controllers. The line of v2 names no controllers.
fn has(mount: &Line<'_>, controllers: &str) -> bool {
    match &*mount.kind.text() {
        "cgroup2" => controllers.is_empty(),
        "cgroup" => !controllers.is_empty() && controllers.split(',').all(|it| mount.system_options.has(it)),
        _ => false,
    }
}

/// The directory of a group. If the group is not below the root of the mount, it belongs to another cgroup namespace: a container then
/// finds its own group at the top.
fn directory(root: &Path, mount: &Line<'_>, group: &Path) -> PathBuf {
    let at = mount.point.path();
    let top = root.join(at.strip_prefix("/").unwrap_or(&at));
    let below = group.strip_prefix(mount.top.path()).unwrap_or_else(|_| Path::new(""));
    if below.components().all(|it| matches!(it, Component::Normal(_))) { top.join(below) } else { top }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
    const V1: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                      35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

    /// The usage in a directory of files in place of `/`.
    fn used(files: &[(&str, &str)]) -> Usage {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        usage(root.path())
    }

    const WHOLE: Usage = Usage {
        memory_bytes: Some(700),
        memory_limit_bytes: Some(4096),
        cpu_us: Some(1_234_567),
        oom_kills: Some(2),
        kernel_files: None,
    };

    #[test]
    fn usage_of_a_v2_group_is_its_working_set_limit_time_and_kills() {
        for (group, at) in [("/", ""), ("/kubepods/pod1/c", "kubepods/pod1/c/"), ("/../../x", "")] {
            let file = |name: &str| format!("sys/fs/cgroup/{at}{name}");
            let files = [
                ("proc/self/cgroup".to_owned(), format!("0::{group}\n")),
                ("proc/self/mountinfo".to_owned(), V2.to_owned()),
                (file("memory.current"), "1000\n".to_owned()),
                (file("memory.max"), "4096\n".to_owned()),
                (file("memory.stat"), "anon 9\ninactive_file_x 7\ninactive_file 300\n".to_owned()),
                (file("memory.events"), "oom 5\noom_kill 2\noom_group_kill 1\n".to_owned()),
                (file("cpu.stat"), "usage_usec 1234567\nuser_usec 1\n".to_owned()),
            ];
            let files = files.each_ref().map(|(path, text)| (path.as_str(), text.as_str()));
            assert_eq!(used(&files), WHOLE, "{group}");
        }
    }

    #[test]
    fn usage_of_a_v1_group_is_found_below_each_hierarchy_or_at_its_top() {
        // The second is a container without a namespace of its own: the runtime mounts its group alone.
        for (group, at) in [("/a/b", "a/b/"), ("/docker/0123", "")] {
            let (memory, cpu) = ("sys/fs/cgroup/memory/", "sys/fs/cgroup/cpu,cpuacct/");
            let mounts = if at.is_empty() { V1.replace(" / /sys", " /docker/0123 /sys") } else { V1.into() };
            let files = [
                (
                    "proc/self/cgroup".to_owned(),
                    format!("9:name=systemd:/x\n5:cpu,cpuacct:{group}\n4:memory:{group}\n0::/\n"),
                ),
                ("proc/self/mountinfo".to_owned(), mounts),
                (format!("{memory}{at}memory.usage_in_bytes"), "1000\n".to_owned()),
                (format!("{memory}{at}memory.limit_in_bytes"), "4096\n".to_owned()),
                (format!("{memory}{at}memory.stat"), "inactive_file 1\ntotal_inactive_file 300\n".to_owned()),
                (
                    format!("{memory}{at}memory.oom_control"),
                    "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n".to_owned(),
                ),
                (format!("{cpu}{at}cpuacct.usage"), "1234567890\n".to_owned()),
                (format!("{cpu}{at}cpu.stat"), "nr_periods 0\n".to_owned()),
            ];
            let files = files.each_ref().map(|(path, text)| (path.as_str(), text.as_str()));
            assert_eq!(used(&files), WHOLE, "{group}");
        }
    }

    #[test]
    fn a_group_without_a_limit_or_without_files_leaves_numbers_out() {
        let none = used(&[
            ("proc/self/cgroup", "0::/a\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/a/memory.current", "1000\n"),
            ("sys/fs/cgroup/a/memory.max", "max\n"),
        ]);
        assert_eq!(none, Usage { memory_bytes: Some(1000), ..Usage::default() });
        let none = used(&[
            ("proc/self/cgroup", "4:memory:/a\n"),
            ("proc/self/mountinfo", V1),
            ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1000\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        assert_eq!(none, Usage { memory_bytes: Some(1000), ..Usage::default() });
        assert_eq!(used(&[]), Usage::default());
    }
}
