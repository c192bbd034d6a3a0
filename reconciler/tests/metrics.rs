//! The page for Prometheus, while workloads come and go.

mod fixtures;

use std::io::{Read as _, Seek as _};
use std::time::{Duration, Instant};

use csi::contract::VERSION;
use fixtures::{Cluster, NAMESPACE};
use reconciler::facts::Group;
use reconciler::leader::Leadership;
use reconciler::main_loop::{MainLoop, carry_out};
use reconciler::plan::plan;
use testkit::until_async;

/// The value of a series, by the beginning of its line.
fn value(page: &str, series: &str) -> f64 {
    let line = page.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("no {series} in:\n{page}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn the_page_has_attachments_workloads_by_volume_and_start_times_of_pods() {
    let (cluster, group) = Cluster::with(&["w1", "w2"]);
    let applier = cluster.applier();
    let metrics = applier.metrics();
    // The second joins once the attachment is seen.
    for _ in 0..2 {
        for effect in plan(&cluster.cache().facts(&group, VERSION, cluster.now())).effects {
            applier.apply(&effect).await.unwrap();
        }
    }
    let page = metrics.page(&cluster.cache());
    assert_eq!(value(&page, "mount_s3_csi_attachments"), 1.0);
    assert_eq!(value(&page, "mount_s3_csi_mountpoint_pods_created_total"), 1.0);
    assert_eq!(value(&page, "mount_s3_csi_mountpoint_pods{phase=\"Pending\"}"), 1.0);
    assert_eq!(value(&page, "mount_s3_csi_mountpoint_pod_creation_seconds_count"), 0.0);
    let volume =
        "{node=\"node\",persistentvolume=\"pv\",persistentvolumeclaim=\"pv\",claim_namespace=\"default\"}";
    assert_eq!(value(&page, &format!("mount_s3_csi_attached_workloads{volume}")), 2.0);

    let pod = cluster.mountpoint_pods()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    metrics.pod_runs(&pod, Instant::now() + Duration::from_secs(3));
    metrics.pod_runs(&pod, Instant::now() + Duration::from_secs(9));
    let page = metrics.page(&cluster.cache());
    assert_eq!(value(&page, "mount_s3_csi_mountpoint_pod_creation_seconds_count"), 1.0, "once for each pod");
    assert!(value(&page, "mount_s3_csi_mountpoint_pod_creation_seconds_sum") >= 2.9, "{page}");
    assert!(page.ends_with("# EOF\n"), "{page}");
}

#[tokio::test]
async fn a_pod_that_is_refused_or_not_taken_is_counted_by_its_reason() {
    let (cluster, group) = Cluster::with(&["w"]);
    let applier = cluster.applier();
    let plan = plan(&cluster.cache().facts(&group, VERSION, cluster.now()));
    for code in [403, 403, 500] {
        cluster.lock().refuse_pods = Some((code, "exceeded quota".into()));
        applier.apply(&plan.effects[0]).await.unwrap_err();
    }
    let page = applier.metrics().page(&cluster.cache());
    let failures =
        |reason: &str| format!("mount_s3_csi_mountpoint_pod_creation_failures_total{{reason=\"{reason}\"}}");
    assert_eq!(value(&page, &failures("refused")), 2.0);
    assert_eq!(value(&page, &failures("api")), 1.0);
    assert_eq!(value(&page, "mount_s3_csi_mountpoint_pods_created_total"), 0.0);
}

/// Goal: in normal work no failure is counted, so that an alert on failures means something.
#[tokio::test]
async fn a_plan_whose_facts_changed_is_a_conflict_and_no_failure() {
    let (cluster, group) = Cluster::with(&["w"]);
    let applier = cluster.applier();
    let facts = || cluster.cache().facts(&group, VERSION, cluster.now());
    carry_out(&applier, &Leadership::forever(), facts()).await.unwrap();
    // The cache has lost a pod that the API server has.
    let mut stale = facts();
    stale.workloads.clear();
    let left = carry_out(&applier, &Leadership::forever(), stale).await.unwrap_err();
    assert!(left.conflict, "{left:?}");
    cluster.lock().refuse_pods = Some((403, "exceeded quota".into()));
    cluster.put("pods", fixtures::workload("x", "other", "pv"));
    let group = Group { node: "other".into(), volume: "pv".into() };
    let facts = cluster.cache().facts(&group, VERSION, cluster.now());
    let left = carry_out(&applier, &Leadership::forever(), facts).await.unwrap_err();
    assert!(!left.conflict, "{left:?}");

    let metrics = applier.metrics();
    metrics.plan_left(true);
    metrics.plan_left(true);
    metrics.plan_left(false);
    let page = metrics.page(&cluster.cache());
    assert_eq!(value(&page, "mount_s3_csi_reconcile_conflicts_total"), 2.0);
    assert_eq!(value(&page, "mount_s3_csi_reconcile_failures_total"), 1.0);
}

#[tokio::test]
async fn a_failure_that_is_counted_is_a_warning_in_the_log() {
    let mut file = tempfile::tempfile().unwrap();
    let lines = tracing_subscriber::fmt().with_ansi(false).with_writer(file.try_clone().unwrap());
    let _logs = tracing::subscriber::set_default(lines.finish());
    let (cluster, _) = Cluster::with(&["w"]);
    cluster.lock().refuse_pods = Some((403, "exceeded quota".into()));
    let main_loop = MainLoop::new(&cluster.client(), NAMESPACE, cluster.applier(), Leadership::forever());
    let page = main_loop.page();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(main_loop.run(async {
        let _ = stopped.await;
    }));
    let failures = || value(&page(), "mount_s3_csi_reconcile_failures_total");
    until_async("a failure is counted", || failures() > 0.0).await;
    drop(stop);
    running.await.unwrap();
    let mut log = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut log).unwrap();
    let is_it =
        |line: &&str| line.contains(" WARN ") && line.contains("the plan failed; it will be made again");
    let told: Vec<_> = log.lines().filter(is_it).collect();
    assert!(!told.is_empty(), "{log}");
    assert!(
        told.iter().all(|line| line.contains("exceeded quota") && line.contains("volume=\"pv\"")),
        "{log}"
    );
}
