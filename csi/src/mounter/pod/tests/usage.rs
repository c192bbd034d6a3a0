//! Usage of engines, over real sockets in the comm directories of real mounts.

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixListener;
use tokio::sync::mpsc;

use super::*;
use crate::contract::pod;
use crate::mounter::{Usage, VolumeUsage};

/// An engine's socket. It sends each line that it hears to the test, and answers each request with that much memory; without a number it says
/// nothing.
fn engine(home: &Home, uid: &str, memory: Option<u64>) -> mpsc::Receiver<String> {
    let path = Comm::on_host(&home.kubelet, uid).engine_socket();
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(path).unwrap();
    let (heard, hears) = mpsc::channel(64);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let heard = heard.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let mut line = String::new();
                while stream.read_line(&mut line).await.unwrap() > 0 {
                    let said: serde_json::Value = serde_json::from_str(&line).unwrap();
                    let answer = match (memory, said.get("number")) {
                        (None, _) => String::new(),
                        (Some(_), None) => "{\"version\":1}\n".to_owned(),
                        (Some(memory), Some(number)) => {
                            format!("{{\"number\":{number},\"usage\":{{\"memory_bytes\":{memory}}}}}\n")
                        }
                    };
                    heard.send(std::mem::take(&mut line)).await.unwrap();
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            });
        }
    });
    hears
}

/// The Mountpoint Pod of a volume and its claim.
fn of_claim(name: &str, uid: &str) -> serde_json::Value {
    let mut it = mountpoint_pod(name, uid, NODE, "Running");
    it["metadata"]["annotations"] = serde_json::json!({
        (pod::VOLUME_NAME): "pv-1", (pod::CLAIM): "data", (pod::CLAIM_NAMESPACE): "team",
    });
    it
}

/// Waits until the mounter has seen the volume of a Mountpoint Pod.
async fn knows_volume(mounter: &PodMounter, name: &str) {
    while mounter.node.assignments.pod(name).is_none_or(|pod| pod.volume.is_none()) {
        tokio::task::yield_now().await;
    }
}

/// Lets the last answer become too old for the next scrape.
async fn later(mounter: &PodMounter) {
    *mounter.node.last_usage.lock().await = None;
}

fn told(pod: &str, memory: u64) -> VolumeUsage {
    VolumeUsage {
        volume: "pv-1".into(),
        claim: "data".into(),
        claim_namespace: "team".into(),
        mountpoint_pod: pod.into(),
        usage: Usage { memory_bytes: Some(memory), ..Usage::default() },
    }
}

#[test]
fn an_engine_is_dialled_when_it_serves_and_when_the_driver_starts_anew() {
    isolated(|| {
        at_home(async |home| {
            home.server.pods().put("mp-1", of_claim("mp-1", "pod-uid"));
            let mut heard = engine(home, "pod-uid", Some(7));
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
            assert_eq!(heard.recv().await.unwrap(), "{\"version\":1,\"registers\":true}\n");
            knows_volume(&home.mounter, "mp-1").await;
            assert_eq!(home.mounter.usage().await, [told("mp-1", 7)]);
            assert_eq!(heard.recv().await.unwrap(), "{\"number\":1,\"request\":\"usage\"}\n");
            assert!(heard.try_recv().is_err(), "on the same connection");
            let (one, other) = tokio::join!(home.mounter.usage(), home.mounter.usage());
            assert_eq!((one, other), (vec![told("mp-1", 7)], vec![told("mp-1", 7)]));
            assert!(heard.try_recv().is_err(), "scrapes within a second share one answer");
            later(&home.mounter).await;
            let (one, other) = tokio::join!(home.mounter.usage(), home.mounter.usage());
            assert_eq!((one, other), (vec![told("mp-1", 7)], vec![told("mp-1", 7)]));
            assert_eq!(heard.recv().await.unwrap(), "{\"number\":2,\"request\":\"usage\"}\n");
            assert!(heard.try_recv().is_err(), "one question for both");

            let anew = mounter(&home.server, &home.kubelet);
            assert_eq!(heard.recv().await.unwrap(), "{\"version\":1,\"registers\":true}\n");
            knows_volume(&anew, "mp-1").await;
            assert_eq!(anew.usage().await, [told("mp-1", 7)]);
        });
    });
}

#[test]
fn engines_that_hang_or_have_no_socket_are_left_out_of_the_usage() {
    isolated(|| {
        at_home(async |home| {
            home.server.pods().put("mp-1", of_claim("mp-1", "pod-uid"));
            home.server.pods().put("mp-2", of_claim("mp-2", "pod-uid-2"));
            home.server.attachments().put("a", json_pairs(&[("mp-1", &["w1"]), ("mp-2", &["w2"])]));
            let _second = MountpointPod::start(&home.kubelet, "pod-uid-2");
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
            home.mounter.mount(home.request("w2", "key-1")).await.unwrap();
            knows_volume(&home.mounter, "mp-1").await;
            knows_volume(&home.mounter, "mp-2").await;
            assert_eq!(home.mounter.usage().await, [], "engines of an earlier release");
            let _serves = engine(home, "pod-uid", Some(8));
            later(&home.mounter).await;
            assert_eq!(home.mounter.usage().await, [told("mp-1", 8)]);
            let _hangs = engine(home, "pod-uid-2", None);
            later(&home.mounter).await;
            assert_eq!(home.mounter.usage().await, [told("mp-1", 8)], "one does not wait for the other");
        });
    });
}

/// Goal: the kernel reads cached files by itself after an engine's death as before it, whether or not anybody scrapes.
#[test]
fn the_next_engine_of_a_mount_is_dialled_once_it_serves() {
    isolated(|| {
        at_home(async |home| {
            let path = Comm::on_host(&home.kubelet, "pod-uid").engine_socket();
            let listener = UnixListener::bind(&path).unwrap();
            let (to, mut told) = mpsc::channel(8);
            let processes = processes(&home.kubelet.join("proc"), &["pod-uid"]);
            let config =
                Config { kubelet: home.kubelet.clone(), processes, notices: Some(to), ..Config::new(NODE) };
            let mounter = PodMounter::new(home.server.client(), config).unwrap();
            mounter.mount(home.request("w1", "key-1")).await.unwrap();
            let (mut first, _) = listener.accept().await.unwrap();
            first.write_all(b"{\"version\":1}\n").await.unwrap();
            // The engine dies, and nobody listens until the next one serves.
            drop((first, listener));
            let device = home.pod.kill_engine_and_keep_device();
            told.recv().await.unwrap();
            // The driver has looked, and found no engine.
            drop(mounter.node.locks.lock("mp-1").await);
            tokio::task::yield_now().await;
            std::fs::remove_file(&path).unwrap();
            let listener = UnixListener::bind(&path).unwrap();
            home.pod.go_on(device);
            let dialled = tokio::time::timeout(LONG, listener.accept()).await;
            let (next, _) = dialled.expect("the next engine is dialled").unwrap();
            let mut line = String::new();
            BufReader::new(next).read_line(&mut line).await.unwrap();
            assert_eq!(line, "{\"version\":1,\"registers\":true}\n");
        });
    });
}
