//! Pages for the first lookups in directories, where those of their sisters paid.

use futures_util::future::join_all;

use super::*;

/// A bucket with this many folders in `a`, each with this many files.
fn folders(ttl: Ttl, folders: usize, files: usize) -> Bench {
    let names =
        (0..folders).flat_map(|folder| (0..files).map(move |file| format!("a/{folder:02}/{file:03}")));
    let names: Vec<_> = names.collect();
    Bench::new(ttl, &names.iter().map(String::as_str).collect::<Vec<_>>())
}

async fn folder(bench: &Bench, n: usize) -> InodeNo {
    bench.walk(&format!("a/{n:02}")).await.unwrap().ino
}

/// Looks these names up at once: no LIST goes out before all wait. Returns the numbers of HEADs and LISTs, and of names found.
async fn at_once(bench: &Bench, names: &[(InodeNo, String)]) -> (usize, usize, usize) {
    bench.client.reset_log();
    bench.client.clear_faults();
    let gate = bench.client.hold(FaultPlan::on(Op::ListObjects).always());
    let lookups = join_all(names.iter().map(|(folder, name)| bench.lookup(*folder, name)));
    let (found, ()) = tokio::join!(lookups, async {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        gate.release();
    });
    let calls = |op| bench.client.calls(op);
    (calls(Op::HeadObject), calls(Op::ListObjects), found.iter().filter(|found| found.is_ok()).count())
}

fn names(folder: InodeNo, files: std::ops::Range<usize>) -> Vec<(InodeNo, String)> {
    files.map(|file| (folder, format!("{file:03}"))).collect()
}

#[tokio::test]
async fn a_folder_costs_one_page_where_the_page_of_its_sister_paid() {
    for ttl in [Ttl::Minimal, MINUTE] {
        let bench = folders(ttl, 40, 8);
        let mut costs = Vec::new();
        for n in 0..40 {
            let folder = folder(&bench, n).await;
            costs.push(at_once(&bench, &names(folder, 0..4)).await);
        }
        assert_eq!(costs[0], (1, 2, 4), "{ttl:?}");
        assert!(costs[1..].iter().all(|costs| *costs == (0, 1, 4)), "{ttl:?}: {costs:?}");
    }
}

#[tokio::test]
async fn threads_in_a_folder_each_cost_one_page_a_folder() {
    let bench = folders(Ttl::Minimal, 16, 8);
    let mut all = Vec::new();
    for n in 0..16 {
        all.push(folder(&bench, n).await);
    }
    let mut cost = (0, 0);
    for file in 0..8 {
        for folders in all.chunks(8) {
            let names: Vec<_> = folders.iter().map(|folder| (*folder, format!("{file:03}"))).collect();
            let (heads, lists, found) = at_once(&bench, &names).await;
            assert_eq!(found, 8);
            cost = (cost.0 + heads, cost.1 + lists);
        }
    }
    assert!(cost.0 <= 4 && cost.1 <= 20, "128 lookups in 16 folders: {cost:?}");
}

#[tokio::test]
async fn one_name_of_each_sister_costs_no_request_more_than_a_lookup() {
    for is_at_once in [false, true] {
        let bench = folders(Ttl::Minimal, 64, 1);
        let mut all = Vec::new();
        for n in 0..64 {
            all.extend(names(folder(&bench, n).await, 0..1));
        }
        let (heads, lists, found) = match is_at_once {
            true => at_once(&bench, &all).await,
            false => {
                bench.client.reset_log();
                for (folder, name) in &all {
                    bench.lookup(*folder, name).await.unwrap();
                }
                (bench.client.calls(Op::HeadObject), bench.client.calls(Op::ListObjects), 64)
            }
        };
        assert_eq!(found, 64);
        assert_eq!((heads, lists), (if is_at_once { 48 } else { 64 }, 64), "at once: {is_at_once}");
    }
}
