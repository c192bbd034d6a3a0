//! The journal of multipart uploads: one small file per upload in progress, with which a later mount finds the uploads of a killed
//! `mount-s3`. Without it, the parts of an unfinished upload would stay in the store, invisible and paid for.
//!
//! Enters: an upload that the store has created. Leaves: an [`Entry`] to be removed at its end, and the uploads of dead processes. Nothing
//! here makes a request or syncs the disk (if the machine loses an entry, an upload stays in the store). A failure of the journal fails no
//! file.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};

use crate::object::ObjectKey;
use crate::owner::{LOCAL, Locked, Owner, create, kind, machine};
use crate::s3::UploadId;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The folder of the entries in the state directory.
const FOLDER: &str = "uploads";
/// The extension of an entry's file.
const ENDING: &str = "json";
/// Most uploads of dead processes that are locked at once, each by an open file; further ones follow when these are aborted. Doubling it
/// leaves fewer uploads to other mounts that start meanwhile.
const LEFT_MAX: usize = 512;
/// Most bytes of an entry. A longer one is unreadable. A key has 1024 bytes at most, six times as many when each is escaped.
const ENTRY_MAX: u64 = 64 << 10;
/// Age at which an unreadable entry is removed. A living process may still be writing a younger one.
const TORN_AFTER: Duration = Duration::from_secs(60);

/// The directory of the journal, and the bucket of this mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The state directory, which is created if it is missing.
    pub dir: PathBuf,
    /// Whether the user named the directory. An unusable directory then causes a warning, otherwise a line of level info.
    pub asked: bool,
    /// URL of the store; empty for AWS.
    pub endpoint: String,
    /// Name of the bucket.
    pub bucket: String,
    /// Prefix of the keys whose uploads this mount may abort.
    pub prefix: String,
}

/// The journal of this process.
#[derive(Debug)]
pub(super) struct Journal {
    config: Config,
    folder: PathBuf,
    process: Owner,
    /// The machine's name in the journal's records.
    machine: String,
    entries: AtomicU64,
    failed: AtomicBool,
    late: AtomicBool,
}

/// One upload in progress, as its file describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    endpoint: String,
    bucket: String,
    key: String,
    upload_id: String,
    /// The machine of the process; empty if unknown, as in entries of older releases.
    #[serde(default)]
    machine: String,
    #[serde(flatten)]
    owner: Owner,
}

/// The file of one upload in progress. The lock on it shows that this process lives, also to processes of other PID namespaces.
#[derive(Debug)]
pub(super) struct Entry {
    path: PathBuf,
    locked: Locked,
}

/// An upload of a dead process, to be aborted. The lock keeps other processes from taking it, too.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) upload: UploadId,
    pub(super) entry: Entry,
}

/// The position of a walk through all entries.
#[derive(Debug)]
pub(super) struct Search {
    entries: fs::ReadDir,
    now: SystemTime,
}

impl Journal {
    /// Creates the directory if it is missing, and checks that it can be written.
    ///
    /// # Errors
    /// An error of the disk, or of `/proc`.
    pub(super) fn open(config: Config) -> io::Result<Self> {
        let folder = config.dir.join(FOLDER);
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        access(&folder, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK)?;
        let process = Owner::this().map_err(io::Error::other)?;
        let machine = machine();
        let (entries, failed, late) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { config, folder, process, machine, entries, failed, late })
    }

    /// Writes the entry of an upload. Must be called before the first part is sent.
    ///
    /// # Errors
    /// An error of the disk.
    pub(super) fn note(&self, upload: &UploadId) -> io::Result<Entry> {
        self.note_in(upload, create)
    }

    /// Writes an entry like [`Journal::note`], in a file that `create` makes.
    fn note_in(&self, upload: &UploadId, create: impl Fn(&Path) -> io::Result<File>) -> io::Result<Entry> {
        let record = Record {
            endpoint: self.config.endpoint.clone(),
            bucket: self.config.bucket.clone(),
            key: upload.key.as_str().to_owned(),
            upload_id: upload.id.clone(),
            machine: self.machine.clone(),
            owner: self.process.clone(),
        };
        let text = serde_json::to_string(&record)?;
        match self.write(&text, &create) {
            // Another mount, in search of entries of dead processes, locked this one first. The next file name will work.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.write(&text, &create),
            written => written,
        }
    }

    /// Creates, locks and writes an entry.
    fn write(&self, text: &str, create: impl Fn(&Path) -> io::Result<File>) -> io::Result<Entry> {
        let Owner { boot_id, pid, start } = &self.process;
        let number = self.entries.fetch_add(1, Relaxed);
        let path = self.folder.join(format!("{boot_id}-{pid}-{start}-{number}.{ENDING}"));
        let file = create(&path)?;
        let entry = match Locked::new(file) {
            Ok(locked) => Entry { path, locked },
            Err(error) => {
                Entry::remove_file(&path);
                return Err(error);
            }
        };
        let written = (&*entry.locked).write_all(text.as_bytes());
        match written {
            Ok(()) => Ok(entry),
            Err(error) => {
                entry.remove();
                Err(error)
            }
        }
    }

    /// Whether this is the journal's first failure; later ones are not logged.
    pub(super) fn fails_first(&self) -> bool {
        !self.failed.swap(true, Relaxed)
    }

    /// Whether the disk has missed the time limit, and not answered since then.
    pub(super) fn is_late(&self) -> bool {
        self.late.load(Relaxed)
    }

    /// Notes that the disk missed the time limit (`true`), or has answered after all (`false`).
    pub(super) fn set_late(&self, late: bool) {
        self.late.store(late, Relaxed);
    }

    /// The state directory, for messages.
    pub(super) fn dir(&self) -> &Path {
        &self.config.dir
    }

    /// Starts a search for uploads that dead processes left.
    ///
    /// # Errors
    /// The directory can't be read.
    pub(super) fn search(&self, now: SystemTime) -> io::Result<Search> {
        Ok(Search { entries: fs::read_dir(&self.folder)?, now })
    }

    /// The next uploads of dead processes to this bucket, below this prefix: at most [`LEFT_MAX`], and none at the end. Removes unreadable
    /// entries that are older than [`TORN_AFTER`].
    pub(super) fn left_behind(&self, search: &mut Search) -> Vec<Left> {
        self.left_behind_on(kind, search)
    }

    /// Finds uploads like [`Journal::left_behind`], on a file system of the type that `kind` returns.
    fn left_behind_on(&self, kind: impl Fn(&File) -> Option<u32>, search: &mut Search) -> Vec<Left> {
        let now = search.now;
        let paths = search.entries.by_ref().filter_map(|entry| Some(entry.ok()?.path()));
        let named = paths.filter(|path| path.extension().is_some_and(|it| it == ENDING));
        named.filter_map(|path| self.take(path, &kind, now)).take(LEFT_MAX).collect()
    }

    fn take(&self, path: PathBuf, kind: impl Fn(&File) -> Option<u32>, now: SystemTime) -> Option<Left> {
        let locked = Locked::take(&path)?;
        let read = locked.text(ENTRY_MAX);
        let modified = locked.metadata().and_then(|it| it.modified());
        let is_local = kind(&locked).is_some_and(|kind| LOCAL.contains(&kind));
        let entry = Entry { path, locked };
        let record = read.ok().and_then(|text| serde_json::from_str::<Record>(&text).ok());
        let Some(record) = record else {
            let age = modified.ok().and_then(|at| now.duration_since(at).ok());
            if age.is_some_and(|age| age >= TORN_AFTER) {
                tracing::debug!(path = %entry.path.display(), "an entry of the journal is torn: removed");
                entry.remove();
            }
            return None;
        };
        let is_ours = record.endpoint == self.config.endpoint
            && record.bucket == self.config.bucket
            && record.key.starts_with(&self.config.prefix);
        let is_known = is_local || (!self.machine.is_empty() && record.machine == self.machine);
        let is_dead = record.owner.is_over(&self.process, is_known);
        let upload = UploadId { key: ObjectKey::new(record.key), id: record.upload_id };
        (is_ours && is_dead).then_some(Left { upload, entry })
    }
}

impl Entry {
    /// Removes the entry of an upload that has ended.
    pub(super) fn remove(self) {
        Self::remove_file(&self.path);
    }

    fn remove_file(path: &Path) {
        if let Err(error) = fs::remove_file(path) {
            tracing::debug!(path = %path.display(), %error, "an entry of the journal stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FlockOperation, flock};

    use super::*;

    /// All uploads of dead processes, taken by one process.
    fn all_left(journal: &Journal) -> Vec<Left> {
        let mut search = journal.search(SystemTime::now()).unwrap();
        let mut all = Vec::new();
        loop {
            let some = journal.left_behind(&mut search);
            if some.is_empty() {
                return all;
            }
            assert!(some.len() <= LEFT_MAX);
            all.extend(some);
        }
    }

    fn config(dir: &Path) -> Config {
        Config {
            dir: dir.to_owned(),
            asked: true,
            endpoint: "http://store".into(),
            bucket: "bucket".into(),
            prefix: String::new(),
        }
    }

    fn upload(key: &str) -> UploadId {
        UploadId { key: key.into(), id: format!("id of {key}") }
    }

    /// The keys of uploads of dead processes. Takes none of them.
    fn found(config: &Config) -> Vec<String> {
        let left = all_left(&Journal::open(config.clone()).unwrap());
        let mut keys: Vec<_> = left.iter().map(|it| it.upload.key.as_str().to_owned()).collect();
        keys.sort();
        keys
    }

    /// Writes an entry as a process with this owner did that is gone.
    fn plant(config: &Config, key: &str, change: impl FnOnce(&mut Owner)) -> PathBuf {
        plant_record(config, key, |record| change(&mut record.owner))
    }

    fn plant_record(config: &Config, key: &str, change: impl FnOnce(&mut Record)) -> PathBuf {
        let journal = Journal::open(config.clone()).unwrap();
        let entry = journal.note(&upload(key)).unwrap();
        let mut record: Record = serde_json::from_str(&fs::read_to_string(&entry.path).unwrap()).unwrap();
        change(&mut record);
        let path = entry.path.with_file_name(format!("of {}.json", key.replace('/', "-")));
        fs::write(&path, serde_json::to_string(&record).unwrap()).unwrap();
        entry.remove();
        path
    }

    #[test]
    fn an_upload_of_a_process_that_lives_is_never_taken() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let journal = Journal::open(config.clone()).unwrap();
        let entry = journal.note(&upload("a")).unwrap();
        assert!(found(&config).is_empty(), "its lock is held");
        drop(entry);
        assert!(found(&config).is_empty(), "its process, this one, lives");
    }

    #[test]
    fn an_upload_is_noted_though_another_mount_reads_its_entry_unlocked() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let journal = Journal::open(config).unwrap();
        let looker = std::cell::OnceCell::new();
        let entry = journal.note_in(&upload("a"), |path| {
            let file = create(path)?;
            looker.get_or_init(|| {
                let looker = File::open(path).unwrap();
                flock(&looker, FlockOperation::NonBlockingLockExclusive).unwrap();
                looker
            });
            Ok(file)
        });
        let entry = entry.unwrap();
        assert!(fs::read_to_string(&entry.path).unwrap().contains("id of a"));
        assert_eq!(fs::read_dir(dir.path().join(FOLDER)).unwrap().count(), 1);
    }

    #[test]
    fn an_upload_of_a_past_boot_or_process_is_taken_by_one_mount_only() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        plant(&config, "another boot", |owner| owner.boot_id = "another".into());
        plant(&config, "the number is another's now", |owner| owner.start += 1);
        plant(&config, "gone", |owner| owner.pid = i32::MAX);
        plant(&config, "lives", |_| {});
        let all = ["another boot", "gone", "the number is another's now"];
        assert_eq!(found(&config), all);
        let left = all_left(&Journal::open(config.clone()).unwrap());
        assert!(found(&config).is_empty(), "another mount is at them");
        drop(left);
        assert_eq!(found(&config), all, "it gave them up");
        for left in all_left(&Journal::open(config.clone()).unwrap()) {
            assert_eq!(left.upload.id, format!("id of {}", left.upload.key.as_str()));
            left.entry.remove();
        }
        assert!(found(&config).is_empty());
    }

    #[test]
    fn all_entries_are_found_however_many_and_few_are_held_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let (many, one) = (2 * LEFT_MAX + 7, plant(&config, "one", |owner| owner.pid = i32::MAX));
        for n in 1..many {
            fs::copy(&one, one.with_file_name(format!("copy {n}.json"))).unwrap();
        }
        let journal = Journal::open(config).unwrap();
        let mut search = journal.search(SystemTime::now()).unwrap();
        let mut found = Vec::new();
        loop {
            let some = journal.left_behind(&mut search);
            if some.is_empty() {
                break;
            }
            found.push(some.len());
            some.into_iter().for_each(|left| left.entry.remove());
        }
        assert_eq!(found, [LEFT_MAX, LEFT_MAX, 7]);
        assert_eq!(fs::read_dir(dir.path().join(FOLDER)).unwrap().count(), 0);
    }

    #[test]
    fn an_upload_of_another_machine_is_left_alone_where_a_lock_proves_nothing() {
        const NFS: u32 = 0x6969;
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let plant = |key: &str, machine: Option<&str>| {
            plant_record(&config, key, |record| {
                record.machine = machine.unwrap_or("this").to_owned();
                record.owner.boot_id = "another".into();
            })
        };
        plant("another boot of this machine", None);
        plant("another machine", Some("that"));
        let old = plant("an older release's", Some(""));
        let text = fs::read_to_string(&old).unwrap();
        fs::write(&old, text.replace("\"machine\":\"\",", "")).unwrap();
        assert_ne!(text, fs::read_to_string(&old).unwrap());
        let found = |machine: &str, kind: Option<u32>| {
            let journal = Journal { machine: machine.into(), ..Journal::open(config.clone()).unwrap() };
            let left = journal.left_behind_on(|_| kind, &mut journal.search(SystemTime::now()).unwrap());
            let mut keys: Vec<_> = left.iter().map(|it| it.upload.key.as_str().to_owned()).collect();
            keys.sort();
            keys
        };
        let all = ["an older release's", "another boot of this machine", "another machine"];
        for kind in [Some(NFS), None] {
            assert_eq!(found("this", kind), ["another boot of this machine"], "{kind:?}");
            assert!(
                found("", kind).is_empty(),
                "{kind:?}: a process that does not know its machine owns no entry"
            );
        }
        for kind in LOCAL {
            assert_eq!(found("this", Some(kind)), all, "{kind:x}");
            assert_eq!(found("", Some(kind)), all, "{kind:x}");
        }
    }

    #[test]
    fn uploads_to_other_stores_buckets_and_prefixes_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let ours = config(dir.path());
        plant(&ours, "p/a", |owner| owner.boot_id = "another".into());
        assert!(found(&Config { endpoint: "http://other".into(), ..ours.clone() }).is_empty());
        assert!(found(&Config { bucket: "other".into(), ..ours.clone() }).is_empty());
        assert!(found(&Config { prefix: "q/".into(), ..ours.clone() }).is_empty());
        assert_eq!(found(&Config { prefix: "p/".into(), ..ours }), ["p/a"]);
    }

    #[test]
    fn an_entry_that_was_torn_in_half_goes_and_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let torn = plant(&config, "torn", |owner| owner.boot_id = "another".into());
        let text = fs::read(&torn).unwrap();
        plant(&config, "whole", |owner| owner.boot_id = "another".into());
        for len in [0, 1, text.len() / 2, text.len() - 1] {
            fs::write(&torn, &text[..len]).unwrap();
            assert_eq!(found(&config), ["whole"], "{len} bytes");
            assert!(torn.exists(), "it may be half written by a process that lives");
            let old = SystemTime::now() - TORN_AFTER;
            File::options().write(true).open(&torn).unwrap().set_modified(old).unwrap();
            assert_eq!(found(&config), ["whole"], "{len} bytes");
            assert!(!torn.exists());
        }
    }

    #[test]
    fn what_is_no_entry_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let folder = dir.path().join(FOLDER);
        fs::create_dir_all(folder.join("directory.json")).unwrap();
        fs::write(folder.join("note.txt"), "").unwrap();
        let outside = dir.path().join("outside");
        fs::write(&outside, "").unwrap();
        std::os::unix::fs::symlink(&outside, folder.join("link.json")).unwrap();
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            folder.join("pipe.json"),
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        )
        .unwrap();
        assert!(found(&config).is_empty());
        assert!(outside.exists());
    }
}
