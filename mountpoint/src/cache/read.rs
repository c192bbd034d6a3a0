//! Sectors on their way out: found, compared with their checksums each time they are read from the disk, handed over; or doubted,
//! and their block dropped.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use super::CACHE_BLOCK;
use super::file::Entry;
use super::format::{Checksums, block_len, crc32c};
use super::health::Doing;
use super::io::{BlockIo, How, Kind};
use super::sector::{SECTOR, SECTORS, Sectors, bytes_of};
use super::store::Store;
use crate::object::ObjectId;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::Relaxed;

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
        let start = u64::from(block) * CACHE_BLOCK;
        let range = range.start - start..range.end - start;
        let Some(seen) = entry.look(block, Sectors::touching(&range), self.uses.load(Relaxed)) else {
            return false;
        };
        let file = match seen.file.map_or_else(|| self.open(&entry), Ok) {
            Ok(file) => file,
            Err(e) => {
                self.unsound(&entry, None, Some(&e));
                return false;
            }
        };
        let block_of =
            BlockOf { io: &*self.io, file: &file, start, len: block_len(object_size, block.into()) as u64 };
        match block_of.read(&seen.crcs, &range, into) {
            Ok(true) => {
                self.health.success();
                true
            }
            Ok(false) => self.doubt(&entry, block, seen.born, None),
            Err(e) => self.doubt(&entry, block, seen.born, Some(&e)),
        }
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

/// A block's bytes in a data file.
struct BlockOf<'a> {
    io: &'a dyn BlockIo,
    file: &'a OwnedFd,
    /// Where it begins in the file, and how long it is.
    start: u64,
    len: u64,
}

impl BlockOf<'_> {
    /// Reads `range` of the block into `into`; false when a sector is not what its checksum says.
    fn read(&self, crcs: &Checksums, range: &Range<u64>, into: &mut [u8]) -> io::Result<bool> {
        let whole = Sectors::within(range, self.len);
        let Some(middle) = whole.runs(self.len).first().cloned() else {
            // One sector in part, or two neighbours.
            let border = (range.start / SECTOR + 1) * SECTOR;
            let (head, tail) = into.split_at_mut(border.min(range.end).saturating_sub(range.start) as usize);
            return Ok(self.read_part(crcs, range.start, head)? && self.read_part(crcs, border, tail)?);
        };
        let (head, rest) = into.split_at_mut((middle.start - range.start) as usize);
        let (body, tail) = rest.split_at_mut((middle.end - middle.start) as usize);
        self.read_full(body, middle.start)?;
        let sound = body
            .chunks(SECTOR as usize)
            .zip(crcs.iter().skip((middle.start / SECTOR) as usize))
            .all(|(sector, crc)| crc32c(sector) == *crc);
        Ok(sound && self.read_part(crcs, range.start, head)? && self.read_part(crcs, middle.end, tail)?)
    }

    /// Reads a part of one sector: all of it is compared.
    fn read_part(&self, crcs: &Checksums, at: u64, into: &mut [u8]) -> io::Result<bool> {
        if into.is_empty() {
            return Ok(true);
        }
        let n = (at / SECTOR) as usize;
        let bytes = bytes_of(n, self.len);
        let mut sector = [0; SECTOR as usize];
        let sector = &mut sector[..(bytes.end - bytes.start) as usize];
        self.read_full(sector, bytes.start)?;
        let from = (at - bytes.start) as usize;
        let sound = n < SECTORS && crc32c(sector) == crcs[n];
        into.copy_from_slice(&sector[from..from + into.len()]); // copy: a part of a sector
        Ok(sound)
    }

    /// Reads until `into` is full.
    ///
    /// # Errors
    /// The system's; `UnexpectedEof` when the file ends before.
    fn read_full(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            match self.io.read_at(self.file, &mut into[done..], self.start + at + done as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => done += n,
            }
        }
        Ok(())
    }
}
