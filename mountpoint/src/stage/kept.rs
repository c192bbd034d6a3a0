//! Files that could not be stored, in `kept/`: each with a `.json` that describes it. Only the user's own command deletes one.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::disk::Disk;
use crate::clock::Clock;
use crate::object::Second;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Most bytes of a key in the name of a kept file. A file name has at most 255 bytes.
const NAME_MAX: usize = 120;

/// Most kept files before programs may write no more. Doubling it takes twice the inodes of the disk.
const FILES_MAX: u64 = 100_000;

/// How long a count of the kept files holds, which the user may remove meanwhile. Doubling it reads the folder half as often, and shows
/// later that files are gone.
const COUNT_EVERY: Duration = Duration::from_secs(2);

/// Number and bytes of the kept files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptFiles {
    /// Number of files.
    pub files: u64,
    /// Bytes that they take on the disk.
    pub bytes: u64,
}

/// A count of the kept files. The stage adds files, and only the user removes some.
#[derive(Debug)]
pub(super) struct Tally {
    files: AtomicU64,
    bytes: AtomicU64,
    bytes_max: u64,
    /// Locked while the folder is counted.
    counting: Mutex<()>,
    /// The files that were added during the count in progress: the folder may have been read before they came.
    meanwhile: Mutex<Option<HashMap<OsString, u64>>>,
    /// The time of the last count.
    counted: Mutex<Option<Instant>>,
}

impl Tally {
    /// Counts the kept files of the stage at `dir`. `bytes_max`: the bytes from which on programs may write no more.
    pub(super) fn new(dir: &Path, bytes_max: u64) -> io::Result<Self> {
        let (files, bytes, counting, meanwhile, counted) = Default::default();
        let tally = Self { files, bytes, bytes_max, counting, meanwhile, counted };
        tally.count(dir)?;
        Ok(tally)
    }

    /// The kept files, as of the last count.
    pub(super) fn now(&self) -> KeptFiles {
        KeptFiles { files: self.files.load(Relaxed), bytes: self.bytes.load(Relaxed) }
    }

    /// Whether there are too many kept files for programs to write on.
    pub(super) fn is_too_much(&self) -> bool {
        let KeptFiles { files, bytes } = self.now();
        files >= FILES_MAX || bytes > 0 && bytes >= self.bytes_max
    }

    /// Adds a file. Returns whether it is the one from which on there are too many. Does not wait for a count, which may read a long folder:
    /// the caller holds the file.
    pub(super) fn add(&self, file: &Path) -> bool {
        let bytes = file.symlink_metadata().map_or(0, |about| about.blocks() * 512);
        let mut meanwhile = self.meanwhile.lock();
        let before = self.is_too_much();
        self.files.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        if let (Some(meanwhile), Some(name)) = (&mut *meanwhile, file.file_name()) {
            meanwhile.insert(name.to_owned(), bytes);
        }
        !before && self.is_too_much()
    }

    /// Whether the files should be counted again. True once, until the time of the next count.
    pub(super) fn is_to_count(&self, now: Instant) -> bool {
        let mut counted = self.counted.lock();
        let is_old = counted.is_none_or(|at| now.saturating_duration_since(at) >= COUNT_EVERY);
        let is_due = is_old && self.now() != KeptFiles::default();
        if is_due {
            *counted = Some(now);
        }
        is_due
    }

    /// Counts the files, for a thread that may wait for the disk.
    pub(super) fn count(&self, dir: &Path) -> io::Result<()> {
        let _one_at_a_time = self.counting.lock();
        self.begin();
        let found = bytes_by_name(&dir.join("kept"));
        self.end(match found {
            // The user may remove the folder, too.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(HashMap::new()),
            found => found,
        })
    }

    fn begin(&self) {
        *self.meanwhile.lock() = Some(HashMap::new());
    }

    fn end(&self, found: io::Result<HashMap<OsString, u64>>) -> io::Result<()> {
        let mut meanwhile = self.meanwhile.lock();
        let added = meanwhile.take();
        let mut all = found?;
        all.extend(added.into_iter().flatten());
        // The key of a kept file may end in `.json`, too: then its name looks like that of a description.
        let is_note = |name: &OsStr| {
            let path = Path::new(name);
            path.extension().is_some_and(|extension| extension == "json")
                && all.contains_key(path.with_extension("").as_os_str())
        };
        let files = all.keys().filter(|name| !is_note(name)).count() as u64;
        self.files.store(files, Relaxed);
        self.bytes.store(all.values().sum(), Relaxed);
        Ok(())
    }
}

/// The names in a folder, and the bytes that each takes on the disk.
fn bytes_by_name(dir: &Path) -> io::Result<HashMap<OsString, u64>> {
    let mut all = HashMap::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        // The user may remove it just now.
        if let Ok(about) = entry.metadata() {
            all.insert(entry.file_name(), about.blocks() * 512);
        }
    }
    Ok(all)
}

/// A kept file and the reason, as `kept/*.json` records them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kept {
    /// The file with the bytes.
    pub file: PathBuf,
    /// The bucket for which the file was meant.
    pub bucket: String,
    /// The key that the file should have got.
    pub key: Option<String>,
    /// The reason why the file was not stored.
    pub why: String,
    /// Seconds since 1970.
    pub since: i64,
    /// Whether bytes that this mount did not write are missing: then the file has holes there.
    pub is_partial: bool,
}

impl Kept {
    /// Opens the file for reading; a link in its place is refused.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn open(&self) -> io::Result<File> {
        private().read(true).open(&self.file)
    }

    /// Removes the file and its description, once the user has it elsewhere.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.file)?;
        fs::remove_file(about(&self.file))
    }
}

/// The files that the stage at `dir` keeps, the oldest first. Skips a description without a file, which a loss of power may leave.
///
/// # Errors
/// The folder, or a description in it, can't be read.
pub fn kept_in(dir: &Path) -> io::Result<Vec<Kept>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir.join("kept"))? {
        let path = entry?.path();
        let file = path.with_extension("");
        if path.extension().is_some_and(|extension| extension == "json") && file.symlink_metadata().is_ok() {
            let kept: Kept = serde_json::from_slice(&fs::read(&path)?)?;
            // The directory may have moved since the description was written.
            all.push(Kept { file, ..kept });
        }
    }
    let number = |kept: &Kept| {
        let name = kept.file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.split('-').next().and_then(|digits| digits.parse::<u64>().ok())
    };
    all.sort_by_key(|kept| (number(kept), kept.file.clone()));
    Ok(all)
}

/// Numbers at the beginning of a folder's file names.
pub(super) fn numbers(dir: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let digits = name.to_str().map(|name| name.split('-').next().unwrap_or_default());
        numbers.extend(digits.and_then(|digits| digits.parse::<u64>().ok()));
    }
    Ok(numbers)
}

/// Moves a file of the stage to `kept/`. The caller makes the move durable before the log forgets the file.
pub(super) fn keep(
    (dir, disk): (&Path, &Disk),
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
    let open = || disk.open(private().write(true).create(true).truncate(true), &about(&path));
    let about = match open() {
        // The user removed the folder with all that was kept.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().recursive(true).mode(0o700).create(dir.join("kept"))?;
            disk.sync_all(&File::open(dir)?)?;
            open()?
        }
        opened => opened?,
    };
    disk.write(&about, &serde_json::to_vec_pretty(&kept)?, 0)?;
    disk.rename(&dir.join("files").join(file.to_string()), &path)?;
    Ok(kept)
}

/// Makes a kept file durable: bytes, description and names.
pub(super) fn sync_one((dir, disk): (&Path, &Disk), kept: &Kept) -> io::Result<()> {
    disk.sync_all(&File::open(&kept.file)?)?;
    disk.sync_all(&File::open(about(&kept.file))?)?;
    // The new name must be durable before the old one is lost.
    disk.sync_all(&File::open(dir.join("kept"))?)?;
    disk.sync_all(&File::open(dir.join("files"))?)
}

/// Makes all kept files durable.
pub(super) fn sync_many(dir: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(dir)?)?)
}

/// The path of a kept file's description.
fn about(kept: &Path) -> PathBuf {
    let mut about = kept.to_owned().into_os_string();
    about.push(".json");
    about.into()
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

/// Options for files that only this user can read, not through a link.
pub(super) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_kept_during_a_count_counts_once_and_waits_for_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path().join("kept");
        fs::create_dir(&kept).unwrap();
        let tally = Tally::new(dir.path(), 1 << 20).unwrap();
        for name in ["1-a", "2-b"] {
            fs::write(kept.join(name), [1; 10_000]).unwrap();
            // Some file systems choose the blocks late.
            File::open(kept.join(name)).unwrap().sync_all().unwrap();
        }
        let before = bytes_by_name(&kept).unwrap();
        for is_found in [false, true] {
            // A count waits for the next one, and no file that is added.
            let counting = tally.counting.lock();
            tally.begin();
            tally.add(&kept.join("2-b"));
            let mut found = before.clone();
            found.retain(|name, _| is_found || name == "1-a");
            tally.end(Ok(found)).unwrap();
            drop(counting);
            let bytes = before.values().sum();
            assert_eq!(tally.now(), KeptFiles { files: 2, bytes }, "{is_found}");
        }
        tally.begin();
        tally.end(Err(io::ErrorKind::PermissionDenied.into())).unwrap_err();
        tally.add(&kept.join("2-b"));
        assert_eq!(tally.now().files, 3, "after a count that failed");
    }
}
