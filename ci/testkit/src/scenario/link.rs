//! A slow link that large and small requests share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::work::{Known, Trouble, list};
use super::{MIB, Outcome, Scene};
use crate::proxy::Weather;
use crate::until;

/// Number of names in the listed directory.
const NAMES: u64 = 10;
const READERS: u64 = 24;
const SMALL: u64 = 100_000;

/// The duration of one operation.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    /// The link's load meanwhile, in seconds of its full rate: a busy machine stretches time, not bytes.
    pub link_s: f64,
    /// The duration by the clock.
    pub wall: Duration,
}

/// Measures one operation over a link of `rate` bytes per second.
fn timed(
    place: Scene<'_>,
    rate: u64,
    work: impl FnOnce() -> Result<(), Trouble>,
) -> (Timed, Result<(), Trouble>) {
    let moved = || {
        let counts = place.proxy.counts();
        counts.bytes_down + counts.bytes_up
    };
    let (before, started) = (moved(), Instant::now());
    let result = work();
    (Timed { link_s: (moved() - before) as f64 / rate as f64, wall: started.elapsed() }, result)
}

/// Ends the readers when it is dropped, also if the scenario panics.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn plant_names(place: Scene<'_>) {
    (0..NAMES).for_each(|i| Known::new(format!("dir/name{i}"), i, 1).plant(place));
}

/// Runs 24 readers on a link of `rate` bytes per second, and meanwhile the first `ls` of a directory of 10 names, then the first `cat` of
/// a file of 100 kB.
///
/// # Panics
/// The readers do not fill the link within a minute.
pub fn among_readers(place: Scene<'_>, rate: u64) -> (Outcome, [Timed; 2]) {
    let large: Vec<_> = (0..READERS).map(|i| Known::new(format!("large{i}"), i, 16 * MIB)).collect();
    let small = Known::new("small", READERS, SMALL);
    large.iter().chain([&small]).for_each(|file| file.plant(place));
    plant_names(place);
    place.proxy.set(Weather::clear().rate(rate));
    let (enough, before, started) = (AtomicBool::new(false), place.proxy.counts().bytes_down, Instant::now());
    let mut outcome = Outcome::default();
    let times = thread::scope(|scope| {
        let enough = &enough;
        let ends = Ends(enough);
        let readers: Vec<_> =
            large.iter().map(|file| (file, scope.spawn(move || file.read_until(place, enough)))).collect();
        // By then the readers have had their first bytes: all of them read ahead.
        until("the link is full of bulk", || place.proxy.counts().bytes_down - before > READERS * MIB);
        let (listed, result) = timed(place, rate, || list(place, "dir", NAMES as usize));
        outcome.add("ls", result);
        let (read, result) = timed(place, rate, || small.read(place));
        outcome.add("cat", result);
        drop(ends);
        // Bytes in flight for read-ahead are not needed any more.
        place.proxy.set(Weather::clear());
        for (file, thread) in readers {
            outcome.add(&format!("read {}", file.name), thread.join().expect("operations do not panic"));
        }
        [listed, read]
    });
    outcome.took = started.elapsed();
    (outcome, times)
}

/// Lets writers of six large files and of three small ones share a link of `rate` bytes a second. Returns the outcome, and the duration
/// of an `ls` meanwhile.
///
/// # Panics
/// The writers do not fill the link within a minute.
pub fn among_writers(place: Scene<'_>, large: u64, small: u64, rate: u64) -> (Outcome, Timed) {
    plant_names(place);
    let large = (0..6).map(|i| Known::new(format!("large{i}"), i, large));
    let files: Vec<_> = large.chain((0..3).map(|i| Known::new(format!("small{i}"), 6 + i, small))).collect();
    place.proxy.set(Weather::clear().rate(rate));
    let (before, started, mut outcome) = (place.proxy.counts().bytes_up, Instant::now(), Outcome::default());
    let listed = thread::scope(|scope| {
        let writers: Vec<_> =
            files.iter().map(|file| (file, scope.spawn(move || file.write(place)))).collect();
        until("the link is full of bulk", || place.proxy.counts().bytes_up - before > rate);
        let (listed, result) = timed(place, rate, || list(place, "dir", NAMES as usize));
        outcome.add("ls", result);
        for (file, thread) in writers {
            outcome.add(&format!("write {}", file.name), thread.join().expect("operations do not panic"));
        }
        listed
    });
    outcome.took = started.elapsed();
    (outcome, listed)
}
