//! Confines every thread. Landlock, capabilities and no_new_privs belong to a thread, and a mount has dozens of threads by then: each
//! confines itself in a signal handler. Unconfined threads may start others meanwhile, so the search repeats until it finds none.
#![expect(unsafe_code, reason = "a signal to one thread and landlock's call have no safe wrapper")]

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, gettid, set_capabilities, set_no_new_privs,
};

use crate::clock::Clock;
use crate::sync::Arc;

/// Most threads that can be confined. An engine has dozens; with more than this, the confinement fails. Doubling it takes 16 KiB more
/// during the start.
const THREADS_MAX: usize = 4096;
/// Longest wait until the threads have confined themselves; then the confinement fails. A thread that waits for a hanging disk handles no
/// signal. Doubling it delays a mount on such a disk by as much.
const WITHIN: Duration = Duration::from_secs(5);
/// Pause between two checks of the threads.
const LOOK_AGAIN: Duration = Duration::from_micros(200);
/// Beginning of the names of the kernel's own threads for rings. They act with the rights of the requesting thread, and handle no signal.
const OF_KERNEL: &str = "iou-";

/// The confined threads, as their handlers note them.
struct Done {
    threads: Vec<AtomicI32>,
    count: AtomicUsize,
    errno: AtomicI32,
}

impl Done {
    fn has(&self, thread: i32) -> bool {
        let count = self.count.load(SeqCst).min(self.threads.len());
        self.threads[..count].iter().any(|done| done.load(SeqCst) == thread)
    }

    /// Notes a thread's outcome. A signal handler calls this, so it stores numbers and does no more.
    fn note(&self, thread: i32, outcome: Result<(), Errno>) {
        if let Err(error) = outcome {
            self.errno.store(error.raw_os_error(), SeqCst);
        }
        if let Some(place) = self.threads.get(self.count.fetch_add(1, SeqCst)) {
            place.store(thread, SeqCst);
        }
    }

    fn outcome(&self) -> io::Result<()> {
        match self.errno.load(SeqCst) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// Confines every thread of this process.
///
/// # Errors
/// The kernel refuses, or a thread does not handle its signal: then this thread is not confined, and others are.
pub(super) fn confine_all(ruleset: Option<&OwnedFd>) -> io::Result<()> {
    if ruleset.is_some() && !sees_root() {
        return Err(io::Error::other(
            "the root directory can't be listed, by which a confined thread is known",
        ));
    }
    let threads = std::iter::repeat_with(|| AtomicI32::new(0)).take(THREADS_MAX).collect();
    let done = Arc::new(Done { threads, count: AtomicUsize::new(0), errno: AtomicI32::new(0) });
    let (of_handler, rules) = (Arc::clone(&done), ruleset.map(|ruleset| ruleset.as_raw_fd()));
    let signal = libc::SIGRTMIN() + 5;
    // SAFETY: the handler makes system calls, which go by no lock and no allocation, and stores numbers in memory that it holds. The
    // crate keeps errno. `ruleset` is open for as long as this function runs, and the handler is taken back before its end.
    let handler = unsafe {
        signal_hook::low_level::register(signal, move || {
            let thread = gettid().as_raw_nonzero().get();
            of_handler.note(thread, confine(rules));
        })?
    };
    let outcome = signal_all(signal, &done, rules);
    signal_hook::low_level::unregister(handler);
    outcome.and_then(|()| done.outcome())
}

fn signal_all(signal: i32, done: &Done, rules: Option<i32>) -> io::Result<()> {
    let own = gettid().as_raw_nonzero().get();
    done.note(own, confine(rules));
    let clock = Clock::machine();
    let until = clock.now() + WITHIN;
    loop {
        let left: Vec<i32> = threads()?.into_iter().filter(|&thread| !done.has(thread)).collect();
        if left.is_empty() {
            return Ok(());
        }
        for &thread in &left {
            signal_one(thread, signal);
        }
        while threads()?.into_iter().any(|thread| left.contains(&thread) && !done.has(thread)) {
            if clock.now() > until {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("a thread did not answer within {} s: does a disk hang?", WITHIN.as_secs()),
                ));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

/// The threads of this process that run its own code.
fn threads() -> io::Result<Vec<i32>> {
    let is_ours = |entry: &std::fs::DirEntry| {
        // A thread that ended meanwhile does not count.
        std::fs::read_to_string(entry.path().join("comm")).is_ok_and(|name| !name.starts_with(OF_KERNEL))
    };
    let entries = std::fs::read_dir("/proc/self/task")?.flatten().filter(is_ours);
    Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

fn signal_one(thread: i32, signal: i32) {
    // SAFETY: the call takes three numbers, and a thread that is gone is an error that nothing follows from.
    unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, signal) };
}

/// Whether the calling thread may list the root directory, which no engine needs and the landlock rules refuse. A thread that a confined
/// thread started may not: such a thread needs no rules of its own, because landlock stacks rules and refuses more than 16 layers. Any
/// other error, such as of a process without a free descriptor, does not show a rule: the thread confines itself once more.
fn sees_root() -> bool {
    use rustix::fs::{Mode, OFlags, open};
    open("/", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_or_else(|error| error != Errno::ACCESS, |_| true)
}

/// Confines the calling thread, and the threads that it starts later. Called by a signal handler.
fn confine(rules: Option<i32>) -> Result<(), Errno> {
    set_no_new_privs(true)?;
    if let Some(rules) = rules.filter(|_| sees_root()) {
        // SAFETY: the call takes a descriptor, which the caller of `confine_all` holds, and flags.
        if unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules, 0) } != 0 {
            return Err(Errno::from_raw_os_error(
                io::Error::last_os_error().raw_os_error().unwrap_or(libc::EPERM),
            ));
        }
    }
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, Rlimit, setrlimit};

    use super::*;

    #[test]
    fn a_thread_without_a_free_descriptor_is_not_taken_for_confined() {
        testkit::isolated(|| {
            assert!(sees_root());
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
            assert_eq!(std::fs::read_dir("/").unwrap_err().raw_os_error(), Some(libc::EMFILE));
            assert!(sees_root());
        });
    }
}
