//! Readers and writers at once, which shows whether an engine's threads wait for one another.

use super::read::{in_threads, piece};
use super::write::{WRITE, pattern, stream};
use super::{Job, Sample};

const READERS: u64 = 16;
const WRITERS: u64 = 16;
/// Number of big files; four readers share each.
const FILES: u64 = 4;

/// Sixteen threads read a quarter of a big file each; sixteen write a sixteenth of one each.
pub(super) fn readers_writers(job: &Job<'_>) -> anyhow::Result<Sample> {
    let (read, written) = (job.scale.big_bytes / (READERS / FILES), job.scale.big_bytes / WRITERS);
    let (prefix, pattern) = (format!("mixed-{:04}-", job.serial), pattern());
    let mut sample = job.measure(|| {
        in_threads(READERS + WRITERS, |thread| {
            if thread < READERS {
                piece(job, thread % FILES, thread / FILES * read, read)
            } else {
                let key = format!("{prefix}{thread:02}");
                stream(job, &key, &pattern, written, WRITE)
            }
        })
    })?;
    let stored = job.control.count(job.bucket, &prefix)?;
    sample.stored_at_close = Some(stored == (WRITERS, WRITERS * written));
    Ok(sample)
}
