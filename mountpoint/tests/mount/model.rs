//! A reference model beside a real mount: random operations, some through the mount and some on the store underneath.
//!
//! Goal: in any order of steps, an opened file has the bytes that any writer stored last, a name that was never stored does not exist,
//! and a listing shows every file and no other name, except names that another client changed within the last second.
//! Method: a map of keys to bytes is the model. The test applies each step to the mount or the store and to the map, then compares.
//! It prints its seed; MOUNT_S3_MODEL_SEED repeats a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::time::{Duration, Instant};

use crate::common::{Pattern, Setup, Store, TestMount};

const STEPS: usize = 250;
/// Sizes around the borders that matter: empty, a page, a first request, a block, a part.
const SIZES: [usize; 7] = [0, 1, 4097, 128 << 10, (512 << 10) + 1, 1 << 20, (8 << 20) + 3];

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

struct Model {
    /// The pieces of each file: the pattern and the length of each write.
    files: BTreeMap<String, Vec<(u64, usize)>>,
    /// Directories that existed at some time: without a file below them the mount may show them or not.
    dirs: BTreeSet<String>,
    /// Files that another client removed: for a moment (the TTL of attributes) the kernel may still take them for files, so that nothing
    /// is made below them.
    removed_elsewhere: BTreeSet<String>,
    /// Paths that another client stored or removed, with the time: a listing may be a second old where directories are listed
    /// one after another.
    elsewhere: Vec<(Instant, String)>,
}

impl Model {
    /// Whether a file may stand there: no directory of that name, no file where a directory is needed.
    fn is_free_for_file(&self, path: &str) -> bool {
        let below = format!("{path}/");
        let above = path.match_indices('/').map(|(at, _)| &path[..at]);
        !self.dirs.contains(path)
            && !self.files.keys().any(|k| k.starts_with(&below))
            && above
                .into_iter()
                .all(|dir| !self.files.contains_key(dir) && !self.removed_elsewhere.contains(dir))
    }

    fn put(&mut self, path: &str, seed: u64, len: usize) {
        self.files.insert(path.to_owned(), vec![(seed, len)]);
        self.is_below(path);
    }

    fn is_below(&mut self, path: &str) {
        self.dirs.extend(path.match_indices('/').map(|(at, _)| path[..at].to_owned()));
    }

    /// Renames a file, or a directory with all below it.
    fn rename(&mut self, from: &str, to: &str) {
        let below = format!("{from}/");
        let moved: Vec<_> =
            self.files.keys().filter(|key| *key == from || key.starts_with(&below)).cloned().collect();
        for key in moved {
            let pieces = self.files.remove(&key).unwrap();
            let new = format!("{to}{}", &key[from.len()..]);
            self.is_below(&new);
            self.files.insert(new, pieces);
        }
        // Directories without a file go along, and so does what another client changed a moment ago.
        let there = |path: &str| path.starts_with(&below).then(|| format!("{to}{}", &path[from.len()..]));
        let dirs: Vec<_> = self.dirs.iter().filter_map(|path| there(path)).collect();
        self.dirs.extend(dirs);
        let elsewhere: Vec<_> =
            self.elsewhere.iter().filter_map(|(at, path)| Some((*at, there(path)?))).collect();
        self.elsewhere.extend(elsewhere);
    }

    /// Whether another client changed this name, or one below it, in the last second.
    fn is_unsettled(&self, dir: &str, name: &str, now: Instant) -> bool {
        let path = if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") };
        let below = format!("{path}/");
        let recent = self
            .elsewhere
            .iter()
            .filter(|(at, _)| now.saturating_duration_since(*at) < Duration::from_secs(1));
        recent.into_iter().any(|(_, changed)| *changed == path || changed.starts_with(&below))
    }

    /// Names directly below `dir` ("" for the root): files that must show, and directories that may.
    fn listing(&self, dir: &str) -> (BTreeSet<String>, BTreeSet<String>) {
        let prefix = if dir.is_empty() { String::new() } else { format!("{dir}/") };
        let first =
            |path: &str| path.strip_prefix(&prefix).map(|r| r.split('/').next().unwrap_or(r).to_owned());
        let must = self.files.keys().filter_map(|k| first(k)).collect();
        let may = self.dirs.iter().filter(|d| **d != dir).filter_map(|d| first(d)).collect();
        (must, may)
    }
}

#[test]
fn random_operations_agree_with_a_map_while_the_store_changes_underneath() {
    let seed = std::env::var("MOUNT_S3_MODEL_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64 | 1
    });
    eprintln!("MOUNT_S3_MODEL_SEED={seed}");
    let store = Store::new();
    let options = ["--allow-delete", "--allow-overwrite", "--allow-rename", "--allow-append"];
    let Some(mount) = TestMount::of(&store, &Setup::new(&options)) else { return };
    let mut random = Random(seed);
    let mut model = Model {
        files: BTreeMap::new(),
        dirs: BTreeSet::new(),
        removed_elsewhere: BTreeSet::new(),
        elsewhere: Vec::new(),
    };
    for step in 0..STEPS {
        let names = ["a", "b", "c d", "\u{fc}"];
        let mut path = names[random.below(names.len())].to_owned();
        for _ in 0..random.below(3) {
            path = format!("{path}/{}", names[random.below(names.len())]);
        }
        let (content, len) = (step as u64, SIZES[random.below(SIZES.len())]);
        let there = model.files.contains_key(&path);
        let what = match random.below(13) {
            0..=2 if there || model.is_free_for_file(&path) => {
                if let Some((dir, _)) = path.rsplit_once('/') {
                    fs::create_dir_all(mount.path(dir))
                        .unwrap_or_else(|e| panic!("step {step}: mkdir {dir}: {e}"));
                }
                fs::write(mount.path(&path), Pattern(content).bytes(0, len))
                    .unwrap_or_else(|e| panic!("step {step}: write {path}: {e}"));
                model.put(&path, content, len);
                "write"
            }
            3 if there || model.is_free_for_file(&path) => {
                store.put(&path, Pattern(content).bytes(0, len));
                model.put(&path, content, len);
                model.elsewhere.push((Instant::now(), path.clone()));
                "put into the store"
            }
            4 if there => {
                store.remove(&path);
                model.files.remove(&path);
                model.removed_elsewhere.insert(path.clone());
                model.elsewhere.push((Instant::now(), path.clone()));
                "remove from the store"
            }
            5 if there => {
                fs::remove_file(mount.path(&path))
                    .unwrap_or_else(|e| panic!("step {step}: unlink {path}: {e}"));
                model.files.remove(&path);
                "unlink"
            }
            6 => {
                let dirs: Vec<_> = std::iter::once("")
                    .chain(model.files.keys().filter_map(|k| Some(k.rsplit_once('/')?.0)))
                    .collect();
                let dir = dirs[random.below(dirs.len())].to_owned();
                let begun = Instant::now();
                let shown: BTreeSet<String> = fs::read_dir(mount.path(&dir))
                    .unwrap_or_else(|e| panic!("step {step}: list {dir}: {e}"))
                    .map(|e| e.unwrap().file_name().into_string().unwrap())
                    .collect();
                let (must, may) = model.listing(&dir);
                let missing = must.difference(&shown).find(|name| !model.is_unsettled(&dir, name, begun));
                assert!(missing.is_none(), "step {step}: {dir:?} shows {shown:?}, not {must:?}");
                assert!(
                    shown
                        .iter()
                        .all(|n| must.contains(n) || may.contains(n) || model.is_unsettled(&dir, n, begun)),
                    "step {step}: {dir:?} shows {shown:?} beyond {must:?} and {may:?}"
                );
                "list"
            }
            7 if there => {
                let to = format!("renamed {}", random.below(4));
                if model.is_free_for_file(&to) {
                    fs::rename(mount.path(&path), mount.path(&to))
                        .unwrap_or_else(|e| panic!("step {step}: rename {path} to {to}: {e}"));
                    model.rename(&path, &to);
                    let bytes = fs::read(mount.path(&to)).unwrap();
                    assert!(is(&model.files[&to], &bytes), "step {step}: {path} renamed to {to}");
                }
                "rename"
            }
            8 => {
                let (from, to) = (names[random.below(names.len())], format!("moved {step}/below"));
                let is_directory = model.files.keys().any(|key| key.starts_with(&format!("{from}/")));
                if is_directory {
                    fs::create_dir(mount.path(&format!("moved {step}"))).unwrap();
                    fs::rename(mount.path(from), mount.path(&to))
                        .unwrap_or_else(|e| panic!("step {step}: rename {from} to {to}: {e}"));
                    model.rename(from, &to);
                    assert!(
                        !store.keys().iter().any(|key| key.starts_with(&format!("{from}/"))),
                        "step {step}"
                    );
                }
                "rename of a directory"
            }
            9 if there => {
                let mut file = fs::File::options().append(true).open(mount.path(&path)).unwrap();
                file.write_all(&Pattern(content).bytes(0, 5000))
                    .unwrap_or_else(|e| panic!("step {step}: append to {path}: {e}"));
                drop(file);
                model.files.get_mut(&path).unwrap().push((content, 5000));
                "append"
            }
            _ => "read",
        };
        // The path of this step and every file of the map, by what a reader sees.
        match (fs::read(mount.path(&path)), model.files.get(&path)) {
            (Ok(bytes), Some(pieces)) => {
                assert!(is(pieces, &bytes), "step {step}: {path} after {what}");
            }
            (Err(error), None) => assert!(
                matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory
                ),
                "step {step}: {path} after {what}: {error}"
            ),
            (Ok(_), None) => panic!("step {step}: {path} is there after {what}, and should not"),
            (Err(error), Some(_)) => panic!("step {step}: {path} after {what}: {error}"),
        }
    }
    for (path, pieces) in &model.files {
        let bytes = fs::read(mount.path(path)).unwrap_or_else(|e| panic!("at the end: {path}: {e}"));
        assert!(is(pieces, &bytes), "at the end: {path}");
        assert_eq!(store.get(path).as_deref(), Some(&bytes[..]), "at the end, in the store: {path}");
    }
}

/// Whether a file has these pieces, and nothing else.
fn is(pieces: &[(u64, usize)], mut bytes: &[u8]) -> bool {
    for (content, len) in pieces {
        let Some((piece, rest)) = bytes.split_at_checked(*len) else { return false };
        if !Pattern(*content).is(0, piece) {
            return false;
        }
        bytes = rest;
    }
    bytes.is_empty()
}
