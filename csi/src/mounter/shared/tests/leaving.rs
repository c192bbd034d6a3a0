//! Mounts of an engines pod on a node whose new mounts are those of Mountpoint Pods.

use testkit::until_async;

use super::*;
use crate::mounter::pod::{self, PodMounter};
use crate::mounter::testing::api::attachment;

/// The driver of a node whose `node.mounter` was changed to `pod`.
fn leaving(home: &Home) -> Leaving<PodMounter> {
    let kubelet = home.kubelet.clone();
    let processes = processes(&kubelet.join("proc"), &["pod-uid", "mp-uid"]);
    let of_pods =
        pod::Config { kubelet: kubelet.clone(), processes: processes.clone(), ..pod::Config::new(NODE) };
    let pods = PodMounter::new(home.server.client(), of_pods).unwrap();
    let unused_for = Duration::from_millis(300);
    Leaving::new(pods, Config { kubelet, processes, unused_for, ..Config::new(NODE, 0) }).unwrap()
}

/// The reconciler has made a Mountpoint Pod for these workloads.
fn assign(home: &Home, workloads: &[&str]) -> MountpointPod {
    let pod = MountpointPod::start(&home.kubelet, "mp-uid");
    home.server.pods().put("mp-1", mountpoint_pod("mp-1", "mp-uid", NODE, "Running"));
    for &workload in workloads {
        let name = format!("attachment of {workload}");
        home.server.attachments().put(&name, attachment(&name, NODE, "pv-1", &[("mp-1", workload)]));
    }
    pod
}

#[test]
fn mounts_of_the_engines_pod_stay_and_get_keys_until_their_pods_end() {
    isolated(|| {
        on_node(LONG, |home| async move {
            assert!(!has_sources(&home.kubelet));
            home.mount("pv-1", "w1").await.unwrap();
            assert!(has_sources(&home.kubelet));
            let (source, device) = (home.source_of("pv-1", "w1"), home.device("pv-1", "w1"));
            let pod = assign(&home, &["w1"]);
            let mounter = leaving(&home);
            let mut request = home.request("pv-1", "w1");
            request.credentials.as_mut().unwrap().access_key_id = "key-2".into();
            assert_eq!(mounter.mount(request).await.unwrap(), Made::AsUsual);
            assert!(home.keys("pod-uid", &source, "pv-1").contains("key-2"));
            assert_eq!(home.device("pv-1", "w1"), device);
            assert!(pod.messages().is_empty(), "the Mountpoint Pod gets no mount");

            mounter.unmount(&home.target("pv-1", "w1")).await.unwrap();
            until_async("the source has left", || !has_sources(&home.kubelet)).await;
            let files = CommFiles::open(&Comm::on_host(&home.kubelet, "pod-uid").of_source(&source)).unwrap();
            assert!(files.exit_announced(), "its mounter ends");
            assert_eq!(home.keys("pod-uid", &source, "pv-1"), "");
        })
    });
}

#[test]
fn new_mounts_and_dead_ones_of_the_engines_pod_are_mountpoint_pods() {
    isolated(|| {
        on_node(LONG, |home| async move {
            home.mount("pv-1", "w1").await.unwrap();
            let source = home.source_of("pv-1", "w1");
            let pod = assign(&home, &["w1", "w2"]);
            let mounter = leaving(&home);
            mounter.mount(home.request("pv-1", "w2")).await.unwrap();
            assert_eq!(home.source_of("pv-1", "w2"), "mp-1");
            assert_eq!(home.source_of("pv-1", "w1"), source);

            home.pod.source(&source).kill_engine();
            mounter.mount(home.request("pv-1", "w1")).await.unwrap();
            assert_eq!(home.source_of("pv-1", "w1"), "mp-1");
            std::fs::metadata(home.target("pv-1", "w1")).unwrap();
            assert_eq!(pod.messages().len(), 1);
            for workload in ["w1", "w2"] {
                mounter.unmount(&home.target("pv-1", workload)).await.unwrap();
            }
            until_async("the dead source has left", || !has_sources(&home.kubelet)).await;
        })
    });
}

/// Goal: as for a driver of the engines pod, keys never go to a place that nobody knows.
#[test]
fn a_left_source_whose_note_is_unreadable_gets_no_keys_and_serves_on() {
    isolated(|| {
        on_node(LONG, |home| async move {
            home.mount("pv-1", "w1").await.unwrap();
            let (name, device) = (home.source_of("pv-1", "w1"), home.device("pv-1", "w1"));
            let note = comm::plugin_directory(&home.kubelet).join("shared").join(&name);
            std::fs::write(note, "half").unwrap();
            let mounter = leaving(&home);
            let why = mounter.mount(home.request("pv-1", "w1")).await.unwrap_err().to_string();
            assert!(why.contains(&format!("shared/{name}")) && why.contains("can't be read"), "{why}");
            let without_keys = MountRequest { credentials: None, ..home.request("pv-1", "w1") };
            mounter.mount(without_keys).await.unwrap();
            assert_eq!(home.device("pv-1", "w1"), device);
        })
    });
}
