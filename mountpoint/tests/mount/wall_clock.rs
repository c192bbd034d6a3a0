//! The clock of the wall, set forth and back by an hour below a mount: nothing fails, and another client's change shows as soon as
//! before.
//!
//! Time namespaces leave that clock out, so a library of a few lines stands between the engine and the C library.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Pattern, Setup, Store, TestMount, need_tool, run, until};

const LEN: usize = 300_000;
const HOUR: i64 = 3600;

/// Adds the first number of a file, in seconds, to each answer of the clock, and counts answers in the second.
const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("WALL_CLOCK");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *there = mmap(0, 16, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (there != MAP_FAILED) shift = there;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && shift && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        now->tv_sec += shift[0];
        __atomic_fetch_add(&shift[1], 1, __ATOMIC_RELAXED);
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}
"#;

/// The clock of one engine.
struct WallClock {
    library: PathBuf,
    numbers: fs::File,
    path: PathBuf,
}

impl WallClock {
    fn below(folder: &Path) -> Self {
        let (source, library, path) =
            (folder.join("clock.c"), folder.join("clock.so"), folder.join("numbers"));
        fs::write(&source, LIBRARY).unwrap();
        run(Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source));
        fs::write(&path, [0; 16]).unwrap();
        let numbers = fs::File::options().read(true).write(true).open(&path).unwrap();
        Self { library, numbers, path }
    }

    fn set(&self, seconds: i64) {
        self.numbers.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }

    /// Answers so far.
    fn answers(&self) -> i64 {
        let mut bytes = [0; 8];
        self.numbers.read_exact_at(&mut bytes, 8).unwrap();
        i64::from_ne_bytes(bytes)
    }
}

#[test]
fn a_wall_clock_that_is_set_by_an_hour_fails_nothing_and_delays_nothing() {
    if !need_tool("cc") {
        return;
    }
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let clock = WallClock::below(folder.path());
    store.plant("changing", &Pattern(0).bytes(0, LEN));
    let setup = Setup::new(&["--metadata-ttl", "1", "--allow-overwrite", "--allow-delete"])
        .env("LD_PRELOAD", clock.library.to_str().unwrap())
        .env("WALL_CLOCK", clock.path.to_str().unwrap());
    let Some(mount) = TestMount::of(&store, &setup) else { return };
    let is_right = |name: &str, pattern: u64| {
        let bytes = fs::read(mount.path(name)).unwrap_or_else(|e| panic!("{name}: {e}\n{}", mount.log()));
        bytes.len() == LEN && Pattern(pattern).is(0, &bytes)
    };
    assert!(is_right("changing", 0));
    let mut names = vec!["changing".to_owned()];
    for (n, hours) in (1..).zip([1, 0, -1, 0]) {
        let open = fs::File::create_new(mount.path(&format!("open-{n}"))).unwrap();
        open.write_all_at(b"before", 0).unwrap();
        let before = clock.answers();
        clock.set(hours * HOUR);
        store.plant("changing", &Pattern(n).bytes(0, LEN));
        until("what another client stored shows", || {
            // The version of before may leave while it is read.
            fs::read(mount.path("changing")).is_ok_and(|bytes| bytes.len() == LEN && Pattern(n).is(0, &bytes))
        });
        fs::write(mount.path(&format!("new-{n}")), Pattern(n).bytes(0, LEN)).unwrap();
        fs::write(mount.path("again"), Pattern(n).bytes(0, LEN)).unwrap();
        open.write_all_at(b", and after", 6).unwrap();
        drop(open);
        assert!(is_right("again", n) && is_right(&format!("new-{n}"), n));
        assert_eq!(fs::read(mount.path(&format!("open-{n}"))).unwrap(), b"before, and after");
        fs::write(mount.path("gone"), b"1").and_then(|()| fs::remove_file(mount.path("gone"))).unwrap();
        names.extend([format!("new-{n}"), format!("open-{n}")]);
        assert!(clock.answers() > before, "the engine asks this clock");
    }
    names.push("again".to_owned());
    names.sort();
    let mut listed: Vec<String> =
        fs::read_dir(mount.dir()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    listed.sort();
    assert_eq!(listed, names);
    assert_eq!(store.keys(), names);
}
