//! Lookup, getattr, open: their requests, their results, and changes meanwhile.

use super::*;

#[tokio::test]
async fn a_cold_open_costs_one_head_and_one_list() {
    let bench = Bench::new(Ttl::Minimal, &["a"]);
    let found = bench.lookup(ROOT, "a").await.unwrap();
    let open = bench.table.try_open_read(found.ino).expect("the lookup just answered").unwrap();
    assert!(matches!(open, OpenRead::Object { size: 7, .. }));
    assert_eq!((bench.client.calls(Op::HeadObject), bench.client.calls(Op::ListObjects)), (1, 1));
    assert_eq!(bench.requests(), 2);
}

#[tokio::test]
async fn a_lookup_is_used_by_one_open_only() {
    let bench = Bench::new(Ttl::Minimal, &["a"]);
    let found = bench.lookup(ROOT, "a").await.unwrap();
    assert_eq!(found.entry_valid_for, Duration::ZERO, "the next path asks again");
    bench.open_read(found.ino).await.unwrap();
    let (_, cost) = bench.cost(bench.open_read(found.ino)).await;
    assert_eq!(cost, 1);
}

#[tokio::test]
async fn an_open_sees_what_was_stored_elsewhere_after_a_stat_and_before_it() {
    let bench = Bench::new(Ttl::Minimal, &["a"]);
    let stat = bench.lookup(ROOT, "a").await.unwrap();
    bench.client.insert("a", "longer content");
    // open(2): the kernel kept no entry, so it looks the name up (memory answers), and opens.
    let (found, cost) = bench.cost(bench.lookup(ROOT, "a")).await;
    assert_eq!((found.unwrap().ino, cost), (stat.ino, 0));
    assert_error!(bench.open_read(stat.ino).await, ErrorKind::Stale);
    // After ESTALE the kernel looks up once more.
    let found = bench.lookup(ROOT, "a").await.unwrap();
    assert_ne!(found.ino, stat.ino);
    assert!(matches!(bench.open_read(found.ino).await.unwrap(), OpenRead::Object { size: 14, .. }));
}

#[tokio::test]
async fn an_old_lookup_is_not_trusted_by_an_open() {
    let bench = Bench::new(Ttl::Minimal, &["a"]);
    let found = bench.lookup(ROOT, "a").await.unwrap();
    bench.clock.advance(FRESH);
    assert!(bench.table.try_open_read(found.ino).is_none());
    let (open, cost) = bench.cost(bench.table.open_read(found.ino, false)).await;
    open.unwrap();
    assert_eq!((cost, bench.client.calls(Op::HeadObject)), (1, 2));
}

#[tokio::test]
async fn a_configured_ttl_is_trusted_by_opens_except_direct_ones() {
    let bench = Bench::new(MINUTE, &["a"]);
    let found = bench.lookup(ROOT, "a").await.unwrap();
    assert_eq!(found.entry_valid_for, Duration::from_secs(60));
    bench.clock.advance(Duration::from_secs(59));
    let again = bench.table.try_lookup(ROOT, OsStr::new("a")).unwrap().unwrap();
    assert_eq!(again.entry_valid_for, Duration::from_secs(1), "a TTL is not prolonged by being repeated");
    assert!(bench.table.try_open_read(found.ino).is_some());
    let (_, cost) = bench.cost(bench.table.open_read(found.ino, true)).await;
    assert_eq!(cost, 1);
    bench.clock.advance(Duration::from_secs(60));
    assert!(bench.table.try_lookup(ROOT, OsStr::new("a")).is_none());
    assert!(bench.table.try_open_read(found.ino).is_none());
}

#[tokio::test]
async fn another_version_is_another_inode_and_the_open_one_answers_as_before() {
    let bench = Bench::new(Ttl::Minimal, &["a"]);
    let old = bench.lookup(ROOT, "a").await.unwrap();
    bench.open_read(old.ino).await.unwrap();
    bench.client.insert("a", "longer content");
    bench.clock.advance(Duration::from_secs(2));
    let new = bench.lookup(ROOT, "a").await.unwrap();
    assert_ne!(new.ino, old.ino);
    assert_eq!(new.stat.size, 14);
    let (stat, cost) = bench.cost(bench.table.getattr(old.ino)).await;
    assert_eq!((stat.unwrap().size, cost), (7, 0));
    bench.table.close_read(old.ino);
    bench.table.forget(old.ino, 1);
    assert!(bench.table.key_of(old.ino).is_none());
}

#[tokio::test]
async fn a_directory_hides_the_object_of_its_name() {
    let bench = Bench::new(Ttl::Minimal, &["a", "a/b"]);
    let a = bench.lookup(ROOT, "a").await.unwrap();
    assert_eq!(a.stat.kind, Kind::Directory);
    bench.client.remove("a/b");
    bench.clock.advance(Duration::from_secs(2));
    let file = bench.lookup(ROOT, "a").await.unwrap();
    assert_eq!(file.stat.kind, Kind::File);
    assert_ne!(file.ino, a.ino);
    bench.client.insert("a/c", "");
    bench.clock.advance(Duration::from_secs(2));
    assert_eq!(bench.lookup(ROOT, "a").await.unwrap().stat.kind, Kind::Directory);
}

#[tokio::test]
async fn what_is_known_is_not_asked() {
    let bench = Bench::new(Ttl::Minimal, &["d/f"]);
    let d = bench.lookup(ROOT, "d").await.unwrap();
    bench.lookup(d.ino, "f").await.unwrap();
    bench.clock.advance(Duration::from_millis(200));
    bench.client.reset_log();
    bench.lookup(d.ino, "f").await.unwrap();
    assert_eq!((bench.client.calls(Op::HeadObject), bench.client.calls(Op::ListObjects)), (1, 0));
    bench.clock.advance(Duration::from_secs(2));
    bench.client.reset_log();
    bench.lookup(ROOT, "d").await.unwrap();
    assert_eq!((bench.client.calls(Op::HeadObject), bench.client.calls(Op::ListObjects)), (0, 1));
}

#[tokio::test]
async fn identical_lookups_in_flight_are_one_request() {
    let bench = Bench::new(Ttl::Minimal, &["a"]);
    let gate = bench.client.hold(FaultPlan::on(Op::HeadObject));
    let lookups = async {
        let name = OsStr::new("a");
        let (a, b) = tokio::join!(bench.table.lookup(ROOT, name), bench.table.lookup(ROOT, name));
        assert_eq!(a.unwrap().ino, b.unwrap().ino);
    };
    let open = async {
        gate.arrived(1).await;
        gate.release();
    };
    tokio::join!(lookups, open);
    assert_eq!(bench.requests(), 2);
    let ino = bench.table.try_lookup(ROOT, OsStr::new("a")).unwrap().unwrap().ino;
    bench.table.forget(ino, 2);
    assert!(bench.table.key_of(ino).is_some(), "three references were counted");
    bench.table.forget(ino, 1);
    assert_eq!(bench.table.len(), 1);
}

#[tokio::test]
async fn a_lookup_that_is_given_up_leaves_nothing_behind() {
    let bench = Bench::new(Ttl::Minimal, &["a"]);
    let gate = bench.client.hold(FaultPlan::on(Op::HeadObject));
    {
        let lookup = bench.table.lookup(ROOT, OsStr::new("a"));
        tokio::select! {
            _ = lookup => panic!("the gate is closed"),
            () = gate.arrived(1) => {}
        }
    }
    assert!(bench.table.0.tree.lock().board.is_empty());
    assert_eq!(bench.table.len(), 1);
    gate.release();
    bench.lookup(ROOT, "a").await.unwrap();
}

#[tokio::test]
async fn an_answer_from_before_an_unlink_does_not_bring_the_name_back() {
    let bench = Bench::new(Ttl::Minimal, &["a"]);
    let name = OsStr::new("a");
    // Two lookups in flight with different questions: only the first knew the kind.
    bench.lookup(ROOT, "a").await.unwrap();
    bench.clock.advance(Duration::from_millis(150));
    let gate = bench.client.hold_answer(FaultPlan::on(Op::HeadObject));
    let (late, ()) = tokio::join!(bench.table.lookup(ROOT, name), async {
        gate.arrived(1).await;
        bench.clock.advance(Duration::from_secs(2));
        bench.table.unlink(ROOT, name, true).await.unwrap();
        gate.release();
    });
    assert_error!(late, ErrorKind::NotFound);
    assert_eq!(bench.client.keys().len(), 0);
}

#[tokio::test]
async fn an_answer_from_before_a_create_does_not_hide_the_file() {
    let bench = Bench::new(MINUTE, &[]);
    let name = OsStr::new("a");
    let gate = bench.client.hold_answer(FaultPlan::on(Op::HeadObject));
    let (late, made) = tokio::join!(bench.table.lookup(ROOT, name), async {
        gate.arrived(1).await;
        // Another lookup, with other facts, found the name absent.
        let now = bench.clock.now();
        {
            let mut tree = bench.table.0.tree.lock();
            let at = tree.event();
            tree.observe_absent(ROOT, "a", at, now);
        }
        let made = bench.table.create(ROOT, name).await.unwrap();
        gate.release();
        made
    });
    assert_eq!(late.unwrap().ino, made.ino);
    assert_eq!(bench.lookup(ROOT, "a").await.unwrap().ino, made.ino);
}

#[tokio::test]
async fn an_answer_from_before_a_commit_does_not_bring_the_old_version_back() {
    let bench = Bench::new(Ttl::Minimal, &["a"]);
    let found = bench.lookup(ROOT, "a").await.unwrap();
    bench.clock.advance(Duration::from_millis(150));
    let gate = bench.client.hold_answer(FaultPlan::on(Op::HeadObject));
    let (late, ()) = tokio::join!(bench.table.lookup(ROOT, OsStr::new("a")), async {
        gate.arrived(1).await;
        bench.overwrite(found.ino, "longer content").await;
        gate.release();
    });
    let late = late.unwrap();
    assert_eq!((late.ino, late.stat.size), (found.ino, 14));
}

#[tokio::test]
async fn absent_names_are_remembered_only_where_it_was_asked_for() {
    let bench = Bench::new(Ttl::Minimal, &[]);
    assert_error!(bench.lookup(ROOT, "a").await, ErrorKind::NotFound);
    assert!(bench.table.try_lookup(ROOT, OsStr::new("a")).is_none());
    let bench = Bench::new(MINUTE, &[]);
    assert_error!(bench.lookup(ROOT, "a").await, ErrorKind::NotFound);
    assert!(bench.table.try_lookup(ROOT, OsStr::new("a")).is_some());
    bench.client.insert("a", "");
    bench.clock.advance(Duration::from_secs(60));
    bench.lookup(ROOT, "a").await.unwrap();
}

#[tokio::test]
async fn names_that_no_key_can_have_are_refused_without_asking() {
    let bench = Bench::new(Ttl::Minimal, &[]);
    use std::os::unix::ffi::OsStrExt;
    for name in [&b"."[..], b"..", b"", b"a/b", b"a\0b", b"\xff"] {
        assert_error!(bench.table.lookup(ROOT, OsStr::from_bytes(name)).await, ErrorKind::InvalidName(_));
    }
    assert_error!(bench.lookup(ROOT, &"x".repeat(256)).await, ErrorKind::NameTooLong);
    assert_eq!(bench.requests(), 0);
    let mut at = ROOT;
    bench.client.insert(
        "d".repeat(250) + "/" + &"e".repeat(250) + "/" + &"f".repeat(250) + "/" + &"g".repeat(200) + "/h",
        "",
    );
    for name in ["d".repeat(250), "e".repeat(250), "f".repeat(250), "g".repeat(200)] {
        at = bench.lookup(at, &name).await.unwrap().ino;
    }
    assert_error!(bench.lookup(at, &"h".repeat(100)).await, ErrorKind::NameTooLong);
    assert_error!(bench.table.mkdir(at, OsStr::new(&"h".repeat(70))).await, ErrorKind::NameTooLong);
}

#[tokio::test]
async fn a_key_of_full_length_can_be_looked_up() {
    let name = "n".repeat(255);
    let key = format!("{name}/{name}/{name}/{}/y", "x".repeat(254));
    assert_eq!(key.len(), ObjectKey::LEN_MAX);
    let bench = Bench::new(Ttl::Minimal, &[&key]);
    assert_eq!(bench.walk(&key).await.unwrap().stat.size, 7);
}

#[tokio::test]
async fn a_failing_store_is_an_error_and_never_an_absent_name() {
    let bench = Bench::new(Ttl::Minimal, &["a", "d/x"]);
    for op in [Op::HeadObject, Op::ListObjects] {
        bench.client.inject(FaultPlan::on(op).fail(s3::ErrorKind::ServerError));
        assert_error!(bench.lookup(ROOT, "a").await, ErrorKind::Remote(_));
        assert_error!(bench.lookup(ROOT, "none").await, ErrorKind::NotFound);
    }
    // The LIST proves a directory, even if the HEAD failed.
    bench.client.inject(FaultPlan::on(Op::HeadObject).fail(s3::ErrorKind::Denied));
    assert_eq!(bench.lookup(ROOT, "d").await.unwrap().stat.kind, Kind::Directory);
    bench.client.clear_faults();
    // A getattr that gets no answer does not remove the file.
    let a = bench.lookup(ROOT, "a").await.unwrap();
    bench.clock.advance(Duration::from_secs(5));
    bench.client.inject(FaultPlan::on(Op::HeadObject).fail(s3::ErrorKind::Timeout));
    assert_error!(bench.table.getattr(a.ino).await, ErrorKind::Remote(_));
    bench.table.getattr(a.ino).await.unwrap();
}

#[tokio::test]
async fn an_archived_object_is_shown_and_not_opened() {
    let bench = Bench::new(Ttl::Minimal, &["a"]);
    bench.client.archive("a");
    let found = bench.lookup(ROOT, "a").await.unwrap();
    assert!(!found.stat.readable);
    assert_error!(bench.open_read(found.ino).await, ErrorKind::Archived);
}

#[tokio::test]
async fn a_prefix_is_the_whole_world() {
    let prefix = Prefix::new("p/q/").unwrap();
    let bench = Bench::with(Config { prefix, ..Config::default() }, &["p/q/a", "p/b", "b"]);
    bench.lookup(ROOT, "a").await.unwrap();
    assert_error!(bench.lookup(ROOT, "b").await, ErrorKind::NotFound);
    assert_eq!(bench.names(ROOT).await, ["a"]);
    assert_eq!(bench.table.key_of(ROOT).unwrap().as_str(), "p/q/");
}

#[tokio::test]
async fn inodes_live_while_they_are_referenced_and_no_longer() {
    let bench = Bench::new(MINUTE, &["d/e/f", "x"]);
    let d = bench.lookup(ROOT, "d").await.unwrap().ino;
    let e = bench.lookup(d, "e").await.unwrap().ino;
    let f = bench.lookup(e, "f").await.unwrap().ino;
    bench.lookup(e, "f").await.unwrap();
    // The kernel may drop a directory before its entries.
    bench.table.forget(d, 1);
    bench.table.forget(e, 1);
    assert_eq!(bench.table.len(), 4);
    bench.table.forget(f, 1);
    assert_eq!(bench.table.len(), 4);
    bench.table.forget(f, 1);
    assert_eq!(bench.table.len(), 1);
    assert_error!(bench.table.getattr(f).await, ErrorKind::Stale);
    bench.table.forget(f, 1);
    bench.table.forget(ROOT, 100);
    assert_eq!(bench.walk("d/e/f").await.unwrap().stat.size, 7);
}

type Change = fn(&MemoryClient);

/// Changes of `d/a` by other clients after the lookup, and the kind of the name then.
const CHANGES: [(Change, Option<Kind>); 3] = [
    (
        |client| {
            client.remove("d/a");
        },
        None,
    ),
    (|client| drop(client.insert("d/a", "longer content")), Some(Kind::File)),
    (
        |client| {
            client.remove("d/a");
            client.insert("d/a/b", "content");
        },
        Some(Kind::Directory),
    ),
];

#[tokio::test]
async fn an_open_or_stat_of_a_removed_or_replaced_file_is_stale_then_looked_up() {
    for ttl in
        [Ttl::Minimal, Ttl::For { found: Duration::ZERO, missing: Duration::ZERO }, MINUTE, Ttl::Indefinite]
    {
        for (change, kind) in CHANGES {
            for opens in [true, false] {
                // A stat asks S3 after its TTL.
                if !opens && ttl == Ttl::Indefinite {
                    continue;
                }
                let bench = Bench::new(ttl, &["d/a", "d/c"]);
                let d = bench.lookup(ROOT, "d").await.unwrap().ino;
                for entry in bench.list(d).await {
                    bench.table.remember(d, &entry);
                }
                let a = bench.lookup(d, "a").await.unwrap().ino;
                // An open right after its lookup relies on that lookup.
                bench.clock.advance(FRESH);
                change(&bench.client);
                // O_DIRECT asks S3 under every TTL.
                if opens {
                    assert_error!(bench.table.open_read(a, true).await, ErrorKind::Stale);
                } else {
                    bench.clock.advance(Duration::from_secs(60));
                    assert_error!(bench.table.getattr(a).await, ErrorKind::Stale);
                }
                let (again, cost) = bench.cost(bench.lookup(d, "a")).await;
                assert!(cost > 0, "{ttl:?}: an answer of before the change");
                match (again, kind) {
                    (Ok(found), Some(kind)) => assert_eq!(found.stat.kind, kind, "{ttl:?}"),
                    (Err(error), None) => assert!(matches!(error.kind(), ErrorKind::NotFound), "{error}"),
                    (other, kind) => panic!("{ttl:?}: {other:?}, and it is {kind:?}"),
                }
            }
        }
    }
}
