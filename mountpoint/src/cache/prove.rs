//! Proves versions that came over plain HTTP: once the cache has a whole version, it reads the version back and compares it with the
//! store's checksum. Later runs serve only proven versions; a wrong version is removed at once.

use std::time::{Duration, Instant};

use super::CACHE_BLOCK;
use super::file::Entry;
use super::format::encode_header;
use super::health::Doing;
use super::io::{How, Kind, write_full};
use super::store::Store;
use crate::checksum::{Checksum, Hasher};
use crate::object::ObjectId;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Longest queue of versions to prove. Beyond it a version stays unproven, so later runs do not serve it. Doubling it proves twice as many
/// small files that come at once.
pub(super) const QUEUE_MAX: usize = 1024;

/// Longest time for proofs after the end of a mount; versions not proven by then are not served later. Doubling it proves larger versions
/// among those that were read last.
pub(super) const AFTER_END: Duration = Duration::from_secs(3);

/// The outcome of a proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Proven,
    Wrong(Checksum),
    /// Undecided: the version was evicted or rotted, a disk failed, or the mount ended.
    Open,
}

impl Store {
    /// An unproven version that the cache has completely, with the store's checksum. `None` if one of the two is missing, or needs no
    /// proof.
    pub(super) fn to_prove(&self, id: &ObjectId) -> Option<(Arc<Entry>, Checksum)> {
        if !self.needs_proof || self.health.is_off() {
            return None;
        }
        let entry = self.index.get(&self.identity(id)).filter(|entry| entry.awaits_proof())?;
        Some((entry, self.proofs.expected(id)?))
    }

    /// Compares a whole version with the store's checksum. After `stop` is set, the comparison gives up at `until`.
    pub(super) fn prove(&self, entry: &Arc<Entry>, expected: Checksum, stop: &AtomicBool, until: Instant) {
        if !entry.hold_unproven() {
            return;
        }
        let outcome = self.compare(entry, expected, &|| stop.load(Relaxed) && self.clock.now() > until);
        entry.let_go(self.uses.load(Relaxed));
        match outcome {
            Outcome::Proven | Outcome::Open => {}
            Outcome::Wrong(ours) => {
                self.metrics.read_corrupt.inc();
                let key = entry.owner.id().key;
                tracing::warn!(
                    "cache: \"{key}\" was not kept: all of it came, and its {} is {}, not {} as the store says; the next open fetches it \
                     anew; if this goes on, use https, or look at the network and at this machine's memory",
                    ours.algorithm.name(),
                    ours.to_base64(),
                    expected.to_base64()
                );
                if let Some((entry, bytes)) = self.condemn(&entry.owner.id()) {
                    self.unlink_removed(&entry, bytes);
                }
            }
        }
    }

    fn compare(&self, entry: &Arc<Entry>, expected: Checksum, gives_up: &dyn Fn() -> bool) -> Outcome {
        let (id, size) = (entry.owner.id(), entry.object_size);
        let mut hasher = Hasher::new(expected.algorithm);
        let mut chunk = vec![0; CACHE_BLOCK.min(size) as usize];
        for start in (0..size).step_by(CACHE_BLOCK as usize) {
            let range = start..size.min(start + CACHE_BLOCK);
            let chunk = &mut chunk[..(range.end - range.start) as usize];
            // Rot on the disk does not prove that the bytes came wrong: the next read finds the rot, and fetches the bytes anew.
            if gives_up() || !self.is_read(&id, size, &range, chunk) {
                return Outcome::Open;
            }
            hasher.update(chunk);
        }
        let ours = hasher.finish();
        if ours != expected {
            return Outcome::Wrong(ours);
        }
        match self.say_proven(entry, true) {
            Ok(()) => {
                entry.set_proven(true);
                Outcome::Proven
            }
            Err(e) => {
                self.health.failure(Doing::Writing, &e);
                Outcome::Open
            }
        }
    }

    /// Marks a proven version as unproven, before new sectors are added.
    pub(super) fn doubt_proof(&self, entry: &Entry) -> std::io::Result<()> {
        if self.needs_proof && entry.set_proven(false) {
            self.say_proven(entry, false)?;
        }
        Ok(())
    }

    fn say_proven(&self, entry: &Entry, is_proven: bool) -> std::io::Result<()> {
        let header = encode_header(&entry.identity(), entry.object_size, is_proven);
        let meta = self.io.open(&entry.name, Kind::Meta, How::Write)?;
        write_full(&*self.io, &meta, &header, 0)
    }
}
