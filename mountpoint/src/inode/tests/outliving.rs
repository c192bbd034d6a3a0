//! A table that follows another one on the same mount, as after the engine was killed.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::outlive::{self, Identity, Journal};

/// The table of an engine that continues with a journal.
fn after(bench: &Bench, journal: &Arc<Journal>) -> (Bench, Arc<Journal>) {
    let shared = journal.shared().try_clone_to_owned().unwrap();
    // The next engine gets a copy of the journal: the first engine still holds the lock, because it is not really dead.
    let (journal, restored) = Journal::adopt(outlive::testing::copy(&shared)).unwrap();
    let journal = Arc::new(journal);
    let config = bench.table.0.config.clone();
    let asker = Asker::of_attributes(bench.client.clone().arc());
    let table = InodeTable::new(asker, config, bench.clock.clone(), Arc::clone(&bench.metrics));
    let outlive::Restored { directories, files, listings } = restored;
    let (_, rest) = table.outlive(&journal, directories, (&files, &listings));
    table.take_in(rest, || ());
    let (client, clock, metrics) = (bench.client.clone(), bench.clock.clone(), Arc::clone(&bench.metrics));
    (Bench { client, table, clock, metrics }, journal)
}

fn supervised(keys: &[&str]) -> (Bench, Arc<Journal>) {
    let bench = Bench::new(Ttl::Minimal, keys);
    let journal = Arc::new(Journal::create(Identity::default()).unwrap());
    let (_, rest) = bench.table.outlive(&journal, Vec::new(), (&[], &[]));
    bench.table.take_in(rest, || ());
    (bench, journal)
}

#[tokio::test]
async fn directories_keep_their_numbers_and_new_numbers_are_no_old_ones() {
    let (bench, journal) = supervised(&["a/b/file", "c"]);
    let a = bench.lookup(ROOT, "a").await.unwrap();
    let b = bench.lookup(a.ino, "b").await.unwrap();
    let file = bench.lookup(b.ino, "file").await.unwrap();
    let made = bench.table.mkdir(b.ino, OsStr::new("made")).await.unwrap();
    let (next, _) = after(&bench, &journal);
    assert_eq!(next.table.directories(), bench.table.directories());
    assert_eq!(next.lookup(ROOT, "a").await.unwrap().ino, a.ino);
    assert_eq!(next.lookup(a.ino, "b").await.unwrap().ino, b.ino);
    assert_eq!(next.lookup(b.ino, "made").await.unwrap().ino, made.ino);
    assert_eq!(next.table.key_of(made.ino).unwrap().as_str(), "a/b/made/");
    assert_error!(next.table.getattr(file.ino).await, ErrorKind::Stale);
    let again = next.lookup(b.ino, "file").await.unwrap().ino;
    assert!(again > made.ino, "{again:?}");
    // The number of references from the earlier engine is unknown: the kernel returns more than this engine gave out.
    next.table.forget(again, 1);
    next.table.forget(made.ino, 3);
    next.table.forget(b.ino, 2);
    assert!(next.table.key_of(b.ino).is_some(), "what is made in it is not stored");
    next.table.rmdir(b.ino, OsStr::new("made"), true).await.unwrap();
    assert!(next.table.key_of(b.ino).is_none());
}

#[tokio::test]
async fn a_file_that_is_open_keeps_its_number_while_its_version_is_the_same() {
    for changes in [false, true] {
        let (bench, journal) = supervised(&["d/file"]);
        let d = bench.lookup(ROOT, "d").await.unwrap().ino;
        let file = bench.lookup(d, "file").await.unwrap().ino;
        let OpenRead::Object { id, size, .. } = bench.table.open_read(file, false).await.unwrap() else {
            panic!("it is stored")
        };
        let (parent, name, meta) = bench.table.whereabouts(file).unwrap();
        let record = outlive::File {
            handle: 1,
            ino: file.0,
            parent: parent.0,
            name,
            etag: meta.etag.as_str().into(),
            size: meta.size,
            modified: meta.last_modified,
            passthrough: None,
            direct: false,
            may_write: false,
            refused: false,
            asked: None,
        };
        journal.raise(outlive::Mark::Handles, 1);
        journal.record(&outlive::Record::File(record));
        if changes {
            bench.client.insert("d/file", "other content");
        }
        let (next, _) = after(&bench, &journal);
        assert_eq!(next.table.readers(file), 1);
        assert_eq!(next.table.stored(file), Some(id));
        assert_eq!(next.table.getattr(file).await.unwrap().size, size, "a handle sees its version");
        assert_eq!(next.lookup(d, "file").await.unwrap().ino == file, !changes);
        if !changes {
            let opened = next.table.open_read(file, false).await.unwrap();
            let OpenRead::Object { keep_cache, .. } = opened else { panic!("it is stored") };
            assert!(!keep_cache, "the kernel's pages may hold a change that was refused");
        }
    }
}

/// Goal: a program that reads waits only for what its read needs.
#[tokio::test]
async fn what_open_files_need_is_there_before_the_other_directories() {
    let bench = Bench::new(Ttl::Minimal, &["a/b/file", "a/c/x", "d/e/f/y"]);
    let journal = Arc::new(Journal::create(Identity::default()).unwrap());
    let directory = |number, parent, name: &str| outlive::Directory {
        number,
        parent,
        name: name.into(),
        standing: outlive::Standing::Remote,
        held: true,
    };
    // Two are called b: the engine was killed after it had recorded the later one.
    let directories =
        [(2, 1, "a"), (4, 1, "d"), (3, 2, "b"), (5, 2, "c"), (6, 2, "b"), (7, 4, "e"), (8, 7, "f")];
    let mut directories = directories.map(|(number, parent, name)| directory(number, parent, name)).to_vec();
    directories.push(outlive::Directory { standing: outlive::Standing::Local, ..directory(10, 7, "made") });
    let file = outlive::File {
        handle: 1,
        ino: 9,
        parent: 6,
        name: "file".into(),
        etag: "\"e\"".into(),
        size: 1,
        modified: std::time::SystemTime::UNIX_EPOCH,
        passthrough: None,
        direct: false,
        may_write: false,
        refused: false,
        asked: None,
    };
    let listing = outlive::Listing { handle: 1, ino: 7, places: Default::default(), asked: None };
    journal.raise(outlive::Mark::Inodes, 11);
    let (versions, rest) = bench.table.outlive(&journal, directories, (&[file], &[listing]));
    assert_eq!(versions[0].as_ref().map(|id| id.key.as_str()), Some("a/b/file"));
    let known =
        || (2..11).filter(|number| bench.table.key_of(InodeNo(*number)).is_some()).collect::<Vec<_>>();
    assert_eq!(known(), [2, 4, 6, 7, 9, 10]);
    bench.table.take_in(rest, || ());
    assert_eq!(known(), [2, 3, 4, 5, 6, 7, 8, 9, 10]);
    assert_eq!(bench.lookup(InodeNo(2), "b").await.unwrap().ino, InodeNo(6), "the later of two has the name");
    assert_eq!(bench.lookup(InodeNo(7), "f").await.unwrap().ino, InodeNo(8));
    assert!(bench.lookup(ROOT, "a").await.unwrap().ino == InodeNo(2) && bench.table.readers(InodeNo(9)) == 1);
}

/// Reads a listing in pieces of `piece` names, each by another engine.
async fn in_pieces(bench: &Bench, journal: &Arc<Journal>, piece: usize, asks_again: bool) -> Vec<String> {
    let runtime = tokio::runtime::Handle::current();
    let mut places = [outlive::Place::default(), outlive::Place::default()];
    let mut names = Vec::new();
    loop {
        let (next, _) = after(bench, journal);
        let listing = next.table.reopen(ROOT, places.clone(), runtime.clone()).unwrap();
        let from = places[1].offset;
        let mut entries = listing.entries(&next.table, from, piece).await.unwrap();
        if asks_again {
            // The answer did not reach the kernel, but its place is recorded.
            let last = entries.last().map(|it| (it.offset, it.name().to_owned()));
            let Some((offset, name)) = last else { return names };
            let name = if offset > 2 { name } else { String::new() };
            let later = outlive::Place { offset, name: name.into() };
            let (next, _) = after(bench, journal);
            let listing = next.table.reopen(ROOT, [places[1].clone(), later], runtime.clone()).unwrap();
            entries = listing.entries(&next.table, from, piece).await.unwrap();
        }
        let Some(last) = entries.last() else { return names };
        let name = if last.offset > 2 { last.name() } else { "" };
        places = [places[1].clone(), outlive::Place { offset: last.offset, name: name.into() }];
        names
            .extend(entries.iter().map(|it| it.name().to_owned()).filter(|name| name != "." && name != ".."));
    }
}

#[tokio::test]
async fn an_offset_that_another_engine_gave_out_long_ago_is_stale() {
    let (bench, journal) = supervised(&["a", "b", "c", "d"]);
    let (next, _) = after(&bench, &journal);
    let place = |offset, name: &str| outlive::Place { offset, name: name.into() };
    let listing =
        next.table.reopen(ROOT, [place(4, "b"), place(5, "c")], tokio::runtime::Handle::current()).unwrap();
    assert_error!(listing.entries(&next.table, 3, 10).await, ErrorKind::Stale);
    let rest = listing.entries(&next.table, 5, 10).await.unwrap();
    assert_eq!(rest.iter().map(DirEntry::name).collect::<Vec<_>>(), ["d"]);
    let (mut whole, mut from) = (0, 0);
    while let Some(last) = listing.entries(&next.table, from, 10).await.unwrap().last() {
        whole += last.offset - from;
        from = last.offset;
    }
    assert_eq!(whole, 6, "from the start everything is listed");
}

/// A change of names, in the mount or in the store.
#[derive(Clone, Debug)]
enum Step {
    Lookup(u8, u8),
    Mkdir(u8, u8),
    Rmdir(u8, u8),
    Store(u8, u8),
    Remove(u8),
    Forget(u8),
    Later,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let two = || (any::<u8>(), 0u8..4);
    let step = prop_oneof![
        4 => two().prop_map(|(at, name)| Step::Lookup(at, name)),
        3 => two().prop_map(|(at, name)| Step::Mkdir(at, name)),
        1 => two().prop_map(|(at, name)| Step::Rmdir(at, name)),
        2 => two().prop_map(|(at, name)| Step::Store(at, name)),
        1 => any::<u8>().prop_map(Step::Remove),
        2 => any::<u8>().prop_map(Step::Forget),
        1 => Just(Step::Later),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(15))]

    /// A model of the kernel: it holds each directory that it looked up, and releases a directory only after the entries below.
    #[test]
    fn a_journal_says_after_any_operations_which_directories_the_kernel_holds(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (bench, journal) = supervised(&["a/x", "a/b/y", "c/z"]);
            // Number, references and parent of each held inode.
            let mut held: BTreeMap<InodeNo, (u64, InodeNo)> = BTreeMap::new();
            for step in steps {
                let directories: Vec<_> = std::iter::once(ROOT).chain(held.keys().copied()).collect();
                let at = |place: u8| directories[place as usize % directories.len()];
                let name = |name: u8| ["a", "b", "c", "d"][name as usize % 4];
                match step {
                    Step::Lookup(place, n) => {
                        if let Ok(found) = bench.lookup(at(place), name(n)).await {
                            if found.stat.kind == Kind::Directory {
                                held.entry(found.ino).or_insert_with(|| (0, at(place))).0 += 1;
                            } else {
                                bench.table.forget(found.ino, 1);
                            }
                        }
                    }
                    Step::Mkdir(place, n) => {
                        if let Ok(found) = bench.table.mkdir(at(place), OsStr::new(name(n))).await {
                            held.entry(found.ino).or_insert_with(|| (0, at(place))).0 += 1;
                        }
                    }
                    Step::Rmdir(place, n) => {
                        let _ = bench.table.rmdir(at(place), OsStr::new(name(n)), true).await;
                    }
                    Step::Store(place, n) => {
                        if let Some(key) = bench.table.key_of(at(place)) {
                            bench.client.insert(format!("{}{}/new", key.as_str(), name(n)), "content");
                        }
                    }
                    Step::Remove(n) => {
                        let keys = bench.client.keys();
                        if let Some(key) = keys.get(n as usize % keys.len().max(1)) {
                            bench.client.remove(key);
                        }
                    }
                    Step::Forget(n) => {
                        let parents: BTreeSet<_> = held.values().map(|(_, parent)| *parent).collect();
                        let leaves: Vec<_> = held.keys().copied().filter(|ino| !parents.contains(ino)).collect();
                        if let Some(ino) = leaves.get(n as usize % leaves.len().max(1)) {
                            let (count, _) = held.remove(ino).unwrap();
                            bench.table.forget(*ino, count);
                        }
                    }
                    Step::Later => bench.clock.advance(Duration::from_secs(2)),
                }
                let (next, _) = after(&bench, &journal);
                assert_eq!(next.table.directories(), bench.table.directories());
            }
            // After the kernel released everything to the next engine, only local entries are left there.
            let (next, journal) = after(&bench, &journal);
            for (ino, (count, _)) in held.iter().rev() {
                next.table.forget(*ino, *count);
            }
            let (last, _) = after(&next, &journal);
            assert!(last.table.directories().iter().all(|(_, _, _, local, _)| *local));
        });
    }

    #[test]
    fn a_listing_that_goes_on_with_every_engine_has_each_name_once(
        keys in prop::collection::btree_set("[-.0ab]{1,3}(/x)?", 1..25), piece in 1usize..6, again in any::<bool>()
    ) {
        let keys: Vec<_> = keys.iter().map(String::as_str).filter(|key| {
            let name = key.split('/').next().unwrap();
            name != "." && name != ".."
        }).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (bench, journal) = supervised(&keys);
            let names = in_pieces(&bench, &journal, piece, again).await;
            assert_eq!(names, bench.names(ROOT).await, "{keys:?}");
        });
    }
}
