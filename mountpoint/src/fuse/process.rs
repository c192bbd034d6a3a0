//! Whether the thread behind a request is being killed.

/// Whether a fatal signal is pending for this thread: the kernel puts SIGKILL there for every signal that will end the
/// process. False for a thread that we can't see (another process namespace): its request runs to its end.
pub(super) fn is_dying(tid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{tid}/status")).is_ok_and(|status| has_sigkill(&status))
}

fn has_sigkill(status: &str) -> bool {
    const SIGKILL: u64 = 1 << 8;
    status
        .lines()
        .filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")))
        .filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .any(|mask| mask & SIGKILL != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sigkill_counts_and_other_signals_do_not() {
        assert!(has_sigkill("Name:\tcat\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000002\n"));
        assert!(has_sigkill("SigPnd:\t0000000000000000\nShdPnd:\t0000000000000102\n"));
        assert!(!has_sigkill("SigPnd:\t0000000000010000\nShdPnd:\t0000000000000002\n"));
        assert!(!is_dying(std::process::id()));
    }
}
