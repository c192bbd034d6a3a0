//! The helper of a sandboxed engine, put together: its action for each request (`broker/`), and its start.
//!
//! The helper is this program once more, by a hidden flag, started before the first request to the store. Its standard input is the
//! socket.

use std::ffi::OsString;
use std::io;
use std::net::ToSocketAddrs as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::OnceLock;

use anyhow::Context as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::lent::{Lent, check_device};
use super::program;
use crate::broker::{self, Answer, Broker, Question};
use crate::handover::Handover;
use crate::{fs, fuse, sandbox};

/// The hidden flag. Two arguments follow, each possibly empty: the directory of the mount, if the helper may unmount it, and the folder of
/// the engine's cache.
const FLAG: &str = "--help-sandboxed-engine";
/// The flag of an engine whose mount outlives it.
const SUPERVISED: &str = "--supervised";
/// The name of the process. It differs from the engine's, because `pkill mount-s3` is meant for engines.
const NAME: &str = "s3-helper";

/// Starts the helper of this process. `dir`: the mount point that the helper may unmount. `cache`: the folder whose files it may register
/// for the kernel to read.
///
/// # Errors
/// This program can't be started once more.
pub(super) fn start(dir: Option<&Path>, cache: Option<&Path>) -> anyhow::Result<Child> {
    let (ours, theirs) = broker::pair().context("a socket for the helper")?;
    let mut helper = fuse::helper("/proc/self/exe");
    let none = Path::new("");
    helper
        .arg0(NAME)
        .arg(FLAG)
        .args([dir, cache].map(|path| path.unwrap_or(none)))
        .stdin(theirs)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // Signals of the terminal go to the engine alone.
    helper.process_group(0);
    let child = helper.spawn().context("starting the helper")?;
    Broker::begin(ours, fuse::is_privileged())?;
    Ok(child)
}

/// The command line of the engine that started this process. The engine is not confined yet, so the line can be trusted.
fn line_of_parent() -> Option<Vec<OsString>> {
    let parent = rustix::process::getppid()?.as_raw_nonzero();
    let line = std::fs::read(format!("/proc/{parent}/cmdline")).ok()?;
    let words = line.strip_suffix(&[0])?.split(|byte| *byte == 0);
    Some(words.map(|word| OsString::from_vec(word.to_vec())).collect())
}

/// The helper of an engine.
#[derive(Debug)]
pub struct Desk {
    dir: Option<PathBuf>,
    cache: Option<PathBuf>,
    /// The files that a confined engine may register.
    lent: OnceLock<Option<Lent>>,
    device: OnceLock<Option<fs::DeviceNo>>,
    /// The command line of the program that prints credentials. `None`: the engine was confined before it named one.
    program: OnceLock<Option<String>>,
    /// The engine's command line, if the mount outlives the engine: the program that is installed later gets the same one.
    line: Option<Vec<OsString>>,
}

impl Desk {
    fn new(dir: Option<PathBuf>, cache: Option<PathBuf>) -> Self {
        let (lent, device, program) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self { dir, cache, lent, device, program, line: None }
    }

    /// Parses the command line of a helper; `None` for any other command line.
    pub fn asked(line: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let mut words = line.into_iter().skip(1);
        words.next().filter(|word| word == FLAG)?;
        let mut path = || words.next().filter(|word| !word.is_empty()).map(PathBuf::from);
        Some(Self::new(path(), path()))
    }

    /// Serves the engine until its end.
    ///
    /// # Errors
    /// Standard input is not the engine's socket.
    pub fn run(mut self) -> anyhow::Result<()> {
        // An end of the whole unit signals all its processes: the helper outlives the engine.
        let _heard = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("taking signals")?;
        let name = std::ffi::CString::new(NAME)?;
        let _ = rustix::thread::set_name(&name);
        sandbox::no_dumps().context("keeping memory from others")?;
        // A helper must not keep a directory busy.
        std::env::set_current_dir("/")?;
        self.line = line_of_parent().filter(|line| line.iter().any(|word| word == SUPERVISED));
        let socket = io::stdin().as_fd().try_clone_to_owned().context("the engine's socket")?;
        broker::serve(socket, move |question, files| self.answer(question, &files))
            .context("serving the engine")
    }

    fn answer(&self, question: Question, files: &[OwnedFd]) -> Answer {
        let of = |outcome: io::Result<Answer>| outcome.unwrap_or_else(|error| Answer::refused(&error));
        match question {
            Question::Mounted { device } => {
                let device = device.map(|(major, minor)| fs::DeviceNo { major, minor });
                match self.device.set(device) {
                    Ok(()) => Answer::Done,
                    Err(_) => of(Err(io::Error::other("the mount is known already"))),
                }
            }
            Question::Unmount { is_connected } => match (&self.dir, self.device.get()) {
                (Some(dir), Some(device)) => match fuse::unmount_here(dir, *device, is_connected) {
                    Ok(()) => Answer::Done,
                    Err(error) => Answer::Refused { errno: None, why: crate::daemon::one_line(&error) },
                },
                _ => of(Err(io::Error::other("there is no mount of this engine"))),
            },
            Question::Holds { tid, device, mount, ino, writing } => {
                Answer::Holds(fs::holds_for(tid, device, mount, ino, writing))
            }
            Question::HasEndedBySignal { tid } => Answer::Holds(Some(fuse::is_ended_by_signal(tid))),
            Question::Register => of(match files {
                [device, file] => self.register(device, file).map(Answer::Number),
                _ => Err(io::ErrorKind::InvalidInput.into()),
            }),
            Question::Forget { id } => of(match files {
                [device] => {
                    check_device(device).and_then(|()| fuse::forget_here(device, id)).map(|()| Answer::Done)
                }
                _ => Err(io::ErrorKind::InvalidInput.into()),
            }),
            Question::Resolve { host, port } => {
                of((host.as_str(), port).to_socket_addrs().map(|found| Answer::Addresses(found.collect())))
            }
            Question::Program { command } => {
                let _ = self.program.set(Some(command));
                Answer::Done
            }
            Question::Credentials { command } => {
                let known = self.program.get_or_init(|| Some(command.clone()));
                of(match known {
                    Some(known) if *known == command => program::output(&command).map(Answer::Text),
                    _ => Err(io::Error::other(
                        "the credential_process is not that of the start, which a confined engine keeps: mount anew",
                    )),
                })
            }
            Question::Check => match (files, &self.line) {
                ([journal], Some(line)) => {
                    match Handover::with(line.clone()).and_then(|to| to.check(journal.as_fd())) {
                        Ok(()) => Answer::Done,
                        Err(error) => Answer::Refused { errno: None, why: crate::daemon::one_line(&error) },
                    }
                }
                _ => of(Err(io::Error::other("this mount ends with its engine"))),
            },
            Question::Confined => {
                // From now on no other program counts, and no other folder that takes the cache's name.
                let _ = self.program.set(None);
                let _ = self.lent.set(self.cache.as_deref().and_then(|cache| Lent::of(cache).ok()));
                Answer::Done
            }
        }
    }
}

impl Desk {
    /// Registers a file. An engine that is not confined yet has its user's own rights.
    fn register(&self, device: &OwnedFd, file: &OwnedFd) -> io::Result<u32> {
        check_device(device)?;
        match self.lent.get() {
            Some(Some(lent)) => lent.check(file)?,
            Some(None) => return Err(io::Error::other("this mount has no cache whose files could be lent")),
            None => {}
        }
        fuse::register_here(device, file.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_flag_makes_this_program_the_helper_of_an_engine() {
        let asked =
            |line: &[&str]| Desk::asked(line.iter().map(OsString::from)).map(|desk| (desk.dir, desk.cache));
        assert_eq!(asked(&[NAME, FLAG, "/a b", ""]), Some((Some("/a b".into()), None)));
        assert_eq!(asked(&[NAME, FLAG, "", "/cache"]), Some((None, Some("/cache".into()))));
        assert_eq!(asked(&[NAME, FLAG]), Some((None, None)));
        assert_eq!(asked(&["mount-s3", "bucket", FLAG]), None);
        assert_eq!(asked(&["mount-s3"]), None);
    }

    #[test]
    fn an_engine_without_a_mount_of_its_own_has_nothing_unmounted() {
        let desk = |dir: Option<&str>| Desk::new(dir.map(PathBuf::from), None);
        let unmount = Question::Unmount { is_connected: true };
        for desk in [desk(None), desk(Some("/nowhere"))] {
            assert!(matches!(desk.answer(unmount.clone(), &[]), Answer::Refused { .. }));
        }
        let desk = desk(Some("/nowhere"));
        assert_eq!(desk.answer(Question::Mounted { device: Some((0, 7)) }, &[]), Answer::Done);
        let again = desk.answer(Question::Mounted { device: Some((0, 8)) }, &[]);
        assert!(matches!(again, Answer::Refused { .. }), "another mount of the machine: {again:?}");
    }

    #[test]
    fn names_are_resolved_and_files_that_did_not_come_are_refused() {
        let desk = Desk::new(None, None);
        let Answer::Addresses(found) =
            desk.answer(Question::Resolve { host: "localhost".into(), port: 80 }, &[])
        else {
            panic!("localhost has an address")
        };
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 80));
        assert!(!found.is_empty());
        for question in [Question::Register, Question::Forget { id: 1 }, Question::Check] {
            assert!(matches!(desk.answer(question, &[]), Answer::Refused { .. }));
        }
    }

    /// The helper is privileged: if it registered any file for the engine, users of the mount could read files such as `/etc/shadow`.
    #[test]
    fn a_confined_engine_has_files_of_its_cache_registered_and_no_others() {
        let cache = tempfile::tempdir().unwrap();
        std::fs::write(cache.path().join("file"), "x").unwrap();
        let Ok(device) = std::fs::File::open("/dev/fuse") else { return };
        let ask = |desk: &Desk, file: OwnedFd| match desk
            .answer(Question::Register, &[device.try_clone().unwrap().into(), file])
        {
            Answer::Refused { errno, .. } => errno,
            other => panic!("a device without a mount registers nothing: {other:?}"),
        };
        let of_cache = || std::fs::File::open(cache.path().join("file")).unwrap().into();
        let held =
            || rustix::fs::open("/etc/shadow", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        let desk = Desk::new(None, Some(cache.path().to_owned()));
        assert_eq!(desk.answer(Question::Confined, &[]), Answer::Done);
        assert!(ask(&desk, of_cache()).is_some(), "the kernel itself refuses it here");
        assert_eq!(ask(&desk, held()), None, "the helper refuses it");
        let without = Desk::new(None, None);
        assert_eq!(without.answer(Question::Confined, &[]), Answer::Done);
        assert_eq!(ask(&without, of_cache()), None);
    }

    #[test]
    fn a_mount_that_ends_with_its_engine_has_no_program_started() {
        let journal: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let Answer::Refused { why, .. } = Desk::new(None, None).answer(Question::Check, &[journal]) else {
            panic!("there is no command line to start")
        };
        assert!(why.contains("ends with its engine"), "{why}");
    }

    #[test]
    fn a_confined_engine_has_the_program_of_its_start_run_and_no_other() {
        let ask = |desk: &Desk, command: &str| {
            desk.answer(Question::Credentials { command: command.to_owned() }, &[])
        };
        let desk = Desk::new(None, None);
        assert_eq!(ask(&desk, "echo 1"), Answer::Text("1\n".to_owned()));
        assert!(matches!(ask(&desk, "echo 2"), Answer::Refused { .. }));
        assert_eq!(desk.answer(Question::Confined, &[]), Answer::Done);
        assert_eq!(ask(&desk, "echo 1"), Answer::Text("1\n".to_owned()));
        let desk = Desk::new(None, None);
        assert_eq!(desk.answer(Question::Confined, &[]), Answer::Done);
        assert!(
            matches!(ask(&desk, "echo 1"), Answer::Refused { .. }),
            "the first word of a confined engine"
        );
        let name =
            |desk: &Desk, command: &str| desk.answer(Question::Program { command: command.to_owned() }, &[]);
        assert_eq!(name(&desk, "echo 1"), Answer::Done);
        assert!(matches!(ask(&desk, "echo 1"), Answer::Refused { .. }), "named too late");
        // An engine that goes on with a mount asks for no credentials before.
        let desk = Desk::new(None, None);
        assert_eq!(name(&desk, "echo 1"), Answer::Done);
        assert_eq!(name(&desk, "echo 2"), Answer::Done);
        assert_eq!(desk.answer(Question::Confined, &[]), Answer::Done);
        assert_eq!(ask(&desk, "echo 1"), Answer::Text("1\n".to_owned()));
        assert!(matches!(ask(&desk, "echo 2"), Answer::Refused { .. }));
    }
}
