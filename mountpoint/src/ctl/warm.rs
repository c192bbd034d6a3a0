//! `mount-s3-ctl warm`: reads files to their end, bypassing the page cache, so the mount's disk cache gets them.
//!
//! A cached block costs no request to the store, so a second run after an interruption continues where the first one stopped.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use mountpoint::clock::Clock;
use mountpoint::telemetry::{Cache, SocketFolder};
use serde::Serialize;

use super::ask::{Seen, ask};
use super::find::{self, Found};
use super::{printable, say};

/// Bytes of one read: 1 MiB, one block of the cache.
const CHUNK: usize = 1 << 20;
/// Interval between checks whether the cache has written all bytes.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Number of checks without a write after which the wait ends: the missing writes were for blocks that the cache had already.
const STILL: u32 = 20;
/// Longest wait for a mount's answer. The load of warming must not make the command fail.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// The size of a memory page, in bytes.
const PAGE: usize = 4096;

/// The document that `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    files: usize,
    bytes: u64,
    failed: Vec<String>,
    mounts: Vec<Filled>,
}

/// The result for one disk cache.
#[derive(Debug, Serialize)]
struct Filled {
    mount_point: PathBuf,
    blocks_not_kept: u64,
    blocks_evicted: u64,
}

/// A file to be read.
#[derive(Debug)]
struct Wanted {
    path: PathBuf,
    size: u64,
}

/// Reads all of `paths`, `at_once` files at a time. The exit code is 1 if a file could not be read or a cache did not keep all blocks.
pub(super) fn run(
    runtime: &tokio::runtime::Runtime,
    places: &[SocketFolder],
    paths: &[PathBuf],
    at_once: usize,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let mut mounts: Vec<(Found, Cache)> = Vec::new();
    for path in paths {
        let found = find::at(places, path)?;
        if mounts.iter().any(|(known, _)| known.mount_point() == found.mount_point()) {
            continue;
        }
        let cache = cache_of(runtime, &found)?;
        mounts.push((found, cache));
    }
    let (wanted, mut failed) = files(paths);
    let bar = ProgressBar::new(wanted.iter().map(|file| file.size).sum());
    let style = "{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left  {wide_msg}";
    bar.set_style(ProgressStyle::with_template(style).context("the progress bar")?);
    let (count, bytes) = (wanted.len(), bar.length().unwrap_or(0));
    failed.extend(read_all(wanted, at_once, &bar));
    bar.finish_and_clear();
    let mut filled = Vec::with_capacity(mounts.len());
    for (found, before) in &mounts {
        let after = settled(runtime, found)?;
        filled.push(Filled {
            mount_point: found.mount_point(),
            blocks_not_kept: after.puts_dropped - before.puts_dropped,
            blocks_evicted: after.evictions - before.evictions,
        });
    }
    let report = Report { files: count, bytes, failed, mounts: filled };
    if json {
        say(&format!("{}\n", serde_json::to_string_pretty(&report)?));
    } else {
        report.show();
    }
    Ok(if report.is_whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Report {
    /// Whether all files were read, and the caches kept all blocks.
    fn is_whole(&self) -> bool {
        let has_all = |it: &Filled| it.blocks_not_kept + it.blocks_evicted == 0;
        self.failed.is_empty() && self.mounts.iter().all(has_all)
    }

    fn show(&self) {
        for failure in &self.failed {
            eprintln!("mount-s3-ctl: {failure}");
        }
        for mount in &self.mounts {
            let lost = |blocks: u64, why: &str| {
                if blocks > 0 {
                    eprintln!(
                        "mount-s3-ctl: {}: {blocks} blocks {why}",
                        printable(mount.mount_point.display())
                    );
                }
            };
            lost(mount.blocks_not_kept, "were not kept: its disk is slow or full; run it again");
            lost(mount.blocks_evicted, "had to make room: raise --max-cache-size, or warm less");
        }
        say(&format!("{} files with {} were read\n", self.files, HumanBytes(self.bytes)));
    }
}

/// The state of the disk cache once it has written the bytes of this run, or writes no more.
fn settled(runtime: &tokio::runtime::Runtime, found: &Found) -> anyhow::Result<Cache> {
    let mut now = cache_of(runtime, found)?;
    let mut settling = Settling::new(&now);
    while settling.goes_on(&now) {
        runtime.block_on(Clock::machine().sleep(LOOK_AGAIN));
        now = cache_of(runtime, found)?;
    }
    Ok(now)
}

/// The wait until a disk cache has written its bytes, check by check. Pure. Other programs may add bytes meanwhile, without end.
#[derive(Debug)]
struct Settling {
    /// Number of writes after which all blocks are written that waited at the first check.
    given: u64,
    /// Blocks that had come from the store before the first check.
    missed: u64,
    written: u64,
    looks: u32,
}

impl Settling {
    fn new(first: &Cache) -> Self {
        let written = written(first);
        Self { given: written + first.puts_waiting, missed: first.misses, written, looks: 0 }
    }

    /// Whether to check again. A block that came twice is written once, so `missed` may never be reached.
    fn goes_on(&mut self, now: &Cache) -> bool {
        // One write can take seconds on a slow disk.
        let stands = written(now) == self.written && now.puts_waiting == 0;
        self.looks = if stands { self.looks + 1 } else { 0 };
        self.written = written(now);
        now.puts_waiting > 0 && self.written < self.given || self.written < self.missed && self.looks <= STILL
    }
}

/// Blocks that the cache has written or dropped.
fn written(cache: &Cache) -> u64 {
    cache.puts + cache.puts_dropped
}

/// The state of a mount's disk cache. A mount that does not answer, or has no cache, is an error.
fn cache_of(runtime: &tokio::runtime::Runtime, found: &Found) -> anyhow::Result<Cache> {
    let point = found.mount_point();
    match runtime.block_on(ask(found, ANSWER_WITHIN)) {
        Seen::Serving(status) => status.disk_cache.with_context(|| {
            format!("{} has no disk cache to fill: mount it with --cache DIRECTORY", point.display())
        }),
        _ => bail!("{} does not answer: mount-s3-ctl status {} says why", point.display(), point.display()),
    }
}

/// All files below `paths`, and the errors of paths that could not be read.
fn files(paths: &[PathBuf]) -> (Vec<Wanted>, Vec<String>) {
    let (mut files, mut failed) = (Vec::new(), Vec::new());
    let mut left: Vec<PathBuf> = paths.iter().rev().cloned().collect();
    while let Some(path) = left.pop() {
        let looked = std::fs::symlink_metadata(&path).and_then(|there| {
            if there.is_dir() {
                let mut inside = std::fs::read_dir(&path)?
                    .map(|entry| entry.map(|entry| entry.path()))
                    .collect::<io::Result<Vec<_>>>()?;
                inside.sort_unstable_by(|a, b| b.cmp(a));
                left.extend(inside);
            } else if there.is_file() {
                files.push(Wanted { path: path.clone(), size: there.size() });
            }
            Ok(())
        });
        failed.extend(looked.err().map(|error| format!("{}: {error}", printable(path.display()))));
    }
    (files, failed)
}

/// Reads the files with `at_once` threads. Returns the errors.
fn read_all(wanted: Vec<Wanted>, at_once: usize, bar: &ProgressBar) -> Vec<String> {
    let (send, failures) = mpsc::channel();
    let queue = crossbeam::queue::SegQueue::new();
    wanted.into_iter().for_each(|file| queue.push(file));
    std::thread::scope(|scope| {
        for _ in 0..at_once.min(queue.len()) {
            let (queue, send) = (&queue, send.clone());
            scope.spawn(move || {
                // The buffer begins at a page boundary, which O_DIRECT needs on other file systems than this one.
                let mut memory = vec![0; CHUNK + PAGE];
                let begin = memory.as_ptr().align_offset(PAGE);
                let chunk = &mut memory[begin..begin + CHUNK];
                while let Some(file) = queue.pop() {
                    bar.set_message(printable(file.path.display()));
                    if let Err(error) = read(&file.path, chunk, bar) {
                        let _ = send.send(format!("{}: {error}", printable(file.path.display())));
                    }
                }
            });
        }
    });
    drop(send);
    failures.into_iter().collect()
}

/// Reads a file to its end with O_DIRECT: bytes from the page cache would come without a request to the mount, and the disk cache would not
/// get them.
fn read(path: &Path, chunk: &mut [u8], bar: &ProgressBar) -> io::Result<()> {
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let mut file: File = OpenOptions::new().read(true).custom_flags(direct).open(path)?;
    loop {
        match file.read(chunk)? {
            0 => return Ok(()),
            n => bar.inc(n as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of looks until the wait is over, at most this many.
    fn looks(most: u32, at: impl Fn(u64) -> Cache) -> u32 {
        let mut settling = Settling::new(&at(0));
        (0..most).take_while(|look| settling.goes_on(&at((*look).into()))).count() as u32
    }

    #[test]
    fn blocks_that_came_twice_do_not_make_the_wait_for_warm_endless() {
        // Three of them, and another program misses and has written a block now and then.
        let at = |look: u64| Cache { misses: 10 + look / 4, puts: 7 + look / 4, ..Cache::default() };
        assert!(looks(10_000, at) < 100);
        // Or it reads what is no longer written.
        let at = |look: u64| Cache { misses: 10 + look, puts: 7, ..Cache::default() };
        assert_eq!(looks(10_000, at), STILL);
    }

    #[test]
    fn what_waits_to_be_written_is_waited_for_however_long_the_disk_takes() {
        let at = |look: u64| Cache {
            misses: 4,
            puts: look / 1000,
            puts_waiting: 4 - look / 1000,
            ..Cache::default()
        };
        assert_eq!(looks(10_000, at), 4000);
        // Bytes that others give it meanwhile are not.
        let at = |look: u64| Cache { misses: 4 + look, puts: look, puts_waiting: 4, ..Cache::default() };
        assert_eq!(looks(10_000, at), 4);
    }

    #[test]
    fn files_of_folders_are_found_in_order_and_what_is_missing_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(path("a/deep")).unwrap();
        for (name, size) in [("a/2", 2), ("a/1", 1), ("a/deep/3", 3), ("z", 9)] {
            std::fs::write(path(name), vec![0; size]).unwrap();
        }
        std::os::unix::fs::symlink("/", path("a/link")).unwrap();
        let (files, failed) = files(&[path("z"), path("a"), path("none")]);
        let found: Vec<_> = files.iter().map(|file| (file.path.clone(), file.size)).collect();
        let wanted =
            [("z", 9), ("a/1", 1), ("a/2", 2), ("a/deep/3", 3)].map(|(name, size)| (path(name), size));
        assert_eq!(found, wanted, "a link is not followed: it may lead anywhere");
        assert_eq!(failed.len(), 1);
        assert!(failed[0].contains("none"), "{failed:?}");
    }

    #[test]
    fn every_byte_of_every_file_is_read_and_failures_are_said() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let sizes = [0, 1, CHUNK - 1, CHUNK + 1, 3 * CHUNK];
        let mut wanted: Vec<Wanted> = sizes
            .iter()
            .enumerate()
            .map(|(i, size)| {
                let path = folder.path().join(i.to_string());
                std::fs::write(&path, vec![7; *size]).unwrap();
                Wanted { path, size: *size as u64 }
            })
            .collect();
        wanted.push(Wanted { path: folder.path().join("gone"), size: 5 });
        let bar = ProgressBar::hidden();
        let failed = read_all(wanted, 2, &bar);
        assert_eq!(bar.position(), sizes.iter().sum::<usize>() as u64);
        assert!(failed.len() == 1 && failed[0].contains("gone"), "{failed:?}");
    }
}
