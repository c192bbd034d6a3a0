//! The table in the memfd: pages of slots, each store one write of at most a page.
//!
//! The kernel copies a write within one page whole, also for a process that is killed meanwhile; a slot never crosses a page. A record that
//! changes gets a new slot before its old one is freed, so that one of the two is always there.

use std::collections::hash_map::Entry;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

use foldhash::{HashMap, HashSet, HashSetExt as _};
use rustix::fs::{
    FlockOperation, MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, flock, ftruncate, memfd_create,
};
use rustix::io::Errno;

use super::Refused;
use super::header::{self, Identity, MAGIC, PAGE, SHELVES_AT, VERSION};
use super::record::{Record, Records, SLOT_MAX, Subject, decode, encode, seal};

/// The most memory of a journal. Beyond it, later directories and handles are not recorded. Doubling it lets twice as many outlive an
/// engine: there is room for 500,000 with short names.
const SIZE_MAX: u64 = 64 << 20;

/// Slots of one size lie together in a shelf. The first shelf has the header alone.
const SHELF: u64 = 64 << 10;
const SHELVES_MAX: usize = (SIZE_MAX / SHELF) as usize;

/// The sizes of slots. The longest record, a listing between two names of 255 bytes, has 562 bytes.
const SIZES: [u64; 4] = [128, 256, 512, SLOT_MAX as u64];

/// The table of one journal.
#[derive(Debug)]
pub(super) struct Table {
    file: File,
    slots: crate::sync::Mutex<Slots>,
    /// Stores that are left until a test counts this process as killed; the last store is half done.
    #[cfg(test)]
    pub(super) stores_left: crate::sync::atomic::AtomicU64,
}

#[derive(Debug, Default)]
struct Slots {
    /// Place and size of each record.
    used: HashMap<Subject, (u64, usize)>,
    /// Free places by size.
    free: [Vec<u64>; SIZES.len()],
    /// Number of shelves so far, with the header's, and of those that have no size yet.
    shelves: usize,
    unused: Vec<usize>,
    stores: u64,
    /// The log has a line about a full journal.
    told: bool,
}

/// A memfd that can grow and not shrink.
pub(super) fn new_file() -> io::Result<OwnedFd> {
    let file = memfd_create("mount-s3", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
    Ok(file)
}

/// Opens the same file with a description of our own.
fn reopen(shared: &OwnedFd) -> Result<File, Refused> {
    let path = format!("/proc/self/fd/{}", shared.as_raw_fd());
    Ok(File::options().read(true).write(true).open(path)?)
}

/// Opens the same file with a description of our own, whose lock ends with this process.
fn lock(shared: &OwnedFd) -> Result<File, Refused> {
    let file = reopen(shared)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(Refused::InUse),
        Err(error) => Err(io::Error::from(error).into()),
    }
}

/// The first page of a table that another process may have in use.
pub(super) fn examine(shared: &OwnedFd) -> Result<Vec<u8>, Refused> {
    check_seals(shared)?;
    Ok(first_page(&reopen(shared)?)?.1)
}

fn check_seals(shared: &OwnedFd) -> Result<(), Refused> {
    let against_us = SealFlags::GROW | SealFlags::WRITE | SealFlags::FUTURE_WRITE;
    match fcntl_get_seals(shared) {
        Ok(seals) if seals.contains(SealFlags::SHRINK) && !seals.intersects(against_us) => Ok(()),
        _ => Err(Refused::Unsealed),
    }
}

/// The length of a table, and its first page.
fn first_page(file: &File) -> Result<(u64, Vec<u8>), Refused> {
    let len = file.metadata()?.len();
    if !(SHELF..=SIZE_MAX).contains(&len) || len % SHELF != 0 {
        return Err(Refused::Length(len));
    }
    let mut page = vec![0; PAGE as usize];
    file.read_exact_at(&mut page, 0)?;
    if !page.starts_with(MAGIC) {
        return Err(Refused::Foreign);
    }
    match u32::from_le_bytes([page[8], page[9], page[10], page[11]]) {
        VERSION => Ok((len, page)),
        other => Err(Refused::Version(other)),
    }
}

/// The number of the store that wrote the slot at this place.
fn store_at(file: &File, place: u64) -> io::Result<u64> {
    let mut store = [0; 8];
    file.read_exact_at(&mut store, place + 8)?;
    Ok(u64::from_le_bytes(store))
}

impl Table {
    pub(super) fn create(shared: &OwnedFd, identity: &Identity) -> Result<Self, Refused> {
        let file = lock(shared)?;
        ftruncate(&file, SHELF).map_err(io::Error::from)?;
        let slots = Slots { shelves: 1, ..Slots::default() };
        let table = Self::over(file, slots);
        let identity = header::encode_identity(identity)
            .ok_or(Refused::Damaged("bucket and prefix, which are too long,"))?;
        table.store(header::IDENTITY_AT, &identity)?;
        table.store(0, &[&MAGIC[..], &VERSION.to_le_bytes()].concat())?;
        Ok(table)
    }

    fn over(file: File, slots: Slots) -> Self {
        Self {
            file,
            slots: crate::sync::Mutex::new(slots),
            #[cfg(test)]
            stores_left: crate::sync::atomic::AtomicU64::new(u64::MAX),
        }
    }

    /// Opens an existing table; returns its first page and its records.
    pub(super) fn open(shared: &OwnedFd) -> Result<(Self, Vec<u8>, Records), Refused> {
        check_seals(shared)?;
        let file = lock(shared)?;
        let (len, page) = first_page(&file)?;
        let mut slots = Slots { shelves: (len / SHELF) as usize, ..Slots::default() };
        let size_of = |number: usize| {
            let class = usize::from(page[SHELVES_AT as usize + number]).checked_sub(1)?;
            SIZES.get(class).map(|&size| (class, size))
        };
        // Programs wait meanwhile, mostly for the memory that is touched: more than half of their wait were page faults.
        let most = (1..slots.shelves).filter_map(size_of).map(|(_, size)| (SHELF / size) as usize).sum();
        slots.used.reserve(most);
        let mut records = Records::with_capacity(most);
        let (mut outdated, mut doubled) = (Vec::new(), HashSet::new());
        let mut shelf = vec![0; SHELF as usize];
        for number in 1..slots.shelves {
            let Some((class, size)) = size_of(number) else {
                if page[SHELVES_AT as usize + number] == 0 {
                    slots.unused.push(number);
                }
                continue;
            };
            let at = number as u64 * SHELF;
            file.read_exact_at(&mut shelf, at)?;
            for (i, slot) in shelf.chunks_exact(size as usize).enumerate() {
                let place = at + i as u64 * size;
                let Some((record, store)) = decode(slot, place) else {
                    slots.free[class].push(place);
                    outdated.extend((slot[..8] != [0; 8]).then_some(place));
                    continue;
                };
                slots.stores = slots.stores.max(store);
                match slots.used.entry(record.subject()) {
                    Entry::Vacant(room) => {
                        room.insert((place, class));
                        records.push(record);
                    }
                    Entry::Occupied(mut before) => {
                        doubled.insert(record.subject());
                        let mut freed = (place, class);
                        if store_at(&file, before.get().0)? < store {
                            freed = before.insert(freed);
                        }
                        slots.free[freed.1].push(freed.0);
                        outdated.push(freed.0);
                    }
                }
            }
        }
        // Two slots are about one subject: the engine was killed between two stores.
        if !doubled.is_empty() {
            records.retain(|subject| !doubled.contains(&subject));
            for (place, class) in doubled.iter().filter_map(|subject| slots.used.get(subject).copied()) {
                let slot = &mut shelf[..SIZES[class] as usize];
                file.read_exact_at(slot, place)?;
                decode(slot, place).into_iter().for_each(|(record, _)| records.push(record));
            }
        }
        let table = Self::over(file, slots);
        // The earlier one still has its bytes, and a later removal of the other would bring it back.
        for place in outdated {
            table.store(place, &[0; 8])?;
        }
        Ok((table, page, records))
    }

    /// Makes one store.
    pub(super) fn store(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        debug_assert!(at / PAGE == (at + bytes.len() as u64 - 1) / PAGE, "within a page");
        #[cfg(test)]
        let bytes = match self.stores_left.load(crate::sync::atomic::Ordering::Relaxed) {
            0 => return Ok(()),
            left => {
                self.stores_left.store(left - 1, crate::sync::atomic::Ordering::Relaxed);
                if left == 1 { &bytes[..bytes.len() / 2] } else { bytes }
            }
        };
        self.file.write_all_at(bytes, at)
    }

    /// Writes a record, then frees the slot of the one before.
    pub(super) fn record(&self, record: &Record) {
        let mut slots = self.slots.lock();
        slots.stores += 1;
        let Some(mut slot) = encode(record, slots.stores) else { return };
        let subject = record.subject();
        let Some(size) = SIZES.iter().position(|&size| slot.len() as u64 <= size) else { return };
        let before = slots.used.get(&subject).copied();
        let place = match self.room(&mut slots, size) {
            Ok(Some(place)) => place,
            // No slot is free: overwrite the earlier record, if the new one fits there.
            Ok(None) => match before.filter(|(_, room)| *room >= size) {
                Some((place, _)) => place,
                None => return self.is_full(&mut slots, subject),
            },
            Err(error) => {
                return tracing::error!(
                    "journal: it can't be written: {error}; files and listings that are open may fail after a restart of this program"
                );
            }
        };
        seal(&mut slot, place);
        let mut stored = self.store(place, &slot);
        match before {
            Some((place_before, _)) if place_before == place => {}
            Some((place_before, size_before)) => {
                slots.used.insert(subject, (place, size));
                stored = stored.and_then(|()| self.store(place_before, &[0; 8]));
                slots.free[size_before].push(place_before);
            }
            None => {
                slots.used.insert(subject, (place, size));
            }
        }
        if let Err(error) = stored {
            tracing::error!(
                "journal: it can't be written: {error}; files and listings that are open may fail after a restart of this program"
            );
        }
    }

    /// Whether there is a record.
    pub(super) fn has(&self, subject: Subject) -> bool {
        self.slots.lock().used.contains_key(&subject)
    }

    /// Frees a record's slot.
    pub(super) fn remove(&self, subject: Subject) {
        let mut slots = self.slots.lock();
        let Some((place, size)) = slots.used.remove(&subject) else { return };
        if let Err(error) = self.store(place, &[0; 8]) {
            tracing::error!(
                "journal: it can't be written: {error}; files and listings that are open may fail after a restart of this program"
            );
        }
        slots.free[size].push(place);
    }

    /// A free slot; `None` if the journal is full.
    fn room(&self, slots: &mut Slots, size: usize) -> io::Result<Option<u64>> {
        if let Some(place) = slots.free[size].pop() {
            return Ok(Some(place));
        }
        let number = match slots.unused.pop() {
            Some(number) => number,
            None if slots.shelves < SHELVES_MAX => {
                ftruncate(&self.file, (slots.shelves as u64 + 1) * SHELF)?;
                slots.shelves += 1;
                slots.shelves - 1
            }
            None => return Ok(None),
        };
        self.store(SHELVES_AT + number as u64, &[size as u8 + 1])?;
        let first = number as u64 * SHELF;
        slots.free[size].extend((0..SHELF / SIZES[size]).rev().map(|i| first + i * SIZES[size]));
        Ok(slots.free[size].pop())
    }

    /// Drops the earlier record of a subject that no longer fits: the record would be outdated, and the subject does not outlive this
    /// engine.
    fn is_full(&self, slots: &mut Slots, subject: Subject) {
        if let Some((place, size)) = slots.used.remove(&subject) {
            if let Err(error) = self.store(place, &[0; 8]) {
                tracing::error!(
                    "journal: it can't be written: {error}; files and listings that are open may fail after a restart of this program"
                );
            }
            slots.free[size].push(place);
        }
        if !std::mem::replace(&mut slots.told, true) {
            tracing::warn!(
                "journal: {} MiB are full: directories and files opened from now on would get an error after a restart of this program",
                SIZE_MAX >> 20
            );
        }
    }

    /// Number of records, and of their bytes in the file.
    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, u64) {
        let slots = self.slots.lock();
        (slots.used.len(), slots.used.values().map(|(_, size)| SIZES[*size]).sum())
    }
}
