//! A block on its way in: room made for it, the version's files made, data and then its slot written.

use std::io;
use std::os::fd::OwnedFd;

use super::CACHE_BLOCK;
use super::file::{Entry, FILE_CHARGE, block_charge};
use super::format::{Header, OBJECT_MAX, block_len, crc32c, encode_header, encode_slot, slot_at};
use super::health::Doing;
use super::index::Owner;
use super::io::{BlockIo, How, Kind};
use super::store::Store;
use crate::object::ObjectId;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::Relaxed;

/// Puts between two looks at the free space of the file system.
const SPACE_EVERY: u64 = 64;

impl Store {
    /// Writes a block; false when it was not: it is here already, there is no room, the disk failed.
    pub(super) fn write(&self, id: &ObjectId, object_size: u64, block: u64, bytes: &[u8]) -> bool {
        let identity = self.identity(id);
        let fits =
            object_size <= OBJECT_MAX && !bytes.is_empty() && block_len(object_size, block) == bytes.len();
        let Ok(block) = u32::try_from(block) else { return false };
        if !fits || !identity.fits() || self.health.is_off() || self.health.is_full() {
            return false;
        }
        let now = self.uses.fetch_add(1, Relaxed) + 1;
        if now.is_multiple_of(SPACE_EVERY) {
            self.look_at_space();
        }
        let charge = block_charge(bytes.len());
        if !self.make_room(charge + FILE_CHARGE) {
            return false;
        }
        let done = self.write_charged(id, object_size, block, bytes, now);
        let kept = match &done {
            Ok(Wrote { new_file, kept }) => u64::from(*new_file) * FILE_CHARGE + u64::from(*kept) * charge,
            Err(_) => 0,
        };
        self.used_bytes.fetch_sub(charge + FILE_CHARGE - kept, Relaxed);
        match done {
            Ok(wrote) => wrote.kept,
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
        block: u32,
        bytes: &[u8],
        now: u64,
    ) -> io::Result<Wrote> {
        let (entry, new_file) = self.find_or_create(id, object_size, now)?;
        let Some(entry) = entry else { return Ok(Wrote { new_file, kept: false }) };
        if entry.object_size != object_size {
            self.metrics.cache_corrupt.inc();
            self.remove(&entry);
            return Ok(Wrote { new_file, kept: false });
        }
        let crc = crc32c(bytes);
        if !entry.claim(block, crc, now) {
            return Ok(Wrote { new_file, kept: false });
        }
        let result = self.write_claimed(&entry, block, crc, bytes);
        entry.wrote(block, result.is_ok());
        match result {
            Ok(()) => {
                self.health.success();
                Ok(Wrote { new_file, kept: true })
            }
            Err(e) => {
                self.health.failure(Doing::Writing, &e);
                self.look_at_space();
                self.unlink_if(&entry, Entry::leave_empty);
                Ok(Wrote { new_file, kept: false })
            }
        }
    }

    /// Data first, then its slot: a crash between the two leaves a block that is not here.
    fn write_claimed(&self, entry: &Arc<Entry>, block: u32, crc: u32, bytes: &[u8]) -> io::Result<()> {
        let at = u64::from(block) * CACHE_BLOCK;
        let data = self.io.open(&entry.name, Kind::Data, How::Write)?;
        let written = write_full(&*self.io, &data, bytes, at).and_then(|()| {
            let meta = self.io.open(&entry.name, Kind::Meta, How::Write)?;
            let slot = encode_slot(&entry.name, block, crc, bytes.len());
            write_full(&*self.io, &meta, &slot, slot_at(entry.slots_at, block))
        });
        if written.is_err() {
            // What was written is in nobody's account. If this fails too, it is found by its CRC and taken again.
            let _ = self.io.punch(&data, at, bytes.len() as u64);
        }
        written
    }

    /// The version, its files made if need be (`true` then); `None` when its place in the index is taken.
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
        let bytes = encode_header(&identity, object_size);
        let header = Header { identity, object_size, slots_at: bytes.len() as u64 };
        let owner = Owner::new(&self.scope, id);
        let entry = Arc::new(Entry::new(owner, name, &header, [], now));
        // The data is emptied before there is a sidecar that could speak of it.
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

/// What became of a put.
struct Wrote {
    new_file: bool,
    kept: bool,
}

/// Writes all of `bytes`, however many calls it takes.
pub(super) fn write_full(io: &dyn BlockIo, file: &OwnedFd, bytes: &[u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match io.write_at(file, &bytes[done..], at + done as u64)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => done += n,
        }
    }
    Ok(())
}
