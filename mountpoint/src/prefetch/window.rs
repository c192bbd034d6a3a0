//! Decides from a reader's offsets alone how far ahead to fetch. Pure.
//!
//! Several streams often read one handle at once (threads with their own regions, a kernel that sends its read-ahead out of order),
//! so a [`Window`] follows up to eight *runs*. A read that continues a run is sequential and moves the run's window. Any other
//! read is random, and gets the bytes it asked for and no more. A window grows fourfold as its run goes on, up to a limit learned
//! from the link (`link.rs`), and to where a run ends if it is like those before it. What was fetched for a run and lies behind it, or is left of
//! a run that ended, is forgotten: else a handle that skips or jumps would fill the memory of all.

use std::ops::Range;

use super::fetch::KEPT;
use crate::buffer::{BLOCK, Pressure};

/// The sizes a window works with, in bytes.
#[derive(Clone, Debug)]
pub struct WindowConfig {
    /// The first request of a run that begins at offset 0: small, so that the first byte comes soon. Doubling it saves a
    /// request per file of that size and makes the first byte of larger files later on slow connections.
    pub first: u64,
    /// How far a window may grow whatever the link asks for: at the 2 GB/s that are aimed for, 134 ms from asking for a part
    /// to its last byte. Doubling it helps only where that takes longer.
    pub max: u64,
    /// Bytes of one request to the store. Doubling it halves the requests and the connections in use.
    pub part: u64,
}

impl Default for WindowConfig {
    fn default() -> Self {
        Self { first: 512 << 10, max: 256 << 20, part: 8 << 20 }
    }
}

/// The plan for one read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The range that the read itself needs, in whole pages, within the object.
    pub demand: Range<u64>,
    /// The range to fetch beyond it; empty for a random read and while enough is on its way. Begins where the run's earlier
    /// requests ended, which may be before, inside or behind `demand`.
    pub ahead: Range<u64>,
    /// Bytes of one request for what is ahead, at most.
    pub request: u64,
    /// Whether the read continues a run (its block is worth keeping until it was read to the end).
    pub sequential: bool,
    /// A region that a run left behind: pieces that end in it will not be asked for.
    pub forget: Range<u64>,
    /// Whether it continues none of the reads before it.
    pub jumped: bool,
}

const RUNS_MAX: usize = 8;
/// Random reads are fetched in pages.
const PAGE: u64 = 4096;
/// How many times what a run has read it may have ahead: a reader that stops early wastes at most this much, one that goes
/// on is at full speed after as many round trips as it takes to grow so.
const GROWTH: u64 = 4;
/// How far out of order the reads of one run may come: a kernel's read-ahead in flight.
const SLACK: u64 = 1 << 20;
/// How far behind its front a run holds what it has not read to its end. A read that another thread serves a little later, and bytes that the
/// kernel dropped and wants again, find it. Doubling it costs as much memory for each run that skips bytes.
const LATE: u64 = 4 << 20;
const _: () = assert!(LATE >= SLACK + BLOCK as u64, "reads of a run find what they continue");

/// Runs whose lengths are remembered. Doubling it lets one long run among short ones count for longer.
const ENDED: usize = 4;

/// How long the last runs were that ended in a jump: those to come are mostly like them.
#[derive(Clone, Debug, Default)]
struct Lengths {
    last: [u64; ENDED],
    ended: usize,
}

impl Lengths {
    fn ended(&mut self, length: u64) {
        self.last[self.ended % ENDED] = length;
        self.ended += 1;
    }

    /// How far a run of `length` so far is worth fetching: as far as the longest of the last ones, and twice as far each time that it goes on
    /// beyond.
    fn horizon(&self, length: u64, least: u64) -> u64 {
        if self.ended < ENDED {
            return u64::MAX;
        }
        let mut horizon = self.last.iter().copied().fold(least.max(PAGE), u64::max);
        while horizon < length {
            horizon = horizon.saturating_mul(2);
        }
        horizon
    }
}

#[derive(Clone, Debug)]
struct Run {
    /// Start of the first read.
    begun: u64,
    /// End of the furthest read.
    front: u64,
    /// The end of the run's requests.
    planned_to: u64,
    /// The range of bytes fetched for this run. Some may lie behind `planned_to`, where it had to plan again.
    held: Range<u64>,
    /// How many bytes it has read.
    progress: u64,
    window: u64,
    last_used: u64,
}

/// Follows the reads of one handle.
#[derive(Debug)]
pub struct Window {
    config: WindowConfig,
    size: u64,
    runs: Vec<Run>,
    reads: u64,
    lengths: Lengths,
}

impl Window {
    /// A window over an object of `size` bytes, not read yet.
    pub fn new(config: WindowConfig, size: u64) -> Self {
        Self { config, size, runs: Vec::new(), reads: 0, lengths: Lengths::default() }
    }

    /// A read of `range` (not empty, within the object). `limit`: bytes that are worth having ahead on this link.
    pub fn on_read(&mut self, range: &Range<u64>, pressure: Pressure, limit: u64) -> Plan {
        self.reads += 1;
        let demand = range.start / PAGE * PAGE..range.end.next_multiple_of(PAGE).min(self.size);
        match self.runs.iter().position(|run| run.continued_by(range)) {
            Some(at) => {
                self.runs[at].last_used = self.reads;
                let run = &mut self.runs[at];
                let (ahead, forget) =
                    run.advance(range, self.size, &self.config, pressure, limit, &self.lengths);
                let request = run.request(self.config.part, limit);
                Plan { demand, ahead, request, sequential: true, forget, jumped: false }
            }
            None => {
                let (ahead, forget) = self.begin(range, pressure);
                let (request, sequential) = (self.config.part, range.start == 0);
                Plan { demand, ahead, request, sequential, forget, jumped: self.reads > 1 }
            }
        }
    }

    /// The planned range from `offset` on was dropped for want of memory: plan it again.
    pub fn lost(&mut self, range: &Range<u64>) {
        if let Some(run) = self.runs.iter_mut().find(|run| run.owns(range)) {
            run.planned_to = run.planned_to.min(range.end);
        }
    }

    fn begin(&mut self, range: &Range<u64>, pressure: Pressure) -> (Range<u64>, Range<u64>) {
        let planned_to = range.end.next_multiple_of(PAGE).min(self.size);
        let mut run = Run {
            begun: range.start,
            front: range.end,
            planned_to,
            held: range.start..planned_to,
            progress: range.end - range.start,
            window: 0,
            last_used: self.reads,
        };
        // A reader that starts at the beginning most likely goes on.
        let mut ahead = 0..0;
        if range.start == 0 && pressure < Pressure::High {
            run.window = self.config.first;
            ahead = run.planned_to..self.config.first.clamp(run.planned_to, self.size.max(run.planned_to));
            run.planned_to = ahead.end;
            run.held.end = ahead.end;
        }
        let mut forget = 0..0;
        if self.runs.len() == RUNS_MAX {
            // Runs that never got a window go first: random reads must not push a real stream out.
            let coldest = self.runs.iter().enumerate().min_by_key(|(_, r)| (r.window > 0, r.last_used));
            if let Some(at) = coldest.map(|(at, _)| at) {
                let old = self.runs.swap_remove(at);
                // A single read leaves nothing behind.
                if old.window > 0 {
                    self.lengths.ended(old.front - old.begun);
                    forget = old.held.start..old.held.end.max(old.front).next_multiple_of(KEPT);
                }
            }
        }
        self.runs.push(run);
        (ahead, forget)
    }
}

impl Run {
    /// Whether `range` goes on where this run is. A run that has a window tolerates reads out of order; one that is
    /// only a guess (a single read so far) asks for an exact continuation, or random reads would look like runs.
    fn continued_by(&self, range: &Range<u64>) -> bool {
        if self.window == 0 {
            return range.start == self.front;
        }
        range.start + SLACK >= self.front && range.start <= self.planned_to.max(self.front + SLACK)
    }

    fn owns(&self, range: &Range<u64>) -> bool {
        range.end <= self.front && range.end + SLACK >= self.front
    }

    /// The size of one request. On a link that wants many connections, a window that is still small is fetched in small requests, so
    /// that many connections carry it; on one that a few parts fill, requests are whole parts from the start.
    fn request(&self, part: u64, limit: u64) -> u64 {
        if limit <= 4 * part {
            return part;
        }
        let block = BLOCK as u64;
        (self.window / 8 / block * block).clamp(block.min(part), part)
    }

    /// The range so far behind that no read of the run asks for it. Whole blocks: not for every page that the front moves.
    fn left_behind(&mut self) -> Range<u64> {
        let block = BLOCK as u64;
        let from = self.held.start;
        self.held.start = from.max(self.front.saturating_sub(LATE) / block * block);
        from..self.held.start
    }

    fn advance(
        &mut self,
        range: &Range<u64>,
        size: u64,
        config: &WindowConfig,
        pressure: Pressure,
        limit: u64,
        lengths: &Lengths,
    ) -> (Range<u64>, Range<u64>) {
        self.progress += range.end.saturating_sub(self.front.max(range.start));
        self.front = self.front.max(range.end);
        // Reads out of order may reach back to before the first one.
        self.held.start = self.held.start.min(range.start);
        let forget = self.left_behind();
        let grown = match pressure {
            Pressure::Low => self.progress.saturating_mul(GROWTH).min(self.window.saturating_mul(GROWTH)),
            Pressure::Some => self.window,
            Pressure::High => self.window / 2,
        };
        // At least two parts: one on its way while the other is read.
        let limit = limit.clamp(config.part * 2, config.max.max(config.part * 2));
        self.window = grown.clamp(config.first.min(config.part), limit);

        let start = self.planned_to.max(self.front.next_multiple_of(PAGE)).min(size);
        let horizon = lengths.horizon(self.front.saturating_sub(self.begun), config.first);
        let last = self.begun.saturating_add(horizon).min(size).next_multiple_of(PAGE).min(size);
        let wish = (self.front + self.window).min(last);
        // Ask for whole parts, or when little is on its way; not for every page that the front moves.
        let worth = config.part.min(self.window / 2).max(1);
        if wish <= start || (wish - start < worth && self.planned_to > self.front && wish < last) {
            return (0..0, forget);
        }
        let block = BLOCK as u64;
        let end = (self.front + self.window).next_multiple_of(block.min(config.part)).min(last);
        // Ends at part borders where it can, so that each request is one whole part.
        let border = end / config.part * config.part;
        let end = if border > start && end < last { border } else { end };
        self.planned_to = end.max(start);
        self.held.end = self.held.end.max(self.planned_to);
        (start..self.planned_to, forget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const CALM: u64 = 16 * MIB;

    fn window(size: u64) -> Window {
        Window::new(WindowConfig::default(), size)
    }

    /// Bytes fetched for runs of `run` bytes here and there, as the kernel reads them; of the last half of them, per run.
    fn fetched_by_runs(run: u64, count: u64) -> u64 {
        let size = 64 << 30;
        let mut window = window(size);
        let mut fetched = 0;
        for n in 0..count {
            let start = (n * 0x9e37_79b1) % (size / run) * run;
            for at in (start..start + run).step_by(128 << 10) {
                let plan = window.on_read(&(at..at + (128 << 10)), Pressure::Low, 256 * MIB);
                if n >= count / 2 {
                    let asked = plan.ahead.end - plan.ahead.start;
                    fetched +=
                        if plan.sequential { asked } else { asked + plan.demand.end - plan.demand.start };
                }
            }
        }
        fetched / (count - count / 2)
    }

    #[test]
    fn runs_that_end_like_those_before_them_fetch_what_they_read() {
        for run in [MIB, 3 * MIB, 8 * MIB, 40 * MIB] {
            let fetched = fetched_by_runs(run, 100);
            // The first two reads of a run ask for themselves.
            assert!(
                (run - (256 << 10)..=run + MIB).contains(&fetched),
                "{} KiB for {} MiB",
                fetched >> 10,
                run / MIB
            );
        }
    }

    #[test]
    fn a_run_that_goes_on_beyond_those_before_it_is_fetched_ever_further() {
        let mut window = window(64 << 30);
        for n in 0..40 {
            for at in (0..MIB).step_by(128 << 10) {
                let at = (n << 30) + at;
                window.on_read(&(at..at + (128 << 10)), Pressure::Low, 256 * MIB);
            }
        }
        let (start, mut ahead) = (50 << 30, 0);
        for at in (start..start + 512 * MIB).step_by(128 << 10) {
            let plan = window.on_read(&(at..at + (128 << 10)), Pressure::Low, 256 * MIB);
            ahead = ahead.max(plan.ahead.end.saturating_sub(at));
            assert!(plan.ahead.end <= start + 2 * (at + (128 << 10) - start).max(MIB) + MIB, "at {at}");
        }
        assert!(ahead > 200 * MIB, "{} MiB", ahead / MIB);
    }

    #[test]
    fn a_small_file_is_one_request() {
        let plan = window(100 << 10).on_read(&(0..100 << 10), Pressure::Low, CALM);
        assert_eq!((plan.demand, plan.ahead), (0..100 << 10, 100 << 10..100 << 10));
    }

    #[test]
    fn the_first_request_is_small_and_the_window_grows_to_whole_parts() {
        let mut window = window(1 << 30);
        let mut planned = 0;
        let mut sizes = Vec::new();
        for offset in (0..64 * MIB).step_by(128 << 10) {
            let plan = window.on_read(&(offset..offset + (128 << 10)), Pressure::Low, CALM);
            assert!(plan.sequential && (plan.forget.is_empty() || plan.forget.end <= offset - SLACK));
            planned = planned.max(plan.demand.end);
            if !plan.ahead.is_empty() {
                assert_eq!(plan.ahead.start, planned, "no gap and nothing twice");
                planned = plan.ahead.end;
                sizes.push(plan.ahead.end - plan.ahead.start);
            }
        }
        assert_eq!(sizes[0], (512 << 10) - (128 << 10));
        assert!(sizes.len() < 20, "few requests: {sizes:?}");
        assert_eq!(*sizes.last().unwrap(), 8 * MIB, "{sizes:?}");
        assert!(planned <= 64 * MIB + 16 * MIB, "calm readers stay within the calm window");
    }

    #[test]
    fn a_link_that_asks_for_more_is_given_more() {
        let mut window = window(4 << 30);
        let mut planned = 0;
        for offset in (0..(1u64 << 30)).step_by(MIB as usize) {
            let range = offset..offset + MIB;
            planned = planned.max(window.on_read(&range, Pressure::Low, 200 * MIB).ahead.end);
        }
        let ahead = planned - (1 << 30);
        assert!((190 * MIB..=210 * MIB).contains(&ahead), "{} MiB ahead", ahead / MIB);
    }

    #[test]
    fn random_reads_fetch_their_pages_and_nothing_more() {
        let mut window = window(1 << 30);
        for i in 1..2000u64 {
            let offset = (i * 7_919_654_321) % (1 << 30) / 4096 * 4096;
            let plan = window.on_read(&(offset..offset + 4096), Pressure::Low, CALM);
            assert!(!plan.sequential);
            assert_eq!(plan.demand, offset..offset + 4096);
            assert!(plan.ahead.is_empty());
        }
    }

    #[test]
    fn only_a_read_that_continues_none_before_it_jumps() {
        let mut window = window(1 << 30);
        let jumped = [0, MIB, 2 * MIB, 600 * MIB, 3 * MIB, 900 * MIB]
            .map(|at| window.on_read(&(at..at + MIB), Pressure::Low, CALM).jumped);
        assert_eq!(jumped, [false, false, false, true, false, true]);
    }

    #[test]
    fn a_run_leaves_behind_all_that_was_fetched_for_it_and_each_byte_once() {
        let mut window = window(4 << 30);
        let (begun, skips) = (MIB + PAGE, 700 << 10);
        let mut read = |at: u64, len: u64| window.on_read(&(at..at + len), Pressure::Low, CALM);
        // Two that join, one out of order before both, and skips.
        let mut held = begun - PAGE;
        let mut fetched = 0;
        for at in [begun, begun + PAGE, begun - PAGE].into_iter().chain((1..200).map(|n| begun + n * skips)) {
            let plan = read(at, PAGE);
            if !plan.forget.is_empty() {
                assert!(plan.forget.start == held && plan.forget.end + LATE <= at + PAGE, "{plan:?}");
                held = plan.forget.end;
            }
            fetched = plan.ahead.end.max(plan.demand.end).max(fetched);
        }
        assert!(held + LATE + MIB >= begun + 199 * skips, "{held}");
        // Another run after another takes its place, in the end.
        let mut left = Vec::new();
        for run in 1..=RUNS_MAX as u64 {
            for at in [0, PAGE] {
                left.push(read((run << 28) + at, PAGE).forget);
            }
        }
        left.retain(|range| !range.is_empty());
        let all = held..fetched.next_multiple_of(KEPT);
        assert_eq!(left.as_slice(), std::slice::from_ref(&all));
    }

    #[test]
    fn four_streams_of_one_handle_are_four_runs() {
        let mut window = window(1 << 30);
        let mut ahead = [0u64; 4];
        for step in 0..64u64 {
            for (i, ahead) in ahead.iter_mut().enumerate() {
                let offset = i as u64 * 200 * MIB + step * MIB;
                let plan = window.on_read(&(offset..offset + MIB), Pressure::Low, CALM);
                *ahead = (*ahead).max(plan.ahead.end.saturating_sub(offset));
            }
        }
        assert!(ahead.iter().all(|a| *a >= 8 * MIB), "{ahead:?}");
    }

    #[test]
    fn a_real_stream_survives_random_reads_beside_it() {
        let mut window = window(1 << 30);
        for step in 0..100u64 {
            for i in 0..20u64 {
                let offset = 500 * MIB + (step * 20 + i) * 7_919 * 4096 % (400 * MIB);
                window.on_read(&(offset..offset + 4096), Pressure::Low, CALM);
            }
            let plan = window.on_read(&(step * MIB..(step + 1) * MIB), Pressure::Low, CALM);
            assert!(plan.sequential);
        }
    }

    proptest! {
        #[test]
        fn plans_stay_within_the_object_and_within_the_maximum(
            size in 1u64..(1 << 32),
            reads in proptest::collection::vec((any::<u64>(), 1u64..(2 * MIB), any::<bool>(), 0..3u8), 1..100),
        ) {
            let mut window = window(size);
            let mut next = 0;
            for (at, len, follow, pressure) in reads {
                let start = if follow && next < size { next } else { at % size };
                let range = start..(start + len).min(size);
                next = range.end;
                let pressure = [Pressure::Low, Pressure::Some, Pressure::High][pressure as usize];
                let plan = window.on_read(&range, pressure, CALM * 16);
                prop_assert!(plan.demand.start <= range.start && plan.demand.end >= range.end);
                prop_assert!(plan.demand.end <= size && plan.ahead.end <= size);
                prop_assert!(plan.demand.end - plan.demand.start < len + 2 * PAGE);
                prop_assert!(plan.ahead.start <= plan.ahead.end);
                prop_assert!(plan.ahead.end.saturating_sub(range.end) <= 256 * MIB + 8 * MIB);
            }
        }
    }
}
