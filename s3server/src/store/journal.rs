//! Metadata on disk: one line per object version, appended before the rename that makes the version visible.
//!
//! Each line names its file by identity. A crash before the rename leaves a line without a file, which is ignored; a crash after it leaves
//! a complete object: bytes and metadata of different versions never mix. The server does not sync: a power failure may lose the last
//! writes, as with any freshly copied file.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::meta::{Identity, Meta};

/// Most lines of old versions per existing object; with more the journal is rewritten.
const DEAD_PER_LIVE_MAX: usize = 3;
/// Number of lines up to which the journal is never rewritten while the server runs.
const REWRITE_FLOOR: usize = 10_000;

#[derive(Serialize, Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    key: std::borrow::Cow<'a, str>,
    file: Identity,
    meta: std::borrow::Cow<'a, Meta>,
}

/// An open journal, positioned at its end.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    lines: usize,
}

/// The content of a journal: the versions of each key, newest last.
pub(crate) type Remembered = HashMap<String, Vec<(Identity, Arc<Meta>)>>;

impl Journal {
    /// Opens the journal, or creates it if it is missing, and reads it. Skips incomplete lines.
    pub(crate) fn open(path: &Path) -> io::Result<(Self, Remembered)> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(e),
        };
        let mut remembered = Remembered::new();
        let mut lines = 0;
        for line in text.split(|&b| b == b'\n').filter(|l| !l.is_empty()) {
            lines += 1;
            if let Ok(line) = serde_json::from_slice::<Line<'_>>(line) {
                let version = (line.file, Arc::new(line.meta.into_owned()));
                remembered.entry(line.key.into_owned()).or_default().push(version);
            }
        }
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        if text.last().is_some_and(|&b| b != b'\n') {
            // A crash cut the last line short: the next line must begin on a new one.
            file.write_all(b"\n")?;
        }
        Ok((Self { path: path.to_owned(), file, lines }, remembered))
    }

    /// Appends a line, in one write.
    pub(crate) fn append(&mut self, key: &str, file: Identity, meta: &Meta) -> io::Result<()> {
        let line = encode(key, file, meta)?;
        self.file.write_all(&line)?;
        self.lines += 1;
        Ok(())
    }

    /// Whether most lines belong to old versions, so a rewrite is due.
    pub(crate) fn is_stale(&self, live: usize) -> bool {
        self.lines > REWRITE_FLOOR && self.lines > live.saturating_mul(1 + DEAD_PER_LIVE_MAX)
    }

    /// Rewrites the journal with the present versions only, by way of a temporary file.
    pub(crate) fn rewrite<'a>(
        &mut self,
        live: impl Iterator<Item = (&'a str, Identity, &'a Meta)>,
    ) -> io::Result<()> {
        let temporary = self.path.with_extension("new");
        let mut out = BufWriter::new(File::create(&temporary)?);
        let mut lines = 0;
        for (key, file, meta) in live {
            out.write_all(&encode(key, file, meta)?)?;
            lines += 1;
        }
        out.flush()?;
        drop(out);
        fs::rename(&temporary, &self.path)?;
        self.file = OpenOptions::new().append(true).open(&self.path)?;
        self.lines = lines;
        Ok(())
    }
}

fn encode(key: &str, file: Identity, meta: &Meta) -> io::Result<Vec<u8>> {
    let mut line =
        serde_json::to_vec(&Line { key: key.into(), file, meta: std::borrow::Cow::Borrowed(meta) })?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(etag: &str) -> Meta {
        Meta { etag: etag.into(), ..Meta::default() }
    }

    fn identity(inode: u64) -> Identity {
        Identity { inode, size: 1, mtime_ns: 2 }
    }

    #[test]
    fn every_key_survives_a_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let (mut journal, _) = Journal::open(&path).unwrap();
        for (i, key) in ["a", "nul\0", "new\nline", "\"quoted\"", "é"].iter().enumerate() {
            journal.append(key, identity(i as u64), &meta(key)).unwrap();
        }
        let (_, remembered) = Journal::open(&path).unwrap();
        assert_eq!(remembered.len(), 5);
        assert_eq!(remembered["new\nline"][0].1.etag, "new\nline");
    }

    #[test]
    fn a_line_cut_short_is_left_out_and_does_not_spoil_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let (mut journal, _) = Journal::open(&path).unwrap();
        journal.append("a", identity(1), &meta("1")).unwrap();
        journal.append("b", identity(2), &meta("2")).unwrap();
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 5]).unwrap();
        let (mut journal, remembered) = Journal::open(&path).unwrap();
        assert!(remembered.contains_key("a") && !remembered.contains_key("b"));
        journal.append("c", identity(3), &meta("3")).unwrap();
        let (_, remembered) = Journal::open(&path).unwrap();
        assert!(remembered.contains_key("a") && remembered.contains_key("c"));
    }

    #[test]
    fn a_rewrite_keeps_the_living_and_goes_on_appending() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let (mut journal, _) = Journal::open(&path).unwrap();
        (0..10).for_each(|i| journal.append("a", identity(i), &meta("x")).unwrap());
        let last = meta("last");
        journal.rewrite([("a", identity(10), &last)].into_iter()).unwrap();
        journal.append("b", identity(11), &meta("y")).unwrap();
        let (_, remembered) = Journal::open(&path).unwrap();
        assert_eq!(remembered["a"], [(identity(10), Arc::new(last))]);
        assert!(remembered.contains_key("b"));
    }
}
