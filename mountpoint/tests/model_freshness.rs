//! Goal: a mount's answer without a request is never older than allowed, while other clients change the bucket. A stat is at most a
//! second old, an open is of the present, with the first bytes that came along, and an existing name is never reported as absent. Method:
//! random changes, pauses and bursts of lookups on an `InodeTable` over a bucket in memory, with a clock of the test's. The reference is
//! the bucket's history: the keys after each change, and when that was. Opens of one file that overlap, with answers that are held back,
//! are compared with its versions; so are listings of walks with what this mount did and learned. Proptest prints the steps of a failure.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use mountpoint::buffer::Pool;
use mountpoint::clock::Clock;
use mountpoint::first::Asker;
use mountpoint::inode::{Config, ErrorKind, Found, InodeNo, InodeTable, Kind, OpenRead, ROOT, Ttl};
use mountpoint::metrics::Metrics;
use mountpoint::testing::{FaultPlan, MemoryClient, Op, Settings};
use proptest::prelude::*;

/// The modules in `model_freshness/`.
mod model_freshness {
    pub(crate) mod walk;
}

use model_freshness::walk;

/// Names of the one directory: enough that bursts of lookups are worth pages.
const NAMES: usize = 60;
/// Largest age of a stat without a TTL from the user.
const OLD: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
enum Step {
    /// Another client stores the name, as a file or as a key below it.
    Put(usize, bool),
    /// Another client removes the name and all keys below it.
    Remove(usize),
    /// This client removes the file.
    Unlink(usize),
    Pause(u64),
    /// Lookups of this many names from one on, each this far behind the last.
    Stat(usize, usize, usize),
    /// A listing with attributes.
    List,
    /// Opens this many names from one on.
    Open(usize, usize),
    /// The kernel drops all its references.
    Forget,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = || 0..NAMES;
    let step = prop_oneof![
        4 => (name(), prop::bool::weighted(0.2)).prop_map(|(name, below)| Step::Put(name, below)),
        2 => name().prop_map(Step::Remove),
        1 => name().prop_map(Step::Unlink),
        3 => (1u64..700).prop_map(Step::Pause),
        4 => (name(), 1..NAMES, prop_oneof![Just(1), Just(7), Just(NAMES - 1)]).prop_map(|(a, n, by)| Step::Stat(a, n, by)),
        2 => Just(Step::List),
        4 => (name(), prop_oneof![4 => Just(1), 1 => 1..NAMES]).prop_map(|(name, count)| Step::Open(name, count)),
        1 => Just(Step::Forget),
    ];
    prop::collection::vec(step, 1..60)
}

/// The kind of a name: a directory, or a file of that many bytes. Each stored object has its own size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum View {
    Directory,
    File(u64),
}

fn name(i: usize) -> String {
    format!("n{i:02}")
}

struct World {
    client: MemoryClient,
    clock: Clock,
    table: InodeTable,
    /// The bucket since the beginning: names, and from when on.
    history: Vec<(Instant, BTreeMap<String, View>)>,
    versions: u64,
    held: Vec<InodeNo>,
    /// Number of opens whose first bytes came along.
    came: usize,
}

/// Duration of a slow request: long enough that pages are worth little more than lookups.
const TRIP: Duration = Duration::from_millis(20);

/// Waits for an answer while time goes by.
async fn meanwhile<T>(clock: &Clock, answer: impl Future<Output = T>) -> T {
    let mut answer = pin!(answer);
    loop {
        if let Poll::Ready(answer) = poll_fn(|context| Poll::Ready(answer.as_mut().poll(context))).await {
            return answer;
        }
        clock.advance(TRIP / 4);
        tokio::task::yield_now().await;
    }
}

impl World {
    /// `slow`: requests take [`TRIP`].
    fn new(slow: bool) -> Self {
        let clock = Clock::manual();
        let client =
            MemoryClient::with(Settings { clock: clock.clone(), page_max: 20, ..Settings::default() });
        for op in [Op::HeadObject, Op::ListObjects, Op::GetObject, Op::DeleteObject] {
            if slow {
                client.inject(FaultPlan::on(op).always().delay(TRIP));
            }
        }
        let config = Config { ttl: Ttl::Minimal, list_page: 20, brought: 5, ..Config::default() };
        let metrics = Arc::new(Metrics::default());
        let asker = Asker::new(
            client.arc(),
            Pool::new(&mountpoint::buffer::Config::default()),
            None,
            metrics.clone(),
        );
        let table = InodeTable::new(asker, config, clock.clone(), metrics);
        let history = vec![(clock.now(), BTreeMap::new())];
        Self { client, clock, table, history, versions: 0, held: Vec::new(), came: 0 }
    }

    fn now(&self, name: &str) -> Option<View> {
        self.history.last().expect("the beginning").1.get(name).copied()
    }

    fn change(&mut self, name: &str, view: Option<View>) {
        let mut names = self.history.last().expect("the beginning").1.clone();
        match view {
            Some(view) => names.insert(name.to_owned(), view),
            None => names.remove(name),
        };
        self.history.push((self.clock.now(), names));
    }

    /// Whether the name was this at some moment of the last second.
    fn was(&self, name: &str, view: Option<View>) -> bool {
        let now = self.clock.now();
        let ends = self.history.iter().skip(1).map(|(from, _)| *from).chain([now]);
        let recent = self.history.iter().zip(ends).filter(|(_, end)| *end == now || now - *end < OLD);
        recent.map(|((_, names), _)| names.get(name).copied()).any(|was| was == view)
    }

    async fn lookup(&mut self, name: &str) -> Option<Found> {
        let found = match self.table.try_lookup(ROOT, OsStr::new(name)) {
            Some(found) => found,
            None => meanwhile(&self.clock, self.table.lookup(ROOT, OsStr::new(name))).await,
        };
        match found {
            Ok(found) => {
                self.held.push(found.ino);
                assert!(found.entry_valid_for <= OLD && found.stat.valid_for <= OLD);
                Some(found)
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound) => None,
            Err(error) => panic!("{name}: {error}"),
        }
    }

    async fn stat(&mut self, name: &str) {
        let view = self.lookup(name).await.map(|found| match found.stat.kind {
            Kind::Directory => View::Directory,
            Kind::File => View::File(found.stat.size),
            Kind::Link => unreachable!("names know no links"),
        });
        assert!(self.was(name, view), "{name} is shown as {view:?}, and is {:?}", self.now(name));
        // Absent is only what is absent now.
        assert!(view.is_some() || self.now(name).is_none(), "{name} is {:?}", self.now(name));
    }

    async fn list(&mut self) {
        let listing = self.table.opendir(ROOT).await.unwrap();
        let (mut offset, mut shown) = (2, BTreeMap::new());
        loop {
            let entries = meanwhile(&self.clock, listing.entries(&self.table, offset, 9)).await.unwrap();
            let Some(last) = entries.last() else { break };
            offset = last.offset;
            for entry in &entries {
                let view = match entry.stat.kind {
                    Kind::Directory => View::Directory,
                    Kind::File => View::File(entry.stat.size),
                    Kind::Link => unreachable!("names know no links"),
                };
                shown.insert(entry.name().to_owned(), view);
                self.held.push(self.table.remember(ROOT, entry).ino);
            }
        }
        assert_eq!(shown, self.history.last().unwrap().1, "a listing is of now");
    }

    /// Opens as open(2) does: from the kernel's entries, and once more after ESTALE.
    async fn open(&mut self, name: &str) {
        for _ in 0..2 {
            let found = self.lookup(name).await;
            let Some(found) = found else {
                assert_eq!(self.now(name), None, "{name} can't be opened");
                return;
            };
            if found.stat.kind == Kind::Directory {
                assert!(self.was(name, Some(View::Directory)));
                return;
            }
            let opened = match self.table.try_open_read(found.ino) {
                Some(opened) => opened,
                None => meanwhile(&self.clock, self.table.open_read(found.ino, false)).await,
            };
            match opened {
                Ok(OpenRead::Object { id, size, first, .. }) => {
                    self.table.close_read(found.ino);
                    if let Some(mut first) = first {
                        // Bytes that came along are those of the version that is there now: each has its own size.
                        if let Some((_, bytes)) = first.take_bytes() {
                            assert_eq!(Some(&bytes[..]), self.client.object(name).as_deref(), "{name}");
                            self.came += 1;
                        }
                        first.was_read();
                    }
                    // A directory that came a moment ago may not hide it yet; its bytes are the object's.
                    assert_eq!(
                        Some(id.etag),
                        self.client.meta(name).map(|meta| meta.etag),
                        "{name} of {size} bytes"
                    );
                    return;
                }
                Ok(busy) => panic!("{name}: {busy:?}"),
                // Another object is there, or a directory, or nothing: the next look-up tells.
                Err(error) if matches!(error.kind(), ErrorKind::Stale) => {}
                Err(error) => panic!("{name}: {error}"),
            }
        }
        panic!("{name}: stale twice, and nobody changed it in between");
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Put(i, below) => {
                let (name, size) = (name(i), self.versions + 1);
                // Names that are hidden are not told apart here.
                if !below && self.now(&name) == Some(View::Directory) {
                    return;
                }
                self.versions = size;
                match below {
                    true => self.client.insert(format!("{name}/x"), ""),
                    false => self.client.insert(name.as_str(), vec![b'x'; size as usize]),
                };
                self.change(&name, Some(if below { View::Directory } else { View::File(size) }));
            }
            Step::Remove(i) => {
                let name = name(i);
                self.client.remove(&name);
                self.client.remove(format!("{name}/x"));
                self.change(&name, None);
            }
            Step::Unlink(i) => {
                let name = name(i);
                if matches!(self.now(&name), Some(View::File(_))) && self.client.meta(&name).is_some() {
                    let unlink = self.table.unlink(ROOT, OsStr::new(&name), true);
                    let unlinked = meanwhile(&self.clock, unlink).await;
                    if unlinked.is_ok() {
                        self.change(&name, None);
                        assert!(self.lookup(&name).await.is_none(), "{name} was removed here");
                    }
                }
            }
            Step::Pause(ms) => self.clock.advance(Duration::from_millis(ms)),
            Step::Stat(from, count, by) => {
                for i in 0..count {
                    self.stat(&name((from + i * by) % NAMES)).await;
                    // A store takes a while.
                    self.clock.advance(Duration::from_millis(3));
                }
            }
            Step::List => self.list().await,
            Step::Open(from, count) => {
                for i in from..from + count {
                    self.open(&name(i % NAMES)).await;
                    self.clock.advance(Duration::from_millis(3));
                }
            }
            Step::Forget => {
                for ino in self.held.drain(..) {
                    self.table.forget(ino, 1);
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Overlap {
    /// A program opens the file: a lookup, and the open.
    Open,
    /// Another client stores another version.
    Put,
    /// The store's next answer arrives.
    Answer,
    Pause(u64),
}

fn overlaps() -> impl Strategy<Value = Vec<Overlap>> {
    let overlap = prop_oneof![
        4 => Just(Overlap::Open),
        2 => Just(Overlap::Put),
        3 => Just(Overlap::Answer),
        1 => (1u64..300).prop_map(Overlap::Pause),
    ];
    prop::collection::vec(overlap, 1..80)
}

/// Runs opens of one file that overlap, while the file changes between a request's arrival at the store and the arrival of its answer.
async fn open_and_change(overlaps: Vec<Overlap>) {
    let clock = Clock::manual();
    let client = MemoryClient::with(Settings { clock: clock.clone(), ..Settings::default() });
    let pool = Pool::new(&mountpoint::buffer::Config::default());
    let metrics = Arc::new(Metrics::default());
    let asker = Asker::new(client.arc(), pool, None, metrics.clone());
    let config = Config { ttl: Ttl::Minimal, brought: 5, ..Config::default() };
    let table = InodeTable::new(asker, config, clock.clone(), metrics);
    let mut versions = vec![client.insert("name", "0")];
    let gate = client.hold_answer(FaultPlan::on(Op::GetObject).always());
    let mut opens = Vec::new();
    for overlap in overlaps {
        match overlap {
            Overlap::Open => {
                let (table, begun) = (table.clone(), versions.len() - 1);
                opens.push(tokio::spawn(async move {
                    let found = table.lookup(ROOT, OsStr::new("name")).await.unwrap();
                    let opened = table.open_read(found.ino, false).await;
                    let opened = opened.map(|opened| match opened {
                        OpenRead::Object { id, mut first, .. } => {
                            table.close_read(found.ino);
                            let bytes =
                                first.as_mut().and_then(|first| first.take_bytes()).map(|(_, b)| b.to_vec());
                            first.into_iter().for_each(|first| first.was_read());
                            (id.etag, bytes)
                        }
                        OpenRead::Busy { .. } => panic!("nobody writes"),
                    });
                    table.forget(found.ino, 1);
                    (begun, opened)
                }));
            }
            Overlap::Put => versions.push(client.insert("name", versions.len().to_string())),
            Overlap::Answer => gate.pass_one(),
            Overlap::Pause(ms) => clock.advance(Duration::from_millis(ms)),
        }
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
    gate.release();
    for open in opens {
        let (begun, opened) = open.await.unwrap();
        match opened {
            Ok((etag, bytes)) => {
                let version = versions.iter().rposition(|version| *version == etag).unwrap();
                assert!(
                    version >= begun,
                    "version {version} was replaced before the open: {begun} was there"
                );
                assert!(bytes.is_none_or(|bytes| bytes == version.to_string().as_bytes()));
            }
            Err(error) => assert!(matches!(error.kind(), ErrorKind::Stale), "{error}"),
        }
    }
    assert_eq!(table.len(), 1, "an inode lives though nobody refers to it");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn a_stat_is_a_second_old_at_most_and_an_open_is_of_now(steps in steps(), slow in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async move {
            let mut world = World::new(slow);
            for i in 0..NAMES {
                world.step(Step::Put(i, i % 13 == 12)).await;
            }
            world.clock.advance(2 * OLD);
            // Opens that lead to reads: from here on look-ups bring first bytes, until stats speak against it.
            world.step(Step::Open(0, NAMES)).await;
            assert!(world.came > 0, "no first bytes came");
            world.clock.advance(2 * OLD);
            for step in steps {
                world.step(step).await;
            }
            world.step(Step::Forget).await;
            assert_eq!(world.table.len(), 1, "an inode lives though nobody refers to it");
        });
    }

    #[test]
    fn opens_that_overlap_each_see_a_version_that_was_there_since_they_began(overlaps in overlaps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(open_and_change(overlaps));
    }

    #[test]
    fn a_walk_shows_the_last_second_and_all_that_this_mount_did_or_learned(
        ttl in walk::ttls(),
        changes in walk::changes(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(walk::walk_and_change(ttl, changes));
    }
}
