//! Requirements of a test that a machine may lack.
//!
//! With `CI=true` what is missing fails the test. Elsewhere the test says `SKIPPED: test: why` on standard error, which `ci/test` counts,
//! and ends.

use std::process::{Command, Stdio};

/// Needs that may be missing with `CI=true` too, because no script can provide them. `ci/test` counts the tests that they skip.
pub const EXCUSED: [&str; 7] = [
    "Linux 6.18",
    "a control group of version 2 that can be delegated",
    A_SLOW_DISK,
    BTRFS,
    WHOLE_ABORT,
    CGROUPS_OF_VERSION_1,
    FUSE_OVER_IO_URING,
];

/// A feature that kernels before 6.14 lack, and that leaks before 6.18.3.
const FUSE_OVER_IO_URING: &str = "a kernel with FUSE over io_uring (6.18.3)";

/// The words of `ci/systemd-node` where only the newer hierarchy of control groups is: no script can change that.
const CGROUPS_OF_VERSION_1: &str =
    "a node with systemd: cgroup v2 alone is here, and its node needs the hierarchies of v1";

/// A disk that is slow for one control group. The newer hierarchy does not give its controller to every group.
pub const A_SLOW_DISK: &str =
    "root, a loop device, mkfs.ext4, and the blkio controller of control groups of version 1";

/// A file system that clones files. Containers have no loop devices.
pub const BTRFS: &str = "root, a loop device, and mkfs.btrfs";

/// A promise that versitygw breaks: a part whose connection broke off may outlive the abort of its upload, which was answered with
/// success.
pub const WHOLE_ABORT: &str = "a store whose abort of an upload takes every part with it";

/// Whether nothing may be skipped: `CI=true`.
pub fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

/// Whether the test may go on; `there`: whether the machine has `what`.
///
/// # Panics The machine lacks it, `CI=true`, and it is not [`EXCUSED`].
#[track_caller]
pub fn need(what: &str, there: bool) -> bool {
    let skips = judge(what, there, in_ci());
    if let Some(words) = &skips {
        eprintln!("{words}");
    }
    skips.is_none()
}

/// Whether a program can be run.
///
/// # Panics
/// It is missing and `CI=true`.
#[track_caller]
pub fn need_tool(name: &str) -> bool {
    let mut command = Command::new(name);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    need(name, command.status().is_ok())
}

/// Whether tests run that need gigabytes, tens of thousands of files, or most of a minute of waiting: `MOUNT_S3_LARGE=1`, as `ci/test`
/// sets it, and `ci/test --quick` does not.
///
/// # Panics They do not run, and `CI=true`.
#[track_caller]
pub fn need_large() -> bool {
    need("MOUNT_S3_LARGE=1", std::env::var_os("MOUNT_S3_LARGE").is_some_and(|value| value == "1"))
}

/// Whether a mount made now can go by FUSE over io_uring.
///
/// # Panics
/// The kernel has it, its switch is off, and `CI=true`: `ci/test` turns it on.
#[track_caller]
pub fn need_fuse_over_io_uring() -> bool {
    const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    let version: Vec<u32> = parts.take(3).collect();
    match std::fs::read_to_string(SWITCH) {
        Ok(_) if version < vec![6, 18, 3] => need(FUSE_OVER_IO_URING, false),
        Ok(switch) => need(&format!("{SWITCH} = Y, which ci/test sets as root"), switch.trim() == "Y"),
        Err(_) => need(FUSE_OVER_IO_URING, false),
    }
}

/// The line of a skipped test; `None` if the test goes on.
#[track_caller]
fn judge(what: &str, there: bool, in_ci: bool) -> Option<String> {
    if there {
        return None;
    }
    let excused = EXCUSED.contains(&what);
    assert!(!in_ci || excused, "needs {what}, and with CI=true nothing is skipped");
    let why = if excused { "excused: needs" } else { "needs" };
    Some(format!("SKIPPED: {}: {why} {what}", std::thread::current().name().unwrap_or("a test")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_skips_a_test_here_and_fails_it_in_ci() {
        assert_eq!((judge("air", true, true), judge("air", true, false)), (None, None));
        assert!(judge("water", false, false).unwrap().ends_with("in_ci: needs water"));
        assert!(std::panic::catch_unwind(|| judge("water", false, true)).is_err());
        assert!(judge(EXCUSED[0], false, true).unwrap().contains(": excused: needs "));
    }
}
