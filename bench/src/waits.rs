//! Counts how often the threads of a daemon wait for one another: calls of futex, waits for kernel locks, and context switches
//! during one stretch of work. Enters: processes. Leaves: counts, by Debian's `perf`. The tracepoint slows each
//! system call slightly, so a run counts only with `--locks`. Idle threads call futex, too.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

/// The events that are counted, in the order of [`Waits`].
const EVENTS: &str = "syscalls:sys_enter_futex,lock:contention_begin,context-switches,cpu-migrations";
/// Pause in which perf attaches to all threads. The daemon is idle meanwhile.
const ATTACHES: Duration = Duration::from_millis(500);

/// Counts during one stretch of work, over all threads of the daemon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Waits {
    /// Calls of futex: waits for the program's locks, wake-ups, and sleeps of idle threads.
    pub(crate) futex: u64,
    /// Waits for kernel locks, including spinning ones.
    pub(crate) kernel_locks: u64,
    /// Context switches.
    pub(crate) switches: u64,
    /// Moves of a thread to another processor, whose caches do not have its data.
    pub(crate) migrations: u64,
}

/// A running perf.
#[derive(Debug)]
pub(crate) struct Watch {
    perf: Child,
    output: PathBuf,
}

/// Checks whether this machine can count the events.
///
/// # Errors
/// perf is missing, or may not trace.
pub(crate) fn available() -> anyhow::Result<()> {
    let tried = Command::new("perf").args(["stat", "-e", EVENTS, "--", "true"]).output();
    let tried = tried.context("--locks counts with perf: apt-get install linux-perf")?;
    ensure!(
        tried.status.success(),
        "--locks needs the right to trace (root): perf stat -e {EVENTS} says: {}",
        String::from_utf8_lossy(&tried.stderr).trim()
    );
    Ok(())
}

impl Watch {
    /// Counts the waits of these processes' threads from now on, including threads that start later. perf writes the counts to a file in
    /// `work`.
    ///
    /// # Errors
    /// perf does not start.
    pub(crate) fn begin(processes: &[u32], work: &Path) -> anyhow::Result<Self> {
        let output = work.join("waits.csv");
        let processes: Vec<_> = processes.iter().map(u32::to_string).collect();
        let mut command = Command::new("perf");
        command.args(["stat", "-x", ",", "-e", EVENTS, "-p", &processes.join(","), "-o"]).arg(&output);
        let perf = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let perf = perf.context("start perf")?;
        std::thread::sleep(ATTACHES);
        Ok(Self { perf, output })
    }

    /// Ends the count, and returns it.
    ///
    /// # Errors
    /// perf ended earlier, or did not count.
    pub(crate) fn end(mut self) -> anyhow::Result<Waits> {
        let pid = i32::try_from(self.perf.id()).ok().and_then(Pid::from_raw).context("perf has no number")?;
        kill_process(pid, Signal::INT).context("end perf")?;
        self.perf.wait()?;
        let text = std::fs::read_to_string(&self.output).context("read what perf counted")?;
        parse(&text).with_context(|| format!("perf counted nothing: {text}"))
    }
}

/// Parses perf's lines: the first field is the count, the third the event.
fn parse(text: &str) -> Option<Waits> {
    let count = |event: &str| {
        let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
        lines.find(|fields| fields.get(2) == Some(&event))?.first()?.parse().ok()
    };
    let mut counts = EVENTS.split(',').map(count);
    let mut next = || counts.next().flatten();
    Some(Waits { futex: next()?, kernel_locks: next()?, switches: next()?, migrations: next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_by_their_events_and_one_that_was_not_counted_is_none() {
        let text = "# started on Mon Nov 23 20:20:21 2026\n\n17,,syscalls:sys_enter_futex,1117185,100.00,,\n\
                    2,,lock:contention_begin,1117185,100.00,,\n90,,context-switches,1117185,100.00,,\n\
                    3,,cpu-migrations,1117185,100.00,,\n";
        let waits = Waits { futex: 17, kernel_locks: 2, switches: 90, migrations: 3 };
        assert_eq!(parse(text), Some(waits));
        assert_eq!(parse(&text.replace("17,", "<not counted>,")), None);
        assert_eq!(parse(""), None);
    }
}
