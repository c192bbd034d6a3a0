//! Walks, while this mount and another client change the tree. The reference is the bucket's history, and for each name the earliest
//! state that this mount may show: by its own change, or by an answer of the store.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mountpoint::clock::Clock;
use mountpoint::first::Asker;
use mountpoint::inode::{
    Config, ErrorKind, InodeNo, InodeTable, Kind, OpenWrite, ROOT, Ttl, Unlinked, WriteWish,
};
use mountpoint::metrics::Metrics;
use mountpoint::testing::{MemoryClient, Op, Settings};
use proptest::prelude::*;

/// Number of directories that stay, and of those behind them that come and go.
const STAY: usize = 12;
const ALL: usize = 15;
/// Keys of each.
const KEYS: [&str; 8] = ["f0", "f1", "mine", "s0/mine", "s0/t/mine", "s0/t/x", "s0/x", "s1/x"];
/// Directories in each, in the order of a walk.
const BELOW: [&str; 3] = ["s0", "s0/t", "s1"];

#[derive(Clone, Debug)]
pub(crate) enum Change {
    Put(usize, usize),
    Remove(usize, usize),
    /// This mount removes a file.
    Unlink(usize, usize),
    /// This mount stores a file, with the directories above.
    Store(usize, usize),
    /// This mount looks a key up, and so the directories above.
    Look(usize, usize),
    /// The kernel drops all its references.
    Forget,
    Pause(u64),
    /// Lists this many directories from one on, with the keys below; with attributes or without.
    Walk(usize, usize, bool),
}

pub(crate) fn changes() -> impl Strategy<Value = Vec<Change>> {
    // More often where things come and go.
    let key = || (prop_oneof![1 => 0..STAY, 1 => STAY - 2..ALL], 0..KEYS.len());
    let change = prop_oneof![
        4 => key().prop_map(|(d, k)| Change::Put(d, k)),
        2 => key().prop_map(|(d, k)| Change::Remove(d, k)),
        2 => key().prop_map(|(d, k)| Change::Unlink(d, k)),
        2 => key().prop_map(|(d, k)| Change::Store(d, k)),
        4 => key().prop_map(|(d, k)| Change::Look(d, k)),
        1 => Just(Change::Forget),
        1 => (1u64..700).prop_map(Change::Pause),
        5 => (0..ALL, 1..=ALL, any::<bool>()).prop_map(|(d, count, plus)| Change::Walk(d, count, plus)),
    ];
    prop::collection::vec(change, 1..60)
}

/// TTLs of the store's answers about names.
pub(crate) fn ttls() -> impl Strategy<Value = Ttl> {
    let (found, zero) = (Duration::from_secs(60), Duration::ZERO);
    prop_oneof![
        2 => Just(Ttl::Minimal),
        1 => Just(Ttl::For { found, missing: found }),
        1 => Just(Ttl::For { found, missing: zero }),
    ]
}

/// Whether a path is there.
fn has(keys: &BTreeSet<String>, path: &str) -> bool {
    let below = format!("{path}/");
    keys.contains(path) || keys.range(below.clone()..).next().is_some_and(|key| key.starts_with(&below))
}

struct World {
    client: MemoryClient,
    clock: Clock,
    table: InodeTable,
    /// Largest age of a listing.
    old: Duration,
    /// The keys since the beginning, and from when on.
    history: Vec<(Instant, BTreeSet<String>)>,
    /// The first state of the history that a path may be shown in: of the name alone, and of all names of a directory.
    known: BTreeMap<String, usize>,
    listed: BTreeMap<String, usize>,
    /// Directories that may exist without a key, because this mount made or emptied them.
    local: BTreeSet<String>,
    held: Vec<InodeNo>,
}

impl World {
    fn new(ttl: Ttl) -> Self {
        let clock = Clock::manual();
        let settings = Settings { clock: clock.clone(), page_max: 7, ..Settings::default() };
        let client = MemoryClient::with(settings);
        (0..STAY).for_each(|d| drop(client.insert(format!("d{d:02}/stays"), "")));
        let config = Config { ttl, list_page: 7, brought: 3, ..Config::default() };
        let asker = Asker::of_attributes(client.arc());
        let table = InodeTable::new(asker, config, clock.clone(), Arc::new(Metrics::default()));
        let old = if ttl == Ttl::Minimal { super::super::OLD } else { Duration::from_secs(60) };
        let history = vec![(clock.now(), client.keys().into_iter().collect())];
        clock.advance(2 * old);
        let (known, listed) = (BTreeMap::new(), BTreeMap::new());
        Self { client, clock, table, old, history, known, listed, local: BTreeSet::new(), held: Vec::new() }
    }

    fn latest(&self) -> usize {
        self.history.len() - 1
    }

    fn changed(&mut self) {
        self.history.push((self.clock.now(), self.client.keys().into_iter().collect()));
    }

    /// Notes that the store answered this mount about a path and, if it exists, the directories above.
    fn knows(&mut self, path: &str) {
        let latest = self.latest();
        self.known.insert(path.to_owned(), latest);
        let is_there = has(&self.history[latest].1, path);
        for (at, _) in path.match_indices('/').filter(|_| is_there) {
            self.known.insert(path[..at].to_owned(), latest);
        }
    }

    /// Notes directories above a key that this mount may show without a key.
    fn stay(&mut self, path: &str) {
        self.local.extend(path.match_indices('/').map(|(at, _)| path[..at].to_owned()));
    }

    /// Looks a path up as the file system does: memory first.
    async fn look(&mut self, parent: InodeNo, path: &str) -> Option<InodeNo> {
        let name = OsStr::new(path.rsplit('/').next().expect("a path has a name"));
        let found = match self.table.try_lookup(parent, name) {
            Some(found) => found,
            None => {
                let found = self.table.lookup(parent, name).await;
                self.knows(path);
                found
            }
        };
        match found {
            Ok(found) => {
                self.held.push(found.ino);
                Some(found.ino)
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound) => None,
            Err(error) => panic!("{path}: {error}"),
        }
    }

    /// The directory above a path. `makes`: whether to make missing ones.
    async fn above(&mut self, path: &str, makes: bool) -> Option<InodeNo> {
        let mut at = ROOT;
        for (end, _) in path.match_indices('/') {
            let directory = &path[..end];
            at = match self.look(at, directory).await {
                Some(ino) => ino,
                None if makes => {
                    let name = directory.rsplit('/').next().expect("a path has a name");
                    match self.table.mkdir(at, OsStr::new(name)).await {
                        Ok(made) => {
                            self.stay(&format!("{directory}/"));
                            self.held.push(made.ino);
                            made.ino
                        }
                        // The store has it since the lookup before.
                        Err(error) if matches!(error.kind(), ErrorKind::Exists) => {
                            self.look(at, directory).await.expect("it exists")
                        }
                        Err(error) => panic!("{directory}: {error}"),
                    }
                }
                None => return None,
            };
        }
        Some(at)
    }

    async fn unlink(&mut self, path: &str) {
        let Some(parent) = self.above(path, false).await else { return };
        let name = path.rsplit('/').next().expect("a path has a name");
        if let Ok(Unlinked::Gone) = self.table.unlink(parent, OsStr::new(name), true).await {
            self.changed();
            self.knows(path);
            self.stay(path);
        }
    }

    async fn store(&mut self, path: &str) {
        let parent = self.above(path, true).await.expect("made where it is not");
        let name = path.rsplit('/').next().expect("a path has a name");
        let ino = match self.look(parent, path).await {
            Some(ino) => ino,
            None => {
                let Ok(made) = self.table.create(parent, OsStr::new(name)).await else { return };
                self.held.push(made.ino);
                made.ino
            }
        };
        let wish = WriteWish { truncate: true, append: false, allow_overwrite: true, allow_append: false };
        let Ok(OpenWrite::Granted { key, .. }) = self.table.open_write(ino, 1, wish).await else {
            panic!("{path}: nobody else writes");
        };
        assert_eq!(key.as_str(), path);
        self.client.insert(path, "mine");
        self.table.commit_write(ino, self.client.meta(path).expect("just stored"));
        self.changed();
        self.knows(path);
    }

    /// Lists a directory; the inodes of its entries.
    async fn list(&mut self, ino: InodeNo, path: &str, plus: bool) -> BTreeMap<String, InodeNo> {
        let listing = self.table.opendir(ino).await.unwrap();
        let before = self.client.log().len();
        let (mut offset, mut shown, mut inodes) = (2, Vec::new(), BTreeMap::new());
        loop {
            let entries = listing.entries(&self.table, offset, 9).await.unwrap();
            let Some(last) = entries.last() else { break };
            offset = last.offset;
            for entry in &entries {
                shown.push((entry.name().to_owned(), entry.stat.kind));
                if plus {
                    let found = self.table.remember(ino, entry);
                    self.held.push(found.ino);
                    inodes.insert(entry.name().to_owned(), found.ino);
                }
            }
        }
        drop(listing);
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        self.compare(&prefix, &shown);
        let alone = |call: &mountpoint::testing::Call| call.op == Op::ListObjects && call.key == prefix;
        if self.client.log()[before..].iter().any(alone) {
            self.listed.insert(prefix.clone(), self.latest());
            for (name, _) in &shown {
                self.knows(&format!("{prefix}{name}"));
            }
        }
        self.clock.advance(Duration::from_millis(3));
        inodes
    }

    /// Compares each name with its states during the largest age of a listing, and not before the mount's own knowledge. The states may
    /// be of several moments: the pages of a directory may be, as those of S3 are.
    fn compare(&self, prefix: &str, shown: &[(String, Kind)]) {
        assert!(shown.is_sorted_by(|(a, _), (b, _)| a < b), "{prefix} shows {shown:?}");
        let now = self.clock.now();
        let ends = self.history.iter().skip(1).map(|(from, _)| *from).chain([now]);
        let recent = ends.enumerate().find(|(_, end)| *end == now || now - *end < self.old);
        let recent = recent.map_or(0, |(i, _)| i).max(self.listed.get(prefix).copied().unwrap_or_default());
        let mut names: BTreeSet<&str> = shown.iter().map(|(name, _)| name.as_str()).collect();
        for key in self.history[recent..].iter().flat_map(|(_, keys)| keys) {
            names.extend(key.strip_prefix(prefix).and_then(|rest| rest.split('/').next()));
        }
        for name in names {
            let path = format!("{prefix}{name}");
            let from = recent.max(self.known.get(&path).copied().unwrap_or_default());
            let mut states = self.history[from..].iter().map(|(_, keys)| has(keys, &path));
            let is_shown = shown.iter().any(|(shown, _)| shown == name);
            assert!(
                states.any(|has| has == is_shown) || is_shown && self.local.contains(&path),
                "{path} is {} since state {from} of {}, in {shown:?}",
                if is_shown { "shown, and was not there" } else { "hidden, and was there" },
                self.latest(),
            );
        }
    }

    async fn walk(&mut self, from: usize, count: usize, plus: bool) {
        if from == 0 {
            self.list(ROOT, "", plus).await;
        }
        for d in from..(from + count).min(ALL) {
            let path = format!("d{d:02}");
            let Some(ino) = self.look(ROOT, &path).await else { continue };
            let mut inodes = BTreeMap::from([(path.clone(), ino)]);
            self.list(ino, &path, plus).await.into_iter().for_each(|(name, ino)| {
                inodes.insert(format!("{path}/{name}"), ino);
            });
            for below in BELOW {
                let below = format!("{path}/{below}");
                let (above, _) = below.rsplit_once('/').expect("below a directory");
                let ino = match (inodes.get(&below), inodes.get(above)) {
                    (Some(ino), _) => *ino,
                    (None, Some(above)) if !plus => match self.look(*above, &below).await {
                        Some(ino) => ino,
                        None => continue,
                    },
                    _ => continue,
                };
                inodes.insert(below.clone(), ino);
                self.list(ino, &below, plus).await.into_iter().for_each(|(name, ino)| {
                    inodes.insert(format!("{below}/{name}"), ino);
                });
            }
        }
    }

    async fn step(&mut self, change: Change) {
        let key = |d: usize, k: usize| format!("d{d:02}/{}", KEYS[k]);
        match change {
            Change::Put(d, k) => {
                self.client.insert(key(d, k), "content");
                self.changed();
            }
            Change::Remove(d, k) => {
                self.client.remove(key(d, k));
                self.changed();
            }
            Change::Unlink(d, k) => self.unlink(&key(d, k)).await,
            Change::Store(d, k) => self.store(&key(d, k)).await,
            Change::Look(d, k) => {
                let path = key(d, k);
                if let Some(parent) = self.above(&path, false).await {
                    self.look(parent, &path).await;
                }
            }
            Change::Forget => self.held.drain(..).for_each(|ino| self.table.forget(ino, 1)),
            Change::Pause(ms) => self.clock.advance(Duration::from_millis(ms)),
            Change::Walk(from, count, plus) => self.walk(from, count, plus).await,
        }
    }
}

pub(crate) async fn walk_and_change(ttl: Ttl, changes: Vec<Change>) {
    let mut world = World::new(ttl);
    for change in changes {
        world.step(change).await;
    }
}
