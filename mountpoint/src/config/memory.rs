//! The memory that this process may use: all of the machine's, or less if its cgroup or a parent group has a limit.
//!
//! Enters: `/proc`, and the mounted cgroups of version 1, 2 or both. Leaves: bytes. An unreadable file sets no limit. A group's limit
//! applies to all groups below it, so every visible ancestor counts. Groups above the root of a cgroup namespace are invisible: v1 still
//! reports their limit (`hierarchical_memory_limit`), v2 does not.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::mountinfo::{self, Line};
use crate::{buffer, cache};

/// Memory for the engine's code, its tables and the network's last bytes, besides the target. Peak RSS stays below the sum of both.
const BESIDE_TARGET: u64 = 64 << 20;
/// Part of the memory target that the index of a disk cache may use: one in this many. Halving it lets the index have twice as many small
/// files, and takes a seventh of the memory from readers and writers.
const INDEX_SHARE: u64 = 8;
/// The memory that is assumed if `/proc/meminfo` does not show it.
const UNKNOWN_MACHINE: u64 = 4 << 30;

/// The default of `--memory-target`: a quarter of the memory that this process may use, within limits. The minimum lets every part of the
/// engine make progress; the maximum is sixteen read windows of the largest size. If even the minimum exceeds the cgroup's limit, that is
/// logged.
pub(super) fn default_target() -> u64 {
    let limit = limit_below(Path::new("/"));
    let target = target_for(machine(Path::new("/")).min(limit.unwrap_or(u64::MAX)));
    if let Some(limit) = limit.filter(|&limit| limit < target + BESIDE_TARGET) {
        tracing::warn!(
            "this process's control group may have {} MiB, and {} are needed to be safe under load: raise its limit, or expect the \
             kernel to end this mount when it is busy",
            limit >> 20,
            (target + BESIDE_TARGET) >> 20
        );
    }
    target
}

/// Divides a memory target between blocks and the cache's index. The sum is at most the target, unless the minimum of each share exceeds
/// it: by [`cache::Config::INDEX_MIN`] at most, for which there is room besides the target.
pub(super) fn shares(target: u64, has_cache: bool) -> (u64, u64) {
    let index = if has_cache { (target / INDEX_SHARE).max(cache::Config::INDEX_MIN) } else { 0 };
    (target.saturating_sub(index).max(target.min(buffer::Config::TARGET_MIN)), index)
}

fn target_for(memory: u64) -> u64 {
    (memory / 4).clamp(buffer::Config::TARGET_MIN, 4 << 30)
}

/// The machine's memory in bytes. `root`: the directory that contains `proc`.
fn machine(root: &Path) -> u64 {
    let text = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let total = text
        .lines()
        .find_map(|l| l.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok());
    total.map_or(UNKNOWN_MACHINE, |kib| kib << 10)
}

/// The lowest limit of this process's cgroup and its parents, in bytes; `None` without a limit.
fn limit_below(root: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(root.join("proc/self").join(name)).unwrap_or_default();
    let groups = read("cgroup");
    let mounts = fs::read(root.join("proc/self/mountinfo")).unwrap_or_default();
    let mounts: Vec<_> = mountinfo::lines(&mounts).filter_map(Hierarchy::of).collect();
    let of_group = |line: &str| {
        let (version, group) = membership(line)?;
        mounts.iter().filter(|m| m.version == version).filter_map(|m| m.limit(root, group)).min()
    };
    groups.lines().filter_map(of_group).min()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    V1,
    V2,
}

/// Parses the memory group from a line of `/proc/self/cgroup`: `0::/a/b` for v2, `4:memory:/a/b` (or among others, `cpu,memory`) for v1.
fn membership(line: &str) -> Option<(Version, &str)> {
    let mut fields = line.splitn(3, ':');
    let (number, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
    match controllers {
        "" if number == "0" => Some((Version::V2, group)),
        _ => controllers.split(',').any(|c| c == "memory").then_some((Version::V1, group)),
    }
}

/// A mounted cgroup hierarchy that can limit memory.
#[derive(PartialEq, Eq, Debug)]
struct Hierarchy {
    version: Version,
    /// The group at the root of the mount, by its name in this process's namespace.
    top: PathBuf,
    mounted_at: PathBuf,
}

impl Hierarchy {
    fn of(mount: Line<'_>) -> Option<Self> {
        let version = match &*mount.kind.text() {
            "cgroup2" => Version::V2,
            "cgroup" if mount.system_options.has("memory") => Version::V1,
            _ => return None,
        };
        Some(Self { version, top: mount.top.path(), mounted_at: mount.point.path() })
    }

    /// The lowest limit of `group` and its parents, as far as this mount shows them.
    fn limit(&self, root: &Path, group: &str) -> Option<u64> {
        let top = root.join(self.mounted_at.strip_prefix("/").unwrap_or(&self.mounted_at));
        // The group is not below the mounted one, probably because it belongs to another namespace. The root of the mount is still an
        // ancestor.
        let below = Path::new(group).strip_prefix(&self.top).unwrap_or_else(|_| Path::new(""));
        let below: PathBuf = below.components().take_while(|c| matches!(c, Component::Normal(_))).collect();
        below.ancestors().filter_map(|group| self.limit_of(&top.join(group))).min()
    }

    /// The lowest limit in the files of one group.
    fn limit_of(&self, group: &Path) -> Option<u64> {
        let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
        let hierarchical = || {
            let text = fs::read_to_string(group.join("memory.stat")).ok()?;
            text.lines()
                .find_map(|l| l.strip_prefix("hierarchical_memory_limit ")?.trim().parse::<u64>().ok())
        };
        let limits = match self.version {
            // Beyond `memory.high` the kernel slows the group down so much that it almost stops.
            Version::V2 => [number("memory.max"), number("memory.high")],
            Version::V1 => [number("memory.limit_in_bytes"), hierarchical()],
        };
        limits.into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    /// The value in v1's files if there is no limit.
    const V1_NONE: &str = "9223372036854771712\n";

    /// A directory with these files, in place of `/`.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn limit(files: &[(&str, &str)]) -> Option<u64> {
        limit_below(tree(files).path()).filter(|&limit| limit < 1 << 60)
    }

    const V2: &str = "24 1 0:22 / /proc rw - proc proc rw\n30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
    const V1: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

    #[test]
    fn the_target_is_a_quarter_of_what_there_is_within_limits() {
        assert_eq!(target_for(8 << 30), 2 << 30);
        assert_eq!(target_for(256 * MIB), 128 * MIB);
        assert_eq!(target_for(1 << 40), 4 << 30);
        let root = tree(&[("proc/meminfo", "MemFree: 1 kB\nMemTotal:       24683000 kB\n")]);
        assert_eq!(machine(root.path()), 24_683_000 << 10);
        assert_eq!(machine(tree(&[]).path()), UNKNOWN_MACHINE);
    }

    #[test]
    fn the_index_takes_its_share_of_the_target_and_leaves_the_least() {
        assert_eq!(shares(4 << 30, false), (4 << 30, 0));
        assert_eq!(shares(4 << 30, true), (3584 * MIB, 512 * MIB));
        assert_eq!(shares(192 * MIB, true), (168 * MIB, 24 * MIB));
        assert_eq!(shares(128 * MIB, true), (128 * MIB, 16 * MIB));
        assert_eq!(shares(130 * MIB, true), (128 * MIB, 130 * MIB / 8));
    }

    #[test]
    fn without_a_limit_there_is_none() {
        assert_eq!(limit(&[]), None);
        let max = [
            ("proc/self/cgroup", "0::/a\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/a/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.high", "max\n"),
        ];
        assert_eq!(limit(&max), None);
        let v1 = [
            ("proc/self/cgroup", "4:memory:/a\n"),
            ("proc/self/mountinfo", V1),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", V1_NONE),
        ];
        assert_eq!(limit(&v1), None);
    }

    #[test]
    fn the_limit_of_the_process_s_own_group_counts_and_not_only_the_root_s() {
        let v2 = [
            ("proc/self/cgroup", "0::/user.slice/mount.scope\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/user.slice/memory.max", "max\n"),
            ("sys/fs/cgroup/user.slice/mount.scope/memory.max", "268435456\n"),
        ];
        assert_eq!(limit(&v2), Some(256 * MIB));
        let v1 = [
            ("proc/self/cgroup", "9:name=systemd:/x\n5:cpu,memory:/a/b\n0::/\n"),
            ("proc/self/mountinfo", V1),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", V1_NONE),
            ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "268435456\n"),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1\n"),
        ];
        assert_eq!(limit(&v1), Some(256 * MIB));
    }

    #[test]
    fn a_limit_of_any_group_above_counts_and_so_does_memory_high() {
        let files = |own: &'static str, above: &'static str, high: &'static str| {
            [
                ("proc/self/cgroup", "0::/a/b/c\n"),
                ("proc/self/mountinfo", V2),
                ("sys/fs/cgroup/a/memory.max", above),
                ("sys/fs/cgroup/a/b/memory.high", high),
                ("sys/fs/cgroup/a/b/c/memory.max", own),
            ]
        };
        assert_eq!(limit(&files("max", "500", "max")), Some(500));
        assert_eq!(limit(&files("400", "500", "max")), Some(400));
        assert_eq!(limit(&files("400", "500", "300")), Some(300));
        let v1 = [
            ("proc/self/cgroup", "4:memory:/a/b\n"),
            ("proc/self/mountinfo", V1),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "700\n"),
            ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", V1_NONE),
        ];
        assert_eq!(limit(&v1), Some(700));
    }

    #[test]
    fn in_a_group_namespace_the_top_is_our_own_and_v1_shows_those_above() {
        let v2 = [
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/memory.max", "268435456\n"),
        ];
        assert_eq!(limit(&v2), Some(256 * MIB));
        let v1 = [
            ("proc/self/cgroup", "4:memory:/\n"),
            ("proc/self/mountinfo", V1),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", V1_NONE),
            ("sys/fs/cgroup/memory/memory.stat", "cache 0\nhierarchical_memory_limit 600\nrss 9\n"),
        ];
        assert_eq!(limit(&v1), Some(600));
    }

    #[test]
    fn a_container_without_a_namespace_sees_its_group_as_the_top_of_the_mount() {
        let mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let files = |group: &'static str| {
            [
                ("proc/self/cgroup", group),
                ("proc/self/mountinfo", mounts),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "900\n"),
                ("sys/fs/cgroup/memory/sub/memory.limit_in_bytes", "800\n"),
            ]
        };
        assert_eq!(limit(&files("4:memory:/docker/abc\n")), Some(900));
        assert_eq!(limit(&files("4:memory:/docker/abc/sub\n")), Some(800));
        // Names of a namespace to which the mount does not belong: at least the top is an ancestor.
        assert_eq!(limit(&files("4:memory:/../elsewhere\n")), Some(900));
        assert_eq!(limit(&files("4:memory:/docker/abc/../../elsewhere\n")), Some(900));
    }

    #[test]
    fn both_versions_at_once_and_odd_places_are_understood() {
        let files = [
            ("proc/self/cgroup", "4:memory:/a\n0::/a\n"),
            (
                "proc/self/mountinfo",
                "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                 35 31 0:32 / /run/odd\\040place rw - cgroup cgroup rw,memory\n\
                 broken line\n1 2 3 - cgroup\n",
            ),
            ("run/odd place/a/memory.limit_in_bytes", "1000\n"),
            ("sys/fs/cgroup/unified/a/memory.max", "2000\n"),
        ];
        assert_eq!(limit(&files), Some(1000));
    }
}
