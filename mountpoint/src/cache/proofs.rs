//! The store's checksums of whole versions, and the versions that were found wrong. Memory only.

use std::collections::{HashMap, VecDeque};

use crate::checksum::Checksum;
use crate::object::ObjectId;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Most versions whose checksums are kept. Beyond it the oldest checksum is dropped, and later runs do not serve that version. Doubling it
/// doubles the memory (half a KiB each), and keeps more versions that are read in part, and to their end much later.
const EXPECTED_MAX: usize = 4096;

/// Most wrong versions that are noted. Beyond it the oldest note is dropped, and queued blocks of that version are written.
const WRONG_MAX: usize = 64;

/// The checksums of versions, and the versions that were found wrong.
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

    /// The store's checksum of a version, if it is known.
    pub(super) fn expected(&self, id: &ObjectId) -> Option<Checksum> {
        self.expected.lock().sums.get(id).copied()
    }

    /// Notes that a version was found wrong at `now`: its blocks that were put earlier are not written.
    pub(super) fn condemn(&self, id: &ObjectId, now: u64) {
        let mut wrong = self.wrong.lock();
        wrong.retain(|(of, _)| of != id);
        if wrong.len() == WRONG_MAX {
            wrong.pop_front();
        }
        wrong.push_back((id.clone(), now));
        self.any_wrong.store(true, Relaxed);
    }

    /// Whether a block put at the time `put` belongs to a version that was found wrong later.
    pub(super) fn is_wrong(&self, id: &ObjectId, put: u64) -> bool {
        self.any_wrong.load(Relaxed) && self.wrong.lock().iter().any(|(of, at)| of == id && put <= *at)
    }
}
