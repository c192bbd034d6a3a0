//! Background tasks and threads that run as long as the mount: none ends unnoticed.
//!
//! A panic is logged and counted, and the task starts again: at once at first, later after growing pauses, because a task that always fails
//! must not fill the log. A task that returns is done. Requests do not run here: the program of a request that panics gets EIO.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::sync::Arc;

/// The pause before the first restart. Each further pause doubles.
const PAUSE: Duration = Duration::from_millis(10);
/// The name of threads that only try whether the system allows so large a number.
const TRIAL: &str = "trial";
/// Longest wait until the system no longer counts joined threads.
const UNCOUNTED_WITHIN: Duration = Duration::from_secs(1);
/// Longest pause before the restart of a thread. The end of the mount waits for it.
const THREAD_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Most doublings of a task's pause, which is then 82 s. One more halves the log lines of work that panics for ever, and delays the work if
/// it succeeds again.
const PAUSE_DOUBLINGS_MAX: u32 = 13;

/// Keeps threads and tasks running; logs and counts each restart.
#[derive(Clone, Debug)]
pub struct Supervisor {
    /// Counts the restarts.
    pub metrics: Arc<Metrics>,
    /// Measures the pauses of tasks.
    pub clock: Clock,
}

impl Supervisor {
    /// Runs a task on `runtime` until it returns. `work` makes the task at the start and again after each panic.
    pub fn task<F>(
        &self,
        runtime: &tokio::runtime::Handle,
        name: &'static str,
        mut work: impl FnMut() -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let (this, of_task) = (self.clone(), runtime.clone());
        runtime.spawn(async move {
            let mut starts = 0;
            while let Err(error) = of_task.spawn(work()).await {
                // Cancelled: the runtime ends.
                let Ok(panic) = error.try_into_panic() else { return };
                let pause = this.panicked(name, &mut starts, &*panic);
                this.clock.sleep(pause).await;
            }
        });
    }

    /// Runs `work` on a thread of its own until it returns.
    ///
    /// # Errors
    /// The system refuses a new thread.
    pub fn thread<T: Send + 'static>(
        &self,
        name: String,
        mut work: impl FnMut() -> T + Send + 'static,
    ) -> std::io::Result<JoinHandle<T>> {
        let this = self.clone();
        let started = std::thread::Builder::new().name(name.clone()).spawn(move || {
            let mut starts = 0;
            loop {
                // After a panic, too, the shared data are behind our locks: they have the state after the last whole statement.
                match catch_unwind(AssertUnwindSafe(&mut work)) {
                    Ok(done) => return done,
                    Err(panic) => {
                        let pause = this.panicked(&name, &mut starts, &*panic);
                        std::thread::sleep(pause.min(THREAD_PAUSE_MAX));
                    }
                }
            }
        });
        started.map_err(no_thread)
    }

    /// Logs and counts a panic; returns the pause.
    fn panicked(&self, name: &str, starts: &mut u32, panic: &(dyn Any + Send)) -> Duration {
        let what = panic.downcast_ref::<&str>().copied();
        let what = what
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("of an unknown kind");
        tracing::error!("{name}: a panic ended it, and it starts again: {what}; please report this");
        self.metrics.tasks_restarted.inc();
        let pause = PAUSE * 2_u32.pow((*starts).min(PAUSE_DOUBLINGS_MAX));
        *starts += 1;
        pause
    }
}

/// Checks whether the system has this many threads for the engine at once: starts them and lets them end. Libraries panic, or wait for
/// ever, if they get none.
///
/// # Errors
/// The system refuses this number; the error names the limits to examine.
pub fn try_threads(count: usize, clock: &Clock) -> std::io::Result<()> {
    let (hold, held) = crossbeam::channel::bounded::<()>(0);
    let start = |_| {
        let held = held.clone();
        std::thread::Builder::new().name(TRIAL.to_owned()).spawn(move || _ = held.recv())
    };
    let started: Vec<_> = (0..count).map(start).collect();
    drop(hold);
    let join = |started: std::io::Result<JoinHandle<()>>| started.map(|thread| _ = thread.join());
    // Each is joined, also behind one that was not started.
    let joined: Vec<_> = started.into_iter().map(join).collect();
    joined.into_iter().collect::<std::io::Result<()>>().map_err(no_thread)?;
    wait_for_trials(clock);
    Ok(())
}

/// Waits until the kernel no longer counts joined threads: a thread that starts before that is refused.
fn wait_for_trials(clock: &Clock) {
    let until = clock.now() + UNCOUNTED_WITHIN;
    while trials() > 0 && clock.now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The number of threads with a trial's name; 0 where `/proc` can't be read.
fn trials() -> usize {
    let is_trial = |thread: &std::fs::DirEntry| {
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim_end() == TRIAL)
    };
    std::fs::read_dir("/proc/self/task").map_or(0, |threads| threads.flatten().filter(is_trial).count())
}

/// Explains the system's "Resource temporarily unavailable" for a thread.
pub fn no_thread(error: std::io::Error) -> std::io::Error {
    let why = format!(
        "could not start a thread: {error}; raise pids.max of its cgroup, or the user's limit of processes (RLIMIT_NPROC, ulimit -u)"
    );
    std::io::Error::new(error.kind(), why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Mutex;
    use crate::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use crate::testing::log_of;

    fn supervisor() -> Supervisor {
        Supervisor { metrics: Arc::new(Metrics::default()), clock: Clock::machine() }
    }

    #[test]
    fn threads_that_were_tried_are_no_longer_there() {
        for _ in 0..20 {
            try_threads(8, &Clock::machine()).unwrap();
            assert_eq!(trials(), 0);
        }
    }

    #[test]
    fn a_task_that_panics_is_said_counted_and_started_anew_until_it_returns() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (supervisor, starts) = (supervisor(), Arc::new(AtomicU32::new(0)));
        let log = log_of(|| {
            runtime.block_on(async {
                let (done, ended) = tokio::sync::oneshot::channel();
                let (starts, done) = (Arc::clone(&starts), Arc::new(Mutex::new(Some(done))));
                supervisor.task(&tokio::runtime::Handle::current(), "the housekeeper", move || {
                    let (starts, done) = (Arc::clone(&starts), Arc::clone(&done));
                    async move {
                        assert!(starts.fetch_add(1, SeqCst) >= 2, "a broken vase");
                        let done = done.lock().take().expect("it returns once");
                        let _ = done.send(());
                    }
                });
                ended.await.unwrap();
            });
        });
        assert_eq!((starts.load(SeqCst), supervisor.metrics.tasks_restarted.get()), (3, 2));
        assert_eq!(log.lines().count(), 2, "{log}");
        assert!(log.contains("the housekeeper") && log.contains("a broken vase"), "{log}");
    }

    #[test]
    fn a_thread_that_panics_is_counted_and_started_anew_and_gives_its_result() {
        let (supervisor, mut starts) = (supervisor(), 0);
        let thread = supervisor.thread("the-thread".to_owned(), move || {
            starts += 1;
            assert!(starts >= 3, "not yet");
            starts
        });
        assert_eq!(thread.unwrap().join().unwrap(), 3);
        assert_eq!(supervisor.metrics.tasks_restarted.get(), 2);
    }

    #[test]
    fn pauses_grow_and_end_growing() {
        let (supervisor, mut starts) = (supervisor(), 0);
        let pauses: Vec<_> = (0..40).map(|_| supervisor.panicked("x", &mut starts, &"y")).collect();
        assert!(pauses.is_sorted() && pauses[0] == PAUSE);
        assert!(pauses[39] > Duration::from_secs(60) && pauses[39] < Duration::from_secs(120));
    }
}
