//! Goal: after any sequence of operations through the mount and on the bucket, every lookup and every listing follows the rules.
//! Method: random operations on an `InodeTable` over a bucket in memory, and on a reference made of a plain set of keys and a
//! plain map of local entries; after each operation the test compares all paths and all directories. Proptest prints the steps of a
//! failure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use mountpoint::clock::Clock;
use mountpoint::first::Asker;
use mountpoint::inode::{
    Config, Error, ErrorKind, InodeNo, InodeTable, Kind, OpenRead, OpenWrite, ROOT, Ttl, Unlinked, WriteWish,
};
use mountpoint::metrics::Metrics;
use mountpoint::testing::{MemoryClient, Settings};
use proptest::prelude::*;

/// Few names, so that they collide; `a-` sorts between `a` and `a/`.
const NAMES: [&str; 4] = ["a", "a-", "b", "c"];
/// Keys that another client may store: plain ones, markers, and keys that can't be shown.
const KEYS: [&str; 14] =
    ["a", "a-", "b", "a/a", "a/b", "a/b/c", "b/a", "b/a-/c", "a/", "b/", "a//x", "../a", "b/./c", "c/a/b"];

#[derive(Clone, Debug)]
enum Step {
    Put(usize),
    Delete(usize),
    Create(Vec<usize>),
    Mkdir(Vec<usize>),
    Rmdir(Vec<usize>),
    Unlink(Vec<usize>),
    StartWriting(Vec<usize>),
    Commit(usize),
    Abandon(usize),
    Forget,
    Rest,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let path = || prop::collection::vec(0..NAMES.len(), 1..4);
    let step = prop_oneof![
        3 => (0..KEYS.len()).prop_map(Step::Put),
        3 => (0..KEYS.len()).prop_map(Step::Delete),
        3 => path().prop_map(Step::Create),
        2 => path().prop_map(Step::Mkdir),
        2 => path().prop_map(Step::Rmdir),
        2 => path().prop_map(Step::Unlink),
        3 => path().prop_map(Step::StartWriting),
        3 => (0usize..4).prop_map(Step::Commit),
        2 => (0usize..4).prop_map(Step::Abandon),
        1 => Just(Step::Forget),
        1 => Just(Step::Rest),
    ];
    prop::collection::vec(step, 1..40)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum View {
    Directory,
    File(u64),
}

/// The rules of names, derived from keys and local entries alone.
#[derive(Default)]
struct Model {
    keys: BTreeMap<String, u64>,
    local_directories: BTreeSet<String>,
    /// Files that the mount made or that are being overwritten, with their length so far.
    local_files: BTreeMap<String, u64>,
}

impl Model {
    fn is_remote_directory(&self, path: &str) -> bool {
        let below = format!("{path}/");
        self.keys.keys().any(|key| key.starts_with(&below))
    }

    /// Remote directory before local entry before remote file.
    fn view(&self, path: &str) -> Option<View> {
        if path.is_empty() || self.is_remote_directory(path) {
            return Some(View::Directory);
        }
        if let Some(size) = self.local_files.get(path) {
            return Some(View::File(*size));
        }
        if self.local_directories.contains(path) {
            return Some(View::Directory);
        }
        self.keys.get(path).map(|size| View::File(*size))
    }

    /// A path exists if all above it are directories.
    fn walk(&self, path: &str) -> Option<View> {
        let mut above = path.match_indices('/').map(|(at, _)| &path[..at]);
        above.all(|directory| self.view(directory) == Some(View::Directory)).then(|| self.view(path))?
    }

    fn local_paths(&self) -> impl Iterator<Item = &String> {
        self.local_directories.iter().chain(self.local_files.keys())
    }

    fn list(&self, path: &str) -> BTreeMap<String, View> {
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let names = self.keys.keys().chain(self.local_paths()).filter_map(|key| {
            let name = key.strip_prefix(&prefix)?.split('/').next()?;
            (!["", ".", ".."].contains(&name)).then(|| name.to_string())
        });
        names.filter_map(|name| Some((name.clone(), self.view(&format!("{prefix}{name}"))?))).collect()
    }

    /// Looks at every path: a local directory that S3 has becomes a remote one, and a remote one that S3 no longer has but that has local
    /// entries below becomes a local one. False if a local entry has come to lie below a file: it is unreachable for good, and the rules
    /// end there.
    fn look(&mut self) -> bool {
        let local = std::mem::take(&mut self.local_directories);
        self.local_directories = local.into_iter().filter(|d| !self.is_remote_directory(d)).collect();
        let paths: Vec<String> = self.local_paths().cloned().collect();
        for path in paths {
            for (at, _) in path.match_indices('/') {
                let above = &path[..at];
                if self.is_remote_directory(above) {
                    continue;
                }
                if self.local_files.contains_key(above) {
                    return false;
                }
                self.local_directories.insert(above.to_string());
            }
        }
        true
    }

    /// A key was removed through the mount: directories above this path that have none left stay, unless a local file shows there.
    fn remove(&mut self, key: &str, path: &str) {
        self.keys.remove(key);
        for (at, _) in path.match_indices('/') {
            let above = &path[..at];
            if !self.is_remote_directory(above) && !self.local_files.contains_key(above) {
                self.local_directories.insert(above.to_string());
            }
        }
    }

    /// Notes that S3 has the object, and so the directories above.
    fn store(&mut self, path: &str, size: u64) {
        self.keys.insert(path.to_string(), size);
        for (at, _) in path.match_indices('/') {
            self.local_directories.remove(&path[..at]);
        }
    }
}

struct World {
    client: MemoryClient,
    clock: Clock,
    table: InodeTable,
    model: Model,
    /// Writers that are open: path and inode.
    writers: Vec<(String, InodeNo)>,
    /// References that the kernel holds.
    held: Vec<InodeNo>,
    /// Sizes tell versions apart: each stored object has its own.
    versions: u64,
    /// The version each inode shows; only a write through the mount changes it.
    seen: HashMap<InodeNo, u64>,
    /// Whether answers expire before each comparison, as they must when others change the bucket.
    expire: bool,
}

impl World {
    fn new(ttl: Ttl, expire: bool) -> Self {
        let clock = Clock::manual();
        let client =
            MemoryClient::with(Settings { clock: clock.clone(), page_max: 3, ..Settings::default() });
        let config = Config { ttl, list_page: 3, brought: 2, ..Config::default() };
        let table = InodeTable::new(
            Asker::of_attributes(client.arc()),
            config,
            clock.clone(),
            Arc::new(Metrics::default()),
        );
        Self {
            client,
            clock,
            table,
            model: Model::default(),
            writers: Vec::new(),
            held: Vec::new(),
            versions: 0,
            seen: HashMap::new(),
            expire,
        }
    }

    fn store(&mut self, key: &str) {
        self.versions += 1;
        self.client.insert(key, vec![b'x'; self.versions as usize]);
    }

    async fn lookup(&mut self, parent: InodeNo, name: &str) -> Result<(InodeNo, View), Error> {
        let found = match self.table.try_lookup(parent, OsStr::new(name)) {
            Some(answer) => answer?,
            None => self.table.lookup(parent, OsStr::new(name)).await?,
        };
        self.held.push(found.ino);
        let view = match found.stat.kind {
            Kind::Directory => View::Directory,
            Kind::File => View::File(found.stat.size),
            Kind::Link => unreachable!("names know no links"),
        };
        Ok((found.ino, view))
    }

    /// The inode of a path; `None` when a component is not there.
    async fn resolve(&mut self, path: &str) -> Option<InodeNo> {
        let mut at = ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            match self.lookup(at, name).await {
                Ok((ino, _)) => at = ino,
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                    return None;
                }
                Err(error) => panic!("{path}: {error}"),
            }
        }
        Some(at)
    }

    fn forget_all(&mut self) {
        for ino in self.held.drain(..) {
            self.table.forget(ino, 1);
        }
    }

    async fn step(&mut self, step: Step) {
        let path = |names: &[usize]| names.iter().map(|&i| NAMES[i]).collect::<Vec<_>>().join("/");
        match step {
            Step::Put(key) => {
                self.store(KEYS[key]);
                self.model.keys.insert(KEYS[key].to_string(), self.versions);
            }
            Step::Delete(key) => {
                self.client.remove(KEYS[key]);
                self.model.keys.remove(KEYS[key]);
            }
            Step::Create(names) => self.make(&path(&names), false).await,
            Step::Mkdir(names) => self.make(&path(&names), true).await,
            Step::Rmdir(names) => self.rmdir(&path(&names)).await,
            Step::Unlink(names) => self.unlink(&path(&names)).await,
            Step::StartWriting(names) => self.start_writing(&path(&names)).await,
            Step::Commit(writer) => self.finish(writer, true),
            Step::Abandon(writer) => self.finish(writer, false),
            Step::Forget => self.forget_all(),
            Step::Rest => self.clock.advance(Duration::from_secs(3600)),
        }
    }

    async fn parent_of<'a>(&mut self, path: &'a str) -> Option<(InodeNo, &'a str)> {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = self.resolve(above).await;
        assert_eq!(parent.is_some(), self.model.walk(above).is_some(), "{above}");
        Some((parent?, name))
    }

    async fn make(&mut self, path: &str, directory: bool) {
        let Some((parent, name)) = self.parent_of(path).await else { return };
        let name = OsStr::new(name);
        let made = match directory {
            true => self.table.mkdir(parent, name).await,
            false => self.table.create(parent, name).await,
        };
        let above = path.rsplit_once('/').map_or("", |(above, _)| above);
        let above = self.model.walk(above);
        match (self.model.walk(path), made.as_ref().map_err(Error::kind)) {
            (None, Ok(found)) => {
                self.held.push(found.ino);
                assert_eq!(above, Some(View::Directory), "{path}");
                match directory {
                    true => drop(self.model.local_directories.insert(path.to_string())),
                    false => drop(self.model.local_files.insert(path.to_string(), 0)),
                }
            }
            (Some(_), Err(ErrorKind::Exists)) => {}
            (None, Err(ErrorKind::NotADirectory)) => assert!(matches!(above, Some(View::File(_))), "{path}"),
            (view, made) => panic!("make {path}: {view:?} {made:?}"),
        }
    }

    async fn rmdir(&mut self, path: &str) {
        let Some((parent, name)) = self.parent_of(path).await else { return };
        let below = format!("{path}/");
        let local_below = self.model.local_paths().any(|p| p.starts_with(&below));
        let remote = self.model.is_remote_directory(path);
        let marked = self.model.keys.keys().filter(|key| key.starts_with(&below)).eq([&below]);
        let removed = self.table.rmdir(parent, OsStr::new(name), true).await;
        match (self.model.walk(path), removed.as_ref().map_err(Error::kind)) {
            (Some(View::Directory), Ok(())) => {
                assert!((!remote || marked) && !local_below, "{path}");
                self.model.local_directories.remove(path);
                if marked {
                    self.model.remove(&below, path);
                }
            }
            (Some(View::Directory), Err(ErrorKind::NotEmpty)) => assert!(local_below, "{path}"),
            (Some(View::Directory), Err(ErrorKind::NotPermitted(_))) => assert!(remote && !marked, "{path}"),
            (Some(View::File(_)), Err(ErrorKind::NotADirectory)) => {}
            // The directory went with its last key, which another client removed, and the kernel knew the directory.
            (None, Ok(())) => {}
            (None, Err(ErrorKind::NotFound | ErrorKind::NotADirectory)) => {}
            (view, removed) => panic!("rmdir {path}: {view:?} {removed:?}"),
        }
        self.compare_keys();
    }

    async fn unlink(&mut self, path: &str) {
        let Some((parent, name)) = self.parent_of(path).await else { return };
        let writing = self.writers.iter().any(|(other, _)| other == path);
        let removed = self.table.unlink(parent, OsStr::new(name), true).await;
        match (self.model.walk(path), removed.as_ref().map_err(Error::kind)) {
            (Some(View::File(_)), Ok(Unlinked::Busy { .. })) => assert!(writing, "{path}"),
            (Some(View::File(_)), Ok(Unlinked::Gone)) => {
                assert!(!writing, "{path}");
                if self.model.local_files.remove(path).is_none() {
                    self.model.remove(path, path);
                }
            }
            (Some(View::Directory), Err(ErrorKind::IsADirectory)) => {}
            (None, Err(ErrorKind::NotFound | ErrorKind::NotADirectory)) => {}
            (view, removed) => panic!("unlink {path}: {view:?} {removed:?}"),
        }
        self.compare_keys();
    }

    fn compare_keys(&self) {
        assert_eq!(self.client.keys(), self.model.keys.keys().cloned().collect::<Vec<_>>());
    }

    async fn start_writing(&mut self, path: &str) {
        let Some(ino) = self.resolve(path).await else {
            assert_eq!(self.model.walk(path), None, "{path}");
            return;
        };
        let wish = WriteWish { truncate: true, append: false, allow_overwrite: true, allow_append: false };
        let writing = self.writers.iter().any(|(other, _)| other == path);
        match (self.model.walk(path), self.table.open_write(ino, 7, wish).await) {
            (Some(View::File(_)), Ok(OpenWrite::Granted { key, .. })) => {
                assert!(!writing && key.as_str() == path);
                self.model.local_files.insert(path.to_string(), 0);
                self.writers.push((path.to_string(), ino));
            }
            (Some(View::File(_)), Ok(OpenWrite::Busy { writer: 7 })) => assert!(writing, "{path}"),
            (Some(View::Directory), Err(error)) => {
                assert!(matches!(error.kind(), ErrorKind::IsADirectory), "{error}");
            }
            (view, other) => panic!("write {path}: {view:?} {other:?}"),
        }
    }

    fn finish(&mut self, writer: usize, commit: bool) {
        if writer >= self.writers.len() {
            return;
        }
        let (path, ino) = self.writers.remove(writer);
        self.model.local_files.remove(&path);
        if commit {
            self.store(&path);
            self.table.commit_write(ino, self.client.meta(&path).expect("just stored"));
            self.model.store(&path, self.versions);
        } else {
            self.table.abandon_write(ino);
        }
        self.seen.remove(&ino);
    }

    /// Compares every path and every directory in the table with the rules.
    async fn compare(&mut self) {
        if self.expire {
            self.clock.advance(Duration::from_secs(3600));
        }
        let mut directories = vec![(String::new(), ROOT)];
        // Directories are listed in the order of a walk.
        while let Some((path, ino)) = directories.pop() {
            let mut deeper = Vec::new();
            for name in NAMES {
                let below = if path.is_empty() { name.to_string() } else { format!("{path}/{name}") };
                let found = match self.lookup(ino, name).await {
                    Ok(found) => Some(found),
                    Err(error) if matches!(error.kind(), ErrorKind::NotFound) => None,
                    Err(error) => panic!("{below}: {error}"),
                };
                assert_eq!(found.map(|(_, view)| view), self.model.view(&below), "lookup {below}");
                match found {
                    Some((ino, View::Directory)) => deeper.push((below, ino)),
                    Some((ino, View::File(size))) => self.compare_file(&below, ino, size).await,
                    None => {}
                }
            }
            self.compare_listing(&path, ino).await;
            directories.extend(deeper.into_iter().rev());
        }
    }

    async fn compare_file(&mut self, path: &str, ino: InodeNo, size: u64) {
        if self.model.local_files.contains_key(path) {
            return;
        }
        assert_eq!(*self.seen.entry(ino).or_insert(size), size, "{path}: one inode, two versions");
        match self.table.open_read(ino, false).await.unwrap() {
            OpenRead::Object { id, size: opened, .. } => {
                assert_eq!((id.key.as_str(), opened), (path, size));
                assert_eq!(Some(id.etag), self.client.meta(path).map(|meta| meta.etag));
                self.table.close_read(ino);
            }
            busy => panic!("{path}: {busy:?}"),
        }
    }

    async fn compare_listing(&mut self, path: &str, ino: InodeNo) {
        let listing = self.table.opendir(ino).await.unwrap();
        let (mut offset, mut listed) = (0, BTreeMap::new());
        loop {
            let entries = match listing.try_entries(&self.table, offset, 2) {
                Some(entries) => entries.unwrap(),
                None => listing.entries(&self.table, offset, 2).await.unwrap(),
            };
            let Some(last) = entries.last() else { break };
            assert!(last.offset > offset, "a listing moves on");
            offset = last.offset;
            for entry in entries {
                let name = entry.name().to_string();
                let view = match entry.stat.kind {
                    Kind::Directory => View::Directory,
                    Kind::File => View::File(entry.stat.size),
                    Kind::Link => unreachable!("names know no links"),
                };
                if name != "." && name != ".." {
                    let found = self.table.remember(ino, &entry);
                    self.held.push(found.ino);
                    assert_eq!(found.ino, entry.ino, "{path}/{name}");
                }
                assert_eq!(listed.insert(name.clone(), view), None, "{path}/{name} is listed twice");
            }
        }
        assert!(listed.remove(".").is_some() && listed.remove("..").is_some());
        assert_eq!(listed, self.model.list(path), "listing of {path:?}");
    }

    /// Drops all references, and asserts that no inode is left.
    async fn end(mut self) {
        while !self.writers.is_empty() {
            self.finish(0, false);
        }
        let everything: Vec<String> = self.model.keys.keys().cloned().collect();
        for key in everything {
            self.client.remove(&key);
        }
        self.model.keys.clear();
        if !self.model.look() {
            return;
        }
        self.compare().await;
        let files: Vec<String> = self.model.local_files.keys().cloned().collect();
        for path in files {
            self.unlink(&path).await;
        }
        let directories: Vec<String> = self.model.local_directories.iter().rev().cloned().collect();
        for path in directories {
            self.rmdir(&path).await;
        }
        assert_eq!(self.model.local_paths().count(), 0);
        self.forget_all();
        assert_eq!(self.table.len(), 1, "an inode lives though nobody refers to it");
    }
}

fn run(ttl: Ttl, expire: bool, start: &[usize], steps: Vec<Step>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async move {
        let mut world = World::new(ttl, expire);
        for &key in start {
            world.step(Step::Put(key)).await;
        }
        world.compare().await;
        for step in steps {
            let others = matches!(step, Step::Put(_) | Step::Delete(_));
            if others && !expire {
                continue;
            }
            world.step(step).await;
            if !world.model.look() {
                return;
            }
            world.compare().await;
        }
        world.expire = true;
        if ttl != Ttl::Indefinite {
            world.end().await;
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn names_follow_the_rules_while_the_store_changes_underneath(
        steps in steps(),
        ttl in prop_oneof![
            Just(Ttl::Minimal),
            Just(Ttl::For { found: Duration::from_secs(60), missing: Duration::from_secs(60) }),
        ],
    ) {
        run(ttl, true, &[], steps);
    }

    /// Nobody else writes, so nothing that memory answers may ever be wrong, however old.
    #[test]
    fn memory_is_exact_while_only_this_mount_writes(
        start in prop::collection::vec(0..KEYS.len(), 0..8),
        steps in steps(),
        ttl in prop_oneof![
            Just(Ttl::Indefinite),
            Just(Ttl::Minimal),
            Just(Ttl::For { found: Duration::from_secs(3000), missing: Duration::from_secs(60) }),
        ],
    ) {
        run(ttl, false, &start, steps);
    }
}
