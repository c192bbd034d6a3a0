//! First bytes that came with a look-up, until its open takes them. Pure.

use std::collections::VecDeque;
use std::time::Instant;

use super::{FRESH, InodeNo};
use crate::first::First;
use crate::listing::expiry::left;

/// First bytes that look-ups of the last 20 ms brought, in the order of their answers.
#[derive(Debug, Default)]
pub(super) struct Firsts(VecDeque<(InodeNo, Instant, First)>);

impl Firsts {
    /// Most at once: look-ups that no open follows at once leave one each. The oldest goes beyond it.
    const MOST: usize = 64;

    /// A look-up brought this at `now`.
    pub(super) fn put(&mut self, ino: InodeNo, first: First, now: Instant) {
        self.expire(now);
        if self.0.len() >= Self::MOST {
            self.0.pop_front();
        }
        self.0.push_back((ino, now, first));
    }

    /// Takes the first bytes that the look-up just before brought; `None` when they are no longer fresh.
    pub(super) fn take(&mut self, ino: InodeNo, now: Instant) -> Option<First> {
        let at = self.0.iter().position(|(of, ..)| *of == ino)?;
        let (_, since, first) = self.0.remove(at)?;
        (!left(FRESH, since, now).is_zero()).then_some(first)
    }

    /// Another lookup came first.
    pub(super) fn forget(&mut self, ino: InodeNo) {
        self.0.retain(|(of, ..)| *of != ino);
    }

    /// Lets go of what no open may use any more.
    pub(super) fn expire(&mut self, now: Instant) {
        while self.0.front().is_some_and(|(_, since, _)| left(FRESH, *since, now).is_zero()) {
            self.0.pop_front();
        }
    }
}
