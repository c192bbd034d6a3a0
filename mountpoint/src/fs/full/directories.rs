//! Directories whose markers are stored behind their mkdir (`--commit fsync` and `disk`), like files behind their last close.
//!
//! A rename first stores the markers that are owed below both names. A removal drops a marker that no request carried; another one is
//! stored first, and deleted then. So no marker comes to the bucket under a name that programs removed or renamed.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;

use futures_util::future::FutureExt as _;
use futures_util::stream::{self, StreamExt as _};
use rustix::io::Errno;

use super::Full;
use super::sending::SENDS_MAX;
use crate::fs::{Error, FileSystem, HandleNo, Result};
use crate::inode::{ErrorKind, InodeNo};
use crate::kept::Kept;
use crate::object::ObjectKey;
use crate::stage::Commit;
use crate::sync::Arc;

/// A directory that owes its marker.
#[derive(Debug)]
pub(super) struct Owing {
    ino: InodeNo,
    key: ObjectKey,
    /// Number of the directory in the stage.
    number: u64,
    /// Locked during a send, and during a removal of the directory.
    marker: tokio::sync::Mutex<Marker>,
}

/// The marker of a directory that was made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marker {
    /// No request carried the marker.
    Unsent,
    /// A request carried the marker, and either it has no answer or the log no record of its success: the bucket may have the marker.
    Unclear,
    /// The bucket has the marker, or the directory was removed.
    Settled,
}

/// The directories that owe their markers, by key and by inode.
#[derive(Debug, Default)]
pub(super) struct Directories {
    by_key: BTreeMap<String, Arc<Owing>>,
    by_ino: HashMap<InodeNo, Arc<Owing>>,
}

impl Owing {
    pub(super) fn key(&self) -> &ObjectKey {
        &self.key
    }
}

impl Directories {
    pub(super) fn len(&self) -> usize {
        self.by_ino.len()
    }

    /// Adds a directory that was made here, or that an earlier mount left, whose engine may have sent the marker.
    pub(super) fn insert(&mut self, ino: InodeNo, key: &ObjectKey, number: u64, was_left: bool) {
        let marker = if was_left { Marker::Unclear } else { Marker::Unsent };
        let owing = Arc::new(Owing { ino, key: key.clone(), number, marker: marker.into() });
        self.by_key.insert(key.as_str().to_owned(), Arc::clone(&owing));
        self.by_ino.insert(ino, owing);
    }

    pub(super) fn get(&self, ino: InodeNo) -> Option<Arc<Owing>> {
        self.by_ino.get(&ino).cloned()
    }

    /// All of them, in the order of their keys.
    pub(super) fn all(&self) -> Vec<Arc<Owing>> {
        self.by_key.values().cloned().collect()
    }

    /// The directory with this key.
    fn at(&self, key: &str) -> Option<Arc<Owing>> {
        self.by_key.get(key).cloned()
    }

    /// The directory with this key, and those below it.
    fn below(&self, key: &ObjectKey) -> Vec<Arc<Owing>> {
        let from = self.by_key.range(key.as_str().to_owned()..);
        from.take_while(|(other, _)| other.starts_with(key.as_str()))
            .map(|(_, owing)| Arc::clone(owing))
            .collect()
    }

    fn remove(&mut self, owing: &Owing) {
        self.by_ino.remove(&owing.ino);
        let is_it = |other: &Arc<Owing>| other.number == owing.number;
        if self.by_key.get(owing.key.as_str()).is_some_and(is_it) {
            self.by_key.remove(owing.key.as_str());
        }
    }
}

impl Full {
    /// Takes in that a directory owes no marker any more.
    fn owes_no_marker(&self, owing: &Owing) -> Result<()> {
        self.area.owes_no_marker(owing.number)?;
        self.directories.lock().remove(owing);
        self.directory_settled(owing.ino);
        Ok(())
    }
}

impl FileSystem {
    /// Notes that a directory that was made here owes its marker, and queues it. False if the mkdir has to store the marker.
    ///
    /// # Errors
    /// The disk of the stage; `NOSPC`: too much waits in the stage.
    pub(in crate::fs) async fn owes_marker(&self, ino: InodeNo, key: &ObjectKey) -> Result<bool> {
        let Some(full) = self.full.as_ref().filter(|full| full.is_deferred()) else { return Ok(false) };
        self.wait_for_place(ino).await?;
        let number = full.area.owe_marker(key)?;
        full.directories.lock().insert(ino, key, number, false);
        self.inodes.owes_marker(ino, true);
        full.directory_waits(ino, self.clock.now());
        Ok(true)
    }

    /// Stores the marker of a directory that owes it. A marker that another client stored meanwhile is as good.
    pub(super) async fn store_owed(&self, owing: &Owing) -> Result<()> {
        let mut marker = owing.marker.lock().await;
        self.store_owed_marker(owing, &mut marker).await
    }

    /// Stores a marker, for the task that holds its lock.
    async fn store_owed_marker(&self, owing: &Owing, marker: &mut Marker) -> Result<()> {
        if *marker == Marker::Settled {
            return Ok(());
        }
        let before = *marker;
        // Also where the caller gives up before the answer.
        *marker = Marker::Unclear;
        if let Err(unconfirmed) = self.put_marker(owing.key.clone(), &Kept::default()).await {
            if !unconfirmed.may_be_there {
                *marker = before;
            }
            return Err(unconfirmed.error);
        }
        self.inodes.stored_directory(owing.ino);
        self.full()?.owes_no_marker(owing)?;
        *marker = Marker::Settled;
        Ok(())
    }

    /// Stores the markers of these directories, many at once. Returns those that could not be stored, each with the reason.
    pub(super) async fn store_all_owed(&self, owing: Vec<Arc<Owing>>) -> Vec<(Arc<Owing>, Error)> {
        let store = |owing: Arc<Owing>| {
            async move {
                let stored = self.store_owed(&owing).await;
                stored.err().map(|error| (owing, error))
            }
            .boxed()
        };
        let stores: Vec<_> = owing.into_iter().map(store).collect();
        stream::iter(stores).buffer_unordered(SENDS_MAX).filter_map(std::future::ready).collect().await
    }

    /// Stores the markers that directories at and below a key owe.
    ///
    /// # Errors
    /// The error of the first one that could not be stored.
    async fn store_owed_below(&self, key: &ObjectKey) -> Result<()> {
        let owing = self.full()?.directories.lock().below(key);
        self.store_all_owed(owing).await.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Stores the markers that directories at and below both names of a rename owe. From then on the next mount stores none of them under
    /// the old name, even after a loss of power.
    ///
    /// # Errors
    /// The errors of the store and of the stage's disk.
    pub(in crate::fs) async fn settle_owed_below(&self, names: [&ObjectKey; 2]) -> Result<()> {
        let full = self.full()?;
        if !full.is_deferred() {
            return Ok(());
        }
        for key in names {
            self.store_owed_below(key).await?;
        }
        Ok(full.area.sync_log().await?)
    }

    /// Removes an empty directory. One that owes its marker, and of which no request carried it, costs none.
    ///
    /// # Errors
    /// `NOTEMPTY`; the errors of the store and of the stage's disk.
    pub(in crate::fs) async fn rmdir_in_full(&self, parent: InodeNo, name: &OsStr) -> Result<()> {
        let full = self.full()?;
        let above = self.inodes.key_of(parent).zip(name.to_str());
        let key = above.map(|(above, name)| format!("{}{name}/", above.as_str()));
        let Some(owing) = key.and_then(|key| full.directories.lock().at(&key)) else {
            self.remove_directory(parent, name).await?;
            self.sync_removal(full).await;
            return Ok(());
        };
        // Names here are in the way, and the answer to a send need not be waited for.
        if self.inodes.has_locals(owing.ino) {
            let why = format!("\"{}\" is a directory with names in it", owing.key);
            return Err(Error::new(Errno::NOTEMPTY, why));
        }
        let mut marker = owing.marker.lock().await;
        // The bucket may have the marker: then that is to be found, and deleted.
        if *marker == Marker::Unclear {
            self.store_owed_marker(&owing, &mut marker).await?;
        }
        let is_here_alone = *marker == Marker::Unsent && self.inodes.is_local(owing.ino);
        self.remove_directory(parent, name).await?;
        if *marker != Marker::Settled {
            full.owes_no_marker(&owing)?;
            self.inodes.owes_marker(owing.ino, false);
            *marker = Marker::Settled;
        }
        if !is_here_alone {
            self.sync_removal(full).await;
        }
        Ok(())
    }

    async fn remove_directory(&self, parent: InodeNo, name: &OsStr) -> Result<()> {
        match self.inodes.rmdir(parent, name, self.config.allow_delete).await {
            // Keys below the directory are in the way: deletes are allowed in full mode.
            Err(error) if matches!(error.kind(), ErrorKind::NotPermitted(_)) => {
                Err(Error::new(Errno::NOTEMPTY, error.to_string()))
            }
            removed => Ok(removed?),
        }
    }

    /// Makes the record durable by which the next mount does not store a marker that the bucket had and lost by a removal.
    async fn sync_removal(&self, full: &Full) {
        if full.is_deferred()
            && let Err(error) = full.area.sync_log().await
        {
            tracing::debug!(%error, "a loss of power could bring a removed directory back");
        }
    }

    /// fsync of a directory. With `--commit fsync` the bucket has its marker then, and those of the directories below.
    ///
    /// # Errors
    /// The disk of the stage; with `--commit fsync` also the store.
    pub async fn sync_names(&self, handle: HandleNo) -> Result<()> {
        let full = self.full()?;
        if full.area.commit() == Commit::Fsync
            && let Some(key) = self.inodes.key_of(self.dirs.get(handle)?.ino)
        {
            self.store_owed_below(&key).await?;
        }
        Ok(full.area.sync_names().await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_found_by_inode_by_key_and_below_a_key() {
        let mut all = Directories::default();
        let keys = ["a/", "a/b/", "a/b/c/", "a0/", "b/"];
        for (number, key) in (1..).zip(keys) {
            all.insert(InodeNo(10 + number), &key.into(), number, false);
        }
        let below = |all: &Directories, key: &str| -> Vec<String> {
            all.below(&key.into()).iter().map(|owing| owing.key().as_str().to_owned()).collect()
        };
        assert_eq!(below(&all, "a/"), ["a/", "a/b/", "a/b/c/"]);
        assert_eq!(below(&all, ""), keys);
        assert_eq!(all.get(InodeNo(12)).unwrap().key().as_str(), "a/b/");
        // The name has another directory by now.
        let before = all.at("b/").unwrap();
        all.insert(InodeNo(99), &"b/".into(), 99, false);
        all.remove(&before);
        assert_eq!((all.at("b/").unwrap().number, all.len(), all.get(InodeNo(15)).is_none()), (99, 5, true));
    }
}
