//! CPU time of the kernel's own threads (`kworker`, `ksoftirqd` and the like). Enters: two samples of all of them. Leaves: the CPU
//! seconds between them. The kernel does not tell for which process a thread worked, and this file does not guess.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// Flag of a task that is one of the kernel's own threads (`PF_KTHREAD`); io_uring's threads of a process do not have it.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// Time between the two samples of `idle`.
const IDLE_LOOK: Duration = Duration::from_millis(500);

/// CPU time of each kernel thread at one moment, in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KernelThreads(HashMap<Thread, u64>);

/// A thread's id and start time: the kernel may give the id to a later thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Thread {
    pid: u32,
    /// The thread's start, in ticks since the system's start.
    started: u64,
}

impl KernelThreads {
    /// Reads the CPU time of all kernel threads. `None` if `/proc` shows none, as in most containers.
    pub(crate) fn now() -> Option<Self> {
        let precise = schedstat("self").is_some_and(|ran_ns| ran_ns > 0);
        let mut threads = HashMap::new();
        for entry in fs::read_dir("/proc").ok()?.flatten() {
            let name = entry.file_name();
            let Some((name, pid)) = name.to_str().and_then(|name| Some((name, name.parse().ok()?))) else {
                continue;
            };
            // Threads that end meanwhile are left out.
            let stat = fs::read_to_string(format!("/proc/{name}/stat"));
            let Some((started, ticks)) = stat.ok().as_deref().and_then(kernel_thread) else { continue };
            let ran_ns = if precise { schedstat(name) } else { Some(ticks * NS_PER_S / ticks_per_s()) };
            let Some(ran_ns) = ran_ns else { continue };
            threads.insert(Thread { pid, started }, ran_ns);
        }
        (!threads.is_empty()).then_some(Self(threads))
    }

    /// CPU seconds of all kernel threads since `before`. A thread that ended in between is left out: only idle threads end.
    fn seconds_since(&self, before: &Self) -> f64 {
        let ran_ns = |(thread, ran_ns): (&Thread, &u64)| {
            ran_ns.saturating_sub(before.0.get(thread).copied().unwrap_or(0))
        };
        self.0.iter().map(ran_ns).sum::<u64>() as f64 / NS_PER_S as f64
    }
}

/// CPU seconds of all kernel threads since `before`; `None` if they are not visible.
pub(crate) fn since(before: Option<&KernelThreads>) -> Option<f64> {
    Some(KernelThreads::now()?.seconds_since(before?))
}

/// CPU seconds per second of the kernel threads while nothing is measured: a floor of all later figures.
pub(crate) fn idle() -> Option<f64> {
    let (before, begun) = (KernelThreads::now()?, Instant::now());
    std::thread::sleep(IDLE_LOOK);
    Some(since(Some(&before))? / begun.elapsed().as_secs_f64())
}

const NS_PER_S: u64 = 1_000_000_000;

fn ticks_per_s() -> u64 {
    rustix::param::clock_ticks_per_second()
}

/// Run time of a task in nanoseconds, from the scheduler. A kernel without this figure reports 0, even for the running process.
fn schedstat(pid: &str) -> Option<u64> {
    fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?.split(' ').next()?.parse().ok()
}

/// Start and run time of a kernel thread in ticks, from its `/proc/PID/stat`; `None` for other tasks.
fn kernel_thread(stat: &str) -> Option<(u64, u64)> {
    // The name, field 2, is in parentheses and may contain anything; the rest begins with field 3.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 2..].split(' ').collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    (field(9)? & KERNEL_THREAD != 0).then_some((field(22)?, field(14)? + field(15)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: &str = "44 (kworker/0:1H-kb) I 2 0 0 0 -1 69238880 0 0 0 0 3 1010 0 0 0 -20 1 0 77 0 0 184";
    const DAEMON: &str = "812 (a) b (c) S 1 812 812 0 -1 4194304 9 0 0 0 12 5 0 0 20 0 1 0 9921 0 0 184";

    #[test]
    fn a_thread_of_the_kernel_is_told_from_a_process_by_its_flags() {
        assert_eq!(kernel_thread(WORKER), Some((77, 1013)));
        assert_eq!(kernel_thread(DAEMON), None);
        assert_eq!(kernel_thread(&DAEMON.replace("4194304", "2097152")), Some((9921, 17)));
        assert_eq!(kernel_thread("1 (x"), None);
    }

    #[test]
    fn what_ran_in_between_is_counted_also_of_threads_that_are_new() {
        let look = |threads: &[(u32, u64, u64)]| {
            let one =
                |(pid, started, ran_ns): &(u32, u64, u64)| (Thread { pid: *pid, started: *started }, *ran_ns);
            KernelThreads(threads.iter().map(one).collect())
        };
        let before = look(&[(2, 0, 100), (14, 1, 4 * NS_PER_S), (30, 1, 9 * NS_PER_S)]);
        // 14 ran for a second, 30 ended, its number went to another one that ran for two; 31 is new.
        let after = look(&[(2, 0, 100), (14, 1, 5 * NS_PER_S), (30, 8, 2 * NS_PER_S), (31, 9, NS_PER_S)]);
        assert!((after.seconds_since(&before) - 4.0).abs() < 1e-9);
        assert!(after.seconds_since(&after).abs() < 1e-9);
    }

    #[test]
    fn the_threads_of_this_kernel_are_seen_where_proc_shows_them() {
        let shown = fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n");
        let look = KernelThreads::now();
        let parent = |look: &KernelThreads| look.0.keys().any(|thread| thread.pid == 2);
        assert_eq!(look.as_ref().is_some_and(parent), shown, "{look:?}");
        assert!(
            !look.is_some_and(|look| look.0.keys().any(|thread| thread.pid == std::process::id())),
            "we are not a thread of the kernel"
        );
    }
}
