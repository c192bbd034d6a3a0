//! The folders of a bucket: which exist, and whether a user changed them by hand.
//!
//! A folder's modification time shows that a name was added or removed. The server notes its own changes, so a listing reads a folder
//! again only after a change from outside. Editing a file in place does not change its folder: the server notices it when it
//! reads the file or looks it up by name.

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

/// Shortest time between comparisons of all folders of a bucket; the folder in a listing is compared each time.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// A sweep that took long is not repeated before this many times as long have passed.
const SWEEP_SHARE: u32 = 20;
/// Age of a stamp below which it proves nothing: file systems stamp changes with a clock that ticks every few milliseconds, so a folder
/// that was changed just before its read may change again under the same stamp.
const STAMP_TICK_NS: i64 = 20_000_000;
/// Most attempts to make a folder again that vanishes during a write.
const ATTEMPTS: usize = 3;

/// Folders by their path under the bucket's, each with its `/`; the bucket's own is the empty string.
#[derive(Debug, Default)]
pub(super) struct Folders {
    /// The time at which the index agreed with each folder; `None` if it may not.
    known: BTreeMap<String, Option<Agreed>>,
    swept: Option<Instant>,
    sweep_took: Duration,
}

/// The index agreed with a folder when the folder had this stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Agreed {
    stamp: i64,
    /// Whether the folder may have changed after its read under the same stamp: then it is read once more when the stamp is old enough.
    doubtful: bool,
}

type Index = Sorted<Arc<Entry>>;

impl Folders {
    /// Walks the bucket's folder at start.
    pub(super) fn load(root: &Path, remembered: &Remembered, index: &mut Index) -> io::Result<Self> {
        let mut folders = Self::default();
        folders.read(root, String::new(), remembered, index)?;
        Ok(folders)
    }

    /// Compares the content of a listing of this prefix with the folder.
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

    /// Reads a folder, and new folders in it, into the index.
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

    /// Removes files from the index that a folder no longer holds.
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

    /// Forgets a folder that is gone, with all its entries.
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

    /// Moves a file to the key's plain path, making its folders. False when that path is taken by a folder, or one of
    /// the folders' names by a file or a link.
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

    /// Whether a key's folders are folders, not links that a user put there and that may lead anywhere.
    pub(super) fn are_real(root: &Path, key: &str) -> io::Result<bool> {
        for (at, _) in key.match_indices('/') {
            if !is_real_folder(&root.join(&key[..at]))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes a folder and those above it. False if something else has a name of them.
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
                    // A user made this folder, and the server has not read it yet.
                    self.known.insert(part.to_owned(), None);
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    // The folder above was taken away: the caller's next attempt makes it anew.
                    self.forget_folders(parent(part));
                    self.known.entry(String::new()).or_default();
                    return self.make_checked(root, folder);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Makes a folder as [`Self::make`] does, and asks the disk instead of the known folders.
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

    /// Removes a file and the folders that it leaves empty.
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

    /// Removes all folders, which hold no file.
    pub(super) fn remove_all(&mut self, root: &Path) -> io::Result<()> {
        for folder in self.known.keys().rev() {
            absent_is_fine(fs::remove_dir(root.join(folder)))?;
        }
        self.known.clear();
        Ok(())
    }

    /// Carries out the server's own change in a folder: an agreeing index agrees afterwards, too.
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

/// The folder a file or a folder lies in, with its `/`.
fn parent(path: &str) -> &str {
    let name = path.strip_suffix('/').unwrap_or(path);
    name.rfind('/').map_or("", |at| &path[..=at])
}

/// A real folder's modification time; `None` when there is none.
fn folder_stamp(root: &Path, folder: &str) -> io::Result<Option<i64>> {
    // The path has no slash at its end, so that a link is not followed.
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

/// Whether a stamp is old enough that a later change gets another one.
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
