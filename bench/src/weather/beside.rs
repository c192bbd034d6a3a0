//! A writer beside a reader on a distant store: the share of its rate that the reader keeps. The store is the bench's own
//! server, which costs almost nothing, with latency and a rate limit.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::table::Line;
use crate::mount::{Mount, Watchdog};
use crate::peers::{Peer, Plan};
use crate::run::ServerProcess;
use crate::server::control::Control;
use crate::server::store::Shape;
use crate::stats::{Spread, short};

/// The latency of each request.
const LATENCY: Duration = Duration::from_millis(20);
/// The rate of each connection, in bytes per second.
const RATE: u64 = 90_000_000;
/// The mount's memory for data, in MiB; AWS's engine uses its own minimum, 512.
const MEMORY_MIB: u32 = 128;
/// The size of the read object, in bytes: more than the reader can read in the time.
const OBJECT: u64 = 64 << 30;
/// The time before the measurement, in which reader and writer reach their rates.
const SETTLES: Duration = Duration::from_secs(3);
const MEASURED: Duration = Duration::from_secs(8);
/// Time limit of one mount, including the writer's close, which stores the last part.
const LIMIT: Duration = Duration::from_secs(60);
const PIECE: usize = 1 << 20;
const BUCKET: &str = "beside";

/// Rates in megabytes per second.
#[derive(Debug, Clone, Copy)]
struct Rates {
    alone: f64,
    beside: f64,
    writer: f64,
}

/// Runs all peers in interleaved rounds. Adds a line of the table for each.
pub(super) fn run(peers: &[Peer], rounds: usize, done: &mut impl FnMut(Line)) -> anyhow::Result<()> {
    let work = tempfile::Builder::new().prefix("s3-beside-").tempdir()?;
    let server = ServerProcess::start(None, work.path())?;
    let control = Control::new(server.address);
    control.fill(BUCKET, "", Shape::Counter.word(), 1, OBJECT)?;
    let mut rates: Vec<anyhow::Result<Vec<Rates>>> = peers.iter().map(|_| Ok(Vec::new())).collect();
    for _ in 0..rounds {
        for (peer, rates) in peers.iter().zip(&mut rates) {
            let Ok(sofar) = rates else { continue };
            match round(peer, &server, &control, work.path()) {
                Ok(round) => sofar.push(round),
                Err(error) => *rates = Err(error),
            }
        }
    }
    for (peer, rates) in peers.iter().zip(rates) {
        let mut line = Line::new("a writer beside a reader, 20 ms a request", peer);
        match rates {
            Ok(rates) => line.notes.push(told(&rates)),
            Err(error) => line.failure = Some(format!("{error:#}")),
        }
        done(line);
    }
    Ok(())
}

/// The reader's share, and the rates behind it: medians, with the range of the share.
fn told(rates: &[Rates]) -> String {
    let of = |figure: fn(&Rates) -> f64| Spread::of(&rates.iter().map(figure).collect::<Vec<_>>());
    let median =
        |figure| of(figure).map_or_else(|| "none".to_owned(), |spread| format!("{:.0}", spread.median));
    let share = of(|rates| rates.beside / rates.alone).map_or_else(
        || "nothing".to_owned(),
        |share| format!("{} ({}-{})", short(share.median), short(share.min), short(share.max)),
    );
    format!(
        "the reader keeps {share} of its lone rate: {} of {} MB/s beside a writer at {}",
        median(|rates| rates.beside),
        median(|rates| rates.alone),
        median(|rates| rates.writer)
    )
}

fn round(peer: &Peer, server: &ServerProcess, control: &Control, work: &Path) -> anyhow::Result<Rates> {
    let (alone, _) = mounted(peer, server, control, work, false)?;
    let (beside, writer) = mounted(peer, server, control, work, true)?;
    Ok(Rates { alone, beside, writer })
}

/// The rates of the reader and of the writer on a new mount.
fn mounted(
    peer: &Peer,
    server: &ServerProcess,
    control: &Control,
    work: &Path,
    writes: bool,
) -> anyhow::Result<(f64, f64)> {
    let work = tempfile::tempdir_in(work)?;
    let plan = Plan {
        bucket: BUCKET,
        endpoint: &format!("http://{}", server.address),
        ca_file: &server.ca_file,
        dir: &work.path().join("mnt"),
        cache: None,
        ttl_s: None,
        memory_mib: Some(MEMORY_MIB),
        deletes: false,
        renames: false,
        overwrites: false,
        stage: None,
        work: work.path(),
        object_bytes: OBJECT,
    };
    control.pace(Duration::ZERO, 0)?;
    let mount = Mount::start(&peer.command(&plan)?, work.path(), "beside", None)?;
    control.pace(LATENCY, RATE)?;
    let watchdog = Watchdog::arm(mount.pid(), LIMIT);
    // All rounds use one bucket, so each needs another name.
    let name = format!("written{}", work.path().file_name().unwrap_or_default().display());
    let measured = rates(mount.dir(), writes.then_some(name.as_str()));
    let was_killed = watchdog.disarm();
    control.pace(Duration::ZERO, 0)?;
    anyhow::ensure!(!was_killed, "not done after {} s", LIMIT.as_secs());
    measured.with_context(|| format!("its last words: {}", mount.last_words()))
}

/// Measures a reader, and a writer if there is a name for its file. Returns their rates.
fn rates(dir: &Path, written_name: Option<&str>) -> anyhow::Result<(f64, f64)> {
    let (read, written, enough) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut file = File::open(dir.join(Shape::Counter.name(0))).context("open")?;
            let mut piece = vec![0; PIECE];
            while !enough.load(Relaxed) {
                file.read_exact(&mut piece).context("read")?;
                read.fetch_add(PIECE as u64, Relaxed);
            }
            anyhow::Ok(())
        });
        let writer = scope.spawn(|| {
            let Some(name) = written_name else { return Ok(()) };
            let mut file = File::create_new(dir.join(name)).context("create")?;
            let piece = vec![1; PIECE];
            while !enough.load(Relaxed) {
                file.write_all(&piece).context("write")?;
                written.fetch_add(PIECE as u64, Relaxed);
            }
            file.sync_all().context("fsync")
        });
        std::thread::sleep(SETTLES);
        let (before, started) = ([&read, &written].map(|count| count.load(Relaxed)), Instant::now());
        std::thread::sleep(MEASURED);
        let (after, seconds) =
            ([&read, &written].map(|count| count.load(Relaxed)), started.elapsed().as_secs_f64());
        enough.store(true, Relaxed);
        for thread in [reader, writer] {
            thread.join().map_err(|_| anyhow::anyhow!("a reader or writer panicked"))??;
        }
        let rate = |at: usize| (after[at] - before[at]) as f64 / 1e6 / seconds;
        Ok((rate(0), rate(1)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_the_median_of_the_rounds_shares() {
        let rounds = [(100.0, 50.0), (100.0, 90.0), (200.0, 120.0)];
        let rates = rounds.map(|(alone, beside)| Rates { alone, beside, writer: 7.0 });
        let text = told(&rates);
        assert!(
            text.starts_with("the reader keeps 0.60 (0.50-0.90) of its lone rate: 90 of 100 MB/s"),
            "{text}"
        );
    }
}
