//! The share of one engine in the memory of an engines pod. Enters: an engine that serves. Leaves: its data limit (RLIMIT_DATA). At the
//! limit its reads fail, or it ends, alone. Without it the kernel would kill all engines of the container together.
//!
//! The limit also counts memory that a process may write to but never touches: stacks, and reserves of the allocator. An engine that has
//! just begun to serve shows how much that is: 152 MiB on two processors.

use std::io;

use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// Data limit of an engine until it serves, in bytes. It keeps the allocator from reserving a gibibyte at once, whose later use would
/// not count against the share.
pub const AT_START: u64 = 768 << 20;

/// Limits an engine to its share, in bytes, besides the memory that it has reserved and not touched.
pub(super) fn limit(engine: Pid, share: u64) -> io::Result<()> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", engine.as_raw_nonzero()))?;
    let limit = data_limit(&status, share).ok_or(io::ErrorKind::InvalidData)?;
    prlimit(Some(engine), Resource::Data, Rlimit { current: Some(limit), maximum: Some(limit) })?;
    tracing::info!("the engine's process may have {} MiB of data", limit >> 20);
    Ok(())
}

/// The data limit in bytes, from the text of `/proc/PID/status`, which counts in KiB.
fn data_limit(status: &str, share: u64) -> Option<u64> {
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    let untouched = kib("VmData:")?.saturating_sub(kib("RssAnon:")?);
    share.checked_add(untouched.checked_mul(1024)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_engine_never_touches_does_not_count_for_its_share() {
        let status = "Name:\tmount-s3\nRssAnon:\t    5304 kB\nVmData:\t  164024 kB\nThreads:\t12\n";
        assert_eq!(data_limit(status, 256 << 20), Some((256 << 20) + (164_024 - 5_304) * 1024));
        assert_eq!(data_limit("VmData:\t 1 kB\n", 1), None);
        assert_eq!(data_limit("VmData:\t x kB\nRssAnon:\t 1 kB\n", 1), None);
    }
}
