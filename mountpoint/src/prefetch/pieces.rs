//! What is held and what is on its way of one object version, piece by piece, and which reads wait for it.
//!
//! Plain state without locks or I/O: the reader puts it under one short lock. Readers of the same version share
//! it, so that a range on its way for one of them is not asked for again by another.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Bytes, Error, ReadDone};
use crate::buffer::{Block, Use};

/// Names a request to the store (or the cache) that fills pieces.
pub(super) type FetchNo = u64;

#[derive(Debug)]
enum State {
    OnItsWay(FetchNo),
    Ready { block: Block, unread: u64 },
}

#[derive(Debug)]
struct Piece {
    len: u64,
    state: State,
    /// Worth keeping until it was read to the end; else it goes as soon as whoever waits has it.
    keep: bool,
}

struct Waiter {
    range: Range<u64>,
    done: ReadDone,
}

/// A read that can be answered now: call it outside the lock.
pub(super) struct Answer {
    pub(super) done: ReadDone,
    pub(super) result: Result<Bytes, Error>,
}

impl Answer {
    pub(super) fn give(self) {
        (self.done)(self.result);
    }
}

/// The pieces of one object version.
#[derive(Default)]
pub(super) struct Pieces {
    pieces: BTreeMap<u64, Piece>,
    waiters: Vec<Waiter>,
}

impl Pieces {
    /// The bytes of `range` if all of them are here. What was read to its end is let go.
    pub(super) fn take(&mut self, range: &Range<u64>) -> Option<Bytes> {
        let bytes = self.peek(range)?;
        self.mark_read(range);
        Some(bytes)
    }

    fn peek(&self, range: &Range<u64>) -> Option<Bytes> {
        let mut bytes = Bytes::default();
        let mut at = range.start;
        while at < range.end {
            let (start, piece) = self.pieces.range(..=at).next_back()?;
            let State::Ready { block, .. } = &piece.state else { return None };
            let end = (start + piece.len).min(range.end);
            if end <= at {
                return None;
            }
            bytes.push(block.clone(), (at - start) as usize..(end - start) as usize);
            at = end;
        }
        Some(bytes)
    }

    /// Lets go of what is read to its end, unless another read waits for it together with something still to come.
    fn mark_read(&mut self, range: &Range<u64>) {
        let Some(first) = self.pieces.range(..=range.start).next_back().map(|(s, _)| *s) else { return };
        let waiters = &self.waiters;
        let mut gone = Vec::new();
        for (start, piece) in self.pieces.range_mut(first..range.end) {
            let end = start + piece.len;
            let read = range.end.min(end).saturating_sub(range.start.max(*start));
            let State::Ready { unread, block } = &mut piece.state else { continue };
            if read == 0 || wanted(waiters, *start, end) {
                *unread = unread.saturating_sub(read);
                continue;
            }
            *unread = unread.saturating_sub(read);
            // A block that a reader waited for counts as read-ahead from now on, if there is room for that.
            if *unread == 0 || !piece.keep || !block.try_convert(Use::Ahead) {
                gone.push(*start);
            }
        }
        for start in gone {
            self.pieces.remove(&start);
        }
    }

    /// The parts of `range` that are neither here nor on their way, in order.
    pub(super) fn missing(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut missing = Vec::new();
        let mut at = range.start;
        if let Some((start, piece)) = self.pieces.range(..=at).next_back() {
            at = at.max((start + piece.len).min(range.end));
        }
        for (start, piece) in self.pieces.range(at..range.end) {
            if *start > at {
                missing.push(at..*start);
            }
            at = at.max(start + piece.len);
        }
        if at < range.end {
            missing.push(at..range.end);
        }
        missing
    }

    /// Says that `range`, which was missing, is now on its way.
    pub(super) fn expect(&mut self, range: Range<u64>, fetch: FetchNo, keep: bool) {
        self.pieces
            .insert(range.start, Piece { len: range.end - range.start, state: State::OnItsWay(fetch), keep });
    }

    /// Has `done` called once all of `range` came, or part of it failed.
    pub(super) fn wait(&mut self, range: Range<u64>, done: ReadDone) {
        self.waiters.push(Waiter { range, done });
    }

    /// A piece came. Returns the reads it completes.
    pub(super) fn ready(&mut self, start: u64, fetch: FetchNo, block: Block) -> Vec<Answer> {
        match self.pieces.get_mut(&start) {
            Some(piece) if matches!(piece.state, State::OnItsWay(f) if f == fetch) => {
                piece.state = State::Ready { unread: piece.len, block };
            }
            _ => return Vec::new(), // given up meanwhile
        }
        let mut answers = Vec::new();
        let mut served = Vec::new();
        let mut i = 0;
        while i < self.waiters.len() {
            let range = self.waiters[i].range.clone();
            let touched = self.pieces[&start].len + start > range.start && start < range.end;
            match touched.then(|| self.peek(&range)).flatten() {
                Some(bytes) => {
                    answers.push(Answer { done: self.waiters.swap_remove(i).done, result: Ok(bytes) });
                    served.push(range);
                }
                None => i += 1,
            }
        }
        // Only now: two reads that wait for the same bytes both get them.
        for range in &served {
            self.mark_read(range);
        }
        answers
    }

    /// A request failed: what it did not bring is not on its way any more, and who waits for that hears why.
    pub(super) fn failed(&mut self, fetch: FetchNo, error: &Error) -> Vec<Answer> {
        let lost: Vec<Range<u64>> = self
            .pieces
            .extract_if(.., |_, p| matches!(p.state, State::OnItsWay(f) if f == fetch))
            .map(|(start, p)| start..start + p.len)
            .collect();
        let hit = |w: &Waiter| lost.iter().any(|l| l.start < w.range.end && w.range.start < l.end);
        let (hit, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiters).into_iter().partition(hit);
        self.waiters = rest;
        hit.into_iter().map(|w| Answer { done: w.done, result: Err(error.clone()) }).collect()
    }

    /// Drops what is held of `range` and nobody waits for. Returns the bytes dropped unread and
    /// the requests of which nothing is wanted any more.
    pub(super) fn forget(&mut self, range: &Range<u64>) -> (u64, Vec<FetchNo>) {
        let waiters = std::mem::take(&mut self.waiters);
        let mut dropped = 0;
        let mut idle = Vec::new();
        self.pieces.retain(|start, piece| {
            let end = start + piece.len;
            if *start < range.start || end > range.end || wanted(&waiters, *start, end) {
                return true;
            }
            match &piece.state {
                State::Ready { unread, .. } => dropped += unread,
                State::OnItsWay(fetch) => idle.push(*fetch),
            }
            false
        });
        self.waiters = waiters;
        idle.sort_unstable();
        idle.dedup();
        idle.retain(|f| !self.pieces.values().any(|p| matches!(p.state, State::OnItsWay(g) if g == *f)));
        (dropped, idle)
    }

    /// Drops what is here and nobody asked for yet; what is on its way stays. Returns the bytes dropped unread.
    pub(super) fn forget_ready(&mut self) -> u64 {
        let mut dropped = 0;
        let waiters = &self.waiters;
        self.pieces.retain(|start, piece| match &piece.state {
            State::Ready { .. } if wanted(waiters, *start, start + piece.len) => true,
            State::Ready { unread, .. } => {
                dropped += unread;
                false
            }
            State::OnItsWay(_) => true,
        });
        dropped
    }
}

fn wanted(waiters: &[Waiter], start: u64, end: u64) -> bool {
    waiters.iter().any(|w| w.range.start < end && start < w.range.end)
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of ranges that happen to have one element")]
mod tests {
    use super::*;
    use crate::buffer::{BLOCK, Config, Pool};
    use std::sync::{Arc, Mutex};

    fn block(pool: &Pool, bytes: &[u8]) -> Block {
        let mut block = pool.try_take(Use::Ahead, bytes.len()).unwrap();
        block.put(bytes);
        block.freeze()
    }

    fn pool() -> Pool {
        Pool::new(&Config { target: 64 * BLOCK as u64, network: 0 })
    }

    type Seen = Arc<Mutex<Vec<Result<Vec<u8>, String>>>>;

    fn recorder() -> (Seen, impl Fn() -> ReadDone) {
        let seen = Seen::default();
        let inner = Arc::clone(&seen);
        let make = move || -> ReadDone {
            let inner = Arc::clone(&inner);
            Box::new(move |r| inner.lock().unwrap().push(r.map(|b| b.to_vec()).map_err(|e| e.to_string())))
        };
        (seen, make)
    }

    #[test]
    fn a_read_across_two_pieces_is_answered_when_the_second_comes() {
        let (pool, mut pieces) = (pool(), Pieces::default());
        let (seen, done) = recorder();
        assert_eq!(pieces.missing(&(2..8)), [2..8]);
        pieces.expect(0..4, 1, true);
        pieces.expect(4..8, 1, true);
        assert!(pieces.missing(&(2..8)).is_empty());
        pieces.wait(2..8, done());
        assert!(pieces.ready(4, 1, block(&pool, b"efgh")).is_empty());
        pieces.ready(0, 1, block(&pool, b"abcd")).into_iter().for_each(Answer::give);
        assert_eq!(*seen.lock().unwrap(), [Ok(b"cdefgh".to_vec())]);
        assert_eq!(
            pieces.missing(&(0..8)),
            [4..8],
            "the second piece was read to its end, the first was not"
        );
    }

    #[test]
    fn a_failure_reaches_exactly_the_reads_it_concerns() {
        let (pool, mut pieces) = (pool(), Pieces::default());
        let (seen, done) = recorder();
        pieces.expect(0..4, 1, true);
        pieces.expect(4..8, 2, true);
        pieces.wait(0..2, done());
        pieces.wait(4..6, done());
        let error = Error::new(crate::s3::Error::new(crate::s3::ErrorKind::Timeout, "GetObject"));
        pieces.failed(2, &error).into_iter().for_each(Answer::give);
        assert_eq!(seen.lock().unwrap().len(), 1);
        assert!(seen.lock().unwrap()[0].is_err());
        pieces.ready(0, 1, block(&pool, b"abcd")).into_iter().for_each(Answer::give);
        assert_eq!(seen.lock().unwrap()[1], Ok(b"ab".to_vec()));
        assert!(pieces.ready(4, 2, block(&pool, b"late")).is_empty(), "what was given up is not taken");
    }

    #[test]
    fn forgetting_keeps_what_somebody_waits_for() {
        let (pool, mut pieces) = (pool(), Pieces::default());
        let (_, done) = recorder();
        pieces.expect(0..4, 1, true);
        pieces.expect(4..8, 2, true);
        pieces.expect(8..12, 3, true);
        pieces.ready(8, 3, block(&pool, b"ijkl"));
        pieces.wait(0..2, done());
        assert_eq!(pieces.forget(&(0..100)), (4, vec![2]));
        assert_eq!(pieces.missing(&(0..12)), [4..12]);
    }

    #[test]
    fn a_random_piece_goes_with_its_answer() {
        let (pool, mut pieces) = (pool(), Pieces::default());
        let (seen, done) = recorder();
        pieces.expect(4096..8192, 1, false);
        pieces.wait(4100..4104, done());
        pieces.wait(4200..4201, done());
        pieces.ready(4096, 1, block(&pool, &[7; 4096])).into_iter().for_each(Answer::give);
        assert_eq!(seen.lock().unwrap().len(), 2, "both reads that waited have it");
        assert!(pieces.pieces.is_empty());
    }

    #[test]
    fn a_piece_read_to_its_end_stays_for_a_read_that_waits_for_it_and_its_neighbour() {
        let (pool, mut pieces) = (pool(), Pieces::default());
        let (seen, done) = recorder();
        pieces.expect(0..4, 1, true);
        pieces.expect(4..8, 2, true);
        pieces.wait(0..8, done());
        pieces.ready(0, 1, block(&pool, b"abcd"));
        assert_eq!(pieces.take(&(0..4)).unwrap().to_vec(), b"abcd");
        pieces.forget_ready();
        pieces.ready(4, 2, block(&pool, b"efgh")).into_iter().for_each(Answer::give);
        assert_eq!(*seen.lock().unwrap(), [Ok(b"abcdefgh".to_vec())]);
        assert!(pieces.pieces.is_empty());
    }
}
