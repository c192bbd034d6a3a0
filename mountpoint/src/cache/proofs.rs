//! Checksums that the store said of whole versions, and versions that were found to be wrong. Memory only.

use std::collections::{HashMap, VecDeque};

use crate::checksum::Checksum;
use crate::object::ObjectId;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Most versions whose checksums are kept. Beyond it the oldest is dropped, and that version is not kept for later runs. Doubling it
/// doubles the memory (half a KiB each), and keeps more versions that are read in part, and to their end much later.
const EXPECTED_MAX: usize = 4096;

/// Most wrong versions that are kept, until their blocks that wait to be written are dropped.
const WRONG_MAX: usize = 64;

/// Versions with their checksums, and versions that were found wrong.
#[derive(Debug, Default)]
pub(super) struct Proofs {
    expected: Mutex<Expected>,
    /// Versions that were found wrong, with the time: blocks that were put earlier are not written.
    wrong: Mutex<VecDeque<(ObjectId, u64)>>,
    any_wrong: AtomicBool,
}

#[derive(Debug, Default)]
struct Expected {
    sums: HashMap<ObjectId, Checksum>,
    order: VecDeque<ObjectId>,
}

impl Proofs {
    /// Notes the store's checksum of all bytes of a version.
    pub(super) fn expect(&self, id: &ObjectId, sum: Checksum) {
        let mut expected = self.expected.lock();
        if expected.sums.insert(id.clone(), sum).is_none() {
            expected.order.push_back(id.clone());
            if expected.order.len() > EXPECTED_MAX
                && let Some(oldest) = expected.order.pop_front()
            {
                expected.sums.remove(&oldest);
            }
        }
    }

    /// The checksum of a version, if the store said one.
    pub(super) fn expected(&self, id: &ObjectId) -> Option<Checksum> {
        self.expected.lock().sums.get(id).copied()
    }

    /// Notes that a version was found wrong at `now`.
    pub(super) fn condemn(&self, id: &ObjectId, now: u64) {
        let mut wrong = self.wrong.lock();
        wrong.retain(|(of, _)| of != id);
        if wrong.len() == WRONG_MAX {
            wrong.pop_front();
        }
        wrong.push_back((id.clone(), now));
        self.any_wrong.store(true, Relaxed);
    }

    /// Whether a block that was put at this time belongs to a version that was found wrong since.
    pub(super) fn is_wrong(&self, id: &ObjectId, put: u64) -> bool {
        self.any_wrong.load(Relaxed) && self.wrong.lock().iter().any(|(of, at)| of == id && put <= *at)
    }
}
