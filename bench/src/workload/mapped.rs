//! Random reads of a mapped file: page faults instead of calls. A separate process makes them: a page that can't be read
//! raises SIGBUS, which must end the reader and not the bench.
#![expect(
    unsafe_code,
    reason = "a mapping is memory that somebody else fills: 3 blocks, each with its invariant"
)]

use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::read::{PAGE, RANDOM_THREADS, STRIDE, in_threads, numbered};
use super::{Job, Sample, Work};
use crate::floor::Pass;
use crate::meter::own_cpu_s;
use crate::pattern::{base_of, check};

/// Reads random pages of the first file for the scale's duration.
pub(super) fn random(job: &Job<'_>) -> anyhow::Result<Sample> {
    let program = std::env::current_exe()?;
    job.measure(|| {
        let output = Command::new(&program)
            .arg("mapped-reads")
            .arg(job.path(&numbered(0)))
            .arg(job.scale.random_for.as_millis().to_string())
            .output()
            .context("start the reader of a mapped file")?;
        if let Some(signal) = output.status.signal() {
            bail!(
                "the reader was killed by signal {signal}; 7 is a page of the mapping that could not be read"
            );
        }
        let said = String::from_utf8_lossy(&output.stdout);
        let pass: Pass = serde_json::from_str(&said).with_context(|| {
            format!("the reader failed: {}", String::from_utf8_lossy(&output.stderr).trim())
        })?;
        let items = pass.bytes / PAGE as u64;
        Ok(Work {
            bytes: pass.bytes,
            items,
            seconds: Some(pass.seconds),
            child_cpu_s: pass.cpu_s,
            ..Work::default()
        })
    })
}

/// The process that reads: 16 threads read pages of `path`, each page once, far from one another. Every byte is checked.
///
/// # Errors
/// The file can't be mapped, or has a wrong byte.
pub(crate) fn reads(path: &Path, random_for: Duration) -> anyhow::Result<Pass> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let size = file.metadata()?.len();
    let base = base_of(&path.file_name().unwrap_or_default().to_string_lossy());
    let mapping = Mapping::new(&file, size).with_context(|| format!("map {}", path.display()))?;
    let (pages, next) = (size / PAGE as u64, AtomicU64::new(0));
    let (before, begun) = (own_cpu_s(), Instant::now());
    let work = in_threads(RANDOM_THREADS, |_| {
        let mut work = Work::default();
        let mut page = [0; PAGE];
        while begun.elapsed() < random_for {
            let turn = next.fetch_add(1, Relaxed);
            if turn >= pages {
                break;
            }
            let offset = turn.wrapping_mul(STRIDE) % pages * PAGE as u64;
            mapping.copy(offset, &mut page);
            check(base, offset, &page)
                .with_context(|| format!("{} holds what was never in it", path.display()))?;
            work.bytes += PAGE as u64;
        }
        Ok(work)
    })?;
    Ok(Pass { seconds: begun.elapsed().as_secs_f64(), cpu_s: own_cpu_s() - before, bytes: work.bytes })
}

/// A file mapped for random reads.
#[derive(Debug)]
struct Mapping {
    /// The address of the first byte; a number, because threads share it.
    address: usize,
    size: usize,
}

impl Mapping {
    /// Maps the first `size` bytes, at least one.
    fn new(file: &File, size: u64) -> anyhow::Result<Self> {
        let size = usize::try_from(size)?;
        anyhow::ensure!(size > 0, "it is empty");
        // SAFETY: the kernel chooses a place where nothing is; `Mapping` alone knows it and unmaps it when dropped.
        let address = unsafe {
            let at = mmap(std::ptr::null_mut(), size, ProtFlags::READ, MapFlags::SHARED, file, 0)?;
            madvise(at, size, Advice::Random)?;
            at.expose_provenance()
        };
        Ok(Self { address, size })
    }

    /// Copies the bytes at `offset`. The first access to a page reads it from the file.
    fn copy(&self, offset: u64, to: &mut [u8]) {
        let offset = offset as usize;
        assert!(offset + to.len() <= self.size, "{offset} is not in the mapping");
        let from = std::ptr::with_exposed_provenance::<u8>(self.address + offset);
        // SAFETY: the assertion keeps the copy inside the mapping, which lives as long as `self`; no reference into it is
        // ever made, so a store that changes the file underneath changes only bytes that `check` then finds.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped; no reference into it was ever given away.
        let _ = unsafe { munmap(std::ptr::with_exposed_provenance_mut(self.address), self.size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_of_a_mapped_file_is_read_once_and_checked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a file");
        let mut bytes = vec![0; 64 * PAGE];
        crate::pattern::fill(base_of("a file"), 0, &mut bytes);
        std::fs::write(&path, &bytes).unwrap();
        let pass = reads(&path, Duration::from_secs(600)).unwrap();
        assert_eq!(pass.bytes, 64 * PAGE as u64);
        bytes[17 * PAGE + 5] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let error = reads(&path, Duration::from_secs(600)).unwrap_err();
        assert!(
            format!("{error:#}").contains(&format!("wrong byte at offset {}", 17 * PAGE + 5)),
            "{error:#}"
        );
    }
}
