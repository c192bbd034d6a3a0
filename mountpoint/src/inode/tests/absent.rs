//! Absent names: a page of the whole directory proves them to lookups that began before its request, and to no other.

use futures_util::future::join_all;

use super::*;

/// An array of today's format, whose program looks for files of the earlier format, too.
const KEYS: [&str; 2] = ["zarr.json", "c/0/0"];
const WANTED: [&str; 3] = ["zarr.json", ".zarray", ".zattrs"];

async fn others_go_on() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// Looks these names up at once: no LIST goes out before all wait. Returns which were found, and the numbers of HEADs and LISTs.
async fn at_once(bench: &Bench, parent: InodeNo, names: &[String]) -> (Vec<bool>, (usize, usize)) {
    bench.client.reset_log();
    let gate = bench.client.hold(FaultPlan::on(Op::ListObjects).always());
    let lookups = join_all(names.iter().map(|name| bench.lookup(parent, name)));
    let (found, ()) = tokio::join!(lookups, async {
        others_go_on().await;
        bench.client.clear_faults();
        gate.release();
    });
    for found in found.iter().filter_map(|found| found.as_ref().err()) {
        assert!(matches!(found.kind(), ErrorKind::NotFound), "{found:?}");
    }
    (found.iter().map(Result::is_ok).collect(), costs(bench))
}

fn costs(bench: &Bench) -> (usize, usize) {
    (bench.client.calls(Op::HeadObject), bench.client.calls(Op::ListObjects))
}

fn wanted() -> Vec<String> {
    WANTED.map(String::from).to_vec()
}

#[tokio::test]
async fn names_that_a_short_directory_lacks_cost_two_pages_however_many() {
    for more in [0, 30] {
        let bench = Bench::new(Ttl::Minimal, &KEYS);
        let mut names = wanted();
        names.extend((0..more).map(|n| format!("x{n}")));
        let (found, costs_of_all) = at_once(&bench, ROOT, &names).await;
        assert_eq!(found.iter().filter(|found| **found).count(), 1);
        // The requests of the first name, the page of the second, and that of all whose lookups may have begun after the request for it.
        assert_eq!(costs_of_all, (1, 3), "{more}");
        assert_error!(bench.lookup(ROOT, ".zarray").await, ErrorKind::NotFound);
        assert_eq!(costs(&bench), (2, 4), "a later lookup asks for its name");
    }
}

#[tokio::test]
async fn absent_names_of_sister_directories_cost_two_pages_each() {
    let keys: Vec<_> = (0..6).flat_map(|n| KEYS.map(|key| format!("a{n}/{key}"))).collect();
    let bench = Bench::new(Ttl::Minimal, &keys.iter().map(String::as_str).collect::<Vec<_>>());
    let mut all = Vec::new();
    for n in 0..6 {
        let directory = bench.lookup(ROOT, &format!("a{n}")).await.unwrap().ino;
        let (found, costs) = at_once(&bench, directory, &wanted()).await;
        assert_eq!(found, [true, false, false]);
        all.push(costs);
    }
    assert_eq!(all, [(1, 3), (0, 2), (0, 2), (0, 2), (0, 2), (0, 2)]);
}

#[tokio::test]
async fn a_lookup_that_began_after_a_pages_request_finds_what_came_since() {
    let bench = Bench::new(Ttl::Minimal, &KEYS);
    let gate = bench.client.hold_answer(FaultPlan::on(Op::ListObjects).always());
    let early = join_all(WANTED[..2].iter().map(|name| bench.lookup(ROOT, name)));
    let late = async {
        gate.arrived(2).await;
        // The page's answer is decided. Another client stores the name, and only then a program looks for it.
        bench.client.insert(".zattrs", "content");
        let all = join_all([bench.lookup(ROOT, ".zattrs"), bench.lookup(ROOT, ".zgroup")]);
        let (found, ()) = tokio::join!(all, async {
            others_go_on().await;
            gate.pass_one();
            gate.pass_one();
            // The second page's answer is decided, too; another client stores another name.
            gate.arrived(3).await;
            bench.client.insert(".zmetadata", "content");
            let last = bench.lookup(ROOT, ".zmetadata");
            let (found, ()) = tokio::join!(last, async {
                others_go_on().await;
                gate.release();
            });
            assert_eq!(found.unwrap().stat.size, 7);
        });
        found
    };
    let (early, late) = tokio::join!(early, late);
    assert!(early[0].is_ok() && early[1].is_err(), "{early:?}");
    assert_eq!(late[0].as_ref().unwrap().stat.size, 7);
    assert!(late[1].is_err(), "{late:?}");
}

#[tokio::test]
async fn a_page_does_not_hide_what_this_mount_stored_since_its_request() {
    let bench = Bench::new(Ttl::Minimal, &KEYS);
    let gate = bench.client.hold_answer(FaultPlan::on(Op::ListObjects).always());
    let lookups = join_all(WANTED[..2].iter().map(|name| bench.lookup(ROOT, name)));
    let (found, ()) = tokio::join!(lookups, async {
        gate.arrived(2).await;
        // The page stays at the gate; what the write asks does not.
        bench.client.clear_faults();
        // The kernel has forgotten the file by the time the page arrives: only facts tell of it.
        let made = bench.write(ROOT, ".zarray", "content").await;
        bench.table.forget(made, 1);
        assert!(!bench.table.lives(made));
        gate.release();
    });
    assert_eq!(found[1].as_ref().unwrap().stat.size, 7);
}

#[tokio::test]
async fn a_page_that_is_not_the_whole_directory_proves_no_name_absent() {
    let keys: Vec<_> = (0..20).map(|n| format!("n{n:02}")).collect();
    let config = Config { list_page: 9, ..Config::default() };
    let bench = Bench::with(config, &keys.iter().map(String::as_str).collect::<Vec<_>>());
    let names = ["n00", "n15", "n16-", "n17"].map(String::from);
    assert_eq!(at_once(&bench, ROOT, &names).await, (vec![true, true, false, true], (4, 5)));
}

#[tokio::test]
async fn a_long_directory_is_not_listed_again_for_absent_names() {
    let keys: Vec<_> = (0..80).map(|n| format!("n{n:02}")).collect();
    let bench = Bench::new(Ttl::Minimal, &keys.iter().map(String::as_str).collect::<Vec<_>>());
    let names = ["n00", "x", "y", "z"].map(String::from);
    // The page proves its own asker's name.
    assert_eq!(at_once(&bench, ROOT, &names).await, (vec![true, false, false, false], (3, 4)));
}

#[tokio::test]
async fn a_page_with_a_mark_of_a_directory_proves_no_name_absent() {
    let config = Config { folder_marks: true, ..Config::default() };
    let bench = Bench::with(config, &["zarr.json"]);
    bench.client.insert(".zarray_$folder$", "");
    let (found, _) = at_once(&bench, ROOT, &wanted()).await;
    assert_eq!(found, [true, true, false]);
}

#[tokio::test]
async fn a_page_whose_entries_could_not_all_be_read_proves_no_name_absent() {
    for unasked in [Unasked::default(), Unasked::SECOND] {
        let bench = Bench::with(Config { unasked, ..Config::default() }, &KEYS);
        let found = bench.lookup(ROOT, "zarr.json").await.unwrap();
        bench.table.forget(found.ino, 1);
        bench.client.insert(".zarray", "content");
        bench.client.leave_out(".zarray");
        let (found, _) = at_once(&bench, ROOT, &wanted()).await;
        assert_eq!(found, [true, true, false], "{unasked:?}");
    }
}

#[tokio::test]
async fn a_listing_whose_entries_could_not_all_be_read_proves_no_name_absent() {
    for is_left_out in [false, true] {
        let bench = Bench::new(MINUTE, &KEYS);
        if is_left_out {
            bench.client.insert(".zarray", "content");
            bench.client.leave_out(".zarray");
        }
        let listed = bench.list(ROOT).await;
        assert!(listed.iter().all(|entry| entry.name() != ".zarray"));
        let (found, cost) = bench.cost(bench.lookup(ROOT, ".zarray")).await;
        assert_eq!((found.is_ok(), cost > 0), (is_left_out, is_left_out));
    }
}
