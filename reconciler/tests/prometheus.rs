//! A real Prometheus scrapes a reconciler: it can evaluate every alert rule of the chart, and the rules about missing or stuck Mountpoint
//! Pods fire.

mod fixtures;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use csi::contract::VERSION;
use csi::mounter::{Usage, VolumeUsage};
use csi::node::volume_metrics;
use fixtures::Cluster;
use reconciler::facts::Group;
use reconciler::main_loop::Health;
use reconciler::plan::plan;
use reconciler::server;
use serde_json::Value;
use testkit::{Prometheus, need_tool, prometheus, until};

const DASHBOARD: &str = include_str!("../../helm/scality-mountpoint-s3-csi-driver/files/dashboard.json");
/// Metrics of engines, from the engine's own test with a Prometheus.
const OF_ENGINES: &str = include_str!("../../docs/monitoring/dashboard.json");
const RULES: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../helm/scality-mountpoint-s3-csi-driver/files/alerts.yaml");

/// The queries of all panels, with the dashboard's variable filled in as for "All".
fn queries() -> Vec<String> {
    prometheus::queries(DASHBOARD).into_iter().map(|(_, query)| query.replace("$volume", ".*")).collect()
}

#[test]
fn panels_about_engines_ask_for_what_engines_count() {
    let (ours, of_engines): (Vec<_>, Vec<_>) =
        queries().into_iter().partition(|it| it.contains("mount_s3_csi_"));
    assert!(ours.len() >= 8 && of_engines.len() >= 6, "{ours:?} {of_engines:?}");
    for query in of_engines {
        let name = query.split(['(', ' ']).find(|word| word.contains("{persistentvolume=~"));
        let name =
            name.and_then(|word| word.split('{').next()).unwrap_or_else(|| panic!("{query} has no volume"));
        assert!(OF_ENGINES.contains(name), "{name} of {query}");
    }
}

const MIB: u64 = 1 << 20;

/// A volume whose Mountpoint Pod uses this much of its memory limit.
fn with_memory(volume: &str, memory_bytes: u64, memory_limit_bytes: u64) -> VolumeUsage {
    VolumeUsage {
        volume: volume.into(),
        claim: volume.into(),
        claim_namespace: "default".into(),
        mountpoint_pod: "mp-1".into(),
        usage: Usage {
            memory_bytes: Some(memory_bytes),
            memory_limit_bytes: Some(memory_limit_bytes),
            cpu_us: Some(1),
            oom_kills: Some(0),
            kernel_files: None,
        },
    }
}

/// Mountpoint Pods of which the first two are near their limits: above 90 %, and with less than 32 MiB left.
fn usages() -> [VolumeUsage; 4] {
    [
        with_memory("full", 233 * MIB, 256 * MIB),
        with_memory("large-and-full", 1000 * MIB, 1024 * MIB),
        with_memory("large", 980 * MIB, 1024 * MIB),
        with_memory("small", 30 * MIB, 60 * MIB),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_alert_is_evaluated_and_sees_pods_that_are_not_made_or_started() {
    if !need_tool(&Prometheus::program()) {
        return;
    }
    let cluster = Cluster::new();
    cluster.put("persistentvolumes", fixtures::volume("pv"));
    cluster.put("persistentvolumeclaims", fixtures::claim("pv"));
    cluster.put("pods", fixtures::workload("w", "node", "pv"));
    let applier = cluster.applier();
    let metrics = applier.metrics();
    metrics.leads(true);
    let group = Group { node: "node".into(), volume: "pv".into() };
    let effects = plan(&cluster.cache().facts(&group, VERSION, cluster.now())).effects;
    for effect in &effects {
        applier.apply(effect).await.unwrap();
    }
    let of_node = csi::call_metrics::CallMetrics::of("mount_s3_csi_node");
    let page: server::Page = {
        let (metrics, cluster, of_node) = (Arc::clone(&metrics), cluster.clone(), of_node.clone());
        // Both services share one page, since Prometheus has one target in this test.
        Arc::new(move || {
            let of_node = volume_metrics::page(&of_node.page(None), "node", &usages(), None);
            metrics.page(&cluster.cache()).replace("# EOF\n", "") + &of_node
        })
    };
    let health = tokio::sync::watch::channel(Health { ready: true, missed: false, turned: Instant::now() });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = listener.local_addr().unwrap().to_string();
    let serving = tokio::spawn(async move { axum::serve(listener, server::router(health.1, page)).await });

    let folder = tempfile::tempdir().unwrap();
    let prometheus = Prometheus::start(folder.path(), "mount-s3-csi-controller", &target, Path::new(RULES));
    until("Prometheus has scraped the reconciler", || {
        !prometheus.query("mount_s3_csi_attachments == 1").is_empty()
    });
    until("every rule was evaluated", || {
        let rules = prometheus.rules();
        assert!(rules.iter().all(|rule| rule["health"] != "err"), "{rules:?}");
        rules.len() == 9 && rules.iter().all(|rule| rule["health"] == "ok")
    });
    let expression = |alert: &str| {
        let rules = prometheus.rules();
        let rule = rules.iter().find(|rule| rule["name"] == alert).expect(alert);
        rule["query"].as_str().expect("its expression").to_owned()
    };
    let quiet = expression("MountS3CSINoReconciler");
    // A scrape that a busy machine did not answer within its 500 ms leaves the series stale until the next one.
    until("a reconciler is seen to work", || {
        !prometheus.query("mount_s3_csi_leader == 1").is_empty() && prometheus.query(&quiet).is_empty()
    });
    let pending = expression("MountS3CSIPodsPending");
    until("the pod that does not start is seen", || !prometheus.query(&pending).is_empty());

    let memory = expression("MountS3CSIMemoryNearLimit");
    until("the Mountpoint Pods whose memory is nearly full are seen, and no others", || {
        let seen = prometheus.query(&memory);
        let volume = |it: &Value| it["metric"]["persistentvolume"].as_str().map(str::to_owned);
        let mut volumes: Vec<String> = seen.iter().filter_map(volume).collect();
        volumes.sort();
        volumes == ["full", "large-and-full"]
    });

    let refused = expression("MountS3CSIPodsNotCreated");
    until("pods that are not made are seen", || {
        // The count grows again and again, so that Prometheus sees a rate.
        metrics.pod_not_created("refused");
        !prometheus.query(&refused).is_empty()
    });
    let mut empty = queries();
    empty.retain(|query| query.contains("mount_s3_csi_"));
    let pod = cluster.mountpoint_pods()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    until("every panel about the driver has values", || {
        // Everyday work, so that every rate has something to show.
        metrics.pod_created(&pod, Instant::now());
        metrics.pod_runs(&pod, Instant::now());
        metrics.pod_not_created("refused");
        metrics.plan_left(false);
        of_node.called("NodePublishVolume", &Ok(()), Duration::from_millis(20));
        empty.retain(|query| !prometheus.has_values(query));
        empty.is_empty()
    });
    metrics.leads(false);
    until("nobody works", || !prometheus.query(&quiet).is_empty());
    serving.abort();
}
