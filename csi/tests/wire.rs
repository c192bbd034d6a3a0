//! Bad calls over the socket: too much, too often, or from another time.

mod harness;

use std::time::Duration;

use csi::proto::csi::{ProbeRequest, ProbeResponse};
use harness::{Driver, mount_of};
use http::uri::PathAndQuery;
use tonic::Code;
use tonic_prost::ProstCodec;

#[tokio::test]
async fn a_call_longer_than_two_mebibytes_is_refused() {
    let driver = Driver::start().await;
    let mut call = driver.call();
    mount_of(&mut call).mount_flags = vec!["x".repeat(csi::server::MESSAGE_MAX)];
    let status = driver.publish(call).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
}

/// Calls of one client before it breaks them off.
const AT_ONCE: usize = 20;

/// Goal: neither a client that breaks off its calls as fast as it makes them nor what it began stops the next one. The server may close
/// such a connection; a client connects again.
#[tokio::test]
async fn calls_that_are_broken_off_by_the_thousand_leave_a_driver_that_answers() {
    let driver = Driver::start().await;
    let gate = driver.mounter.hold();
    let mut begun = Vec::new();
    for number in 0..2000 {
        let (mut node, mut call) = (driver.node(), driver.call());
        call.target_path = driver.target(&format!("uid-{}", number % 100));
        begun.push(tokio::spawn(async move { node.node_publish_volume(call).await }));
        if begun.len() < AT_ONCE {
            continue;
        }
        if number < AT_ONCE {
            driver.mounter.reached_by(AT_ONCE).await;
        }
        // Enough for them to be on their way.
        tokio::time::sleep(Duration::from_millis(1)).await;
        begun.drain(..).for_each(|call| call.abort());
    }
    assert!(driver.mounter.mounts().len() > AT_ONCE, "later calls came, too");
    while let Err(status) = driver.identity().probe(ProbeRequest {}).await {
        assert_eq!(status.code(), Code::Unavailable, "{status}");
    }
    drop(gate);
    // A call that had begun ends by itself; until then its target is taken.
    for pod in 0..100 {
        let mut call = driver.call();
        call.target_path = driver.target(&format!("uid-{pod}"));
        while let Err(status) = driver.publish(call.clone()).await {
            assert!([Code::Aborted, Code::Unavailable].contains(&status.code()), "{status}");
            tokio::task::yield_now().await;
        }
    }
}

/// A probe as a kubelet of a later CSI sends it.
#[derive(Clone, PartialEq, prost::Message)]
struct TomorrowsProbe {
    #[prost(string, tag = "1000")]
    word: String,
}

#[tokio::test]
async fn a_field_that_only_tomorrows_kubelet_knows_is_ignored() {
    let driver = Driver::start().await;
    let mut client = tonic::client::Grpc::new(driver.channel());
    client.ready().await.unwrap();
    let codec = ProstCodec::<TomorrowsProbe, ProbeResponse>::default();
    let probe = tonic::Request::new(TomorrowsProbe { word: "new".into() });
    let path = PathAndQuery::from_static("/csi.v1.Identity/Probe");
    let answer = client.unary(probe, path, codec).await.unwrap().into_inner();
    assert_eq!(answer.ready, Some(false), "it has no device");
}
