//! The program that prints credentials (`credential_process`), as the helper of a sandboxed engine runs it: `sh -c`, as AWS's SDKs do.

use std::ffi::OsString;
use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::cli;
use crate::clock::Clock;

/// Longest run of the program. Beyond it the program is killed, and the call fails.
const WITHIN: Duration = Duration::from_secs(10);
/// Most bytes of output that are read; the rest is ignored.
const OUTPUT_MAX: u64 = 32 << 10;

/// Interval between checks of a program that has closed its output.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The output of the command.
///
/// # Errors
/// The command fails, takes too long, or can't be started. The error contains nothing of its output.
pub(super) fn output(command: &str) -> io::Result<String> {
    run(command, cli::of_programs(), WITHIN)
}

fn run(command: &str, given: Vec<(&'static str, OsString)>, within: Duration) -> io::Result<String> {
    let mut shell = Command::new("sh");
    shell.env_clear().envs(given).process_group(0);
    shell.arg("-c").arg(command).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = shell.spawn()?;
    let stdout =
        child.stdout.take().ok_or_else(|| io::Error::other("the credential_process has no output"))?;
    let (send, receive) = mpsc::channel();
    std::thread::Builder::new().name("printed".to_owned()).spawn(move || {
        let mut text = String::new();
        let read = stdout.take(OUTPUT_MAX).read_to_string(&mut text).map(|_| text);
        let _ = send.send(read);
    })?;
    let (clock, late) =
        (Clock::machine(), format!("the credential_process took longer than {} s", within.as_secs()));
    let until = clock.now() + within;
    let read = receive.recv_timeout(within).map_err(|_| io::Error::other(late.as_str()));
    if read.is_err() {
        // A child may hold the output of a program that has ended: the group lives until the program is waited for.
        end(&mut child);
    }
    // The program may have closed its output and still work.
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if clock.now() < until => std::thread::sleep(LOOK_AGAIN),
            None => {
                end(&mut child);
                return Err(io::Error::other(late));
            }
        }
    };
    match read? {
        text if status.success() => text,
        _ => Err(io::Error::other(format!("the credential_process failed: {status}"))),
    }
}

/// Kills the program with the processes that it started: together they are a process group.
fn end(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_a_program_comes_back_and_a_failure_says_nothing_of_it() {
        assert_eq!(output("echo one two").unwrap(), "one two\n");
        let error = output("echo SECRET; exit 3").unwrap_err().to_string();
        assert!(error.contains('3') && !error.contains("SECRET"), "{error}");
        assert!(output("exec /nowhere/to/be/found").is_err());
    }

    #[test]
    fn a_program_gets_the_variables_that_are_listed_and_no_other() {
        let path = cli::of_programs().into_iter().find(|(name, _)| *name == "PATH").unwrap();
        let printed = run("env", vec![path, ("AWS_PROFILE", "p".into())], WITHIN).unwrap();
        let named = |line: &str| line.split_once('=').map(|(name, _)| name.to_owned());
        // Variables of the shell itself.
        let own = ["PWD", "SHLVL", "OLDPWD", "_"];
        let mut names: Vec<_> =
            printed.lines().filter_map(named).filter(|name| !own.contains(&name.as_str())).collect();
        names.sort_unstable();
        assert_eq!(names, ["AWS_PROFILE", "PATH"]);
    }

    /// Runs a program that takes longer than a second, and waits until each process that it noted in `pids` has ended.
    fn all_end(program: &str) {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pids");
        let program = program.replace("PIDS", &pids.display().to_string());
        assert!(run(&program, cli::of_programs(), Duration::from_secs(1)).is_err());
        for pid in std::fs::read_to_string(pids).unwrap().lines() {
            testkit::until("it is killed", || {
                let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
            });
        }
    }

    #[test]
    fn a_program_that_closes_its_output_and_stays_is_ended_with_its_children() {
        all_end("sleep 1000 & echo $! >PIDS; echo $$ >>PIDS; exec >&-; wait");
    }

    #[test]
    fn a_child_that_holds_the_output_of_a_program_that_ended_is_ended() {
        all_end("sleep 1000 & echo $! >PIDS");
    }
}
