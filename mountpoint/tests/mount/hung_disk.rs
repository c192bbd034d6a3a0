//! A cache on a disk that gives a byte a second: the cache stops, and reads go on. The disk is a loop device, and slow for the control
//! group of the engine alone.
//!
//! No test here measures time: without the promise, reads and listings never end.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::{A_SLOW_DISK, need, need_large, until_within};

use super::cache::{data_files, open_direct};
use crate::common::{Pattern, Setup, Store, TestMount, until};

/// Less than the kernel reads by itself.
const LEN: usize = 600_000;

/// Programs that read at once, each a file.
const FILES: u64 = 100;

/// io_uring_setup(2).
const IO_URING_SETUP: u32 = 425;

/// A file system on a disk of its own.
struct SlowDisk {
    dir: tempfile::TempDir,
    device: String,
    number: String,
    group: PathBuf,
}

fn run(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl SlowDisk {
    /// `None` where this machine can't.
    fn new(name: &str) -> Option<Self> {
        let made = Self::make(name);
        need(A_SLOW_DISK, made.is_some()).then_some(made).flatten()
    }

    fn make(name: &str) -> Option<Self> {
        let group = Path::new("/sys/fs/cgroup/blkio").join(format!("{name}-{}", std::process::id()));
        fs::create_dir(&group).ok()?;
        let dir = tempfile::tempdir().ok()?;
        let image = dir.path().join("image");
        fs::File::create(&image).and_then(|image| image.set_len(256 << 20)).ok()?;
        let image = image.to_str()?;
        run("mkfs.ext4", &["-q", image])?;
        let device = run("losetup", &["--find", "--show", image])?;
        let number =
            fs::read_to_string(Path::new("/sys/block").join(Path::new(&device).file_name()?).join("dev"));
        let disk = Self { dir, device, number: number.ok()?.trim().to_owned(), group };
        fs::create_dir(disk.path()).ok()?;
        run("mount", &[&disk.device, disk.path().to_str()?])?;
        disk.set(0).then_some(disk)
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    /// Sets the bytes a second for the engine; 0: no limit.
    fn set(&self, rate: u32) -> bool {
        ["read", "write"].iter().all(|way| {
            let file = self.group.join(format!("blkio.throttle.{way}_bps_device"));
            fs::write(file, format!("{} {rate}", self.number)).is_ok()
        })
    }

    /// Makes the kernel forget the cached pages of the files.
    fn forget(&self) {
        for file in data_files(&self.path()) {
            let file = fs::File::open(file).unwrap();
            file.sync_all().unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        self.set(0);
        let _ = run("umount", &["--lazy", self.path().to_str().unwrap_or_default()]);
        let _ = run("losetup", &["--detach", &self.device]);
        let _ = fs::remove_dir(&self.group);
    }
}

fn name(n: u64) -> String {
    format!("file-{n}")
}

fn is_read_right(mount: &Path, n: u64) -> bool {
    let mut bytes = vec![0; LEN];
    open_direct(&mount.join(name(n))).read_exact_at(&mut bytes, 0).is_ok() && Pattern(n + 1).is(0, &bytes)
}

/// Goal: 100 programs read cached files of a disk that gives a byte a second. Each gets the right bytes, from the store; a listing beside them
/// ends; the log says once that the cache rests, and once that it is back; then the cache answers again.
fn a_slow_disk_costs_the_cache_and_not_the_read(group: &str, refuses: Option<u32>) {
    if !need_large() {
        return;
    }
    let Some(disk) = SlowDisk::new(group) else { return };
    let store = Store::new();
    (0..FILES).for_each(|n| store.put(&name(n), Pattern(n + 1).bytes(0, LEN)));
    let path = disk.path();
    let options = ["--cache", path.to_str().unwrap(), "--max-cache-size", "200", "--metadata-ttl", "3600"];
    let setup = Setup { group: Some(disk.group.join("cgroup.procs")), refuses, ..Setup::new(&options) };
    let Some(mount) = TestMount::of(&store, &setup) else { return };
    let all_cached = || {
        store.requests().reset();
        (0..FILES).all(|n| is_read_right(mount.dir(), n)) && store.requests().count("GetObject") == 0
    };
    until("the cache holds the files", all_cached);
    disk.forget();
    assert!(disk.set(1));
    let slowest = std::thread::scope(|scope| {
        let read = |n| {
            let dir = mount.dir();
            scope.spawn(move || {
                let begun = Instant::now();
                assert!(is_read_right(dir, n), "file {n}");
                begun.elapsed()
            })
        };
        let readers: Vec<_> = (0..FILES).map(read).collect();
        let begun = Instant::now();
        assert_eq!(fs::read_dir(mount.dir()).unwrap().count() as u64, FILES);
        eprintln!("a listing beside {FILES} reads took {:?}", begun.elapsed());
        readers.into_iter().map(|reader| reader.join().unwrap()).max()
    });
    eprintln!("the slowest read took {slowest:?}");
    assert_eq!(mount.log().matches("the cache rests").count(), 1, "{}", mount.log());
    assert!(!mount.log().contains("the cache is back"));
    // The reads are right while the cache rests, too.
    assert!((0..FILES).all(|n| is_read_right(mount.dir(), n)));
    assert!(disk.set(0));
    let begun = Instant::now();
    until_within(Duration::from_secs(120), "the cache is back", || mount.log().contains("the cache is back"));
    eprintln!("the cache was back after {:?}", begun.elapsed());
    until("the cache answers again", all_cached);
    assert_eq!(mount.log().matches("the cache rests").count(), 1, "{}", mount.log());
}

#[test]
fn a_cache_on_a_slow_disk_fails_no_read_with_io_uring() {
    a_slow_disk_costs_the_cache_and_not_the_read("slow-ring", None);
}

#[test]
fn a_cache_on_a_slow_disk_fails_no_read_without_io_uring() {
    a_slow_disk_costs_the_cache_and_not_the_read("slow-plain", Some(IO_URING_SETUP));
}
