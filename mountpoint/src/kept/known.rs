//! Known attributes, by key and version: in memory, and in a file of the state directory for the next mount.
//!
//! A fact about a version never changes, so the file only grows, by one line per fact. A mount that finds a long file rewrites it at its
//! start. Damaged lines are skipped, and the engine asks the store again.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use foldhash::HashMap;
use serde::{Deserialize, Serialize};

use super::words::{Kept, Words};
use crate::object::{ETag, ObjectId, ObjectKey, Second};
use crate::sync::{Arc, Mutex};

/// The folder for files with attributes, in the state directory.
const FOLDER: &str = "attributes";
/// Most objects in memory, about 300 bytes each. Beyond it all are dropped, and the engine asks the store again. Doubling it doubles the
/// memory of a mount that reads that many files.
const KNOWN_MAX: usize = 200_000;
/// Longest line of the file, in bytes. A longer one is skipped.
const LINE_MAX: usize = 16 << 10;

/// The directory of a bucket's file of attributes, and its store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileConfig {
    /// The state directory, which is created if it is missing.
    pub dir: PathBuf,
    /// URL of the store; empty for AWS.
    pub endpoint: String,
    /// Name of the bucket.
    pub bucket: String,
}

/// The known attributes of one mount.
#[derive(Debug, Default)]
pub(super) struct Known {
    facts: Mutex<HashMap<ObjectKey, Fact>>,
    file: Option<Mutex<File>>,
}

#[derive(Clone, Debug)]
struct Fact {
    etag: ETag,
    stored: When,
    kept: Arc<Kept>,
}

/// The time at which a version was stored, in seconds, as far as the engine knows it.
#[derive(Clone, Copy, Debug)]
enum When {
    /// The time that the store returned for the object.
    Exact(Second),
    /// The time in the answer to the upload; the object's may differ by [`ABOUT`].
    About(Second),
    Unknown,
}

/// Most seconds between the answer to an upload and the time of its object.
const ABOUT: u64 = 2;

impl When {
    /// Whether a version with this time may be the known one.
    fn may_be(self, second: Option<Second>) -> bool {
        match (self, second) {
            (Self::Unknown, _) | (_, None) => true,
            (Self::Exact(own), Some(second)) => own == second,
            (Self::About(own), Some(second)) => own.get().abs_diff(second.get()) <= ABOUT,
        }
    }
}

/// A line of the file: the attributes of one version.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    key: String,
    etag: String,
    /// Time of the version, in seconds since 1970.
    modified: i64,
    words: Words,
}

impl Known {
    /// Reads the facts that earlier mounts on this machine learned. Without a usable file, facts are kept in memory only.
    pub(super) fn open(config: Option<FileConfig>) -> Self {
        let Some(config) = config else { return Self::default() };
        match read(&config) {
            Ok((facts, file)) => Self { facts: Mutex::new(facts), file: Some(Mutex::new(file)) },
            Err(error) => {
                tracing::warn!(dir = %config.dir.display(), %error, "attributes can't be kept in --state-dir: the next mount asks the store for them again");
                Self::default()
            }
        }
    }

    pub(super) fn get(&self, id: &ObjectId) -> Option<Arc<Kept>> {
        let mut facts = self.facts.lock();
        let fact = facts.get_mut(&id.key)?;
        if !fact.etag.may_be(id.etag.as_str()) || !fact.stored.may_be(id.modified) {
            return None;
        }
        let kept = Arc::clone(&fact.kept);
        // The answer to the upload did not have the exact time. Now the time is known, so the fact is written for later mounts.
        if let (When::About(_) | When::Unknown, Some(second)) = (fact.stored, id.modified) {
            fact.stored = When::Exact(second);
            drop(facts);
            self.write(id, &kept);
        }
        Some(kept)
    }

    /// Learns the attributes of a version from its user metadata.
    pub(super) fn learn(&self, id: &ObjectId, words: &Words) -> Arc<Kept> {
        let kept = Arc::new(Kept::of(words));
        let stored = id.modified.map_or(When::Unknown, When::Exact);
        self.put(id, stored, Arc::clone(&kept));
        self.write(id, &kept);
        kept
    }

    /// Learns the attributes of a new version, from the approximate time of its upload.
    pub(super) fn stored(&self, id: &ObjectId, about: Option<Second>, kept: Kept) {
        self.put(id, about.map_or(When::Unknown, When::About), Arc::new(kept));
    }

    /// Learns that a version was copied to another key, with its attributes.
    pub(super) fn moved(&self, from: &ObjectId, to: &ObjectId) {
        if let Some(kept) = self.get(from) {
            let about = to.modified.map_or(When::Unknown, When::About);
            self.put(to, about, kept);
        }
    }

    fn put(&self, id: &ObjectId, stored: When, kept: Arc<Kept>) {
        let mut facts = self.facts.lock();
        if facts.len() >= KNOWN_MAX && !facts.contains_key(&id.key) {
            facts.clear();
        }
        facts.insert(id.key.clone(), Fact { etag: id.etag.clone(), stored, kept });
    }

    /// Writes a line for the next mount. A line without a time would also apply to a later version with the same ETag, so none is written.
    fn write(&self, id: &ObjectId, kept: &Kept) {
        let (Some(file), Some(second)) = (&self.file, id.modified) else { return };
        let Ok(text) = line(&id.key, &id.etag, second, kept) else { return };
        // One call writes the line, so lines of two mounts do not mix. If the write fails, the next mount asks the store again.
        if let Err(error) = file.lock().write_all(&text) {
            tracing::debug!(%error, "an attribute is not kept in the state directory");
        }
    }
}

fn line(key: &ObjectKey, etag: &ETag, second: Second, kept: &Kept) -> io::Result<Vec<u8>> {
    let mut words = Words::new();
    kept.say(&mut words);
    let (key, etag) = (key.as_str().to_owned(), etag.as_str().to_owned());
    let mut text = serde_json::to_vec(&Line { key, etag, modified: second.get(), words })?;
    text.push(b'\n');
    Ok(text)
}

/// Reads the facts of the file, and opens the file for more lines.
fn read(config: &FileConfig) -> io::Result<(HashMap<ObjectKey, Fact>, File)> {
    let folder = config.dir.join(FOLDER);
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    let path = folder.join(name(config));
    let mut facts = HashMap::default();
    let mut lines = 0;
    match File::open(&path) {
        Ok(file) => {
            for line in BufReader::new(file).split(b'\n') {
                let line = line?;
                lines += 1;
                if line.len() > LINE_MAX || facts.len() >= KNOWN_MAX {
                    continue;
                }
                let Ok(Line { key, etag, modified, words }) = serde_json::from_slice(&line) else { continue };
                let kept = Arc::new(Kept::of(&words));
                let Some(second) = Second::from_epoch(modified) else { continue };
                let fact = Fact { etag: ETag::new(etag), stored: When::Exact(second), kept };
                facts.insert(ObjectKey::new(key), fact);
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if lines > 2 * facts.len() + 1000 {
        write_anew(&path, &facts)?;
    }
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
    Ok((facts, file))
}

/// Rewrites the file without outdated lines. A line that another mount adds meanwhile is lost, and its fact costs one more request.
fn write_anew(path: &Path, facts: &HashMap<ObjectKey, Fact>) -> io::Result<()> {
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    let mut out = io::BufWriter::new(file);
    for (key, fact) in facts {
        if let When::Exact(second) = fact.stored {
            out.write_all(&line(key, &fact.etag, second, &fact.kept)?)?;
        }
    }
    out.flush()?;
    fs::rename(&new, path)
}

/// Name of the file, unique for each store and bucket.
fn name(config: &FileConfig) -> String {
    let safe = |text: &str| -> String {
        let keeps = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
        let spelled = text.chars().map(|c| if keeps(c) { c } else { '_' });
        spelled.collect()
    };
    let sum = crate::checksum::Checksum::of(
        crate::checksum::ChecksumAlgorithm::Crc32c,
        format!("{}\n{}", config.endpoint, config.bucket).as_bytes(),
    );
    let mut shown = safe(&config.bucket);
    shown.truncate(100);
    format!("{shown}-{:08x}.jsonl", sum.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &Path) -> FileConfig {
        FileConfig { dir: dir.to_owned(), endpoint: "http://store".into(), bucket: "bucket".into() }
    }

    fn id(etag: &str, second: i64) -> ObjectId {
        ObjectId { key: "k".into(), etag: ETag::new(etag), modified: Second::from_epoch(second) }
    }

    fn mode(mode: &str) -> Words {
        [("mode".to_owned(), mode.to_owned())].into()
    }

    #[test]
    fn what_was_learned_of_a_version_is_known_to_the_next_mount() {
        let dir = tempfile::tempdir().unwrap();
        let known = Known::open(Some(config(dir.path())));
        known.learn(&id("\"a\"", 7), &mode("33261"));
        for known in [known, Known::open(Some(config(dir.path())))] {
            assert_eq!(known.get(&id("a", 7)).unwrap().mode, Some(0o755));
            assert!(known.get(&id("a", 8)).is_none() && known.get(&id("b", 7)).is_none());
        }
        let other = FileConfig { bucket: "other".into(), ..config(dir.path()) };
        assert!(Known::open(Some(other)).get(&id("a", 7)).is_none());
    }

    #[test]
    fn an_upload_is_known_by_about_its_second_until_the_exact_one_is() {
        let dir = tempfile::tempdir().unwrap();
        let known = Known::open(Some(config(dir.path())));
        let kept = || Kept { mode: Some(0o600), ..Kept::default() };
        known.stored(&id("a", 0), Second::from_epoch(7), kept());
        assert!(known.get(&id("a", 20)).is_none(), "another client stored the same bytes later");
        assert!(Known::open(Some(config(dir.path()))).get(&id("a", 7)).is_none());
        assert_eq!(known.get(&id("a", 8)).as_deref(), Some(&kept()));
        assert!(known.get(&id("a", 7)).is_none(), "it is the one of second 8");
        assert_eq!(Known::open(Some(config(dir.path()))).get(&id("a", 8)).as_deref(), Some(&kept()));
        known.moved(&id("a", 8), &ObjectId { key: "new".into(), ..id("a", 9) });
        assert!(known.get(&ObjectId { key: "new".into(), ..id("a", 9) }).is_some());
    }

    #[test]
    fn damaged_lines_are_passed_over_and_a_long_file_is_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FOLDER).join(name(&config(dir.path())));
        let known = Known::open(Some(config(dir.path())));
        for i in 0..3_000 {
            known.learn(&id("a", 7 + i % 2), &mode("33261"));
        }
        drop(known);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, [b"{\"key\":\nx\n\n".as_slice(), &whole, b"{\"key\":\"cut"].concat()).unwrap();
        let known = Known::open(Some(config(dir.path())));
        assert_eq!(known.get(&id("a", 8)).unwrap().mode, Some(0o755));
        assert!(fs::metadata(&path).unwrap().len() < 1000 && whole.len() > 100_000);
    }
}
