//! The background: a second process that mounts and stays, while the first waits for its word and leaves.
//!
//! The second process is started anew rather than forked, so that no thread or lock of the first one is half copied. Its
//! standard output is the ready pipe: one line, `ready` or what went wrong.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, bail};

/// Tells the second process what it is.
pub const BACKGROUND_ENV: &str = "MOUNT_S3_IN_BACKGROUND";

/// How long the first process waits.
const READY_WITHIN: Duration = Duration::from_secs(30);
const READY: &str = "ready";

/// Starts this command again in the background and waits until it has mounted.
///
/// # Errors
/// What the second process said went wrong; or that it said nothing in time, and was ended.
pub fn start() -> anyhow::Result<()> {
    let mut args = std::env::args_os();
    let mut command = Command::new(std::env::current_exe().context("finding this program's file")?);
    if let Some(name) = args.next() {
        command.arg0(name);
    }
    let mut child = command
        .args(args)
        .env(BACKGROUND_ENV, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the background process")?;
    let word = wait_for_word(&mut child)?;
    match word.as_deref() {
        Some(READY) => Ok(()),
        Some(error) => bail!("{error}"),
        None => {
            let _ = rustix::process::kill_process(
                rustix::process::Pid::from_child(&child),
                rustix::process::Signal::TERM,
            );
            bail!(
                "not mounted within {} s: the background process was ended; its log (syslog, or --log-directory) says what it waited for",
                READY_WITHIN.as_secs()
            )
        }
    }
}

/// The first line of the child, or `None` after [`READY_WITHIN`].
fn wait_for_word(child: &mut Child) -> anyhow::Result<Option<String>> {
    let stdout = child.stdout.take().context("the ready pipe")?;
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(stdout).read_line(&mut line).map(|_| line);
        let _ = send.send(read);
    });
    match receive.recv_timeout(READY_WITHIN) {
        Ok(line) => {
            let line = line.context("reading the ready pipe")?;
            if line.is_empty() {
                let status = child.wait().context("waiting for the background process")?;
                bail!("the background process ended before it had mounted ({status})");
            }
            Ok(Some(line.trim_end().to_owned()))
        }
        Err(_) => Ok(None),
    }
}

/// In the second process, first of all: leaves the terminal's session, so that its signals don't reach us.
///
/// # Errors
/// The kernel refuses.
pub fn detach() -> anyhow::Result<()> {
    rustix::process::setsid().context("leaving the terminal's session")?;
    Ok(())
}

/// In the second process: says the word, and lets go of the terminal.
///
/// # Errors
/// The first process is gone, or `/dev/null` is.
pub fn report(outcome: Result<(), &anyhow::Error>) -> anyhow::Result<()> {
    let line = match outcome {
        Ok(()) => READY.to_owned(),
        Err(error) => one_line(error),
    };
    writeln!(io::stdout(), "{line}")
        .and_then(|()| io::stdout().flush())
        .context("writing to the ready pipe")?;
    let null =
        std::fs::OpenOptions::new().read(true).write(true).open("/dev/null").context("opening /dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    // A daemon must not keep somebody's directory busy.
    std::env::set_current_dir("/")?;
    Ok(())
}

/// An error and its causes on one line.
pub fn one_line(error: &anyhow::Error) -> String {
    format!("{error:#}").replace(['\n', '\r'], " ")
}
