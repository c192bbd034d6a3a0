//! The caches of an engines pod: one directory for each volume and place of data, on a disk that the chart gives to that pod. A cache
//! outlives mounts, and also pods if the disk is the node's. Enters: a source and the size of its cache. Leaves: a directory that its
//! engine owns, or the reason why there is none.
//!
//! Sizes are reserved: all caches together never exceed the disk. To make room, caches that no engine uses are removed, the oldest first. One
//! that the disk does not remove keeps its size, and the next one goes.
//!
//! If the note of a cache can't be read, the notes of the sources say who uses it, and its size. If they can't be read either, the cache counts
//! as in use with an unknown size, and no other cache gets room.
//!
//! The disk may hang. Room is made for one volume at a time, by its [`Turn`]; the caller decides how long it waits.
//!
//! The pod is not trusted with the disk: the notes on caches are in the driver's own directory, and no link on the disk is followed.
//!
//! Never here: a byte of a cache; a mount that fails because there is no room.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use mountpoint::sync::Arc;
use rustix::fs::{Gid, Mode, OFlags, Uid};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::shares::{Share, noted, write_note};
use crate::contract::comm::Comm;
use crate::contract::{cache, comm, digest};
use crate::mounter::MountRequest;

/// The directory of the notes, in the driver's directory on the node.
const NOTES: &str = "shared-caches";

/// The disk for caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The size of all caches together, in MiB.
    pub mib: u64,
    /// The directory of the node's disk, as this process sees it. `None`: the disk is a volume of the engines pod, and is removed with it.
    pub directory: Option<PathBuf>,
}

impl Disk {
    /// A disk of this size, in MiB; `None` for 0.
    #[must_use]
    pub fn of(mib: u64, directory: Option<PathBuf>) -> Option<Self> {
        (mib > 0).then_some(Self { mib, directory })
    }
}

/// The note of a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Kept {
    /// The size, in MiB.
    mib: u64,
    /// The source that uses it, or used it last.
    source: String,
    /// The time at which a source last took or left it, in seconds since 1970.
    used: u64,
}

/// A request for a cache.
pub(super) struct Wanted<'a> {
    /// The name of the source.
    pub(super) source: &'a str,
    /// The directory that the node and the engines pod share.
    pub(super) comm: &'a Comm,
    /// The UID of the pod's processes.
    pub(super) user: u32,
    /// The size, in MiB.
    pub(super) mib: u64,
}

/// The right to make room. One caller has it at a time.
#[derive(Debug)]
pub(super) struct Turn {
    _choosing: OwnedMutexGuard<()>,
}

/// Sources by name, with their own notes; `None` for a source whose note is missing or can't be read.
pub(super) type Sources = BTreeMap<String, Option<Share>>;

/// The knowledge about one cache.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// The note of the cache, or what the note of its source says in place of that.
    Known(Kept),
    /// No note can be read, and no source uses the cache.
    Unused,
    /// No note can be read, and a source may use the cache.
    Unknown,
    /// An unused cache of this size, in MiB, which the disk does not remove.
    Stays(u64),
}

/// All caches by name.
type All = BTreeMap<String, State>;

/// The name of the directory for a volume and its place. Two volumes of one bucket have two caches: their keys may have different rights.
pub(super) fn name_of(request: &MountRequest) -> String {
    digest(&[&request.volume, &request.place])
}

fn is_name(name: &str) -> bool {
    name.len() == digest(&[]).len()
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// The state of a cache whose note can't be read, by the notes of the sources. `own`: the source that wants a cache has had this one.
fn by_sources(name: &str, others: &Sources, own: Option<Kept>) -> State {
    let mut readable = others.iter().filter_map(|(source, share)| Some((source, share.as_ref()?)));
    let user = readable.find(|(_, share)| share.used_cache().is_some_and(|cache| cache == name));
    match (user, own) {
        (Some((source, share)), _) => share
            .cache_mib
            .map_or(State::Unknown, |mib| State::Known(Kept { mib, source: source.clone(), used: 0 })),
        (None, Some(own)) => State::Known(own),
        (None, None) if others.values().all(Option::is_some) => State::Unused,
        (None, None) => State::Unknown,
    }
}

/// The caches to remove to make room for another one, the oldest first; or the reason why there is no room. `users` are the sources of
/// this node that may use a cache, without the one that wants this.
fn to_remove(
    all: &All,
    users: &BTreeSet<&str>,
    (name, mib): (&str, u64),
    max: u64,
) -> Result<Vec<String>, String> {
    match all.get(name) {
        Some(State::Known(it)) if users.contains(&*it.source) => {
            return Err("another source of this volume, with earlier options, has its cache".to_owned());
        }
        Some(State::Unknown) => return Err(unreadable(name)),
        _ => {}
    }
    let mut removed = Vec::new();
    let mut known = BTreeMap::new();
    let mut reserved: u64 = 0;
    for (other, it) in all.iter().filter(|(other, _)| *other != name) {
        match it {
            State::Known(it) => drop(known.insert(other, it)),
            State::Stays(mib) => reserved += mib,
            State::Unused => removed.push(other.clone()),
            // The room that is left is not known. A cache that has its room already keeps it.
            State::Unknown if matches!(all.get(name), Some(State::Known(own)) if own.mib >= mib) => {
                return Ok(vec![]);
            }
            State::Unknown => return Err(unreadable(other)),
        }
    }
    reserved += known.values().map(|it| it.mib).sum::<u64>();
    let mut unused: Vec<_> = known.into_iter().filter(|(_, it)| !users.contains(&*it.source)).collect();
    unused.sort_by_key(|(_, it)| it.used);
    for (other, it) in unused {
        if reserved.saturating_add(mib) <= max {
            break;
        }
        reserved -= it.mib;
        removed.push(other.clone());
    }
    if reserved.saturating_add(mib) <= max {
        return Ok(removed);
    }
    Err(format!(
        "it is to have {mib} MiB, and volumes in use have {reserved} of {max} MiB (shared.cache.size of the chart)"
    ))
}

fn unreadable(name: &str) -> String {
    format!(
        "the driver's note {NOTES}/{name} on the node can't be read, and no note of a source tells who uses that cache, so the room beside it is \
         not known: delete the note, and the directory of that name on the disk, while no pod of the node uses its volume"
    )
}

/// The caches of this node.
#[derive(Debug)]
pub(super) struct Caches {
    disk: Option<Disk>,
    notes: PathBuf,
    /// Locked while room is made.
    choosing: Arc<Mutex<()>>,
}

impl Caches {
    /// The caches on this disk, with notes beneath this kubelet's root directory.
    pub(super) fn of(kubelet: &Path, disk: Option<Disk>) -> Self {
        let notes = comm::plugin_directory(kubelet).join(NOTES);
        Self { disk, notes, choosing: Arc::default() }
    }

    /// Whether the chart gives a disk for caches.
    pub(super) fn has_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// Waits for the right to make room.
    pub(super) async fn turn(&self) -> Turn {
        Turn { _choosing: Arc::clone(&self.choosing).lock_owned().await }
    }

    /// Reserves a cache, and makes its directory for the user of the pod. A source that had this cache finds its blocks there. `sources`
    /// lists the sources that exist, and those whose engine still ends in the pod. Blocks while the disk hangs.
    ///
    /// # Errors
    /// A sentence: the caches have no room, the pod has no disk, or the disk fails.
    pub(super) fn take(
        &self,
        _turn: &Turn,
        name: &str,
        wanted: &Wanted<'_>,
        sources: impl FnOnce() -> io::Result<Sources>,
    ) -> Result<(), String> {
        let Some(root) = self.root(wanted.comm) else {
            return Err("the engines pod has no disk for caches (shared.cache of the chart)".to_owned());
        };
        if !wanted.comm.engines_cache().exists() {
            return Err("the engines pod was made before shared.cache of the chart was set: delete the pod when its volumes may wait for a moment".to_owned());
        }
        let failed = |what: &str, error: io::Error| format!("{what} in {}: {error}", root.display());
        let max = self.disk.as_ref().map_or(0, |disk| disk.mib);
        // Sources that begin later wait for their turn before they take a cache.
        let mut others = sources().map_err(|error| failed("looking for the sources of caches", error))?;
        let its = others.remove(wanted.source).flatten();
        self.forget_missing(&root, &others).map_err(|error| failed("looking at its caches", error))?;
        let had = its.filter(|its| its.cache.as_deref() == Some(name)).map(|its| Kept {
            mib: its.cache_mib.unwrap_or(wanted.mib),
            source: wanted.source.to_owned(),
            used: now(),
        });
        let state = |other: &str| by_sources(other, &others, had.clone().filter(|_| other == name));
        let all = self.all(&root, &others, state);
        let mut all = all.map_err(|error| failed("reading the notes on caches", error))?;
        let may_use = |share: Option<&Share>| share.is_none_or(|share| !share.without_cache);
        let users = others.iter().filter(|(_, share)| may_use(share.as_ref()));
        let users = users.map(|(source, _)| &**source).collect();
        let mut failure = None;
        // One at a time: in place of a cache that the disk does not remove goes the next one.
        loop {
            let next = to_remove(&all, &users, (name, wanted.mib), max).map(|plan| plan.into_iter().next());
            let Some(other) = next.map_err(|why| failure.take().unwrap_or(why))? else { break };
            tracing::info!("the cache {other} goes, to make room for that of {}", wanted.source);
            let was = all.remove(&other);
            if let Err(error) = remove(&root.join(&other)).and_then(|()| self.forget(&other)) {
                let why = failed(&format!("removing the earlier cache {other}"), error);
                tracing::warn!("{why}");
                failure.get_or_insert(why);
                let stays = match was {
                    Some(State::Known(kept)) => State::Stays(kept.mib),
                    _ => State::Unknown,
                };
                all.insert(other, stays);
            }
        }
        let note = Kept { mib: wanted.mib, source: wanted.source.to_owned(), used: now() };
        self.put(name, &note).map_err(|error| failed("noting it", error))?;
        own(&root.join(name), wanted.user).map_err(|error| failed("making its directory", error))
    }

    /// Notes that a source has left its cache. The cache stays until another one needs the room.
    pub(super) fn leave(&self, name: &str, source: &str) {
        // The source still exists, so nobody else writes this note. No turn is taken: making room for another cache may take long.
        let Some(kept) = self.get(name).ok().filter(|kept| kept.source == source) else { return };
        if let Err(error) = self.put(name, &Kept { used: now(), ..kept }) {
            tracing::warn!("noting that a cache is unused: {error}");
        }
    }

    /// The directory of a cache, as this process sees it.
    pub(super) fn directory(&self, comm: &Comm, name: &str) -> Option<PathBuf> {
        self.root(comm).map(|root| root.join(name))
    }

    /// The root directory of the disk, as this process sees it.
    fn root(&self, comm: &Comm) -> Option<PathBuf> {
        let of_pod = || comm.directory().with_file_name(cache::VOLUME);
        self.disk.as_ref().map(|disk| disk.directory.clone().unwrap_or_else(of_pod))
    }

    /// Removes notes whose directory went with its pod, and directories without a note that no source uses.
    fn forget_missing(&self, root: &Path, others: &Sources) -> io::Result<()> {
        let with_note = self.names()?;
        for name in &with_note {
            match root.join(name).symlink_metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.forget(name)?,
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        let used: BTreeSet<_> = used(others).collect();
        for entry in std::fs::read_dir(root)? {
            let entry = entry?;
            let is_unknown = |name: &str| is_name(name) && !with_note.contains(name) && !used.contains(name);
            if entry.file_name().to_str().is_some_and(is_unknown) {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }

    /// The names of the caches with a note, whatever it says.
    fn names(&self) -> io::Result<BTreeSet<String>> {
        noted(&self.notes, is_name)
    }

    /// All caches. `unreadable` tells the state of one whose note is lost or can't be read.
    fn all(&self, root: &Path, others: &Sources, unreadable: impl Fn(&str) -> State) -> io::Result<All> {
        let is_there = |name: &&str| is_name(name) && root.join(name).symlink_metadata().is_ok();
        let mut names = self.names()?;
        names.extend(used(others).filter(is_there).map(str::to_owned));
        let state = |name: String| {
            let state = self.get(&name).map_or_else(
                |error| {
                    let state = unreadable(&name);
                    tracing::warn!(
                        "the note {NOTES}/{name} can't be read ({error}); by those of the sources: {state:?}"
                    );
                    state
                },
                State::Known,
            );
            (name, state)
        };
        Ok(names.into_iter().map(state).collect())
    }

    fn get(&self, name: &str) -> io::Result<Kept> {
        if !is_name(name) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let kept: Kept = serde_json::from_slice(&std::fs::read(self.notes.join(name))?)?;
        if kept.source.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it names no source"));
        }
        Ok(kept)
    }

    fn put(&self, name: &str, kept: &Kept) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.notes)?;
        write_note(&self.notes, name, kept)
    }

    fn forget(&self, name: &str) -> io::Result<()> {
        absent(std::fs::remove_file(self.notes.join(name)))
    }
}

/// The caches that sources may use, by the sources' own notes.
fn used(sources: &Sources) -> impl Iterator<Item = &str> {
    sources.values().flatten().filter_map(Share::used_cache).map(String::as_str)
}

/// Removes a directory with all its content, or any other file that a pod put in its place. Follows no link.
fn remove(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => absent(std::fs::remove_dir_all(path)),
        Ok(_) => absent(std::fs::remove_file(path)),
        Err(error) => absent(Err(error)),
    }
}

/// Makes a directory that only one user may enter. An existing one keeps its content.
fn own(path: &Path, user: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::fs::fchown(&directory, Some(Uid::from_raw(user)), None::<Gid>)?;
    Ok(rustix::fs::fchmod(&directory, Mode::RWXU)?)
}

fn absent(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
