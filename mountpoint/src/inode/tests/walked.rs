//! Facts that this mount learned after the request for a walk's page, against listings from that page.

use std::collections::BTreeMap;

use super::*;

const TTLS: [Ttl; 3] = [Ttl::Minimal, MINUTE, Ttl::Indefinite];

/// The bench after a walk of twelve directories: a page with the rest of the tree is in memory.
struct Walked {
    bench: Bench,
    /// Inodes by path.
    inodes: BTreeMap<&'static str, InodeNo>,
}

impl Walked {
    /// A bench after a walk. `known`: paths to look up before the walk. `before`: changes by another client between these lookups and the
    /// walk.
    async fn new(
        ttl: Ttl,
        keys: &[&str],
        known: &[&'static str],
        before: impl FnOnce(&MemoryClient),
    ) -> Self {
        let bench = Bench::new(ttl, keys);
        (0..12).for_each(|i| drop(bench.client.insert(format!("k/{i:02}/z"), "content")));
        let mut inodes = BTreeMap::new();
        for path in known {
            inodes.insert(*path, bench.walk(path).await.unwrap().ino);
        }
        before(&bench.client);
        for i in 0..12 {
            let directory = bench.walk(&format!("k/{i:02}")).await.unwrap().ino;
            assert_eq!(bench.names(directory).await, ["z"]);
        }
        assert!(bench.table.0.tree.lock().walk.has_pages());
        Self { bench, inodes }
    }

    /// Looks a path up.
    async fn find(&mut self, path: &'static str) -> InodeNo {
        let ino = self.bench.walk(path).await.unwrap().ino;
        self.inodes.insert(path, ino);
        ino
    }

    async fn names(&self, path: &'static str) -> Vec<String> {
        self.bench.names(self.inodes[path]).await
    }

    /// Lists a directory twice and compares the names: the remembered listing must show the same.
    async fn assert_names(&self, path: &'static str, expected: &[&str]) {
        for _ in 0..2 {
            assert_eq!(self.names(path).await, expected, "{path}");
        }
    }
}

#[tokio::test]
async fn a_walks_page_keeps_a_directory_where_this_and_another_client_stored() {
    for ttl in TTLS {
        let mut walked = Walked::new(ttl, &[], &[], |_| {}).await;
        walked.bench.client.insert("k/12/src/a", "theirs");
        walked.find("k/12").await;
        let src = walked.find("k/12/src").await;
        walked.find("k/12/src/a").await;
        walked.bench.write(src, "b", "mine").await;
        walked.assert_names("k/12", &["src"]).await;
        walked.assert_names("k/12/src", &["a", "b"]).await;
    }
}

#[tokio::test]
async fn a_walks_page_keeps_a_directory_where_only_this_mount_stored() {
    for ttl in TTLS {
        let emptied = |client: &MemoryClient| assert!(client.remove("k/12/src/a"));
        let known = ["k/12", "k/12/src"];
        let walked = Walked::new(ttl, &["k/12/src/a", "k/12/z"], &known, emptied).await;
        walked.bench.write(walked.inodes["k/12/src"], "b", "mine").await;
        walked.assert_names("k/12", &["src", "z"]).await;
        walked.assert_names("k/12/src", &["b"]).await;
    }
}

#[tokio::test]
async fn a_walks_page_does_not_hide_a_file_that_was_just_looked_up_and_opened() {
    for (ttl, keys) in TTLS.into_iter().flat_map(|ttl| [(ttl, &["k/12/z"][..]), (ttl, &[])]) {
        let mut walked = Walked::new(ttl, keys, &[], |_| {}).await;
        walked.bench.client.insert("k/12/new", "theirs");
        walked.find("k/12").await;
        let new = walked.find("k/12/new").await;
        assert!(matches!(walked.bench.open_read(new).await.unwrap(), OpenRead::Object { .. }));
        let expected: &[_] = if keys.is_empty() { &["new"] } else { &["new", "z"] };
        walked.assert_names("k/12", expected).await;
    }
}

#[tokio::test]
async fn a_walks_page_does_not_hide_a_file_that_was_looked_up_and_forgotten() {
    for ttl in TTLS {
        let mut walked = Walked::new(ttl, &["k/12/z"], &[], |_| {}).await;
        walked.bench.client.insert("k/12/new", "theirs");
        walked.find("k/12").await;
        let new = walked.find("k/12/new").await;
        walked.bench.table.forget(new, 1);
        assert!(walked.bench.table.key_of(new).is_none(), "nothing of it lives");
        walked.assert_names("k/12", &["new", "z"]).await;
    }
}

#[tokio::test]
async fn a_walks_page_keeps_a_directory_that_was_just_looked_up() {
    for (ttl, keys) in TTLS.into_iter().flat_map(|ttl| [(ttl, &["k/12/z"][..]), (ttl, &[])]) {
        let mut walked = Walked::new(ttl, keys, &[], |_| {}).await;
        walked.bench.client.insert("k/12/made/x", "theirs");
        walked.find("k/12").await;
        walked.find("k/12/made").await;
        let expected: &[_] = if keys.is_empty() { &["made"] } else { &["made", "z"] };
        walked.assert_names("k/12", expected).await;
        walked.assert_names("k/12/made", &["x"]).await;
    }
}

#[tokio::test]
async fn a_walks_page_keeps_our_directory_that_another_client_stored_in() {
    for ttl in [Ttl::Minimal, MINUTE] {
        let mut walked = Walked::new(ttl, &["k/12/z"], &["k/12"], |_| {}).await;
        let made = walked.bench.table.mkdir(walked.inodes["k/12"], OsStr::new("made")).await.unwrap();
        walked.inodes.insert("k/12/made", made.ino);
        // Pages requested after the directory was made.
        walked.bench.clock.advance(Duration::from_secs(61));
        for i in 0..12 {
            let directory = walked.bench.walk(&format!("k/{i:02}")).await.unwrap().ino;
            walked.bench.names(directory).await;
        }
        walked.bench.client.insert("k/12/made/x", "theirs");
        // A recent answer stays valid for a moment.
        walked.bench.table.0.tree.lock().directory_mut(made.ino).unwrap().checked = None;
        walked.find("k/12/made").await;
        walked.assert_names("k/12", &["made", "z"]).await;
        walked.assert_names("k/12/made", &["x"]).await;
    }
}

#[tokio::test]
async fn a_walks_page_keeps_a_directory_with_a_child_that_was_just_looked_up() {
    for ttl in TTLS {
        let emptied = |client: &MemoryClient| assert!(client.remove("k/12/p/x"));
        let known = ["k/12", "k/12/p"];
        let mut walked = Walked::new(ttl, &["k/12/p/x", "k/12/z"], &known, emptied).await;
        walked.bench.client.insert("k/12/p/q/y", "theirs");
        walked.find("k/12/p/q").await;
        walked.assert_names("k/12", &["p", "z"]).await;
        walked.assert_names("k/12/p", &["q"]).await;
        walked.assert_names("k/12/p/q", &["y"]).await;
    }
}

#[tokio::test]
async fn a_walks_page_does_not_hide_what_a_newer_listing_showed() {
    for ttl in TTLS {
        let mut walked = Walked::new(ttl, &["k/12/z"], &["k/12"], |_| {}).await;
        walked.bench.client.insert("k/12/made/x", "theirs");
        // This mount changes the directory, so the directory needs its own listing.
        walked.bench.write(walked.inodes["k/12"], "mine", "mine").await;
        let entries = walked.bench.list(walked.inodes["k/12"]).await;
        assert_eq!(entries.iter().map(DirEntry::name).collect::<Vec<_>>(), ["made", "mine", "z"]);
        let made = walked.bench.table.remember(walked.inodes["k/12"], &entries[0]).ino;
        walked.inodes.insert("k/12/made", made);
        walked.assert_names("k/12/made", &["x"]).await;
        walked.assert_names("k/12", &["made", "mine", "z"]).await;
    }
}

#[tokio::test]
async fn a_walks_page_does_not_bring_back_a_name_that_was_seen_to_be_gone() {
    for ttl in TTLS {
        let keys = ["k/12/gone", "k/12/sub/q", "k/12/z"];
        let walked = Walked::new(ttl, &keys, &["k/12"], |_| {}).await;
        walked.bench.client.remove("k/12/gone");
        walked.bench.client.remove("k/12/sub/q");
        for name in ["gone", "sub"] {
            assert_error!(walked.bench.lookup(walked.inodes["k/12"], name).await, ErrorKind::NotFound);
        }
        walked.assert_names("k/12", &["z"]).await;
    }
}

#[tokio::test]
async fn a_walks_page_on_its_way_hides_no_name_that_was_learned_meanwhile() {
    for ttl in TTLS {
        let bench = Bench::new(ttl, &["k/03/gone", "k/03/z", "k/04/z"]);
        (0..3).for_each(|i| drop(bench.client.insert(format!("k/{i:02}/z"), "content")));
        let mut inodes = Vec::new();
        for i in 0..4 {
            inodes.push(bench.walk(&format!("k/{i:02}")).await.unwrap().ino);
        }
        bench.names(inodes[0]).await;
        bench.names(inodes[1]).await;
        let gate = bench.client.hold_answer(FaultPlan::on(Op::ListObjects));
        let third = tokio::spawn({
            let listing = bench.table.opendir(inodes[2]).await.unwrap();
            let table = bench.table.clone();
            async move { listing.entries(&table, 2, 7).await.unwrap().len() }
        });
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        assert!(bench.table.0.tree.lock().walk.has_pages());
        bench.client.insert("k/03/new", "theirs");
        bench.client.remove("k/03/gone");
        let new = bench.lookup(inodes[3], "new").await.unwrap();
        bench.table.forget(new.ino, 1);
        assert_error!(bench.lookup(inodes[3], "gone").await, ErrorKind::NotFound);
        gate.release();
        assert_eq!(third.await.unwrap(), 1);
        for _ in 0..2 {
            assert_eq!(bench.names(inodes[3]).await, ["new", "z"]);
        }
    }
}

#[tokio::test]
async fn a_walks_page_that_says_what_was_learned_since_costs_no_listing() {
    let keys: Vec<_> = (12..40).map(|i| format!("k/{i}/z")).chain(["k/12/".to_owned()]).collect();
    let keys: Vec<_> = keys.iter().map(String::as_str).filter(|key| *key != "k/12/z").collect();
    let walked = Walked::new(Ttl::Minimal, &keys, &[], |_| {}).await;
    let mut listed = 0;
    for i in 12..40 {
        let directory = walked.bench.walk(&format!("k/{i}")).await.unwrap().ino;
        let found = walked.bench.lookup(directory, "z").await;
        assert_eq!(found.is_ok(), i > 12, "{i}");
        assert_error!(walked.bench.lookup(directory, "never").await, ErrorKind::NotFound);
        let (names, cost) = walked.bench.cost(walked.bench.names(directory)).await;
        assert_eq!(names.len(), usize::from(i > 12));
        listed += cost;
    }
    assert_eq!(listed, 0, "out of the walk's page");
}

#[tokio::test]
async fn a_listing_on_its_way_hides_no_name_that_was_learned_meanwhile() {
    let ttl = Ttl::For { found: Duration::from_secs(60), missing: Duration::from_secs(60) };
    let bench = Bench::new(ttl, &["d/gone", "d/z"]);
    let directory = bench.walk("d").await.unwrap().ino;
    let gate = bench.client.hold_answer(FaultPlan::on(Op::ListObjects));
    let listed = tokio::spawn({
        let listing = bench.table.opendir(directory).await.unwrap();
        let table = bench.table.clone();
        async move { listing.entries(&table, 2, 7).await.unwrap().len() }
    });
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    bench.client.insert("d/new", "theirs");
    bench.client.remove("d/gone");
    bench.lookup(directory, "new").await.unwrap();
    assert_error!(bench.lookup(directory, "gone").await, ErrorKind::NotFound);
    gate.release();
    listed.await.unwrap();
    assert_eq!(bench.names(directory).await, ["new", "z"]);
    assert_error!(bench.lookup(directory, "gone").await, ErrorKind::NotFound);
}

#[tokio::test]
async fn a_remembered_listing_keeps_a_directory_where_this_mount_stored() {
    // The fact about the directory is older than the listing in between.
    let bench = Bench::new(MINUTE, &["d/src/a", "d/z"]);
    let directory = bench.walk("d").await.unwrap().ino;
    let src = bench.walk("d/src").await.unwrap().ino;
    bench.client.remove("d/src/a");
    assert_eq!(bench.names(directory).await, ["z"]);
    bench.write(src, "b", "mine").await;
    assert_eq!(bench.names(directory).await, ["src", "z"]);
    // A name that the listing has does not outdate the listing.
    let (_, cost) = bench.cost(bench.write(src, "c", "mine")).await;
    let (names, listing) = bench.cost(bench.names(directory)).await;
    assert_eq!((names.len(), listing), (2, 0), "{cost}");
}
