//! Many programs at once, of all kinds: no operation fails, and afterwards the engine holds nothing for them.
//!
//! `ci/soak` runs the same for hours, and there each operation has a time.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::common::{Pattern, Setup, Store, TestMount, until};

const THREADS: u64 = 64;
/// Rounds of each thread in a test; a soak goes on until its time is over.
const ROUNDS: u64 = 3;
/// Bytes of the file that all programs read, and of the longest file that they write.
const SHARED: usize = 12 << 20;
const OWN_MAX: usize = 3 << 20;
const TARGET: u64 = 128 << 20;
/// Most memory of the process beside its data: programs, stacks, tables, and the threads' arenas.
const BESIDE: u64 = 128 << 20;
/// The time after which an operation of a soak is a stall.
const STALL: Duration = Duration::from_secs(2);

/// Duration of a soak, if this is one.
fn soak() -> Option<Duration> {
    let seconds = std::env::var("MOUNT_S3_SOAK_SECONDS").ok()?;
    Some(Duration::from_secs(seconds.parse().expect("MOUNT_S3_SOAK_SECONDS is a number")))
}

/// The slowest operation of each kind, and how many there were.
#[derive(Default)]
struct Times(Mutex<BTreeMap<&'static str, (Duration, u64)>>);

impl Times {
    fn of<T>(&self, what: &'static str, act: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = act();
        let took = begun.elapsed();
        let mut times = self.0.lock().unwrap();
        let (slowest, count) = times.entry(what).or_default();
        (*slowest, *count) = (took.max(*slowest), *count + 1);
        done
    }
}

/// One program. It has a separate directory, and reads the files that all programs read.
struct Program<'a> {
    dir: &'a Path,
    number: u64,
    times: &'a Times,
}

impl Program<'_> {
    fn round(&self, round: u64) {
        let seed = round * THREADS + self.number;
        let mut random = fastrand::Rng::with_seed(seed);
        let own = self.dir.join(format!("program-{}", self.number));
        let path = own.join(format!("file-{round}"));
        let len = random.usize(1..OWN_MAX);
        let done = |what: &str, result: std::io::Result<()>| {
            result.unwrap_or_else(|e| panic!("{what} of {}, round {round}: {e}", path.display()));
        };
        let Self { times, .. } = self;

        let mut file = times.of("create", || File::create_new(&path)).unwrap();
        for (at, piece) in Pattern(seed).bytes(0, len).chunks(256 << 10).enumerate() {
            done(&format!("write {at}"), times.of("write", || file.write_all(piece)));
        }
        done("fsync", times.of("fsync", || file.sync_all()));
        drop(file);
        let mut bytes = vec![0; len];
        let file = times.of("open", || File::open(&path)).unwrap();
        done("read", times.of("read", || file.read_exact_at(&mut bytes, 0)));
        assert!(Pattern(seed).is(0, &bytes), "other bytes of {}", path.display());
        drop(file);

        let file = times.of("open", || File::open(self.dir.join("shared"))).unwrap();
        for _ in 0..8 {
            let len = random.usize(1..200_000);
            let at = random.usize(0..SHARED - len) as u64;
            let mut piece = vec![0; len];
            done("read at random", times.of("read at random", || file.read_exact_at(&mut piece, at)));
            assert!(Pattern(0).is(at, &piece), "other bytes at {at}");
        }
        let mut all = Vec::with_capacity(SHARED);
        let mut shared = times.of("open", || File::open(self.dir.join("shared"))).unwrap();
        let is_read = times.of("read it all", || shared.read_to_end(&mut all));
        assert!(is_read.unwrap() == SHARED && Pattern(0).is(0, &all));

        let names = times.of("list", || fs::read_dir(&own).unwrap().map(Result::unwrap).count());
        assert_eq!(names as u64, 1 + u64::from(round > 0), "{}", own.display());
        assert_eq!(times.of("stat", || fs::metadata(&path)).unwrap().len(), len as u64);
        let refused = times.of("rename", || fs::rename(&path, own.join("other"))).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::NOSYS.raw_os_error()), "{refused}");
        done("replace", times.of("replace", || fs::write(&path, seed.to_string())));
        if round > 0 {
            done("unlink", times.of("unlink", || fs::remove_file(own.join(format!("file-{}", round - 1)))));
        }
    }
}

/// The gauges of a mount that must be zero without users: name and value of each that is not.
fn in_use(socket: &Path) -> Vec<String> {
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(stream, "GET /metrics HTTP/1.0\r\nhost: x\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let gauges = ["fs_open_files{", "cache_puts_waiting{", "memory_used_bytes{"];
    let lines: Vec<_> =
        page.lines().filter(|line| gauges.iter().any(|gauge| line.starts_with(gauge))).collect();
    assert!(lines.len() >= gauges.len(), "{page}");
    let is_back = |line: &&str| line.ends_with(" 0");
    lines.into_iter().filter(|line| !is_back(line)).map(str::to_owned).collect()
}

/// The descriptors of the engine without those of connections and of the cache's files, which stay for later use.
fn descriptors(mount: &TestMount, cache: &Path) -> usize {
    let folder = fs::read_dir(format!("/proc/{}/fd", mount.pid())).unwrap();
    let names = folder.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    names.filter(|name| !name.starts_with(cache) && !name.to_string_lossy().starts_with("socket:")).count()
}

#[test]
fn of_64_programs_at_once_none_fails_and_nothing_is_left_afterwards() {
    let (store, cache) = (Store::new(), tempfile::tempdir().unwrap());
    let socket = cache.path().join("metrics");
    let listen = format!("unix:{}", socket.display());
    let (folder, soak) = (cache.path().to_str().unwrap(), soak());
    let mut options = vec!["--allow-delete", "--allow-overwrite", "--memory-target", "128"];
    options.extend(["--cache", folder, "--max-cache-size", "64", "--metrics-listen", &listen]);
    let limit = soak.unwrap_or_default() + Duration::from_secs(300);
    store.plant("shared", &Pattern(0).bytes(0, SHARED));
    let Some(mount) = TestMount::of(&store, &Setup::new(&options).limit(limit)) else { return };
    for number in 0..THREADS {
        fs::create_dir(mount.path(&format!("program-{number}"))).unwrap();
    }
    // Threads and files that are there from the first use on.
    assert_eq!(fs::read(mount.path("shared")).unwrap().len(), SHARED);
    let before = descriptors(&mount, cache.path());
    let (times, begun) = (Times::default(), Instant::now());
    let is_over = |round| soak.map_or(round == ROUNDS, |soak| begun.elapsed() >= soak);
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let program = Program { dir: mount.dir(), number, times: &times };
            scope.spawn(move || {
                (0..).take_while(|round| !is_over(*round)).for_each(|round| program.round(round))
            });
        }
    });
    until("nothing is in use any more", || in_use(&socket).is_empty());
    until("descriptors are back", || descriptors(&mount, cache.path()) <= before);
    let peak = mount.peak_rss();
    assert!(peak <= TARGET + BESIDE, "{} MiB", peak >> 20);
    assert_eq!(store.pending_uploads(), 0);
    // A cache on a busy disk may rest.
    let complaints: Vec<_> = mount.complaints().into_iter().filter(|line| !line.contains("cache ")).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    if soak.is_some() {
        let times = times.0.lock().unwrap();
        for (what, (slowest, count)) in &*times {
            eprintln!("{what}: {count}, the slowest took {slowest:?}");
        }
        eprintln!("after {:?}: at most {} MiB, now {} MiB", begun.elapsed(), peak >> 20, mount.rss() >> 20);
        let stalls = times.iter().filter(|(_, (slowest, _))| *slowest > STALL).count();
        assert_eq!(stalls, 0, "an operation took longer than {STALL:?}");
    }
}
