//! Deviations from S3 that a store's answers have shown. Each kind is logged once per mount, and counted.

use crate::object::ObjectKey;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A deviation of answers from S3 that the engine tolerates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Oddity {
    /// An object's answer without an ETag.
    NoEtag,
    /// An object's answer without a valid date.
    NoDate,
    /// An object's answer without its length.
    NoLength,
    /// A listing with entries that can't be shown.
    BadEntries,
    /// The store refuses If-Match although the object has the requested version.
    IfMatch,
    /// The store refuses If-None-Match although no object exists, probably for a delete marker.
    Markers,
    /// The store answers a range of the last bytes with other bytes.
    Suffix,
}

const KINDS: usize = 7;

/// The deviations of one store, seen so far.
#[derive(Debug, Default)]
pub(crate) struct Oddities {
    seen: [AtomicU64; KINDS],
    without_if_match: AtomicBool,
    without_suffix: AtomicBool,
    /// The first key for which a request for last bytes was denied.
    denied: Mutex<Option<ObjectKey>>,
}

impl Oddities {
    /// Counts an odd answer. The first one of its kind is logged.
    pub(crate) fn saw(&self, oddity: Oddity, key: Option<&ObjectKey>, detail: &str) {
        if self.seen[oddity as usize].fetch_add(1, Relaxed) > 0 {
            return;
        }
        let meaning = match oddity {
            Oddity::NoEtag => {
                "the store names no ETag for an object: versions differ only by size and whole second of their date"
            }
            Oddity::NoDate => "the store names no date that can be read: that of a listing is shown, or 1970",
            Oddity::NoLength => {
                "the store does not say how long an object is: each look at it takes a request more"
            }
            Oddity::BadEntries => "a listing has entries that can't be shown; they are left out",
            Oddity::IfMatch => {
                "the store refuses If-Match with its own ETag: reads go without it, and compare the answer"
            }
            Oddity::Markers => {
                "the store refuses If-None-Match where nothing is, as for a delete marker: there a file is stored without it, once HEAD has found nothing"
            }
            Oddity::Suffix => {
                "the store does not answer a range of the last bytes as asked: the tail of a file that was never seen is read behind its HEAD"
            }
        };
        tracing::warn!(key = key.map(tracing::field::display), detail, "{meaning} (logged once)");
    }

    /// Whether an answer had this oddity.
    pub(crate) fn has_seen(&self, oddity: Oddity) -> bool {
        self.seen[oddity as usize].load(Relaxed) > 0
    }

    /// Notes that the store refuses If-Match: from now on, reads go without it.
    pub(crate) fn if_match_is_refused(&self, key: &ObjectKey) {
        self.without_if_match.store(true, Relaxed);
        self.saw(Oddity::IfMatch, Some(key), "");
    }

    /// Notes that the store answered a suffix range (last bytes of unknown offset) wrongly, or refused it. From now on no such request is
    /// sent.
    pub(crate) fn suffix_is_refused(&self, key: &ObjectKey, detail: &str) {
        self.without_suffix.store(true, Relaxed);
        self.saw(Oddity::Suffix, Some(key), detail);
    }

    /// Notes that the store denied a suffix range: the caller may not read that object, or it is missing, which some stores answer with the
    /// same status. Such a request costs an extra HEAD, so a second denied key ends these requests.
    pub(crate) fn suffix_is_denied(&self, key: &ObjectKey) {
        let mut denied = self.denied.lock();
        if denied.get_or_insert_with(|| key.clone()) != key {
            self.without_suffix.store(true, Relaxed);
        }
    }

    /// Whether suffix ranges may be requested: no answer of the store has shown that it does not know them.
    pub(crate) fn knows_suffix(&self) -> bool {
        !self.without_suffix.load(Relaxed)
    }

    /// Whether reads carry If-Match: the store has not refused it.
    pub(crate) fn knows_if_match(&self) -> bool {
        !self.without_if_match.load(Relaxed)
    }
}
