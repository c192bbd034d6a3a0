//! Decides whether reads of a file go through the kernel's page cache. Pure. Enters: the course of earlier reads. Leaves: the mode for the
//! next open.
//!
//! The page cache costs a third of the CPU of a large read (docs/decisions/measurements.md), and pays when a file is read again or in
//! small pieces. The mode of an open file can't change. So `auto` looks at earlier files: if a program read large ones once, from start
//! to end and in large pieces, its next ones bypass the page cache. The kernel's first request shows the size of the program's reads,
//! because the read-ahead begins with that size.

use std::collections::{HashMap, VecDeque};

use super::process::program;
use crate::inode::InodeNo;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The ways to open files for reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadMode {
    /// Bypasses the page cache for programs that gained nothing from it with earlier files.
    Auto,
    /// Reads go through the page cache.
    #[default]
    Buffered,
    /// Past the page cache.
    Direct,
}

/// Smallest file that `auto` opens past the page cache, in bytes. Smaller files are read again more often, and cost little.
const LARGE: u64 = 32 << 20;

/// Smallest first request, in bytes, of a program that reads in large pieces: the kernel's read-ahead begins with 16 to 128 KiB for a
/// program that reads 64 KiB or less.
const PIECE: u32 = 256 << 10;

/// Smallest first request, in bytes, of such a program on a file past the page cache, where the request is the program's own. For smaller
/// requests the page cache costs less.
const PIECE_DIRECT: u32 = 64 << 10;

/// Number of files in a row read once, after which the next file bypasses the page cache; four times as many after each file that was read
/// again.
const PASSES: u32 = 4;
const PASSES_MAX: u32 = PASSES << 16;

/// Number of files whose second reading the mount notices; beyond it the oldest is forgotten. Doubling it notices files that lie further
/// back, of which fewer pages are left.
const REMEMBERED: usize = 256;

/// Most programs that are watched one by one. One more drops the counts of all.
const PROGRAMS: usize = 64;

/// The read mode, and the reads that the mount has seen.
#[derive(Debug)]
pub(super) struct ReadModes {
    mode: ReadMode,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    programs: HashMap<Box<str>, Habit>,
    /// The number of passes after which a program's next file is direct.
    needed: u32,
    /// Large files that were read lately, the last one at the end.
    read: VecDeque<InodeNo>,
}

/// A program's way of reading large files.
#[derive(Debug, Default)]
struct Habit {
    /// Files in a row that the program read once.
    passes: u32,
}

/// The course of one handle's reads.
#[derive(Debug, Default)]
pub(super) struct Course {
    /// Length in bytes of the first read, if it began at the start of the file; otherwise 1.
    first: AtomicU32,
    /// Number of requested bytes.
    bytes: AtomicU64,
    size: u64,
    /// Whether the handle bypasses the page cache.
    pub(super) is_direct: bool,
    /// Name of the program that opened the file; empty if it is unknown.
    program: Box<str>,
}

impl Course {
    fn new(size: u64, program: Box<str>) -> Self {
        Self { program, first: AtomicU32::new(0), bytes: AtomicU64::new(0), size, is_direct: false }
    }

    /// The course of a handle that another engine opened: its earlier reads are unknown.
    pub(super) fn of_before(is_direct: bool) -> Self {
        Self { is_direct, ..Self::default() }
    }

    /// Counts a read.
    pub(super) fn read(&self, offset: u64, len: usize) {
        if self.size < LARGE {
            return;
        }
        if self.bytes.fetch_add(len as u64, Relaxed) == 0 {
            let first = if offset == 0 { u32::try_from(len).unwrap_or(u32::MAX) } else { 1 };
            self.first.store(first, Relaxed);
        }
    }

    /// Whether the whole file was read in large pieces, and hardly any of it twice.
    fn is_pass(&self) -> bool {
        let bytes = self.bytes.load(Relaxed);
        let least = if self.is_direct { PIECE_DIRECT } else { PIECE };
        self.first.load(Relaxed) >= least
            && bytes >= self.size / 10 * 9
            && bytes <= self.size.saturating_add(self.size / 4)
    }

    fn was_read(&self) -> bool {
        self.bytes.load(Relaxed) > 0
    }
}

impl ReadModes {
    pub(super) fn new(mode: ReadMode) -> Self {
        let seen = Seen { programs: HashMap::new(), needed: PASSES, read: VecDeque::new() };
        Self { mode, seen: Mutex::new(seen) }
    }

    /// Begins the course of a file of `size` bytes that this thread opens.
    pub(super) fn begin(&self, size: u64, tid: u32) -> Course {
        // Only reads that `auto` learns from are counted.
        match self.mode == ReadMode::Auto && size >= LARGE {
            true => Course::new(size, program(tid).unwrap_or_default()),
            false => Course::new(0, Box::default()),
        }
    }

    /// Whether a file that is opened for reading bypasses the page cache. `shared`: another handle has it open.
    pub(super) fn is_direct(&self, ino: InodeNo, course: &Course, shared: impl FnOnce() -> bool) -> bool {
        match self.mode {
            ReadMode::Buffered => false,
            ReadMode::Direct => true,
            ReadMode::Auto if course.size < LARGE => false,
            ReadMode::Auto => {
                let shared = shared();
                let mut seen = self.seen.lock();
                if shared || seen.read.contains(&ino) {
                    seen.again();
                }
                let needed = seen.needed;
                seen.programs.get(&course.program).is_some_and(|habit| habit.passes >= needed)
            }
        }
    }

    /// Learns from the reads of a released handle.
    pub(super) fn released(&self, ino: InodeNo, course: &Course) {
        if self.mode != ReadMode::Auto || course.size < LARGE || !course.was_read() {
            return;
        }
        let mut seen = self.seen.lock();
        if seen.programs.len() == PROGRAMS && !seen.programs.contains_key(&course.program) {
            seen.programs.clear();
        }
        let habit = seen.programs.entry(course.program.clone()).or_default();
        // Otherwise the file was read in part, in small pieces or in disorder: the program's next file may be, too.
        habit.passes = if course.is_pass() { habit.passes.saturating_add(1) } else { 0 };
        if seen.read.len() == REMEMBERED {
            seen.read.pop_front();
        }
        seen.read.push_back(ino);
    }
}

impl Seen {
    /// Notes that a file is read a second time: the page cache would have helped.
    fn again(&mut self) {
        self.programs.clear();
        self.needed = self.needed.saturating_mul(4).min(PASSES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 100 << 20;

    fn course(program: &str, size: u64) -> Course {
        Course::new(size, program.into())
    }

    /// Opens files `from..to` and reads `bytes` of each. Returns which of them bypassed the page cache.
    fn read(
        modes: &ReadModes,
        numbers: std::ops::Range<u64>,
        program: &str,
        piece: u64,
        bytes: u64,
    ) -> Vec<bool> {
        let one = |n| {
            let mut course = course(program, SIZE);
            course.is_direct = modes.is_direct(InodeNo(n), &course, || false);
            // The kernel's read-ahead makes twice as much of a program's piece.
            let request = if course.is_direct { piece } else { (2 * piece).min(1 << 20) };
            (0..bytes).step_by(request as usize).for_each(|at| course.read(at, request as usize));
            modes.released(InodeNo(n), &course);
            course.is_direct
        };
        numbers.map(one).collect()
    }

    fn once(modes: &ReadModes, numbers: std::ops::Range<u64>) -> Vec<bool> {
        read(modes, numbers, "cp", 1 << 20, SIZE)
    }

    #[test]
    fn large_files_read_once_bypass_the_page_cache_from_the_fifth_on() {
        let modes = ReadModes::new(ReadMode::Auto);
        assert_eq!(once(&modes, 2..9), [false, false, false, false, true, true, true]);
        let cp = ReadModes::new(ReadMode::Auto);
        assert_eq!(read(&cp, 2..8, "cp", 128 << 10, SIZE), [false, false, false, false, true, true]);
        assert!(!modes.is_direct(InodeNo(50), &course("cp", LARGE - 1), || false), "a small one");
        assert!(!modes.is_direct(InodeNo(50), &course("sqlite3", SIZE), || false), "another program");
    }

    #[test]
    fn small_reads_and_partial_ones_stay_in_the_page_cache() {
        for (piece, bytes) in [(64 << 10, SIZE), (1 << 20, SIZE / 2), (1 << 20, 2 * SIZE)] {
            let modes = ReadModes::new(ReadMode::Auto);
            assert!(read(&modes, 2..20, "cp", piece, bytes).iter().all(|direct| !direct), "{piece} {bytes}");
        }
        let modes = ReadModes::new(ReadMode::Auto);
        once(&modes, 2..6);
        assert_eq!(read(&modes, 6..8, "cp", 4096, SIZE), [true, false], "one is enough to change it");
    }

    #[test]
    fn a_file_read_again_brings_the_page_cache_back_for_longer_each_time() {
        let modes = ReadModes::new(ReadMode::Auto);
        once(&modes, 2..8);
        assert!(!modes.is_direct(InodeNo(5), &course("cp", SIZE), || false), "it was read before");
        assert_eq!(once(&modes, 10..28).iter().filter(|direct| **direct).count(), 2);
        assert!(!modes.is_direct(InodeNo(30), &course("cp", SIZE), || true), "another program reads it");
        assert!(once(&modes, 40..40 + 64).iter().all(|direct| !direct));
    }

    #[test]
    fn a_mode_that_is_chosen_holds_for_every_file() {
        for (mode, direct) in [(ReadMode::Buffered, false), (ReadMode::Direct, true)] {
            let modes = ReadModes::new(mode);
            assert!(once(&modes, 2..20).iter().all(|it| *it == direct));
            assert_eq!(modes.is_direct(InodeNo(1), &course("", 1), || true), direct);
        }
    }

    #[test]
    fn programs_without_end_take_no_memory_without_end() {
        let modes = ReadModes::new(ReadMode::Auto);
        for n in 0..10 * REMEMBERED as u64 {
            read(&modes, n..n + 1, &n.to_string(), 1 << 20, SIZE);
        }
        let seen = modes.seen.lock();
        assert!(seen.programs.len() <= PROGRAMS && seen.read.len() == REMEMBERED);
    }
}
