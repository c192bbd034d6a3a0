//! The calling thread of a request: whether it is being killed.
//!
//! The kernel sends INTERRUPT for any signal. Only a dying thread may get EINTR: programs with runtimes that signal their own threads
//! (Go preempts with SIGURG, Java stops threads, every parent gets SIGCHLD) take EINTR from a file for a broken disk. No other process
//! can see whether a program installed a handler without SA_RESTART and so expects EINTR.

use std::fs::read_to_string;

use crate::broker;

/// Whether this thread is about to end, whatever the answer to its request: a signal that kills it is pending, or has killed it. False for
/// a thread in another process namespace, which the engine can't see: its request runs to its end.
pub(super) fn is_dying(tid: u32) -> bool {
    status_of(tid).is_some_and(|status| awaits_death(&status) || has_ended_by_signal(tid, &status))
}

/// Whether this thread was killed and is exiting: it closes its files only because it ends, and no signal can interrupt it any more. A
/// program that exits by itself does not count: its user wants its files stored.
pub(super) fn is_killed(tid: u32) -> bool {
    status_of(tid).is_some_and(|status| has_ended_by_signal(tid, &status))
}

fn status_of(tid: u32) -> Option<String> {
    read_to_string(format!("/proc/{tid}/status")).ok()
}

/// Whether a thread that has no memory any more is exiting because of a signal. A sandboxed engine can't see the exit code of other
/// processes: its helper looks.
///
/// Reading `stat` of a thread that is inside execve(2) would wait for the end of execve, which may wait for our reply (see
/// `fs/process.rs`). A thread that exits gives its memory back first, and then closes its files: a thread without memory is not inside
/// execve(2).
fn has_ended_by_signal(tid: u32, status: &str) -> bool {
    !has_memory(status)
        && broker::of_this_process()
            .map_or_else(|| is_ended_by_signal(tid), |broker| broker.has_ended_by_signal(tid))
}

/// Whether a thread is exiting because of a signal. Call this only for a thread without memory, because reading `stat` could wait
/// otherwise.
pub fn is_ended_by_signal(tid: u32) -> bool {
    read_to_string(format!("/proc/{tid}/stat")).is_ok_and(|stat| ends_by_signal(&stat))
}

/// Whether `status` shows an address space.
fn has_memory(status: &str) -> bool {
    status.lines().any(|line| line.starts_with("VmSize:"))
}

/// Whether `status` shows a pending signal that ends the process. For most such signals the kernel shows SIGKILL. Signals that dump core
/// show as themselves until a thread takes them; they count unless the program catches, ignores or blocks them, or a debugger traces it.
fn awaits_death(status: &str) -> bool {
    const SIGKILL: u64 = 1 << 8;
    // QUIT, ILL, TRAP, ABRT, BUS, FPE, SEGV, XCPU, XFSZ, SYS.
    const DUMPS_CORE: u64 =
        1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 23 | 1 << 24 | 1 << 30;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let mask = |name: &str| field(name).and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    let pending = mask("SigPnd:") | mask("ShdPnd:");
    let survived = mask("SigBlk:") | mask("SigIgn:") | mask("SigCgt:");
    let is_traced = field("TracerPid:").is_some_and(|pid| pid != "0");
    pending & SIGKILL != 0 || !is_traced && pending & DUMPS_CORE & !survived != 0
}

/// Whether `stat` shows an exiting thread (a flag of the kernel's, field 9) whose exit code (field 52) is a signal.
fn ends_by_signal(stat: &str) -> bool {
    const EXITING: u64 = 4;
    // The name, field 2, may contain anything; it ends at the last parenthesis.
    let Some((_, fields)) = stat.rsplit_once(") ") else { return false };
    let field = |n: usize| fields.split_ascii_whitespace().nth(n - 3).and_then(|f| f.parse::<u64>().ok());
    let (flags, exit_code) = (field(9).unwrap_or(0), field(52).unwrap_or(0));
    flags & EXITING != 0 && exit_code & 0x7f != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(thread: u64, process: u64, survived: u64, tracer: u32) -> String {
        format!(
            "Name:\tcat\nTracerPid:\t{tracer}\nSigPnd:\t{thread:016x}\nShdPnd:\t{process:016x}\nSigBlk:\t{:016x}\nSigIgn:\t{:016x}\nSigCgt:\t{survived:016x}\n",
            0, 0
        )
    }

    #[test]
    fn sigkill_counts_and_other_signals_do_not() {
        let (kill, urg, child, int) = (1 << 8, 1 << 22, 1 << 16, 1 << 1);
        assert!(awaits_death(&pending(kill, int, 0, 0)));
        assert!(awaits_death(&pending(0, kill | int, 0, 0)));
        assert!(!awaits_death(&pending(urg | child, int, 0, 0)));
        assert!(!awaits_death("no status at all"));
        assert!(!is_dying(std::process::id()));
        assert!(!is_dying(0), "a process that we can't see lives");
    }

    #[test]
    fn a_core_dumping_signal_kills_unless_it_is_handled_or_traced() {
        let quit = 1 << 2;
        assert!(awaits_death(&pending(0, quit, 0, 0)));
        assert!(!awaits_death(&pending(0, quit, quit, 0)));
        assert!(!awaits_death(&pending(0, quit, 0, 4242)));
        assert!(awaits_death(&pending(0, quit | 1 << 8, quit, 4242)), "a debugger does not hold SIGKILL");
    }

    #[test]
    fn a_process_that_exits_by_a_signal_is_killed_and_no_other_is() {
        let stat = |flags: u64, exit_code: u64| {
            format!("4242 (a) name) D 1 2 3 4 5 {flags} {}{exit_code}\n", "0 ".repeat(42))
        };
        assert!(ends_by_signal(&stat(4_194_304 | 4, 9)));
        assert!(ends_by_signal(&stat(4, 2 | 0x80)), "with a core dumped");
        assert!(!ends_by_signal(&stat(4, 1 << 8)), "exit(1)");
        assert!(!ends_by_signal(&stat(4_194_304, 19)), "stopped under a debugger");
        assert!(!ends_by_signal("4242 (short) R 1"));
        assert!(!is_killed(std::process::id()));
    }

    #[test]
    fn a_thread_that_has_memory_is_not_on_its_way_out() {
        assert!(has_memory(&status_of(std::process::id()).unwrap()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while status_of(child.id()).is_some_and(|status| !status.contains("State:\tZ")) {
            std::thread::yield_now();
        }
        assert!(!has_memory(&status_of(child.id()).unwrap()));
        assert!(!is_killed(child.id()), "it exits by itself");
        child.wait().unwrap();

        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        child.kill().unwrap();
        while status_of(child.id()).is_some_and(|status| !status.contains("State:\tZ")) {
            std::thread::yield_now();
        }
        assert!(is_killed(child.id()) && is_dying(child.id()));
        child.wait().unwrap();
    }
}
