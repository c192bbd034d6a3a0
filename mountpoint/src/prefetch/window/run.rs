//! One run of reads: each read goes on where the one before it ended, upwards or downwards.

use std::ops::Range;

use super::WindowConfig;
use super::lengths::Lengths;
use crate::buffer::{BLOCK, Pressure};

/// Random reads are fetched in pages.
pub(super) const PAGE: u64 = 4096;
/// The window of a run, in multiples of the bytes that it has read: a reader that stops early wastes at most this much, and a reader that
/// goes on reaches full speed after a few round trips.
const GROWTH: u64 = 4;
/// The distance by which reads of one run may be out of order: a kernel's read-ahead in flight.
pub(super) const SLACK: u64 = 1 << 20;
/// The distance behind its front up to which a run holds pieces that are not read to their end, for reads that another thread serves a
/// little later, and for bytes that the kernel dropped and wants again. Doubling it costs as much memory for each run that skips bytes.
pub(super) const LATE: u64 = 4 << 20;
const _: () = assert!(LATE >= SLACK + BLOCK as u64, "reads of a run find what they continue");
/// The part of the largest window that the first copy of a handle gets at once. Doubling it doubles the cost of a wrong guess, and saves
/// the first copy half of its waits.
const UNPROVEN: u64 = 8;

/// The direction of a run. A run downwards is a run upwards along a mirrored axis, so that both follow the same rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Up,
    /// Offsets are counted downwards from here: a multiple of a part, at or behind the end of the object.
    Down {
        top: u64,
    },
}

impl Direction {
    /// Turns a range of the object into one along this axis, and back.
    pub(super) fn turned(self, range: Range<u64>) -> Range<u64> {
        match self {
            Self::Up => range,
            Self::Down { top } => top.saturating_sub(range.end)..top.saturating_sub(range.start),
        }
    }
}

/// The facts that a run gets at each read, beside the range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms<'a> {
    pub(super) size: u64,
    pub(super) config: &'a WindowConfig,
    pub(super) pressure: Pressure,
    /// Bytes that are worth having ahead on this link.
    pub(super) limit: u64,
    pub(super) lengths: &'a Lengths,
    /// The length of the longest run that was left before this one began.
    pub(super) left_before: Option<u64>,
    /// The length of the run that was left last before this one began.
    pub(super) expected: u64,
    /// Whether the handle has made a copy whose end was predicted.
    pub(super) proven: bool,
    /// Whether the run's two reads may be the footer of a table and the contents before it.
    pub(super) is_table: bool,
}

/// The ranges, of the object, that a read leads to.
#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    pub(super) ahead: Range<u64>,
    pub(super) forget: Range<u64>,
    /// Whether the read completes a copy whose end was predicted.
    pub(super) completed: bool,
}

/// The size of one request for a window; see [`Run::request`].
pub(super) fn request(window: u64, part: u64, limit: u64) -> u64 {
    if limit <= 4 * part {
        return part;
    }
    let block = BLOCK as u64;
    (window / 8 / block * block).clamp(block.min(part), part)
}

/// A run of reads. All offsets lie along its axis.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) direction: Direction,
    /// Start of the first read.
    pub(super) begun: u64,
    /// End of the furthest read.
    pub(super) front: u64,
    /// The offset up to which the run has requested bytes.
    pub(super) planned_to: u64,
    /// The range of bytes fetched for this run. Some may lie behind `planned_to`, after a second plan for the same bytes.
    pub(super) held: Range<u64>,
    /// The number of bytes that the run has read.
    progress: u64,
    /// Bytes to have ahead; 0 for a guess: a single read, or a copy that is complete.
    pub(super) window: u64,
    /// The number of its first read.
    first_used: u64,
    /// The length of its first read.
    pub(super) first_length: u64,
    /// The number of its last read.
    pub(super) last_used: u64,
    /// Whether no other read of the handle waited when the first one came.
    pub(super) is_begun_alone: bool,
    /// The start of the last bytes of a copy, which were read before those between: no byte beyond them is fetched.
    pub(super) bound: Option<u64>,
    /// A read ahead of the front that no read has continued: probably the last bytes of the next copy.
    far: Option<Range<u64>>,
}

impl Run {
    /// A run with a single read.
    pub(super) fn new(range: &Range<u64>, size: u64, read: u64) -> Self {
        let planned_to = range.end.next_multiple_of(PAGE).min(size);
        Self {
            direction: Direction::Up,
            begun: range.start,
            front: range.end,
            planned_to,
            held: range.start..planned_to,
            progress: range.end - range.start,
            window: 0,
            first_used: read,
            first_length: range.end - range.start,
            last_used: read,
            is_begun_alone: true,
            bound: None,
            far: None,
        }
    }

    /// A run that goes on where another handle is, with this window.
    pub(super) fn behind_others(front: u64, window: u64) -> Self {
        Self { window, ..Self::new(&(front..front), u64::MAX, 0) }
    }

    /// Goes on from an offset ahead of the front: the bytes between are here already.
    pub(super) fn goes_on_from(&mut self, front: u64) {
        self.progress += front - self.front;
        self.front = front;
        self.planned_to = self.planned_to.max(front);
        self.held.end = self.held.end.max(front);
        self.bound = self.bound.filter(|bound| *bound > front);
        self.far = None;
    }

    /// The distance from the run's start to its front.
    pub(super) fn length(&self) -> u64 {
        self.front.saturating_sub(self.begun)
    }

    /// Whether this run had its last read before the other one had its first.
    pub(super) fn was_left_before(&self, other: &Self) -> bool {
        self.last_used < other.first_used
    }

    /// Whether the run is only a guess (a single read).
    pub(super) fn is_lone(&self) -> bool {
        self.window == 0
    }

    /// Whether the run has a single read, though it may have a window.
    pub(super) fn is_of_one_read(&self) -> bool {
        self.first_used == self.last_used
    }

    /// Whether a range begins at the front.
    pub(super) fn goes_on_exactly(&self, range: &Range<u64>) -> bool {
        self.direction.turned(range.clone()).start == self.front
    }

    /// The bytes that the run read, as a range of the object, if it read them in order.
    pub(super) fn was_read(&self) -> Range<u64> {
        self.direction.turned(self.begun..self.front)
    }

    /// Whether `range` continues this run. A run with a window tolerates reads out of order; a run of a single read needs an exact
    /// continuation, or random reads would look like runs.
    pub(super) fn continued_by(&self, range: &Range<u64>) -> bool {
        let range = self.direction.turned(range.clone());
        if self.is_lone() {
            return range.start == self.front;
        }
        range.start + SLACK >= self.front && range.start <= self.planned_to.max(self.front + SLACK)
    }

    /// Whether `range` ends where this run began, which is only a guess: then it may go on from here in the other direction.
    pub(super) fn is_preceded_by(&self, range: &Range<u64>) -> bool {
        self.is_lone() && self.direction.turned(range.clone()).end == self.begun
    }

    /// Turns a guessed run around, so that it goes on from its beginning.
    pub(super) fn turn(&mut self, top: u64) {
        let read = self.was_read();
        let held = self.direction.turned(self.held.clone());
        self.direction = match self.direction {
            Direction::Up => Direction::Down { top },
            Direction::Down { .. } => Direction::Up,
        };
        let read = self.direction.turned(read);
        (self.begun, self.front) = (read.start, read.end);
        self.held = self.direction.turned(held);
        self.planned_to = self.front;
        self.far = None;
    }

    /// Whether a lost range of the object lies just behind the planned end; then the range is planned again.
    pub(super) fn lost(&mut self, range: &Range<u64>) -> bool {
        let range = self.direction.turned(range.clone());
        let owns = range.end <= self.front && range.end + SLACK >= self.front;
        if owns {
            self.planned_to = self.planned_to.min(range.end);
        }
        owns
    }

    /// The size of one request. On a link that wants many connections, a window that is still small is fetched in small requests, so that
    /// many connections carry it; on a link that a few parts fill, requests are whole parts from the start.
    pub(super) fn request(&self, part: u64, limit: u64) -> u64 {
        request(self.window, part, limit)
    }

    /// Takes in the last bytes of a copy, which tell where this run ends. Returns whether that corrects a guess.
    pub(super) fn ends_at(&mut self, last: &Range<u64>) -> bool {
        let bound = self.direction.turned(last.clone()).start;
        let before = self.bound.replace(bound);
        before.is_some_and(|before| before != bound)
    }

    /// Whether a range lies ahead of the front.
    pub(super) fn is_before(&self, range: &Range<u64>) -> bool {
        self.direction.turned(range.clone()).start >= self.front
    }

    /// The distance from the last read to another one, the other end of a copy.
    pub(super) fn distance_to(&self, last: &Range<u64>) -> u64 {
        self.direction.turned(last.clone()).end.abs_diff(self.front)
    }

    /// Whether a range lies just behind the front of a complete copy: a read that was sent before the last ones, and came after them.
    pub(super) fn has_just_read(&self, range: &Range<u64>) -> bool {
        let range = self.direction.turned(range.clone());
        let since = self.begun.max(self.front.saturating_sub(LATE));
        self.is_lone() && self.length() > LATE && range.start >= since && range.end <= self.front
    }

    /// Whether the first reads of both runs came one right after the other.
    pub(super) fn begun_beside(&self, other: &Self) -> bool {
        self.first_used.abs_diff(other.first_used) == 1
    }

    /// Whether the later of the first reads of both runs came once the earlier one was answered: one thread makes a copy.
    pub(super) fn is_begun_in_turn_with(&self, other: &Self) -> bool {
        let later = if other.first_used > self.first_used { other } else { self };
        later.is_begun_alone
    }

    /// Whether this run began where `range`, a read of the other one, ends.
    pub(super) fn is_begun_behind(&self, other: &Self, range: &Range<u64>) -> bool {
        self.direction == other.direction && self.direction.turned(range.clone()).end == self.begun
    }

    /// Adds the reads of another run, which were the first reads of this one.
    pub(super) fn takes_in(&mut self, first: &Self) {
        self.begun = self.begun.min(first.begun);
        self.held.start = self.held.start.min(first.held.start);
        self.progress += first.progress;
        self.first_used = self.first_used.min(first.first_used);
        self.first_length = first.first_length;
    }

    /// Whether a read range lies at the front or behind it, and ends ahead of it.
    pub(super) fn reaches(&self, read: &Range<u64>) -> bool {
        let read = self.direction.turned(read.clone());
        read.start <= self.front && read.end > self.front
    }

    /// Whether a range begins so little ahead of the front that it may be one of the next reads, out of order.
    pub(super) fn is_just_before(&self, range: &Range<u64>) -> bool {
        self.direction.turned(range.clone()).start <= self.front + LATE
    }

    /// Whether the front has reached a range that was read already; then the front is its end.
    pub(super) fn joins(&mut self, read: &Range<u64>) -> bool {
        let joins = self.reaches(read);
        if joins {
            self.front = self.direction.turned(read.clone()).end;
            self.planned_to = self.planned_to.max(self.front);
            self.held.end = self.held.end.max(self.front);
        }
        joins
    }

    /// All bytes that were fetched for the run, as a range of the object.
    pub(super) fn all(&self, border: u64) -> Range<u64> {
        let end = self.held.end.max(self.front);
        let all = self.direction.turned(self.held.start..end);
        match self.direction {
            Direction::Up => all.start..all.end.next_multiple_of(border),
            Direction::Down { .. } => all.start / border * border..all.end,
        }
    }

    /// The range so far behind the front that no read of the run will ask for it. It has whole blocks, so that not every page by which the
    /// front moves makes a call.
    fn left_behind(&mut self) -> Range<u64> {
        let block = BLOCK as u64;
        let from = self.held.start;
        self.held.start = from.max(self.front.saturating_sub(LATE) / block * block);
        from..self.held.start
    }

    /// Moves the front by a read. False: the read is ahead of the front and may be the end of a copy; the front moves there once a second
    /// read continues that read.
    fn move_front(&mut self, range: &Range<u64>) -> bool {
        if range.start > self.front + SLACK && self.far.as_ref().is_none_or(|far| far.end != range.start) {
            self.far = Some(range.clone());
            return false;
        }
        self.progress += range.end.saturating_sub(self.front.max(range.start));
        self.front = self.front.max(range.end);
        if let Some(far) = self.far.take_if(|far| far.start <= self.front) {
            self.front = self.front.max(far.end);
        }
        true
    }

    /// Takes in a read that continues this run.
    pub(super) fn advance(&mut self, range: &Range<u64>, terms: Terms<'_>) -> Step {
        let range = self.direction.turned(range.clone());
        if !self.move_front(&range) {
            return Step::default();
        }
        // Reads out of order may reach back to before the first one.
        self.held.start = self.held.start.min(range.start);
        let forget = self.left_behind();
        let forget = if forget.is_empty() { 0..0 } else { self.direction.turned(forget) };
        if self.bound.take_if(|bound| *bound <= self.front).is_some() {
            // The copy is complete. The next read is a guess again.
            self.window = 0;
            return Step { ahead: 0..0, forget, completed: true };
        }
        if terms.is_table {
            // A third read downwards begins to fetch ahead.
            self.window = terms.config.first.min(terms.config.part);
            return Step { ahead: 0..0, forget, completed: false };
        }
        let ahead = self.plan(terms);
        let ahead = if ahead.is_empty() { 0..0 } else { self.direction.turned(ahead) };
        Step { ahead, forget, completed: false }
    }

    fn plan(&mut self, terms: Terms<'_>) -> Range<u64> {
        let Terms { size, config, pressure, limit, lengths, left_before, expected, proven, .. } = terms;
        let end_of_object = match self.direction {
            Direction::Up => size,
            Direction::Down { top } => top,
        };
        let grown = match pressure {
            Pressure::Low => self.progress.saturating_mul(GROWTH).min(self.window.saturating_mul(GROWTH)),
            Pressure::Some => self.window,
            Pressure::High => self.window / 2,
        };
        // At least two parts: one on its way while the other is read.
        let limit = limit.clamp(config.part * 2, config.max.max(config.part * 2));
        self.window = grown.clamp(config.first.min(config.part), limit);
        if pressure == Pressure::Low {
            // The length of the run before, all at once: a shorter run ends that.
            let rest = expected.saturating_sub(self.length()).min(config.max / UNPROVEN);
            self.window = self.window.max(rest.min(limit));
        }
        let last = match self.bound {
            Some(bound) => {
                // The program will read all of the copy: the window need not grow step by step.
                let reach = if proven { config.max } else { config.max / UNPROVEN };
                if pressure == Pressure::Low {
                    self.window = self.window.max(reach.min(bound - self.front));
                }
                bound
            }
            None => {
                let horizon = lengths.horizon(self.length(), config.first.max(PAGE), left_before);
                self.begun.saturating_add(horizon).min(end_of_object).next_multiple_of(PAGE)
            }
        }
        .min(end_of_object);

        let start = self.planned_to.max(self.front.next_multiple_of(PAGE)).min(end_of_object);
        let wish = (self.front + self.window).min(last);
        // Ask for whole parts, or when little is in flight; not for every page by which the front moves.
        let worth = config.part.min(self.window / 2).max(1);
        if wish <= start || (wish - start < worth && self.planned_to > self.front && wish < last) {
            return 0..0;
        }
        let block = BLOCK as u64;
        let end = (self.front + self.window).next_multiple_of(block.min(config.part)).min(last);
        // The range ends at a part border if possible, so that each request is one whole part.
        let border = end / config.part * config.part;
        let end = if border > start && end < last { border } else { end };
        self.planned_to = end.max(start);
        self.held.end = self.held.end.max(self.planned_to);
        start..self.planned_to
    }
}
