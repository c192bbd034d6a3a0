//! Names that are absent without a question (`--mode full`).

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn bench(keys: &[&str]) -> Bench {
    Bench::with(Config { unasked: Unasked::SECOND, ..Config::default() }, keys)
}

impl Bench {
    /// The requests of a lookup that finds nothing.
    async fn misses(&self, parent: InodeNo, name: &str) -> usize {
        let (found, cost) = self.cost(self.lookup(parent, name)).await;
        assert_error!(found, ErrorKind::NotFound);
        cost
    }

    async fn mkdir(&self, parent: InodeNo, name: &str) -> InodeNo {
        self.table.mkdir(parent, OsStr::new(name)).await.unwrap().ino
    }
}

#[tokio::test]
async fn files_in_a_directory_made_here_cost_one_page_a_second() {
    let bench = bench(&[]);
    let directory = bench.mkdir(ROOT, "d").await;
    let mut costs = Vec::new();
    for second in 0..4 {
        let before = bench.requests();
        for n in 0..100 {
            let name = format!("{n:03}-{second}");
            bench.misses(directory, &name).await;
            let made = bench.write(directory, &name, "content").await;
            bench.table.forget(made, 1);
            bench.clock.advance(Duration::from_millis(5));
        }
        costs.push(bench.requests() - before);
        bench.clock.advance(SECOND);
    }
    assert_eq!(costs, [0, 1, 1, 1]);
}

#[tokio::test]
async fn a_directory_made_here_shows_what_others_store_a_second_later() {
    let bench = bench(&[]);
    let directory = bench.mkdir(ROOT, "d").await;
    assert_eq!(bench.misses(directory, "theirs").await, 0);
    bench.client.insert("d/theirs", "content");
    bench.clock.advance(SECOND - Duration::from_millis(1));
    assert_eq!(bench.misses(directory, "theirs").await, 0);
    bench.clock.advance(Duration::from_millis(1));
    bench.lookup(directory, "theirs").await.unwrap();
    // The page of that lookup has all names of the directory.
    assert_eq!(bench.misses(directory, "absent").await, 0);
    bench.clock.advance(SECOND);
    assert!(bench.misses(directory, "absent").await > 0);
}

#[tokio::test]
async fn what_was_stored_here_and_forgotten_is_found_again() {
    let bench = bench(&[]);
    let directory = bench.mkdir(ROOT, "d").await;
    let ino = bench.write(directory, "a", "content").await;
    bench.table.forget(ino, 1);
    assert!(!bench.table.lives(ino));
    bench.lookup(directory, "a").await.unwrap();
    assert_eq!(bench.misses(directory, "b").await, 0);
}

#[tokio::test]
async fn what_a_listing_shows_in_a_directory_made_here_is_found() {
    let bench = bench(&[]);
    let directory = bench.mkdir(ROOT, "d").await;
    bench.client.insert("d/theirs", "content");
    assert_eq!(bench.misses(directory, "theirs").await, 0);
    // An fsync of the directory opens it, and reads no name.
    drop(bench.table.opendir(directory).await.unwrap());
    assert_eq!(bench.misses(directory, "theirs").await, 0);
    assert_eq!(bench.names(directory).await, ["theirs"]);
    bench.lookup(directory, "theirs").await.unwrap();
    // Also one that a page of before the listing lacks.
    bench.clock.advance(2 * SECOND);
    bench.misses(directory, "absent").await;
    bench.client.insert("d/another", "content");
    assert_eq!(bench.misses(directory, "another").await, 0);
    assert_eq!(bench.names(directory).await, ["another", "theirs"]);
    bench.lookup(directory, "another").await.unwrap();
}

#[tokio::test]
async fn a_directory_made_from_memory_is_not_known_for_longer_than_that_memory() {
    let bench = bench(&[]);
    let directory = bench.mkdir(ROOT, "d").await;
    bench.clock.advance(SECOND / 2);
    bench.client.insert("d/e/theirs", "content");
    let (below, cost) = bench.cost(bench.mkdir(directory, "e")).await;
    assert_eq!((cost, bench.misses(below, "theirs").await), (0, 0));
    bench.clock.advance(SECOND / 2);
    bench.lookup(below, "theirs").await.unwrap();
}

#[tokio::test]
async fn a_directory_that_gets_another_name_knows_nothing_of_absent_names() {
    let bench = bench(&[]);
    let directory = bench.mkdir(ROOT, "d").await;
    bench.write(directory, "a", "content").await;
    bench.client.insert("e/a", "content");
    bench.client.insert("e/theirs", "content");
    {
        let mut tree = bench.table.0.tree.lock();
        let below = [("a".to_owned(), bench.client.meta("e/a").unwrap())].into();
        tree.moves_directory(directory, ROOT, "e", &below, bench.clock.now());
    }
    bench.lookup(directory, "theirs").await.unwrap();
}

#[tokio::test]
async fn a_name_that_comes_and_goes_is_asked_for_once_a_second() {
    let bench = bench(&["base"]);
    assert!(bench.misses(ROOT, "base-journal").await > 0);
    for _ in 0..50 {
        assert_eq!(bench.misses(ROOT, "base-journal").await, 0);
        let (made, cost) = bench.cost(bench.table.create(ROOT, OsStr::new("base-journal"))).await;
        let made = made.unwrap().ino;
        assert_eq!(cost, 0);
        bench.clock.advance(SECOND / 2);
        bench.table.stage(made, 1, None).unwrap();
        bench.table.unlink_staged(made, false).await.unwrap();
        bench.table.forget(made, 1);
    }
    bench.client.insert("base-journal", "theirs");
    bench.clock.advance(SECOND);
    bench.lookup(ROOT, "base-journal").await.unwrap();
}

#[tokio::test]
async fn without_that_setting_each_absent_name_is_asked_for() {
    let bench = Bench::new(Ttl::Minimal, &[]);
    let directory = bench.mkdir(ROOT, "d").await;
    for _ in 0..2 {
        assert!(bench.misses(directory, "a").await > 0);
    }
}

#[tokio::test]
async fn the_kernel_keeps_attributes_of_a_file_in_the_stage_and_not_its_name() {
    let bench = bench(&[]);
    let made = bench.table.create(ROOT, OsStr::new("a")).await.unwrap();
    bench.table.stage(made.ino, 1, None).unwrap();
    let found = bench.lookup(ROOT, "a").await.unwrap();
    assert_eq!(found.stat.valid_for, Ttl::Minimal.file());
    assert_eq!(found.entry_valid_for, Duration::ZERO, "it disappears at once if it is not stored");
    assert_eq!(bench.table.getattr(made.ino).await.unwrap().valid_for, Ttl::Minimal.file());
    bench.table.unlink_staged(made.ino, false).await.unwrap();
    assert_error!(bench.lookup(ROOT, "a").await, ErrorKind::NotFound);
}
