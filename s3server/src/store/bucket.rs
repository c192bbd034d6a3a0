//! One bucket: its files, and the sorted index of them in memory.
//!
//! The bucket's lock covers the decision and all steps of a change: condition, journal line, rename, index. A conditional write
//! therefore replaces the same version that it compared. Reads take the lock for the lookup only.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::entry::{Entry, KeyPath};
use super::error::{Error, Result, absent_is_fine};
use super::folders::Folders;
use super::journal::Journal;
use super::keys;
use super::list::{self, Page, Query, Sorted};
use super::meta::{Identity, Meta};
use super::staged::Staged;
use super::walk;

/// Most attempts to open a file that is being replaced; after them the read fails.
const OPEN_ATTEMPTS: usize = 8;

/// The condition on the stored object before it is replaced or deleted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Condition {
    #[default]
    None,
    Absent,
    Present,
    Etag(String),
    NotEtag(String),
}

impl Condition {
    /// Checks the condition. S3 answers 404 to an If-Match on a missing key, and 412 to every other condition that does not hold.
    pub(crate) fn check(&self, etag: Option<&str>) -> Result<()> {
        match (self, etag) {
            (Self::None, _) | (Self::Absent, None) | (Self::Present, Some(_)) | (Self::NotEtag(_), None) => {
                Ok(())
            }
            (Self::Etag(wanted), Some(etag)) if wanted == etag => Ok(()),
            (Self::NotEtag(unwanted), Some(etag)) if unwanted != etag => Ok(()),
            (Self::Etag(_) | Self::Present, None) => Err(Error::NoSuchKey),
            _ => Err(Error::Precondition),
        }
    }
}

/// A bucket of the folder.
#[derive(Debug)]
pub(crate) struct Bucket {
    pub(crate) created: SystemTime,
    plain: PathBuf,
    escaped: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) index: Sorted<Arc<Entry>>,
    pub(super) folders: Folders,
    journal: Journal,
    /// Whether the bucket is removed: a request that still holds it must not create its folders again.
    removed: bool,
}

impl Bucket {
    /// Opens a bucket with existing folders: reads the journal, walks the files, and drops journal lines without a file.
    pub(crate) fn open(plain: PathBuf, escaped: PathBuf, journal: &Path) -> Result<Self> {
        let opening = Error::io("open the bucket");
        let load = || -> io::Result<Self> {
            let created = fs::metadata(&plain)?.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let (mut journal, remembered) = Journal::open(journal)?;
            let mut index = Sorted::new();
            walk::escaped(&escaped, &remembered, &mut index)?;
            let folders = Folders::load(&plain, &remembered, &mut index)?;
            journal.rewrite(journalled(&index))?;
            Ok(Self {
                created,
                plain,
                escaped,
                state: Mutex::new(State { index, folders, journal, removed: false }),
            })
        };
        load().map_err(opening)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, key: &str, place: KeyPath) -> PathBuf {
        match place {
            KeyPath::Plain => self.plain.join(key),
            KeyPath::Escaped => self.escaped.join(keys::escaped_path(key)),
        }
    }

    /// One page of a listing. The first page also finds files that were put into the folder by hand.
    pub(crate) fn list(&self, query: &Query) -> Result<Page<Arc<Entry>>> {
        let mut state = self.lock();
        if query.from == list::From::Start {
            let State { index, folders, .. } = &mut *state;
            folders.look(&self.plain, &query.prefix, index).map_err(Error::io("look into the folder"))?;
        }
        Ok(list::page(&state.index, query))
    }

    /// The entry of an object, checked against its file.
    pub(crate) fn head(&self, key: &str) -> Result<Arc<Entry>> {
        self.current(&mut self.lock(), key)?.ok_or(Error::NoSuchKey)
    }

    /// An object's open file, and the metadata of exactly this file.
    pub(crate) fn read(&self, key: &str) -> Result<(File, Arc<Entry>)> {
        for _ in 0..OPEN_ATTEMPTS {
            let known = self.lock().index.get(key.as_bytes()).cloned();
            if let Some(entry) = known {
                let opened = open_file(&self.path(key, entry.place));
                if let Ok((file, identity)) = opened
                    && identity == entry.identity
                {
                    return Ok((file, entry));
                }
            }
            // The file is missing, was replaced, or was changed by hand: compare it under the lock, then open again.
            if self.current(&mut self.lock(), key)?.is_none() {
                return Err(Error::NoSuchKey);
            }
        }
        let source = io::Error::other("the file changes again and again while it is opened");
        Err(Error::Io { what: "open the object", source })
    }

    /// Makes a staged file the object, if the condition holds. `meta` has the new version's ETag.
    pub(crate) fn commit(
        &self,
        key: &str,
        staged: Staged,
        meta: Meta,
        if_: &Condition,
    ) -> Result<Arc<Entry>> {
        let mut state = self.lock();
        if state.removed {
            return Err(Error::NoSuchBucket);
        }
        let existing = self.current(&mut state, key)?;
        if_.check(existing.as_ref().map(|e| e.meta.etag.as_str()))?;
        let identity = staged.identity().map_err(Error::io("look at the new file"))?;
        state.journal.append(key, identity, &meta).map_err(Error::io("write the journal"))?;

        let placing = Error::io("move the new file into the folder");
        let place =
            self.place(&mut state, key, existing.as_ref().map(|e| e.place), staged).map_err(placing)?;
        let entry = Arc::new(Entry { identity, place, meta: Arc::new(meta) });
        state.index.insert(key.as_bytes().into(), entry.clone());
        let State { index, journal, .. } = &mut *state;
        if journal.is_stale(index.len()) {
            journal.rewrite(journalled(index)).map_err(Error::io("rewrite the journal"))?;
        }
        Ok(entry)
    }

    /// Moves the file to the present object's place, else to the plain path, else to the escaped one.
    fn place(
        &self,
        state: &mut State,
        key: &str,
        known: Option<KeyPath>,
        staged: Staged,
    ) -> io::Result<KeyPath> {
        if known != Some(KeyPath::Escaped)
            && keys::plain_path(key).is_some()
            && state.folders.rename_into(&self.plain, key, staged.path())?
        {
            staged.moved();
            return Ok(KeyPath::Plain);
        }
        let path = self.path(key, KeyPath::Escaped);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::rename(staged.path(), path)?;
        staged.moved();
        Ok(KeyPath::Escaped)
    }

    /// Removes an object, if it exists and the condition holds.
    pub(crate) fn delete(&self, key: &str, if_: &Condition) -> Result<()> {
        let mut state = self.lock();
        let existing = self.current(&mut state, key)?;
        if_.check(existing.as_ref().map(|e| e.meta.etag.as_str()))?;
        let Some(entry) = existing else { return Ok(()) };
        let removing = "remove the file";
        if entry.place == KeyPath::Plain {
            state.folders.remove_file(&self.plain, key).map_err(Error::io(removing))?;
        }
        // The escaped file is removed, too: a plain file that was put there by hand may hide it.
        self.remove_escaped(key).map_err(Error::io(removing))?;
        state.index.remove(key.as_bytes());
        Ok(())
    }

    fn remove_escaped(&self, key: &str) -> io::Result<()> {
        let path = self.path(key, KeyPath::Escaped);
        absent_is_fine(fs::remove_file(&path))?;
        let mut folder = path.parent();
        while let Some(at) = folder.filter(|at| **at != *self.escaped && at.starts_with(&self.escaped)) {
            if fs::remove_dir(at).is_err() {
                break;
            }
            folder = at.parent();
        }
        Ok(())
    }

    /// Removes the bucket's folders if it has no objects.
    pub(crate) fn remove(&self) -> Result<()> {
        let mut state = self.lock();
        let State { index, folders, .. } = &mut *state;
        folders.sweep(&self.plain, index).map_err(Error::io("look into the folder"))?;
        if !index.is_empty() {
            return Err(Error::BucketNotEmpty);
        }
        folders.remove_all(&self.plain).map_err(|e| match e.kind() {
            io::ErrorKind::DirectoryNotEmpty => Error::BucketNotEmpty,
            _ => Error::io("remove the bucket's folder")(e),
        })?;
        state.removed = true;
        absent_is_fine(fs::remove_dir_all(&self.escaped)).map_err(Error::io("remove the escaped names"))
    }

    /// The entry of a key, checked against the file by one stat(2). A change by hand updates the index.
    fn current(&self, state: &mut State, key: &str) -> Result<Option<Arc<Entry>>> {
        let known = state.index.get(key.as_bytes()).cloned();
        if known.is_none() && keys::plain_path(key).is_none() {
            return Ok(None);
        }
        let place = known.as_ref().map_or(KeyPath::Plain, |e| e.place);
        let found = file_identity(&self.path(key, place)).map_err(Error::io("look at the object's file"))?;
        match (known, found) {
            (Some(entry), Some(identity)) if entry.identity == identity => Ok(Some(entry)),
            (_, Some(identity)) => {
                if place == KeyPath::Plain
                    && !Folders::are_real(&self.plain, key)
                        .map_err(Error::io("look at the object's folders"))?
                {
                    return Ok(None);
                }
                let meta = Arc::new(Meta::derived(&identity));
                let entry = Arc::new(Entry { identity, place, meta });
                state.index.insert(key.as_bytes().into(), entry.clone());
                Ok(Some(entry))
            }
            (Some(_), None) => {
                state.index.remove(key.as_bytes());
                Ok(None)
            }
            (None, None) => Ok(None),
        }
    }
}

/// Entries whose metadata the server wrote. The metadata of other files is derived again at each start.
fn journalled(index: &Sorted<Arc<Entry>>) -> impl Iterator<Item = (&str, Identity, &Meta)> {
    index
        .iter()
        .filter(|(_, e)| *e.meta != Meta::derived(&e.identity))
        .filter_map(|(key, e)| std::str::from_utf8(key).ok().map(|key| (key, e.identity, &*e.meta)))
}

fn open_file(path: &Path) -> io::Result<(File, Identity)> {
    use std::os::unix::fs::OpenOptionsExt;
    // A FIFO put there by hand must not block the server, and a link must not lead out of the folder.
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let stat = file.metadata()?;
    if !stat.is_file() {
        return Err(io::Error::other("not a plain file"));
    }
    Ok((file, Identity::of(&stat)))
}

/// The identity of the plain file at a path; `None` when there is none.
fn file_identity(path: &Path) -> io::Result<Option<Identity>> {
    match fs::symlink_metadata(path) {
        Ok(stat) => Ok(stat.is_file().then(|| Identity::of(&stat))),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(e),
    }
}
