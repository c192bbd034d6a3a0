//! Renames, and an append to a long object, for which the store copies on its side. Each run restores the names.

use std::fs::{File, rename};
use std::io::Write as _;

use anyhow::{Context as _, ensure};

use super::{Job, Sample, Work};

/// Number of appended bytes.
const APPENDED: usize = 4096;

/// Renames one long file.
pub(super) fn file(job: &Job<'_>) -> anyhow::Result<Sample> {
    renamed(job, "00000000", job.scale.big_bytes, 1)
}

/// Renames a directory with its files.
pub(super) fn directory(job: &Job<'_>) -> anyhow::Result<Sample> {
    let (_, _, files, size) = job.workload.bucket.objects(job.scale);
    renamed(job, "dir", files * size, files)
}

/// Renames `name`, with its `files` files of `bytes` in all, and renames it back after the measurement.
fn renamed(job: &Job<'_>, name: &str, bytes: u64, files: u64) -> anyhow::Result<Sample> {
    let new = format!("renamed-{:04}", job.serial);
    let (from, to) = (job.path(name), job.path(&new));
    let sample = job.measure(|| {
        rename(&from, &to).with_context(|| format!("rename {name}"))?;
        Ok(Work { items: files, ..Work::default() })
    })?;
    let there = job.control.count(job.bucket, &new)?;
    ensure!(there == (files, bytes), "{there:?} objects and bytes instead of {:?}", (files, bytes));
    rename(&to, &from).with_context(|| format!("rename {new}"))?;
    Ok(sample)
}

/// Appends some bytes to a long object.
pub(super) fn append(job: &Job<'_>) -> anyhow::Result<Sample> {
    const NAME: &str = "00000000";
    let before = std::fs::metadata(job.path(NAME)).context("look at the file")?.len();
    let sample = job.measure(|| {
        let mut file = File::options().append(true).open(job.path(NAME)).context("open the file")?;
        file.write_all(&[b'+'; APPENDED]).context("append")?;
        drop(file);
        Ok(Work { items: 1, ..Work::default() })
    })?;
    let (_, bytes) = job.control.count(job.bucket, NAME)?;
    ensure!(bytes == before + APPENDED as u64, "{bytes} bytes instead of {before} and {APPENDED}");
    Ok(sample)
}
