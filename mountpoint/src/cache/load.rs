//! Loads the files of an earlier run: reads sidecars into the index, in the background, and removes files that fail a check.

use std::io::{self, IoSliceMut};

use super::file::Entry;
use super::file::owner::Owner;
use super::format::{HEADER_MAX, Name, SLOT, Slot, block_len, decode_header, decode_slot, needs_proof};
use super::health::Doing;
use super::io::{How, Kind, Waits};
use super::sector::Sectors;
use super::store::{PREFIXES, Store};
use super::sums::Sums;
use super::{BlockIndex, CACHE_BLOCK};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Bytes of a sidecar read at once.
const CHUNK: usize = 64 << 10;
const _: () = assert!(CHUNK >= HEADER_MAX && CHUNK.is_multiple_of(SLOT));

/// The result of reading a sidecar.
enum Found {
    Sound(Arc<Entry>),
    /// This run made the sidecar, and may not have written its first slot yet: the loader leaves it alone.
    Ours,
    /// No blocks, or data without a sidecar: nothing is damaged.
    Empty,
    /// The version came over plain HTTP, and the run that wrote it did not compare it with the store's checksum.
    Unproven,
    /// The index has no room for the version, even after evictions.
    TooLarge,
    /// The sidecar is damaged.
    Broken,
}

impl Store {
    /// Loads all versions, folder by folder, until `stop`; then makes the cache fit its limit.
    pub(super) fn load_all(&self, stop: &AtomicBool) {
        if let Err(e) = self.io.sweep() {
            tracing::debug!("cache: cleaning up stopped: {e}");
        }
        for prefix in 0..PREFIXES {
            match self.io.list(prefix as u8) {
                Ok(names) => {
                    for name in names {
                        if stop.load(Relaxed) || self.health.is_off() {
                            return;
                        }
                        {
                            let _making = self.name_lock(&name);
                            self.load(&name);
                        }
                        // This step comes after the name lock, which an eviction takes. The files of earlier runs may need more memory
                        // than this run has.
                        self.shrink_index();
                    }
                }
                Err(e) => {
                    self.health.failure(Doing::Reading, &e);
                }
            }
            self.set_loaded(prefix + 1);
        }
        self.look_at_space();
        self.shrink();
    }

    /// Loads one version, or removes its files if they are of no use. The caller holds its name lock.
    pub(super) fn load(&self, name: &Name) {
        match self.examine(name) {
            // Nothing to do if the place is taken: the index has this version already, or (once in 2^64) another one with its hash.
            Ok(Found::Sound(entry)) => {
                self.adopt(&entry);
            }
            Ok(Found::Ours) => {}
            Ok(Found::Empty | Found::Unproven | Found::TooLarge) => self.unlink(name),
            Ok(Found::Broken) => {
                self.metrics.cache_corrupt.inc();
                self.unlink(name);
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => {
                self.health.failure(Doing::Reading, &e);
            }
        }
    }

    fn examine(&self, name: &Name) -> io::Result<Found> {
        let data = match self.io.stat(name, Kind::Data) {
            Ok(stat) => stat,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let sidecar = self.io.stat(name, Kind::Meta);
                return sidecar.map(|_| Found::Broken);
            }
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => return Ok(Found::Broken),
            Err(e) => return Err(e),
        };
        let meta = match self.io.open(name, Kind::Meta, How::Read) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Found::Empty),
            Err(e) => return Err(e),
        };
        let mut chunk = vec![0; CHUNK];
        let mut len = self.fill(&meta, &mut chunk, 0)?;
        let first = chunk[..len].to_vec();
        let Some(header) = decode_header(&first).filter(|h| h.identity.name() == *name) else {
            return Ok(Found::Broken);
        };
        // Versions are made and put into the index under the name lock, which the caller holds. If its files were unlinked here, such a
        // version would go on taking writes that no later run finds.
        if self.index.get(&header.identity).is_some() {
            return Ok(Found::Ours);
        }
        if needs_proof(header.identity.scope) && !header.is_proven {
            return Ok(Found::Unproven);
        }

        let blocks_max = header.object_size.div_ceil(CACHE_BLOCK);
        let (mut blocks, mut block, mut memory): (Vec<(u32, Sums)>, BlockIndex, u64) = (Vec::new(), 0, 0);
        let (mut from, mut at) = (header.slots_at as usize, 0);
        while block < blocks_max {
            for slot in chunk[from..len].as_chunks::<SLOT>().0.iter().take((blocks_max - block) as usize) {
                let index = block as u32; // below OBJECT_MAX, as decode_header checked
                let len = block_len(header.object_size, block) as u64;
                let is_there = |present: Sectors| block * CACHE_BLOCK + present.end(len) <= data.len;
                match decode_slot(name, index, header.object_size, slot) {
                    Slot::Empty => {}
                    Slot::Filled(sums) if is_there(sums.present()) => {
                        memory += size_of_val(&sums) as u64 + sums.memory();
                        blocks.push((index, sums));
                    }
                    Slot::Filled(..) | Slot::Broken => self.metrics.cache_corrupt.inc(),
                }
                block += 1;
            }
            if memory > self.index_max {
                return Ok(Found::TooLarge);
            }
            if len < CHUNK {
                break;
            }
            at += CHUNK as u64;
            from = 0;
            len = self.fill(&meta, &mut chunk, at)?;
        }
        if blocks.is_empty() {
            return Ok(Found::Empty);
        }
        let owner = Owner::read(&self.scope, &header.identity);
        let entry = Entry::new(owner, *name, &header, blocks, data.modified, &self.index_bytes);
        // A program may still read the file: by a mapping, or by a descriptor of a mount whose engine was killed.
        let entry = if data.lent { entry.was_lent() } else { Some(entry) };
        Ok(entry.map_or(Found::Broken, |entry| Found::Sound(Arc::new(entry))))
    }

    /// Reads at `at` until the chunk is full or the file ends, and returns the number of bytes.
    fn fill(&self, file: &std::os::fd::OwnedFd, chunk: &mut [u8], at: u64) -> io::Result<usize> {
        let mut len = 0;
        while len < chunk.len() {
            match self.io.read_at(
                file,
                &mut [IoSliceMut::new(&mut chunk[len..])],
                at + len as u64,
                Waits::Yes,
            )? {
                0 => break,
                n => len += n,
            }
        }
        Ok(len)
    }
}
