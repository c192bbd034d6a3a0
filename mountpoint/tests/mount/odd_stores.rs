//! Stores whose answers differ from those of S3: never old, mixed or missing bytes, with and without a listing before, with and without a
//! cache. Each oddity is one that users of other clients reported.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;
use s3server::{Effect, EtagForm, Fault};

use super::semantics::assert_errno;
use crate::common::{Pattern, Setup, Store, TestMount, run, until};

const LEN: usize = 300_000;
const NAMES: [&str; 3] = ["dir/a", "dir/b", "dir/c"];

fn header(name: &str, value: Option<&str>) -> Effect {
    Effect::Header { name: name.to_owned(), value: value.map(str::to_owned) }
}

fn entry(element: &str, text: Option<&str>) -> Effect {
    Effect::Entry { key: None, element: element.to_owned(), text: text.map(str::to_owned) }
}

fn odd(faults: &[(&str, Effect)]) -> Vec<Fault> {
    faults.iter().map(|(operation, effect)| Fault::on(operation, effect.clone())).collect()
}

/// One fault for HEAD and GET.
fn answers(effect: &Effect) -> Vec<Fault> {
    odd(&[("HeadObject", effect.clone()), ("GetObject", effect.clone())])
}

/// Faults that give all objects one ETag, or none, in every answer.
fn one_etag(etag: &str) -> Vec<Fault> {
    let mut faults = answers(&header("etag", Some(etag)));
    let listed = etag.replace('"', "&quot;");
    faults.extend(odd(&[
        ("ListObjectsV2", entry("ETag", Some(&listed))),
        ("GetObject", Effect::IgnoreIfMatch),
        ("PutObject", header("etag", Some(etag))),
    ]));
    faults
}

/// Puts a file into the folder with a time this many seconds ago.
fn plant(store: &Store, name: &str, pattern: u64, ago: u64) {
    let bytes = Pattern(pattern).bytes(0, LEN);
    let (path, new) = (store.bucket_folder().join(name), store.bucket_folder().join("new"));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&new, &bytes).unwrap();
    let time = SystemTime::now() - Duration::from_secs(ago);
    File::options().write(true).open(&new).unwrap().set_modified(time).unwrap();
    fs::rename(new, path).unwrap();
}

/// The bytes of a file are of this version, and of no other.
fn is_read(mount: &TestMount, name: &str, pattern: u64, what: &str) {
    let bytes = fs::read(mount.path(name)).unwrap_or_else(|e| panic!("{what}, {name}: {e}\n{}", mount.log()));
    assert_eq!(bytes.len(), LEN, "{what}, {name}");
    assert!(Pattern(pattern).is(0, &bytes), "{what}: {name} has other bytes");
}

/// The ways in which each oddity is met: with and without a listing before, with and without a cache.
fn ways(store: &Arc<Store>, mut test: impl FnMut(&TestMount, bool, &str)) {
    for cached in [false, true] {
        for listed in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let mut options = Vec::new();
            if cached {
                options.extend(["--cache", folder.path().to_str().unwrap()]);
            }
            let Some(mount) = TestMount::of(store, &Setup::new(&options)) else { return };
            if listed {
                let names: BTreeSet<_> = fs::read_dir(mount.path("dir"))
                    .unwrap_or_else(|e| panic!("{e}: {}", mount.log()))
                    .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                    .collect();
                assert_eq!(names, ["a", "b", "c"].map(str::to_owned).into(), "{}", mount.log());
            }
            test(&mount, listed, &format!("cached: {cached}, listed: {listed}"));
        }
    }
}

/// All files are listed, read and copied under these oddities, each file keeps its inode, and a replaced file is read anew.
fn serves(what: &str, faults: &[Fault]) {
    let store = Store::new();
    for (name, pattern) in NAMES.iter().zip(1..) {
        plant(&store, name, pattern, 100);
    }
    for fault in faults {
        store.faults().add(fault.clone());
    }
    ways(&store, |mount, _, way| {
        let what = format!("{what}, {way}");
        for (name, pattern) in NAMES.iter().zip(1..) {
            is_read(mount, name, pattern, &what);
            let number = fs::metadata(mount.path(name)).unwrap().ino();
            fs::read_dir(mount.path("dir")).unwrap().for_each(|entry| drop(entry.unwrap()));
            is_read(mount, name, pattern, &what);
            assert_eq!(fs::metadata(mount.path(name)).unwrap().ino(), number, "{what}");
        }
        let copy = mount.scratch("copy");
        run(Command::new("cp").arg("-r").arg(mount.path("dir")).arg(&copy));
        for (name, pattern) in ["a", "b", "c"].into_iter().zip(1..) {
            assert!(Pattern(pattern).is(0, &fs::read(copy.join(name)).unwrap()), "{what}");
        }
    });
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    is_read(&mount, NAMES[0], 1, what);
    plant(&store, NAMES[0], 9, 50);
    until("the new version shows", || fs::read(mount.path(NAMES[0])).is_ok_and(|b| Pattern(9).is(0, &b)));
    is_read(&mount, NAMES[0], 9, what);
}

#[test]
fn a_store_with_one_etag_for_all_never_gives_old_or_mixed_bytes() {
    for etag in ["\"\"", "\"0123\"", "\"d41d8cd98f00b204e9800998ecf8427e\""] {
        let store = Store::new();
        for name in NAMES {
            plant(&store, name, 1, 100);
        }
        one_etag(etag).into_iter().for_each(|fault| store.faults().add(fault));
        let mut round = 1;
        ways(&store, |mount, _, way| {
            let (name, what) = (NAMES[0], format!("{etag}, {way}"));
            is_read(mount, name, round, &what);
            // Open, and read in part.
            let file = File::open(mount.path(name)).unwrap();
            let mut bytes = [0; 4096];
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert!(Pattern(round).is(0, &bytes), "{what}");
            round += 1;
            // The size is equal, the second is another.
            plant(&store, name, round, 100 - round);
            let mut rest = vec![0; LEN];
            match file.read_exact_at(&mut rest[4096..], 4096) {
                Ok(()) => assert!(Pattern(round - 1).is(4096, &rest[4096..]), "{what}: mixed"),
                Err(error) => assert_eq!(error.raw_os_error(), Some(Errno::STALE.raw_os_error()), "{what}"),
            }
            drop(file);
            if way.contains("cached: false") {
                until("the attributes are asked for again", || {
                    fs::read(mount.path(name)).is_ok_and(|bytes| Pattern(round).is(0, &bytes))
                });
            }
        });
        // Bytes that a cache kept before are not taken for the version of now.
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let options = ["--cache", folder.path().to_str().unwrap()];
            let Some(mount) = TestMount::of(&store, &Setup::new(&options)) else { return };
            is_read(&mount, NAMES[0], round, etag);
            is_read(&mount, NAMES[0], round, etag);
            drop(mount);
            round += 1;
            plant(&store, NAMES[0], round, 100 - round);
        }
    }
}

#[test]
fn a_file_replaced_in_the_middle_of_a_read_is_stale_whatever_its_etag() {
    let store = Store::new();
    let len = 40 << 20;
    fs::write(store.bucket_folder().join("file"), Pattern(1).bytes(0, len)).unwrap();
    one_etag("\"\"").into_iter().for_each(|fault| store.faults().add(fault));
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let file = File::open(mount.path("file")).unwrap();
    let mut bytes = vec![0; 1 << 20];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(Pattern(1).is(0, &bytes));
    let new = store.bucket_folder().join("new");
    fs::write(&new, Pattern(2).bytes(0, len)).unwrap();
    let time = SystemTime::now() + Duration::from_secs(60);
    File::options().write(true).open(&new).unwrap().set_modified(time).unwrap();
    fs::rename(new, store.bucket_folder().join("file")).unwrap();
    assert_errno(file.read_exact_at(&mut bytes, 39 << 20), Errno::STALE);
    drop(file);
    assert!(Pattern(2).is(0, &fs::read(mount.path("file")).unwrap()));
}

#[test]
fn files_without_etags_or_dates_are_listed_and_read() {
    serves("no ETag in HEAD", &odd(&[("HeadObject", header("etag", None))]));
    serves("no ETag in a listing", &odd(&[("ListObjectsV2", entry("ETag", None))]));
    serves("an empty ETag in a listing", &odd(&[("ListObjectsV2", entry("ETag", Some("")))]));
    serves("no date in a listing", &odd(&[("ListObjectsV2", entry("LastModified", None))]));
    let mut none = answers(&header("etag", None));
    none.extend(odd(&[("ListObjectsV2", entry("ETag", None))]));
    serves("no ETag anywhere", &none);
}

#[test]
fn one_bad_entry_of_a_listing_hides_no_other() {
    for (element, text) in [("Size", None), ("Size", Some("many")), ("Key", Some("dir/%FF")), ("Key", None)] {
        let store = Store::new();
        NAMES.iter().for_each(|name| store.plant(name, b"1"));
        let bad = Effect::Entry {
            key: Some("dir/b".to_owned()),
            element: element.to_owned(),
            text: text.map(str::to_owned),
        };
        store.faults().add(Fault::on("ListObjectsV2", bad));
        let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
        for _ in 0..2 {
            let names = fs::read_dir(mount.path("dir")).unwrap_or_else(|e| panic!("{element}: {e}"));
            let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(names, ["a", "c"], "{element} {text:?}");
        }
        assert_eq!(fs::read(mount.path("dir/b")).unwrap(), b"1", "it is there by its name");
        let said: Vec<_> =
            mount.complaints().into_iter().filter(|line| line.contains("can't be shown")).collect();
        assert_eq!(said.len(), 1, "{said:?}");
    }
}

#[test]
fn the_objects_own_etag_and_size_win_over_those_of_a_listing() {
    serves("another ETag", &odd(&[("ListObjectsV2", entry("ETag", Some("&quot;other&quot;")))]));
    for size in ["1000", "299999", "300001", "400000", "0"] {
        serves(&format!("size {size}"), &odd(&[("ListObjectsV2", entry("Size", Some(size)))]));
    }
    serves("no quotes", &odd(&[("HeadObject", Effect::Etag { form: EtagForm::Unquoted })]));
    serves("another case", &answers(&Effect::Etag { form: EtagForm::Upper }));
}

#[test]
fn a_listing_that_agreed_for_one_file_is_not_believed_of_all() {
    for (element, text) in [("ETag", "&quot;other&quot;"), ("Size", "1000")] {
        let store = Store::new();
        NAMES.iter().zip(1..).for_each(|(name, pattern)| plant(&store, name, pattern, 100));
        let other = Effect::Entry {
            key: Some("dir/b".to_owned()),
            element: element.to_owned(),
            text: Some(text.to_owned()),
        };
        store.faults().add(Fault::on("ListObjectsV2", other));
        for options in [&[][..], &["--metadata-ttl", "60"]] {
            let Some(mount) = TestMount::of(&store, &Setup::new(options)) else { return };
            for _ in 0..3 {
                let entries = fs::read_dir(mount.path("dir")).unwrap();
                entries.for_each(|entry| _ = entry.unwrap().metadata().unwrap());
                for (name, pattern) in NAMES.iter().zip(1..) {
                    is_read(&mount, name, pattern, &format!("{element} {text} {options:?}"));
                }
            }
        }
    }
}

#[test]
fn the_length_that_head_leaves_out_comes_from_elsewhere() {
    let without = header("content-length", None);
    serves("no length", &odd(&[("HeadObject", without.clone())]));
    let chunked = header("transfer-encoding", Some("chunked"));
    serves("in chunks", &odd(&[("HeadObject", without.clone()), ("HeadObject", chunked)]));
    let ignored = [("HeadObject", without), ("GetObject", header("content-range", None))];
    // An empty file has no byte to ask for.
    let store = Store::new();
    store.plant("empty", b"");
    store.faults().add(odd(&ignored).remove(0));
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    assert_eq!(fs::metadata(mount.path("empty")).unwrap().len(), 0);
    assert_eq!(fs::read(mount.path("empty")).unwrap(), b"");
}

#[test]
fn dates_in_other_forms_are_read_and_shown_in_whole_seconds() {
    const AT: i64 = 784_111_777;
    for date in [
        "Sun, 06 Nov 1994 08:49:37.500 GMT",
        "Sun, 6 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:37 UTC",
        "Sun, 06 Nov 1994 08:49:37 +0000",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        "1994-11-06T08:49:37Z",
    ] {
        let store = Store::new();
        NAMES.iter().for_each(|name| store.plant(name, b"1"));
        answers(&header("last-modified", Some(date))).into_iter().for_each(|f| store.faults().add(f));
        store
            .faults()
            .add(Fault::on("ListObjectsV2", entry("LastModified", Some("1994-11-06T08:49:37.999Z"))));
        ways(&store, |mount, _, way| {
            let path = mount.path("dir/a");
            assert_eq!(fs::read(&path).unwrap(), b"1", "{date} {way}");
            let meta = fs::metadata(&path).unwrap();
            assert_eq!((meta.mtime(), meta.mtime_nsec()), (AT, 0), "{date} {way}");
        });
    }
}

#[test]
fn without_a_date_of_its_own_a_file_has_that_of_its_listing_or_1970() {
    for (listed, shown) in [(Some("1994-11-06T08:49:37.999Z"), 784_111_777), (None, 0)] {
        for date in [None, Some("soon")] {
            let store = Store::new();
            NAMES.iter().for_each(|name| store.plant(name, b"1"));
            answers(&header("last-modified", date)).into_iter().for_each(|f| store.faults().add(f));
            store.faults().add(Fault::on("ListObjectsV2", entry("LastModified", listed)));
            ways(&store, |mount, _, way| {
                let path = mount.path("dir/a");
                for _ in 0..2 {
                    assert_eq!(fs::read(&path).unwrap(), b"1", "{date:?} {way}");
                    assert_eq!(fs::metadata(&path).unwrap().mtime(), shown, "{date:?} {way}");
                }
            });
        }
    }
}

#[test]
fn weak_and_unquoted_etags_and_a_refused_if_match_are_no_change() {
    for form in [EtagForm::Weak, EtagForm::Unquoted] {
        let mut faults = answers(&Effect::Etag { form });
        serves(&format!("{form:?}"), &faults);
        faults.push(Fault::on("GetObject", Effect::RefuseIfMatch));
        serves(&format!("{form:?}, and If-Match refused"), &faults);
    }
    serves("If-Match refused", &odd(&[("GetObject", Effect::RefuseIfMatch)]));
}

#[test]
fn an_object_with_150_headers_is_read() {
    serves("150 headers", &answers(&Effect::MoreHeaders { count: 150 }));
    serves("900 headers", &answers(&Effect::MoreHeaders { count: 900 }));
}

#[test]
fn a_listing_with_another_root_is_read() {
    let root = Effect::Root { name: "ListBucketV2Result".to_owned() };
    serves("another root", &odd(&[("ListObjectsV2", root)]));
}

#[test]
fn a_hostile_store_uses_no_tolerance_to_do_harm() {
    let store = Store::new();
    NAMES.iter().zip(1..).for_each(|(name, pattern)| plant(&store, name, pattern, 100));
    let long = format!("\"{}\"", "x".repeat(50 << 10));
    answers(&header("etag", Some(&long))).into_iter().for_each(|fault| store.faults().add(fault));
    answers(&header("last-modified", Some("Fri, 31 Dec 9999 23:59:59 GMT")))
        .into_iter()
        .for_each(|fault| store.faults().add(fault));
    store.faults().add(Fault::on("ListObjectsV2", entry("LastModified", Some("9999-12-31T23:59:59Z"))));
    let listed = format!("&quot;{}&quot;", "x".repeat(50 << 10));
    store.faults().add(Fault::on("ListObjectsV2", entry("ETag", Some(&listed))));
    ways(&store, |mount, _, way| {
        NAMES.iter().zip(1..).for_each(|(name, pattern)| is_read(mount, name, pattern, way));
    });
    // A listing of only bad entries.
    store.faults().clear();
    store.faults().add(Fault::on("ListObjectsV2", entry("Size", Some("-1"))));
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    for _ in 0..3 {
        assert_eq!(fs::read_dir(mount.path("dir")).map(Iterator::count).unwrap_or_default(), 0);
    }
    match fs::read(mount.path(NAMES[1])) {
        Ok(bytes) => assert!(Pattern(2).is(0, &bytes) && bytes.len() == LEN),
        // Nothing shows that the directory exists.
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
    }
    assert_eq!(mount.complaints().iter().filter(|line| line.contains("can't be shown")).count(), 1);
}

#[test]
fn an_oddity_that_begins_in_the_middle_of_a_mount_gives_no_wrong_bytes() {
    let store = Store::new();
    NAMES.iter().zip(1..).for_each(|(name, pattern)| plant(&store, name, pattern, 100));
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let read_all = |what: &str| {
        for (name, pattern) in NAMES.iter().zip(1..) {
            let read: io::Result<Vec<u8>> = fs::read(mount.path(name));
            let bytes = read.unwrap_or_else(|e| panic!("{what}, {name}: {e}"));
            assert!(Pattern(pattern).is(0, &bytes) && bytes.len() == LEN, "{what}, {name}");
        }
    };
    read_all("as S3");
    // A gateway is replaced: two oddities at once, and then none.
    answers(&Effect::Etag { form: EtagForm::Weak }).into_iter().for_each(|fault| store.faults().add(fault));
    store.faults().add(Fault::on("ListObjectsV2", entry("ETag", Some(""))));
    store.faults().add(Fault::on("GetObject", Effect::RefuseIfMatch));
    read_all("odd");
    fs::read_dir(mount.path("dir")).unwrap().for_each(|entry| drop(entry.unwrap()));
    read_all("odd, listed");
    store.faults().clear();
    read_all("as S3 again");
}
