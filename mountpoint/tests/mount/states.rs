//! The engine is killed, ended or stopped in each named state of a mount. Afterwards a file is whole or absent, nothing of an upload
//! stays, and the directory can be mounted again.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use s3server::{Effect, Fault};
use testkit::until_within;

use super::ready::has_fuse;
use crate::common::{Pattern, START_AND_END, Setup, Store, TestMount, command, is_mounted, until};

const LEN: u64 = 6 << 20;

fn setup() -> Setup {
    Setup::new(&["--write-part-size", "5242880"])
}

/// A state in which a program waits for the engine, and the engine for the store.
struct State {
    name: &'static str,
    /// The requests whose answers the store holds, after their effect.
    held: &'static str,
    /// Number of these requests in this state.
    requests: u64,
    /// The program's act, in the directory of the mount.
    act: fn(&Path) -> io::Result<()>,
    /// Bytes that the act writes.
    writes: Option<u64>,
    /// Whether the store may have the file already.
    may_be_stored: bool,
}

const SMALL: u64 = 1000;

fn write(dir: &Path, len: u64) -> io::Result<()> {
    let mut file = File::create_new(dir.join("file"))?;
    Pattern(9).write_to(&mut file, len, 128 << 10)?;
    file.flush()?;
    file.sync_all()
}

fn write_small(dir: &Path) -> io::Result<()> {
    write(dir, SMALL)
}

fn write_parts(dir: &Path) -> io::Result<()> {
    write(dir, LEN)
}

fn read(dir: &Path) -> io::Result<()> {
    let bytes = fs::read(dir.join("old"))?;
    assert!(bytes.len() as u64 == LEN && Pattern(1).is(0, &bytes), "wrong bytes");
    Ok(())
}

#[rustfmt::skip]
const STATES: [State; 5] = [
    State { name: "in a PUT", held: "PutObject", requests: 1, act: write_small, writes: Some(SMALL), may_be_stored: true },
    State { name: "before the first part", held: "CreateMultipartUpload", requests: 1, act: write_parts, writes: Some(LEN), may_be_stored: false },
    State { name: "between the last part and Complete", held: "UploadPart", requests: 2, act: write_parts, writes: Some(LEN), may_be_stored: false },
    State { name: "in Complete", held: "CompleteMultipartUpload", requests: 1, act: write_parts, writes: Some(LEN), may_be_stored: true },
    State { name: "in a cold read", held: "GetObject", requests: 1, act: read, writes: None, may_be_stored: false },
];

impl State {
    /// Brings a mount into this state and calls `then`; the outcome of the act.
    fn reach(&self, mount: &mut TestMount, then: impl FnOnce(&mut TestMount)) -> io::Result<()> {
        let faults = mount.store().faults().clone();
        faults.add(Fault::on(self.held, Effect::Hold));
        let (act, dir) = (self.act, mount.dir().to_owned());
        thread::scope(|scope| {
            let acts = scope.spawn(move || act(&dir));
            until(self.name, || faults.fired() >= self.requests);
            then(mount);
            let outcome = acts.join().unwrap();
            faults.clear();
            outcome
        })
    }

    /// Asserts that the store has the whole file, or none. Returns whether it has the file.
    fn is_stored(&self, store: &Store) -> bool {
        let stored = store.get("file");
        let is_there = stored.is_some();
        let is_whole = |bytes: Vec<u8>| Some(bytes.len() as u64) == self.writes && Pattern(9).is(0, &bytes);
        assert!(stored.is_none_or(is_whole), "{}: the file is torn", self.name);
        is_there
    }
}

/// A mount with a file that no program has read yet.
fn mounted() -> Option<TestMount> {
    let store = Store::new();
    store.put("old", Pattern(1).bytes(0, LEN as usize));
    TestMount::of(&store, &setup())
}

#[test]
fn an_engine_killed_in_any_state_leaves_files_whole_or_none_and_no_upload() {
    for state in STATES {
        let Some(mut mount) = mounted() else { return };
        let outcome = state.reach(&mut mount, TestMount::kill_9);
        outcome.expect_err("the engine is gone");
        let mut next = mount.remount(&setup());
        let store = Arc::clone(next.store());
        let is_stored = state.is_stored(&store);
        assert!(state.may_be_stored || !is_stored, "{}", state.name);
        // Before the store answers, nobody can know the number of the upload.
        if state.held != "CreateMultipartUpload" {
            until("no upload stays", || store.pending_uploads() == 0);
        }
        read(next.dir()).unwrap();
        if !is_stored {
            write_parts(next.dir()).unwrap();
        }
        assert!(next.end_by(Signal::TERM).success());
    }
}

#[test]
fn an_engine_ended_in_any_state_lets_the_program_finish() {
    for state in STATES {
        let Some(mut mount) = mounted() else { return };
        let store = Arc::clone(mount.store());
        let outcome = state.reach(&mut mount, |mount| {
            mount.signal(Signal::TERM);
            until("the mount is gone", || !is_mounted(mount.dir()));
            mount.store().faults().release();
        });
        outcome.unwrap_or_else(|error| panic!("{}: {error}: {}", state.name, mount.log()));
        assert!(mount.end().success(), "{}", state.name);
        assert_eq!(state.is_stored(&store), state.writes.is_some(), "{}", state.name);
        assert_eq!(store.pending_uploads(), 0, "{}", state.name);
    }
}

#[test]
fn an_engine_killed_while_it_unmounts_leaves_a_directory_to_mount_on() {
    for state in STATES.into_iter().filter(|state| state.writes.is_some()) {
        let Some(mut mount) = mounted() else { return };
        let store = Arc::clone(mount.store());
        let outcome = state.reach(&mut mount, |mount| {
            mount.signal(Signal::TERM);
            until("the mount is gone", || !is_mounted(mount.dir()));
            mount.kill_9();
        });
        outcome.expect_err("the engine is gone");
        assert!(state.may_be_stored || !state.is_stored(&store), "{}", state.name);
        assert!(
            fs::read_dir(mount.dir()).unwrap().next().is_none(),
            "{}: the directory is usable",
            state.name
        );
        let next = mount.second_mount(&["--write-part-size", "5242880"]);
        read(next.dir()).unwrap();
        if state.held != "CreateMultipartUpload" {
            until("no upload stays", || store.pending_uploads() == 0);
        }
    }
}

#[test]
fn an_engine_ended_before_its_mount_is_acknowledged_leaves_none() {
    if !has_fuse() {
        return;
    }
    for signal in [Signal::KILL, Signal::TERM] {
        let (store, dir) = (Store::new(), tempfile::tempdir().unwrap());
        store.faults().add(Fault::on("ListObjectsV2", Effect::Hold));
        let mut engine = command(&store, dir.path(), &setup());
        let mut child = engine.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("the store is asked", || store.faults().fired() > 0);
        kill_process(Pid::from_child(&child), signal).unwrap();
        until_within(START_AND_END, "it ends", || child.try_wait().unwrap().is_some());
        assert!(!is_mounted(dir.path()) && fs::read_dir(dir.path()).unwrap().next().is_none(), "{signal:?}");
    }
}

/// Time for which an engine is stopped. `MOUNT_S3_STOPPED` names another number of seconds, for a longer look by hand.
fn stopped() -> Duration {
    Duration::from_secs(
        std::env::var("MOUNT_S3_STOPPED").map_or(0, |seconds| seconds.parse().expect("a number")),
    )
}

#[test]
fn programs_wait_for_an_engine_that_is_stopped_and_go_on_with_it() {
    thread::scope(|scope| {
        for state in STATES {
            scope.spawn(move || {
                let Some(mut mount) = mounted() else { return };
                let store = Arc::clone(mount.store());
                let outcome = state.reach(&mut mount, |mount| {
                    mount.signal(Signal::STOP);
                    let stat = format!("/proc/{}/stat", mount.pid());
                    until("it is stopped", || fs::read_to_string(&stat).unwrap().contains(") T "));
                    // The answer comes, and the engine can't hear it.
                    mount.store().faults().release();
                    thread::sleep(stopped());
                    mount.signal(Signal::CONT);
                });
                outcome.unwrap_or_else(|error| panic!("{}: {error}: {}", state.name, mount.log()));
                assert_eq!(state.is_stored(&store), state.writes.is_some(), "{}", state.name);
                assert_eq!(mount.complaints(), Vec::<String>::new(), "{}", state.name);
            });
        }
    });
}
