//! Hands a supervised mount to the program that is installed now, and takes it back if that program does not serve.
//!
//! The engine asks the new program whether it could continue the mount (`--check-journal`). Once no file is being written, the engine's
//! process executes its own program again as a guard, with the device and the journal. The guard starts the new program, waits for its
//! word, names it to the service manager as the main process, and ends. Without that word it ends the new program, and its process
//! executes the engine of before again.
//!
//! Locks, sockets and threads of the engine end at its exec, so that two engines never have them at once.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::clock::Clock;
use crate::daemon::{self, ServiceManager};

/// The first word of a guard's command line.
const FLAG: &str = "--hand-over";
/// The hidden flag for the check whether a program could go on with the journal on its standard input.
const CHECK: &str = "--check-journal";
/// The descriptors that were handed over: `fuse=N:journal=N`. They precede LISTEN_FDS, which names the descriptors of an earlier engine.
pub const KEPT_ENV: &str = "MOUNT_S3_KEPT";
/// The descriptor on which the guard hears the word `ready`.
pub const READY_ENV: &str = "MOUNT_S3_READY";
/// The variable with the reason why a handover failed. The old engine, which then serves again, logs it.
pub const BACK_ENV: &str = "MOUNT_S3_BACK";
/// The names of a service manager's own descriptors, which the engine of before has taken.
const LISTEN: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// Longest wait for the new program's word that it could go on, and then that it serves. Doubling it lets a slower machine upgrade, and
/// doubles the pause of the mount's users before the old engine serves again.
const READY_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of the new program's complaint that are read.
const COMPLAINT_MAX: u64 = 4 << 10;
/// Interval between looks at a process that should end.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The program that takes the mount over, and the command line of this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handover {
    program: PathBuf,
    line: Vec<OsString>,
}

impl Handover {
    /// The program that is at this program's path now.
    ///
    /// # Errors
    /// The path is unknown.
    pub fn to_installed() -> anyhow::Result<Self> {
        Self::with(std::env::args_os().collect())
    }

    /// The program that is at this program's path now, for an engine with another command line: this process is its helper.
    ///
    /// # Errors
    /// The path is unknown.
    pub fn with(line: Vec<OsString>) -> anyhow::Result<Self> {
        let running = std::env::current_exe().context("finding this program's file")?;
        Ok(Self { program: installed(&running), line })
    }

    /// Asks the program whether it takes this command line and this journal. Waits, at most 10 s.
    ///
    /// # Errors
    /// The program refuses: its last line says why.
    pub fn check(&self, journal: BorrowedFd<'_>) -> anyhow::Result<()> {
        let shown = self.program.display();
        let mut command = Command::new(&self.program);
        command.args(self.line.iter().skip(1)).arg(CHECK);
        command.stdin(Stdio::from(journal.try_clone_to_owned().context("the journal")?));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("starting {shown}"))?;
        let complaint = child.stderr.take().context("the new program's complaint")?;
        let clock = Clock::machine();
        let until = clock.now() + READY_WITHIN;
        let status = loop {
            if let Some(status) = child.try_wait().context("waiting for the new program")? {
                break status;
            }
            if clock.now() > until {
                end(&mut child);
                bail!("{shown} {CHECK} did not end within {} s", READY_WITHIN.as_secs());
            }
            std::thread::sleep(LOOK_AGAIN);
        };
        if status.success() {
            return Ok(());
        }
        let mut said = String::new();
        let _ = complaint.take(COMPLAINT_MAX).read_to_string(&mut said);
        let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        bail!("{shown} can't go on with this mount ({status}): {last}")
    }

    /// Executes this program as the guard. Returns only after an error, and then this engine goes on.
    ///
    /// # Errors
    /// The system refuses.
    pub fn begin(&self, device: BorrowedFd<'_>, journal: BorrowedFd<'_>) -> anyhow::Result<Infallible> {
        let (device, journal) = (device.try_clone_to_owned()?, journal.try_clone_to_owned()?);
        let kept = format!("fuse={}:journal={}", device.as_raw_fd(), journal.as_raw_fd());
        inherit(device.as_fd())?;
        inherit(journal.as_fd())?;
        let mut command = itself(self.line.first().map(OsString::as_os_str));
        command.arg(FLAG).arg(&self.program).args(&self.line).env(KEPT_ENV, kept).env_remove(BACK_ENV);
        Err(anyhow::Error::new(command.exec()).context("executing the guard"))
    }
}

/// The path at which a newer file of the running program lies: the kernel marks a file that was replaced.
fn installed(running: &Path) -> PathBuf {
    let text = running.as_os_str().to_string_lossy();
    text.strip_suffix(" (deleted)").map_or_else(|| running.to_owned(), PathBuf::from)
}

/// A command that runs this program, even if its file was replaced.
fn itself(name: Option<&OsStr>) -> Command {
    let mut command = Command::new("/proc/self/exe");
    name.into_iter().for_each(|name| _ = command.arg0(name));
    [LISTEN.as_slice(), &[READY_ENV]].concat().into_iter().for_each(|name| _ = command.env_remove(name));
    command
}

/// Leaves a descriptor open in the program that is executed.
fn inherit(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fcntl_setfd(fd, FdFlags::empty())?)
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// The process between two engines: its command line is `NAME --hand-over PROGRAM LINE...`.
#[derive(Debug, PartialEq, Eq)]
pub struct Guard(Handover);

impl Guard {
    /// The guard that this command line asks for.
    pub fn asked(line: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let mut words = line.into_iter().skip(1);
        words.next().filter(|word| word == FLAG)?;
        let program = words.next()?.into();
        Some(Self(Handover { program, line: words.collect() }))
    }

    /// Starts the new program and returns once it serves. Otherwise the old engine takes this process over.
    ///
    /// # Errors
    /// Neither could be executed.
    pub fn run(&self, manager: Option<&ServiceManager>) -> anyhow::Result<()> {
        let (error, name) = match self.start() {
            Ok(child) => {
                // The new program continues by itself, whatever the manager answers.
                if let Some(manager) = manager
                    && let Err(error) = manager.follow(child.id())
                {
                    eprintln!("mount-s3: naming the new process to the service manager: {error}");
                }
                return Ok(());
            }
            Err(error) => (daemon::one_line(&error), self.0.line.first().map(OsString::as_os_str)),
        };
        let mut command = itself(name);
        command.args(self.0.line.iter().skip(1)).env(BACK_ENV, &error);
        Err(anyhow::Error::new(command.exec())
            .context(format!("{error}; executing the engine of before again")))
    }

    /// Starts the new program. Returns it after its word that it serves.
    fn start(&self) -> anyhow::Result<Child> {
        let Handover { program, line } = &self.0;
        let shown = program.display();
        let (ours, theirs) = io::pipe().context("a pipe for the new program's word")?;
        inherit(theirs.as_fd())?;
        let mut command = Command::new(program);
        line.first().into_iter().for_each(|name| _ = command.arg0(name));
        command.args(line.iter().skip(1)).env(READY_ENV, theirs.as_raw_fd().to_string());
        LISTEN.into_iter().for_each(|name| _ = command.env_remove(name));
        let mut child = command.spawn().with_context(|| format!("starting {shown}"))?;
        drop(theirs);
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            let mut word = String::new();
            let read = BufReader::new(ours).read_line(&mut word).map(|_| word);
            let _ = send.send(read);
        });
        let said = match receive.recv_timeout(READY_WITHIN) {
            Ok(Ok(word)) if word.trim_end() == daemon::READY => return Ok(child),
            Ok(Ok(word)) if word.is_empty() => "ended without a word".to_owned(),
            Ok(Ok(word)) => format!("says: {}", word.trim_end()),
            Ok(Err(error)) => format!("can't be heard: {error}"),
            Err(_) => format!("does not serve after {} s", READY_WITHIN.as_secs()),
        };
        end(&mut child);
        bail!("{shown} {said}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_flag_makes_this_program_the_guard() {
        let asked = |line: &[&str]| Guard::asked(line.iter().map(OsString::from));
        let line = ["mount-s3", "photos", "/mnt"].map(OsString::from).to_vec();
        let guard = Guard(Handover { program: "/bin/new".into(), line });
        assert_eq!(asked(&["x", FLAG, "/bin/new", "mount-s3", "photos", "/mnt"]), Some(guard));
        for line in [&["mount-s3"][..], &["mount-s3", "photos", FLAG], &["mount-s3", FLAG]] {
            assert_eq!(asked(line), None, "{line:?}");
        }
    }

    #[test]
    fn a_replaced_program_is_looked_for_at_the_same_path() {
        assert_eq!(installed(Path::new("/usr/bin/mount-s3 (deleted)")), Path::new("/usr/bin/mount-s3"));
        assert_eq!(installed(Path::new("/usr/bin/mount-s3")), Path::new("/usr/bin/mount-s3"));
    }

    #[test]
    fn the_complaint_of_the_new_program_names_it() {
        let journal = std::fs::File::open("/dev/null").unwrap();
        for (script, words) in [
            ("echo first >&2; echo 'format 9' >&2; exit 3", "(exit status: 3): format 9"),
            ("exit 1", "(exit status: 1): it said nothing"),
            ("exit 0", ""),
        ] {
            let line = ["mount-s3", "-c", script].map(OsString::from).to_vec();
            let handover = Handover { program: "/bin/sh".into(), line };
            match handover.check(journal.as_fd()) {
                Ok(()) => assert!(words.is_empty(), "{script}"),
                Err(error) => {
                    assert_eq!(error.to_string(), format!("/bin/sh can't go on with this mount {words}"));
                }
            }
        }
    }
}
