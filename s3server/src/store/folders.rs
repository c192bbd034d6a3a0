//! The folders of a bucket: which exist, and whether somebody changed them by hand.
//!
//! A folder's modification time (mtime) changes when a name is added or removed. The server records the mtime after its own changes, so a
//! listing reads a folder again only after a change by another program. Editing a file in place does not change its folder: the server
//! notices that when it reads the file or looks it up by name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::entry::{Entry, KeyPath};
use super::error::absent_is_fine;
use super::journal::Remembered;
use super::keys;
use super::list::{self, Item, Query, Sorted};
use super::meta::Identity;

/// Shortest time between comparisons of all folders of a bucket. A listing compares its own folder each time.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Pause after a sweep, as a multiple of its duration: slow sweeps are rarer.
const SWEEP_SHARE: u32 = 20;
/// Age in nanoseconds below which an mtime proves nothing: file systems take it from a clock that ticks every few milliseconds, so a folder
/// that was changed just before it was read may change again with the same mtime.
const STAMP_TICK_NS: i64 = 20_000_000;
/// Most attempts to create a folder that disappears during a write; then the write fails.
const ATTEMPTS: usize = 3;

/// The known folders by path in the bucket, each with its final `/`; the bucket's own is the empty string.
#[derive(Debug, Default)]
pub(super) struct Folders {
    /// The mtime with which each folder was last read into the index; `None` if the folder must be read again.
    known: BTreeMap<String, Option<Agreed>>,
    swept: Option<Instant>,
    sweep_took: Duration,
}

/// The index agreed with a folder that had this mtime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Agreed {
    stamp: i64,
    /// Whether the folder may have changed after the read without a new mtime: then it is read once more when the mtime is old enough.
    doubtful: bool,
}

type Index = Sorted<Arc<Entry>>;

impl Folders {
    /// Reads the bucket's folders at the start.
    pub(super) fn load(root: &Path, remembered: &Remembered, index: &mut Index) -> io::Result<Self> {
        let mut folders = Self::default();
        folders.read(root, String::new(), remembered, index)?;
        Ok(folders)
    }

    /// Compares the index with the folders that a listing of this prefix needs.
    pub(super) fn look(&mut self, root: &Path, prefix: &str, index: &mut Index) -> io::Result<()> {
        let due = self.swept.is_none_or(|at| at.elapsed() >= SWEEP_EVERY.max(self.sweep_took * SWEEP_SHARE));
        if due {
            return self.sweep(root, index);
        }
        let mut folder = prefix.rfind('/').map_or("", |at| &prefix[..=at]);
        while !self.known.contains_key(folder) {
            folder = parent(folder);
        }
        self.compare(root, folder, index)
    }

    /// Compares every folder with the index.
    pub(super) fn sweep(&mut self, root: &Path, index: &mut Index) -> io::Result<()> {
        let start = Instant::now();
        let all: Vec<String> = self.known.keys().cloned().collect();
        for folder in &all {
            self.compare(root, folder, index)?;
        }
        self.swept = Some(start);
        self.sweep_took = start.elapsed();
        Ok(())
    }

    fn compare(&mut self, root: &Path, folder: &str, index: &mut Index) -> io::Result<()> {
        let Some(known) = self.known.get(folder) else { return Ok(()) };
        let agrees = match known {
            Some(agreed) if folder_stamp(root, folder)? == Some(agreed.stamp) => {
                !(agreed.doubtful && is_old(agreed.stamp))
            }
            _ => false,
        };
        if agrees { Ok(()) } else { self.read(root, folder.to_owned(), &Remembered::new(), index) }
    }

    /// Reads a folder, and new folders below it, into the index.
    fn read(
        &mut self,
        root: &Path,
        folder: String,
        remembered: &Remembered,
        index: &mut Index,
    ) -> io::Result<()> {
        let mut unread = vec![folder];
        while let Some(folder) = unread.pop() {
            let Some(stamp) = folder_stamp(root, &folder)? else {
                if folder.is_empty() {
                    return Err(io::Error::new(io::ErrorKind::NotFound, "the bucket's folder is gone"));
                }
                self.forget(&folder, index);
                continue;
            };
            let mut files = BTreeSet::new();
            let mut below = BTreeSet::new();
            for found in fs::read_dir(root.join(&folder))? {
                let found = found?;
                let kind = found.file_type()?;
                let Some(key) = found.file_name().to_str().map(|name| format!("{folder}{name}")) else {
                    tracing::warn!(file = ?found.path(), "left out: its name is not UTF-8");
                    continue;
                };
                if kind.is_dir() {
                    below.insert(key + "/");
                } else if kind.is_file() && keys::plain_path(&key).is_some() && keys::is_valid(&key) {
                    let known = index.get(key.as_bytes());
                    let same =
                        known.is_some_and(|e| e.place == KeyPath::Plain && e.identity.inode == found.ino());
                    if !same {
                        let Some(identity) = vanished(found.metadata())?.as_ref().map(Identity::of) else {
                            continue;
                        };
                        let entry = Entry::of_file(&key, identity, KeyPath::Plain, remembered);
                        index.insert(key.as_bytes().into(), entry);
                    }
                    files.insert(key);
                } else {
                    tracing::warn!(key, "left out: not a plain file, or a name that is stored escaped");
                }
            }
            self.drop_vanished(&folder, &files, &below, index);
            self.known.insert(folder, Some(Agreed { stamp, doubtful: !is_old(stamp) }));
            unread.extend(below.into_iter().filter(|f| !self.known.contains_key(f)));
        }
        Ok(())
    }

    /// Removes files that are no longer in a folder from the index.
    fn drop_vanished(
        &mut self,
        folder: &str,
        files: &BTreeSet<String>,
        below: &BTreeSet<String>,
        index: &mut Index,
    ) {
        let children = Query {
            prefix: folder.to_owned(),
            delimiter: "/".to_owned(),
            max: usize::MAX,
            ..Query::default()
        };
        for item in list::page(index, &children).items {
            match item {
                Item::Key(key, entry) if entry.place == KeyPath::Plain && !files.contains(&key) => {
                    index.remove(key.as_bytes());
                }
                Item::Prefix(prefix) if !below.contains(&prefix) => self.forget(&prefix, index),
                _ => {}
            }
        }
        let gone: Vec<String> = self
            .known
            .range(folder.to_owned()..)
            .map(|(f, _)| f)
            .take_while(|f| f.starts_with(folder))
            .filter(|f| *f != folder && parent(f) == folder && !below.contains(*f))
            .cloned()
            .collect();
        gone.iter().for_each(|f| self.forget(f, index));
    }

    /// Removes a missing folder, with all its entries, from the index.
    fn forget(&mut self, folder: &str, index: &mut Index) {
        self.forget_folders(folder);
        let range = folder.as_bytes().to_vec().into_boxed_slice()..;
        let gone: Vec<Box<[u8]>> = index
            .range(range)
            .take_while(|(key, _)| key.starts_with(folder.as_bytes()))
            .filter(|(_, entry)| entry.place == KeyPath::Plain)
            .map(|(key, _)| key.clone())
            .collect();
        for key in gone {
            index.remove(&key);
        }
    }

    fn forget_folders(&mut self, folder: &str) {
        let mut behind = self.known.split_off(folder);
        let keep = behind.iter().find(|(f, _)| !f.starts_with(folder)).map(|(f, _)| f.clone());
        if let Some(keep) = keep {
            self.known.append(&mut behind.split_off(&keep));
        }
    }

    /// Moves a file to the key's plain path, and creates its folders. False if a folder has that path, or a file or link has the name of
    /// one of the folders.
    pub(super) fn rename_into(&mut self, root: &Path, key: &str, from: &Path) -> io::Result<bool> {
        let folder = parent(key);
        for _ in 0..ATTEMPTS {
            if !self.make(root, folder)? {
                return Ok(false);
            }
            if !is_real_folder(&root.join(folder))? {
                self.forget_folders(folder);
                continue;
            }
            match self.noting(root, folder, || fs::rename(from, root.join(key))) {
                Ok(()) => return Ok(true),
                Err(e) if e.kind() == io::ErrorKind::NotFound && from.exists() => self.forget_folders(folder),
                Err(e) if e.kind() == io::ErrorKind::IsADirectory => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(false)
    }

    /// Whether a key's folders are real folders, not links, which may lead anywhere.
    pub(super) fn are_real(root: &Path, key: &str) -> io::Result<bool> {
        for (at, _) in key.match_indices('/') {
            if !is_real_folder(&root.join(&key[..at]))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Creates a folder and its missing parents. False if a file or link has one of their names.
    fn make(&mut self, root: &Path, folder: &str) -> io::Result<bool> {
        if self.known.contains_key(folder) {
            return Ok(true);
        }
        for (at, _) in folder.match_indices('/') {
            let part = &folder[..=at];
            if self.known.contains_key(part) {
                continue;
            }
            match self.noting(root, parent(part), || fs::create_dir(root.join(part))) {
                Ok(()) => {
                    let stamp = folder_stamp(root, part)?;
                    let agreed = stamp.map(|stamp| Agreed { stamp, doubtful: false });
                    self.known.insert(part.to_owned(), agreed);
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    if !is_real_folder(&root.join(part))? {
                        return Ok(false);
                    }
                    // A user created this folder, and the index does not have it yet.
                    self.known.insert(part.to_owned(), None);
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    // The parent folder was removed: it is created again, and the disk is asked from here on.
                    self.forget_folders(parent(part));
                    self.known.entry(String::new()).or_default();
                    return self.make_checked(root, folder);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Creates a folder like [`Self::make`], but checks the disk instead of the known folders.
    fn make_checked(&mut self, root: &Path, folder: &str) -> io::Result<bool> {
        for (at, _) in folder.match_indices('/') {
            let part = &folder[..=at];
            match fs::create_dir(root.join(part)) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    if !is_real_folder(&root.join(part))? {
                        return Ok(false);
                    }
                }
                Err(e) => return Err(e),
            }
            self.known.insert(part.to_owned(), None);
        }
        Ok(true)
    }

    /// Removes a file, and the folders that become empty.
    pub(super) fn remove_file(&mut self, root: &Path, key: &str) -> io::Result<()> {
        let mut folder = parent(key);
        self.noting(root, folder, || absent_is_fine(fs::remove_file(root.join(key))))?;
        while !folder.is_empty() {
            let above = parent(folder);
            if self.noting(root, above, || fs::remove_dir(root.join(folder))).is_err() {
                break;
            }
            self.known.remove(folder);
            folder = above;
        }
        Ok(())
    }

    /// Removes all folders; the caller makes sure that they have no files.
    pub(super) fn remove_all(&mut self, root: &Path) -> io::Result<()> {
        for folder in self.known.keys().rev() {
            absent_is_fine(fs::remove_dir(root.join(folder)))?;
        }
        self.known.clear();
        Ok(())
    }

    /// Makes a change of the server in a folder. An index that agreed with the folder before agrees afterwards, too.
    fn noting(
        &mut self,
        root: &Path,
        folder: &str,
        change: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let known = self.known.get(folder).copied().flatten();
        let before = match known {
            Some(agreed) => known.filter(|_| folder_stamp(root, folder).ok().flatten() == Some(agreed.stamp)),
            None => None,
        };
        change()?;
        let after = match before {
            Some(agreed) => folder_stamp(root, folder)?.map(|stamp| Agreed { stamp, ..agreed }),
            None => None,
        };
        self.known.insert(folder.to_owned(), after);
        Ok(())
    }
}

/// The parent folder of a file or a folder, with its final `/`.
fn parent(path: &str) -> &str {
    let name = path.strip_suffix('/').unwrap_or(path);
    name.rfind('/').map_or("", |at| &path[..=at])
}

/// A folder's mtime in nanoseconds; `None` if there is no folder, or a link in its place.
fn folder_stamp(root: &Path, folder: &str) -> io::Result<Option<i64>> {
    // Without a final slash lstat(2) does not follow a link.
    let stat = vanished(fs::symlink_metadata(root.join(folder.trim_end_matches('/'))))?;
    Ok(stat.filter(fs::Metadata::is_dir).map(|s| s.mtime() * 1_000_000_000 + s.mtime_nsec()))
}

fn is_real_folder(path: &Path) -> io::Result<bool> {
    let path = path.components().collect::<std::path::PathBuf>();
    Ok(vanished(fs::symlink_metadata(path))?.is_some_and(|stat| stat.is_dir()))
}

fn vanished<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Whether an mtime is old enough that every later change gets another one.
fn is_old(stamp: i64) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i64);
    now.saturating_sub(stamp) > STAMP_TICK_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_the_folder_above() {
        for (path, above) in [("a", ""), ("a/b", "a/"), ("a/b/", "a/"), ("a/", ""), ("", "")] {
            assert_eq!(parent(path), above, "{path:?}");
        }
    }

    #[test]
    fn forgetting_a_folder_keeps_its_neighbours() {
        let mut folders = Folders::default();
        for folder in ["", "a/", "a/b/", "a-/", "b/"] {
            folders.known.insert(folder.into(), None);
        }
        folders.forget_folders("a/");
        assert_eq!(folders.known.keys().collect::<Vec<_>>(), ["", "a-/", "b/"]);
    }
}
