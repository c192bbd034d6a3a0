//! First bytes that come with a lookup or an open: when the request is for them, which open they serve, and what discards them.

use futures_util::future::join_all;

use super::*;
use crate::buffer::{self, Pool, Use};
use crate::first;
use crate::listing::expiry::PAGE;

const TTLS: [Ttl; 4] =
    [Ttl::Minimal, Ttl::For { found: Duration::ZERO, missing: Duration::ZERO }, MINUTE, Ttl::Indefinite];

fn pool() -> Pool {
    Pool::new(&buffer::Config::default())
}

impl Bench {
    /// A bench over a bucket of these keys; first bytes take memory from `pool`.
    fn guessing(ttl: Ttl, pool: &Pool, keys: &[&str]) -> Self {
        let plain = Self::new(ttl, keys);
        let asker = Asker::new(plain.client.arc(), pool.clone(), None, plain.metrics.clone());
        let config = Config { ttl, ..Config::default() };
        let table = InodeTable::new(asker, config, plain.clock.clone(), plain.metrics.clone());
        Self { table, ..plain }
    }

    /// Looks files up, then opens and reads them. Each lies in a directory of its own, so that no page answers for it.
    async fn learn(&self) {
        for i in 0..32 {
            self.client.insert(format!("learn{i}/f"), "content");
            let directory = self.lookup(ROOT, &format!("learn{i}")).await.unwrap().ino;
            let file = self.lookup(directory, "f").await.unwrap().ino;
            let (_, first) = self.open_first(file).await.unwrap();
            first.expect("an answer of S3").was_read();
            self.table.close_read(file);
        }
        self.clock.advance(PAGE);
        self.client.reset_log();
    }

    /// Opens a file. Returns the version, and the first bytes that came along.
    async fn open_first(&self, ino: InodeNo) -> Result<(ETag, Option<crate::first::First>)> {
        match self.open_read(ino).await? {
            OpenRead::Object { id, first, .. } => Ok((id.etag, first)),
            OpenRead::Busy { .. } => panic!("nobody writes"),
        }
    }

    /// The bytes that an open brings, so that the reader makes no request.
    async fn open_bytes(&self, ino: InodeNo) -> Option<Vec<u8>> {
        let (_, first) = self.open_first(ino).await.unwrap();
        let mut first = first?;
        let bytes = first.take_bytes().map(|(_, bytes)| bytes.to_vec());
        first.was_read();
        bytes
    }

    /// Number of GETs, HEADs and LISTs since the last call.
    fn gets_heads_lists(&self) -> (usize, usize, usize) {
        let calls = |op| self.client.calls(op);
        let counts = (calls(Op::GetObject), calls(Op::HeadObject), calls(Op::ListObjects));
        self.client.reset_log();
        counts
    }
}

#[tokio::test]
async fn where_look_ups_lead_to_reads_a_cold_open_and_read_is_one_round_trip() {
    for ttl in TTLS {
        let pool = pool();
        let bench = Bench::guessing(ttl, &pool, &["cold"]);
        let cold = bench.lookup(ROOT, "cold").await.unwrap();
        assert_eq!(bench.gets_heads_lists(), (0, 1, 1), "nothing is learned yet");
        bench.table.forget(cold.ino, 1);
        bench.learn().await;
        bench.client.insert("colder", "content");
        let found = bench.lookup(ROOT, "colder").await.unwrap();
        assert_eq!(bench.open_bytes(found.ino).await.as_deref(), Some(&b"content"[..]), "{ttl:?}");
        assert_eq!(bench.gets_heads_lists(), (1, 0, 1), "{ttl:?}");
        assert_eq!(pool.used(Use::Ahead), 0, "what was read is given back");
    }
}

#[tokio::test]
async fn a_cold_table_brings_its_tail_in_place_of_a_head() {
    for ttl in TTLS {
        let pool = pool();
        let bench = Bench::guessing(ttl, &pool, &["d.parquet/part"]);
        // Files longer than the tail, as long as the tail, shorter, and empty.
        for (name, size, cost) in [
            ("a.parquet", 300_000, (1, 0, 1)),
            ("b.parquet", first::LEN, (1, 0, 1)),
            ("c.PARQUET", 10, (1, 0, 1)),
            ("e.parquet", 0, (1, 1, 1)),
            ("plain", 300_000, (0, 1, 1)),
        ] {
            let bytes: Vec<u8> = (0..size).map(|i: usize| (i % 251) as u8).collect();
            bench.client.insert(name, bytes.clone());
            bench.client.reset_log();
            let found = bench.lookup(ROOT, name).await.unwrap();
            let (_, first) = bench.open_first(found.ino).await.unwrap();
            assert_eq!(bench.gets_heads_lists(), cost, "{name} at {ttl:?}");
            let Some((from, came)) = first.and_then(|mut first| {
                let bytes = first.take_bytes();
                first.was_read();
                bytes
            }) else {
                assert!(name == "plain" || size == 0, "{name} without bytes");
                continue;
            };
            assert_eq!(from as usize, size.saturating_sub(first::LEN), "{name}");
            assert_eq!(came[..], bytes[from as usize..], "{name}");
        }
        // A directory and an absent name cost as many requests as by HEAD.
        assert_eq!(bench.lookup(ROOT, "d.parquet").await.unwrap().stat.kind, Kind::Directory);
        let (gets, heads, lists) = bench.gets_heads_lists();
        assert!(gets <= 1 && heads == 0 && lists == 1, "LIST may be first: {gets} {heads} {lists}");
        assert!(matches!(bench.lookup(ROOT, "no.parquet").await.unwrap_err().kind(), ErrorKind::NotFound));
        assert_eq!(bench.gets_heads_lists(), (1, 0, 1), "{ttl:?}");
        assert_eq!(pool.used(Use::Ahead), 0);
    }
}

#[tokio::test]
async fn a_table_of_which_the_kernel_has_the_tail_is_asked_for_by_head() {
    let pool = pool();
    let bench = Bench::guessing(Ttl::Minimal, &pool, &[]);
    bench.client.insert("a.parquet", vec![1; 300_000]);
    for cost in [(1, 0, 1), (0, 1, 1)] {
        let found = bench.lookup(ROOT, "a.parquet").await.unwrap();
        let (_, first) = bench.open_first(found.ino).await.unwrap();
        first.unwrap().began(&(299_000..300_000));
        assert_eq!(bench.gets_heads_lists(), cost);
        bench.table.close_read(found.ino);
        bench.table.forget(found.ino, 1);
        bench.clock.advance(PAGE);
    }
}

#[tokio::test]
async fn a_second_open_of_tables_of_one_make_brings_their_column() {
    let pool = pool();
    let bench = Bench::guessing(Ttl::Minimal, &pool, &[]);
    // Two tables teach. The program of the fifth one reads another column.
    let (one, other) = (131_072..167_936, 40_960..45_056);
    for (i, by_get) in [false, false, true, true, true, false, false, true].into_iter().enumerate() {
        let name = format!("{i}.parquet");
        bench.client.insert(&name, (0..300_000).map(|at: usize| (at % 251) as u8).collect::<Vec<_>>());
        let found = bench.lookup(ROOT, &name).await.unwrap();
        let (_, first) = bench.open_first(found.ino).await.unwrap();
        first.unwrap().began(&(299_008..300_000));
        bench.client.reset_log();
        // The first handle is still open: the second open asks whether the store has the same version.
        let (_, first) = bench.open_first(found.ino).await.unwrap();
        let mut first = first.unwrap();
        assert_eq!(bench.gets_heads_lists(), (by_get.into(), (!by_get).into(), 0), "{i}");
        if let Some((start, bytes)) = first.take_bytes() {
            assert_eq!((first.part(), start), (one.clone(), one.start), "{i}");
            assert!(
                bytes.iter().enumerate().all(|(at, byte)| *byte == ((one.start as usize + at) % 251) as u8)
            );
        }
        first.began(if i == 4 { &other } else { &one });
        bench.table.close_read(found.ino);
        bench.table.close_read(found.ino);
    }
}

#[tokio::test]
async fn five_cold_tables_that_are_not_read_end_the_guess() {
    let pool = pool();
    let bench = Bench::guessing(Ttl::Minimal, &pool, &[]);
    for i in 0..8 {
        let name = format!("{i}.parquet");
        bench.client.insert(&name, vec![1; 300_000]);
        bench.client.reset_log();
        // A stat, then an open that comes too late for the lookup's bytes.
        let found = bench.lookup(ROOT, &name).await.unwrap();
        let by_get = i < 5;
        assert_eq!(bench.gets_heads_lists(), (by_get.into(), (!by_get).into(), 1), "{i}");
        bench.clock.advance(FRESH);
        assert!(bench.open_first(found.ino).await.is_ok());
        bench.clock.advance(PAGE);
    }
}

#[tokio::test]
async fn the_tail_of_a_table_that_was_replaced_since_serves_no_open() {
    let pool = pool();
    let bench = Bench::guessing(Ttl::Minimal, &pool, &[]);
    bench.client.insert("a.parquet", vec![1; 300_000]);
    let old = bench.lookup(ROOT, "a.parquet").await.unwrap().ino;
    let etag = bench.client.insert("a.parquet", vec![2; 300_000]);
    // This open began before the change: it reads all bytes of the version that its lookup found, or none.
    let (opened, first) = bench.open_first(old).await.unwrap();
    assert!(
        opened != etag && first.is_some_and(|mut first| first.take_bytes().unwrap().1[..] == [1; first::LEN])
    );
    bench.table.close_read(old);
    bench.clock.advance(FRESH);
    assert!(matches!(bench.open_first(old).await.unwrap_err().kind(), ErrorKind::Stale));
    let new = bench.lookup(ROOT, "a.parquet").await.unwrap().ino;
    let (opened, first) = bench.open_first(new).await.unwrap();
    assert_eq!(opened, etag);
    assert!(
        first.is_none_or(|mut first| first
            .take_bytes()
            .is_none_or(|(_, bytes)| bytes.iter().all(|b| *b == 2)))
    );
}

#[tokio::test]
async fn the_first_bytes_of_a_look_up_serve_one_open_within_20_ms_at_every_ttl() {
    for ttl in TTLS {
        let pool = pool();
        let bench = Bench::guessing(ttl, &pool, &[]);
        bench.learn().await;
        // Pages of before do not have these names.
        for name in ["a", "b"] {
            bench.client.insert(name, "content");
        }
        let trusts = !ttl.open().is_zero();
        let a = bench.lookup(ROOT, "a").await.unwrap().ino;
        assert!(bench.open_bytes(a).await.is_some());
        bench.client.reset_log();
        // The second open asks S3, or relies on the TTL and lets its reader ask.
        assert_eq!(bench.open_bytes(a).await.is_none(), trusts, "{ttl:?}");
        assert_eq!(bench.gets_heads_lists().0, usize::from(!trusts), "{ttl:?}");

        let b = bench.lookup(ROOT, "b").await.unwrap().ino;
        bench.clock.advance(FRESH);
        bench.client.reset_log();
        assert_eq!(bench.open_bytes(b).await.is_none(), trusts, "{ttl:?}");
        assert_eq!(bench.gets_heads_lists().0, usize::from(!trusts), "{ttl:?}");
    }
}

#[tokio::test]
async fn the_memory_of_first_bytes_is_counted_and_given_back_after_20_ms() {
    let pool = pool();
    let bench = Bench::guessing(Ttl::Minimal, &pool, &["a"]);
    bench.learn().await;
    bench.lookup(ROOT, "a").await.unwrap();
    assert_eq!(pool.used(Use::Ahead), first::LEN as u64);
    // The task that returns the bytes waits for the clock.
    tokio::task::yield_now().await;
    bench.clock.advance(FRESH);
    while pool.used(Use::Ahead) > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(bench.metrics.first_wasted.get(), 1);
}

#[tokio::test]
async fn an_open_never_gets_first_bytes_of_another_version_than_it_names() {
    let pool = pool();
    let bench = Bench::guessing(Ttl::Minimal, &pool, &["a"]);
    bench.learn().await;
    let old = bench.lookup(ROOT, "a").await.unwrap().ino;
    bench.client.insert("a", "longer content");
    // A second lookup discards the first one's bytes: the open asks S3.
    bench.lookup(ROOT, "a").await.unwrap();
    assert_error!(bench.open_first(old).await, ErrorKind::Stale);
    let new = bench.lookup(ROOT, "a").await.unwrap().ino;
    assert_ne!(new, old);
    let (etag, first) = bench.open_first(new).await.unwrap();
    assert_eq!(etag, bench.client.meta("a").unwrap().etag);
    assert_eq!(first.unwrap().take_bytes().unwrap().1[..], b"longer content"[..]);
    // This mount wrote the file, so no request asked for its bytes.
    bench.table.close_read(new);
    bench.clock.advance(PAGE);
    let again = bench.lookup(ROOT, "a").await.unwrap().ino;
    bench.overwrite(again, "ours").await;
    let opened = bench.open_first(again).await.unwrap();
    assert_eq!(opened.0, bench.client.meta("a").unwrap().etag);
    assert_eq!(
        opened.1.and_then(|mut first| first.take_bytes()).map(|(_, b)| b.to_vec()),
        Some(b"ours".to_vec())
    );
}

#[tokio::test]
async fn first_bytes_that_two_look_ups_waited_for_serve_neither() {
    let pool = pool();
    let bench = Bench::guessing(Ttl::Minimal, &pool, &["a"]);
    bench.learn().await;
    let gate = bench.client.hold(FaultPlan::on(Op::GetObject));
    let name = OsStr::new("a");
    let (a, b, ()) = tokio::join!(bench.table.lookup(ROOT, name), bench.table.lookup(ROOT, name), async {
        gate.arrived(1).await;
        gate.release();
    });
    assert_eq!(a.unwrap().ino, b.as_ref().unwrap().ino);
    assert_eq!(bench.gets_heads_lists(), (1, 0, 1), "one request for both");
    bench.client.clear_faults();
    assert!(bench.open_bytes(b.unwrap().ino).await.is_some());
    assert_eq!(bench.gets_heads_lists(), (1, 0, 0), "the open asked for itself");
}

#[tokio::test]
async fn where_a_page_tells_the_kinds_a_cold_open_and_read_is_one_request() {
    let pool = pool();
    let names: Vec<String> = (0..50).map(|i| format!("n{i:02}")).collect();
    let bench = Bench::guessing(Ttl::Minimal, &pool, &names.iter().map(String::as_str).collect::<Vec<_>>());
    for entry in bench.list(ROOT).await {
        bench.table.remember(ROOT, &entry);
    }
    bench.client.reset_log();
    for name in &names {
        let found = bench.lookup(ROOT, name).await.unwrap();
        assert_eq!(bench.open_bytes(found.ino).await.as_deref(), Some(&b"content"[..]));
    }
    assert_eq!(bench.gets_heads_lists(), (50, 0, 0));
    // The file changed or disappeared after the page: the open reports that.
    let found = bench.lookup(ROOT, "n07").await.unwrap().ino;
    let gone = bench.lookup(ROOT, "n08").await.unwrap().ino;
    bench.client.insert("n07", "longer content");
    bench.client.remove("n08");
    assert_error!(bench.open_first(found).await, ErrorKind::Stale);
    assert_error!(bench.open_first(gone).await, ErrorKind::Stale);
    assert_eq!(bench.gets_heads_lists(), (2, 0, 0));
}

#[tokio::test]
async fn look_ups_that_lead_to_no_read_end_the_guessing() {
    let pool = pool();
    let bench = Bench::guessing(Ttl::Minimal, &pool, &[]);
    for i in 0..30 {
        bench.client.insert(format!("d/n{i:02}"), "content");
    }
    bench.learn().await;
    let d = bench.lookup(ROOT, "d").await.unwrap().ino;
    bench.client.reset_log();
    for i in 0..30 {
        bench.lookup(d, &format!("n{i:02}")).await.unwrap();
        bench.clock.advance(FRESH);
    }
    let (gets, heads, lists) = bench.gets_heads_lists();
    assert!(gets <= 6, "{gets} wrong guesses");
    assert_eq!((gets + heads, lists), (30, 30));
    assert_eq!(bench.metrics.first_wasted.get(), gets as u64);
}

#[tokio::test]
async fn a_directory_that_became_a_file_is_open_and_read_in_two_round_trips() {
    let pool = pool();
    let bench = Bench::guessing(Ttl::Minimal, &pool, &["a/b"]);
    assert_eq!(bench.lookup(ROOT, "a").await.unwrap().stat.kind, Kind::Directory);
    bench.client.remove("a/b");
    bench.client.insert("a", "content");
    bench.clock.advance(2 * PAGE);
    bench.client.reset_log();
    let a = bench.lookup(ROOT, "a").await.unwrap();
    assert_eq!(bench.open_bytes(a.ino).await.as_deref(), Some(&b"content"[..]));
    assert_eq!(bench.gets_heads_lists(), (1, 0, 1), "the LIST, and then the bytes with the attributes");
}

#[tokio::test]
async fn opens_that_lead_to_no_read_are_heads_before_long() {
    let pool = pool();
    let names: Vec<String> = (0..30).map(|i| format!("n{i:02}")).collect();
    let bench = Bench::guessing(Ttl::Minimal, &pool, &names.iter().map(String::as_str).collect::<Vec<_>>());
    for entry in bench.list(ROOT).await {
        bench.table.remember(ROOT, &entry);
    }
    bench.client.reset_log();
    for name in &names {
        let found = bench.lookup(ROOT, name).await.unwrap();
        drop(bench.open_first(found.ino).await.unwrap());
    }
    let (gets, heads, _) = bench.gets_heads_lists();
    assert!(gets <= 6 && gets + heads == 30, "{gets} {heads}");
}

#[tokio::test]
async fn a_file_without_bytes_or_in_an_archive_costs_a_head_more_and_no_read() {
    let pool = pool();
    let bench = Bench::guessing(Ttl::Minimal, &pool, &["archived"]);
    bench.client.insert("empty", "");
    bench.client.archive("archived");
    bench.learn().await;
    let empty = bench.lookup(ROOT, "empty").await.unwrap();
    assert_eq!((empty.stat.size, bench.gets_heads_lists()), (0, (1, 1, 1)));
    assert_eq!(bench.open_bytes(empty.ino).await, None);
    let archived = bench.lookup(ROOT, "archived").await.unwrap();
    assert_eq!((archived.stat.readable, bench.gets_heads_lists()), (false, (1, 1, 1)));
    assert_error!(bench.open_first(archived.ino).await, ErrorKind::Archived);
    assert_eq!(bench.requests(), 0);
    // An open with equal facts in memory requests no bytes.
    bench.clock.advance(FRESH);
    bench.open_first(empty.ino).await.unwrap();
    assert_error!(bench.open_first(archived.ino).await, ErrorKind::Archived);
    assert_eq!(bench.gets_heads_lists(), (0, 2, 0));
}

#[tokio::test]
async fn a_directory_hides_the_file_whose_first_bytes_came() {
    let pool = pool();
    let bench = Bench::guessing(Ttl::Minimal, &pool, &["a", "a/b"]);
    bench.learn().await;
    let a = bench.lookup(ROOT, "a").await.unwrap();
    assert_eq!(a.stat.kind, Kind::Directory);
    assert_error!(bench.open_first(a.ino).await, ErrorKind::IsADirectory);
    assert_eq!(pool.used(Use::Ahead), 0);
}

#[tokio::test]
async fn without_memory_attributes_are_asked_for_alone() {
    let pool = pool();
    let bench = Bench::guessing(Ttl::Minimal, &pool, &["a"]);
    bench.learn().await;
    let mut taken = Vec::new();
    while let Some(block) = pool.try_take(Use::Ahead, buffer::BLOCK) {
        taken.push(block);
    }
    while let Some(block) = pool.try_take(Use::Ahead, 4096) {
        taken.push(block);
    }
    let a = bench.lookup(ROOT, "a").await.unwrap();
    assert_eq!(bench.gets_heads_lists(), (0, 1, 1));
    assert_eq!(bench.open_bytes(a.ino).await, None);
}

#[tokio::test]
async fn sixty_four_first_bytes_at_once_and_further_ones_ask_attributes_alone() {
    let pool = pool();
    let names: Vec<String> = (0..100).map(|i| format!("n{i:02}")).collect();
    let bench = Bench::guessing(Ttl::Minimal, &pool, &names.iter().map(String::as_str).collect::<Vec<_>>());
    let mut found = Vec::new();
    for entry in bench.list(ROOT).await {
        found.push(bench.table.remember(ROOT, &entry).ino);
    }
    bench.client.reset_log();
    for round in 0..2 {
        let gate = bench.client.hold(FaultPlan::on(Op::GetObject).always());
        let opens = join_all(found.iter().map(|&ino| bench.open_first(ino)));
        let (opened, ()) = tokio::join!(opens, async {
            gate.arrived(64).await;
            gate.release();
        });
        // Returned bytes are handed out again.
        assert_eq!(bench.gets_heads_lists(), (64, 36, 0), "round {round}");
        let firsts: Vec<_> = opened.into_iter().map(|opened| opened.unwrap().1.expect("its own")).collect();
        assert_eq!(firsts.iter().filter(|first| first.has_bytes()).count(), 64);
        firsts.into_iter().for_each(|first| first.was_read());
        bench.client.clear_faults();
    }
    assert_eq!(pool.used(Use::Ahead), 0);
}

#[tokio::test]
async fn a_missing_name_teaches_nothing() {
    let pool = pool();
    let bench = Bench::guessing(Ttl::Minimal, &pool, &["a"]);
    bench.learn().await;
    for i in 0..20 {
        assert_error!(bench.lookup(ROOT, &format!("missing{i}")).await, ErrorKind::NotFound);
    }
    let a = bench.lookup(ROOT, "a").await.unwrap();
    assert!(bench.open_bytes(a.ino).await.is_some());
    assert_eq!(bench.metrics.first_wasted.get(), 0);
}
