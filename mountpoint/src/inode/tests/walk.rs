//! Walks through a tree, from pages without a delimiter.

use super::*;
use crate::listing::expiry::PAGE;

fn tree(directories: usize, files: usize) -> Vec<String> {
    (0..directories).flat_map(|d| (0..files).map(move |f| format!("d{d:03}/f{f:02}"))).collect()
}

fn bench(ttl: Ttl, keys: &[String]) -> Bench {
    Bench::new(ttl, &keys.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Lists everything, and stats every file, as `find -size` and `du` do. Returns paths and sizes.
async fn walk(bench: &Bench) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    let mut directories = vec![(ROOT, String::new())];
    while let Some((directory, path)) = directories.pop() {
        let mut below = Vec::new();
        for entry in bench.list(directory).await {
            let name = entry.name().to_owned();
            let path = format!("{path}{name}");
            let remembered = bench.table.remember(directory, &entry);
            match bench.table.getattr(remembered.ino).await.unwrap() {
                Stat { kind: Kind::Directory, .. } => below.push((remembered.ino, format!("{path}/"))),
                Stat { size, .. } => found.push((path, size)),
            }
        }
        directories.extend(below.into_iter().rev());
    }
    found
}

#[tokio::test]
async fn a_walk_with_stats_costs_the_pages_of_the_tree() {
    for ttl in [Ttl::Minimal, MINUTE, Ttl::Indefinite] {
        let keys = tree(400, 25);
        let bench = bench(ttl, &keys);
        let found = walk(&bench).await;
        assert_eq!(found, keys.iter().map(|key| (key.clone(), 7)).collect::<Vec<_>>());
        // One listing each for the root and the first directory, then ten thousand keys in pages of a thousand; a page ends within a
        // directory.
        assert!(bench.requests() <= 2 + 11, "{} requests", bench.requests());
        assert_eq!(bench.client.calls(Op::HeadObject), 0);
    }
}

#[tokio::test]
async fn a_tree_of_small_folders_in_folders_is_walked_by_pages() {
    let keys: Vec<_> = (0..5000).map(|i| format!("{:03}/{:02}/{i:05}", i / 100, i / 10 % 10)).collect();
    let bench = bench(Ttl::Minimal, &keys);
    assert_eq!(walk(&bench).await.len(), keys.len());
    assert!(bench.requests() <= 12, "{} requests", bench.requests());
}

#[tokio::test]
async fn a_walk_shows_others_changes_a_second_later_and_our_own_at_once() {
    let keys = tree(40, 5);
    let bench = bench(Ttl::Minimal, &keys);
    let mut directories = Vec::new();
    for entry in bench.list(ROOT).await {
        directories.push(bench.table.remember(ROOT, &entry).ino);
    }
    for directory in &directories[..5] {
        bench.list(*directory).await;
    }
    let before = bench.requests();
    bench.client.insert("d010/other", "");
    bench.table.unlink(directories[11], OsStr::new("f02"), true).await.unwrap();
    bench.write(directories[12], "mine", "content").await;
    bench.table.mkdir(directories[13], OsStr::new("made")).await.unwrap();
    let requests = bench.requests();
    assert!(requests > before);
    assert_eq!(bench.names(directories[10]).await, ["f00", "f01", "f02", "f03", "f04"]);
    assert_eq!(bench.requests(), requests, "out of the walk's page");
    assert_eq!(bench.names(directories[11]).await, ["f00", "f01", "f03", "f04"]);
    assert_eq!(bench.names(directories[12]).await, ["f00", "f01", "f02", "f03", "f04", "mine"]);
    assert_eq!(bench.names(directories[13]).await, ["f00", "f01", "f02", "f03", "f04", "made"]);
    bench.clock.advance(PAGE);
    bench.client.insert("d014/other", "");
    assert_eq!(bench.names(directories[14]).await, ["f00", "f01", "f02", "f03", "f04", "other"]);
}

#[tokio::test]
async fn an_entry_of_a_walk_is_a_second_old_at_most() {
    let keys = tree(8, 1);
    let bench = bench(Ttl::Minimal, &keys);
    let directories: Vec<_> =
        bench.list(ROOT).await.iter().map(|entry| bench.table.remember(ROOT, entry).ino).collect();
    for directory in &directories[..4] {
        bench.list(*directory).await;
    }
    bench.clock.advance(Duration::from_millis(600));
    let entry = bench.list(directories[4]).await.remove(0);
    let found = bench.table.remember(directories[4], &entry);
    assert_eq!((found.stat.valid_for, found.entry_valid_for), (PAGE * 4 / 10, PAGE * 4 / 10));
}

#[tokio::test]
async fn a_walk_whose_pages_fail_lists_each_directory() {
    let keys = tree(20, 2);
    let bench = bench(Ttl::Minimal, &keys);
    let directories: Vec<_> =
        bench.list(ROOT).await.iter().map(|entry| bench.table.remember(ROOT, entry).ino).collect();
    bench.list(directories[0]).await;
    bench.client.inject(FaultPlan::on(Op::ListObjects).fail(s3::ErrorKind::Denied));
    for directory in &directories[1..] {
        assert_eq!(bench.names(*directory).await, ["f00", "f01"]);
    }
}

#[tokio::test]
async fn a_walk_whose_page_does_not_come_lists_the_directory_itself() {
    let keys = tree(20, 2);
    let bench = bench(Ttl::Minimal, &keys);
    let directories: Vec<_> =
        bench.list(ROOT).await.iter().map(|entry| bench.table.remember(ROOT, entry).ino).collect();
    bench.list(directories[0]).await;
    let gate = bench.client.hold(FaultPlan::on(Op::ListObjects));
    let (names, ()) = tokio::join!(bench.names(directories[1]), async {
        gate.arrived(1).await;
        bench.clock.advance(Duration::from_secs(5));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        gate.release();
    });
    assert_eq!(names, ["f00", "f01"]);
    let lists = bench.client.log().iter().filter(|call| format!("{call:?}").contains("d001/")).count();
    assert_eq!(lists, 1, "the directory was listed while the page was held: {:?}", bench.client.log());
}

#[tokio::test]
async fn nothing_is_kept_of_a_walk_that_is_over() {
    let bench = bench(Ttl::Minimal, &tree(60, 25));
    walk(&bench).await;
    for _ in 0..3 {
        bench.clock.advance(PAGE);
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
    assert!(!bench.table.0.tree.lock().walk.has_pages());
}
