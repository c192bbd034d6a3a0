//! Names that come with the first lookup of their directory, and pages that hold for a TTL.

use futures_util::future::join_all;

use super::*;
use crate::listing::expiry::PAGE;

const MOMENT: Duration = Duration::from_millis(100);

fn bench(ttl: Ttl, keys: &[&str]) -> Bench {
    Bench::with(Config { ttl, brought: 32, ..Config::default() }, keys)
}

/// Looks these names up at once: no LIST goes out before all wait. Returns which were found, and the numbers of HEADs and LISTs.
async fn at_once(bench: &Bench, names: &[(InodeNo, &str)]) -> (Vec<bool>, (usize, usize)) {
    bench.client.reset_log();
    let gate = bench.client.hold(FaultPlan::on(Op::ListObjects).always());
    let lookups = join_all(names.iter().map(|(parent, name)| bench.lookup(*parent, name)));
    let (found, ()) = tokio::join!(lookups, async {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        bench.client.clear_faults();
        gate.release();
    });
    let calls = |op| bench.client.calls(op);
    (found.iter().map(Result::is_ok).collect(), (calls(Op::HeadObject), calls(Op::ListObjects)))
}

#[tokio::test]
async fn the_names_of_a_short_directory_come_with_its_first_lookup() {
    for ttl in [Ttl::Minimal, MINUTE, Ttl::Indefinite] {
        let bench = bench(ttl, &["d/a", "d/b", "d/sub/x", "e"]);
        let (d, cost) = bench.cost(bench.lookup(ROOT, "d")).await;
        assert!(cost <= 2, "{ttl:?}: {cost}");
        let d = d.unwrap().ino;
        let (a, cost) = bench.cost(bench.lookup(d, "a")).await;
        let a = a.unwrap();
        assert_eq!((cost, a.stat.size), (0, 7), "{ttl:?}");
        let (sub, cost) = bench.cost(bench.lookup(d, "sub")).await;
        assert_eq!((cost, sub.unwrap().stat.kind), (0, Kind::Directory), "{ttl:?}");
        // A file counts as long as after a lookup of its own.
        assert_eq!(a.stat.valid_for, ttl.file(), "{ttl:?}");
        bench.clock.advance(MOMENT);
        let (b, cost) = bench.cost(bench.lookup(d, "b")).await;
        assert_eq!((b.unwrap().stat.size, cost), (7, if ttl == Ttl::Minimal { 2 } else { 0 }), "{ttl:?}");
    }
}

#[tokio::test]
async fn a_longer_directory_brings_no_names() {
    let names: Vec<_> = (0..33).map(|n| format!("d/n{n:02}")).collect();
    let bench = bench(Ttl::Minimal, &names.iter().map(String::as_str).collect::<Vec<_>>());
    let d = bench.lookup(ROOT, "d").await.unwrap().ino;
    assert_eq!(bench.cost(bench.lookup(d, "n07")).await.1, 2);
}

#[tokio::test]
async fn an_open_asks_whatever_came_with_its_directory() {
    let bench = bench(Ttl::Minimal, &["d/changed", "d/same"]);
    let d = bench.lookup(ROOT, "d").await.unwrap().ino;
    bench.client.insert("d/changed", "longer content");
    let changed = bench.lookup(d, "changed").await.unwrap();
    assert_eq!(changed.stat.size, 7, "a tenth of a second old at most");
    assert!(bench.table.try_open_read(changed.ino).is_none());
    assert_error!(bench.open_read(changed.ino).await, ErrorKind::Stale);
    // The listing may spell versions otherwise than the object: the second lookup asks for the name.
    bench.client.reset_log();
    let again = bench.lookup(d, "changed").await.unwrap();
    assert_eq!((bench.client.calls(Op::HeadObject), bench.client.calls(Op::ListObjects)), (1, 1));
    assert!(matches!(bench.open_read(again.ino).await.unwrap(), OpenRead::Object { size: 14, .. }));
    let same = bench.lookup(d, "same").await.unwrap();
    assert!(matches!(bench.open_read(same.ino).await.unwrap(), OpenRead::Object { size: 7, .. }));
}

#[tokio::test]
async fn names_that_a_short_directory_did_not_bring_cost_two_pages() {
    let bench = bench(Ttl::Minimal, &["d/zarr.json", "d/c/0"]);
    let d = bench.lookup(ROOT, "d").await.unwrap().ino;
    let names = ["zarr.json", ".zarray", ".zattrs"].map(|name| (d, name));
    // The page of the first absent name, and one for lookups that may have begun after the request for it.
    assert_eq!(at_once(&bench, &names).await, (vec![true, false, false], (0, 2)));
    bench.client.insert("d/.zgroup", "content");
    assert!(bench.lookup(d, ".zgroup").await.is_ok(), "a later lookup finds what came since");
}

#[tokio::test]
async fn no_names_come_along_where_this_mount_changed_any_meanwhile() {
    for changes in [false, true] {
        let bench = bench(Ttl::Minimal, &["d/a", "e/x"]);
        let gate = bench.client.hold_answer(FaultPlan::on(Op::ListObjects));
        let (d, ()) = tokio::join!(bench.lookup(ROOT, "d"), async {
            gate.arrived(1).await;
            bench.client.clear_faults();
            if changes {
                bench.write(ROOT, "other", "content").await;
            }
            gate.release();
        });
        let (a, cost) = bench.cost(bench.lookup(d.unwrap().ino, "a")).await;
        assert_eq!((a.unwrap().stat.size, cost), (7, if changes { 2 } else { 0 }));
    }
}

#[tokio::test]
async fn a_directory_that_is_known_brings_no_names_again() {
    let bench = bench(Ttl::Minimal, &["d/a", "d/b"]);
    let d = bench.lookup(ROOT, "d").await.unwrap().ino;
    bench.clock.advance(2 * PAGE);
    assert_eq!(bench.cost(bench.lookup(ROOT, "d")).await.1, 1);
    assert_eq!(bench.cost(bench.lookup(d, "a")).await.1, 2);
}

#[tokio::test]
async fn the_folders_of_an_array_cost_a_page_each() {
    let mut keys: Vec<_> = (0..16).map(|n| format!("array.zarr/c/{}/{}", n / 4, n % 4)).collect();
    keys.push("array.zarr/zarr.json".to_owned());
    let bench = bench(Ttl::Minimal, &keys.iter().map(String::as_str).collect::<Vec<_>>());
    let array = bench.lookup(ROOT, "array.zarr").await.unwrap().ino;
    let names = ["zarr.json", ".zarray", ".zattrs"].map(|name| (array, name));
    assert_eq!(at_once(&bench, &names).await.1, (0, 2));
    let c = bench.lookup(array, "c").await.unwrap().ino;
    let folders = ["0", "1", "2", "3"];
    assert_eq!(at_once(&bench, &folders.map(|name| (c, name))).await, (vec![true; 4], (0, 1)));
    for name in folders {
        let folder = bench.lookup(c, name).await.unwrap().ino;
        assert_eq!(at_once(&bench, &folders.map(|name| (folder, name))).await, (vec![true; 4], (0, 1)));
    }
}

#[tokio::test]
async fn a_page_of_a_whole_directory_holds_for_the_ttl() {
    let names: Vec<_> = (0..60).map(|n| format!("n{n:02}")).collect();
    for (ttl, holds) in [(Ttl::Minimal, false), (MINUTE, true), (Ttl::Indefinite, true)] {
        let bench = Bench::new(ttl, &names.iter().map(String::as_str).collect::<Vec<_>>());
        let two = [(ROOT, "n00"), (ROOT, "n01")];
        assert_eq!(at_once(&bench, &two).await, (vec![true; 2], (1, 2)), "{ttl:?}");
        bench.clock.advance(Duration::from_secs(59));
        assert_eq!(bench.cost(bench.lookup(ROOT, "n30")).await.1 == 0, holds, "{ttl:?}");
        // It says nothing of other names, and answers no listing.
        assert!(bench.cost(bench.lookup(ROOT, "absent")).await.1 > 0, "{ttl:?}");
        let (listing, cost) =
            bench.cost(bench.table.opendir(ROOT).await.unwrap().entries(&bench.table, 2, 9)).await;
        assert!(listing.unwrap().len() == 9 && cost == 1, "{ttl:?}");
        // The changes of this mount count at once, and so does a newer object that a read met.
        bench.overwrite(bench.lookup(ROOT, "n31").await.unwrap().ino, "longer content").await;
        assert_eq!(bench.lookup(ROOT, "n31").await.unwrap().stat.size, 14);
        bench.table.doubt(bench.lookup(ROOT, "n33").await.unwrap().ino);
        bench.client.insert("n33", "longer content");
        assert_eq!(bench.lookup(ROOT, "n33").await.unwrap().stat.size, 14);
    }
}

#[tokio::test]
async fn a_restored_object_of_a_page_that_holds_for_the_ttl_is_asked_for() {
    let bench = Bench::new(MINUTE, &["a", "b", "restored"]);
    bench.client.archive("restored");
    bench.client.restore("restored");
    assert_eq!(at_once(&bench, &[(ROOT, "a"), (ROOT, "b")]).await, (vec![true; 2], (1, 2)));
    bench.clock.advance(Duration::from_secs(10));
    let restored = bench.lookup(ROOT, "restored").await.unwrap();
    assert!(restored.stat.readable);
    assert!(matches!(bench.open_read(restored.ino).await.unwrap(), OpenRead::Object { size: 7, .. }));
}

#[tokio::test]
async fn a_page_of_a_whole_directory_ends_with_the_ttl() {
    let names: Vec<_> = (0..60).map(|n| format!("n{n:02}")).collect();
    for (ttl, holds) in [(MINUTE, false), (Ttl::Indefinite, true)] {
        let bench = Bench::new(ttl, &names.iter().map(String::as_str).collect::<Vec<_>>());
        at_once(&bench, &[(ROOT, "n00"), (ROOT, "n01")]).await;
        bench.clock.advance(Duration::from_secs(61));
        assert_eq!(bench.cost(bench.lookup(ROOT, "n32")).await.1 == 0, holds, "{ttl:?}");
    }
}

#[tokio::test]
async fn a_page_of_a_part_of_a_directory_answers_for_a_second_at_every_ttl() {
    let names: Vec<_> = (0..60).map(|n| format!("n{n:02}")).collect();
    let config = Config { ttl: MINUTE, list_page: 20, ..Config::default() };
    let bench = Bench::with(config, &names.iter().map(String::as_str).collect::<Vec<_>>());
    at_once(&bench, &[(ROOT, "n00"), (ROOT, "n01")]).await;
    assert_eq!(bench.cost(bench.lookup(ROOT, "n02")).await.1, 0);
    bench.clock.advance(PAGE);
    assert!(bench.cost(bench.lookup(ROOT, "n03")).await.1 > 0);
}
