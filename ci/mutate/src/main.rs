//! `mutate LIST SEED COUNT TOP NOTES`: switches COUNT mutants of LIST, one after another, and says which ones the tests notice.
//!
//! LIST is what `cargo mutants --list --json` prints. SEED is a commit: its first 16 hexadecimal digits choose the sample. TOP is a copy
//! of the tree, which is changed. NOTES is a file of one line for each verdict: a run that is repeated goes on behind its last line.

mod mutant;
mod switch;
mod tree;
mod verdict;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::mutant::Mutant;
use crate::tree::Tests;
use crate::verdict::Verdict;

/// Suites that run the tests of `mount` once more, on another transport or store.
const REPEATS: [&str; 5] = ["mount_fuser", "mount_https", "mount_io_uring", "mount_moto", "mount_versitygw"];
/// A mutant has this many times as long as the tests need without one, and at least `SHORTEST`.
const PATIENCE: u32 = 4;
const SHORTEST: Duration = Duration::from_secs(120);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [list, seed, count, top, notes] = &arguments[..] else { bail!("mutate LIST SEED COUNT TOP NOTES") };
    let seed = u64::from_str_radix(seed.get(..16).context("SEED has 16 digits")?, 16)
        .context("SEED is hexadecimal")?;
    let mutants = mutant::read(Path::new(list), seed)?;
    println!("{} mutants in the list.", mutants.len());
    let (chosen, tests) = tree::build(Path::new(top), &mutants, count.parse().context("COUNT is a number")?)?;

    let suites = suites(tests, &mutants, &chosen)?;
    let known = known(Path::new(notes));
    let notes = Mutex::new(std::fs::File::options().create(true).append(true).open(notes)?);
    let next = AtomicUsize::new(0);
    let verdicts = Mutex::new(Vec::new());
    let jobs: usize = std::env::var("MUTATE_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    let work = || -> Result<()> {
        while let Some(&number) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mutant = &mutants[number as usize];
            let words = match known.get(&mutant.name) {
                Some(words) => words.clone(),
                None => {
                    let words = ask(number, &suites[&mutant.package])?;
                    writeln!(notes.lock().expect("nothing panics here"), "{}\t{words}", mutant.name)?;
                    words
                }
            };
            println!("{}: {words}", mutant.name);
            verdicts.lock().expect("nothing panics here").push((mutant, words));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|w| w.join().expect("a worker returns its errors"))
    })?;
    report(verdicts.into_inner().expect("the workers have ended"))
}

/// The suites of each package, the quick ones first, each with how long it may take.
///
/// # Errors
/// A suite fails without any mutant.
fn suites(
    tests: Vec<Tests>,
    mutants: &[Mutant],
    chosen: &[u32],
) -> Result<BTreeMap<String, Vec<(Tests, Duration)>>> {
    let mut suites: BTreeMap<String, Vec<(Tests, Duration)>> = BTreeMap::new();
    let needed = |t: &Tests| chosen.iter().any(|&n| mutants[n as usize].package == t.package);
    for one in tests.into_iter().filter(|t| needed(t) && !REPEATS.contains(&t.name.as_str())) {
        let began = Instant::now();
        let verdict = verdict::of(&one, None, Duration::from_secs(1800))?;
        println!("{} {} without a mutant: {:.0} s", one.package, one.name, began.elapsed().as_secs_f64());
        ensure!(
            verdict == Verdict::Missed,
            "{} {} fails without any mutant: {verdict:?}",
            one.package,
            one.name
        );
        suites.entry(one.package.clone()).or_default().push((one, began.elapsed()));
    }
    for list in suites.values_mut() {
        // Unit tests first: they catch most.
        list.sort_by_key(|(t, took)| (t.name != "lib", *took));
        list.iter_mut().for_each(|(_, took)| *took = (*took * PATIENCE).max(SHORTEST));
    }
    Ok(suites)
}

fn ask(number: u32, suites: &[(Tests, Duration)]) -> Result<String> {
    for (tests, limit) in suites {
        match verdict::of(tests, Some(number), *limit)? {
            Verdict::Missed => {}
            Verdict::Caught(test) => return Ok(format!("caught by {} {test}", tests.name)),
            Verdict::TimedOut => return Ok(format!("caught: {} does not end", tests.name)),
        }
    }
    Ok("MISSED".to_owned())
}

/// The verdicts that an earlier run wrote.
fn known(notes: &Path) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(notes).unwrap_or_default();
    text.lines().filter_map(|l| l.split_once('\t')).map(|(n, w)| (n.to_owned(), w.to_owned())).collect()
}

fn report(mut verdicts: Vec<(&Mutant, String)>) -> Result<()> {
    verdicts.sort_by(|a, b| a.0.name.cmp(&b.0.name));
    let missed: Vec<&Mutant> = verdicts.iter().filter(|(_, w)| w == "MISSED").map(|(m, _)| *m).collect();
    println!("\nMissed:");
    missed.iter().for_each(|m| println!("  {}", m.name));
    let (caught, all) = (verdicts.len() - missed.len(), verdicts.len());
    println!("{caught} of {all} mutants are caught ({} %).", caught * 100 / all.max(1));
    Ok(())
}
