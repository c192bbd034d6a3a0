//! Writing: one big file, many small files. The measurement ends when the last close returns.

use std::fs::File;
use std::io::Write as _;

use anyhow::Context as _;

use super::read::{PAGE, aligned};
use super::{Job, Sample, Work};
use crate::pattern::{PERIOD, base_of, fill};

/// Size of a write, in bytes.
pub(super) const WRITE: usize = 1 << 20;
const SMALL: usize = 4096;

pub(super) fn one(job: &Job<'_>) -> anyhow::Result<Sample> {
    one_by(job, WRITE)
}

pub(super) fn one_by_pages(job: &Job<'_>) -> anyhow::Result<Sample> {
    one_by(job, PAGE)
}

fn one_by(job: &Job<'_>, write: usize) -> anyhow::Result<Sample> {
    let (key, pattern) = (format!("one-{:04}", job.serial), pattern());
    job.measure_writing(&key, || stream(job, &key, &pattern, job.scale.big_bytes, write))
}

/// The pattern, with room for a write from each offset. It is computed before the measurement, because computing costs more than writing
/// it.
pub(super) fn pattern() -> Vec<u8> {
    let mut pattern = vec![0; PERIOD as usize + WRITE];
    fill(0, 0, &mut pattern);
    pattern
}

/// Writes a new file of `size` bytes of the pattern, by writes of `write` bytes, and closes it.
pub(super) fn stream(
    job: &Job<'_>,
    key: &str,
    pattern: &[u8],
    size: u64,
    write: usize,
) -> anyhow::Result<Work> {
    let base = base_of(key);
    let mut memory = vec![0; WRITE + PAGE];
    let buf = aligned(&mut memory);
    let mut file = create(job, key)?;
    for offset in (0..size).step_by(write) {
        let count = write.min((size - offset) as usize);
        let from = ((base + offset) % PERIOD) as usize;
        buf[..count].copy_from_slice(&pattern[from..from + count]);
        file.write_all(&buf[..count]).with_context(|| format!("write {key} at {offset}"))?;
    }
    // The result of close is not visible here: if it fails, the store never has the object.
    drop(file);
    Ok(Work { bytes: size, items: 1, ..Work::default() })
}

pub(super) fn small(job: &Job<'_>) -> anyhow::Result<Sample> {
    let prefix = format!("small-{:04}-", job.serial);
    job.measure_writing(&prefix, || {
        let mut buf = [0; SMALL];
        for number in 0..job.scale.created {
            let key = format!("{prefix}{number:06}");
            fill(base_of(&key), 0, &mut buf);
            let mut file = create(job, &key)?;
            file.write_all(&buf).with_context(|| format!("write {key}"))?;
            drop(file);
        }
        Ok(Work { bytes: job.scale.created * SMALL as u64, items: job.scale.created, ..Work::default() })
    })
}

/// Writes small files after a listing, with which the mount knows all names.
pub(super) fn small_listed(job: &Job<'_>) -> anyhow::Result<Sample> {
    let listed = std::fs::read_dir(job.root())?.count();
    anyhow::ensure!(listed == 0, "{listed} names in an empty bucket");
    small(job)
}

fn create(job: &Job<'_>, key: &str) -> anyhow::Result<File> {
    File::create_new(job.path(key)).with_context(|| format!("create {key}"))
}
