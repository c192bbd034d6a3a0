//! Whether two threads belong to one process, as the kernel's requests name them.

use std::fs;

/// FUSE names the calling *thread*; a file is opened by one thread and often closed by another of the same process.
/// `process` was [`thread_group`] of the opener: the thread itself may be gone.
pub(super) fn is_of_process(process: u32, thread: u32) -> bool {
    process == thread || thread_group(thread) == Some(process)
}

/// `None` when the thread is gone or is of a process namespace that we can't see.
pub(super) fn thread_group(tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_one_process_are_recognised_and_strangers_are_not() {
        let me = std::process::id();
        let other_thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert!(is_of_process(me, other_thread));
        assert!(!is_of_process(me, 1));
        assert_eq!(thread_group(other_thread), Some(me));
    }
}
