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

    /// Makes a file in the stage for this long, and removes the file before it is sent.
    async fn comes_and_goes(&self, name: &str, for_long: Duration) {
        let (made, cost) = self.cost(self.table.create(ROOT, OsStr::new(name))).await;
        let made = made.unwrap().ino;
        assert_eq!(cost, 0);
        self.clock.advance(for_long);
        self.table.stage(made, 1, None).unwrap();
        self.table.unlink_staged(made, false).await.unwrap();
        self.table.forget(made, 1);
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
async fn a_directory_made_from_an_old_listing_shows_what_others_stored_since() {
    let config = Config { ttl: MINUTE, unasked: Unasked::SECOND, ..Config::default() };
    let bench = Bench::with(config, &["a"]);
    bench.names(ROOT).await;
    bench.client.insert("d/theirs", "content");
    bench.clock.advance(59 * SECOND);
    let (directory, cost) = bench.cost(bench.mkdir(ROOT, "d")).await;
    assert_eq!((cost, bench.misses(directory, "theirs").await), (0, 0));
    bench.clock.advance(SECOND);
    bench.lookup(directory, "theirs").await.unwrap();
}

#[tokio::test]
async fn a_directory_that_owes_its_marker_lacks_names_until_that_is_stored() {
    let bench = bench(&[]);
    let directory = bench.mkdir(ROOT, "d").await;
    bench.table.owes_marker(directory, true);
    bench.clock.advance(10 * SECOND);
    let (below, cost) = bench.cost(bench.mkdir(directory, "e")).await;
    bench.table.owes_marker(below, true);
    assert_eq!((cost, bench.misses(directory, "a").await, bench.misses(below, "a").await), (0, 0, 0));
    // Also a name that comes and goes.
    let made = bench.table.create(directory, OsStr::new("lock")).await.unwrap().ino;
    bench.table.stage(made, 1, None).unwrap();
    bench.table.unlink_staged(made, false).await.unwrap();
    bench.table.forget(made, 1);
    bench.clock.advance(10 * SECOND);
    assert_eq!(bench.misses(directory, "lock").await, 0);
    bench.client.insert("d/theirs", "content");
    bench.client.insert("d/e/theirs", "content");
    assert_eq!(bench.misses(directory, "theirs").await, 0);
    for ino in [directory, below] {
        bench.table.stored_directory(ino);
        bench.lookup(ino, "theirs").await.unwrap();
    }
}

#[tokio::test]
async fn a_listing_ends_what_a_directory_that_owes_its_marker_lacks() {
    let bench = bench(&[]);
    let directory = bench.mkdir(ROOT, "d").await;
    bench.table.owes_marker(directory, true);
    bench.client.insert("d/theirs", "content");
    assert_eq!(bench.misses(directory, "theirs").await, 0);
    assert_eq!(bench.names(directory).await, ["theirs"]);
    bench.lookup(directory, "theirs").await.unwrap();
}

#[tokio::test]
async fn a_name_that_comes_and_goes_is_asked_for_once_a_second() {
    let bench = bench(&["base"]);
    let mut asked = 0;
    for _ in 0..50 {
        asked += usize::from(bench.misses(ROOT, "base-journal").await > 0);
        bench.comes_and_goes("base-journal", SECOND / 2).await;
    }
    assert_eq!(asked, 25);
}

#[tokio::test]
async fn files_that_come_and_go_hide_the_name_of_another_client_for_a_second() {
    let bench = bench(&[]);
    assert!(bench.misses(ROOT, "journal").await > 0);
    bench.comes_and_goes("journal", SECOND * 2 / 5).await;
    bench.client.insert("journal", "theirs");
    bench.comes_and_goes("journal", SECOND * 2 / 5).await;
    assert_eq!(bench.misses(ROOT, "journal").await, 0);
    bench.clock.advance(SECOND / 5);
    bench.lookup(ROOT, "journal").await.unwrap();
}

#[tokio::test]
async fn a_renamed_file_hides_the_name_of_another_client_for_a_second() {
    let bench = bench(&[]);
    let (from, to) = (OsStr::new("from"), OsStr::new("to"));
    assert!(bench.misses(ROOT, "from").await > 0);
    let made = bench.table.create(ROOT, from).await.unwrap().ino;
    bench.clock.advance(SECOND / 2);
    bench.client.insert("from", "theirs");
    assert!(bench.misses(ROOT, "to").await > 0);
    let renamed = bench.table.rename((ROOT, from), (ROOT, to), RenameWish::default()).await.unwrap();
    assert_eq!(renamed, Rename::Done);
    assert_eq!(bench.misses(ROOT, "from").await, 0);
    bench.clock.advance(SECOND / 4);
    bench.client.insert("to", "theirs");
    bench.table.stage(made, 1, None).unwrap();
    bench.table.unlink_staged(made, false).await.unwrap();
    bench.clock.advance(SECOND / 4);
    bench.lookup(ROOT, "from").await.unwrap();
    assert_eq!(bench.misses(ROOT, "to").await, 0);
    bench.clock.advance(SECOND / 2);
    bench.lookup(ROOT, "to").await.unwrap();
}

#[tokio::test]
async fn close_to_open_asks_for_what_a_page_lacks() {
    let unasked = Unasked { by_name: Duration::ZERO, ..Unasked::SECOND };
    let bench = Bench::with(Config { unasked, ..Config::default() }, &["d/a"]);
    let directory = bench.walk("d").await.unwrap().ino;
    for n in 0..64 {
        bench.misses(directory, &format!("n{n:02}")).await;
    }
    assert!(bench.table.0.tree.lock().recent_pages() > 0, "no page came");
    bench.client.insert("d/theirs", "content");
    bench.lookup(directory, "theirs").await.unwrap();
}

#[tokio::test]
async fn a_page_does_not_hide_a_directory_of_a_folder_mark() {
    let config = Config { folder_marks: true, unasked: Unasked::SECOND, ..Config::default() };
    let bench = Bench::with(config, &[]);
    let directory = bench.mkdir(ROOT, "d").await;
    bench.client.insert("d/marked_$folder$", "");
    bench.clock.advance(SECOND);
    bench.misses(directory, "absent").await;
    assert_eq!(bench.lookup(directory, "marked").await.unwrap().stat.kind, Kind::Directory);
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

/// Makes directories with ten files each, this far apart. Returns the most facts that were kept at once.
async fn facts_of_many_directories(bench: &Bench, directories: usize, apart: Duration) -> usize {
    let mut most = 0;
    for n in 0..directories {
        bench.lookup(ROOT, &format!("d{n}")).await.unwrap_err();
        let directory = bench.mkdir(ROOT, &format!("d{n}")).await;
        for name in 0..10 {
            let name = name.to_string();
            bench.misses(directory, &name).await;
            let made = bench.write(directory, &name, "content").await;
            bench.table.forget(made, 1);
        }
        bench.clock.advance(apart);
        most = most.max(bench.table.0.tree.lock().facts.kept());
    }
    most
}

#[tokio::test]
async fn names_of_directories_made_here_are_remembered_for_a_second() {
    let bench = bench(&[]);
    // A hundred directories a second have 1,000 facts, and the pages of the directory above them have one for each.
    let most = facts_of_many_directories(&bench, 1_000, SECOND / 100).await;
    assert!(most <= 2_100, "{most} facts of 11,000 names");
    assert!(bench.table.0.tree.lock().bare_directories() <= 101);
}

#[tokio::test]
async fn where_names_are_remembered_for_long_the_oldest_directories_go() {
    let unasked = Unasked { by_name: Duration::ZERO, in_directory: 60 * 60 * SECOND };
    let bench = Bench::with(Config { unasked, ..Config::default() }, &[]);
    let first = bench.mkdir(ROOT, "first").await;
    assert_eq!(bench.misses(first, "absent").await, 0);
    {
        let mut tree = bench.table.0.tree.lock();
        let at = tree.event();
        for n in 0..=300_000 {
            tree.facts.observe(
                InodeNo(1_000 + n / 1_000),
                &n.to_string(),
                crate::inode::facts::What::Present,
                at,
                true,
            );
        }
    }
    assert!(bench.misses(first, "absent").await > 0, "it is asked for");
}
