//! Notes of renames in progress, in the state directory: one file each, with which the next mount continues a rename whose process was
//! killed.
//!
//! A note contains both names and all objects, and is durable before the first copy. Lines are added for copies that are made and uploads
//! that are created, and a durable one when the deletes begin. Nothing here makes a request.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use foldhash::HashMap;
use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};

use crate::object::{ETag, ObjectKey};
use crate::owner::{LOCAL, Locked, Owner, create, kind, machine};
use crate::s3::UploadId;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The folder of the notes in the state directory.
const FOLDER: &str = "renames";
/// The extension of a note's file.
const ENDING: &str = "jsonl";
/// Most notes that one start reads. The others wait for the next start.
const NOTES_MAX: usize = 1000;
/// Most bytes of a note: a name of 1 KiB for each of 100,000 objects, and as much again. A longer note stays unread, and the log names it.
const NOTE_MAX: u64 = 512 << 20;

/// The directory of the notes, and the bucket of this mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotesConfig {
    /// The state directory, which is created if it is missing.
    pub dir: PathBuf,
    /// URL of the store; empty for AWS.
    pub endpoint: String,
    /// Name of the bucket.
    pub bucket: String,
    /// Prefix of the keys whose renames this mount may continue.
    pub prefix: String,
}

/// The notes of this process.
#[derive(Debug)]
pub(super) struct Notes {
    config: NotesConfig,
    folder: PathBuf,
    process: Owner,
    machine: String,
    count: AtomicU64,
}

/// The first line of a note.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    endpoint: String,
    bucket: String,
    from: String,
    to: String,
    machine: String,
    #[serde(flatten)]
    owner: Owner,
}

/// A later line of a note.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Line {
    /// An object of the rename: the part of its key behind the old name, and its version.
    Object(String, String),
    /// The list of objects is complete.
    Begun,
    /// A copy of the object with this number, and the copy's version.
    Copied(usize, String),
    /// An upload in progress: key and id.
    Upload(String, String),
    /// All copies are proven; the old names are being deleted.
    Deleting,
}

/// The note of one rename. The lock on it shows that this process lives.
#[derive(Debug)]
pub(super) struct Note {
    path: PathBuf,
    file: Locked,
}

/// A rename of a dead process, to be continued. The lock keeps other processes from taking it, too.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) note: Note,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) progress: Progress,
}

/// The progress of a rename, parsed from its note.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// The objects' names behind the old one, with their versions.
    pub(super) objects: Vec<(String, ETag)>,
    pub(super) begun: bool,
    /// The versions of the copies, by the number of their object.
    pub(super) copied: HashMap<usize, ETag>,
    pub(super) uploads: Vec<UploadId>,
    pub(super) deleting: bool,
}

impl Notes {
    /// Creates the directory if it is missing, and checks that it can be written.
    ///
    /// # Errors
    /// An error of the disk, or of `/proc`.
    pub(super) fn open(config: NotesConfig) -> io::Result<Self> {
        let folder = config.dir.join(FOLDER);
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        access(&folder, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK)?;
        let process = Owner::this().map_err(io::Error::other)?;
        Ok(Self { config, folder, process, machine: machine(), count: AtomicU64::new(0) })
    }

    /// Writes a note with both names and all objects, durably.
    ///
    /// # Errors
    /// An error of the disk.
    pub(super) fn begin(&self, from: &str, to: &str, objects: &[(String, ETag)]) -> io::Result<Note> {
        let head = Head {
            endpoint: self.config.endpoint.clone(),
            bucket: self.config.bucket.clone(),
            from: from.to_owned(),
            to: to.to_owned(),
            machine: self.machine.clone(),
            owner: self.process.clone(),
        };
        let mut text = serde_json::to_string(&head)? + "\n";
        for (name, etag) in objects {
            text += &(serde_json::to_string(&Line::Object(name.clone(), etag.as_str().to_owned()))? + "\n");
        }
        text += &(serde_json::to_string(&Line::Begun)? + "\n");
        let Owner { boot_id, pid, start } = &self.process;
        let (path, file) = loop {
            let number = self.count.fetch_add(1, Relaxed);
            let path = self.folder.join(format!("{boot_id}-{pid}-{start}-{number}.{ENDING}"));
            match create(&path) {
                // Another mount of this process has a note of this name.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < NOTES_MAX as u64 => {}
                created => break (path, created?),
            }
        };
        let note = Note { file: Locked::new(file)?, path };
        let written = (&*note.file).write_all(text.as_bytes()).and_then(|()| note.file.sync_all());
        match written.and_then(|()| File::open(&self.folder)?.sync_all()) {
            Ok(()) => Ok(note),
            Err(error) => {
                note.remove();
                Err(error)
            }
        }
    }

    /// Finds the renames of dead processes in this bucket, below this prefix.
    ///
    /// # Errors
    /// The directory can't be read.
    pub(super) fn left_behind(&self) -> io::Result<Vec<Left>> {
        let entries = fs::read_dir(&self.folder)?.take(NOTES_MAX);
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let named = paths.filter(|path| path.extension().is_some_and(|it| it == ENDING));
        Ok(named.filter_map(|path| self.take(path)).collect())
    }

    fn take(&self, path: PathBuf) -> Option<Left> {
        let file = Locked::take(&path)?;
        if file.metadata().is_ok_and(|about| about.len() > NOTE_MAX) {
            tracing::warn!(path = %path.display(), "the note of a rename is too long to be read: both names may have files, compare them");
            return None;
        }
        let text = file.text(NOTE_MAX).ok()?;
        let is_local = kind(&file).is_some_and(|kind| LOCAL.contains(&kind));
        let note = Note { path, file };
        let (head, lines) = text.split_once('\n')?;
        let head: Head = serde_json::from_str(head).ok()?;
        let ours = |name: &str| name.starts_with(&self.config.prefix);
        let is_ours = head.endpoint == self.config.endpoint
            && head.bucket == self.config.bucket
            && ours(&head.from)
            && ours(&head.to);
        let is_known = is_local || (!self.machine.is_empty() && head.machine == self.machine);
        if !is_ours || !head.owner.is_over(&self.process, is_known) {
            return None;
        }
        let progress = Progress::read(lines);
        if !progress.begun {
            // The process was killed before its first request.
            note.remove();
            return None;
        }
        Some(Left { note, from: head.from, to: head.to, progress })
    }
}

impl Progress {
    /// Parses the lines of a note. Pure. Stops at a torn line; the facts behind it are found out with requests.
    fn read(lines: &str) -> Self {
        let mut progress = Self::default();
        for line in lines.lines().map_while(|line| serde_json::from_str(line).ok()) {
            match line {
                Line::Object(name, etag) => progress.objects.push((name, ETag::new(etag))),
                Line::Begun => progress.begun = true,
                Line::Copied(number, etag) => _ = progress.copied.insert(number, ETag::new(etag)),
                Line::Upload(key, id) => progress.uploads.push(UploadId { key: ObjectKey::new(key), id }),
                Line::Deleting => progress.deleting = true,
            }
        }
        progress
    }
}

impl Note {
    /// Adds lines. With `sync` they are durable on return.
    ///
    /// # Errors
    /// An error of the disk.
    pub(super) fn add(&self, lines: &[Line], sync: bool) -> io::Result<()> {
        let mut text = String::new();
        for line in lines {
            text += &(serde_json::to_string(line)? + "\n");
        }
        (&*self.file).write_all(text.as_bytes())?;
        if sync { self.file.sync_data() } else { Ok(()) }
    }

    /// Removes the note of a rename that has ended.
    pub(super) fn remove(&self) {
        remove(&self.path);
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::debug!(path = %path.display(), %error, "the note of a rename stays");
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn config(dir: &Path) -> NotesConfig {
        NotesConfig {
            dir: dir.to_owned(),
            endpoint: String::new(),
            bucket: "bucket".into(),
            prefix: String::new(),
        }
    }

    /// Makes all notes belong to a process that is gone.
    pub(crate) fn kill_owners(dir: &Path) {
        for entry in fs::read_dir(dir.join(FOLDER)).unwrap() {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            let (head, rest) = text.split_once('\n').unwrap();
            let mut head: Head = serde_json::from_str(head).unwrap();
            head.owner.pid = i32::MAX;
            fs::write(&path, serde_json::to_string(&head).unwrap() + "\n" + rest).unwrap();
        }
    }

    fn objects() -> Vec<(String, ETag)> {
        vec![("a".into(), ETag::new("\"1\"")), ("b/\"c\n".into(), ETag::new("\"2\""))]
    }

    #[test]
    fn a_note_tells_the_next_mount_how_far_a_rename_came() {
        let dir = tempfile::tempdir().unwrap();
        let notes = Notes::open(config(dir.path())).unwrap();
        let note = notes.begin("from/", "to/", &objects()).unwrap();
        let lines = [Line::Copied(1, "\"3\"".into()), Line::Upload("to/a".into(), "id".into())];
        note.add(&lines, false).unwrap();
        note.add(&[Line::Deleting], true).unwrap();
        assert!(notes.left_behind().unwrap().is_empty(), "its process lives");
        drop(note);
        assert!(notes.left_behind().unwrap().is_empty(), "its process lives, wherever its lock is");
        kill_owners(dir.path());
        let other = NotesConfig { bucket: "other".into(), ..config(dir.path()) };
        assert!(Notes::open(other).unwrap().left_behind().unwrap().is_empty());
        let left = notes.left_behind().unwrap();
        assert!(notes.left_behind().unwrap().is_empty(), "it is taken");
        let Left { from, to, progress, .. } = &left[0];
        assert_eq!((from.as_str(), to.as_str()), ("from/", "to/"));
        let upload = UploadId { key: ObjectKey::new("to/a"), id: "id".into() };
        let expected = Progress {
            objects: objects(),
            begun: true,
            copied: [(1, ETag::new("\"3\""))].into_iter().collect(),
            uploads: vec![upload],
            deleting: true,
        };
        assert_eq!(*progress, expected);
        left[0].note.remove();
        drop(left);
        assert!(notes.left_behind().unwrap().is_empty());
    }

    #[test]
    fn a_torn_note_is_read_as_far_as_it_goes() {
        let dir = tempfile::tempdir().unwrap();
        let notes = Notes::open(config(dir.path())).unwrap();
        let note = notes.begin("from/", "to/", &objects()).unwrap();
        note.add(&[Line::Copied(0, "\"3\"".into()), Line::Deleting], true).unwrap();
        drop(note);
        kill_owners(dir.path());
        let path = fs::read_dir(dir.path().join(FOLDER)).unwrap().next().unwrap().unwrap().path();
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 5]).unwrap();
        let left = notes.left_behind().unwrap();
        assert_eq!((left[0].progress.copied.len(), left[0].progress.deleting), (1, false));
        drop(left);
        let begun = whole.find("\"begun\"").unwrap();
        fs::write(&path, &whole[..begun]).unwrap();
        assert!(notes.left_behind().unwrap().is_empty());
        assert!(!path.exists(), "nothing was begun");
    }
}
