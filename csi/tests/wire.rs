//! What comes over the socket besides good calls: too much, too often, or from another time.

mod harness;

use csi::proto::csi::{ProbeRequest, ProbeResponse};
use futures_util::FutureExt as _;
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

/// Goal: neither a client that breaks off its calls as fast as it makes them nor what it began stops the next one. The server may close
/// such a connection; a client connects again.
#[tokio::test]
async fn calls_that_are_broken_off_by_the_thousand_leave_a_driver_that_answers() {
    let driver = Driver::start().await;
    let gate = driver.mounter.hold();
    for number in 0..2000 {
        let (mut node, mut call) = (driver.node(), driver.call());
        call.target_path = driver.target(&format!("uid-{}", number % 100));
        // Asked once, so that it is on its way, and dropped.
        let _ = node.node_publish_volume(call).now_or_never();
        if number % 10 == 0 {
            tokio::task::yield_now().await;
        }
    }
    while let Err(status) = driver.identity().probe(ProbeRequest {}).await {
        assert_eq!(status.code(), Code::Unavailable, "{status}");
    }
    drop(gate);
    // What had begun ends by itself; until then its target is taken.
    for pod in 0..100 {
        let mut call = driver.call();
        call.target_path = driver.target(&format!("uid-{pod}"));
        while let Err(status) = driver.publish(call.clone()).await {
            assert!([Code::Aborted, Code::Unavailable].contains(&status.code()), "{status}");
            tokio::task::yield_now().await;
        }
    }
}

/// As a kubelet of a later CSI sends it.
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
