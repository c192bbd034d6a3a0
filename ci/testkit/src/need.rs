//! Requirements of tests that a machine may not meet.
//!
//! With `CI=true` a missing requirement fails the test. Otherwise the test writes `SKIPPED: test: why` to standard error, which `ci/test`
//! counts, and returns.

use std::process::{Command, Stdio};

/// Requirements that may be missing even with `CI=true`, because no script can provide them. `ci/test` counts the tests that they skip.
pub const EXCUSED: [&str; 8] = [
    "Linux 6.18",
    "a control group of version 2 that can be delegated",
    A_SLOW_DISK,
    BTRFS,
    FS_VERITY,
    WHOLE_ABORT,
    CGROUPS_OF_VERSION_1,
    FUSE_OVER_IO_URING,
];

/// A feature that kernels have since 6.14, and that leaks memory before 6.18.3.
const FUSE_OVER_IO_URING: &str = "a kernel with FUSE over io_uring (6.18.3)";

/// The text of `ci/systemd-node` on a machine with cgroup v2 alone, which no script can change.
const CGROUPS_OF_VERSION_1: &str =
    "a node with systemd: cgroup v2 alone is here, and its node needs the hierarchies of v1";

/// A disk that is slow for one control group. With cgroup v2 not every group gets the controller for it.
pub const A_SLOW_DISK: &str =
    "root, a loop device, mkfs.ext4, and the blkio controller of control groups of version 1";

/// A file system that can clone files. Containers have no loop devices for it.
pub const BTRFS: &str = "root, a loop device, and mkfs.btrfs";

/// A file system that verifies what it reads of sealed files. Many kernels are built without it.
pub const FS_VERITY: &str = "root, a loop device, mkfs.ext4, and a kernel with fs-verity";

/// A promise that versitygw breaks: an abort of an upload succeeds, and a part whose connection was interrupted may remain
/// after it.
pub const WHOLE_ABORT: &str = "a store whose abort of an upload takes every part with it";

/// Whether `CI=true` is set, so no test may be skipped.
pub fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

/// Whether the test may go on. `there`: whether the machine has `what`.
///
/// # Panics
/// The machine does not have it, `CI=true`, and it is not in [`EXCUSED`].
#[track_caller]
pub fn need(what: &str, there: bool) -> bool {
    let skips = judge(what, there, in_ci());
    if let Some(words) = &skips {
        eprintln!("{words}");
    }
    skips.is_none()
}

/// Whether a program can be started; otherwise the test is skipped.
///
/// # Panics
/// It is missing and `CI=true`.
#[track_caller]
pub fn need_tool(name: &str) -> bool {
    let mut command = Command::new(name);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    need(name, command.status().is_ok())
}

/// Whether to run tests with gigabytes, tens of thousands of files, or most of a minute of waiting: `MOUNT_S3_LARGE=1`, which `ci/test`
/// sets, and `ci/test --quick` does not.
///
/// # Panics
/// The variable is not set, and `CI=true`.
#[track_caller]
pub fn need_large() -> bool {
    need("MOUNT_S3_LARGE=1", std::env::var_os("MOUNT_S3_LARGE").is_some_and(|value| value == "1"))
}

/// Whether a new mount can use FUSE over io_uring.
///
/// # Panics
/// The kernel supports it, but its switch is off, and `CI=true`: `ci/test` turns it on.
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

/// The line of a skipped test; `None` if the test may go on.
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
