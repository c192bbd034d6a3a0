//! A multipart upload: a folder with one file per part, a description and a journal of the parts.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::SeekFrom;
use serde::{Deserialize, Serialize};

use super::error::{Error, Result};
use super::journal::Journal;
use super::meta::{Identity, Meta};
use super::staged::Staged;
use crate::sums::{Algorithm, Sum};

/// Smallest part in bytes, except the last one.
const PART_MIN: u64 = 5 << 20;
/// Bytes per call of a copy that the kernel can't make between the files itself.
const COPY_PIECE: usize = 1 << 20;

/// The arguments of CreateMultipartUpload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NewUpload {
    pub(crate) bucket: String,
    pub(crate) key: String,
    /// Headers, user metadata and storage class for the object.
    pub(crate) meta: Meta,
    pub(crate) algorithm: Option<Algorithm>,
    /// Whether the object gets a checksum of its bytes instead of a composite.
    pub(crate) full_object: bool,
}

#[derive(Serialize, Deserialize)]
struct Description {
    new: NewUpload,
    initiated_ms: u64,
}

/// An upload in progress.
#[derive(Debug)]
pub(crate) struct Upload {
    id: String,
    folder: PathBuf,
    new: NewUpload,
    initiated_ms: u64,
    parts: Mutex<Parts>,
    completing: Mutex<()>,
}

#[derive(Debug)]
struct Parts {
    stored: BTreeMap<u16, Part>,
    journal: Journal,
    /// Whether the upload has ended and its folder is being removed: later parts are refused.
    ended: bool,
}

/// A stored part.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) size: u64,
    pub(crate) modified: SystemTime,
    pub(crate) etag: String,
    pub(crate) sum: Option<Sum>,
}

/// A part in a Complete.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) number: u16,
    pub(crate) etag: Option<String>,
    pub(crate) sum: Option<Sum>,
}

impl Upload {
    pub(super) fn create(folder: PathBuf, id: String, new: NewUpload) -> io::Result<Self> {
        let initiated_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        fs::create_dir(&folder)?;
        let description = Description { new, initiated_ms };
        fs::write(folder.join("upload.json"), serde_json::to_vec(&description)?)?;
        let (journal, _) = Journal::open(&folder.join("parts"))?;
        let parts = Mutex::new(Parts { stored: BTreeMap::new(), journal, ended: false });
        let completing = Mutex::default();
        Ok(Self { id, folder, new: description.new, initiated_ms, parts, completing })
    }

    /// Opens the uploads that were in progress when the server ended. A folder without a complete description belongs to an
    /// upload that was not acknowledged, and is removed.
    pub(super) fn load_all(root: &Path) -> io::Result<BTreeMap<String, Arc<Self>>> {
        let mut uploads = BTreeMap::new();
        for found in fs::read_dir(root)? {
            let folder = found?.path();
            let Some(id) = folder.file_name().and_then(|n| n.to_str()).map(str::to_owned) else { continue };
            let description = fs::read(folder.join("upload.json")).ok();
            match description.and_then(|bytes| serde_json::from_slice::<Description>(&bytes).ok()) {
                Some(description) => {
                    let upload = Self::load(folder, id.clone(), description)?;
                    uploads.insert(id, Arc::new(upload));
                }
                None => fs::remove_dir_all(&folder)?,
            }
        }
        Ok(uploads)
    }

    fn load(folder: PathBuf, id: String, description: Description) -> io::Result<Self> {
        let (journal, remembered) = Journal::open(&folder.join("parts"))?;
        let mut stored = BTreeMap::new();
        for (name, versions) in &remembered {
            let (Ok(number), Ok(stat)) = (name.parse(), fs::metadata(folder.join(name))) else { continue };
            let identity = Identity::of(&stat);
            if let Some((_, meta)) = versions.iter().rev().find(|(file, _)| *file == identity) {
                stored.insert(number, Part::new(identity, meta));
            }
        }
        let parts = Mutex::new(Parts { stored, journal, ended: false });
        let (initiated_ms, completing) = (description.initiated_ms, Mutex::default());
        Ok(Self { id, folder, new: description.new, initiated_ms, parts, completing })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn bucket(&self) -> &str {
        &self.new.bucket
    }

    pub(crate) fn key(&self) -> &str {
        &self.new.key
    }

    pub(crate) fn started_with(&self) -> &NewUpload {
        &self.new
    }

    pub(crate) fn initiated(&self) -> SystemTime {
        UNIX_EPOCH + std::time::Duration::from_millis(self.initiated_ms)
    }

    /// The lock of the request that creates the object; others wait.
    pub(crate) fn completing(&self) -> MutexGuard<'_, ()> {
        self.completing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a part. It replaces an earlier part with the same number.
    pub(crate) fn store(&self, number: u16, staged: Staged, etag: String, sum: Sum) -> Result<Part> {
        let mut parts = self.lock();
        if parts.ended {
            return Err(Error::NoSuchUpload);
        }
        let storing = |source| Error::Io { what: "store the part", source };
        let identity = staged.identity().map_err(storing)?;
        let meta = Meta { etag, sum: Some(sum), ..Meta::default() };
        let name = number.to_string();
        parts.journal.append(&name, identity, &meta).map_err(storing)?;
        fs::rename(staged.path(), self.folder.join(&name)).map_err(storing)?;
        staged.moved();
        let part = Part::new(identity, &meta);
        parts.stored.insert(number, part.clone());
        Ok(part)
    }

    /// All stored parts, by number.
    pub(crate) fn parts(&self) -> Vec<(u16, Part)> {
        self.lock().stored.iter().map(|(&number, part)| (number, part.clone())).collect()
    }

    /// Compares the parts in a Complete with the stored ones, and opens the stored ones.
    pub(crate) fn choose(&self, wanted: &[Wanted]) -> Result<Vec<(Part, File)>> {
        let parts = self.lock();
        if parts.ended {
            return Err(Error::NoSuchUpload);
        }
        check_parts(&parts.stored, wanted)?;
        let open = |w: &Wanted| {
            let file = File::open(self.folder.join(w.number.to_string()))?;
            Ok((parts.stored[&w.number].clone(), file))
        };
        wanted.iter().map(open).collect::<io::Result<_>>().map_err(Error::io("open the parts"))
    }

    pub(super) fn remove(&self) -> io::Result<()> {
        self.lock().ended = true;
        fs::remove_dir_all(&self.folder)
    }
}

impl Part {
    fn new(identity: Identity, meta: &Meta) -> Self {
        Self {
            size: identity.size,
            modified: identity.modified(),
            etag: meta.etag.clone(),
            sum: meta.sum.clone(),
        }
    }
}

/// Checks that these parts make an object: ascending numbers, each stored with the named ETag and checksum, only the last one small.
fn check_parts(stored: &BTreeMap<u16, Part>, wanted: &[Wanted]) -> Result<()> {
    if wanted.is_empty() {
        return Err(Error::InvalidRequest("a Complete names at least one part".into()));
    }
    if !wanted.is_sorted_by(|a, b| a.number < b.number) {
        return Err(Error::InvalidPartOrder);
    }
    for (i, w) in wanted.iter().enumerate() {
        let part = stored.get(&w.number).ok_or(Error::InvalidPart(w.number))?;
        let etag_differs = w.etag.as_ref().is_none_or(|etag| *etag != part.etag);
        let sum_differs = w.sum.is_some() && w.sum != part.sum;
        if etag_differs || sum_differs {
            return Err(Error::InvalidPart(w.number));
        }
        if i + 1 < wanted.len() && part.size < PART_MIN {
            return Err(Error::EntityTooSmall { part: w.number, size: part.size });
        }
    }
    Ok(())
}

/// Copies `size` bytes of `from` into `to` at an offset, inside the kernel if the file system supports it. Holes stay holes.
pub(crate) fn append(from: &File, from_at: u64, to: &File, to_at: u64, size: u64) -> io::Result<()> {
    let end = from_at + size;
    let mut at = from_at;
    while let Some(data) = data_of(from, at, end) {
        copy(from, data.start, to, to_at + (data.start - from_at), data.end - data.start)?;
        at = data.end;
    }
    // No bytes are copied for a hole at the end, so the length is set here.
    if from.metadata()?.len() < end {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if to.metadata()?.len() < to_at + size {
        to.set_len(to_at + size)?;
    }
    Ok(())
}

/// The next range of data in a file, from `at` to `end`; the whole range on a file system that does not report holes.
fn data_of(from: &File, at: u64, end: u64) -> Option<Range<u64>> {
    if at >= end {
        return None;
    }
    let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(rustix::io::Errno::NXIO) => return None,
        Err(_) => return Some(at..end),
    };
    let hole = rustix::fs::seek(from, SeekFrom::Hole(start)).unwrap_or(end);
    (start < end).then(|| start..hole.clamp(start, end))
}

fn copy(from: &File, from_at: u64, to: &File, to_at: u64, size: u64) -> io::Result<()> {
    let (mut source, mut target) = (from_at, to_at);
    let end = from_at + size;
    while source < end {
        let left = usize::try_from(end - source).unwrap_or(usize::MAX).min(1 << 30);
        match rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), left) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::XDEV | rustix::io::Errno::NOSYS | rustix::io::Errno::OPNOTSUPP) => {
                return append_by_hand(from, source, to, target, end - source);
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

fn append_by_hand(from: &File, from_at: u64, to: &File, to_at: u64, size: u64) -> io::Result<()> {
    let mut buffer = vec![0; COPY_PIECE];
    let mut done = 0;
    while done < size {
        let piece = usize::try_from(size - done).map_or(COPY_PIECE, |left| left.min(COPY_PIECE));
        from.read_exact_at(&mut buffer[..piece], from_at + done)?;
        to.write_all_at(&buffer[..piece], to_at + done)?;
        done += piece as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(size: u64) -> Part {
        Part { size, modified: UNIX_EPOCH, etag: "e".into(), sum: None }
    }

    fn wanted(numbers: &[u16]) -> Vec<Wanted> {
        numbers.iter().map(|&number| Wanted { number, etag: Some("e".into()), sum: None }).collect()
    }

    #[test]
    fn parts_must_be_there_in_order_and_large_enough() {
        let stored: BTreeMap<_, _> = [(1, part(PART_MIN)), (2, part(PART_MIN - 1)), (3, part(1))].into();
        assert!(check_parts(&stored, &wanted(&[1, 3])).is_ok());
        assert!(check_parts(&stored, &wanted(&[1, 2])).is_ok());
        assert!(matches!(check_parts(&stored, &wanted(&[2, 1])), Err(Error::InvalidPartOrder)));
        assert!(matches!(check_parts(&stored, &wanted(&[1, 1])), Err(Error::InvalidPartOrder)));
        assert!(matches!(check_parts(&stored, &wanted(&[1, 4])), Err(Error::InvalidPart(4))));
        let small = check_parts(&stored, &wanted(&[1, 2, 3]));
        assert!(matches!(small, Err(Error::EntityTooSmall { part: 2, .. })));
        assert!(matches!(check_parts(&stored, &[]), Err(Error::InvalidRequest(_))));
    }

    #[test]
    fn a_part_with_another_etag_is_refused() {
        let stored: BTreeMap<_, _> = [(1, part(1))].into();
        let mut named = wanted(&[1]);
        named[0].etag = Some("other".into());
        assert!(matches!(check_parts(&stored, &named), Err(Error::InvalidPart(1))));
    }

    #[test]
    fn a_piece_of_a_file_is_appended_either_way() {
        let from = tempfile::tempfile().unwrap();
        from.write_all_at(b"0123456789", 0).unwrap();
        for copy in [append, append_by_hand] {
            let to = tempfile::tempfile().unwrap();
            to.write_all_at(b"ab", 0).unwrap();
            copy(&from, 3, &to, 2, 4).unwrap();
            let mut found = [0; 6];
            to.read_exact_at(&mut found, 0).unwrap();
            assert_eq!(&found, b"ab3456");
        }
    }

    #[test]
    fn holes_of_a_file_are_appended_as_holes() {
        const MIB: u64 = 1 << 20;
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        from.write_all_at(b"begin", 0).unwrap();
        from.write_all_at(b"middle", 100 * MIB).unwrap();
        from.set_len(200 * MIB).unwrap();
        for (at, begin) in [(0, 0), (200 * MIB, 100 * MIB)] {
            append(&from, begin, &to, at, 200 * MIB - begin).unwrap();
        }
        assert_eq!(to.metadata().unwrap().len(), 300 * MIB);
        for (at, bytes) in
            [(0, b"begin\0"), (100 * MIB, b"middle"), (200 * MIB, b"middle"), (300 * MIB - 6, &[0; 6])]
        {
            let mut found = [1; 6];
            to.read_exact_at(&mut found, at).unwrap();
            assert_eq!(&found, bytes, "at {at}");
        }
        let on_disk = std::os::unix::fs::MetadataExt::blocks(&to.metadata().unwrap()) * 512;
        assert!(on_disk < MIB, "{on_disk} bytes");
        let beyond = append(&from, 0, &to, 0, 200 * MIB + 1);
        assert_eq!(beyond.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
