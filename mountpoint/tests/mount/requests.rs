//! The cost for a user: the number of requests of common operations.

use std::fs::{self, File};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use s3server::{Effect, Fault};

use super::semantics::assert_errno;
use crate::common::{Pattern, Setup, Store, TestMount, until};

const FILES: u64 = 20;
const LEN: usize = 100 << 10;

fn store() -> std::sync::Arc<Store> {
    let store = Store::new();
    for i in 0..FILES {
        store.plant(&format!("files/{i}"), &Pattern(i).bytes(0, LEN));
    }
    store
}

/// Makes a folder so long that its names do not come with its first look-up.
fn lengthen(store: &Store, folder: &str) {
    (0..40).for_each(|n| store.plant(&format!("{folder}/further-{n}"), b"1"));
}

fn read(mount: &TestMount, i: u64) {
    let bytes = fs::read(mount.path(&format!("files/{i}"))).unwrap();
    assert!(bytes.len() == LEN && Pattern(i).is(0, &bytes));
}

#[test]
fn a_cold_small_file_takes_three_requests() {
    let store = store();
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let (mut gets, mut costs): (Vec<u64>, Vec<u64>) = (0..FILES)
        .map(|i| {
            store.requests().reset();
            read(&mount, i);
            (store.requests().count("GetObject"), store.requests().total())
        })
        .unzip();
    gets.sort_unstable();
    costs.sort_unstable();
    // HEAD and LIST for the name, GET for the bytes. The medians: on a machine that stands still between a look-up and its open, or for
    // longer than a folder's second, some names are asked for again, and so are the first bytes if they came with the look-up.
    assert!(gets[gets.len() / 2] == 1 && costs[costs.len() / 2] <= 3, "{gets:?} {costs:?}");
}

#[test]
fn cold_files_that_are_read_one_after_another_take_one_round_trip_each() {
    const MANY: u64 = 60;
    let store = Store::new();
    for i in 0..MANY {
        // Each in a folder of its own: no listing tells of them.
        store.plant(&format!("d{i}/file"), &Pattern(i).bytes(0, LEN));
        lengthen(&store, &format!("d{i}"));
    }
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let costs: Vec<(u64, u64, u64)> = (0..MANY)
        .map(|i| {
            fs::metadata(mount.path(&format!("d{i}"))).unwrap();
            store.requests().reset();
            let bytes = fs::read(mount.path(&format!("d{i}/file"))).unwrap();
            assert!(bytes.len() == LEN && Pattern(i).is(0, &bytes));
            let count = |name| store.requests().count(name);
            (count("GetObject"), count("HeadObject"), count("ListObjectsV2"))
        })
        .collect();
    // The first ones teach; a machine that stands still for 20 ms may ask for a name again.
    let mut learned = costs[MANY as usize / 2..].to_vec();
    learned.sort_unstable();
    assert_eq!(learned[learned.len() / 2], (1, 0, 1), "{costs:?}");
}

#[test]
fn a_cold_file_of_a_short_folder_costs_no_look_up_of_its_name() {
    const FOLDERS: u64 = 9;
    let store = Store::new();
    for (i, name) in (0..FOLDERS).flat_map(|i| ["file", "other", "sub/file"].map(|name| (i, name))) {
        store.plant(&format!("d{i}/{name}"), &Pattern(i).bytes(0, LEN));
    }
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let mut costs: Vec<_> = (0..FOLDERS)
        .map(|i| {
            store.requests().reset();
            let bytes = fs::read(mount.path(&format!("d{i}/file"))).unwrap();
            assert!(bytes.len() == LEN && Pattern(i).is(0, &bytes));
            let count = |name| store.requests().count(name);
            (count("GetObject"), count("HeadObject"), count("ListObjectsV2"))
        })
        .collect();
    // HEAD and LIST for the folder, or a page of all folders; then the open with the bytes. A machine that stands still for a tenth of a
    // second asks for the name.
    costs.sort_unstable();
    assert!(costs[costs.len() / 2] <= (1, 1, 1), "{costs:?}");
}

#[test]
fn a_second_open_of_tables_of_one_make_brings_the_column() {
    use std::os::unix::fs::FileExt as _;
    const TABLES: u64 = 12;
    const LONG: usize = 3 << 20;
    let store = Store::new();
    let table = |i: u64| Pattern(i).bytes(0, LONG);
    (0..TABLES).for_each(|i| store.plant(&format!("tables/{i:02}.parquet"), &table(i)));
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let mut costs: Vec<_> = (0..TABLES)
        .map(|i| {
            // A listing of this moment names the table.
            assert_eq!(fs::read_dir(mount.path("tables")).unwrap().count() as u64, TABLES);
            store.requests().reset();
            let read = |at: usize, len: usize| {
                let file = File::open(mount.path(&format!("tables/{i:02}.parquet"))).unwrap();
                let mut bytes = vec![0; len];
                file.read_exact_at(&mut bytes, at as u64).unwrap();
                assert!(bytes == table(i)[at..at + len], "{i}");
                file
            };
            let _footer = read(LONG - 16_384, 16_384);
            let _column = read(1_000_000, 32_843);
            (store.requests().count("HeadObject"), store.requests().count("GetObject"))
        })
        .collect();
    costs.sort_unstable();
    assert_eq!(costs[costs.len() / 2], (0, 2), "{costs:?}");
}

#[test]
fn tables_of_a_listing_read_from_their_footers_take_one_request_each() {
    use std::io::{Read as _, Seek as _, SeekFrom};
    const TABLES: u64 = 20;
    const LONG: usize = 3 << 20;
    let store = Store::new();
    let table = |i: u64| Pattern(i).bytes(0, LONG);
    (0..TABLES).for_each(|i| store.plant(&format!("tables/{i}.parquet"), &table(i)));
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--metadata-ttl", "600"])) else { return };
    assert_eq!(fs::read_dir(mount.path("tables")).unwrap().count() as u64, TABLES);
    let footer = |i: u64, table: &[u8]| {
        let mut file = File::open(mount.path(&format!("tables/{i}.parquet"))).unwrap();
        for back in [8, 40_000] {
            file.seek(SeekFrom::End(-back)).unwrap();
            let mut bytes = vec![0; back as usize];
            file.read_exact(&mut bytes).unwrap();
            assert!(bytes == table[LONG - back as usize..], "{i}");
        }
    };
    store.requests().reset();
    (0..TABLES).for_each(|i| footer(i, &table(i)));
    assert_eq!(store.requests().total(), TABLES, "{:?}", store.requests().all());
    let sent = store.requests().bytes_sent();
    assert!(sent <= TABLES * (160 << 10), "{} KiB for {TABLES} footers", sent >> 10);
}

#[test]
fn tables_of_one_make_bring_the_column_beside_the_tail() {
    use std::os::unix::fs::FileExt as _;
    const TABLES: u64 = 8;
    const LONG: usize = 3 << 20;
    let store = Store::new();
    let table = |i: u64| Pattern(i).bytes(0, LONG);
    (0..TABLES).for_each(|i| store.plant(&format!("tables/{i}.parquet"), &table(i)));
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--metadata-ttl", "600"])) else { return };
    assert_eq!(fs::read_dir(mount.path("tables")).unwrap().count() as u64, TABLES);
    let read = |i: u64, at: usize, len: usize| {
        let file = File::open(mount.path(&format!("tables/{i}.parquet"))).unwrap();
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, at as u64).unwrap();
        assert!(bytes == table(i)[at..at + len], "{i}");
        file
    };
    let query = |i: u64| {
        let _footer = read(i, LONG - 16_384, 16_384);
        read(i, 1_000_000, 32_843)
    };
    store.requests().reset();
    (0..TABLES - 1).for_each(|i| drop(query(i)));
    // No answer comes before both were asked for.
    store.faults().add(Fault::on("GetObject", Effect::Hold));
    std::thread::scope(|scope| {
        scope.spawn(|| query(TABLES - 1));
        until("tail and column were asked for", || store.requests().count("GetObject") == 2 * TABLES);
        store.faults().release();
    });
    store.faults().clear();
    assert_eq!(store.requests().total(), 2 * TABLES, "{:?}", store.requests().all());
}

#[test]
fn sixteen_names_of_a_directory_opened_at_once_share_a_page() {
    const NAMES: u64 = 16;
    const ROUNDS: u64 = 5;
    let store = Store::new();
    for (round, i) in (0..ROUNDS).flat_map(|round| (0..NAMES).map(move |i| (round, i))) {
        store.plant(&format!("d{round}/chunk-{i}"), &Pattern(i).bytes(0, LEN));
    }
    (0..ROUNDS).for_each(|round| lengthen(&store, &format!("d{round}")));
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let mut costs: Vec<_> = (0..ROUNDS)
        .map(|round| {
            fs::metadata(mount.path(&format!("d{round}"))).unwrap();
            store.requests().reset();
            // The first name's HEAD is answered once all others were read.
            store.faults().add(Fault::on("HeadObject", Effect::Hold).times(1));
            let read = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for i in 0..NAMES {
                    let (mount, read) = (&mount, &read);
                    scope.spawn(move || {
                        let bytes = fs::read(mount.path(&format!("d{round}/chunk-{i}"))).unwrap();
                        assert!(bytes.len() == LEN && Pattern(i).is(0, &bytes), "{i}");
                        read.fetch_add(1, Ordering::Relaxed);
                    });
                }
                until("all but the first were read", || read.load(Ordering::Relaxed) >= NAMES - 1);
                store.faults().release();
            });
            store.faults().clear();
            let count = |name| store.requests().count(name);
            (count("GetObject"), count("HeadObject"), count("ListObjectsV2"))
        })
        .collect();
    // The page of the first directory paid, so each other one costs a page and no HEAD. A machine that stands still for a second asks again.
    costs.sort_unstable();
    assert_eq!(costs[costs.len() / 2], (NAMES, 0, 1), "{costs:?}");
}

#[test]
fn chunks_of_an_array_that_are_read_whole_take_one_get_each() {
    const CHUNKS: u64 = 12;
    const LONG: usize = 1 << 20;
    let store = Store::new();
    // Half of the names have an ending of their own, which nothing taught before.
    let name = |i: u64| if i.is_multiple_of(2) { format!("c/{i}") } else { format!("c/{i}.e{i}") };
    (0..CHUNKS).for_each(|i| store.plant(&name(i), &Pattern(i).bytes(0, LONG)));
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let mut costs: Vec<_> = (0..CHUNKS)
        .map(|i| {
            // The listing names the file, and the open asks for its present version.
            assert_eq!(fs::read_dir(mount.path("c")).unwrap().count() as u64, CHUNKS);
            store.requests().reset();
            assert!(fs::read(mount.path(&name(i))).unwrap() == Pattern(i).bytes(0, LONG));
            store.requests().count("GetObject")
        })
        .collect();
    costs.sort_unstable();
    assert!(costs[costs.len() * 3 / 4] == 1, "the head with the open, and then the rest: {costs:?}");
}

#[test]
fn a_cold_table_opened_by_name_brings_its_tail_with_its_attributes() {
    use std::os::unix::fs::FileExt as _;
    const TABLES: u64 = 11;
    const LONG: usize = 3 << 20;
    let store = Store::new();
    let table = |i: u64| Pattern(i).bytes(0, LONG);
    for i in 0..TABLES {
        store.plant(&format!("dir{i}/a.parquet"), &table(i));
        lengthen(&store, &format!("dir{i}"));
    }
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let costs: Vec<_> = (0..TABLES)
        .map(|i| {
            // The directory may cost a page of its parent, or a HEAD and a LIST.
            fs::metadata(mount.path(&format!("dir{i}"))).unwrap();
            store.requests().reset();
            let file = File::open(mount.path(&format!("dir{i}/a.parquet"))).unwrap();
            for back in [8, 40_000] {
                let mut bytes = vec![0; back];
                file.read_exact_at(&mut bytes, (LONG - back) as u64).unwrap();
                assert!(bytes == table(i)[LONG - back..], "{i}");
            }
            let count = |name| store.requests().count(name);
            (count("GetObject"), count("HeadObject"), count("ListObjectsV2"), store.requests().bytes_sent())
        })
        .collect();
    // A machine that stands still for 20 ms asks again.
    let mut counts: Vec<_> = costs.iter().map(|&(get, head, list, _)| (get, head, list)).collect();
    counts.sort_unstable();
    assert_eq!(counts[counts.len() / 2], (1, 0, 1), "{costs:?}");
    let mut bytes: Vec<_> = costs.iter().map(|cost| cost.3).collect();
    bytes.sort_unstable();
    assert!(bytes[bytes.len() / 2] <= 132 << 10, "{costs:?}");
}

#[test]
fn an_open_shows_the_tail_that_another_client_has_stored_since() {
    use std::os::unix::fs::FileExt as _;
    const LONG: usize = 3 << 20;
    let store = Store::new();
    store.plant("tables/a.parquet", &Pattern(1).bytes(0, LONG));
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    // Versions of the same length, shorter and longer ones, and one that is shorter than the tail.
    for (n, long) in
        [LONG, LONG, LONG + 5000, LONG - 5000, 100 << 10, 10, LONG, LONG, 9].into_iter().enumerate()
    {
        let bytes = Pattern(n as u64 + 2).bytes(0, long);
        store.plant("tables/a.parquet", &bytes);
        // Known by a listing, or by its name alone.
        if n % 2 == 0 {
            fs::read_dir(mount.path("tables")).unwrap().count();
        }
        // The second open brings no tail: the kernel has it.
        for open in 0..2 {
            let file = File::open(mount.path("tables/a.parquet")).unwrap();
            let mut end = vec![0; 8];
            file.read_exact_at(&mut end, long as u64 - 8).unwrap();
            assert!(end == bytes[long - 8..], "{n}, open {open}");
        }
        assert!(fs::read(mount.path("tables/a.parquet")).unwrap() == bytes, "{n}: all of it");
    }
}

#[test]
fn a_file_of_a_few_mib_that_is_read_at_once_takes_two_requests_for_bytes() {
    const FILES: u64 = 9;
    for long in [2 << 20, 5 << 20] {
        let store = Store::new();
        (0..FILES).for_each(|i| store.plant(&format!("{i}"), &Pattern(i).bytes(0, long)));
        let Some(mount) = TestMount::of(&store, &Setup::new(&["--metadata-ttl", "600"])) else { return };
        let mut costs: Vec<_> = (0..FILES)
            .map(|i| {
                let file = mount.path(&format!("{i}"));
                fs::metadata(&file).unwrap();
                store.requests().reset();
                assert!(fs::read(&file).unwrap() == Pattern(i).bytes(0, long));
                store.requests().count("GetObject")
            })
            .collect();
        // One request at the open or for the first missing bytes, and one for the rest. On a busy machine the kernel's second read may come
        // before the first, and costs one more.
        costs.sort_unstable();
        assert!(costs[costs.len() / 2] <= 2, "{long} bytes: {costs:?}");
    }
}

#[test]
fn a_small_file_of_a_listing_takes_one_request_while_names_are_trusted() {
    let store = store();
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--metadata-ttl", "600"])) else { return };
    assert_eq!(fs::read_dir(mount.path("files")).unwrap().count() as u64, FILES);
    store.requests().reset();
    (0..FILES).for_each(|i| read(&mount, i));
    assert_eq!(store.requests().total(), FILES, "{:?}", store.requests().all());
}

#[test]
fn programs_that_look_at_each_file_of_a_directory_cost_a_few_listings() {
    const MANY: u64 = 3000;
    let store = Store::new();
    let folder = store.bucket_folder().join("many");
    fs::create_dir_all(&folder).unwrap();
    for i in 0..MANY {
        fs::write(folder.join(format!("{i:06}")), "1").unwrap();
    }
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let dir = mount.path("many");
    let dir = dir.to_str().unwrap();
    for (program, args) in
        [("ls", vec!["-l", dir]), ("du", vec!["--apparent-size", dir]), ("find", vec![dir, "-size", "-2c"])]
    {
        store.requests().reset();
        let output = std::process::Command::new(program).args(&args).output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        // Three pages; again for those that a slow machine comes to after their second. Each file alone would cost two requests.
        let cost = store.requests().total();
        assert!(cost <= MANY / 10, "{program}: {cost} requests, {:?}", store.requests().all());
    }
    // Without a listing, too, and in any order.
    store.requests().reset();
    for i in 0..MANY {
        assert_eq!(fs::metadata(mount.path(&format!("many/{:06}", i * 1237 % MANY))).unwrap().len(), 1);
    }
    assert!(store.requests().total() <= MANY / 4, "{} requests", store.requests().total());
}

#[test]
fn a_file_created_where_nothing_is_known_to_be_costs_one_request() {
    let store = store();
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--metadata-ttl", "600"])) else { return };
    // The mount knows the names by a listing, and by an earlier look-up.
    fs::read_dir(mount.path("files")).unwrap().for_each(drop);
    assert!(fs::metadata(mount.path("early")).is_err());
    for name in ["files/new", "early"] {
        store.requests().reset();
        fs::write(mount.path(name), [b'x'; 4096]).unwrap();
        assert_eq!(
            store.requests().total(),
            store.requests().count("PutObject"),
            "{:?}",
            store.requests().all()
        );
        assert_eq!(store.requests().total(), 1, "{:?}", store.requests().all());
        assert_eq!(store.get(name).unwrap(), [b'x'; 4096]);
    }
}

#[test]
fn of_two_mounts_that_make_a_file_one_hears_that_it_exists() {
    let store = Store::new();
    let Some(first) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let Some(second) = TestMount::of(&store, &Setup::new(&[])) else { return };
    // The small file is stored by one request, the large one in parts.
    for (name, len) in [("small", 4096), ("large", 20 << 20)] {
        let mut files = [&first, &second].map(|mount| File::create_new(mount.path(name)).unwrap());
        for (file, letter) in files.iter_mut().zip([b'1', b'2']) {
            file.write_all(&vec![letter; len]).unwrap();
        }
        files[0].sync_all().unwrap();
        assert_errno(files[1].sync_all(), Errno::EXIST);
        drop(files);
        assert_eq!(store.get(name).unwrap(), vec![b'1'; len]);
    }
}

#[test]
fn a_file_stored_by_others_within_the_ttl_needs_allow_overwrite() {
    let store = Store::new();
    store.plant("dir/file", b"1");
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--metadata-ttl", "600"])) else { return };
    fs::read_dir(mount.path("dir")).unwrap().for_each(drop);
    // The small file is stored by one request, the large one in parts.
    for (name, len) in [("dir/small", 4096), ("dir/large", 20 << 20)] {
        store.put(name, "another client's");
        let mut file = File::create_new(mount.path(name)).unwrap();
        file.write_all(&vec![b'x'; len]).unwrap();
        assert_errno(file.sync_all(), Errno::EXIST);
        drop(file);
        assert_eq!(store.get(name).unwrap(), b"another client's");
        assert_eq!(fs::read(mount.path(name)).unwrap(), b"another client's");
    }
}
