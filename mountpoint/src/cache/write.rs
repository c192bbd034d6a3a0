//! Writes sectors of a block: makes room, creates the version's files, writes the data, then its slot.

use std::io;
use std::ops::Range;

use super::CACHE_BLOCK;
use super::file::owner::Owner;
use super::file::{Entry, FILE_CHARGE, block_charge, most_memory};
use super::format::{Header, OBJECT_MAX, block_len, crc32c, encode_header, encode_slot, slot_at};
use super::health::Doing;
use super::io::{How, Kind, write_full};
use super::sector::{Sectors, bytes_of};
use super::store::Store;
use super::sums::Sums;
use crate::object::ObjectId;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::Relaxed;

/// Number of puts between two checks of the free space of the file system.
const SPACE_EVERY: u64 = 64;

impl Store {
    /// Writes the whole sectors among `bytes`, which begin at `offset` of the object and lie within one block. False if nothing was
    /// written: the cache has the sectors, there is no room, or the disk failed.
    #[cfg(test)]
    pub(super) fn write(&self, id: &ObjectId, object_size: u64, offset: u64, bytes: &[u8]) -> bool {
        self.write_put(id, object_size, offset, bytes, u64::MAX)
    }

    /// Writes bytes that a reader put at this time, unless their version was condemned since.
    pub(super) fn write_put(
        &self,
        id: &ObjectId,
        object_size: u64,
        offset: u64,
        bytes: &[u8],
        put: u64,
    ) -> bool {
        let identity = self.identity(id);
        let index = offset / CACHE_BLOCK;
        let (start, len) = (offset - index * CACHE_BLOCK, block_len(object_size, index) as u64);
        let sectors = Sectors::within(&(start..start + bytes.len() as u64), len);
        let fits = object_size <= OBJECT_MAX && start + bytes.len() as u64 <= len && !sectors.is_empty();
        let Ok(block) = u32::try_from(index) else { return false };
        if !fits || !identity.fits() || self.is_away() || self.health.is_full() {
            return false;
        }
        let now = self.uses.fetch_add(1, Relaxed) + 1;
        if now.is_multiple_of(SPACE_EVERY) {
            self.look_at_space();
        }
        let charge = block_charge(sectors.len(len) as usize);
        let Some(_room) = self.make_room(charge + FILE_CHARGE, most_memory(id)) else { return false };
        let piece = Piece { block, start, len, sectors, bytes };
        let done = self.write_charged(id, object_size, &piece, (now, put));
        let used = match &done {
            Ok(Wrote { new_file, kept, .. }) => u64::from(*new_file) * FILE_CHARGE + kept.unwrap_or(0),
            Err(_) => 0,
        };
        self.used_bytes.fetch_sub(charge + FILE_CHARGE - used, Relaxed);
        match done {
            Ok(wrote) => wrote.kept.is_some() && !wrote.is_gone,
            Err(e) => {
                self.health.failure(Doing::Writing, &e);
                self.look_at_space();
                false
            }
        }
    }

    fn write_charged(
        &self,
        id: &ObjectId,
        object_size: u64,
        piece: &Piece<'_>,
        (now, put): (u64, u64),
    ) -> io::Result<Wrote> {
        // The version is looked up under this lock: it may be removed together with a block that is being dropped, and be created anew.
        let _one = self.block_lock(&self.identity(id).name(), piece.block);
        let (entry, new_file) = self.find_or_create(id, object_size, now)?;
        let Some(entry) = entry else { return Ok(Wrote { new_file, kept: None, is_gone: false }) };
        if entry.object_size != object_size {
            self.metrics.cache_corrupt.inc();
            self.remove(&entry);
            return Ok(Wrote { new_file, kept: None, is_gone: false });
        }
        if self.proofs.is_wrong(id, put) {
            // The version was condemned before the index had it, so the condemnation could not find it there.
            self.unlink_if(&entry, Entry::remove_empty);
            return Ok(Wrote { new_file, kept: None, is_gone: false });
        }
        let Some(claim) = entry.claim(piece.block, piece.sectors, now) else {
            return Ok(Wrote { new_file, kept: None, is_gone: false });
        };
        let sums = claim.before.with(claim.new, |n| crc32c(piece.of(&bytes_of(n, piece.len))));
        let result =
            self.doubt_proof(&entry).and_then(|()| self.write_claimed(&entry, piece, claim.new, &sums));
        entry.wrote(piece.block, result.is_ok().then_some(sums), self.clock.now());
        if entry.is_condemned() {
            // The account has all bytes of the version until it leaves, including those of this block.
            self.remove(&entry);
            return Ok(Wrote { new_file, kept: result.is_ok().then_some(claim.charge), is_gone: true });
        }
        match result {
            Ok(()) => {
                self.health.success();
                Ok(Wrote { new_file, kept: Some(claim.charge), is_gone: false })
            }
            Err(e) => {
                self.health.failure(Doing::Writing, &e);
                self.look_at_space();
                self.unlink_if(&entry, Entry::remove_empty);
                Ok(Wrote { new_file, kept: None, is_gone: false })
            }
        }
    }

    /// Writes the data of the new sectors first, then the block's slot: a crash between the two leaves sectors that do not count.
    fn write_claimed(
        &self,
        entry: &Arc<Entry>,
        piece: &Piece<'_>,
        new: Sectors,
        sums: &Sums,
    ) -> io::Result<()> {
        let at = u64::from(piece.block) * CACHE_BLOCK;
        let data = self.io.open(&entry.name, Kind::Data, How::Write)?;
        let runs = new.runs(piece.len);
        let mut to_data = runs.iter().map(|run| write_full(&*self.io, &data, piece.of(run), at + run.start));
        let written = to_data.try_for_each(|run| run).and_then(|()| {
            let meta = self.io.open(&entry.name, Kind::Meta, How::Write)?;
            let slot = encode_slot(&entry.name, piece.block, sums, piece.len as usize);
            write_full(&*self.io, &meta, &slot, slot_at(entry.slots_at, piece.block))
        });
        if written.is_err() {
            // The account lacks the written bytes. If the punch fails too, the bytes do not count without a slot, and a later write
            // replaces them.
            for run in runs {
                let _ = self.io.punch(&data, at + run.start, run.end - run.start);
            }
        }
        written
    }

    /// The entry of a version. Creates it and its files if they are missing (`true` then). `None` if another version has its place in the
    /// index.
    fn find_or_create(
        &self,
        id: &ObjectId,
        object_size: u64,
        now: u64,
    ) -> io::Result<(Option<Arc<Entry>>, bool)> {
        let identity = self.identity(id);
        if let Some(entry) = self.find(&identity) {
            return Ok((Some(entry), false));
        }
        let name = identity.name();
        let _making = self.name_lock(&name);
        if let Some(entry) = self.index.get(&identity) {
            return Ok((Some(entry), false));
        }
        let is_proven = !self.needs_proof;
        let bytes = encode_header(&identity, object_size, is_proven);
        let header = Header { identity, object_size, slots_at: bytes.len() as u64, is_proven };
        let owner = Owner::new(&self.scope, id);
        let entry = Arc::new(Entry::new(owner, name, &header, [], now, &self.index_bytes));
        // The data file is emptied before a sidecar can describe it.
        let made = self.io.open(&name, Kind::Data, How::Create).and_then(|_| {
            let meta = self.io.open(&name, Kind::Meta, How::Create)?;
            write_full(&*self.io, &meta, &bytes, 0)
        });
        if let Err(e) = made {
            self.unlink(&name);
            return Err(e);
        }
        if !self.index.insert(&entry) {
            self.unlink(&name);
            return Ok((None, false));
        }
        Ok((Some(entry), true))
    }
}

/// The part of a block to write.
struct Piece<'a> {
    block: u32,
    /// The offset at which `bytes` begin in the block; `len` is the length of the block.
    start: u64,
    len: u64,
    /// The sectors that `bytes` cover completely.
    sectors: Sectors,
    bytes: &'a [u8],
}

impl Piece<'_> {
    /// The bytes of a range of the block.
    fn of(&self, range: &Range<u64>) -> &[u8] {
        &self.bytes[(range.start - self.start) as usize..(range.end - self.start) as usize]
    }
}

/// The result of a put.
struct Wrote {
    new_file: bool,
    /// The disk space of the new sectors, if they were written.
    kept: Option<u64>,
    /// Whether the version was found wrong meanwhile, and is being removed.
    is_gone: bool,
}
