//! Reading: one stream, several streams, at random, many small files.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::fs::{Advice, OFlags, fadvise, syncfs};

use super::{Bucket, Job, Sample, Work};
use crate::pattern::{base_of, check};

/// Size of a sequential read, in bytes.
pub(super) const READ: usize = 1 << 20;
pub(super) const PAGE: usize = 4096;
pub(super) const RANDOM_THREADS: u64 = 16;
/// Number of files whose first byte is timed.
const FIRST_BYTES: u64 = 20;
/// Size of a read of a range, in bytes. The next constants: the number of its readers, and of the reads of each.
const RANGE: usize = 8 << 20;
const RANGE_THREADS: u64 = 4;
const RANGES: u64 = 150;
/// The factor of page numbers. An odd factor visits every page of a power of two once, each far from the one before.
pub(super) const STRIDE: u64 = 0x9e37_79b1;
/// Wait for a cache to write its data to disk.
const CACHE_SETTLES: Duration = Duration::from_secs(1);

/// Name of the object with this number in a bucket of numbered objects.
pub(super) fn numbered(number: u64) -> String {
    format!("{number:08}")
}

pub(super) fn sequential(job: &Job<'_>) -> anyhow::Result<Sample> {
    job.measure(|| stream(job, 0, OFlags::empty()))
}

/// Reads one file after four others, from which a mount may have learned how its files are read.
pub(super) fn fifth(job: &Job<'_>) -> anyhow::Result<Sample> {
    (1..=4).try_for_each(|number| stream(job, number, OFlags::empty()).map(drop))?;
    job.measure(|| stream(job, 0, OFlags::empty()))
}

pub(super) fn direct(job: &Job<'_>) -> anyhow::Result<Sample> {
    job.measure(|| stream(job, 0, OFlags::DIRECT))
}

pub(super) fn sequential_4(job: &Job<'_>) -> anyhow::Result<Sample> {
    job.measure(|| in_threads(4, |number| stream(job, number, OFlags::empty())))
}

pub(super) fn cached(job: &Job<'_>) -> anyhow::Result<Sample> {
    fill_cache(job)?;
    job.measure(|| stream(job, 0, OFlags::empty()))
}

pub(super) fn cached_random(job: &Job<'_>) -> anyhow::Result<Sample> {
    fill_cache(job)?;
    random_in(job, job.scale.big_bytes, RANDOM_THREADS)
}

pub(super) fn cached_random_4(job: &Job<'_>) -> anyhow::Result<Sample> {
    fill_cache(job)?;
    random_in(job, job.scale.big_bytes, 4)
}

pub(super) fn cached_cold(job: &Job<'_>) -> anyhow::Result<Sample> {
    fill_cache(job)?;
    forget_cache_files(job)?;
    job.measure(|| stream(job, 0, OFlags::empty()))
}

pub(super) fn cached_random_cold(job: &Job<'_>) -> anyhow::Result<Sample> {
    fill_cache(job)?;
    forget_cache_files(job)?;
    random_in(job, job.scale.big_bytes, RANDOM_THREADS)
}

pub(super) fn cached_random_cold_4(job: &Job<'_>) -> anyhow::Result<Sample> {
    fill_cache(job)?;
    forget_cache_files(job)?;
    random_in(job, job.scale.big_bytes, 4)
}

pub(super) fn random(job: &Job<'_>) -> anyhow::Result<Sample> {
    random_in(job, Bucket::HUGE_OBJECT, RANDOM_THREADS)
}

/// Four threads read random ranges of 8 MiB in a long file.
pub(super) fn ranges(job: &Job<'_>) -> anyhow::Result<Sample> {
    let name = numbered(0);
    let file = open(&job.path(&name), OFlags::empty())?;
    let ranges = Bucket::HUGE_OBJECT / RANGE as u64;
    let each = if job.scale.check_all { 2 } else { RANGES };
    let took = Mutex::new(Vec::new());
    let mut sample = job.measure(|| {
        in_threads(RANGE_THREADS, |thread| {
            let mut data = vec![0; RANGE];
            for turn in 0..each {
                let offset = (turn * RANGE_THREADS + thread).wrapping_mul(STRIDE) % ranges * RANGE as u64;
                let begun = Instant::now();
                file.read_exact_at(&mut data, offset).with_context(|| format!("read {name} at {offset}"))?;
                took.lock().map_err(|_| anyhow::anyhow!("a reader panicked"))?.push(begun.elapsed());
                look(job, &name, offset, &data)?;
            }
            Ok(Work { bytes: each * RANGE as u64, items: each, ..Work::default() })
        })
    })?;
    let mut took = took.into_inner().map_err(|_| anyhow::anyhow!("a reader panicked"))?;
    took.sort_unstable();
    sample.p99_s = took.get(took.len() * 99 / 100).map(Duration::as_secs_f64);
    Ok(sample)
}

/// Reads ranges while one GET in a hundred is delayed by five seconds.
pub(super) fn ranges_stalled(job: &Job<'_>) -> anyhow::Result<Sample> {
    job.control.stall(100, Duration::from_secs(5))?;
    let sample = ranges(job);
    job.control.stall(0, Duration::ZERO)?;
    sample
}

pub(super) fn first_byte(job: &Job<'_>) -> anyhow::Result<Sample> {
    job.measure(|| {
        for number in 0..FIRST_BYTES {
            let name = numbered(number);
            let file = open(&job.path(&name), OFlags::empty())?;
            let mut page = [0; PAGE];
            file.read_exact_at(&mut page, 0).with_context(|| format!("read the start of {name}"))?;
            check(base_of(&name), 0, &page)?;
        }
        Ok(Work { bytes: FIRST_BYTES * PAGE as u64, items: FIRST_BYTES, ..Work::default() })
    })
}

/// Reads first bytes after a listing, with which the mount knows each file's kind.
pub(super) fn first_byte_listed(job: &Job<'_>) -> anyhow::Result<Sample> {
    let listed = std::fs::read_dir(job.root())?.count();
    ensure!(listed > 0, "nothing is listed");
    first_byte(job)
}

/// Reads small files by 16 threads, after 32 files have shown that lookups lead to reads.
pub(super) fn small_16_learned(job: &Job<'_>) -> anyhow::Result<Sample> {
    let learned = (job.scale.files / 2).min(32);
    (0..learned).try_for_each(|number| small_one(job, number, &mut Vec::new()).map(drop))?;
    job.measure(|| in_threads(RANDOM_THREADS, |thread| small(job, learned + thread, RANDOM_THREADS)))
}

pub(super) fn small_cold(job: &Job<'_>) -> anyhow::Result<Sample> {
    job.measure(|| small(job, 0, 1))
}

pub(super) fn small_16(job: &Job<'_>) -> anyhow::Result<Sample> {
    job.measure(|| in_threads(RANDOM_THREADS, |thread| small(job, thread, RANDOM_THREADS)))
}

pub(super) fn small_listed(job: &Job<'_>) -> anyhow::Result<Sample> {
    let listed = std::fs::read_dir(job.path("dir"))?.count() as u64;
    ensure!(listed == job.scale.files, "listed {listed} of {} files", job.scale.files);
    job.measure(|| small(job, 0, 1))
}

/// Reads every `step`th small file from `first` on, each as a whole.
fn small(job: &Job<'_>, first: u64, step: u64) -> anyhow::Result<Work> {
    let mut work = Work::default();
    let mut data = Vec::new();
    for number in (first..job.scale.files).step_by(step as usize) {
        work.bytes += small_one(job, number, &mut data)?;
        work.items += 1;
    }
    Ok(work)
}

/// Reads one small file into `data`. Returns its size.
fn small_one(job: &Job<'_>, number: u64, data: &mut Vec<u8>) -> anyhow::Result<u64> {
    data.resize(Bucket::SMALL_OBJECT as usize, 0);
    let key = format!("dir/{}", numbered(number));
    let file = open(&job.path(&key), OFlags::empty())?;
    file.read_exact_at(data, 0).with_context(|| format!("read {key}"))?;
    look(job, &key, 0, data)?;
    Ok(data.len() as u64)
}

/// Reads one big file from start to end.
fn stream(job: &Job<'_>, number: u64, flags: OFlags) -> anyhow::Result<Work> {
    let (name, size) = (numbered(number), job.scale.big_bytes);
    let file = open(&job.path(&name), flags)?;
    let mut memory = vec![0; READ + PAGE];
    let buf = aligned(&mut memory);
    for offset in (0..size).step_by(READ) {
        let wanted = READ.min((size - offset) as usize);
        file.read_exact_at(&mut buf[..wanted], offset).with_context(|| format!("read {name} at {offset}"))?;
        look(job, &name, offset, &buf[..wanted])?;
    }
    ensure!(file.read_at(&mut buf[..PAGE], size)? == 0, "{name} goes on behind its end");
    Ok(Work { bytes: size, items: 1, ..Work::default() })
}

/// The part of `memory` for O_DIRECT: it begins at a page boundary, and is a page shorter.
pub(super) fn aligned(memory: &mut [u8]) -> &mut [u8] {
    let (skip, len) = (memory.as_ptr().align_offset(PAGE), memory.len() - PAGE);
    &mut memory[skip..skip + len]
}

/// Reads one range of a big file, by reads of 1 MiB.
pub(super) fn piece(job: &Job<'_>, number: u64, from: u64, size: u64) -> anyhow::Result<Work> {
    let name = numbered(number);
    let file = open(&job.path(&name), OFlags::empty())?;
    let mut data = vec![0; READ];
    for offset in (from..from + size).step_by(READ) {
        let data = &mut data[..READ.min((from + size - offset) as usize)];
        file.read_exact_at(data, offset).with_context(|| format!("read {name} at {offset}"))?;
        look(job, &name, offset, data)?;
    }
    Ok(Work { bytes: size, items: 1, ..Work::default() })
}

/// Checks the bytes of a read: all of them if the scale says so or there are few, otherwise the first and the last page.
fn look(job: &Job<'_>, key: &str, offset: u64, data: &[u8]) -> anyhow::Result<()> {
    let base = base_of(key);
    let result = if job.scale.check_all || data.len() <= 2 * PAGE {
        check(base, offset, data)
    } else {
        let last = data.len() - PAGE;
        check(base, offset, &data[..PAGE]).and_then(|()| check(base, offset + last as u64, &data[last..]))
    };
    result.with_context(|| format!("{key} holds what was never in it"))
}

/// Reads pages of a file of `size` bytes, each once, far from one another, until the scale's duration is over.
fn random_in(job: &Job<'_>, size: u64, threads: u64) -> anyhow::Result<Sample> {
    let (name, pages) = (numbered(0), size / PAGE as u64);
    let next = AtomicU64::new(0);
    let file = open(&job.path(&name), OFlags::empty())?;
    job.measure(|| {
        let until = Instant::now() + job.scale.random_for;
        in_threads(threads, |_| {
            let mut work = Work::default();
            let mut page = [0; PAGE];
            while Instant::now() < until {
                let turn = next.fetch_add(1, Relaxed);
                if turn >= pages {
                    break;
                }
                let offset = turn.wrapping_mul(STRIDE) % pages * PAGE as u64;
                file.read_exact_at(&mut page, offset).with_context(|| format!("read {name} at {offset}"))?;
                look(job, &name, offset, &page)?;
                work.bytes += PAGE as u64;
                work.items += 1;
            }
            Ok(work)
        })
    })
}

/// Reads the file once, so the disk cache has it, and drops it from the page cache.
fn fill_cache(job: &Job<'_>) -> anyhow::Result<()> {
    stream(job, 0, OFlags::empty())?;
    std::thread::sleep(CACHE_SETTLES);
    let file = open(&job.path(&numbered(0)), OFlags::empty())?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    // The call may drop the cache's file, too, and always drops the floor's: they are read again.
    for path in cache_files(job)? {
        std::io::copy(&mut File::open(path)?, &mut std::io::sink())?;
    }
    Ok(())
}

/// Writes the files of the disk cache to disk, and drops them from the page cache: the next reads come from the disk.
fn forget_cache_files(job: &Job<'_>) -> anyhow::Result<()> {
    syncfs(File::open(job.cache)?)?;
    for path in cache_files(job)? {
        fadvise(File::open(path)?, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

fn cache_files(job: &Job<'_>) -> anyhow::Result<Vec<PathBuf>> {
    let (mut folders, mut files) = (vec![job.cache.to_owned()], vec![]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            match entry.file_type()? {
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    Ok(files)
}

pub(super) fn open(path: &Path, flags: OFlags) -> anyhow::Result<File> {
    let flags = i32::try_from(flags.bits())?;
    let file = File::options().read(true).custom_flags(flags).open(path);
    file.with_context(|| format!("open {}", path.display()))
}

/// Runs `work` in `count` threads, each with its number. Returns the sum.
pub(super) fn in_threads(
    count: u64,
    work: impl Fn(u64) -> anyhow::Result<Work> + Sync,
) -> anyhow::Result<Work> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|number| {
                scope.spawn({
                    let work = &work;
                    move || work(number)
                })
            })
            .collect();
        let mut sum = Work::default();
        for thread in threads {
            let done = thread.join().map_err(|_| anyhow::anyhow!("a reader panicked"))??;
            sum.bytes += done.bytes;
            sum.items += done.items;
        }
        Ok(sum)
    })
}
