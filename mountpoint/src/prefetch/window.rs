//! Decides from a reader's offsets alone how far ahead to fetch. Pure.
//!
//! Several streams often read one handle at once (threads with their own regions, a kernel that sends its read-ahead out of order), so a
//! [`Window`] follows up to eight *runs*, upwards or downwards. A read that continues a run is sequential and moves the run's window. Any
//! other read is random, and gets the bytes it asked for and no more. A window grows fourfold as its run goes on, up to a limit learned
//! from the link (`link.rs`), and up to the expected end of the run, judged by the last runs that ended, or by a long run that was left.
//! Bytes that were fetched for a run and lie behind it, or are left of a run that ended, are forgotten: else a handle that skips or jumps
//! would fill the memory of all.
//!
//! A short first read of the object's last bytes gets the whole tail. Two more patterns differ from random reads. A copy out of a mapped
//! file (`memcpy` in the C library) touches its last bytes first, or its first bytes if it goes downwards: two random reads, then a read
//! beside either. All bytes between them are fetched, and none beyond; before the third read if the ends lie as far apart as those of the
//! handle's last copy. Reads of one length at one distance are a *stride*, and the next of them are fetched.

mod lengths;
mod run;
mod stride;

use std::cmp::Reverse;
use std::ops::Range;

use super::fetch::KEPT;
use crate::buffer::{BLOCK, Pressure};
use crate::first::TRAILER;
use lengths::Lengths;
use run::{Direction, PAGE, Run, SLACK, Step, Terms, request};
use stride::Stride;

/// The sizes a window works with, in bytes.
#[derive(Clone, Debug)]
pub struct WindowConfig {
    /// The first request of a run from offset 0: small, so that the first byte comes soon. Doubling it saves a request per file of that
    /// size, and delays the first byte of larger files on slow connections.
    pub first: u64,
    /// The size up to which a file is fetched whole, when its first read is a long one from the beginning. Doubling it doubles the bytes
    /// fetched in vain of files of which only the beginning is read.
    pub whole: u64,
    /// Bytes for a handle whose first read is a short one of the object's last bytes: these probably tell where a table of contents
    /// before them begins. Doubling it saves a round trip where the table is longer, and doubles the cost of a wrong guess.
    pub tail: u64,
    /// The largest window, whatever the link could use: at the target of 2 GB/s, it covers 134 ms from the request for a part to its last
    /// byte. Doubling it helps only where that takes longer.
    pub max: u64,
    /// Bytes of one request to the store. Doubling it halves the requests and the connections in use.
    pub part: u64,
}

impl Default for WindowConfig {
    fn default() -> Self {
        Self { first: 512 << 10, whole: 8 << 20, tail: 128 << 10, max: 256 << 20, part: 8 << 20 }
    }
}

/// The plan for one read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The range that the read itself needs, in whole pages, within the object; with the object's tail for a first read of its last bytes.
    pub demand: Range<u64>,
    /// The range to fetch beyond the demand; empty for a random read, and while enough is in flight. Begins where the run's earlier
    /// requests ended, which may be before, inside or behind `demand`. In a run downwards, the range ends there.
    pub ahead: Range<u64>,
    /// Ranges of the next reads of a stride, which are not in `ahead`.
    pub stride: Vec<Range<u64>>,
    /// The most bytes of one request for `ahead`.
    pub request: u64,
    /// Whether the read continues a run.
    pub sequential: bool,
    /// Whether the fetched pieces are worth keeping until they were read to their end.
    pub keep: bool,
    /// Whether the run goes downwards, so that the end of `ahead` is read first.
    pub descending: bool,
    /// A region that a run left behind: no read will ask for pieces that end in it.
    pub forget: Range<u64>,
    /// Whether the read continues none of the earlier reads.
    pub jumped: bool,
}

impl Plan {
    /// The offset that an upward reader has reached; `None` for a handle whose next read is elsewhere.
    pub fn reads_up_to(&self, end: u64) -> Option<u64> {
        (self.sequential && !self.descending).then_some(end)
    }
}

const RUNS_MAX: usize = 8;

/// Copies in a row with a wrongly guessed end, after which the handle's reads no longer count as copies. Doubling it doubles the bytes
/// fetched in vain by a handle whose random reads look like copies.
const WRONG_MAX: u32 = 3;

/// Reads that may come between the ends of a copy and the read that continues its first bytes, since several threads take reads from the
/// kernel. Doubling it takes more random reads for ends of copies.
const EARLY_MAX: u64 = 4;

/// Read at the end of an object that is too long for one of a trailer: the kernel reads 128 KiB around a page of a mapping by default, of
/// which one half lies behind the end. Doubling it misses copies down to the first byte on mounts with that default.
const AROUND: u64 = 64 << 10;

/// Bytes by which a kernel's read below a page of a mapping may differ from half of its read around one: the page itself, and one more of
/// an object whose size is odd. Doubling it takes more contents of tables for copies down to the first byte.
const HALF_SPREAD: u64 = 2 * PAGE;

/// Longest read at the end of an object that may be one of a table's footer. Doubling it costs copies downwards whose other end is not
/// seen, and copies up to the end of the object, another round trip on mounts with a longer read-ahead.
const FOOTER: u64 = 128 << 10;

/// The length of a first read that tells of a program that reads whole files: the most that a kernel asks for at once.
const LONG: u64 = 1 << 20;

/// Follows the reads of one handle.
#[derive(Debug)]
pub struct Window {
    config: WindowConfig,
    size: u64,
    runs: Vec<Run>,
    reads: u64,
    lengths: Lengths,
    stride: Stride,
    copies: Copies,
}

/// The results of the guesses where a copy ends.
#[derive(Debug, Default)]
struct Copies {
    /// A guess was right.
    proven: bool,
    /// The number of wrong guesses in a row, up to the last one.
    wrong: u32,
    /// The distance between the ends of the last complete copy.
    span: Option<u64>,
    /// The distance between the ends of the copy that the latest third read showed.
    begun: Option<u64>,
    /// The bytes between two reads that were fetched because of their distance alone, until the next read.
    guess: Option<Range<u64>>,
}

impl Window {
    /// A window over an object of `size` bytes, not read yet.
    pub fn new(config: WindowConfig, size: u64) -> Self {
        Self {
            config,
            size,
            runs: Vec::new(),
            reads: 0,
            lengths: Lengths::default(),
            stride: Stride::default(),
            copies: Copies::default(),
        }
    }

    /// A read of `range` (not empty, within the object). `limit`: bytes that are worth having ahead on this link.
    pub fn on_read(&mut self, range: &Range<u64>, pressure: Pressure, limit: u64) -> Plan {
        self.reads += 1;
        let disproved = self.disproved(range);
        let mut demand = range.start / PAGE * PAGE..range.end.next_multiple_of(PAGE).min(self.size);
        let is_trailer = self.reads == 1
            && range.end == self.size
            && range.end - range.start <= TRAILER
            && range.start > 0;
        if is_trailer && pressure < Pressure::High {
            let tail = self.size.saturating_sub(self.config.tail).next_multiple_of(PAGE);
            demand.start = demand.start.min(tail);
        }
        // The tail belongs to the run: a read within it is not the second read of a run downwards.
        let begun = if demand.start / PAGE == range.start / PAGE { range.start } else { demand.start };
        let Some(at) = self.continued(range) else {
            let is_late =
                self.runs.iter().any(|run| self.reads - run.last_used <= 2 && run.has_just_read(range));
            let (mut ahead, mut forget) =
                if is_late { (0..0, 0..0) } else { self.begin(&(begun..range.end), pressure) };
            let mut of_one = self.config.part;
            if ahead.is_empty()
                && pressure == Pressure::Low
                && let Some(between) = self.between_ends(range)
            {
                of_one = request(between.end - between.start, of_one, limit);
                self.copies.guess = Some(between.clone());
                ahead = between;
            }
            if forget.is_empty() {
                forget = disproved;
            }
            let stride =
                if pressure == Pressure::Low { self.stride.on_read(range, self.size) } else { Vec::new() };
            return Plan {
                demand,
                ahead,
                stride,
                request: of_one,
                sequential: range.start == 0,
                keep: range.start == 0 || begun < range.start,
                descending: false,
                forget,
                jumped: self.reads > 1 && !is_late,
            };
        };
        let at = self.merged(at, range);
        let last = self.other_end(at, range);
        let is_table = last.is_none() && self.may_be_table(at);
        let (left_before, expected) = (self.left_before(at), self.expected(at));
        let run = &mut self.runs[at];
        if let Some(last) = last.as_ref().filter(|_| run.is_lone()) {
            self.copies.begun = Some(run.distance_to(last));
        }
        if let Some(last) = &last
            && run.ends_at(last)
        {
            self.copies.wrong += 1;
            if self.copies.wrong == WRONG_MAX {
                run.bound = None;
            }
        }
        run.last_used = self.reads;
        let Self { size, config, lengths, copies, .. } = self;
        let terms = Terms {
            size: *size,
            config,
            pressure,
            limit,
            lengths,
            left_before,
            expected,
            proven: copies.proven,
            is_table,
        };
        let Step { ahead, forget, completed } = run.advance(range, terms);
        let (request, descending) = (run.request(config.part, limit), run.direction != Direction::Up);
        if completed {
            copies.proven = true;
            copies.span = copies.begun.take().or(copies.span);
            if copies.wrong < WRONG_MAX {
                copies.wrong = 0;
            }
        }
        self.join(at);
        let forget = if forget.is_empty() { disproved } else { forget };
        Plan {
            demand,
            ahead,
            stride: Vec::new(),
            request,
            sequential: true,
            keep: true,
            descending,
            forget,
            jumped: false,
        }
    }

    /// Notes that another handle has read up to `front`, where this handle reads now. Handles that map one file share the kernel's pages,
    /// so that each asks for some of the reads of all: the run goes on there.
    pub fn others_reached(&mut self, front: u64) {
        let is_up = |run: &&mut Run| run.direction == Direction::Up && !run.is_lone();
        let Some(run) = self.runs.iter_mut().filter(is_up).max_by_key(|run| run.last_used) else {
            if self.runs.is_empty() {
                self.runs.push(Run::behind_others(front, self.config.first));
            }
            return;
        };
        if run.front + SLACK < front && run.front + self.config.max >= front {
            run.goes_on_from(front);
        }
    }

    /// Notes that another read of the handle waited when this read began a run: then several threads read, and none of these reads ends a
    /// copy.
    pub fn began_beside_another(&mut self, range: &Range<u64>) {
        if let Some(run) = self.runs.iter_mut().rev().find(|run| run.was_read() == *range) {
            run.is_begun_alone = false;
        }
    }

    /// Notes that the planned range from `offset` on was dropped for want of memory, so that it is planned again.
    pub fn lost(&mut self, range: &Range<u64>) {
        self.runs.iter_mut().any(|run| run.lost(range));
    }

    /// The run that a read continues, in whichever direction.
    fn continued(&mut self, range: &Range<u64>) -> Option<usize> {
        // Real runs are asked before guesses: the last step of a copy ends where its other end begins. The run that is read at present and
        // has its front there is asked before one that may take the read out of order.
        for is_lone in [false, true] {
            let goes_on = |(_, run): &(usize, &Run)| run.is_lone() == is_lone && run.continued_by(range);
            let likely = |(_, run): &(usize, &Run)| (!run.goes_on_exactly(range), Reverse(run.last_used));
            let fits = self.runs.iter().enumerate().filter(goes_on).min_by_key(likely);
            if let Some((at, _)) = fits {
                return Some(at);
            }
        }
        let at = self.runs.iter().position(|run| run.is_preceded_by(range))?;
        self.runs[at].turn(self.size.next_multiple_of(self.config.part));
        Some(at)
    }

    /// The run that a read belongs to. Two reads in sequence may arrive in the wrong order: then the later read began a run of its own, and
    /// the read that closes the gap merges the two runs.
    fn merged(&mut self, at: usize, range: &Range<u64>) -> usize {
        let run = self.runs[at].clone();
        let is_next = |(n, next): (usize, &Run)| {
            (n != at && !next.is_lone() && next.is_begun_behind(&run, range)).then_some(n)
        };
        let Some(next) = self.runs.iter().enumerate().find_map(is_next) else { return at };
        self.runs[next].takes_in(&run);
        self.runs.swap_remove(at);
        if next == self.runs.len() { at } else { next }
    }

    /// Finds the other end of a copy: a random read ahead of this run, next in time to the run's last read, or to the first read of a young
    /// run, since reads may come out of order. `range` is the present read. Returns the range of that random read.
    fn other_end(&self, at: usize, range: &Range<u64>) -> Option<Range<u64>> {
        if self.copies.wrong >= WRONG_MAX {
            return None;
        }
        let run = &self.runs[at];
        let before = |run: &Run| self.reads - run.last_used;
        let is_other = |other: &&Run| {
            let is_last = before(other) + before(run) == 3;
            let is_first = run.begun_beside(other) && before(other) <= EARLY_MAX;
            let is_near = is_last || is_first;
            // The first read of the object begins a run at once. It is the end of a copy downwards if the other end was a long read, and the
            // present one is half as long as the first: the kernel reads as much around each page, and the half above is there already. A
            // program that looks at the head of a table, at its trailer and at the contents before that makes reads of other lengths.
            let is_half = (range.end - range.start).abs_diff(other.length() / 2) <= HALF_SPREAD
                && run.length() > AROUND;
            let is_end = other.is_lone() && !self.is_footer(other, run)
                || is_last && other.is_of_one_read() && is_half;
            is_end && run.is_before(&other.was_read()) && is_near && run.is_begun_in_turn_with(other)
        };
        // A read that came too early lies close to the front, and the other end farther away.
        let likely = |other: &&Run| (!run.is_just_before(&other.was_read()), other.last_used);
        self.runs.iter().filter(is_other).max_by_key(likely).map(Run::was_read)
    }

    /// Whether a random read is probably one of a table's footer, and no end of a copy upwards: around the last page the kernel reads half
    /// as much as around the copy's first one. With a read-ahead of 128 KiB a column after a footer of 64 KiB looks like that, too.
    fn is_footer(&self, other: &Run, run: &Run) -> bool {
        let is_half = run.first_length.abs_diff(2 * other.length()) <= 2 * HALF_SPREAD;
        other.was_read().end == self.size && other.length() <= FOOTER && !is_half
    }

    /// Whether the present read, which ends where the run's only read began, may be that of a table's contents: the first one ends the
    /// object, and is as short as the read of a footer.
    fn may_be_table(&self, at: usize) -> bool {
        let run = &self.runs[at];
        let first = run.was_read();
        run.direction != Direction::Up
            && run.is_of_one_read()
            && first.end == self.size
            && run.length() <= FOOTER
    }

    /// The bytes between the latest two reads, if these are probably the ends of a copy as long as the last one: both are random, and lie
    /// as far apart.
    fn between_ends(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let span = self.copies.span.filter(|_| self.copies.wrong < WRONG_MAX)?;
        let this = self.runs.last().filter(|run| run.last_used == self.reads)?;
        let is_other = |other: &&Run| other.is_lone() && other.is_begun_alone && other.begun_beside(this);
        let other = self.runs.iter().find(is_other)?.was_read();
        let (low, high) = if other.start < range.start { (&other, range) } else { (range, &other) };
        let between = low.end.next_multiple_of(PAGE)..high.start / PAGE * PAGE;
        let is_as_far = high.end.saturating_sub(low.end).abs_diff(span) <= BLOCK as u64;
        (is_as_far && !between.is_empty() && between.end - between.start <= self.config.max)
            .then_some(between)
    }

    /// The bytes that were fetched because of the distance of two reads, if this next read shows that no copy goes on there.
    fn disproved(&mut self, range: &Range<u64>) -> Range<u64> {
        let is_wrong = |guess: &Range<u64>| range.end <= guess.start || range.start >= guess.end;
        let Some(guess) = self.copies.guess.take().filter(is_wrong) else { return 0..0 };
        self.copies.wrong += 1;
        guess
    }

    /// The length of the longest run that was left before this one began, if it is long enough to predict anything: a short head predicts
    /// nothing about the rest.
    fn left_before(&self, at: usize) -> Option<u64> {
        let run = &self.runs[at];
        let left = self.runs.iter().filter(|other| other.was_left_before(run));
        left.map(Run::length).filter(|length| *length >= self.config.part).max()
    }

    /// The length of the run that was left last before this one began: a program that copied so much at once probably does so again.
    fn expected(&self, at: usize) -> u64 {
        let run = &self.runs[at];
        let left = self.runs.iter().filter(|other| other.was_left_before(run));
        left.max_by_key(|other| other.last_used).map_or(0, Run::length)
    }

    /// Adds a range to a run that has reached it, if a random read has read the range before.
    fn join(&mut self, at: usize) {
        let run = &self.runs[at];
        if !self.runs.iter().any(|other| other.is_lone() && run.reaches(&other.was_read())) {
            return;
        }
        let mut run = self.runs.swap_remove(at);
        self.runs.retain(|other| !(other.is_lone() && run.joins(&other.was_read())));
        self.runs.push(run);
    }

    fn begin(&mut self, range: &Range<u64>, pressure: Pressure) -> (Range<u64>, Range<u64>) {
        let mut run = Run::new(range, self.size, self.reads);
        // A reader that begins at the start of the object probably continues.
        let mut ahead = 0..0;
        if range.start == 0 && pressure < Pressure::High {
            run.window = self.config.first;
            let is_whole = pressure == Pressure::Low && self.size <= self.config.whole && range.end >= LONG;
            let wish = if is_whole { self.size } else { self.config.first };
            ahead = run.planned_to..wish.clamp(run.planned_to, self.size.max(run.planned_to));
            run.planned_to = ahead.end;
            run.held.end = ahead.end;
        }
        let mut forget = 0..0;
        if self.runs.len() == RUNS_MAX {
            // Runs that never got a window are dropped first: random reads must not push a real stream out.
            let coldest = self.runs.iter().enumerate().min_by_key(|(_, r)| (!r.is_lone(), r.last_used));
            if let Some(at) = coldest.map(|(at, _)| at) {
                let old = self.runs.swap_remove(at);
                if old.bound.is_some() {
                    self.copies.wrong += 1;
                }
                // A single read leaves nothing behind.
                if !old.is_lone() {
                    self.lengths.ended(old.length());
                    forget = old.all(KEPT);
                }
            }
        }
        self.runs.push(run);
        (ahead, forget)
    }
}

#[cfg(test)]
mod tests;
