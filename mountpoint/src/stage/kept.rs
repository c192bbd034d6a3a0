//! Files that could not be stored, in `kept/`: each with a `.json` that describes it. Only the user's own command deletes one.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::disk::Disk;
use crate::clock::Clock;
use crate::object::Second;

/// Most bytes of a key in the name of a kept file. A file name has at most 255 bytes.
const NAME_MAX: usize = 120;

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
    let about = disk.open(private().write(true).create(true).truncate(true), &about(&path))?;
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
