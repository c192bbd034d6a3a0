//! A block on its way out: found, verified once since this start, handed over; or doubted and dropped.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use super::CACHE_BLOCK;
use super::file::Entry;
use super::format::{block_len, crc32c};
use super::health::Doing;
use super::io::{BlockIo, How, Kind};
use super::store::Store;
use crate::checksum::{ChecksumAlgorithm, Hasher};
use crate::object::ObjectId;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::Relaxed;

/// How much is read at once to verify a block of which only a part was asked, in bytes.
const VERIFY_CHUNK: usize = 128 << 10;

impl Store {
    /// Reads `range`, which lies in one block, into `into`; see [`super::BlockCache::read`].
    pub(super) fn read(&self, id: &ObjectId, object_size: u64, range: &Range<u64>, into: &mut [u8]) -> bool {
        if self.health.is_off() {
            return false;
        }
        let Some(entry) = self.find(&self.identity(id)) else { return false };
        if entry.object_size != object_size {
            self.metrics.cache_corrupt.inc();
            self.remove(&entry);
            return false;
        }
        let block = (range.start / CACHE_BLOCK) as u32; // versions in the index are below OBJECT_MAX
        let Some(seen) = entry.look(block, self.uses.load(Relaxed)) else { return false };
        let file = match seen.file.map_or_else(|| self.open(&entry), Ok) {
            Ok(file) => file,
            Err(e) => {
                self.unsound(&entry, None, Some(&e));
                return false;
            }
        };
        if seen.verified {
            return match read_full(&*self.io, &file, into, range.start) {
                Ok(()) => entry.still(block, seen.born),
                Err(e) => self.doubt(&entry, block, seen.born, Some(&e)),
            };
        }
        match self.read_verifying(&file, block_len(object_size, block.into()), range, into) {
            Ok(crc) if crc == seen.crc => {
                self.health.success();
                entry.verified(block, seen.born)
            }
            Ok(_) => self.doubt(&entry, block, seen.born, None),
            Err(e) => self.doubt(&entry, block, seen.born, Some(&e)),
        }
    }

    /// Reads the whole block of `len` bytes, gives its CRC32C, and what of it is in `range` to `into`.
    fn read_verifying(
        &self,
        file: &OwnedFd,
        len: usize,
        range: &Range<u64>,
        into: &mut [u8],
    ) -> io::Result<u32> {
        let start = range.start / CACHE_BLOCK * CACHE_BLOCK;
        if into.len() == len {
            read_full(&*self.io, file, into, start)?;
            return Ok(crc32c(into));
        }
        let wanted = (range.start - start) as usize..(range.end - start) as usize;
        let mut hasher = Hasher::new(ChecksumAlgorithm::Crc32c);
        let mut chunk = vec![0; VERIFY_CHUNK.min(len)];
        for at in (0..len).step_by(VERIFY_CHUNK) {
            let chunk = &mut chunk[..VERIFY_CHUNK.min(len - at)];
            read_full(&*self.io, file, chunk, start + at as u64)?;
            hasher.update(chunk);
            let (from, to) = (wanted.start.max(at), wanted.end.min(at + chunk.len()));
            if from < to {
                // copy: a part of a block, once per block and start
                into[from - wanted.start..to - wanted.start].copy_from_slice(&chunk[from - at..to - at]);
            }
        }
        Ok(hasher.finish().value as u32)
    }

    /// A read did not give the block's bytes: unless it left meanwhile, it goes now.
    fn doubt(&self, entry: &Arc<Entry>, block: u32, born: u64, error: Option<&io::Error>) -> bool {
        if entry.still(block, born) {
            self.unsound(entry, Some(block), error);
        }
        false
    }

    /// A block (or the version) is not what the index says.
    fn unsound(&self, entry: &Arc<Entry>, block: Option<u32>, error: Option<&io::Error>) {
        let failed = error.filter(|e| e.kind() != io::ErrorKind::UnexpectedEof);
        if failed.is_some_and(|e| !self.health.failure(Doing::Reading, e)) {
            return;
        }
        self.metrics.cache_corrupt.inc();
        match block {
            Some(block) => {
                self.evict_blocks(entry, &[block]);
            }
            None => self.remove(entry),
        }
    }

    fn open(&self, entry: &Arc<Entry>) -> io::Result<Arc<OwnedFd>> {
        if let Some(file) = entry.file() {
            return Ok(file);
        }
        let file = Arc::new(self.io.open(&entry.name, Kind::Data, How::Read)?);
        self.files.keep(entry, &file);
        Ok(file)
    }
}

/// Reads until `into` is full.
///
/// # Errors
/// The system's; `UnexpectedEof` when the file ends before.
fn read_full(io: &dyn BlockIo, file: &OwnedFd, into: &mut [u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        match io.read_at(file, &mut into[done..], at + done as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => done += n,
        }
    }
    Ok(())
}
