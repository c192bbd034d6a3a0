//! Whether two threads belong to one process, as the kernel's requests name them.

use std::fs;

/// FUSE names the calling *thread*; a file is opened by one thread and often closed by another of the same process.
pub(super) fn same_process(a: u32, b: u32) -> bool {
    a == b || matches!((thread_group(a), thread_group(b)), (Some(x), Some(y)) if x == y)
}

/// `None` when the thread is gone or is of a process namespace that we can't see.
fn thread_group(tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_one_process_are_recognised_and_strangers_are_not() {
        let me = std::process::id();
        let thread = std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get() as u32);
        let other_thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert!(same_process(me, other_thread));
        assert!(!same_process(me, 1));
        thread.join().unwrap();
    }
}
