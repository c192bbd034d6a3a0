//! One run of a program of tests with one mutant switched on.
//!
//! Enters: the program and the mutant's number. Leaves: the first test that failed, that the time ran out, or that nothing noticed. A run
//! has namespaces of its own where root may have them, so that processes and mounts of a test that was ended go with it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::tree::Tests;

/// The verdict of the tests on a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The test that fails, twice.
    Caught(String),
    /// The tests did not end.
    TimedOut,
    /// All tests pass.
    Missed,
}

/// Runs the tests; one that fails is run once more by itself, so that a test that fails now and then catches nothing.
///
/// # Errors
/// The program can't run.
pub(crate) fn of(tests: &Tests, mutant: Option<u32>, limit: Duration) -> Result<Verdict> {
    let end = Instant::now() + limit;
    let mut doubted: Vec<String> = Vec::new();
    loop {
        let mut arguments: Vec<String> = Vec::new();
        for name in &doubted {
            arguments.extend(["--skip".to_owned(), name.clone()]);
        }
        match once(tests, mutant, &arguments, end)? {
            Verdict::Caught(name) => {
                let alone = [name.clone(), "--exact".to_owned()];
                match once(tests, mutant, &alone, Instant::now() + limit)? {
                    Verdict::Missed => doubted.push(name),
                    other => {
                        return Ok(if other == Verdict::TimedOut { other } else { Verdict::Caught(name) });
                    }
                }
            }
            other => return Ok(other),
        }
    }
}

fn once(tests: &Tests, mutant: Option<u32>, arguments: &[String], end: Instant) -> Result<Verdict> {
    let mut child = command(tests, mutant)
        .args(arguments)
        .spawn()
        .with_context(|| format!("running {}", tests.program.display()))?;
    let lines = lines(&mut child);
    let verdict = loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if let Some(name) = line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED")) {
                    break Verdict::Caught(name.to_owned());
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => break Verdict::TimedOut,
            // The tests ended. What ended before it could name a test died in one.
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Ok(if child.wait()?.success() {
                    Verdict::Missed
                } else {
                    Verdict::Caught("(the program died)".to_owned())
                });
            }
        }
    };
    child.kill()?;
    child.wait()?;
    Ok(verdict)
}

fn command(tests: &Tests, mutant: Option<u32>) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--"])
        // The shell is the namespace's first process; to some tests that one is a stranger.
        .args(["sh", "-c", "\"$@\"; exit $?", "sh"])
        .arg(&tests.program)
        .args(["--skip", "on_moto::"])
        .current_dir(&tests.folder)
        .env("CARGO_MANIFEST_DIR", &tests.folder)
        .env_remove("CI")
        .env_remove("AWS_CA_BUNDLE")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    match mutant {
        Some(number) => command.env("MUTANT", number.to_string()),
        None => command.env_remove("MUTANT"),
    };
    command
}

/// The output of the tests, line by line; the channel closes with the program.
#[expect(clippy::unwrap_used, reason = "the pipe was asked for")]
fn lines(child: &mut Child) -> mpsc::Receiver<String> {
    let out = BufReader::new(child.stdout.take().unwrap());
    let (send, receive) = mpsc::sync_channel(64);
    std::thread::spawn(move || {
        for line in out.lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    receive
}
