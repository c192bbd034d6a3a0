//! Silence on the way to the store: no connection closes, no byte moves, and the clocks of the engine must notice.
//!
//! A proxy stands between mount and server. A stall lasts until the test ends it, so no test passes because a server gives up first.
//! Without the clock in question each test here fails: the program waits until the engine is killed, or another clock ends the wait and
//! the log names it.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::thread;
use std::time::Duration;

use mountpoint::first;
use rustix::io::Errno;
use testkit::proxy::{Proxy, Weather};

use super::cache::open_direct;
use crate::common::{Pattern, Setup, Store, TestMount};

const LEN: usize = 24 << 20;

/// A file of this many bytes behind a proxy.
fn behind_a_proxy(len: usize, setup: Setup) -> Option<(Proxy, TestMount)> {
    let store = Store::new();
    store.plant("file", &Pattern(1).bytes(0, len));
    let proxy = Proxy::start(store.address());
    let mount = TestMount::of(&store, &setup.through(&proxy))?;
    Some((proxy, mount))
}

#[test]
fn a_read_goes_on_when_every_connection_dies_without_a_word_in_its_middle() {
    let Some((proxy, mount)) = behind_a_proxy(LEN, Setup::new(&[])) else { return };
    let mut file = File::open(mount.path("file")).unwrap();
    let mut bytes = vec![0; 1 << 20];
    file.read_exact(&mut bytes).unwrap();
    // Requests are under way, for what is read next.
    let before = proxy.counts().connections;
    proxy.set(Weather::clear().half_open());
    file.read_to_end(&mut bytes).unwrap();
    assert!(bytes.len() == LEN && Pattern(1).is(0, &bytes), "wrong bytes");
    assert!(proxy.counts().connections > before, "it went on over connections that were dead");
}

/// Bytes that a call in [`Silence`] moves: one request, which has 3 s for them at the minimal rate.
const SHORT: usize = 200_000;

/// The offset of the read: an open long after its lookup brings the bytes before it, while the store still answers.
const PLACE: u64 = first::LEN as u64;

/// A way in which a store is silent for ever, and the expected result.
struct Silence {
    what: &'static str,
    weather: Weather,
    /// `--operation-timeout`, which also limits one exchange, beside the time for its body, and must not end before the clock in question
    /// does.
    patience: &'static str,
    /// The program's call, which must fail, on a file that was open before.
    call: Call,
    /// Words of the log: the request, and the clock that ended its last try.
    says: [&'static str; 2],
}

#[derive(Clone, Copy, PartialEq)]
enum Call {
    /// Reads past the page cache: the kernel would try again page by page.
    Read,
    Fsync,
}

/// Twice the 12 s that a try waits for its answer; the last has less.
const ANSWER: (&str, &str) = ("24", "no byte for");
/// More than the 10 s of silence that a body may have.
const STALL: (&str, &str) = ("12", "no byte for 10 s");
const WHOLE: (&str, &str) = ("3", "the time for the whole operation is up");

fn silences() -> [Silence; 6] {
    let (clear, second) = (Weather::clear, Duration::from_secs(1));
    let case = |what, weather, (patience, ends), call| {
        let request = if call == Call::Read { "GetObject" } else { "PutObject" };
        Silence { what, weather, patience, call, says: [request, ends] }
    };
    [
        case("no answer to a read", clear().never_answered(), ANSWER, Call::Read),
        case("no answer to a write", clear().never_answered(), ANSWER, Call::Fsync),
        case("a black hole", clear().black_hole(), ANSWER, Call::Read),
        // The connection that was open is silent, and another one can't be opened.
        case("a host that is gone", clear().silent_syns(), (ANSWER.0, "can't be reached"), Call::Read),
        // Less than what counts as progress, and so little that no number of hedged requests gets it all.
        case("bodies that stop", clear().stall_answers_after(4_000), STALL, Call::Read),
        // A tenth of the rate that a body must make.
        case("a drip", clear().drip(6_000, second), WHOLE, Call::Read),
    ]
}

#[test]
fn a_store_silent_for_ever_is_eio_and_the_log_names_the_clock_that_ended() {
    let end = |silence: Silence| -> Option<()> {
        let what = silence.what;
        let setup = Setup::new(&["--operation-timeout", silence.patience]).limit(Duration::from_secs(180));
        let (proxy, mount) = behind_a_proxy(first::LEN + SHORT, setup)?;
        let mut file = match silence.call {
            Call::Read => open_direct(&mount.path("file")),
            Call::Fsync => File::create_new(mount.path("new")).unwrap(),
        };
        proxy.set(silence.weather);
        let called = match silence.call {
            Call::Read => file.read_at(&mut vec![0; SHORT], PLACE).map(drop),
            Call::Fsync => file.write_all(&Pattern(2).bytes(0, SHORT)).and_then(|()| file.sync_all()),
        };
        let error = called.expect_err(what);
        assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()), "{what}: {error}");
        let log = mount.log();
        let said = log.lines().any(|line| silence.says.iter().all(|words| line.contains(words)));
        assert!(said, "{what}: the log names no {:?}: {log}", silence.says);
        proxy.set(Weather::clear());
        drop(file);
        assert!(Pattern(1).is(0, &fs::read(mount.path("file")).unwrap()), "{what}: the mount goes on");
        Some(())
    };
    // Most of the time is waiting, so the cases run at once.
    thread::scope(|scope| {
        let ends = silences().map(|silence| (silence.what, scope.spawn(move || end(silence))));
        for (what, thread) in ends {
            thread.join().unwrap_or_else(|_| panic!("{what}"));
        }
    });
}

#[test]
fn with_little_patience_a_silent_store_is_asked_again_before_time_is_up() {
    let setup = Setup::new(&["--operation-timeout", "14"]).limit(Duration::from_secs(120));
    let Some((proxy, mount)) = behind_a_proxy(first::LEN + SHORT, setup) else { return };
    let file = open_direct(&mount.path("file"));
    // Requests of now are never answered; those from in a second on are.
    proxy.set(Weather::clear().never_answered());
    let mut bytes = vec![0; SHORT];
    thread::scope(|scope| {
        let read = scope.spawn(|| file.read_at(&mut bytes, PLACE));
        thread::sleep(Duration::from_secs(1));
        proxy.set(Weather::clear());
        assert_eq!(read.join().unwrap().expect("it was asked once only"), SHORT);
    });
    assert!(Pattern(1).is(PLACE, &bytes), "wrong bytes");
}
