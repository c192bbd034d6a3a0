//! The ready file: one line tells a supervisor that the mount is ready, or why it failed.

use std::fs::{self, File};
use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use testkit::until_within;

use crate::common::{START_AND_END, Setup, Store, command, is_mounted, need, until, with_descriptor_3};

/// A test that takes longer hangs. It covers an engine's end, too.
pub(super) const LIMIT: Duration = START_AND_END;

pub(super) fn has_fuse() -> bool {
    need("/dev/fuse", File::options().read(true).write(true).open("/dev/fuse").is_ok())
}

/// An engine and its directory; neither outlives the test.
pub(super) struct Engine<'a> {
    pub(super) child: Child,
    dir: &'a Path,
    // Dropped with the engine, which ends the watchdog.
    _watchdog: mpsc::Sender<()>,
}

impl<'a> Engine<'a> {
    /// Starts an engine with descriptor 3 as its ready file.
    fn start(store: &Store, dir: &'a Path, setup: &Setup, ready: PipeWriter) -> Self {
        let mut setup = setup.clone();
        setup.options.extend(["--ready-file", "/dev/fd/3"].map(str::to_owned));
        let plain = command(store, dir, &setup);
        let mut shell = with_descriptor_3(&plain, ready.into());
        // The command and our end of the pipe go here: what is read ends when nobody can say any more.
        let child = shell.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self::of(child, dir)
    }

    pub(super) fn of(child: Child, dir: &'a Path) -> Self {
        let pid = Pid::from_child(&child);
        let (alive, ended) = mpsc::channel();
        std::thread::spawn(move || {
            if ended.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("the test takes longer than {LIMIT:?}: killing the engine");
                let _ = kill_process(pid, Signal::KILL);
            }
        });
        Self { child, dir, _watchdog: alive }
    }

    pub(super) fn wait(&mut self) -> ExitStatus {
        until_within(LIMIT, "mount-s3 ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap()
    }
}

impl Drop for Engine<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = rustix::mount::unmount(self.dir, rustix::mount::UnmountFlags::DETACH);
    }
}

/// The line that comes, without its end.
fn line(pipe: &mut PipeReader) -> String {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while pipe.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
        line.push(byte[0]);
    }
    assert_eq!(byte, *b"\n", "a whole line, not {:?}", String::from_utf8_lossy(&line));
    String::from_utf8(line).unwrap()
}

#[test]
fn a_supervisor_hears_through_its_pipe_that_the_mount_can_be_used() {
    if !has_fuse() {
        return;
    }
    let (store, dir) = (Store::new(), tempfile::tempdir().unwrap());
    store.plant("file", b"1");
    let (mut hears, says) = std::io::pipe().unwrap();
    let mut engine = Engine::start(&store, dir.path(), &Setup::new(&[]), says);
    assert_eq!(line(&mut hears), "ready");
    assert!(is_mounted(dir.path()), "it said so before it had mounted");
    assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"1");
    kill_process(Pid::from_child(&engine.child), Signal::TERM).unwrap();
    assert_eq!(engine.wait().code(), Some(0));
    assert!(!is_mounted(dir.path()));
    let mut rest = Vec::new();
    hears.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"", "one line and nothing more");
}

#[test]
fn a_background_mount_holds_its_supervisors_pipe_no_longer_than_the_first() {
    if !has_fuse() {
        return;
    }
    let (store, dir) = (Store::new(), tempfile::tempdir().unwrap());
    let (mut hears, says) = std::io::pipe().unwrap();
    let setup = Setup { foreground: false, ..Setup::new(&[]) };
    let mut engine = Engine::start(&store, dir.path(), &setup, says);
    assert_eq!(engine.wait().code(), Some(0));
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut said = String::new();
        let _ = send.send(hears.read_to_string(&mut said).map(|_| said));
    });
    let said = receive.recv_timeout(Duration::from_secs(20));
    assert!(is_mounted(dir.path()));
    drop(engine);
    assert_eq!(said.expect("the end of what is said comes").unwrap(), "ready\n");
}

#[test]
fn a_supervisor_hears_through_its_pipe_what_went_wrong() {
    for foreground in [true, false] {
        let (store, dir) = (Store::new(), tempfile::tempdir().unwrap());
        let setup = Setup { bucket: "no-such-bucket".to_owned(), foreground, ..Setup::new(&[]) };
        let (mut hears, says) = std::io::pipe().unwrap();
        let mut engine = Engine::start(&store, dir.path(), &setup, says);
        let mut said = String::new();
        hears.read_to_string(&mut said).unwrap();
        assert_eq!(engine.wait().code(), Some(1), "{said}");
        assert!(said.contains("no-such-bucket") && said.contains("NoSuchBucket"), "{said}");
        assert!(said.ends_with('\n') && said.lines().count() == 1, "one line, not {said:?}");
        assert!(!said.contains(Store::SECRET_KEY) && !is_mounted(dir.path()));
    }
}

#[test]
fn a_ready_file_is_private_and_holds_nothing_of_an_earlier_mount() {
    if !has_fuse() {
        return;
    }
    let (store, dir) = (Store::new(), tempfile::tempdir().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let options = ["--ready-file", ready.to_str().unwrap()];
    let background = Setup { foreground: false, ..Setup::new(&options) };
    // The output does not go to pipes: a daemon would keep the pipes open, and the test would read for ever.
    let run = |setup: &Setup| {
        let mut command = command(&store, dir.path(), setup);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap()
    };
    let status = run(&background);
    let (mounted, said) = (is_mounted(dir.path()), fs::read_to_string(&ready).unwrap());
    let _ = rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH);
    assert_eq!((status.code(), mounted, said.as_str()), (Some(0), true, "ready\n"));
    assert_eq!(fs::metadata(&ready).unwrap().permissions().mode() & 0o777, 0o600);

    // The same path again, in a start that fails: the first word is gone.
    let wrong = Setup { bucket: "no-such-bucket".to_owned(), ..Setup::new(&options) };
    assert_eq!(run(&wrong).code(), Some(1));
    let said = fs::read_to_string(&ready).unwrap();
    assert!(said.contains("no-such-bucket") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_mount_of_which_nobody_can_be_told_does_not_stay() {
    if !has_fuse() {
        return;
    }
    for foreground in [true, false] {
        let (store, dir) = (Store::new(), tempfile::tempdir().unwrap());
        let (hears, mut says) = std::io::pipe().unwrap();
        // Full to the brim, and nobody reads.
        let size = rustix::pipe::fcntl_setpipe_size(&says, 4096).unwrap();
        says.write_all(&vec![b'x'; size]).unwrap();
        store.requests().reset();
        let setup = Setup { foreground, ..Setup::new(&[]) };
        let mut engine = Engine::start(&store, dir.path(), &setup, says);
        assert_eq!(engine.wait().code(), Some(1));
        assert!(store.requests().total() > 0, "it was the word that failed, not the start");
        // In the background the second process unmounts on a signal.
        until("a mount that nobody heard of is unmounted", || !is_mounted(dir.path()));
        drop(hears);
    }
}

#[test]
fn a_pipe_that_nobody_reads_is_an_error_and_nobody_waits_for_a_reader() {
    let (store, dir) = (Store::new(), tempfile::tempdir().unwrap());
    let (hears, says) = std::io::pipe().unwrap();
    drop(hears);
    let mut engine = Engine::start(&store, dir.path(), &Setup::new(&[]), says);
    assert_eq!(engine.wait().code(), Some(1));
    assert!(!is_mounted(dir.path()));
}

#[test]
fn an_unwritable_ready_file_is_named_before_anything_is_mounted() {
    let (store, dir) = (Store::new(), tempfile::tempdir().unwrap());
    for foreground in [true, false] {
        let setup = Setup { foreground, ..Setup::new(&["--ready-file", "/no/such/folder/ready"]) };
        let output = command(&store, dir.path(), &setup).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("/no/such/folder/ready"), "{said}");
        assert!(!is_mounted(dir.path()));
    }
}
