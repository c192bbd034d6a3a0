//! Pages of a listing that answer stats, and lookups that lead to these pages.

use super::*;
use crate::listing::expiry::PAGE;
use crate::listing::price::Prices;

/// Names in the order of a listing, for more than two pages.
fn many(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("n{i:04}")).collect()
}

fn bench(names: &[String]) -> Bench {
    Bench::new(Ttl::Minimal, &names.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Lists as the kernel does: every entry becomes an inode.
async fn list_plus(bench: &Bench, directory: InodeNo) -> Vec<Found> {
    let entries = bench.list(directory).await;
    entries.iter().map(|entry| bench.table.remember(directory, entry)).collect()
}

#[tokio::test]
async fn a_listing_answers_stats_for_the_rest_of_a_second_since_its_request() {
    let bench = bench(&many(2500));
    let found = list_plus(&bench, ROOT).await;
    assert!(found.iter().all(|f| (f.entry_valid_for, f.stat.valid_for) == (PAGE, PAGE)));
    bench.clock.advance(PAGE - Duration::from_millis(1));
    bench.client.reset_log();
    for found in &found {
        assert_eq!(bench.table.getattr(found.ino).await.unwrap().valid_for, Duration::from_millis(1));
    }
    let again = bench.lookup(ROOT, "n0007").await.unwrap();
    assert_eq!((again.ino, again.entry_valid_for), (found[7].ino, Duration::from_millis(1)));
    assert_eq!(bench.requests(), 0);
    bench.clock.advance(Duration::from_millis(1));
    bench.lookup(ROOT, "n0007").await.unwrap();
    assert_eq!((bench.client.calls(Op::HeadObject), bench.client.calls(Op::ListObjects)), (1, 1));
}

#[tokio::test]
async fn a_page_that_took_long_to_come_answers_for_what_is_left_of_its_second() {
    let bench = Bench::new(Ttl::Minimal, &["a"]);
    let listing = bench.table.opendir(ROOT).await.unwrap();
    let gate = bench.client.hold_answer(FaultPlan::on(Op::ListObjects));
    let (entries, ()) = tokio::join!(listing.entries(&bench.table, 2, 9), async {
        gate.arrived(1).await;
        bench.clock.advance(Duration::from_millis(700));
        gate.release();
    });
    let found = bench.table.remember(ROOT, &entries.unwrap()[0]);
    assert_eq!(found.stat.valid_for, Duration::from_millis(300));
}

#[tokio::test]
async fn an_open_asks_whatever_a_page_says_and_sees_the_newest_object() {
    let bench = Bench::new(Ttl::Minimal, &["changed", "gone", "same"]);
    let found = list_plus(&bench, ROOT).await;
    bench.client.insert("changed", "longer content");
    bench.client.remove("gone");
    assert!(found.iter().all(|found| bench.table.try_open_read(found.ino).is_none()));
    // open(2) of a name whose entry the kernel still holds: an OPEN alone.
    assert_error!(bench.open_read(found[0].ino).await, ErrorKind::Stale);
    assert_error!(bench.open_read(found[1].ino).await, ErrorKind::Stale);
    assert!(matches!(bench.open_read(found[2].ino).await.unwrap(), OpenRead::Object { size: 7, .. }));
    // After ESTALE the kernel looks up once more, and this lookup asks S3.
    let again = bench.lookup(ROOT, "changed").await.unwrap();
    assert!(matches!(bench.open_read(again.ino).await.unwrap(), OpenRead::Object { size: 14, .. }));
    assert_error!(bench.lookup(ROOT, "gone").await, ErrorKind::NotFound);
}

#[tokio::test]
async fn stats_of_a_listed_directory_cost_a_few_listings_at_every_ttl() {
    for ttl in [Ttl::Minimal, MINUTE, Ttl::Indefinite] {
        let names = many(5000);
        let bench = Bench::new(ttl, &names.iter().map(String::as_str).collect::<Vec<_>>());
        list_plus(&bench, ROOT).await;
        bench.clock.advance(PAGE);
        bench.client.reset_log();
        for name in &names {
            assert_eq!(bench.lookup(ROOT, name).await.unwrap().stat.size, 7);
        }
        assert!(
            bench.client.calls(Op::ListObjects) <= 11,
            "{:?} {}",
            ttl,
            bench.client.calls(Op::ListObjects)
        );
        assert!(bench.client.calls(Op::HeadObject) <= 5, "{:?} {}", ttl, bench.client.calls(Op::HeadObject));
    }
}

#[tokio::test]
async fn lookups_in_any_order_cost_a_few_listings() {
    let orders: [fn(usize) -> usize; 3] = [|i| i, |i| 1999 - i, |i| i * 1237 % 2000];
    for order in orders {
        let names = many(2000);
        let bench = bench(&names);
        for i in 0..names.len() {
            bench.lookup(ROOT, &names[order(i)]).await.unwrap();
        }
        // Single lookups cost a HEAD and a LIST for each name.
        assert!(bench.client.calls(Op::HeadObject) <= 64, "{}", bench.client.calls(Op::HeadObject));
        assert!(bench.client.calls(Op::ListObjects) <= 70, "{}", bench.client.calls(Op::ListObjects));
    }
}

#[tokio::test]
async fn lookups_that_pages_do_not_help_cost_a_sixteenth_more() {
    // Every thousandth name of a directory that is too long for a listing.
    let names: Vec<String> = (0..100_000).map(|i| format!("n{i:06}")).collect();
    let bench = bench(&names);
    for name in names.iter().step_by(1001) {
        bench.lookup(ROOT, name).await.unwrap();
    }
    assert!(bench.requests() <= 200 + 200 / 16, "{}", bench.requests());
}

#[tokio::test]
async fn a_name_that_a_page_does_not_have_is_asked_for() {
    let names = many(100);
    let bench = bench(&names);
    for name in &names[..50] {
        bench.lookup(ROOT, name).await.unwrap();
    }
    assert_eq!(bench.client.calls(Op::HeadObject), 31);
    assert_error!(bench.lookup(ROOT, "n0060-").await, ErrorKind::NotFound);
    assert_eq!(bench.client.calls(Op::HeadObject), 32);
    bench.client.insert("n0060-", "");
    bench.lookup(ROOT, "n0060-").await.unwrap();
    // A directory hides the file of its name, also across the end of a page.
    bench.client.insert("n0070/x", "");
    bench.clock.advance(PAGE);
    assert_eq!(bench.lookup(ROOT, "n0070").await.unwrap().stat.kind, Kind::Directory);
}

#[tokio::test]
async fn a_restored_object_that_a_page_calls_archived_is_read() {
    for ttl in [Ttl::Minimal, MINUTE] {
        let names = many(60);
        let bench = Bench::new(ttl, &names.iter().map(String::as_str).collect::<Vec<_>>());
        bench.client.archive("n0050");
        bench.client.archive("n0051");
        bench.client.restore("n0050");
        for name in &names[..40] {
            bench.lookup(ROOT, name).await.unwrap();
        }
        assert_eq!(bench.client.calls(Op::HeadObject), 31, "the rest came from a page");
        let restored = bench.lookup(ROOT, "n0050").await.unwrap();
        assert!(restored.stat.readable, "{ttl:?}");
        assert!(matches!(bench.open_read(restored.ino).await.unwrap(), OpenRead::Object { .. }));
        let archived = bench.lookup(ROOT, "n0051").await.unwrap();
        assert!(!archived.stat.readable);
        assert_error!(bench.open_read(archived.ino).await, ErrorKind::Archived);
    }
}

#[tokio::test]
async fn an_open_asks_whether_what_a_listing_calls_archived_was_restored() {
    let bench = Bench::new(MINUTE, &["archived", "restored"]);
    bench.table.0.tree.lock().agreement.shown();
    bench.client.archive("archived");
    bench.client.archive("restored");
    bench.client.restore("restored");
    let found = list_plus(&bench, ROOT).await;
    assert_error!(bench.open_read(found[0].ino).await, ErrorKind::Archived);
    assert!(matches!(bench.open_read(found[1].ino).await.unwrap(), OpenRead::Object { size: 7, .. }));
    assert!(bench.table.getattr(found[1].ino).await.unwrap().readable);
    // The answer about the object itself holds for the TTL.
    assert_eq!(bench.cost(bench.open_read(found[0].ino)).await.1, 0);
}

#[tokio::test]
async fn a_listing_does_not_override_what_the_object_said_of_its_archive() {
    let bench = Bench::new(MINUTE, &["archived", "restored"]);
    bench.table.0.tree.lock().agreement.shown();
    bench.client.archive("restored");
    bench.client.restore("restored");
    let restored = bench.lookup(ROOT, "restored").await.unwrap();
    assert!(restored.stat.readable);
    list_plus(&bench, ROOT).await;
    assert!(bench.table.getattr(restored.ino).await.unwrap().readable, "ls -l changes nothing");
    assert!(matches!(bench.open_read(restored.ino).await.unwrap(), OpenRead::Object { .. }));
    // Another object that was archived since: its own answer decides again.
    bench.clock.advance(Duration::from_secs(61));
    bench.client.archive("archived");
    let archived = bench.lookup(ROOT, "archived").await.unwrap();
    assert_error!(bench.open_read(archived.ino).await, ErrorKind::Archived);
}

#[tokio::test]
async fn a_page_end_shows_a_file_only_when_a_directory_of_its_name_is_ruled_out() {
    let names: Vec<String> = (0..40).map(|i| format!("a{i:02}")).collect();
    let mut keys: Vec<String> = names.clone();
    keys.extend((0..10).map(|i| format!("a39-{i}")));
    keys.push("a39/below".into());
    let config = Config { list_page: 9, ..Config::default() };
    let bench = Bench::with(config, &keys.iter().map(String::as_str).collect::<Vec<_>>());
    for name in &names {
        let expected = if name == "a39" { Kind::Directory } else { Kind::File };
        assert_eq!(bench.lookup(ROOT, name).await.unwrap().stat.kind, expected, "{name}");
    }
}

#[tokio::test]
async fn a_page_does_not_answer_for_names_changed_or_seen_since_its_request() {
    let names = many(60);
    let bench = bench(&names);
    for name in &names[..40] {
        bench.lookup(ROOT, name).await.unwrap();
    }
    let heads = bench.client.calls(Op::HeadObject);
    assert_eq!(heads, 31, "the rest came from a page");
    bench.table.unlink(ROOT, OsStr::new("n0050"), true).await.unwrap();
    assert_error!(bench.lookup(ROOT, "n0050").await, ErrorKind::NotFound);
    let ino = bench.lookup(ROOT, "n0051").await.unwrap().ino;
    bench.overwrite(ino, "longer content").await;
    bench.table.forget(ino, 1);
    bench.clock.advance(Duration::from_millis(150));
    assert_eq!(bench.lookup(ROOT, "n0051").await.unwrap().stat.size, 14);
    // An open saw another version, or none: later answers must not be older.
    let ino = bench.lookup(ROOT, "n0052").await.unwrap().ino;
    bench.client.insert("n0052", "longer content");
    assert_error!(bench.open_read(ino).await, ErrorKind::Stale);
    bench.table.forget(ino, 1);
    assert_eq!(bench.lookup(ROOT, "n0052").await.unwrap().stat.size, 14);
    let ino = bench.lookup(ROOT, "n0053").await.unwrap().ino;
    bench.client.remove("n0053");
    assert_error!(bench.open_read(ino).await, ErrorKind::Stale);
    bench.table.forget(ino, 1);
    assert_error!(bench.lookup(ROOT, "n0053").await, ErrorKind::NotFound);
}

#[tokio::test]
async fn a_page_from_before_a_name_was_seen_to_be_gone_does_not_bring_it_back() {
    let names = many(60);
    let bench = bench(&names);
    for name in &names[..31] {
        bench.lookup(ROOT, name).await.unwrap();
    }
    let gate = bench.client.hold_answer(FaultPlan::on(Op::ListObjects));
    let (page, ()) = tokio::join!(bench.lookup(ROOT, "n0031"), async {
        gate.arrived(1).await;
        bench.client.remove("n0040");
        assert_error!(bench.table.hold(ROOT, "n0040").await.map(drop), ErrorKind::NotFound);
        gate.release();
    });
    page.unwrap();
    assert_error!(bench.lookup(ROOT, "n0040").await, ErrorKind::NotFound);
}

#[tokio::test]
async fn lookups_share_the_page_on_its_way_and_ask_for_themselves_if_it_fails() {
    let names = many(60);
    for fails in [false, true] {
        let bench = bench(&names);
        for name in &names[..31] {
            bench.lookup(ROOT, name).await.unwrap();
        }
        bench.client.reset_log();
        let plan = FaultPlan::on(Op::ListObjects);
        let lookups =
            futures_util::future::join_all(names[31..51].iter().map(|name| bench.lookup(ROOT, name)));
        let found = if fails {
            bench.client.inject(plan.fail(s3::ErrorKind::Throttled));
            lookups.await
        } else {
            let gate = bench.client.hold_answer(plan);
            let held = async {
                gate.arrived(1).await;
                gate.release();
            };
            tokio::join!(lookups, held).0
        };
        assert!(found.into_iter().all(|found| found.is_ok()));
        assert_eq!(bench.client.calls(Op::HeadObject) > 0, fails);
    }
}

#[tokio::test]
async fn a_burst_of_cold_lookups_is_one_lookup_and_one_page() {
    for page in [25, 100] {
        let names = many(60);
        let bench = bench(&names);
        {
            let prices = &mut bench.table.0.tree.lock().prices;
            prices.looked(Duration::from_millis(20));
            prices.listed(Duration::from_millis(page), 1000);
        }
        let gate = bench.client.hold(FaultPlan::on(Op::ListObjects).always());
        let lookups = futures_util::future::join_all(names.iter().map(|name| bench.lookup(ROOT, name)));
        let (found, ()) = tokio::join!(lookups, async {
            gate.arrived(2).await;
            gate.release();
        });
        assert!(found.into_iter().all(|found| found.is_ok()));
        let (heads, lists) = (bench.client.calls(Op::HeadObject), bench.client.calls(Op::ListObjects));
        assert_eq!((heads, lists), (1, 2), "{page} ms a page");
    }
}

#[tokio::test]
async fn lookups_ask_for_themselves_while_a_page_does_not_come() {
    let names = many(8);
    let bench = bench(&names);
    let gate = bench.client.hold(FaultPlan::on(Op::ListObjects).always());
    let lookups = futures_util::future::join_all(names[..4].iter().map(|name| bench.lookup(ROOT, name)));
    let (found, ()) = tokio::join!(lookups, async {
        gate.arrived(2).await;
        assert_eq!(bench.client.calls(Op::HeadObject), 1, "the others wait for the page");
        bench.clock.advance(PAGE / 4);
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        let heads = bench.client.calls(Op::HeadObject);
        // A later lookup does not wait for that page at all.
        let late = bench.lookup(ROOT, &names[4]);
        let (found, ()) = tokio::join!(late, async {
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            assert_eq!((heads, bench.client.calls(Op::HeadObject)), (4, 5));
            gate.release();
        });
        found.unwrap();
    });
    assert!(found.into_iter().all(|found| found.is_ok()));
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(bench.cost(bench.lookup(ROOT, &names[7])).await.1, 0, "the page came after all");
}

/// Looks these names up at once; the first lookup is held until the others wait. Returns the results, and the numbers of HEADs and LISTs.
async fn burst(bench: &Bench, names: &[String]) -> (Vec<Result<Found>>, (usize, usize)) {
    bench.client.reset_log();
    let gate = bench.client.hold(FaultPlan::on(Op::HeadObject));
    let lookups = futures_util::future::join_all(names.iter().map(|name| bench.lookup(ROOT, name)));
    let (found, ()) = tokio::join!(lookups, async {
        gate.arrived(1).await;
        gate.release();
    });
    (found, (bench.client.calls(Op::HeadObject), bench.client.calls(Op::ListObjects)))
}

#[tokio::test]
async fn a_page_that_answers_nothing_puts_a_directory_back_to_the_usual_terms() {
    // No page is the whole directory, so none proves a name absent.
    let names = many(60);
    let config = Config { list_page: 20, ..Config::default() };
    let bench = Bench::with(config, &names.iter().map(String::as_str).collect::<Vec<_>>());
    let absent = |from: usize| (from..from + 4).map(|i| format!("x{i}")).collect::<Vec<_>>();
    let (found, costs) = burst(&bench, &absent(0)).await;
    assert!(found.into_iter().all(|found| matches!(found.unwrap_err().kind(), ErrorKind::NotFound)));
    assert_eq!(costs, (4, 5), "HEAD and LIST each, and a page in vain");
    for round in 1..4 {
        bench.clock.advance(PAGE);
        assert_eq!(burst(&bench, &absent(4 * round)).await.1, (4, 4), "{round}");
    }
}

#[tokio::test]
async fn names_at_once_in_a_directory_of_a_million_take_at_most_one_page_more() {
    let names: Vec<String> = (0..1_000_000).map(|i| format!("n{i:06}")).collect();
    let bench = bench(&names);
    // No page contains two of these names; they come in any order.
    let sparse: Vec<_> = (0..24).map(|i| names[20_000 + (i * 7 % 24) * 30_011].clone()).collect();
    let mut cost = (0, 0);
    for names in sparse.chunks(8) {
        let (found, (heads, lists)) = burst(&bench, names).await;
        assert!(found.into_iter().all(|found| found.is_ok()));
        cost = (cost.0 + heads, cost.1 + lists);
        bench.clock.advance(3 * PAGE);
    }
    assert_eq!(cost, (24, 25));
    // In a directory known as long, the page begins at the names.
    {
        let mut tree = bench.table.0.tree.lock();
        let root = tree.directory_mut(ROOT).unwrap();
        (root.length, root.recent) = (Some(1_000_000), None);
    }
    let (found, costs) = burst(&bench, &names[750_000..750_016]).await;
    assert!(found.into_iter().all(|found| found.is_ok()));
    assert_eq!(costs, (1, 2));
}

#[tokio::test]
async fn names_between_a_file_and_a_directory_of_its_name_are_right_at_once() {
    // `-` and `.` sort before `/`.
    let mut keys: Vec<String> = ["a", "a-1", "a-2", "a.b", "a/x", "b", "b-1", "c/y"].map(Into::into).into();
    keys.extend((0..40).map(|i| format!("a-3{i:02}")));
    let names: Vec<String> = ["a", "a-1", "a-2", "a.b", "b", "b-1", "c"].map(Into::into).into();
    for (list_page, step) in [(3, 1), (3, 3), (9, 5), (1000, 1)] {
        let config = Config { list_page, ..Config::default() };
        let bench = Bench::with(config, &keys.iter().map(String::as_str).collect::<Vec<_>>());
        let names: Vec<_> = (0..names.len()).map(|i| names[i * step % names.len()].clone()).collect();
        let (found, _) = burst(&bench, &names).await;
        for (name, found) in names.iter().zip(found) {
            let is_directory = matches!(&**name, "a" | "c");
            let expected = if is_directory { Kind::Directory } else { Kind::File };
            assert_eq!(found.unwrap().stat.kind, expected, "{name}, {list_page} a page");
        }
    }
}

#[tokio::test]
async fn an_open_behind_names_at_once_sees_what_another_client_stored() {
    let names = many(16);
    let bench = bench(&names);
    let (found, costs) = burst(&bench, &names).await;
    assert_eq!(costs, (1, 2));
    let found: Vec<_> = found.into_iter().map(Result::unwrap).collect();
    bench.client.insert("n0007", "longer content");
    bench.client.remove("n0008");
    assert!(found[1..].iter().all(|found| bench.table.try_open_read(found.ino).is_none()), "each open asks");
    assert_error!(bench.open_read(found[7].ino).await, ErrorKind::Stale);
    assert_error!(bench.open_read(found[8].ino).await, ErrorKind::Stale);
    let again = bench.lookup(ROOT, "n0007").await.unwrap();
    assert!(matches!(bench.open_read(again.ino).await.unwrap(), OpenRead::Object { size: 14, .. }));
    assert!(matches!(bench.open_read(found[9].ino).await.unwrap(), OpenRead::Object { size: 7, .. }));
}

#[tokio::test]
async fn a_directory_known_to_be_short_is_listed_again_sooner_in_any_order() {
    let names = many(60);
    let bench = bench(&names);
    for (listed, heads) in [(false, 31), (true, 3)] {
        if listed {
            assert_eq!(bench.names(ROOT).await.len(), 60);
            bench.clock.advance(3 * PAGE);
        }
        {
            // The clock stands still, so lookups seem to take no time.
            let prices = &mut bench.table.0.tree.lock().prices;
            *prices = Prices::default();
            prices.looked(Duration::from_millis(20));
            prices.listed(Duration::from_millis(25), 1000);
        }
        bench.client.reset_log();
        for name in names.iter().rev() {
            let found = bench.lookup(ROOT, name).await.unwrap();
            bench.table.forget(found.ino, 1);
        }
        assert_eq!(bench.client.calls(Op::HeadObject), heads, "{listed}");
    }
}

#[tokio::test]
async fn a_store_that_fails_pages_and_names_is_an_error_never_an_absent_name() {
    let names = many(60);
    let bench = bench(&names);
    for name in &names[..31] {
        bench.lookup(ROOT, name).await.unwrap();
    }
    for op in [Op::ListObjects, Op::HeadObject] {
        bench.client.inject(FaultPlan::on(op).always().fail(s3::ErrorKind::ServerError));
    }
    for name in &names[31..40] {
        assert_error!(bench.lookup(ROOT, name).await, ErrorKind::Remote(_));
    }
    bench.client.clear_faults();
    bench.lookup(ROOT, "n0031").await.unwrap();
}

#[tokio::test]
async fn a_ttl_of_nothing_is_meant_so() {
    let names = many(100);
    let none = Ttl::For { found: Duration::ZERO, missing: Duration::ZERO };
    let bench = Bench::new(none, &names.iter().map(String::as_str).collect::<Vec<_>>());
    let found = list_plus(&bench, ROOT).await;
    assert!(found.iter().all(|found| found.stat.valid_for.is_zero()));
    bench.client.reset_log();
    for name in &names {
        bench.lookup(ROOT, name).await.unwrap();
    }
    assert_eq!(bench.client.calls(Op::HeadObject), 100);
}

#[tokio::test]
async fn pages_go_when_they_no_longer_answer() {
    let names = many(3000);
    let bench = bench(&names);
    for name in &names {
        let found = bench.lookup(ROOT, name).await.unwrap();
        bench.table.forget(found.ino, 1);
    }
    assert_eq!(bench.table.0.tree.lock().recent_pages(), 3);
    for _ in 0..2 {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        bench.clock.advance(PAGE);
    }
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(bench.table.0.tree.lock().recent_pages(), 0);
    assert_eq!(bench.table.len(), 1);
}

#[tokio::test]
async fn a_page_under_a_directorys_old_key_says_nothing_after_its_rename() {
    let bench = Bench::new(Ttl::Minimal, &["d/a", "d/b", "d/c"]);
    let d = bench.lookup(ROOT, "d").await.unwrap().ino;
    let gate = bench.client.hold_answer(FaultPlan::on(Op::ListObjects).times(2));
    let (a, b, ()) = tokio::join!(bench.lookup(d, "a"), bench.lookup(d, "b"), async {
        gate.arrived(2).await;
        let (from, to) = ((ROOT, OsStr::new("d")), (ROOT, OsStr::new("e")));
        let Rename::Directory { names, .. } =
            bench.table.rename(from, to, RenameWish::default()).await.unwrap()
        else {
            panic!("it is a directory")
        };
        // Another client removes a file beside the rename.
        bench.client.remove("d/c");
        let below = ["a", "b"].map(|name| {
            bench.client.remove(format!("d/{name}"));
            bench.client.insert(format!("e/{name}"), "content");
            (name.to_owned(), bench.client.meta(format!("e/{name}")).unwrap())
        });
        bench.table.renamed_directory(&names, &below.into(), false);
        assert_error!(bench.lookup(d, "none").await, ErrorKind::NotFound);
        gate.release();
    });
    assert!(a.is_ok() && b.is_ok());
    assert_error!(bench.lookup(d, "c").await, ErrorKind::NotFound);
}
