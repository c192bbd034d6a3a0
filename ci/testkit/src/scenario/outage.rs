//! A store that is unreachable, refuses some requests, or breaks its answers off.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use super::work::{Known, list};
use super::{MIB, Outcome, Scene};
use crate::proxy::Weather;
use crate::until;

/// Size of a large file, in bytes.
const TRANSFER: u64 = 24 * MIB;
/// Size of a small file, in bytes.
const SMALL: u64 = 4_000;
/// Size of the file that is read while answers break off, in bytes.
const BROKEN: u64 = 64 * MIB;
/// Rate before the outage, in bytes per second: slow enough that all transfers are in progress when the outage begins.
const RATE_BEFORE: u64 = 20_000_000;
/// Number of small files that are read while one request in ten is refused.
const CATS: u64 = 50;

/// A kind of outage.
#[derive(Clone, Debug)]
pub struct Outage {
    /// The name in tables and commands.
    pub name: &'static str,
    /// The weather during the outage.
    pub during: Weather,
    /// The weather after the outage.
    pub after: Weather,
}

impl Outage {
    /// All kinds of outage: refused connections; 503 as the answer to each request; a black hole, in which sent bytes are lost, so
    /// connections of that time stay dead afterwards.
    pub fn all() -> [Self; 3] {
        let clear = Weather::clear;
        [
            Self { name: "refused", during: clear().refused(), after: clear() },
            Self { name: "503", during: clear().unavailable(Some("1".to_owned())), after: clear() },
            Self { name: "black hole", during: clear().black_hole(), after: clear().half_open() },
        ]
    }
}

/// Runs two writers, four readers, a `stat` and thirty `cat`s during an outage of `lasts`.
///
/// # Panics
/// Readers and writers do not begin within a minute.
pub fn outage(place: Scene<'_>, outage: &Outage, lasts: Duration) -> Outcome {
    let read: Vec<_> = (0..4).map(|i| Known::new(format!("read{i}"), i, TRANSFER)).collect();
    let small: Vec<_> = (0..30).map(|i| Known::new(format!("dir{i}/small"), i, SMALL)).collect();
    read.iter().chain(&small).for_each(|file| file.plant(place));
    let looked_at = Known::new("dir30/small", 30, SMALL);
    looked_at.plant(place);
    let written: Vec<_> = (0..2).map(|i| Known::new(format!("written{i}"), 100 + i, TRANSFER)).collect();

    place.proxy.set(Weather::clear().rate(RATE_BEFORE));
    let before = place.proxy.counts();
    let mut outcome = Outcome::default();
    outcome.took = thread::scope(|scope| {
        let mut work = Vec::new();
        for file in &read {
            work.push((format!("read {}", file.name), scope.spawn(move || file.read(place))));
        }
        for file in &written {
            work.push((format!("write {}", file.name), scope.spawn(move || file.write(place))));
        }
        // An upload that begins at the outage may stay in the store: the answer with its id was lost.
        until("all are under way", || {
            let now = place.proxy.counts();
            let stored = written.iter().filter(|file| place.folder.join(&file.name).exists()).count();
            stored + place.uploads_with_parts() >= written.len()
                && now.bytes_down - before.bytes_down > 4 * MIB
        });
        place.proxy.set(outage.during.clone());
        let gone = Instant::now();
        let path = place.mount.join(&looked_at.name);
        work.push(("stat".to_owned(), scope.spawn(move || Ok(fs::metadata(path).map(drop)?))));
        for file in &small {
            work.push((format!("cat {}", file.name), scope.spawn(move || file.read(place))));
        }
        thread::sleep(lasts);
        place.proxy.set(outage.after.clone());
        for (what, thread) in work {
            outcome.add(&what, thread.join().expect("operations do not panic"));
        }
        gone.elapsed()
    });
    outcome
}

/// Runs a reader, a writer, fifty `cat`s and an `ls` while one request in ten is answered with 503.
pub fn one_in_ten(place: Scene<'_>) -> Outcome {
    let small: Vec<_> = (0..CATS).map(|i| Known::new(format!("dir/file{i}"), i, SMALL)).collect();
    let (read, written) = (Known::new("read", 70, TRANSFER), Known::new("written", 80, TRANSFER));
    small.iter().chain([&read]).for_each(|file| file.plant(place));
    place.proxy.set(Weather::clear().unavailable_share(0.1, 11));
    let (mut outcome, started) = (Outcome::default(), Instant::now());
    thread::scope(|scope| {
        let reads = scope.spawn(|| read.read(place));
        let writes = scope.spawn(|| written.write(place));
        for file in &small {
            outcome.add(&format!("cat {}", file.name), file.read(place));
        }
        outcome.add("ls", list(place, "dir", small.len()));
        outcome.add("read", reads.join().expect("operations do not panic"));
        outcome.add("write", writes.join().expect("operations do not panic"));
    });
    outcome.took = started.elapsed();
    outcome
}

/// Reads 64 MiB while each connection is reset after 1 MiB of answers. Also returns the number of bytes that passed per byte of the
/// file.
pub fn broken_answers(place: Scene<'_>) -> (Outcome, f64) {
    let file = Known::new("read", 5, BROKEN);
    file.plant(place);
    place.proxy.set(Weather::clear().reset_answers_after(MIB));
    let (mut outcome, started, before) = (Outcome::default(), Instant::now(), place.proxy.counts());
    outcome.add("read", file.read(place));
    outcome.took = started.elapsed();
    let passed = place.proxy.counts().bytes_down - before.bytes_down;
    (outcome, passed as f64 / BROKEN as f64)
}
