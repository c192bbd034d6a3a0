//! Listings of directories, page by page.

use super::*;

#[tokio::test]
async fn keys_that_cant_be_names_are_hidden_and_counted() {
    let keys = ["../x", "./y", "/etc", "a//b", "a/../c", "ok", "nul\0", "d/./z", "d/..", "e/"];
    let bench = Bench::new(Ttl::Minimal, &keys);
    bench.client.insert("x".repeat(256), "");
    assert_eq!(bench.names(ROOT).await, ["a", "d", "e", "ok"]);
    assert_eq!(bench.metrics.names_hidden.get(), 5);
    for (directory, shown) in [("a", 0), ("d", 0), ("e", 0)] {
        let ino = bench.lookup(ROOT, directory).await.unwrap().ino;
        assert_eq!(bench.names(ino).await.len(), shown);
    }
    assert_eq!(bench.metrics.names_hidden.get(), 9);
}

#[tokio::test]
async fn a_listed_file_is_read_without_asking_within_the_ttl() {
    let bench = Bench::new(MINUTE, &["d/a", "d/b", "d/e/f"]);
    let d = bench.lookup(ROOT, "d").await.unwrap().ino;
    assert_eq!(bench.names(d).await, ["a", "b", "e"]);
    let entries = bench.list(d).await;
    // The store must show once that its listings and objects have equal marks.
    let b = bench.lookup(d, "b").await.unwrap();
    bench.open_read(b.ino).await.unwrap();
    bench.client.reset_log();
    let a = bench.lookup(d, "a").await.unwrap();
    assert_eq!(a.ino, entries[0].ino, "readdir and stat agree");
    assert!(matches!(bench.open_read(a.ino).await.unwrap(), OpenRead::Object { size: 7, .. }));
    assert_eq!(bench.lookup(d, "e").await.unwrap().stat.kind, Kind::Directory);
    assert_error!(bench.lookup(d, "c").await, ErrorKind::NotFound);
    assert_eq!(bench.requests(), 0);
    bench.clock.advance(Duration::from_secs(60));
    assert_error!(bench.lookup(d, "c").await, ErrorKind::NotFound);
    assert_eq!(bench.requests(), 2);
}

#[tokio::test]
async fn a_whole_listing_is_repeated_from_memory_until_something_changes_here() {
    let bench = Bench::new(MINUTE, &["a", "b"]);
    bench.list(ROOT).await;
    let (names, cost) = bench.cost(bench.names(ROOT)).await;
    assert_eq!((names, cost), (vec!["a".to_string(), "b".to_string()], 0));
    bench.write(ROOT, "c", "").await;
    assert_eq!(bench.names(ROOT).await, ["a", "b", "c"]);
    bench.table.unlink(ROOT, OsStr::new("a"), true).await.unwrap();
    assert_eq!(bench.names(ROOT).await, ["b", "c"]);
    let bench = Bench::new(Ttl::Minimal, &["a"]);
    bench.list(ROOT).await;
    bench.client.insert("b", "");
    assert_eq!(bench.names(ROOT).await, ["a", "b"], "without a TTL a listing is always of now");
}

#[tokio::test]
async fn what_changed_here_since_a_listing_is_not_answered_by_it() {
    let bench = Bench::new(MINUTE, &["a", "b"]);
    bench.list(ROOT).await;
    let a = bench.lookup(ROOT, "a").await.unwrap().ino;
    bench.overwrite(a, "longer content").await;
    bench.table.unlink(ROOT, OsStr::new("b"), true).await.unwrap();
    let c = bench.write(ROOT, "c", "c").await;
    bench.table.forget(a, 1);
    bench.table.forget(c, 1);
    assert_eq!(bench.table.len(), 1);
    assert_eq!(bench.lookup(ROOT, "a").await.unwrap().stat.size, 14);
    assert_error!(bench.lookup(ROOT, "b").await, ErrorKind::NotFound);
    assert_eq!(bench.lookup(ROOT, "c").await.unwrap().stat.size, 1);
}

#[tokio::test]
async fn an_open_listing_leaves_out_what_s3_said_is_gone_since_its_page() {
    let bench = Bench::new(Ttl::Minimal, &["a", "b", "c"]);
    let listing = bench.table.opendir(ROOT).await.unwrap();
    let first = listing.entries(&bench.table, 2, 1).await.unwrap();
    assert_eq!(first[0].name(), "a");
    bench.client.remove("b");
    bench.client.remove("c");
    assert_error!(bench.lookup(ROOT, "b").await, ErrorKind::NotFound);
    let rest = listing.entries(&bench.table, first[0].offset, 7).await.unwrap();
    let names: Vec<_> = rest.iter().map(DirEntry::name).collect();
    assert_eq!(names, ["c"], "only the page says something of it");
    drop((first, rest, listing));
    bench.clock.advance(FRESH);
    assert_error!(bench.lookup(ROOT, "d").await, ErrorKind::NotFound);
    assert!(
        bench.table.0.tree.lock().facts.since(ROOT, "b", 0).is_none(),
        "no page is left that needs the fact"
    );
}

#[tokio::test]
async fn any_offset_can_be_gone_back_to() {
    let keys: Vec<String> = (0..50).map(|i| format!("k{i:02}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let bench = Bench::with(Config { list_page: 10, ..Config::default() }, &keys);
    let listing = bench.table.opendir(ROOT).await.unwrap();
    let mut all: Vec<(String, u64, u64)> = Vec::new();
    let mut offset = 0;
    loop {
        let entries = listing.entries(&bench.table, offset, 4).await.unwrap();
        let Some(last) = entries.last() else { break };
        all.extend(entries.iter().map(|e| (e.name().into(), e.ino.0, e.offset)));
        offset = last.offset;
    }
    assert_eq!(all.len(), 52);
    let requests = bench.requests();
    for (i, (_, _, offset)) in all.iter().enumerate().rev() {
        let entries = listing.entries(&bench.table, *offset, 3).await.unwrap();
        let again: Vec<_> = entries.iter().map(|e| (e.name().to_string(), e.ino.0, e.offset)).collect();
        let expected = &all[i + 1..(i + 4).min(all.len())];
        // A batch may be shorter than asked, but never empty before the end.
        assert!(!again.is_empty() || expected.is_empty());
        assert_eq!(again, expected[..again.len()]);
    }
    assert_eq!(bench.requests(), requests, "what was listed is kept");
    bench.client.insert("a", "");
    let names = |entries: &[DirEntry]| entries.iter().map(|e| e.name().to_owned()).collect::<Vec<_>>();
    let fresh = listing.entries(&bench.table, 0, 2).await.unwrap();
    assert_eq!(names(&fresh), [".", ".."]);
    assert_eq!(names(&listing.entries(&bench.table, 2, 1).await.unwrap()), ["a"], "a rewind lists anew");
}

#[tokio::test]
async fn the_next_page_is_asked_for_while_one_is_consumed() {
    let keys: Vec<String> = (0..25).map(|i| format!("k{i:02}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let bench = Bench::with(Config { list_page: 10, ..Config::default() }, &keys);
    let listing = bench.table.opendir(ROOT).await.unwrap();
    assert_eq!(bench.requests(), 0);
    let gate = bench.client.hold(FaultPlan::on(Op::ListObjects).nth(2));
    listing.entries(&bench.table, 2, 1).await.unwrap();
    gate.arrived(1).await;
    // The first page still answers without a wait; entries behind it need a request.
    let last = listing.try_entries(&bench.table, 3, 100).unwrap().unwrap().pop().unwrap();
    assert!(listing.try_entries(&bench.table, last.offset, 1).is_none());
    gate.release();
    assert_eq!(listing.entries(&bench.table, last.offset, 100).await.unwrap().len(), 10);
}

#[tokio::test]
async fn a_page_that_fails_is_asked_for_again() {
    let bench = Bench::new(Ttl::Minimal, &["a"]);
    let listing = bench.table.opendir(ROOT).await.unwrap();
    bench.client.inject(FaultPlan::on(Op::ListObjects).fail(s3::ErrorKind::Throttled));
    assert_error!(listing.entries(&bench.table, 2, 9).await, ErrorKind::Remote(_));
    assert_eq!(listing.entries(&bench.table, 2, 9).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_page_from_before_an_unlink_does_not_show_the_name() {
    let bench = Bench::new(MINUTE, &["a", "b"]);
    bench.lookup(ROOT, "a").await.unwrap();
    let listing = bench.table.opendir(ROOT).await.unwrap();
    let gate = bench.client.hold_answer(FaultPlan::on(Op::ListObjects));
    let (entries, ()) = tokio::join!(listing.entries(&bench.table, 2, 9), async {
        gate.arrived(1).await;
        bench.table.unlink(ROOT, OsStr::new("a"), true).await.unwrap();
        gate.release();
    });
    let names: Vec<_> = entries.unwrap().iter().map(|e| e.name().to_owned()).collect();
    assert_eq!(names, ["b"]);
    assert_error!(bench.lookup(ROOT, "a").await, ErrorKind::NotFound);
}

#[tokio::test]
async fn an_entry_outdated_on_its_way_to_the_kernel_is_looked_up_again() {
    let bench = Bench::new(MINUTE, &["a"]);
    let listing = bench.table.opendir(ROOT).await.unwrap();
    let entry = listing.entries(&bench.table, 2, 9).await.unwrap().pop().unwrap();
    bench.table.unlink(ROOT, OsStr::new("a"), true).await.unwrap();
    let found = bench.table.remember(ROOT, &entry);
    assert_eq!((found.entry_valid_for, found.stat.valid_for), (Duration::ZERO, Duration::ZERO));
    assert_error!(bench.lookup(ROOT, "a").await, ErrorKind::NotFound);
    bench.table.forget(found.ino, 1);
    drop(listing);
    assert_eq!(bench.table.len(), 1);
}

#[tokio::test]
async fn a_remembered_entry_is_a_lookup() {
    let bench = Bench::new(Ttl::Minimal, &["a", "d/x"]);
    for entry in bench.list(ROOT).await {
        let found = bench.table.remember(ROOT, &entry);
        assert_eq!(found.ino, entry.ino);
        let (again, cost) = bench.cost(bench.lookup(ROOT, entry.name())).await;
        assert_eq!((again.unwrap().ino, cost), (entry.ino, 0));
        bench.table.forget(entry.ino, 2);
    }
    assert_eq!(bench.table.len(), 1);
    // A listing does not replace the open's own lookup: the open must ask S3.
    let a = bench.list(ROOT).await.remove(0);
    bench.table.remember(ROOT, &a);
    assert!(bench.table.try_open_read(a.ino).is_none());
}

#[tokio::test]
async fn a_listing_finds_new_versions() {
    let bench = Bench::new(Ttl::Minimal, &["a"]);
    let old = bench.lookup(ROOT, "a").await.unwrap();
    bench.client.insert("a", "longer content");
    let entry = bench.list(ROOT).await.remove(0);
    assert_eq!(entry.stat.size, 14);
    assert_ne!(entry.ino, old.ino);
    assert_eq!(bench.table.remember(ROOT, &entry).ino, entry.ino);
    assert_eq!(bench.lookup(ROOT, "a").await.unwrap().ino, entry.ino);
}

#[tokio::test]
async fn a_closed_listing_lets_its_directory_go() {
    let bench = Bench::new(MINUTE, &["d/a"]);
    let d = bench.lookup(ROOT, "d").await.unwrap().ino;
    let listing = bench.table.opendir(d).await.unwrap();
    bench.table.forget(d, 1);
    assert_eq!(listing.entries(&bench.table, 2, 9).await.unwrap().len(), 1);
    drop(listing);
    assert_eq!(bench.table.len(), 1);
}

#[tokio::test]
async fn a_hundred_thousand_names_are_listed_once_each_in_few_requests() {
    let bench = Bench::new(MINUTE, &[]);
    for i in 0..100_000 {
        bench.client.insert(format!("name-{i:06}"), "");
    }
    let listing = bench.table.opendir(ROOT).await.unwrap();
    let (mut count, mut offset) = (0, 2);
    loop {
        let entries = listing.entries(&bench.table, offset, 500).await.unwrap();
        let Some(last) = entries.last() else { break };
        for entry in &entries {
            assert_eq!(*entry.name(), *format!("name-{count:06}"));
            count += 1;
        }
        offset = last.offset;
    }
    let requests = bench.requests();
    assert_eq!(count, 100_000);
    assert!((100..=130).contains(&requests), "{requests} requests for 100 pages");
    assert_eq!(bench.lookup(ROOT, "name-077777").await.unwrap().stat.kind, Kind::File);
    assert_eq!(bench.requests(), requests);
}

#[tokio::test]
async fn remembered_listings_stay_within_their_limit() {
    let bench = Bench::new(MINUTE, &[]);
    let per_directory = Tree::LISTED_ENTRIES_MAX / 2 - 1;
    for d in 0..3 {
        for i in 0..per_directory {
            bench.client.insert(format!("{d}/{i:06}"), "");
        }
    }
    let mut directories = Vec::new();
    for d in ["0", "1", "2"] {
        let ino = bench.lookup(ROOT, d).await.unwrap().ino;
        let listing = bench.table.opendir(ino).await.unwrap();
        let mut offset = 2;
        while let Some(last) = listing.entries(&bench.table, offset, 5000).await.unwrap().last() {
            offset = last.offset;
        }
        directories.push(ino);
    }
    for (ino, requests) in directories.into_iter().zip([2, 0, 0]) {
        let (found, cost) = bench.cost(bench.lookup(ino, "000001")).await;
        found.unwrap();
        assert_eq!(cost, requests);
    }
}
