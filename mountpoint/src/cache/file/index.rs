//! The object versions in the cache: a map in memory. Each part of it has a lock, so readers of different files rarely contend.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::Entry;
use crate::cache::format::Identity;
use crate::sync::{Arc, Mutex};

/// Number of parts of the map, each with a lock of its own.
const SHARDS: usize = 64;

/// The entries of the cache in memory, by the hash of their identity. If two identities have the same 64-bit hash, the second is not
/// cached, as if the cache were full.
#[derive(Debug)]
pub(in crate::cache) struct Index {
    hasher: RandomState,
    shards: Box<[Shard]>,
}

/// Entries by the hashes of their identities.
type Shard = Mutex<HashMap<u64, Arc<Entry>>>;

impl Index {
    /// An empty index.
    pub(in crate::cache) fn new() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::new(HashMap::new())).collect();
        Self { hasher: RandomState::new(), shards }
    }

    fn place(&self, identity: &Identity<'_>) -> (u64, &Shard) {
        let hash = self.hasher.hash_one((identity.scope, identity.key, identity.etag, identity.modified));
        (hash, &self.shards[(hash >> 32) as usize % SHARDS])
    }

    /// The entry of a version, if the index has it.
    pub(in crate::cache) fn get(&self, identity: &Identity<'_>) -> Option<Arc<Entry>> {
        let (hash, shard) = self.place(identity);
        let shard = shard.lock();
        shard.get(&hash).filter(|entry| entry.identity() == *identity).cloned()
    }

    /// Adds a version. False if another entry has its hash.
    pub(in crate::cache) fn insert(&self, entry: &Arc<Entry>) -> bool {
        let (hash, shard) = self.place(&entry.identity());
        let mut shard = shard.lock();
        let free = !shard.contains_key(&hash);
        if free {
            shard.insert(hash, Arc::clone(entry));
        }
        free
    }

    /// Removes a version. Another entry with its hash stays.
    pub(in crate::cache) fn remove(&self, entry: &Arc<Entry>) {
        let (hash, shard) = self.place(&entry.identity());
        let mut shard = shard.lock();
        if shard.get(&hash).is_some_and(|there| Arc::ptr_eq(there, entry)) {
            shard.remove(&hash);
        }
    }

    /// Visits each version, without a lock during the visit.
    pub(in crate::cache) fn for_each(&self, mut visit: impl FnMut(&Arc<Entry>)) {
        for shard in &self.shards {
            let entries: Vec<_> = shard.lock().values().cloned().collect();
            entries.iter().for_each(&mut visit);
        }
    }
}
