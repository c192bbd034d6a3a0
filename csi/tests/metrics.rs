//! The page for Prometheus of a node's driver.

mod harness;

use std::sync::Arc;

use csi::mounter::{Usage, VolumeUsage};
use harness::{Driver, http_get};

#[tokio::test]
async fn the_kubelets_calls_are_counted_by_their_code_and_timed() {
    let driver = Driver::start().await;
    driver.publish(driver.call()).await.unwrap();
    driver.publish(driver.call()).await.unwrap();
    let mut wrong = driver.call();
    wrong.volume_context.clear();
    driver.publish(wrong).await.unwrap_err();
    let address = driver.health(driver.directory(), Arc::new(|| None)).await;
    let (status, page) = http_get(address, "/metrics").await;
    assert_eq!(status, 200);
    for line in [
        "mount_s3_csi_node_calls_total{call=\"NodePublishVolume\",code=\"OK\"} 2",
        "mount_s3_csi_node_calls_total{call=\"NodePublishVolume\",code=\"InvalidArgument\"} 1",
        "mount_s3_csi_node_call_seconds_count{call=\"NodePublishVolume\"} 3",
    ] {
        assert!(page.lines().any(|it| it == line), "no {line} in:\n{page}");
    }
    assert!(page.ends_with("# EOF\n"), "{page}");
}

#[tokio::test]
async fn engines_are_asked_for_their_usage_at_each_scrape() {
    let driver = Driver::start().await;
    let address = driver.health(driver.directory(), Arc::new(|| None)).await;
    let lines = async || {
        let (status, page) = http_get(address, "/metrics").await;
        assert_eq!(status, 200);
        assert!(page.ends_with("# EOF\n") && page.matches("# EOF").count() == 1, "{page}");
        page.lines().filter(|it| it.starts_with("mount_s3_csi_volume")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(lines().await.is_empty());
    for memory in [7, 8] {
        driver.mounter.uses(vec![VolumeUsage {
            volume: "pv".into(),
            claim: "data".into(),
            claim_namespace: "team".into(),
            mountpoint_pod: "mp-1".into(),
            usage: Usage { memory_bytes: Some(memory), ..Usage::default() },
        }]);
        let lines = lines().await;
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("claim_namespace=\"team\""), "{lines:?}");
        assert!(lines[0].ends_with(&format!("}} {memory}")), "{lines:?}");
    }
}
