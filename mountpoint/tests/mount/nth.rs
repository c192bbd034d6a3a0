//! One request of many fails, whichever it is: a script of file operations runs again and again, and request N of it fails, N = 1, 2 ...
//! until the script ends before it.
//!
//! With tries left, no operation may fail. Without, an operation may, with EIO; and each file is whole or absent, nothing of an upload stays,
//! what is asked for again is right, and no other file is harmed.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use rustix::io::Errno;
use s3server::{Effect, Fault};

use crate::common::{Pattern, Setup, Store, TestMount, until};

const SMALL: u64 = 300_000;
/// The size of a file of two parts.
const LARGE: u64 = 6 << 20;
const PART: &str = "5242880";
/// More than one answer brings.
const OLD: u64 = 3 << 20;
/// Least requests of the script: fewer mean that it did not run as intended.
const REQUESTS_MIN: u64 = 10;

fn has(error: &io::Error, errnos: &[Errno]) -> bool {
    errnos.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// One run of the script in a folder of its own.
struct Script<'a> {
    mount: &'a TestMount,
    folder: String,
    /// The request that failed, and how.
    what: String,
    /// Whether an operation may fail.
    may_fail: bool,
    /// The operations that failed.
    failed: Vec<String>,
    /// The files that the mount acknowledged as stored.
    acknowledged: Vec<String>,
}

impl Script<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    /// Notes a failure that is allowed.
    fn result<T>(&mut self, did: &str, result: io::Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                assert!(self.may_fail, "{}: {did}: {error}\n{}", self.what, self.mount.log());
                assert!(has(&error, &[Errno::IO]), "{}: {did}: {error}", self.what);
                self.failed.push(did.to_owned());
                None
            }
        }
    }

    fn write(&mut self, name: &str, len: u64) {
        let path = self.mount.path(&self.key(name));
        let written = (|| {
            let mut file = File::create_new(&path)?;
            Pattern(len).write_to(&mut file, len, 128 << 10)?;
            file.flush()?;
            file.sync_all()
        })();
        if self.result(&format!("writing {name}"), written).is_some() {
            self.acknowledged.push(name.to_owned());
        }
    }

    fn read(&mut self, name: &str) {
        let path = self.mount.path(&self.key(name));
        for _ in 0..2 {
            let read = fs::read(&path);
            if let Some(bytes) = self.result(&format!("reading {name}"), read) {
                assert!(bytes.len() as u64 == OLD && Pattern(7).is(0, &bytes), "{}: wrong bytes", self.what);
                return;
            }
        }
        panic!("{}: one request failed, and two reads: {}", self.what, self.mount.log());
    }

    fn list(&mut self) -> Vec<String> {
        let names = |dir: &Path| {
            let entries: io::Result<Vec<_>> = fs::read_dir(dir)?.collect();
            let mut names: Vec<_> = entries?.iter().map(|e| e.file_name().into_string().unwrap()).collect();
            names.sort();
            Ok(names)
        };
        let dir = self.mount.path(&self.folder);
        for _ in 0..2 {
            if let Some(names) = self.result("listing", names(&dir)) {
                return names;
            }
        }
        panic!("{}: one request failed, and two listings: {}", self.what, self.mount.log());
    }

    fn rename_refused(&self) {
        let to = self.mount.path(&self.key("renamed"));
        let error = fs::rename(self.mount.path(&self.key("old")), to).expect_err("renames are not allowed");
        // A look-up before it may fail.
        let is_refusal = has(&error, &[Errno::PERM, Errno::NOSYS]);
        assert!(is_refusal || self.may_fail && has(&error, &[Errno::IO]), "{}: {error}", self.what);
    }

    fn delete(&mut self, name: &str) {
        let path = self.mount.path(&self.key(name));
        let removed = fs::remove_file(&path);
        if self.result(&format!("deleting {name}"), removed).is_none()
            && let Err(error) = fs::remove_file(&path)
        {
            assert!(has(&error, &[Errno::NOENT]), "{}: deleting {name} again: {error}", self.what);
        }
    }

    /// Runs the operations.
    fn run(&mut self) {
        let names = self.list();
        assert_eq!(names, ["gone", "old"], "{}", self.what);
        self.write("new", SMALL);
        self.write("parts", LARGE);
        self.read("old");
        self.rename_refused();
        self.delete("gone");
    }

    /// Proves the state after the fault: the store has the acknowledged files, and the mount shows the store's content. No request of the
    /// test's own was in the way of the fault.
    fn end(mut self) {
        self.may_fail = false;
        for (name, len) in [("new", SMALL), ("parts", LARGE)] {
            let stored = self.mount.store().get(&self.key(name));
            let is_whole =
                stored.as_ref().is_some_and(|bytes| bytes.len() as u64 == len && Pattern(len).is(0, bytes));
            assert!(is_whole || stored.is_none(), "{}: {name} is there in part", self.what);
            let is_promised = self.acknowledged.iter().any(|acknowledged| acknowledged == name);
            assert!(is_whole || !is_promised, "{}: {name} was acknowledged, and is not there", self.what);
        }
        for name in ["renamed", "gone"] {
            assert!(self.mount.store().get(&self.key(name)).is_none(), "{}: {name} is there", self.what);
        }
        let store = self.mount.store();
        let prefix = format!("{}/", self.folder);
        let there: Vec<_> =
            store.keys().iter().filter_map(|key| key.strip_prefix(&prefix).map(str::to_owned)).collect();
        let shown = self.list();
        assert_eq!(shown, there, "{} ({:?} failed)", self.what, self.failed);
        for (name, len, seed) in [("new", SMALL, SMALL), ("parts", LARGE, LARGE), ("old", OLD, 7)] {
            let bytes = fs::read(self.mount.path(&self.key(name)));
            match bytes {
                Ok(bytes) => {
                    assert!(bytes.len() as u64 == len && Pattern(seed).is(0, &bytes), "{}: {name}", self.what)
                }
                Err(error) => {
                    assert!(has(&error, &[Errno::NOENT]) && name != "old", "{}: {name}: {error}", self.what)
                }
            }
        }
        // A failed operation can be done once more.
        for (name, len) in [("new", SMALL), ("parts", LARGE)] {
            if !there.iter().any(|there| there == name) {
                self.write(name, len);
            }
        }
    }
}

/// Runs the script until it makes no request N.
fn fail_each(effect: &Effect, attempts: Option<&str>) {
    let store = Store::new();
    let mut setup = Setup::new(&["--allow-delete", "--write-part-size", PART]);
    setup.env.extend(attempts.map(|attempts| ("AWS_MAX_ATTEMPTS", attempts.to_owned())));
    let Some(mount) = TestMount::of(&store, &setup) else { return };
    let mut failed = 0;
    for n in 1.. {
        let folder = format!("n{n}");
        store.put(&format!("{folder}/old"), Pattern(7).bytes(0, OLD as usize));
        store.put(&format!("{folder}/gone"), "gone");
        let what = format!("{effect:?} of request {n}, attempts: {attempts:?}");
        let mut script = Script {
            mount: &mount,
            folder,
            what,
            may_fail: attempts.is_some(),
            failed: Vec::new(),
            acknowledged: Vec::new(),
        };
        store.faults().add(Fault {
            operation: None,
            key: None,
            skip: n - 1,
            times: Some(1),
            effect: effect.clone(),
        });
        script.run();
        let fired = store.faults().fired();
        store.faults().clear();
        failed += script.failed.len();
        script.end();
        // The engine never hears the number of an upload whose first answer is lost.
        if *effect != Effect::DropAnswer {
            until("no upload stays", || store.pending_uploads() == 0);
        }
        if fired == 0 {
            assert!(n > REQUESTS_MIN, "the script makes {n} requests");
            eprintln!("{effect:?}: {n} runs, {failed} operations failed");
            break;
        }
    }
    // A request that a connection ends under, if that was idle before, is sent again at once, without counting as a try.
    let is_felt = attempts.is_some() && matches!(effect, Effect::Error { .. });
    assert!(!is_felt || failed > 0, "no fault was felt: the test shows nothing");
}

fn error() -> Effect {
    Effect::Error { status: 500, code: "InternalError".to_owned() }
}

const RESET: Effect = Effect::Reset { after_bytes: None };

#[test]
fn any_one_request_that_fails_once_fails_no_operation() {
    for effect in [error(), RESET] {
        fail_each(&effect, None);
    }
}

#[test]
fn any_one_request_that_fails_for_good_is_eio_and_leaves_nothing_torn() {
    for effect in [error(), RESET] {
        fail_each(&effect, Some("1"));
    }
}

#[test]
fn any_one_answer_that_is_lost_leaves_no_file_torn_or_falsely_stored() {
    fail_each(&Effect::DropAnswer, Some("1"));
}
