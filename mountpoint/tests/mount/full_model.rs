//! `--mode full` beside a local file system: the same random operations on both, the same answers, and in the end the same bytes in the
//! bucket, also as a new mount shows them. The test prints its seed; MOUNT_S3_MODEL_SEED repeats a run.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::full::{FullMount, setup};
use crate::common::{Pattern, Store, TestMount, until};

const STEPS: usize = 600;
const NAMES: [&str; 5] = ["a", "b", "dir/c", "dir/d", "dir/e"];
/// The largest offset: more than one part.
const END: u64 = 9 << 20;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// A file that is open on both sides.
struct Pair([File; 2]);

/// An outcome that both sides must share: an errno, or a number.
type Outcome = Result<u64, Option<i32>>;

fn of<T>(result: std::io::Result<T>, value: impl FnOnce(T) -> u64) -> Outcome {
    result.map(value).map_err(|error| error.raw_os_error())
}

struct Model {
    random: Random,
    sides: [PathBuf; 2],
    open: Vec<Pair>,
}

impl Model {
    fn name(&mut self) -> &'static str {
        NAMES[self.random.below(NAMES.len() as u64) as usize]
    }

    /// Does the same on both sides; the outcomes must be the same.
    fn both(&self, what: &str, act: impl Fn(&Path) -> Outcome) {
        let [ours, local] = self.sides.each_ref().map(|side| act(side));
        assert_eq!(ours, local, "{what}");
    }

    fn range(&mut self) -> (u64, usize) {
        let end = if self.random.below(4) == 0 { END } else { 200_000 };
        (self.random.below(end), 1 + self.random.below(60_000) as usize)
    }

    fn step(&mut self, step: usize) {
        let (name, seed) = (self.name(), step as u64);
        match self.random.below(16) {
            0..=2 => {
                let (truncate, append) = (self.random.below(4) == 0, self.random.below(4) == 0);
                let options = |side: &Path| {
                    let mut options = File::options();
                    options.read(true).write(true).create(true);
                    if append {
                        options.append(true)
                    } else {
                        options.truncate(truncate)
                    };
                    options.open(side.join(name)).unwrap()
                };
                self.open.push(Pair(self.sides.each_ref().map(|side| options(side))));
            }
            3..=6 if !self.open.is_empty() => {
                let (at, len) = self.range();
                let which = self.random.below(self.open.len() as u64) as usize;
                let bytes = Pattern(seed).bytes(0, len);
                for file in &self.open[which].0 {
                    file.write_all_at(&bytes, at).unwrap();
                }
            }
            7..=8 if !self.open.is_empty() => {
                let (at, len) = self.range();
                let which = self.random.below(self.open.len() as u64) as usize;
                let read = self.open[which].0.each_ref().map(|file| {
                    let mut bytes = vec![0; len];
                    let mut got = 0;
                    while let n @ 1.. = file.read_at(&mut bytes[got..], at + got as u64).unwrap() {
                        got += n;
                    }
                    bytes.truncate(got);
                    bytes
                });
                assert!(
                    read[0] == read[1],
                    "read of {len} at {at}: {} and {} bytes",
                    read[0].len(),
                    read[1].len()
                );
            }
            9 if !self.open.is_empty() => {
                let (size, _) = self.range();
                let which = self.random.below(self.open.len() as u64) as usize;
                self.open[which].0.iter().for_each(|file| file.set_len(size).unwrap());
            }
            10 if !self.open.is_empty() => {
                let which = self.random.below(self.open.len() as u64) as usize;
                self.open[which].0.iter().for_each(|file| file.sync_all().unwrap());
            }
            11 | 12 if !self.open.is_empty() => {
                let which = self.random.below(self.open.len() as u64) as usize;
                drop(self.open.swap_remove(which));
            }
            13 => {
                let to = self.name();
                self.both(&format!("rename {name} {to}"), |side| {
                    of(fs::rename(side.join(name), side.join(to)), |()| 0)
                });
            }
            14 => self.both(&format!("unlink {name}"), |side| of(fs::remove_file(side.join(name)), |()| 0)),
            _ => self
                .both(&format!("stat {name}"), |side| of(fs::metadata(side.join(name)), |about| about.len())),
        }
        for Pair([ours, local]) in &self.open {
            assert_eq!(
                ours.metadata().unwrap().len(),
                local.metadata().unwrap().len(),
                "size of an open file"
            );
        }
    }

    fn names_agree(&self) {
        let [ours, local] =
            self.sides.each_ref().map(|side| NAMES.map(|name| fs::read(side.join(name)).ok()));
        for ((name, ours), local) in NAMES.iter().zip(ours).zip(local) {
            let lengths = (ours.as_ref().map(Vec::len), local.as_ref().map(Vec::len));
            assert!(ours == local, "{name}: {lengths:?} bytes");
        }
    }
}

fn seed() -> u64 {
    let seed = std::env::var("MOUNT_S3_MODEL_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) * 2_654_435_761 + 1);
    eprintln!("MOUNT_S3_MODEL_SEED={seed}");
    seed
}

#[test]
fn random_operations_have_the_outcome_of_a_local_disk_and_are_stored() {
    let store = Store::new();
    let local = tempfile::tempdir().unwrap();
    let Some(full) = FullMount::of(&store, &[]) else { return };
    let sides = [full.mount.dir().to_owned(), local.path().to_owned()];
    sides.iter().for_each(|side| fs::create_dir(side.join("dir")).unwrap());
    let mut model = Model { random: Random(seed()), sides, open: Vec::new() };
    for step in 0..STEPS {
        model.step(step);
        if step % 100 == 99 {
            model.names_agree();
        }
    }
    model.open.clear();
    model.names_agree();
    all_is_stored(&store, local.path());
    let FullMount { mount, stage } = full;
    drop(mount);
    assert_eq!(fs::read_dir(stage.path().join("kept")).unwrap().count(), 0, "nothing had to be kept");
    let again = TestMount::of(&store, &setup(&stage, &[])).unwrap();
    assert_eq!(again.complaints(), [""; 0]);
    let expected = NAMES.map(|name| fs::read(local.path().join(name)).ok());
    assert!(NAMES.map(|name| fs::read(again.path(name)).ok()) == expected, "a new mount shows the same");
}

fn all_is_stored(store: &Store, local: &Path) {
    let stored = || NAMES.map(|name| store.get(name));
    let expected = NAMES.map(|name| fs::read(local.join(name)).ok());
    until("all is stored", || stored() == expected);
}

#[test]
fn random_operations_outlive_killed_engines_and_are_stored_at_last() {
    outlive_kills(&["--commit", "disk"]);
}

#[test]
fn random_operations_that_the_kernel_writes_outlive_killed_engines() {
    outlive_kills(&["--commit", "disk", "--stage-passthrough", "auto"]);
}

fn outlive_kills(options: &[&str]) {
    let store = Store::new();
    let local = tempfile::tempdir().unwrap();
    let Some(FullMount { mut mount, stage }) = FullMount::of(&store, options) else { return };
    let sides = [mount.dir().to_owned(), local.path().to_owned()];
    sides.iter().for_each(|side| fs::create_dir(side.join("dir")).unwrap());
    let mut model = Model { random: Random(seed()), sides, open: Vec::new() };
    for step in 0..STEPS {
        model.step(step);
        if step % 100 == 99 {
            model.names_agree();
            mount.kill_9();
            model.open.clear();
            mount = mount.remount(&setup(&stage, options));
            model.names_agree();
        }
    }
    model.open.clear();
    model.names_agree();
    let waiting = || fs::read_dir(stage.path().join("files")).unwrap().count();
    until("nothing stays in the stage", || waiting() == 0);
    all_is_stored(&store, local.path());
    drop(mount);
    assert_eq!(fs::read_dir(stage.path().join("kept")).unwrap().count(), 0, "nothing had to be kept");
}
