//! Waits for events elsewhere: in another process, in a thread, after a reply.

use std::process::{Child, Output};
use std::time::{Duration, Instant};

/// Time limit of [`until`], far longer than any step takes on a busy machine. At the limit the test fails with the name of the missing
/// event.
pub const LIMIT: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `so` returns true. `what` names the event.
///
/// # Panics
/// `so` did not return true within [`LIMIT`].
#[track_caller]
pub fn until(what: &str, so: impl FnMut() -> bool) {
    until_within(LIMIT, what, so);
}

/// Like [`until`], with another limit.
///
/// # Panics
/// `so` did not return true within `limit`.
#[track_caller]
pub fn until_within(limit: Duration, what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !so() {
        assert!(Instant::now() < end, "waited {limit:?} until {what}");
        std::thread::sleep(PAUSE);
    }
}

/// Like [`until`], in a task: other tasks of its runtime go on meanwhile.
///
/// # Panics
/// `so` did not return true within [`LIMIT`].
pub async fn until_async(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !so() {
        assert!(Instant::now() < end, "waited {LIMIT:?} until {what}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until a child ends. Returns its status, and the output in its pipes.
///
/// # Panics
/// The child still runs after `limit`. It is killed, and the message has its output.
#[track_caller]
pub fn until_it_ends(mut child: Child, limit: Duration) -> Output {
    let end = Instant::now() + limit;
    while child.try_wait().expect("the state of a child").is_none() {
        if Instant::now() > end {
            child.kill().expect("kill a child");
            panic!("waited {limit:?} until a process ends: {:?}", child.wait_with_output());
        }
        std::thread::sleep(PAUSE);
    }
    child.wait_with_output().expect("the output of a child")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_when_it_is_so_and_fails_when_it_never_is() {
        let mut asked = 0;
        until("it was asked three times", || {
            asked += 1;
            asked == 3
        });
        let never = || until_within(Duration::from_millis(1), "never", || false);
        assert!(std::panic::catch_unwind(never).is_err());
    }

    #[test]
    fn a_child_that_ends_gives_its_output_and_one_that_goes_on_is_killed() {
        let sh = |script: &str| {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", script]).stdout(std::process::Stdio::piped()).spawn().unwrap()
        };
        let output = until_it_ends(sh("echo ends; exit 3"), LIMIT);
        assert_eq!((output.status.code(), &*output.stdout), (Some(3), &b"ends\n"[..]));
        let child = sh("exec sleep 1000");
        let pid = rustix::process::Pid::from_child(&child);
        let goes_on = || until_it_ends(child, Duration::from_millis(1));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(goes_on)).is_err());
        assert!(rustix::process::test_kill_process(pid).is_err(), "it was killed, and its status taken");
    }
}
