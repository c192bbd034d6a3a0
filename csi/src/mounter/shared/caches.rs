//! The caches of an engines pod: one directory for each volume and place of data, on a disk that the chart gives to that pod. A cache
//! outlives mounts, and also pods if the disk is the node's. Enters: a source and the size of its cache. Leaves: a directory that its
//! engine owns, or the reason why there is none.
//!
//! Sizes are reserved: all caches together never exceed the disk. To make room, caches without a source are removed, the oldest first. A cache
//! whose note can't be read counts as in use, and nobody knows its size: while other sources exist, no cache gets room.
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

use super::shares::write_note;
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
    /// Whether the source has had this cache before, according to its own note.
    pub(super) had: bool,
}

/// The right to make room. One caller has it at a time.
#[derive(Debug)]
pub(super) struct Turn {
    _choosing: OwnedMutexGuard<()>,
}

/// The notes of all caches by name; `None` for a note that can't be read.
type All = BTreeMap<String, Option<Kept>>;

/// The name of the directory for a volume and its place. Two volumes of one bucket have two caches: their keys may have different rights.
pub(super) fn name_of(request: &MountRequest) -> String {
    digest(&[&request.volume, &request.place])
}

fn is_name(name: &str) -> bool {
    name.len() == digest(&[]).len()
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// The caches to remove to make room for another one, the oldest first; or the reason why there is no room. `others` are the sources of
/// this node, without the one that wants the cache.
fn to_remove(
    all: &All,
    others: &BTreeSet<String>,
    (name, had, mib): (&str, bool, u64),
    max: u64,
) -> Result<Vec<String>, String> {
    match all.get(name) {
        Some(Some(it)) if others.contains(&it.source) => {
            return Err("another source of this volume, with earlier options, has its cache".to_owned());
        }
        // Each source may be the one that uses it.
        Some(None) if !had && !others.is_empty() => return Err(unreadable(name)),
        _ => {}
    }
    let mut removed = Vec::new();
    let mut known = BTreeMap::new();
    for (other, it) in all.iter().filter(|(other, _)| *other != name) {
        match it {
            Some(it) => drop(known.insert(other, it)),
            None if others.is_empty() => removed.push(other.clone()),
            // The room that is left is not known. A cache that has its room already keeps it.
            None if matches!(all.get(name), Some(Some(own)) if own.mib >= mib) => return Ok(vec![]),
            None => return Err(unreadable(other)),
        }
    }
    let mut reserved: u64 = known.values().map(|it| it.mib).sum();
    let mut unused: Vec<_> = known.into_iter().filter(|(_, it)| !others.contains(&it.source)).collect();
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
        "the driver's note {NOTES}/{name} on the node can't be read, so the cache of that name counts as in use, and the room beside it is not \
         known: delete the note, and the directory of that name on the disk, while no pod of the node uses its volume"
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
        sources: impl FnOnce() -> io::Result<BTreeSet<String>>,
    ) -> Result<(), String> {
        let Some(root) = self.root(wanted.comm) else {
            return Err("the engines pod has no disk for caches (shared.cache of the chart)".to_owned());
        };
        if !wanted.comm.engines_cache().exists() {
            return Err("the engines pod was made before shared.cache of the chart was set: delete the pod when its volumes may wait for a moment".to_owned());
        }
        let failed = |what: &str, error: io::Error| format!("{what} in {}: {error}", root.display());
        let max = self.disk.as_ref().map_or(0, |disk| disk.mib);
        self.forget_missing(&root).map_err(|error| failed("looking at its caches", error))?;
        let all = self.all().map_err(|error| failed("reading the notes on caches", error))?;
        // Sources that begin later wait for their turn before they take a cache.
        let mut others = sources().map_err(|error| failed("looking for the sources of caches", error))?;
        others.remove(wanted.source);
        for other in to_remove(&all, &others, (name, wanted.had, wanted.mib), max)? {
            tracing::info!("the cache {other} goes, to make room for that of {}", wanted.source);
            remove(&root.join(&other)).map_err(|error| failed("removing an earlier cache", error))?;
            self.forget(&other).map_err(|error| failed("forgetting an earlier cache", error))?;
        }
        let note = Kept { mib: wanted.mib, source: wanted.source.to_owned(), used: now() };
        self.put(name, &note).map_err(|error| failed("noting it", error))?;
        own(&root.join(name), wanted.user).map_err(|error| failed("making its directory", error))
    }

    /// Notes that a source has left its cache. The cache stays until another one needs the room.
    pub(super) fn leave(&self, name: &str) {
        // The source still exists, so nobody else writes this note. No turn is taken: making room for another cache may take long.
        let Ok(kept) = self.get(name) else { return };
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

    /// Removes notes whose directory went with its pod, and directories without a note.
    fn forget_missing(&self, root: &Path) -> io::Result<()> {
        let noted = self.names()?;
        for name in &noted {
            match root.join(name).symlink_metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.forget(name)?,
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        for entry in std::fs::read_dir(root)? {
            let entry = entry?;
            let is_unknown = |name: &str| is_name(name) && !noted.contains(name);
            if entry.file_name().to_str().is_some_and(is_unknown) {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }

    /// The names of the caches with a note, whatever it says.
    fn names(&self) -> io::Result<BTreeSet<String>> {
        let entries = match std::fs::read_dir(&self.notes) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            entries => entries?,
        };
        let mut names = BTreeSet::new();
        for entry in entries {
            names.extend(entry?.file_name().into_string().ok().filter(|name| is_name(name)));
        }
        Ok(names)
    }

    fn all(&self) -> io::Result<All> {
        let noted = |name: String| {
            let kept = self.get(&name).inspect_err(|error| {
                tracing::warn!(
                    "the note {NOTES}/{name} can't be read, so that cache counts as in use: {error}"
                );
            });
            (name, kept.ok())
        };
        Ok(self.names()?.into_iter().map(noted).collect())
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
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use super::*;
    use crate::mounter::testing::request;

    fn kept(mib: u64, source: &str, used: u64) -> Kept {
        Kept { mib, source: source.into(), used }
    }

    fn named(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&it| it.to_owned()).collect()
    }

    #[test]
    fn the_oldest_unused_caches_make_room_and_those_in_use_stay() {
        let all = BTreeMap::from([
            ("a".to_owned(), Some(kept(30, "sh-1", 5))),
            ("b".to_owned(), Some(kept(30, "sh-2", 3))),
            ("c".to_owned(), Some(kept(30, "sh-3", 4))),
        ]);
        let chosen = |name, mib| to_remove(&all, &named(&["sh-3"]), (name, false, mib), 100);
        assert_eq!(chosen("d", 10), Ok(vec![]), "it fits");
        assert_eq!(chosen("d", 11), Ok(vec!["b".to_owned()]));
        assert_eq!(chosen("d", 70), Ok(vec!["b".to_owned(), "a".to_owned()]));
        let why = chosen("d", 71).unwrap_err();
        assert!(why.contains("71 MiB") && why.contains("30 of 100 MiB"), "{why}");
        assert_eq!(chosen("a", 40), Ok(vec![]), "its own size is free for it");
        assert!(chosen("c", 1).unwrap_err().contains("another source"));
    }

    #[test]
    fn a_cache_whose_note_is_unreadable_has_an_unknown_size_and_is_in_use() {
        let all = BTreeMap::from([("a".to_owned(), Some(kept(30, "sh-1", 5))), ("b".to_owned(), None)]);
        let chosen = |others: &[&str], name, had, mib| to_remove(&all, &named(others), (name, had, mib), 100);
        for (name, had) in [("d", false), ("b", false)] {
            let why = chosen(&["sh-3"], name, had, 1).unwrap_err();
            assert!(why.contains("shared-caches/b"), "{why}");
        }
        assert_eq!(chosen(&["sh-3"], "a", true, 30), Ok(vec![]), "it has its room already");
        assert!(chosen(&["sh-3"], "a", true, 31).is_err());
        assert_eq!(chosen(&["sh-3"], "b", true, 70), Ok(vec![]), "its source has it by its own note");
        assert_eq!(chosen(&[], "b", false, 70), Ok(vec![]), "nobody else can have it");
        assert_eq!(
            chosen(&[], "d", false, 70),
            Ok(vec!["b".to_owned()]),
            "no source is left that may use it"
        );
    }

    #[test]
    fn volumes_of_one_bucket_have_caches_of_their_own() {
        let first = request("pv-1", "w1");
        assert_eq!(name_of(&first), name_of(&request("pv-1", "w2")));
        let elsewhere = MountRequest { place: "elsewhere".into(), ..first.clone() };
        for other in [request("pv-2", "w1"), elsewhere] {
            assert_ne!(name_of(&first), name_of(&other));
        }
        assert!(is_name(&name_of(&first)) && !is_name("lost+found") && !is_name(".."));
    }

    struct Home {
        caches: Caches,
        comm: Comm,
        root: PathBuf,
        folder: tempfile::TempDir,
    }

    impl Home {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let (root, comm) = (folder.path().join("disk"), Comm::at(folder.path().join("comm")));
            std::fs::create_dir(&root).unwrap();
            std::fs::create_dir(comm.directory()).unwrap();
            std::fs::write(comm.engines_cache(), "").unwrap();
            let disk = Disk { mib: 100, directory: Some(root.clone()) };
            Self { caches: Caches::of(folder.path(), Some(disk)), comm, root, folder }
        }

        fn take(&self, volume: &str, source: &str, mib: u64, sources: &[&str]) -> Result<PathBuf, String> {
            let name = name_of(&request(volume, "w1"));
            let user = rustix::process::geteuid().as_raw();
            let wanted = Wanted { source, comm: &self.comm, user, mib, had: false };
            let turn = Turn { _choosing: Arc::clone(&self.caches.choosing).blocking_lock_owned() };
            self.caches.take(&turn, &name, &wanted, || Ok(named(sources)))?;
            Ok(self.caches.directory(&self.comm, &name).unwrap())
        }
    }

    #[test]
    fn a_cache_is_kept_until_its_room_is_needed_and_foreign_files_stay() {
        let home = Home::new();
        std::fs::create_dir(home.root.join("lost+found")).unwrap();
        let first = home.take("pv-1", "sh-1", 60, &[]).unwrap();
        assert_eq!(first.metadata().unwrap().permissions().mode() & 0o7777, 0o700);
        std::fs::write(first.join("block"), "bytes").unwrap();
        let why = home.take("pv-2", "sh-2", 60, &["sh-1"]).unwrap_err();
        assert!(why.contains("60 of 100 MiB"), "{why}");
        // The source goes and comes again.
        home.caches.leave(&name_of(&request("pv-1", "w1")));
        assert_eq!(home.take("pv-1", "sh-3", 60, &[]).unwrap(), first);
        assert_eq!(std::fs::read_to_string(first.join("block")).unwrap(), "bytes");
        // A driver that starts anew knows it.
        let disk = home.caches.disk.clone();
        let home = Home { caches: Caches::of(home.folder.path(), disk), ..home };
        assert!(home.take("pv-2", "sh-2", 60, &["sh-3"]).is_err());
        let second = home.take("pv-2", "sh-2", 60, &[]).unwrap();
        assert!(!first.exists() && second.is_dir() && home.root.join("lost+found").exists());
    }

    #[test]
    fn a_cache_in_use_stays_though_its_note_can_not_be_read() {
        let home = Home::new();
        let first = home.take("pv-1", "sh-1", 60, &[]).unwrap();
        std::fs::write(first.join("block"), "bytes").unwrap();
        let note = home.caches.notes.join(name_of(&request("pv-1", "w1")));
        for half in ["", "{", "{}", "{\"mib\":60}"] {
            std::fs::write(&note, half).unwrap();
            let why = home.take("pv-2", "sh-2", 1, &["sh-1", "sh-2"]).unwrap_err();
            assert!(why.contains("can't be read") && first.join("block").exists(), "{half}: {why}");
        }
        home.caches.leave(&name_of(&request("pv-1", "w1")));
        // A note of another kind, which can't even be opened as a file.
        std::fs::remove_file(&note).unwrap();
        std::fs::create_dir(&note).unwrap();
        home.take("pv-2", "sh-2", 1, &["sh-1", "sh-2"]).unwrap_err();
        assert!(first.join("block").exists());
        std::fs::remove_dir(&note).unwrap();
        std::fs::write(&note, "").unwrap();
        home.take("pv-2", "sh-2", 60, &["sh-2"]).unwrap();
        assert!(!first.exists() && !note.exists(), "no source is left that may use it");
    }

    #[test]
    fn notes_or_sources_that_can_not_be_listed_remove_no_cache() {
        let home = Home::new();
        let first = home.take("pv-1", "sh-1", 60, &[]).unwrap();
        let name = name_of(&request("pv-2", "w1"));
        let user = rustix::process::geteuid().as_raw();
        let wanted = Wanted { source: "sh-2", comm: &home.comm, user, mib: 60, had: false };
        let turn = Turn { _choosing: Arc::clone(&home.caches.choosing).blocking_lock_owned() };
        let unlisted = || Err(io::ErrorKind::PermissionDenied.into());
        home.caches.take(&turn, &name, &wanted, unlisted).unwrap_err();
        assert!(first.exists());
        let aside = home.caches.notes.with_extension("aside");
        std::fs::rename(&home.caches.notes, &aside).unwrap();
        std::fs::write(&home.caches.notes, "a file").unwrap();
        home.caches.take(&turn, &name, &wanted, || Ok(BTreeSet::new())).unwrap_err();
        assert!(first.exists(), "notes that can't be listed are not none");
    }

    #[test]
    fn a_link_in_place_of_a_cache_leads_nowhere() {
        let home = Home::new();
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::write(elsewhere.path().join("file"), "").unwrap();
        let owner = elsewhere.path().metadata().unwrap().uid();
        let cache = home.take("pv-1", "sh-1", 60, &[]).unwrap();
        std::fs::remove_dir(&cache).unwrap();
        symlink(elsewhere.path(), &cache).unwrap();
        home.take("pv-1", "sh-1", 60, &[]).unwrap_err();
        home.take("pv-2", "sh-2", 60, &[]).unwrap();
        assert!(cache.symlink_metadata().is_err(), "the link went to make room");
        assert_eq!(elsewhere.path().metadata().unwrap().uid(), owner);
        assert!(elsewhere.path().join("file").exists());
    }

    #[test]
    fn a_disk_that_went_with_its_pod_has_no_caches_and_an_old_pod_none() {
        let home = Home::new();
        let cache = home.take("pv-1", "sh-1", 60, &[]).unwrap();
        std::fs::remove_dir(&cache).unwrap();
        home.take("pv-2", "sh-2", 90, &["sh-1"]).unwrap();
        std::fs::remove_file(home.comm.engines_cache()).unwrap();
        assert!(home.take("pv-2", "sh-2", 90, &[]).unwrap_err().contains("delete the pod"));
        let without = Caches::of(home.folder.path(), None);
        assert!(!without.has_disk() && without.directory(&home.comm, "x").is_none());
    }
}
