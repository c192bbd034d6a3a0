//! Foul weather between a mount and its store: short outages fail no operation, and small requests do not wait.
//!
//! `testkit::scenario` has the operations. The outages here are short; `bench weather` rides out long ones, also beside other file
//! systems.

use std::fs::File;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::proxy::{Proxy, Weather};
use testkit::scenario::{Outage, Scene, among_readers, among_writers, broken_answers, one_in_ten, outage};

use crate::common::{Pattern, Setup, Store, TestMount};

const MIB: u64 = 1 << 20;

/// A mount with a proxy before its store.
struct Site {
    mount: TestMount,
    proxy: Proxy,
    store: Arc<Store>,
    folder: std::path::PathBuf,
}

impl Site {
    fn new() -> Option<Self> {
        let store = Store::new();
        let proxy = Proxy::start(store.address());
        let setup = Setup::new(&[]).limit(Duration::from_secs(600)).through(&proxy);
        let mount = TestMount::of(&store, &setup)?;
        let folder = store.bucket_folder();
        Some(Self { mount, proxy, store, folder })
    }

    fn place(&self) -> Scene<'_> {
        let fill = |content, offset, into: &mut [u8]| Pattern(content).fill(offset, into);
        Scene { mount: self.mount.dir(), folder: &self.folder, proxy: &self.proxy, fill }
    }

    /// Lines of the log with these words.
    fn lines(&self, words: &str) -> usize {
        self.mount.log().lines().filter(|line| line.contains(words)).count()
    }

    /// Unmounts; nothing may be left behind.
    fn end(self) {
        drop(self.mount);
        assert_eq!(self.store.pending_uploads(), 0, "uploads were left behind");
    }
}

#[test]
fn a_store_away_for_a_while_fails_nothing_and_the_log_says_so_once() {
    thread::scope(|scope| {
        let rides = Outage::all().map(|away| {
            let name = away.name;
            let ride = scope.spawn(move || {
                let site = Site::new()?;
                let outcome = outage(site.place(), &away, Duration::from_secs(5));
                assert!(outcome.is_clean(), "{outcome:?}\n{}", site.mount.log());
                let told = (site.lines("the store is away"), site.lines("the store answers again"));
                site.end();
                Some(told)
            });
            (name, ride)
        });
        for (name, ride) in rides {
            let Some((begins, ends)) = ride.join().unwrap_or_else(|_| panic!("{name}")) else { return };
            // Requests that were lost in a black hole are missed one after the other, some when others are answered again.
            let told = if name == "black hole" { 0..=2 } else { 1..=1 };
            assert!(told.contains(&begins) && begins == ends, "{name}: {begins} begin, {ends} end");
        }
    });
}

#[test]
fn one_request_in_ten_that_is_answered_503_fails_nothing() {
    let Some(site) = Site::new() else { return };
    let outcome = one_in_ten(site.place());
    assert!(outcome.is_clean(), "{outcome:?}");
    assert!(site.proxy.counts().requests_refused > 0, "it never struck: {:?}", site.proxy.counts());
    assert_eq!(site.lines("the store is away"), 0, "{}", site.mount.log());
    site.end();
}

#[test]
fn answers_that_break_off_after_a_megabyte_cost_little_more_than_bytes() {
    let Some(site) = Site::new() else { return };
    let (outcome, cost) = broken_answers(site.place());
    assert!(outcome.is_clean() && cost <= 1.3, "{outcome:?}, {cost} bytes passed for each byte");
    // With fewer connections than megabytes they never broke off.
    assert!(site.proxy.counts().connections >= 64, "{:?}", site.proxy.counts());
}

/// The case: the engine has ten seconds in which no byte may move, and this file takes longer, on 8 Mbit/s.
#[test]
fn a_mount_that_ends_stores_a_closed_file_as_long_as_its_bytes_move() {
    let Some(mut site) = Site::new() else { return };
    let bytes = Pattern(1).bytes(0, 16 << 20);
    // Only the child has the file open, so its close does not wait for the store.
    let mut command = Command::new("cat");
    let file = File::create_new(site.mount.path("file")).unwrap();
    let mut child = command.stdin(Stdio::piped()).stdout(file).spawn().unwrap();
    drop(command);
    // The first part is sent while the second is written: until it is closed next to nothing passes, however long a busy machine writes.
    site.proxy.set(Weather::clear().rate(50_000));
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert!(child.wait().unwrap().success());
    site.proxy.set(Weather::clear().rate(1_000_000));
    let since = Instant::now();
    site.mount.signal(Signal::TERM);
    assert!(site.mount.end().success());
    let stored = site.store.get("file").unwrap_or_else(|| panic!("not stored: {}", site.mount.log()));
    assert!(stored == bytes);
    let took = since.elapsed();
    assert!(took > Duration::from_secs(11), "{took:?}: the line was not slow enough to show anything");
}

/// 50 Mbit/s.
const SLOW_LINK: u64 = 6_250_000;

#[test]
fn a_listing_and_a_small_file_do_not_wait_behind_readers_of_a_slow_link() {
    let Some(site) = Site::new() else { return };
    let (outcome, [listed, read]) = among_readers(site.place(), SLOW_LINK);
    assert!(outcome.is_clean(), "{outcome:?}");
    // Without a lane of their own: 23 and 46.
    assert!(listed.link_s <= 4.0 && read.link_s <= 4.0, "ls {listed:?}, cat {read:?}");
}

#[test]
fn files_are_written_over_a_slow_link_and_a_listing_does_not_wait() {
    let Some(site) = Site::new() else { return };
    let (outcome, listed) = among_writers(site.place(), 16 * MIB, 2 * MIB, 10_000_000);
    assert!(outcome.is_clean(), "{outcome:?}");
    assert!(listed.link_s <= 4.0, "ls {listed:?}");
    site.end();
}
