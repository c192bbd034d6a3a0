//! Statistics and condition of volumes, as the kubelet asks for them.

mod harness;

use std::io;
use std::path::Path;
use std::time::Duration;

use csi::contract::restart::Restarting;
use csi::node::stats::{Stats, Usage};
use csi::proto::csi::NodeGetVolumeStatsRequest;
use harness::Driver;
use k8s_openapi::jiff::Timestamp;
use tonic::Code;

async fn stats(
    driver: &Driver,
    id: &str,
    path: &str,
) -> Result<csi::proto::csi::NodeGetVolumeStatsResponse, tonic::Status> {
    let call =
        NodeGetVolumeStatsRequest { volume_id: id.into(), volume_path: path.into(), ..Default::default() };
    driver.node().node_get_volume_stats(call).await.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn stats_of_a_path_that_is_no_volume_are_not_found() {
    let driver = Driver::start().await;
    for path in ["some/path", "/etc", &driver.target("uid-9")] {
        let status = stats(&driver, "handle-1", path).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound, "{path}: {status}");
    }
    for (id, path, word) in [("", driver.target("uid-1"), "volume_id"), ("h", String::new(), "volume_path")] {
        let status = stats(&driver, id, &path).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(word), "{status}");
    }
}

#[tokio::test]
async fn stats_of_a_live_volume_are_its_figures() {
    let driver = Driver::start().await;
    let target = driver.target("uid-1");
    std::fs::create_dir_all(&target).unwrap();
    driver.mounted(&[&target]);
    let said = stats(&driver, "handle-1", &target).await.unwrap();
    assert_eq!(said.usage.len(), 2);
    assert!(said.usage[0].total > 0, "{said:?}");
    assert!(!said.volume_condition.unwrap().abnormal);
}

#[tokio::test]
async fn stats_of_a_dead_volume_are_zero_and_say_what_is_wrong() {
    let dead = |_: &Path| Err(io::Error::from_raw_os_error(rustix::io::Errno::NOTCONN.raw_os_error()));
    let driver = Driver::start_with(Stats::new(dead, Duration::from_secs(60))).await;
    let target = driver.target("uid-1");
    driver.mounted(&[&target]);
    let said = stats(&driver, "handle-1", &target).await.unwrap();
    let condition = said.volume_condition.unwrap();
    assert!(condition.abnormal && condition.message.contains("engine"), "{condition:?}");
    assert!(said.usage.iter().all(|it| (it.total, it.used, it.available) == (0, 0, 0)), "{:?}", said.usage);
}

#[tokio::test]
async fn stats_of_a_volume_whose_engine_is_started_again_say_since_when() {
    let hangs = |_: &Path| Err(io::Error::from_raw_os_error(rustix::io::Errno::TIMEDOUT.raw_os_error()));
    let driver = Driver::start_with(Stats::new(hangs, Duration::from_secs(60))).await;
    let target = driver.target("uid-1");
    driver.mounted(&[&target]);
    driver.mounter.restarts(Restarting { since: Timestamp::from_second(1_764_173_000).unwrap() });
    let condition = stats(&driver, "handle-1", &target).await.unwrap().volume_condition.unwrap();
    assert!(condition.abnormal);
    assert!(condition.message.contains("(restarting since 2025-11-26T16:03:20"), "{condition:?}");
}

#[tokio::test]
async fn stats_of_a_dead_mount_are_those_of_another_mount_of_its_volume() {
    let some_dead = |path: &Path| match path.to_string_lossy().contains("uid-1") {
        true => Err(io::Error::from_raw_os_error(rustix::io::Errno::NOTCONN.raw_os_error())),
        false => Ok(Usage { total_bytes: 100, used_bytes: 1, available_bytes: 99, ..Usage::default() }),
    };
    let driver = Driver::start_with(Stats::new(some_dead, Duration::from_secs(60))).await;
    let (dead, living) = (driver.target("uid-1"), driver.target("uid-2"));
    let of_another_volume = driver.target("uid-3").replace("pv-1", "pv-2");
    driver.mounted(&[&dead, &of_another_volume]);
    let alone = stats(&driver, "handle-1", &dead).await.unwrap();
    assert_eq!(alone.usage[0].total, 0, "another volume says nothing about it");
    driver.mounted(&[&dead, &living]);
    let said = stats(&driver, "handle-1", &dead).await.unwrap();
    assert_eq!((said.usage[0].total, said.usage[0].available), (100, 99));
    let condition = said.volume_condition.unwrap();
    assert!(condition.abnormal && condition.message.contains("uid-1"), "{condition:?}");
    assert!(!stats(&driver, "handle-1", &living).await.unwrap().volume_condition.unwrap().abnormal);
}
