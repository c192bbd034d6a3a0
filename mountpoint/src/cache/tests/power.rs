//! A power cut: the cache never waits for its disk (fsync), so its written bytes may exist completely, in part, in any order, or not at
//! all.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;

use proptest::prop_oneof;
use proptest::test_runner::{Config as Cases, TestRunner};
use rustix::fs::fstat;

use super::super::format::Name;
use super::super::io::{FileStat, How, Kind, Waits, write_full};
use super::*;
use crate::sync::Mutex;

/// The bytes that a disk writes at once.
const ATOM: usize = 512;

/// A file of a version: the data or (`true`) the sidecar.
type File = (Name, bool);

/// One call that changes the disk.
#[derive(Debug)]
enum Act {
    Create(File),
    Write(File, usize, Vec<u8>),
    Punch(File, usize, usize),
    Unlink(File),
}

#[derive(Debug, Default)]
struct Diary {
    acts: Vec<Act>,
    /// Files by inode number.
    files: HashMap<u64, File>,
}

/// The real disk, with a diary of its calls.
#[derive(Debug)]
struct WitnessedDisk {
    disk: Box<dyn BlockIo>,
    diary: Arc<Mutex<Diary>>,
}

fn file(name: &Name, kind: Kind) -> File {
    (*name, kind == Kind::Meta)
}

impl WitnessedDisk {
    fn of(&self, open: &OwnedFd) -> File {
        self.diary.lock().files[&fstat(open).unwrap().st_ino]
    }

    fn note(&self, act: Act) {
        self.diary.lock().acts.push(act);
    }
}

impl BlockIo for WitnessedDisk {
    fn open(&self, name: &Name, kind: Kind, how: How) -> io::Result<OwnedFd> {
        let open = self.disk.open(name, kind, how)?;
        self.diary.lock().files.insert(fstat(&open)?.st_ino, file(name, kind));
        if how == How::Create {
            self.note(Act::Create(file(name, kind)));
        }
        Ok(open)
    }

    fn read_at(
        &self,
        file: &OwnedFd,
        into: &mut [IoSliceMut<'_>],
        at: u64,
        waits: Waits,
    ) -> io::Result<usize> {
        self.disk.read_at(file, into, at, waits)
    }

    fn write_at(&self, file: &OwnedFd, bytes: &[u8], at: u64) -> io::Result<usize> {
        let n = self.disk.write_at(file, bytes, at)?;
        self.note(Act::Write(self.of(file), at as usize, bytes[..n].to_vec()));
        Ok(n)
    }

    fn punch(&self, file: &OwnedFd, at: u64, len: u64) -> io::Result<()> {
        self.disk.punch(file, at, len)?;
        self.note(Act::Punch(self.of(file), at as usize, len as usize));
        Ok(())
    }

    fn lend(&self, file: &OwnedFd) -> io::Result<()> {
        self.disk.lend(file)
    }

    fn unlink(&self, name: &Name, kind: Kind) -> io::Result<()> {
        self.disk.unlink(name, kind)?;
        self.note(Act::Unlink(file(name, kind)));
        Ok(())
    }

    fn stat(&self, name: &Name, kind: Kind) -> io::Result<FileStat> {
        self.disk.stat(name, kind)
    }

    fn list(&self, prefix: u8) -> io::Result<Vec<Name>> {
        self.disk.list(prefix)
    }

    fn space(&self) -> io::Result<(u64, u64)> {
        self.disk.space()
    }

    fn try_out(&self) -> io::Result<()> {
        self.disk.try_out()
    }

    fn sweep(&self) -> io::Result<()> {
        self.disk.sweep()
    }
}

/// A number below 100, the same for the same seed and place.
fn roll(seed: u64, act: usize, place: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed, act, place).hash(&mut hasher);
    hasher.finish() % 100
}

/// The files that are there when the power comes back. Of 100 changes `kept` reached the disk, whichever came first; where a write
/// that was lost would have made the file longer, there are zeros, or bytes that lay on the disk before.
fn after_the_cut(acts: &[Act], seed: u64, kept: u64) -> HashMap<File, Vec<u8>> {
    let mut files: HashMap<File, Vec<u8>> = HashMap::new();
    for (number, act) in acts.iter().enumerate() {
        let lands = |place: usize| roll(seed, number, place) < kept;
        match act {
            Act::Create(file) if lands(0) => drop(files.insert(*file, Vec::new())),
            Act::Unlink(file) if lands(0) => drop(files.remove(file)),
            Act::Create(_) | Act::Unlink(_) => {}
            Act::Punch(file, at, len) => {
                let Some(bytes) = files.get_mut(file) else { continue };
                let end = bytes.len().min(at + len);
                for page in (*at..end).step_by(4096).filter(|page| lands(*page)) {
                    bytes[page..end.min(page + 4096)].fill(0);
                }
            }
            Act::Write(file, at, new) => {
                let Some(bytes) = files.get_mut(file) else { continue };
                for (i, atom) in new.chunks(ATOM).enumerate() {
                    let (start, place) = (at + i * ATOM, i + 1);
                    let end = start + atom.len();
                    let is_new = bytes.len() < end;
                    if lands(place) {
                        bytes.resize(bytes.len().max(end), 0);
                        bytes[start..end].copy_from_slice(atom);
                    } else if is_new && roll(seed, number, usize::MAX - place) < 50 {
                        let old = roll(seed, number, usize::MAX / 2 - place) as u8 % 2 * 0x5a;
                        bytes.resize(end, old);
                    }
                }
            }
        }
    }
    files
}

const LIMIT: u64 = 2 * MIB;
const SIZE: u64 = MIB + 50_000;
const KEYS: [&str; 4] = ["a", "b", "c", "d"];

/// Blocks come whole and in pieces, are read, and make room for others.
fn live(store: &Store) {
    for key in KEYS {
        let id = id(key, "\"1\"");
        for piece in [SECTOR..5 * SECTOR, 3 * SECTOR..9 * SECTOR, MIB..SIZE, 0..MIB] {
            store.write(&id, SIZE, piece.start, &content(&id, piece));
        }
        read_block(store, &id, SIZE, 1);
    }
}

/// Number of present sectors, whose bytes must be right.
fn sectors_there(store: &Store) -> usize {
    let sectors = |key: &&str| {
        let id = id(key, "\"1\"");
        let ranges = (0..SIZE.div_ceil(SECTOR)).map(|n| n * SECTOR..SIZE.min((n + 1) * SECTOR));
        ranges.filter(|range| read(store, &id, SIZE, range.clone())).count()
    };
    KEYS.iter().map(sectors).sum()
}

#[test]
fn a_power_cut_that_reorders_writes_costs_misses_never_wrong_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let diary = Arc::default();
    let disk_with_diary = WitnessedDisk { disk: disk(dir.path()), diary: Arc::clone(&diary) };
    let before = store_with(Box::new(disk_with_diary), dir.path(), Some(LIMIT));
    before.load_all(&AtomicBool::new(false));
    live(&before);
    let whole = sectors_there(&before);
    drop(before);
    let acts = std::mem::take(&mut diary.lock().acts);
    assert!(acts.iter().any(|act| matches!(act, Act::Unlink(_))), "it also has room to make");
    assert!(acts.iter().any(|act| matches!(act, Act::Write(file, ..) if file.1)));

    // The files after a cut at this act, and after the life that follows.
    let cut = |at: usize, seed: u64, kept: u64| {
        let dir = tempfile::tempdir().unwrap();
        let disk_after = disk(dir.path());
        for ((name, is_meta), bytes) in after_the_cut(&acts[..at], seed, kept) {
            let kind = if is_meta { Kind::Meta } else { Kind::Data };
            let open = disk_after.open(&name, kind, How::Create).unwrap();
            write_full(&*disk_after, &open, &bytes, 0).unwrap();
        }
        // By probing, as reads do before the index is loaded, and with the whole index.
        sectors_there(&store_with(disk(dir.path()), dir.path(), Some(LIMIT)));
        let next = store(dir.path(), Some(LIMIT));
        let left = sectors_there(&next);
        live(&next);
        assert!(sectors_there(&next) > 0, "the next run can use the cache");
        left
    };
    assert_eq!(cut(acts.len(), 0, 100), whole, "with every write there, nothing is lost");
    assert_eq!(cut(acts.len(), 0, 0), 0);
    let found = Mutex::new((0, 0));
    // A disk that loses every tenth write leaves no block whole: half of the cuts lose hardly any, so that some blocks are left.
    let kept = prop_oneof![50..97_u64, 98..=100_u64];
    let mut runner = TestRunner::new(Cases { cases: 60, failure_persistence: None, ..Cases::default() });
    let cuts = (0..=acts.len(), proptest::num::u64::ANY, kept);
    let result = runner.run(&cuts, |(at, seed, kept)| {
        let left = cut(at, seed, kept);
        let mut found = found.lock();
        (found.0, found.1) = (found.0 + usize::from(left > 0), found.1 + usize::from(left < whole));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    let found = found.lock();
    assert!(found.0 > 0 && found.1 > 0, "some cuts leave something, and some cost something: {found:?}");
}
