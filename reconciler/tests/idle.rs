//! The cost of the reconciler while nothing happens, in a cluster with 5,000 pods and 500 volumes in use. The tests print times, and only
//! memory and counts make them fail.

#![expect(clippy::print_stdout, reason = "a test prints what it measured")]

mod fixtures;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use csi::contract::VERSION;
use fixtures::Cluster;
use reconciler::plan::plan;

const PODS: usize = 5_000;
const GROUPS: usize = 500;
/// The limit on memory of the whole process.
const RSS_MAX_MIB: u64 = 64;

/// CPU time of this thread, in milliseconds.
fn cpu_ms() -> f64 {
    let words = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    words.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e6
}

#[tokio::test]
async fn a_sweep_of_a_cluster_at_rest_plans_nothing() {
    let cluster = Cluster::crowd(PODS, GROUPS).await;
    let cache = cluster.cache();
    assert_eq!(cache.pods.state().len(), PODS);
    let begin = cpu_ms();
    let index = cache.index();
    let groups = cache.groups_by(&index);
    assert_eq!(groups.len(), GROUPS);
    for group in &groups {
        let plan = plan(&cache.facts_by(&index, group, VERSION, cluster.now()));
        assert_eq!(plan.effects, [], "{group:?}");
    }
    println!("a sweep of {PODS} pods and {GROUPS} groups: {:.0} ms of CPU", cpu_ms() - begin);
}

/// A reconciler, which ends with the test.
struct Reconciler(Child);

impl Drop for Reconciler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Reconciler {
    fn status_kib(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim_matches([':', ' ', '\t', 'k', 'B']).parse().unwrap()
    }

    /// User and system time, in milliseconds.
    fn cpu_ms(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reconciler_keeps_5000_pods_and_500_groups_in_64_mib() {
    let cluster = Cluster::crowd(PODS, GROUPS).await;
    let address = cluster.listen().await;
    let calls = cluster.lock().calls.len();
    let mut config = tempfile::NamedTempFile::new().unwrap();
    write!(
        config,
        "{{apiVersion: v1, kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}],
          clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}], users: [{{name: u, user: {{}}}}]}}"
    )
    .unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_scality-csi-controller"))
        .args(["--pod-name", "test", "--mountpoint-image", "driver", "--health-address", "127.0.0.1:0"])
        .env("KUBECONFIG", config.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = BufReader::new(child.stderr.take().unwrap());
    let reconciler = Reconciler(child);
    // The reconciler leads, and has swept once: the second turn of the wheel after that is another sweep or nothing.
    let lines = tokio::task::spawn_blocking(move || {
        let mut lines = log.lines().map(Result::unwrap);
        let (mut filled, mut leads) = (false, false);
        let mut seen = Vec::new();
        while !(filled && leads) {
            let Some(line) = lines.next() else { panic!("the reconciler ended: {seen:#?}") };
            filled |= line.contains(&format!("all caches are filled groups={GROUPS}"));
            leads |= line.contains("this process leads");
            seen.push(line);
        }
        // The later words have a reader, too.
        std::thread::spawn(move || lines.for_each(drop));
        seen
    })
    .await
    .unwrap();
    let started = reconciler.cpu_ms();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (swept, at_first) = (reconciler.cpu_ms(), reconciler.status_kib("VmRSS"));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (rss, peak) = (reconciler.status_kib("VmRSS"), reconciler.status_kib("VmHWM"));
    println!(
        "RSS {} MiB (at first {}, peak {}); CPU: {started} ms to fill the caches, {} ms in the 3 s with the first sweep, {} ms in the 5 s after",
        rss >> 10,
        at_first >> 10,
        peak >> 10,
        swept - started,
        reconciler.cpu_ms() - swept
    );
    let calls: Vec<_> = cluster.lock().calls[calls..].to_vec();
    let writes: Vec<_> =
        calls.iter().filter(|call| !call.starts_with("GET") && !call.contains("leases/")).collect();
    assert!(writes.is_empty(), "a cluster at rest is left as it is: {writes:#?}");
    assert!(rss <= RSS_MAX_MIB << 10, "{rss} KiB; it said {lines:#?}");
}
