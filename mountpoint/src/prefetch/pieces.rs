//! The pieces of one object version that are in memory or in flight, and the reads that wait for them.
//!
//! Plain state without locks or I/O: the reader puts it under one short lock. Readers of the same version share it, so that a range in
//! flight for one of them is not requested again by another; and bytes that one reader has read stay for readers of the same version that
//! follow a little behind.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Bytes, Error, ReadDone};
use crate::buffer::{Block, Use};

/// Names a request to the store (or the cache) that fills pieces.
pub(super) type FetchNo = u64;

/// Names one of the handles that read.
pub(super) type ReaderNo = u64;

/// The longest distance, in bytes, at which a handle still finds bytes that another handle ahead of it has read. Doubling it holds that
/// much more memory for readers that are further apart.
const BEHIND_MAX: u64 = 16 << 20;

/// The distance ahead of another handle at which a read still counts as the next one of both: a read of the kernel's read-ahead. Doubling
/// it takes more reads of other places for those of programs that map one file.
const NEXT_MAX: u64 = 1 << 20;

#[derive(Debug)]
enum State {
    OnItsWay(FetchNo),
    Ready(Block),
}

#[derive(Debug)]
struct Piece {
    len: u64,
    state: State,
    /// Whether the piece is kept until it was read to its end; otherwise it is dropped as soon as the waiting reads have it.
    keep: bool,
    /// The number of the piece's bytes that each handle has read.
    read: Vec<(ReaderNo, u64)>,
    /// Whether the piece's reader has moved on: then the piece stays only while a read waits for it, or a handle is about to read it.
    left: bool,
}

impl Piece {
    fn new(len: u64, state: State, keep: bool) -> Self {
        Self { len, state, keep, read: Vec::new(), left: false }
    }

    /// Counts bytes of the piece that a handle has read; true once the handle has read all of it.
    fn count(&mut self, reader: ReaderNo, bytes: u64) -> bool {
        let at = self.read.iter().position(|(no, _)| *no == reader).unwrap_or_else(|| {
            self.read.push((reader, 0));
            self.read.len() - 1
        });
        self.read[at].1 += bytes;
        self.read[at].1 >= self.len
    }

    /// Bytes that no read has taken.
    fn unread(&self) -> u64 {
        self.len.saturating_sub(self.read.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0))
    }
}

struct Waiter {
    reader: ReaderNo,
    range: Range<u64>,
    done: ReadDone,
}

/// A read that can be answered now. The caller does so outside the lock.
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
    /// The handles, and the offset that each handle in sequence has reached. A handle without a read may begin at the start.
    readers: Vec<(ReaderNo, Option<u64>)>,
    /// The pieces that were left behind and stayed; some may be gone since.
    left: Vec<u64>,
}

impl Pieces {
    /// Whether no piece is in memory or in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Adds a handle.
    pub(super) fn enter(&mut self, reader: ReaderNo) {
        self.readers.push((reader, Some(0)));
    }

    /// Notes a read of a handle: in sequence up to this offset, or at random.
    pub(super) fn reads(&mut self, reader: ReaderNo, up_to: Option<u64>) {
        if let Some((_, front)) = self.readers.iter_mut().find(|(no, _)| *no == reader) {
            *front = up_to;
        }
    }

    /// The furthest offset that another handle in sequence has reached, if this handle's read begins there or a little ahead.
    pub(super) fn reached_by_others(&self, but: ReaderNo, start: u64) -> Option<u64> {
        let others = self.readers.iter().filter(|(no, _)| *no != but).filter_map(|(_, front)| *front);
        others.filter(|front| *front > 0 && (*front..=front + NEXT_MAX).contains(&start)).max()
    }

    /// Removes a handle, and the pieces that only it was going to read.
    pub(super) fn leave(&mut self, reader: ReaderNo) {
        self.readers.retain(|(no, _)| *no != reader);
        let (readers, waiters) = (&self.readers, &self.waiters);
        self.pieces.retain(|&start, piece| {
            let end = start + piece.len;
            (piece.unread() > 0 && !piece.left)
                || wanted(waiters, start, end)
                || awaited(readers, Some(reader), start, end)
        });
    }

    /// The bytes of `range` if all of them are in memory. Drops pieces that are now read to their end.
    pub(super) fn take(&mut self, reader: ReaderNo, range: &Range<u64>) -> Option<Bytes> {
        let bytes = self.peek(range)?;
        self.mark_read(reader, range);
        Some(bytes)
    }

    fn peek(&self, range: &Range<u64>) -> Option<Bytes> {
        let mut bytes = Bytes::default();
        let mut at = range.start;
        while at < range.end {
            let (start, piece) = self.pieces.range(..=at).next_back()?;
            let State::Ready(block) = &piece.state else { return None };
            let end = (start + piece.len).min(range.end);
            if end <= at {
                return None;
            }
            bytes.push(block.clone(), (at - start) as usize..(end - start) as usize);
            at = end;
        }
        Some(bytes)
    }

    /// Drops pieces that are read to their end, unless another read waits for them together with bytes still to come, or another handle
    /// is about to read them.
    fn mark_read(&mut self, reader: ReaderNo, range: &Range<u64>) {
        let Some(first) = self.pieces.range(..=range.start).next_back().map(|(s, _)| *s) else { return };
        let (waiters, readers) = (&self.waiters, &self.readers);
        let mut gone = Vec::new();
        for (&start, piece) in self.pieces.range_mut(first..range.end) {
            let end = start + piece.len;
            let read = range.end.min(end).saturating_sub(range.start.max(start));
            if read == 0 || matches!(piece.state, State::OnItsWay(_)) {
                continue;
            }
            let whole = piece.count(reader, read);
            let State::Ready(block) = &piece.state else { continue };
            if wanted(waiters, start, end) {
                continue;
            }
            let done = !piece.keep || (whole && !awaited(readers, Some(reader), start, end));
            // A block that a reader waited for counts as read-ahead from now on, if there is room for that.
            if done || !block.try_convert(Use::Ahead) {
                gone.push(start);
            }
        }
        for start in gone {
            self.pieces.remove(&start);
        }
    }

    /// The parts of `range` that are neither in memory nor in flight, in order.
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

    /// Notes that `range`, which was missing, is now in flight.
    pub(super) fn expect(&mut self, range: Range<u64>, fetch: FetchNo, keep: bool) {
        let len = range.end - range.start;
        self.pieces.insert(range.start, Piece::new(len, State::OnItsWay(fetch), keep));
    }

    /// Adds bytes that came before any read requested them, if none of these bytes is in memory or in flight.
    pub(super) fn put(&mut self, start: u64, block: Block) {
        let range = start..start + block.len() as u64;
        if !range.is_empty() && self.missing(&range) == [range.clone()] {
            self.pieces.insert(start, Piece::new(range.end - range.start, State::Ready(block), true));
        }
    }

    /// Whether a read of this handle waits.
    pub(super) fn is_awaited_by(&self, reader: ReaderNo) -> bool {
        self.waiters.iter().any(|waiter| waiter.reader == reader)
    }

    /// Registers a read: `done` is called once all of `range` came, or a part failed.
    pub(super) fn wait(&mut self, reader: ReaderNo, range: Range<u64>, done: ReadDone) {
        self.waiters.push(Waiter { reader, range, done });
    }

    /// Adds a piece, and returns the reads that it completes.
    pub(super) fn ready(&mut self, start: u64, fetch: FetchNo, block: Block) -> Vec<Answer> {
        match self.pieces.get_mut(&start) {
            Some(piece) if matches!(piece.state, State::OnItsWay(f) if f == fetch) => {
                piece.state = State::Ready(block);
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
                    let Waiter { reader, done, .. } = self.waiters.swap_remove(i);
                    answers.push(Answer { done, result: Ok(bytes) });
                    served.push((reader, range));
                }
                None => i += 1,
            }
        }
        // This comes last, so that two reads that wait for the same bytes both get them.
        for (reader, range) in &served {
            self.mark_read(*reader, range);
        }
        answers
    }

    /// Notes the failure of a request: its missing bytes are no longer in flight, and the reads that wait for them get the error.
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

    /// Drops all pieces, because no byte of the version can be trusted. Every waiting read gets the error.
    pub(super) fn fail_all(&mut self, error: &Error) -> Vec<Answer> {
        self.pieces.clear();
        self.left.clear();
        let waiters = std::mem::take(&mut self.waiters);
        waiters.into_iter().map(|w| Answer { done: w.done, result: Err(error.clone()) }).collect()
    }

    /// The reader of the pieces that end in `range` has left them behind. Drops those, and those that were left behind before, unless a
    /// read waits for them or a handle is about to read them. Returns the number of bytes dropped unread, and the requests whose bytes no
    /// reader wants any more.
    pub(super) fn forget(&mut self, range: &Range<u64>) -> (u64, Vec<FetchNo>) {
        for (&start, piece) in self.pieces.range_mut(..range.end).rev() {
            let end = start + piece.len;
            if end <= range.start {
                break;
            }
            if end <= range.end && !piece.left {
                piece.left = true;
                self.left.push(start);
            }
        }
        let mut dropped = 0;
        let mut idle = Vec::new();
        let (pieces, waiters, readers) = (&mut self.pieces, &self.waiters, &self.readers);
        self.left.retain(|start| {
            let Some(piece) = pieces.get(start).filter(|piece| piece.left) else { return false };
            let end = start + piece.len;
            if wanted(waiters, *start, end) || awaited(readers, None, *start, end) {
                return true;
            }
            match &piece.state {
                State::Ready(_) => dropped += piece.unread(),
                State::OnItsWay(fetch) => idle.push(*fetch),
            }
            pieces.remove(start);
            false
        });
        idle.sort_unstable();
        idle.dedup();
        idle.retain(|f| !self.pieces.values().any(|p| matches!(p.state, State::OnItsWay(g) if g == *f)));
        (dropped, idle)
    }

    /// Drops bytes in memory that no read requested yet; bytes in flight stay. Returns the number of bytes dropped unread.
    pub(super) fn forget_ready(&mut self) -> u64 {
        let mut dropped = 0;
        let waiters = &self.waiters;
        self.pieces.retain(|start, piece| match &piece.state {
            State::Ready(_) if wanted(waiters, *start, start + piece.len) => true,
            State::Ready(_) => {
                dropped += piece.unread();
                false
            }
            State::OnItsWay(_) => true,
        });
        dropped
    }
}

/// Whether another handle reads in sequence towards a piece and is near it, or in it.
fn awaited(readers: &[(ReaderNo, Option<u64>)], but: Option<ReaderNo>, start: u64, end: u64) -> bool {
    let mut fronts = readers.iter().filter(|(no, _)| Some(*no) != but).filter_map(|(_, front)| *front);
    fronts.any(|front| front < end && front + BEHIND_MAX >= start)
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
        pieces.wait(1, 2..8, done());
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
        pieces.wait(1, 0..2, done());
        pieces.wait(1, 4..6, done());
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
        pieces.wait(1, 0..2, done());
        assert_eq!(pieces.forget(&(0..100)), (4, vec![2]));
        assert_eq!(pieces.missing(&(0..12)), [4..12]);
    }

    #[test]
    fn what_a_run_leaves_behind_are_the_pieces_that_end_there() {
        let (pool, mut pieces) = (pool(), Pieces::default());
        for (n, start) in [0, 4, 8, 12].into_iter().enumerate() {
            pieces.expect(start..start + 4, n as u64, true);
            pieces.ready(start, n as u64, block(&pool, b"abcd"));
        }
        assert!(pieces.take(1, &(6..7)).is_some());
        assert_eq!(pieces.forget(&(6..14)).0, 3 + 4, "the first byte of the range lies in the second piece");
        assert_eq!(pieces.missing(&(0..16)), [4..12], "what goes on behind the range stays");
        assert_eq!(pieces.forget(&(4..12)).0, 0, "what ends where the range begins stays, too");
        assert_eq!(pieces.missing(&(0..16)), [4..12]);
        assert_eq!(pieces.forget(&(14..16)).0, 4);
        assert_eq!(pieces.missing(&(0..16)), [4..16]);
    }

    #[test]
    fn bytes_left_behind_stay_for_a_later_handle_and_else_go() {
        let (pool, mut pieces) = (pool(), Pieces::default());
        pieces.enter(1);
        pieces.enter(2);
        let skip = |pieces: &mut Pieces| {
            pieces.expect(0..4, 1, true);
            pieces.ready(0, 1, block(&pool, b"abcd"));
            pieces.reads(1, Some(100));
            pieces.forget(&(0..50))
        };
        assert_eq!(skip(&mut pieces), (0, vec![]), "the other is still to read it");
        assert!(pieces.missing(&(0..4)).is_empty());
        pieces.reads(2, None);
        assert_eq!(pieces.forget(&(50..60)), (4, vec![]), "it went elsewhere");
        pieces.reads(2, Some(0));
        assert_eq!(skip(&mut pieces), (0, vec![]));
        pieces.leave(2);
        assert!(pieces.is_empty(), "it is closed");
    }

    #[test]
    fn a_random_piece_goes_with_its_answer() {
        let (pool, mut pieces) = (pool(), Pieces::default());
        let (seen, done) = recorder();
        pieces.expect(4096..8192, 1, false);
        pieces.wait(1, 4100..4104, done());
        pieces.wait(2, 4200..4201, done());
        pieces.ready(4096, 1, block(&pool, &[7; 4096])).into_iter().for_each(Answer::give);
        assert_eq!(seen.lock().unwrap().len(), 2, "both reads that waited have it");
        assert!(pieces.pieces.is_empty());
    }

    #[test]
    fn a_finished_piece_stays_for_a_read_that_waits_for_it_and_its_neighbour() {
        let (pool, mut pieces) = (pool(), Pieces::default());
        let (seen, done) = recorder();
        pieces.expect(0..4, 1, true);
        pieces.expect(4..8, 2, true);
        pieces.wait(1, 0..8, done());
        pieces.ready(0, 1, block(&pool, b"abcd"));
        assert_eq!(pieces.take(1, &(0..4)).unwrap().to_vec(), b"abcd");
        pieces.forget_ready();
        pieces.ready(4, 2, block(&pool, b"efgh")).into_iter().for_each(Answer::give);
        assert_eq!(*seen.lock().unwrap(), [Ok(b"abcdefgh".to_vec())]);
        assert!(pieces.pieces.is_empty());
    }

    #[test]
    fn what_one_handle_has_read_stays_for_one_that_reads_the_same_behind_it() {
        let (pool, mut pieces) = (pool(), Pieces::default());
        pieces.enter(1);
        pieces.enter(2);
        for (n, start) in [0, 4, 8].into_iter().enumerate() {
            pieces.expect(start..start + 4, n as u64, true);
            pieces.ready(start, n as u64, block(&pool, b"abcd"));
        }
        let read = |pieces: &mut Pieces, reader, range: Range<u64>| {
            pieces.reads(reader, Some(range.end));
            pieces.take(reader, &range).is_some()
        };
        // In turns, by halves: two halves by two handles are not a whole.
        for range in [0..2, 2..4, 4..6, 6..8] {
            assert!(read(&mut pieces, 1, range.clone()) && read(&mut pieces, 2, range), "both find it");
        }
        assert_eq!(pieces.missing(&(0..8)), [0..8], "what both have read is gone");
        assert!(read(&mut pieces, 1, 8..12) && pieces.missing(&(8..12)).is_empty());
        pieces.leave(2);
        assert_eq!(pieces.missing(&(8..12)), [8..12], "no reader is left for it");
    }

    #[test]
    fn nothing_is_held_for_a_handle_that_reads_at_random_or_far_away() {
        let (pool, mut pieces) = (pool(), Pieces::default());
        for (other, start) in [(None, 0), (Some(9), 0), (Some(0), BEHIND_MAX + 1)] {
            pieces.enter(1);
            pieces.enter(2);
            pieces.reads(2, other);
            pieces.expect(start..start + 4, 1, true);
            pieces.ready(start, 1, block(&pool, b"abcd"));
            assert!(pieces.take(1, &(start..start + 4)).is_some());
            assert!(pieces.pieces.is_empty(), "{other:?} {start}");
            pieces.leave(1);
            pieces.leave(2);
        }
    }
}
