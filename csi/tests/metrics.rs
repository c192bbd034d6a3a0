//! The page for Prometheus of a node's driver.

mod harness;

use std::sync::Arc;

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
