//! Reads sectors: finds them, verifies their checksums at each read from the disk, and returns them. If a checksum differs, drops the
//! block.

use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::file::{Entry, Seen};
use super::format::{block_len, crc32c};
use super::health::Doing;
use super::io::{BlockIo, How, Kind, Waits, path_of};
use super::sector::{SECTOR, SECTORS, Sectors, bytes_of};
use super::store::Store;
use super::{CACHE_BLOCK, Lend, Now};
use crate::checksum::{ChecksumAlgorithm, Hasher};
use crate::object::ObjectId;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Longest time after a comparison in which an open lets the kernel read the file; later the open compares anew. Doubling it saves
/// comparisons at opens, each about 0.1 s of CPU a GiB, and serves rotten bytes for twice as long.
const COMPARED_FOR: Duration = Duration::from_secs(60);

/// Largest file that an open compares, in bytes. The engine reads larger files itself, because comparing them would take too long. Doubling
/// it doubles the longest such open.
const COMPARED_AT_OPEN_MAX: u64 = 1 << 30;

/// An object version whose bytes all lie in one file, each at its offset.
#[derive(Debug)]
pub struct Whole {
    /// The file.
    pub file: Arc<OwnedFd>,
    /// Path of the file, relative to the cache's directory.
    pub name: String,
    /// Keeps the version in the cache. The file keeps its bytes even longer, because mappings of it outlive the hold.
    pub hold: Hold,
}

/// Keeps a version in the cache, unchanged, until it is dropped.
#[derive(Debug)]
pub struct Hold {
    entry: Arc<Entry>,
    /// The cache's clock of uses: its number of puts.
    uses: Arc<AtomicU64>,
}

impl Hold {
    /// Takes hold of a version that the cache has completely, with all bytes found sound since the start.
    pub(super) fn of(entry: &Arc<Entry>, uses: &Arc<AtomicU64>) -> Option<Self> {
        let is_held = entry.hold(uses.load(Relaxed));
        is_held.then(|| Self { entry: Arc::clone(entry), uses: Arc::clone(uses) })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.entry.let_go(self.uses.load(Relaxed));
    }
}

/// A read whose sectors are in the index and whose file is open. [`Store::end`] ends it.
#[derive(Debug)]
pub(super) struct Reading {
    found: Found,
    pub(super) file: Arc<OwnedFd>,
}

impl Reading {
    pub(super) fn span(&self) -> &Span {
        &self.found.span
    }
}

/// The index's facts about a range.
#[derive(Debug)]
pub(super) struct Found {
    entry: Arc<Entry>,
    block: u32,
    born: u64,
    known: bool,
    /// Checksums of the sectors of the span.
    crcs: Box<[u32]>,
    span: Span,
}

impl Found {
    /// The read of this range from `file`.
    fn from(self, file: Arc<OwnedFd>) -> Reading {
        Reading { found: self, file }
    }
}

/// The beginning of a read, as far as memory allows.
pub(super) enum Beginning {
    /// The read can go to its file.
    Reads(Reading),
    /// The disk comes first: to open the file, or to look for the version.
    Waits,
    /// The cache lacks the range.
    Absent,
}

impl Store {
    /// Reads `range`, which lies in one block, into `into`; see [`super::BlockCache::read`].
    pub(super) fn read(&self, id: &ObjectId, object_size: u64, range: &Range<u64>, into: &mut [u8]) -> bool {
        self.begin(id, object_size, range).is_some_and(|reading| self.finish(&reading, into))
    }

    /// Whether a read gets sound bytes. It drops no rotten bytes: they stay until another read finds them.
    pub(super) fn is_read(
        &self,
        id: &ObjectId,
        object_size: u64,
        range: &Range<u64>,
        into: &mut [u8],
    ) -> bool {
        self.begin(id, object_size, range).is_some_and(|reading| {
            let mut pads = reading.span().pads();
            reading.span().read(&*self.io, &reading.file, into, &mut pads).is_ok()
                && reading.span().is_sound(&reading.found.crcs, into, &pads)
        })
    }

    /// Reads the sectors of a begun read, and waits for the disk. True if they are sound.
    pub(super) fn finish(&self, reading: &Reading, into: &mut [u8]) -> bool {
        let mut pads = reading.span().pads();
        let read = reading.span().read(&*self.io, &reading.file, into, &mut pads);
        self.end(reading, read.as_ref().map(|()| (&*into, &*pads)))
    }

    /// Reads without waiting for the disk, and without dropping anything; see [`super::BlockCache::read_now`].
    pub(super) fn read_now(
        &self,
        id: &ObjectId,
        object_size: u64,
        range: &Range<u64>,
        into: &mut [u8],
    ) -> Now {
        let reading = match self.begin_now(id, object_size, range) {
            Beginning::Reads(reading) => reading,
            Beginning::Waits => return Now::OnDisk,
            Beginning::Absent => return Now::Absent,
        };
        let span = reading.span();
        let mut pads = span.pads();
        let read = self.io.read_at(&reading.file, &mut span.slices(into, &mut pads), span.at(), Waits::No);
        match read {
            Ok(n) if n == span.len() && self.is_sound(&reading, into, &pads) => Now::Here,
            // The bytes are not in the page cache, not sound, or not available without waiting: the read that waits finds out.
            Ok(_) | Err(_) => Now::OnDisk,
        }
    }

    /// Begins a read from memory alone.
    pub(super) fn begin_now(&self, id: &ObjectId, object_size: u64, range: &Range<u64>) -> Beginning {
        if self.is_away() {
            return Beginning::Absent;
        }
        let identity = self.identity(id);
        let Some(entry) = self.index.get(&identity) else {
            return if self.is_loaded(|| identity.name()) { Beginning::Absent } else { Beginning::Waits };
        };
        if entry.object_size != object_size {
            return Beginning::Waits;
        }
        match self.look(entry, range) {
            None => Beginning::Absent,
            Some((_, None)) => Beginning::Waits,
            Some((found, Some(file))) => Beginning::Reads(found.from(file)),
        }
    }

    /// The index's facts about a range, and the file if it is open.
    fn look(&self, entry: Arc<Entry>, range: &Range<u64>) -> Option<(Found, Option<Arc<OwnedFd>>)> {
        let block = (range.start / CACHE_BLOCK) as u32; // versions in the index are below OBJECT_MAX
        let start = u64::from(block) * CACHE_BLOCK;
        let len = block_len(entry.object_size, block.into());
        let span = Span::of(start, range.start - start..range.end - start, len);
        let Seen { crcs, born, known, file } =
            entry.look(block, Sectors::touching(&span.range), self.uses.load(Relaxed))?;
        Some((Found { entry, block, born, known, crcs, span }, file))
    }

    /// Begins a read. May open the file, or look for the version on the disk. `None` if the cache lacks the range.
    pub(super) fn begin(&self, id: &ObjectId, object_size: u64, range: &Range<u64>) -> Option<Reading> {
        if self.is_away() {
            return None;
        }
        let entry = self.find(&self.identity(id))?;
        if entry.object_size != object_size {
            self.metrics.cache_corrupt.inc();
            self.remove(&entry);
            return None;
        }
        let (found, file) = self.look(entry, range)?;
        match file.map_or_else(|| self.open(&found.entry), Ok) {
            Ok(file) => Some(found.from(file)),
            Err(e) => {
                self.unsound(&found.entry, None, Some(&e));
                None
            }
        }
    }

    /// Ends a read with the bytes of its range and its pads, or with the disk's error. True if the bytes are sound; otherwise drops the
    /// block.
    pub(super) fn end(&self, reading: &Reading, read: Result<(&[u8], &[u8]), &io::Error>) -> bool {
        let Found { entry, block, born, .. } = &reading.found;
        match read {
            Ok((body, pads)) if self.is_sound(reading, body, pads) => true,
            Ok(_) => self.doubt(entry, *block, *born, None),
            Err(e) => self.doubt(entry, *block, *born, Some(e)),
        }
    }

    /// Whether the bytes of a read match their checksums; notes the sound sectors. Does not touch the disk.
    pub(super) fn is_sound(&self, reading: &Reading, body: &[u8], pads: &[u8]) -> bool {
        let Found { entry, block, born, known, crcs, span } = &reading.found;
        let is_sound = span.is_sound(crcs, body, pads);
        if is_sound {
            self.health.success();
            if !known {
                entry.found_sound(*block, *born, Sectors::touching(&span.range), self.clock.now());
            }
        }
        is_sound
    }

    /// Drops the block after a failed or unsound read, unless it was evicted meanwhile. Always returns false.
    fn doubt(&self, entry: &Arc<Entry>, block: u32, born: u64, error: Option<&io::Error>) -> bool {
        // A put of newly fetched bytes waits for this lock until the old ones are dropped.
        let _no_put = self.block_lock(&entry.name, block);
        if entry.still(block, born) {
            self.unsound(entry, Some(block), error);
        }
        false
    }

    /// Drops a block (or without one the version) whose bytes are wrong or can't be read. A passing lack of resources drops nothing.
    fn unsound(&self, entry: &Arc<Entry>, block: Option<u32>, error: Option<&io::Error>) {
        let failed = error.filter(|e| e.kind() != io::ErrorKind::UnexpectedEof);
        if failed.is_some_and(|e| !self.health.failure(Doing::Reading, e)) {
            return;
        }
        self.metrics.cache_corrupt.inc();
        match block {
            // A lent version is removed as a whole. Programs that read its file past the cache go on; later opens do not find it.
            Some(block) if !entry.is_lent() => {
                self.evict_blocks(entry, &[block]);
            }
            _ => self.remove(entry),
        }
    }

    /// The data file of a version that the cache has completely, with all bytes found sound since the start; see
    /// [`super::BlockCache::whole`]. After [`COMPARED_FOR`] the version is compared anew, but only in the page cache: a version with bytes
    /// on the disk alone is not lent, and the engine's reads compare those. `None` after a read error of the disk: the next one would hit
    /// the program. `None` also as long as the file is not sealed and could be; [`Store::seal`] seals it.
    pub(super) fn whole(&self, id: &ObjectId, object_size: u64) -> Option<Whole> {
        if self.is_away() || self.health.is_unreadable() {
            return None;
        }
        let entry = self.index.get(&self.identity(id)).filter(|entry| entry.object_size == object_size)?;
        let hold = Hold::of(&entry, &self.uses)?;
        let file = self.open(&entry).ok()?;
        // The version may have been found wrong meanwhile, and an incomplete file may have its name.
        if entry.is_removed() || self.awaits_seal(&entry, &file) {
            return None;
        }
        let now = self.clock.now();
        if !entry.is_sound_since(now.checked_sub(COMPARED_FOR)) {
            if !self.is_sound_now(id, object_size) {
                return None;
            }
            entry.compared(now);
        }
        // The program's file ends where the cache's file ends.
        let ends_there = rustix::fs::fstat(&file).is_ok_and(|stat| stat.st_size as u64 == object_size);
        let is_lent = ends_there && self.io.lend(&file).is_ok();
        is_lent.then(|| {
            entry.lends();
            Whole { file, name: path_of(&entry.name), hold }
        })
    }

    /// Answers from memory, without the disk; see [`super::BlockCache::lends`].
    pub(super) fn lends(&self, id: &ObjectId, object_size: u64) -> Lend {
        if self.is_away() || self.health.is_unreadable() {
            return Lend::No;
        }
        let entry = self.index.get(&self.identity(id)).filter(|entry| entry.object_size == object_size);
        let Some(entry) = entry else { return Lend::No };
        let Some(hold) = Hold::of(&entry, &self.uses) else { return Lend::No };
        let is_fresh = entry.is_sound_since(self.clock.now().checked_sub(COMPARED_FOR));
        match entry.lent_file().filter(|_| is_fresh) {
            Some(file) => Lend::Now(Whole { file, name: path_of(&entry.name), hold }),
            None => Lend::Later,
        }
    }

    /// Compares a whole version with its checksums, in the page cache alone. False if bytes are only on the disk, or the object is larger
    /// than [`COMPARED_AT_OPEN_MAX`]. Drops what is not sound.
    fn is_sound_now(&self, id: &ObjectId, object_size: u64) -> bool {
        let mut into = vec![0; CACHE_BLOCK.min(object_size) as usize];
        let mut blocks = (0..object_size).step_by(CACHE_BLOCK as usize);
        object_size <= COMPARED_AT_OPEN_MAX
            && blocks.all(|start| {
                let range = start..object_size.min(start + CACHE_BLOCK);
                let into = &mut into[..(range.end - range.start) as usize];
                self.is_sound_in_memory(id, object_size, &range, into)
            })
    }

    fn is_sound_in_memory(
        &self,
        id: &ObjectId,
        object_size: u64,
        range: &Range<u64>,
        into: &mut [u8],
    ) -> bool {
        let Some(reading) = self.begin(id, object_size, range) else { return false };
        let span = reading.span();
        let mut pads = span.pads();
        let read = self.io.read_at(&reading.file, &mut span.slices(into, &mut pads), span.at(), Waits::No);
        read.is_ok_and(|n| n == span.len()) && self.end(&reading, Ok((into, &pads)))
    }

    /// The data file of a version, opened if it is not.
    pub(super) fn open(&self, entry: &Arc<Entry>) -> io::Result<Arc<OwnedFd>> {
        if let Some(file) = entry.file() {
            return Ok(file);
        }
        let file = Arc::new(self.io.open(&entry.name, Kind::Data, How::Read)?);
        self.files.keep(entry, &file);
        Ok(file)
    }
}

/// A range of a block with the whole sectors around it. One call reads both: the range goes straight into the caller's memory, the rest of
/// the first and the last sector into pads.
#[derive(Debug)]
pub(super) struct Span {
    /// The offset at which the block begins in the file.
    start: u64,
    /// The range of the read within the block.
    range: Range<u64>,
    /// The sectors that the range touches, within the block.
    whole: Range<u64>,
    /// Length of the block, in bytes.
    block_len: u64,
}

impl Span {
    /// A span of a block of `len` bytes that begins at `start` of the file.
    fn of(start: u64, range: Range<u64>, len: usize) -> Self {
        let block_len = len as u64;
        let whole = range.start / SECTOR * SECTOR..range.end.next_multiple_of(SECTOR).min(block_len);
        Self { start, range, whole, block_len }
    }

    /// The offset at which the span begins in the file.
    pub(super) fn at(&self) -> u64 {
        self.start + self.whole.start
    }

    /// Number of bytes to read.
    pub(super) fn len(&self) -> usize {
        (self.whole.end - self.whole.start) as usize
    }

    fn head(&self) -> usize {
        (self.range.start - self.whole.start) as usize
    }

    /// Memory for the bytes read besides the range: none for a range of whole sectors.
    pub(super) fn pads(&self) -> Vec<u8> {
        vec![0; self.len() - (self.range.end - self.range.start) as usize]
    }

    /// The memory for the bytes, in their order.
    pub(super) fn slices<'a>(&self, into: &'a mut [u8], pads: &'a mut [u8]) -> [IoSliceMut<'a>; 3] {
        let (head, tail) = pads.split_at_mut(self.head());
        [head, into, tail].map(IoSliceMut::new)
    }

    /// Reads the whole span, and waits for the disk.
    fn read(&self, io: &dyn BlockIo, file: &OwnedFd, into: &mut [u8], pads: &mut [u8]) -> io::Result<()> {
        let mut slices = self.slices(into, pads);
        let (mut left, mut at) = (&mut slices[..], self.at());
        while at < self.start + self.whole.end {
            match io.read_at(file, left, at, Waits::Yes)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => {
                    IoSliceMut::advance_slices(&mut left, n);
                    at += n as u64;
                }
            }
        }
        Ok(())
    }

    /// Whether each sector matches its checksum; `crcs` are the checksums of the span's sectors.
    fn is_sound(&self, crcs: &[u32], body: &[u8], pads: &[u8]) -> bool {
        let (head, tail) = pads.split_at(self.head());
        let mut parts = [head, body, tail].into_iter();
        let mut part: &[u8] = &[];
        let sectors = (self.whole.start / SECTOR) as usize..SECTORS;
        let bytes = sectors.map(|n| bytes_of(n, self.block_len)).take_while(|at| at.start < self.whole.end);
        bytes.enumerate().all(|(n, at)| {
            let mut left = (at.end - at.start) as usize;
            if let Some((sector, rest)) = part.split_at_checked(left) {
                part = rest;
                return crcs.get(n) == Some(&crc32c(sector));
            }
            let mut hasher = Hasher::new(ChecksumAlgorithm::Crc32c);
            while left > 0 {
                if part.is_empty() {
                    let Some(next) = parts.next() else { return false };
                    part = next;
                }
                let (mine, rest) = part.split_at(left.min(part.len()));
                hasher.update(mine);
                (part, left) = (rest, left - mine.len());
            }
            crcs.get(n) == Some(&(hasher.finish().value as u32))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_span_is_sound_as_long_as_no_byte_of_its_sectors_differs(
            len in 1..=CACHE_BLOCK as usize,
            (from, to) in (any::<u64>(), any::<u64>()),
            flip in any::<prop::sample::Index>(),
        ) {
            let block: Vec<u8> = (0..len).map(|i| ((i * 7) >> 3) as u8).collect();
            let start = from % len as u64;
            let range = start..start + 1 + to % (len as u64 - start);
            let span = Span::of(0, range.clone(), len);
            let bytes = |range: &Range<u64>| block[range.start as usize..range.end as usize].to_vec();
            let mut body = bytes(&range);
            let mut pads = [bytes(&(span.whole.start..range.start)), bytes(&(range.end..span.whole.end))].concat();
            prop_assert_eq!((span.pads().len(), span.len()), (pads.len(), pads.len() + body.len()));
            let crc = |n| crc32c(&bytes(&bytes_of(n, len as u64)));
            let crcs: Vec<u32> = Sectors::touching(&range).numbers().map(crc).collect();
            prop_assert!(span.is_sound(&crcs, &body, &pads));
            prop_assert!(!span.is_sound(&crcs[1..], &body, &pads), "a sector without a checksum");
            let at = flip.index(span.len());
            match at.checked_sub(body.len()) {
                None => body[at] ^= 1,
                Some(at) => pads[at] ^= 1,
            }
            prop_assert!(!span.is_sound(&crcs, &body, &pads), "byte {at} differs");
        }
    }
}
