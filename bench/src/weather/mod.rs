//! Foul weather: the result of each file system while the store is unreachable, breaks its answers off, or is behind a slow link. Enters:
//! peers and an order. Leaves: a table of errors, bytes, times and leftovers. The operations are those of the engine's own tests
//! (`testkit::scenario`), and so is the store (`s3server`), which keeps every byte, so the bench can compare stored files.

mod beside;
mod site;
mod table;

use std::time::Duration;

use testkit::scenario::{self, Outage, Outcome, Timed};

use crate::peers::Peer;
use crate::stats::short;
use site::Site;
pub(crate) use table::{Line, markdown};

const MIB: u64 = 1 << 20;

/// The names of all kinds of weather, as on the command line.
pub(crate) const NAMES: &[&str] =
    &["refused", "503", "black-hole", "one-in-ten", "resets", "slow-writes", "slow-reads", "beside"];

/// Bytes per second (50 Mbit/s), for small requests beside readers.
const LINK_OF_READERS: u64 = 6_250_000;
/// Bytes per second (10 MB/s), for large and small written files.
const LINK_OF_WRITERS: u64 = 10_000_000;
const LARGE: u64 = 300 * MIB;
const SMALL: u64 = 16 * MIB;

/// Time limit of a file system besides the outage itself; after it the bench kills it. The slow link needs at least 195 s.
const LIMIT: Duration = Duration::from_secs(400);

/// The order of a run.
#[derive(Debug)]
pub(crate) struct Order {
    /// The names to run, from [`NAMES`].
    pub(crate) names: Vec<&'static str>,
    /// Durations of outages.
    pub(crate) outages: Vec<Duration>,
    /// Number of rounds of `beside`.
    pub(crate) rounds: usize,
}

/// Runs the order, in each weather one file system after the other; `say` gets the progress.
///
/// # Errors
/// The bench itself fails. A file system's failure is a line of the table.
pub(crate) fn run(order: &Order, peers: &[Peer], say: &dyn Fn(&str)) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    let mut done = |line: Line| {
        say(&line.progress());
        lines.push(line);
    };
    for name in &order.names {
        if *name == "beside" {
            beside::run(peers, order.rounds, &mut done)?;
            continue;
        }
        for (title, strike) in strikes(name, &order.outages) {
            for peer in peers {
                done(once(peer, &title, &strike)?);
            }
        }
    }
    Ok(lines)
}

/// Runs one kind of weather on one mount. Returns the outcome, and a note for the table.
type Strike = Box<dyn Fn(&Site) -> (Outcome, String) + Send + Sync>;

/// The rows of one name of weather, each with its title.
fn strikes(name: &str, outages: &[Duration]) -> Vec<(String, Strike)> {
    let one = |title: &str, strike: Strike| vec![(title.to_owned(), strike)];
    match name {
        "one-in-ten" => one(
            "one request in ten answered 503",
            Box::new(|site| {
                let outcome = scenario::one_in_ten(site.place());
                (outcome, format!("{} requests refused", site.proxy.counts().requests_refused))
            }),
        ),
        "resets" => one(
            "each answer reset after 1 MiB",
            Box::new(|site| {
                let (outcome, cost) = scenario::broken_answers(site.place());
                (outcome, format!("{} bytes passed for each byte of the file", short(cost)))
            }),
        ),
        "slow-writes" => one(
            "6 x 300 MiB and 3 x 16 MiB over 10 MB/s",
            Box::new(|site| {
                let (outcome, listed) = scenario::among_writers(site.place(), LARGE, SMALL, LINK_OF_WRITERS);
                (outcome, format!("`ls` {}", seconds(listed)))
            }),
        ),
        "slow-reads" => one(
            "`ls` and `cat` beside 24 readers on 50 Mbit/s",
            Box::new(|site| {
                let (outcome, [listed, read]) = scenario::among_readers(site.place(), LINK_OF_READERS);
                (outcome, format!("`ls` {}, `cat` {}", seconds(listed), seconds(read)))
            }),
        ),
        outage => {
            let of = Outage::all().into_iter().find(|kind| kind.name.replace(' ', "-") == outage);
            let rows =
                of.into_iter().flat_map(|kind| outages.iter().map(move |lasts| (kind.clone(), *lasts)));
            let strike = |(kind, lasts): (Outage, Duration)| -> (String, Strike) {
                let title = format!("{}, {} s", kind.name, lasts.as_secs());
                (title, Box::new(move |site| (scenario::outage(site.place(), &kind, lasts), String::new())))
            };
            rows.map(strike).collect()
        }
    }
}

fn seconds(timed: Timed) -> String {
    format!("{} s", short(timed.wall.as_secs_f64()))
}

/// Runs one kind of weather on one new mount.
fn once(peer: &Peer, title: &str, strike: &Strike) -> anyhow::Result<Line> {
    let mut line = Line::new(title, peer);
    let site = match Site::new(peer) {
        Ok(site) => site,
        Err(error) => {
            line.failure = Some(format!("{error:#}"));
            return Ok(line);
        }
    };
    let watchdog = site.watchdog(LIMIT);
    // A separate thread is used, because a scenario panics if it can't begin.
    let struck = std::thread::scope(|scope| scope.spawn(|| strike(&site)).join());
    let was_killed = watchdog.disarm();
    match struck {
        Ok((outcome, note)) => line.fill(outcome, note),
        Err(_) => line.failure = Some("it never began".to_owned()),
    }
    if was_killed {
        line.notes.push(format!("killed after {} s", LIMIT.as_secs()));
    }
    line.left_behind = Some(site.end());
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_some_weather() {
        let outages = [5, 15].map(Duration::from_secs);
        for name in NAMES.iter().filter(|name| **name != "beside") {
            let rows = strikes(name, &outages);
            let wanted = if ["refused", "503", "black-hole"].contains(name) { 2 } else { 1 };
            assert_eq!(rows.len(), wanted, "{name}");
        }
    }
}
