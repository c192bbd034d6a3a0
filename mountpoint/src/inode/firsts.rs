//! First bytes that came with a lookup, until the open after that lookup takes them. Pure.

use std::collections::VecDeque;
use std::time::Instant;

use super::{FRESH, InodeNo};
use crate::first::First;
use crate::listing::expiry::left;

/// First bytes from lookups of the last 20 ms, in the order of the answers.
#[derive(Debug, Default)]
pub(super) struct Firsts(VecDeque<(InodeNo, Instant, First)>);

impl Firsts {
    /// Most entries. A lookup without an open leaves one entry; beyond the limit the oldest is dropped.
    const MOST: usize = 64;

    /// Keeps the first bytes that a lookup of an inode brought at `now`.
    pub(super) fn put(&mut self, ino: InodeNo, first: First, now: Instant) {
        self.expire(now);
        if self.0.len() >= Self::MOST {
            self.0.pop_front();
        }
        self.0.push_back((ino, now, first));
    }

    /// Takes the first bytes that the latest lookup of an inode brought; `None` if they are too old.
    pub(super) fn take(&mut self, ino: InodeNo, now: Instant) -> Option<First> {
        let at = self.0.iter().position(|(of, ..)| *of == ino)?;
        let (_, since, first) = self.0.remove(at)?;
        (!left(FRESH, since, now).is_zero()).then_some(first)
    }

    /// Forgets the first bytes of an inode: another lookup came first.
    pub(super) fn forget(&mut self, ino: InodeNo) {
        self.0.retain(|(of, ..)| *of != ino);
    }

    /// Drops first bytes that are too old for an open.
    pub(super) fn expire(&mut self, now: Instant) {
        while self.0.front().is_some_and(|(_, since, _)| left(FRESH, *since, now).is_zero()) {
            self.0.pop_front();
        }
    }
}
