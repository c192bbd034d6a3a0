//! Local entries: created in the mount and not stored yet.

use super::*;

#[tokio::test]
async fn a_directory_is_local_until_a_file_below_it_is_stored() {
    let bench = Bench::new(Ttl::Minimal, &[]);
    let d = bench.table.mkdir(ROOT, OsStr::new("d")).await.unwrap().ino;
    let e = bench.table.mkdir(d, OsStr::new("e")).await.unwrap().ino;
    assert!(bench.client.keys().is_empty());
    assert_eq!(bench.names(ROOT).await, ["d"]);
    assert_error!(bench.table.rmdir(ROOT, OsStr::new("d"), true).await, ErrorKind::NotEmpty);
    bench.write(e, "f", "content").await;
    assert_eq!(bench.client.keys(), ["d/e/f"]);
    bench.clock.advance(Duration::from_secs(2));
    assert_eq!(bench.lookup(ROOT, "d").await.unwrap().ino, d, "the same inode, stored now");
    assert_error!(bench.table.rmdir(d, OsStr::new("e"), true).await, ErrorKind::NotPermitted(_));
    bench.client.remove("d/e/f");
    bench.clock.advance(Duration::from_secs(2));
    assert_error!(bench.lookup(ROOT, "d").await, ErrorKind::NotFound);
}

#[tokio::test]
async fn the_first_listing_has_what_was_made_after_the_directory_was_opened() {
    let bench = Bench::new(Ttl::Minimal, &["d/stored"]);
    let made = bench.table.mkdir(ROOT, OsStr::new("made")).await.unwrap().ino;
    let stored = bench.lookup(ROOT, "d").await.unwrap().ino;
    for (directory, expected) in [(made, &["new"][..]), (stored, &["new", "stored"])] {
        let listing = bench.table.opendir(directory).await.unwrap();
        bench.table.create(directory, OsStr::new("new")).await.unwrap();
        let (mut names, mut offset) = (Vec::new(), 0);
        while let Some(entry) = listing.entries(&bench.table, offset, 1).await.unwrap().pop() {
            offset = entry.offset;
            names.push(entry.name().to_owned());
        }
        assert_eq!(names, [&[".", ".."], expected].concat());
    }
}

#[tokio::test]
async fn only_local_empty_directories_are_removed() {
    let bench = Bench::new(Ttl::Minimal, &["r/x", "f"]);
    bench.table.mkdir(ROOT, OsStr::new("d")).await.unwrap();
    bench.table.rmdir(ROOT, OsStr::new("d"), true).await.unwrap();
    assert_error!(bench.lookup(ROOT, "d").await, ErrorKind::NotFound);
    assert_error!(bench.table.rmdir(ROOT, OsStr::new("r"), true).await, ErrorKind::NotPermitted(_));
    assert_error!(bench.table.rmdir(ROOT, OsStr::new("f"), true).await, ErrorKind::NotADirectory);
    assert_error!(bench.table.rmdir(ROOT, OsStr::new("none"), true).await, ErrorKind::NotFound);
    let r = bench.lookup(ROOT, "r").await.unwrap().ino;
    bench.table.create(r, OsStr::new("new")).await.unwrap();
    assert_error!(bench.table.rmdir(ROOT, OsStr::new("r"), true).await, ErrorKind::NotEmpty);
}

#[tokio::test]
async fn a_name_that_is_taken_is_not_made_again() {
    let bench = Bench::new(Ttl::Minimal, &["f", "d/x"]);
    for name in ["f", "d"] {
        assert_error!(bench.table.create(ROOT, OsStr::new(name)).await, ErrorKind::Exists);
        assert_error!(bench.table.mkdir(ROOT, OsStr::new(name)).await, ErrorKind::Exists);
    }
    bench.table.create(ROOT, OsStr::new("new")).await.unwrap();
    assert_error!(bench.table.create(ROOT, OsStr::new("new")).await, ErrorKind::Exists);
    assert_error!(bench.table.mkdir(ROOT, OsStr::new("new")).await, ErrorKind::Exists);
}

#[tokio::test]
async fn a_create_relies_on_the_lookup_just_before_it() {
    let bench = Bench::new(Ttl::Minimal, &[]);
    assert_error!(bench.lookup(ROOT, "a").await, ErrorKind::NotFound);
    let (made, cost) = bench.cost(bench.table.create(ROOT, OsStr::new("a"))).await;
    made.unwrap();
    assert_eq!(cost, 0);
    assert_error!(bench.lookup(ROOT, "b").await, ErrorKind::NotFound);
    bench.clock.advance(FRESH);
    bench.client.insert("b", "");
    assert_error!(bench.table.create(ROOT, OsStr::new("b")).await, ErrorKind::Exists);
}

#[tokio::test]
async fn a_writer_is_named_to_whoever_comes_next() {
    let bench = Bench::new(Ttl::Minimal, &[]);
    let ino = bench.table.create(ROOT, OsStr::new("a")).await.unwrap().ino;
    let wish = WriteWish::default();
    let granted = bench.table.open_write(ino, 42, wish).await.unwrap();
    let key = ObjectKey::new("a");
    assert_eq!(granted, OpenWrite::Granted { key, before: Before::Absent });
    assert_eq!(bench.table.open_write(ino, 43, wish).await.unwrap(), OpenWrite::Busy { writer: 42 });
    assert!(matches!(bench.open_read(ino).await.unwrap(), OpenRead::Busy { writer: 42 }));
    let unlinked = bench.table.unlink(ROOT, OsStr::new("a"), true).await.unwrap();
    assert_eq!(unlinked, Unlinked::Busy { writer: 42 });
    bench.table.written(ino, 5);
    assert_eq!(bench.table.try_getattr(ino).unwrap().unwrap().size, 5);
    assert_eq!(bench.lookup(ROOT, "a").await.unwrap().stat.size, 5);
}

#[tokio::test]
async fn a_stored_file_keeps_its_inode_and_shows_what_s3_says() {
    let bench = Bench::new(Ttl::Minimal, &[]);
    let ino = bench.write(ROOT, "a", "content").await;
    let meta = bench.client.meta("a").unwrap();
    let found = bench.lookup(ROOT, "a").await.unwrap();
    assert_eq!((found.ino, found.stat.size), (ino, 7));
    assert_eq!(found.stat.modified, meta.last_modified);
    let OpenRead::Object { id, keep_cache, .. } = bench.open_read(ino).await.unwrap() else { panic!() };
    assert_eq!(id.etag, meta.etag);
    assert!(!keep_cache, "the kernel's pages may be of before the write");
}

#[tokio::test]
async fn giving_up_a_new_file_removes_it_and_giving_up_an_overwrite_does_not() {
    let bench = Bench::new(Ttl::Minimal, &["old"]);
    let wish = WriteWish { truncate: true, append: false, allow_overwrite: true, ..WriteWish::default() };
    let new = bench.table.create(ROOT, OsStr::new("new")).await.unwrap().ino;
    bench.table.open_write(new, 1, wish).await.unwrap();
    bench.table.abandon_write(new);
    assert_error!(bench.lookup(ROOT, "new").await, ErrorKind::NotFound);
    let old = bench.lookup(ROOT, "old").await.unwrap().ino;
    bench.table.open_write(old, 2, wish).await.unwrap();
    bench.table.written(old, 3);
    assert_eq!(bench.lookup(ROOT, "old").await.unwrap().stat.size, 3);
    bench.table.abandon_write(old);
    let (found, cost) = bench.cost(bench.lookup(ROOT, "old")).await;
    assert_eq!((found.unwrap().stat.size, cost), (7, 1), "whether the upload took effect is asked");
}

#[tokio::test]
async fn local_entries_stand_between_remote_directories_and_remote_files() {
    let bench = Bench::new(Ttl::Minimal, &[]);
    let local = bench.table.create(ROOT, OsStr::new("a")).await.unwrap().ino;
    bench.client.insert("a", "elsewhere");
    bench.clock.advance(Duration::from_secs(2));
    assert_eq!(bench.lookup(ROOT, "a").await.unwrap().ino, local);
    bench.client.insert("a/b", "");
    bench.clock.advance(Duration::from_secs(2));
    assert_eq!(bench.lookup(ROOT, "a").await.unwrap().stat.kind, Kind::Directory);
    bench.client.remove("a/b");
    bench.clock.advance(Duration::from_secs(2));
    assert_eq!(bench.lookup(ROOT, "a").await.unwrap().ino, local);
}

#[tokio::test]
async fn a_directory_stays_while_something_local_is_below_it() {
    let bench = Bench::new(Ttl::Minimal, &["d/e/x"]);
    let e = bench.walk("d/e").await.unwrap().ino;
    bench.table.create(e, OsStr::new("new")).await.unwrap();
    bench.client.remove("d/e/x");
    bench.clock.advance(Duration::from_secs(2));
    assert_eq!(bench.walk("d/e").await.unwrap().ino, e);
    assert_eq!(bench.names(ROOT).await, ["d"]);
    assert_eq!(bench.names(e).await, ["new"]);
}

#[tokio::test]
async fn unlink_needs_the_flag_and_removes_at_once() {
    let bench = Bench::new(MINUTE, &["a", "d/x"]);
    let name = OsStr::new("a");
    let ErrorKind::NotPermitted(why) = kind(bench.table.unlink(ROOT, name, false).await) else { panic!() };
    assert!(why.contains("--allow-delete"));
    let ino = bench.lookup(ROOT, "a").await.unwrap().ino;
    bench.open_read(ino).await.unwrap();
    bench.client.inject(FaultPlan::on(Op::DeleteObject).fail(s3::ErrorKind::Denied));
    assert_error!(bench.table.unlink(ROOT, name, true).await, ErrorKind::Remote(_));
    assert_eq!(bench.lookup(ROOT, "a").await.unwrap().ino, ino, "nothing happened");
    bench.table.unlink(ROOT, name, true).await.unwrap();
    assert_error!(bench.lookup(ROOT, "a").await, ErrorKind::NotFound);
    assert_eq!(bench.table.getattr(ino).await.unwrap().size, 7, "an open reader may go on");
    assert_error!(bench.table.unlink(ROOT, OsStr::new("d"), true).await, ErrorKind::IsADirectory);
    assert_eq!(bench.client.keys(), ["d/x"]);
}

#[tokio::test]
async fn a_file_that_was_never_written_is_unlinked_without_asking_s3_to() {
    let bench = Bench::new(Ttl::Minimal, &[]);
    bench.table.create(ROOT, OsStr::new("a")).await.unwrap();
    bench.table.unlink(ROOT, OsStr::new("a"), true).await.unwrap();
    assert_error!(bench.lookup(ROOT, "a").await, ErrorKind::NotFound);
    assert_eq!(bench.client.calls(Op::DeleteObject), 0);
}

#[tokio::test]
async fn what_is_local_outlives_the_kernels_references() {
    let bench = Bench::new(Ttl::Minimal, &[]);
    let d = bench.table.mkdir(ROOT, OsStr::new("d")).await.unwrap().ino;
    let f = bench.table.create(d, OsStr::new("f")).await.unwrap().ino;
    bench.table.open_write(f, 1, WriteWish::default()).await.unwrap();
    bench.table.forget(f, 1);
    bench.table.forget(d, 1);
    assert_eq!(bench.names(d).await, ["f"]);
    let meta =
        ObjectMeta { size: 1, etag: ETag::new("\"e\""), last_modified: bench.clock.wall(), readable: true };
    bench.table.commit_write(f, meta);
    assert_eq!(bench.table.len(), 1, "stored and unreferenced: nothing is left to keep");
}

#[tokio::test]
async fn a_file_may_have_a_key_of_1024_bytes_and_a_directory_one_with_its_slash() {
    let above = format!("{0}/{0}/{0}/e", "d".repeat(255));
    let bench = Bench::new(Ttl::Minimal, &[]);
    bench.client.insert(format!("{above}/x"), "");
    let e = bench.walk(&above).await.unwrap().ino;
    let (file, longer) = ("f".repeat(1024 - above.len() - 1), "f".repeat(1024 - above.len()));
    assert_error!(bench.table.create(e, OsStr::new(&longer)).await, ErrorKind::NameTooLong);
    for name in [&longer, &file] {
        assert_error!(bench.table.mkdir(e, OsStr::new(name)).await, ErrorKind::NameTooLong);
    }
    bench.table.mkdir(e, OsStr::new(&file[1..])).await.unwrap();
    let ino = bench.write(e, &file, "content").await;
    assert_eq!(bench.client.keys().iter().map(String::len).max(), Some(1024));
    bench.clock.advance(Duration::from_secs(2));
    assert_eq!(bench.lookup(e, &file).await.unwrap().ino, ino);
    assert_eq!(bench.names(e).await, [&file[1..], &*file, "x"]);
    bench.table.unlink(e, OsStr::new(&file), true).await.unwrap();
    bench.table.create(e, OsStr::new(&file)).await.unwrap();
}

#[tokio::test]
async fn a_directory_that_this_mount_emptied_stays_until_it_is_removed() {
    let second = Duration::from_secs(1);
    let never = Ttl::For { found: Duration::ZERO, missing: Duration::ZERO };
    for ttl in [Ttl::Minimal, never, MINUTE, Ttl::Indefinite] {
        let bench = Bench::new(ttl, &["d/e/x", "d/e/y", "z"]);
        bench.list(ROOT).await;
        let e = bench.walk("d/e").await.unwrap().ino;
        bench.lookup(e, "y").await.unwrap();
        for file in ["x", "y"] {
            bench.table.unlink(e, OsStr::new(file), true).await.unwrap();
            bench.clock.advance(2 * second);
        }
        assert_eq!(bench.client.keys(), ["z"]);
        assert_eq!(bench.names(ROOT).await, ["d", "z"], "{ttl:?}");
        let d = bench.walk("d").await.unwrap().ino;
        assert_eq!((bench.names(d).await, bench.names(e).await), (vec!["e".to_owned()], Vec::new()));
        assert_eq!(bench.walk("d/e").await.unwrap().ino, e, "the same inode");
        assert_error!(bench.table.mkdir(ROOT, OsStr::new("d")).await, ErrorKind::Exists);
        assert_error!(bench.table.rmdir(ROOT, OsStr::new("d"), true).await, ErrorKind::NotEmpty);
        bench.clock.advance(2 * second);
        for (parent, name) in [(d, "e"), (ROOT, "d")] {
            bench.table.rmdir(parent, OsStr::new(name), false).await.unwrap();
            assert_error!(bench.lookup(parent, name).await, ErrorKind::NotFound);
            assert_error!(bench.table.rmdir(parent, OsStr::new(name), true).await, ErrorKind::NotFound);
        }
        assert_eq!(bench.names(ROOT).await, ["z"], "{ttl:?}");
        bench.write(ROOT, "d", "a file now").await;
    }
}

#[tokio::test]
async fn a_directory_whose_last_known_file_was_removed_is_what_the_bucket_has() {
    let bench = Bench::new(Ttl::Indefinite, &["d/x", "d/y", "e/x", "e/y"]);
    for directory in ["d", "e"] {
        let ino = bench.lookup(ROOT, directory).await.unwrap().ino;
        bench.table.unlink(ino, OsStr::new("x"), true).await.unwrap();
    }
    // `d` was looked up, and `e` was listed.
    let (d, cost) = bench.cost(bench.lookup(ROOT, "d")).await;
    assert_eq!(cost, 1, "whether it has more is asked");
    for entry in bench.list(ROOT).await {
        bench.table.remember(ROOT, &entry);
    }
    let (e, cost) = bench.cost(bench.lookup(ROOT, "e")).await;
    assert_eq!(cost, 0);
    for (name, ino) in [("d", d.unwrap().ino), ("e", e.unwrap().ino)] {
        assert!(!bench.table.is_local(ino));
        assert_eq!(bench.names(ino).await, ["y"]);
        assert_error!(bench.table.rmdir(ROOT, OsStr::new(name), true).await, ErrorKind::NotPermitted(_));
    }
}

#[tokio::test]
async fn an_emptied_directory_that_another_client_fills_is_the_bucket_s_again() {
    let bench = Bench::new(Ttl::Minimal, &["d/x"]);
    let d = bench.walk("d").await.unwrap().ino;
    bench.table.unlink(d, OsStr::new("x"), true).await.unwrap();
    assert!(bench.table.is_local(bench.lookup(ROOT, "d").await.unwrap().ino));
    bench.client.insert("d/new", "of another client");
    bench.clock.advance(Duration::from_secs(2));
    assert_eq!(bench.lookup(ROOT, "d").await.unwrap().ino, d);
    assert_eq!(
        (bench.names(ROOT).await, bench.names(d).await),
        (vec!["d".to_owned()], vec!["new".to_owned()])
    );
    assert_error!(bench.table.rmdir(ROOT, OsStr::new("d"), true).await, ErrorKind::NotPermitted(_));
    bench.client.remove("d/new");
    bench.clock.advance(Duration::from_secs(2));
    assert_error!(bench.lookup(ROOT, "d").await, ErrorKind::NotFound);
}

#[tokio::test]
async fn an_emptied_directory_is_removed_though_others_took_known_files() {
    let bench = Bench::new(Ttl::Minimal, &["d/e/x", "d/y", "d/z"]);
    let d = bench.walk("d").await.unwrap().ino;
    for known in ["d/e/x", "d/y", "d/z"] {
        bench.walk(known).await.unwrap();
    }
    assert!(bench.client.remove("d/e/x") && bench.client.remove("d/y"));
    bench.clock.advance(Duration::from_secs(2));
    bench.table.unlink(d, OsStr::new("z"), true).await.unwrap();
    bench.table.rmdir(ROOT, OsStr::new("d"), true).await.unwrap();
    assert_error!(bench.lookup(ROOT, "d").await, ErrorKind::NotFound);
}

#[tokio::test]
async fn rmdir_deletes_the_marker_of_a_directory_that_has_nothing_else() {
    let bench = Bench::new(Ttl::Minimal, &["m/", "m/n/", "m/n/x", "o/", "o/x"]);
    let (m, n) = (bench.walk("m").await.unwrap().ino, bench.walk("m/n").await.unwrap().ino);
    assert_error!(bench.table.rmdir(m, OsStr::new("n"), true).await, ErrorKind::NotPermitted(_));
    assert_error!(bench.table.rmdir(ROOT, OsStr::new("o"), true).await, ErrorKind::NotPermitted(_));
    bench.table.unlink(n, OsStr::new("x"), true).await.unwrap();
    let ErrorKind::NotPermitted(why) = kind(bench.table.rmdir(m, OsStr::new("n"), false).await) else {
        panic!("it has a marker")
    };
    assert!(why.contains("--allow-delete"), "{why}");
    assert_eq!(bench.client.keys(), ["m/", "m/n/", "o/", "o/x"]);
    bench.table.rmdir(m, OsStr::new("n"), true).await.unwrap();
    bench.client.inject(FaultPlan::on(Op::DeleteObject).fail(s3::ErrorKind::Denied));
    assert_error!(bench.table.rmdir(ROOT, OsStr::new("m"), true).await, ErrorKind::Remote(_));
    bench.table.rmdir(ROOT, OsStr::new("m"), true).await.unwrap();
    assert_eq!(bench.client.keys(), ["o/", "o/x"]);
    assert_eq!(bench.names(ROOT).await, ["o"]);
}

#[tokio::test]
async fn no_more_emptied_directories_are_kept_than_the_limit_says() {
    let bench = Bench::new(Ttl::Minimal, &[]);
    for i in 0..Tree::EMPTIED_MAX + 10 {
        let name = format!("{i:05}");
        bench.client.insert(format!("{name}/x"), "");
        let ino = bench.lookup(ROOT, &name).await.unwrap().ino;
        bench.table.unlink(ino, OsStr::new("x"), true).await.unwrap();
        bench.table.forget(ino, 1);
    }
    assert_eq!(bench.table.len(), 1 + Tree::EMPTIED_MAX);
    let names = bench.names(ROOT).await;
    assert_eq!((names.len(), &*names[0]), (Tree::EMPTIED_MAX, "00010"), "the one known longest goes first");
    assert_error!(bench.lookup(ROOT, "00009").await, ErrorKind::NotFound);
}
