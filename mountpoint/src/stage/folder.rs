//! The directory of the stage: one file for each staged file (`files/N`), the log, and what could not be stored (`kept/`).
//!
//! One engine at a time has it, by a lock that ends with the process. What a mount before this one left is moved to `kept/` and named:
//! nothing that was written is deleted before the bucket has it.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::Serialize;

use super::Error;
use super::log::{self, Dirty, Record};
use crate::clock::Clock;
use crate::object::Second;
use crate::owner::Locked;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of the log beyond which it is written anew, if most of it is about files that are gone. Doubling it halves how often that happens,
/// and doubles what a start reads.
const LOG_MAX: u64 = 1 << 20;
/// Bytes of a key in the name of a kept file: a file name has 255.
const NAME_MAX: usize = 120;

/// See the module.
#[derive(Debug)]
pub(super) struct Folder {
    dir: PathBuf,
    mount: log::Mount,
    clock: Clock,
    limit: u64,
    used: AtomicU64,
    log: Mutex<Log>,
    _lock: Locked,
}

#[derive(Debug)]
struct Log {
    file: File,
    len: u64,
    /// Number of the next frame.
    number: u64,
    /// Number of the next file.
    next: u64,
    /// The records that count of each file that is there.
    live: HashMap<u64, Vec<Record>>,
}

/// A file that is kept, and why, as `kept/*.json` has it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Kept {
    /// The file with the bytes.
    pub(super) file: PathBuf,
    pub(super) bucket: String,
    /// The key that it was to have.
    pub(super) key: Option<String>,
    pub(super) why: String,
    /// Seconds since 1970.
    pub(super) since: i64,
    /// Whether bytes that were not written here are missing, and are holes in the file.
    pub(super) is_partial: bool,
}

impl Folder {
    /// Takes the directory, and moves to `kept/` what a mount before this one left. `limit`: bytes that files in the stage may have.
    ///
    /// # Errors
    /// Another process has it; it can't be used.
    pub(super) fn open(
        dir: &Path,
        mount: log::Mount,
        limit: u64,
        clock: Clock,
    ) -> anyhow::Result<(Self, Vec<Kept>)> {
        let shown = dir.display();
        for dir in [dir, &dir.join("files"), &dir.join("kept")] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(dir)
                .with_context(|| format!("making {}", dir.display()))?;
        }
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).with_context(|| {
            format!("{shown}: making it private (mode 0700): does it belong to this user?")
        })?;
        let lock = private().write(true).create(true).truncate(false).open(dir.join("lock"));
        let lock = match Locked::new(lock.with_context(|| format!("opening {shown}/lock"))?) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                bail!("{shown} is in use by another mount: give each mount a directory of its own")
            }
            locked => locked.with_context(|| format!("locking {shown}/lock"))?,
        };
        let (left, next) =
            keep_all(dir, &clock).with_context(|| format!("{shown}: what an earlier mount left"))?;
        let log = Log::create(dir, &mount, next, HashMap::new()).with_context(|| format!("{shown}/log"))?;
        let (used, log) = (AtomicU64::new(0), Mutex::new(log));
        Ok((Self { dir: dir.to_owned(), mount, clock, limit, used, log, _lock: lock }, left))
    }

    /// The number of a new file, and the file, which is empty.
    pub(super) fn create(&self) -> io::Result<(u64, File)> {
        let number = {
            let mut log = self.log.lock();
            log.next += 1;
            log.next - 1
        };
        Ok((number, private().read(true).write(true).create_new(true).open(self.path(number))?))
    }

    pub(super) fn path(&self, number: u64) -> PathBuf {
        self.dir.join("files").join(number.to_string())
    }

    /// Takes room for more bytes.
    ///
    /// # Errors
    /// `Full`.
    pub(super) fn take(&self, bytes: u64) -> Result<(), Error> {
        if bytes > 0 && self.used.fetch_add(bytes, Relaxed).saturating_add(bytes) > self.limit {
            self.used.fetch_sub(bytes, Relaxed);
            return Err(Error::Full { limit: self.limit });
        }
        Ok(())
    }

    /// Gives room back.
    pub(super) fn give(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
    }

    /// Bytes of the files in the stage.
    pub(super) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Notes that the file has changes.
    pub(super) fn note_dirty(&self, dirty: Dirty) -> io::Result<()> {
        let mut log = self.log.lock();
        let (file, record) = (dirty.file, Record::Dirty(dirty));
        log.append(&record)?;
        log.live.insert(file, vec![record]);
        Ok(())
    }

    /// Notes that a send of the file begins, with all bytes here.
    pub(super) fn note_sealed(&self, file: u64) -> io::Result<()> {
        let (mut log, record) = (self.log.lock(), Record::Sealed { file });
        log.append(&record)?;
        log.live.entry(file).or_default().push(record);
        Ok(())
    }

    /// Notes that nothing in the file is wanted if the mount ends now.
    pub(super) fn note_gone(&self, file: u64) -> io::Result<()> {
        let (mut log, record) = (self.log.lock(), Record::Gone { file });
        log.append(&record)?;
        log.live.insert(file, vec![record]);
        Ok(())
    }

    /// Deletes a file.
    pub(super) fn remove(&self, file: u64) -> io::Result<()> {
        fs::remove_file(self.path(file))?;
        self.is_away(file)
    }

    /// The file is not in `files/` any more.
    fn is_away(&self, file: u64) -> io::Result<()> {
        let mut log = self.log.lock();
        if log.live.remove(&file).is_some() {
            log.append(&Record::Gone { file })?;
        }
        if log.len > LOG_MAX && log.number > 4 * log.live.len() as u64 {
            let (next, live) = (log.next, std::mem::take(&mut log.live));
            *log = Log::create(&self.dir, &self.mount, next, live)?;
        }
        Ok(())
    }

    /// Moves a file to `kept/`. The path there.
    pub(super) fn keep(
        &self,
        file: u64,
        key: Option<&str>,
        why: String,
        is_partial: bool,
    ) -> io::Result<PathBuf> {
        let kept = keep(&self.dir, &self.clock, file, &self.mount.bucket, key, why, is_partial)?;
        self.is_away(file)?;
        Ok(kept.file)
    }
}

impl Log {
    /// A log that says what lives, in place of the one that is there.
    fn create(
        dir: &Path,
        mount: &log::Mount,
        next: u64,
        live: HashMap<u64, Vec<Record>>,
    ) -> io::Result<Self> {
        let path = dir.join("log.new");
        let file = private().write(true).create(true).truncate(true).open(&path)?;
        let mut log = Self { file, len: 0, number: 0, next, live: HashMap::new() };
        log.append(&Record::Mount(mount.clone()))?;
        for record in live.values().flatten() {
            log.append(record)?;
        }
        log.file.sync_data()?;
        fs::rename(path, dir.join("log"))?;
        Ok(Self { live, ..log })
    }

    fn append(&mut self, record: &Record) -> io::Result<()> {
        let frame = record.frame(self.number);
        if let Err(error) = self.file.write_all(&frame) {
            // A frame in part would hide all that follow.
            self.file.set_len(self.len)?;
            return Err(error);
        }
        self.number += 1;
        self.len += frame.len() as u64;
        Ok(())
    }
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    options
}

/// Moves all files that an earlier mount left to `kept/`, and deletes those to which nothing was written. The number of the next file.
fn keep_all(dir: &Path, clock: &Clock) -> io::Result<(Vec<Kept>, u64)> {
    let bytes = match fs::read(dir.join("log")) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    let (mut mount, mut live) = (log::Mount::default(), HashMap::new());
    for record in log::records(&bytes) {
        match record {
            Record::Mount(it) => mount = it,
            Record::Dirty(dirty) => drop(live.insert(dirty.file, Some(dirty))),
            Record::Gone { file } => drop(live.insert(file, None)),
            Record::Sealed { file } => {
                if let Some(Some(dirty)) = live.get_mut(&file) {
                    dirty.is_partial = false;
                }
            }
        }
    }
    let mut next = 1 + numbers(&dir.join("kept"))?.into_iter().max().unwrap_or(0);
    let mut left = numbers(&dir.join("files"))?;
    left.sort_unstable();
    next = next.max(1 + left.last().copied().unwrap_or(0));
    let mut kept = Vec::new();
    for file in left {
        let path = dir.join("files").join(file.to_string());
        let (key, is_partial, is_wanted) = match live.remove(&file) {
            Some(Some(Dirty { key, is_partial, .. })) => (key.clone(), is_partial, key.is_some()),
            Some(None) => (None, false, false),
            // The record may have been lost with the power.
            None => (None, true, fs::symlink_metadata(&path)?.blocks() > 0),
        };
        if !is_wanted {
            fs::remove_file(&path)?;
            continue;
        }
        let why = "the mount ended before it was stored".to_owned();
        kept.push(keep(dir, clock, file, &mount.bucket, key.as_deref(), why, is_partial)?);
    }
    Ok((kept, next))
}

/// Numbers that names of a folder begin with.
fn numbers(dir: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let digits = name.to_str().map(|name| name.split('-').next().unwrap_or_default());
        numbers.extend(digits.and_then(|digits| digits.parse::<u64>().ok()));
    }
    Ok(numbers)
}

fn keep(
    dir: &Path,
    clock: &Clock,
    file: u64,
    bucket: &str,
    key: Option<&str>,
    why: String,
    is_partial: bool,
) -> io::Result<Kept> {
    let path = dir.join("kept").join(format!("{file}-{}", shown(key.unwrap_or("unknown"))));
    let since = Second::of(clock.wall()).map_or(0, Second::get);
    let (bucket, key) = (bucket.to_owned(), key.map(str::to_owned));
    let kept = Kept { file: path.clone(), bucket, key, why, since, is_partial };
    let mut about = path.clone().into_os_string();
    about.push(".json");
    let mut about = private().write(true).create(true).truncate(true).open(about)?;
    about.write_all(&serde_json::to_vec_pretty(&kept)?)?;
    fs::rename(dir.join("files").join(file.to_string()), &path)?;
    Ok(kept)
}

/// The end of a key as a file name.
fn shown(key: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || "._- ".contains(c) { c } else { '_' };
    let name: String =
        key.rsplit('/').find(|part| !part.is_empty()).unwrap_or("unknown").chars().map(plain).collect();
    let mut end = name.len().min(NAME_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    fn open(dir: &Path) -> anyhow::Result<(Folder, Vec<Kept>)> {
        Folder::open(
            dir,
            log::Mount { bucket: "bucket".into(), ..log::Mount::default() },
            100,
            Clock::manual(),
        )
    }

    fn dirty(file: u64, key: Option<&str>, is_partial: bool) -> Dirty {
        Dirty { file, key: key.map(str::to_owned), replaces: None, is_partial }
    }

    #[test]
    fn what_was_not_stored_is_kept_and_named_by_the_next_mount() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, left) = open(dir.path()).unwrap();
        assert!(left.is_empty());
        let made: Vec<_> = (0..6).map(|_| folder.create().unwrap()).collect();
        let numbers: Vec<u64> = made.iter().map(|(number, _)| *number).collect();
        for (number, file) in &made[..5] {
            file.write_all_at(&number.to_le_bytes(), 0).unwrap();
        }
        folder.note_dirty(dirty(numbers[0], Some("dir/new\n.txt"), false)).unwrap();
        folder.note_dirty(dirty(numbers[1], Some("stored"), false)).unwrap();
        folder.remove(numbers[1]).unwrap();
        folder.note_dirty(dirty(numbers[2], Some("patched"), true)).unwrap();
        folder.note_dirty(dirty(numbers[3], None, false)).unwrap();
        // The last two have no record: one was written to, as far as its disk says.
        assert!(open(dir.path()).unwrap_err().to_string().contains("another mount"));
        drop(folder);
        let (folder, left) = open(dir.path()).unwrap();
        let named: Vec<_> = left.iter().map(|kept| (kept.key.as_deref(), kept.is_partial)).collect();
        assert_eq!(named, [(Some("dir/new\n.txt"), false), (Some("patched"), true), (None, true)]);
        assert_eq!(fs::read(&left[0].file).unwrap(), numbers[0].to_le_bytes());
        assert!(left[0].file.ends_with(format!("kept/{}-new_.txt", numbers[0])));
        assert_eq!(fs::read_dir(dir.path().join("files")).unwrap().count(), 0);
        assert_eq!(fs::read_dir(dir.path().join("kept")).unwrap().count(), 6);
        assert!(folder.create().unwrap().0 > numbers[5], "no file takes the place of a kept one");
        drop(folder);
        assert!(open(dir.path()).unwrap().1.is_empty(), "once");
        assert_eq!(fs::metadata(dir.path()).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_sealed_file_is_whole_and_a_change_after_it_says_so_too() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, _) = open(dir.path()).unwrap();
        let (number, _file) = folder.create().unwrap();
        folder.note_dirty(dirty(number, Some("a"), true)).unwrap();
        folder.note_sealed(number).unwrap();
        drop(folder);
        assert!(!open(dir.path()).unwrap().1[0].is_partial);
    }

    #[test]
    fn the_log_stays_short_and_says_what_lives() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, _) = open(dir.path()).unwrap();
        let (lives, _file) = folder.create().unwrap();
        let key = "k".repeat(500);
        folder.note_dirty(dirty(lives, Some("lives"), true)).unwrap();
        for _ in 0..3_000 {
            let (number, _file) = folder.create().unwrap();
            folder.note_dirty(dirty(number, Some(&key), false)).unwrap();
            folder.remove(number).unwrap();
        }
        assert!(fs::metadata(dir.path().join("log")).unwrap().len() <= LOG_MAX + 10_000);
        drop(folder);
        let left = open(dir.path()).unwrap().1;
        assert_eq!(left.iter().map(|kept| kept.key.as_deref()).collect::<Vec<_>>(), [Some("lives")]);
    }

    #[test]
    fn bytes_beyond_the_limit_are_refused_and_room_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, _) = open(dir.path()).unwrap();
        folder.take(100).unwrap();
        assert!(matches!(folder.take(1), Err(Error::Full { limit: 100 })));
        folder.give(50);
        folder.take(50).unwrap();
        assert_eq!(folder.used(), 100);
    }
}
