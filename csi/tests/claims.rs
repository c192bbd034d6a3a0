//! Targets that exclude each other, through a driver on its own socket.

mod harness;

use csi::proto::csi::volume_capability::{AccessMode, access_mode::Mode};
use harness::Driver;
use tonic::Code;

#[tokio::test]
async fn a_single_writer_s_second_target_is_refused_while_the_first_is_live() {
    let driver = Driver::start().await;
    let of = |uid: &str| {
        let mut call = driver.call();
        call.target_path = driver.target(uid);
        let capability = call.volume_capability.as_mut().unwrap();
        capability.access_mode = Some(AccessMode { mode: Mode::SingleNodeSingleWriter.into() });
        call
    };
    driver.publish(of("uid-1")).await.unwrap();
    driver.mounted(&[&driver.target("uid-1")]);
    let status = driver.publish(of("uid-2")).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains("pv-1") && status.message().contains("uid-1"), "{status}");
    driver.publish(of("uid-1")).await.unwrap();
    driver.mounted(&[]);
    driver.publish(of("uid-2")).await.unwrap();
}

#[tokio::test]
async fn a_volume_with_a_handle_in_use_is_refused_with_the_names_of_both() {
    let driver = Driver::start().await;
    let of = |name: &str| {
        let mut call = driver.call();
        call.target_path = driver.target(&format!("uid-of-{name}")).replace("pv-1", name);
        call
    };
    driver.publish(of("pv-1")).await.unwrap();
    driver.mounted(&[&of("pv-1").target_path]);
    let status = driver.publish(of("pv-2")).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    for word in ["PersistentVolumes pv-2 and pv-1", "volumeHandle \"handle-1\"", "uid-of-pv-1"] {
        assert!(status.message().contains(word), "{word}: {status}");
    }
    assert_eq!(driver.mounter.mounts().len(), 1, "nothing is mounted for it");
    let mut own = of("pv-2");
    own.volume_id = "handle-2".into();
    driver.publish(own).await.unwrap();
}
