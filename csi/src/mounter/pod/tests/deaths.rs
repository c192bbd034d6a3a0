//! Engines that die, and what becomes of their targets.

use super::*;
use crate::contract::reason::Reason;
use crate::error::ErrorKind;

impl Home {
    /// Unmounts a target as the kubelet does: again while the node itself repairs it.
    async fn unmounted(&self, workload: &str) {
        loop {
            match self.mounter.unmount(&self.target(workload)).await {
                Err(error) if error.kind == ErrorKind::Aborted => tokio::task::yield_now().await,
                unmounted => return unmounted.unwrap(),
            }
        }
    }
}

#[test]
fn a_dead_engine_is_replaced_and_its_targets_are_bound_again() {
    isolated(|| {
        at_home(async |home| {
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
            home.mounter.mount(home.reader("w2")).await.unwrap();
            let dead = mounted(&home.target("w1")).unwrap().device;
            home.pod.kill_engine();
            let error = std::fs::metadata(home.target("w1")).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()), "at once");
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
            assert_eq!(home.pod.messages().len(), 2);
            let target = mounted(&home.target("w1")).unwrap();
            assert!(target.device == mounted(&home.source()).unwrap().device);
            std::fs::metadata(home.target("w1")).unwrap();
            home.bound_anew("w2", &dead).await;
            assert!(mounted(&home.target("w2")).unwrap().read_only);
            assert_eq!(home.pod.messages().len(), 2);
            home.pod.kill_engine();
            home.unmounted("w1").await;
            home.unmounted("w2").await;
            assert!(!home.target("w1").exists() && !home.target("w2").exists());
        });
    });
}

#[test]
fn engines_that_die_are_replaced_before_the_kubelet_asks() {
    let said = isolated(|| {
        at_home(async |home| {
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
            home.mounter.mount(home.reader("w2")).await.unwrap();
            for death in 1..=10 {
                let dead = mounted(&home.target("w1")).unwrap().device;
                home.pod.kill_engine();
                let began = Instant::now();
                home.pod.listen();
                home.bound_anew("w1", &dead).await;
                home.bound_anew("w2", &dead).await;
                eprintln!("death {death}: {:?}", began.elapsed());
                assert!(mounted(&home.target("w2")).unwrap().read_only);
                assert!(!mounted(&home.target("w1")).unwrap().read_only);
            }
            assert_eq!(home.pod.messages().len(), 11);
            assert!(home.keys().contains("key-1"), "a failure on the way took no keys away");

            // The last call for these targets has ended.
            drop(home.mounter.node.locks.lock("mp-1").await);
            // Without targets no mount is made again.
            home.mounter.unmount(&home.target("w1")).await.unwrap();
            home.mounter.unmount(&home.target("w2")).await.unwrap();
            home.pod.kill_engine();
            home.pod.listen();
            home.mounter.node.revive("mp-1").await.unwrap();
            assert_eq!(home.pod.messages().len(), 11);
        });
    });
    eprintln!("{}", said.unwrap_or_default());
}

#[test]
fn each_death_is_told_once_to_each_workload_however_it_is_repaired() {
    isolated(|| {
        at_home(async |home| {
            let (to, mut from) = tokio::sync::mpsc::channel(8);
            let processes = processes(&home.kubelet.join("proc"), &["pod-uid"]);
            let config =
                Config { kubelet: home.kubelet.clone(), processes, notices: Some(to), ..Config::new(NODE) };
            let mounter = PodMounter::new(home.server.client(), config).unwrap();
            for workload in ["w1", "w2"] {
                // Only this mounter knows the targets.
                mounter.mount(home.request(workload, "key-1")).await.unwrap();
            }
            for by_the_kubelet in [true, false] {
                let dead = mounted(&home.target("w1")).unwrap().device;
                home.pod.kill_engine();
                std::fs::write(Comm::on_host(&home.kubelet, "pod-uid").error(), "signal: 9\n").unwrap();
                if by_the_kubelet {
                    mounter.mount(home.request("w1", "key-1")).await.unwrap();
                } else {
                    home.pod.listen();
                }
                home.bound_anew("w1", &dead).await;
                home.bound_anew("w2", &dead).await;
                let mut told = Vec::new();
                for _ in 0..2 {
                    let notice = from.recv().await.unwrap();
                    assert_eq!(notice.reason, Reason::VolumeEngineDied);
                    assert!(notice.note.contains("pv-1") && notice.note.contains("mp-1"), "{}", notice.note);
                    told.push((notice.workload.name, notice.note.contains("last words: signal: 9")));
                }
                told.sort();
                assert_eq!(told[0], ("w1".to_owned(), true));
                assert_eq!(told[1].0, "w2");
                mounter.mount(home.request("w1", "key-1")).await.unwrap();
                assert!(from.try_recv().is_err(), "a refresh tells nothing");
            }
        });
    });
}

#[test]
fn a_mount_whose_engine_is_started_again_stays_and_workloads_hear_it() {
    isolated(|| {
        at_home(async |home| {
            let (to, mut from) = tokio::sync::mpsc::channel(8);
            let processes = processes(&home.kubelet.join("proc"), &["pod-uid"]);
            let config =
                Config { kubelet: home.kubelet.clone(), processes, notices: Some(to), ..Config::new(NODE) };
            let mounter = PodMounter::new(home.server.client(), config).unwrap();
            for workload in ["w1", "w2"] {
                // Only this mounter knows the targets.
                mounter.mount(home.request(workload, "key-1")).await.unwrap();
            }
            let before = mounted(&home.target("w1")).unwrap().device;
            assert_eq!(mounter.restarting(&home.target("w1")), None);
            let device = home.pod.kill_engine_and_keep_device();
            let mut told = Vec::new();
            for _ in 0..2 {
                let notice = from.recv().await.unwrap();
                assert_eq!(notice.reason, Reason::VolumeEngineRestarted);
                assert!(notice.note.ends_with("last words: signal: 9"), "{}", notice.note);
                told.push(notice.workload.name);
            }
            told.sort();
            assert_eq!(told, ["w1", "w2"]);
            assert!(mounter.restarting(&home.target("w2")).is_some());
            // The kubelet's call in the meantime brings keys, and succeeds.
            mounter.mount(home.request("w1", "key-2")).await.unwrap();
            assert!(home.keys().contains("key-2"));
            home.pod.go_on(device);
            std::fs::metadata(home.target("w1")).unwrap();
            assert_eq!(mounter.restarting(&home.target("w1")), None);
            mounter.mount(home.request("w1", "key-2")).await.unwrap();
            assert_eq!(mounted(&home.target("w1")).unwrap().device, before, "it is the same mount");
            assert_eq!(home.pod.messages().len(), 1);
            assert!(from.try_recv().is_err(), "one notice for one death");
        });
    });
}

#[test]
fn workloads_hear_that_the_bucket_is_gone_while_they_have_it_mounted() {
    isolated(|| {
        at_home(async |home| {
            let (to, mut from) = tokio::sync::mpsc::channel(8);
            let processes = processes(&home.kubelet.join("proc"), &["pod-uid"]);
            let config =
                Config { kubelet: home.kubelet.clone(), processes, notices: Some(to), ..Config::new(NODE) };
            let mounter = PodMounter::new(home.server.client(), config).unwrap();
            for workload in ["w1", "w2"] {
                // Only this mounter knows the targets.
                mounter.mount(home.request(workload, "key-1")).await.unwrap();
            }
            let before = mounted(&home.target("w1")).unwrap().device;
            for _ in 0..2 {
                home.pod.bucket_is_gone();
                let mut told = Vec::new();
                for _ in 0..2 {
                    let notice = from.recv().await.unwrap();
                    assert_eq!(notice.reason, Reason::VolumeBucketGone);
                    let bucket = home.request("w1", "").bucket;
                    for words in [bucket.as_str(), "pv-1", "mp-1"] {
                        assert!(notice.note.contains(words), "{words}: {}", notice.note);
                    }
                    told.push(notice.workload.name);
                }
                told.sort();
                assert_eq!(told, ["w1", "w2"]);
            }
            assert_eq!(mounted(&home.target("w1")).unwrap().device, before, "the mount stays");
        });
    });
}

#[test]
fn a_driver_started_anew_mounts_again_after_the_kubelets_next_call() {
    isolated(|| {
        at_home(async |home| {
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
            let anew = mounter(&home.server, &home.kubelet);
            anew.mount(home.request("w1", "key-2")).await.unwrap();
            let dead = mounted(&home.target("w1")).unwrap().device;
            home.mounter.node.revivals.forget(&home.target("w1"));
            home.pod.kill_engine();
            home.pod.listen();
            home.bound_anew("w1", &dead).await;
            assert!(home.keys().contains("key-2"), "with the newest keys");
        });
    });
}

#[test]
fn a_pod_that_is_told_to_unmount_gets_no_new_device() {
    isolated(|| {
        at_home(async |home| {
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
            let mut leaving = mountpoint_pod("mp-1", "pod-uid", NODE, "Running");
            leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            home.server.pods().put("mp-1", leaving);
            while !home.mounter.node.assignments.pod("mp-1").is_some_and(|pod| pod.leaving) {
                tokio::task::yield_now().await;
            }
            home.pod.kill_engine();
            assert!(!home.mounter.node.revive("mp-1").await.unwrap());
            assert_eq!(home.pod.messages().len(), 1);
        });
    });
}

#[test]
fn twenty_deaths_leave_two_layers_at_a_target_the_first_and_the_new() {
    isolated(|| {
        at_home(async |home| {
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
            let first = mounted(&home.target("w1")).unwrap().device;
            for death in 1..=20 {
                home.pod.kill_engine();
                // The kubelet tries again, too: another call may be mending it.
                while let Err(error) = home.mounter.mount(home.request("w1", "key-1")).await {
                    assert_eq!(error.kind, ErrorKind::Aborted, "{error}");
                    tokio::task::yield_now().await;
                }
                std::fs::metadata(home.target("w1")).unwrap();
                let (target, mounts) = (home.target("w1"), Mounts::read().unwrap());
                let layers: Vec<_> = mounts.layers(&target).collect();
                let source = mounts.at(&home.source()).unwrap();
                assert_eq!(layers, [&first, &source.device], "after death {death}");
            }
            home.mounter.unmount(&home.target("w1")).await.unwrap();
            assert!(!home.target("w1").exists());
        });
    });
}

#[test]
fn a_dead_engine_leaves_no_bind_of_a_sub_path() {
    isolated(|| {
        at_home(async |home| {
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
            home.mounter.mount(home.request("w2", "key-1")).await.unwrap();
            let sub_path = |pod: &str| {
                let at = home.kubelet.join(format!("pods/{pod}/volume-subpaths/pv-1/main/0"));
                std::fs::create_dir_all(&at).unwrap();
                sys::bind(&home.target(pod), &at, false).unwrap();
                at
            };
            let (of_first, of_second) = (sub_path("w1"), sub_path("w2"));
            home.pod.kill_engine();
            assert!(std::fs::metadata(&of_first).is_err());
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
            assert!(mounted(&of_first).is_none() && of_first.is_dir());
            assert!(mounted(&of_second).is_some(), "it goes with its own target");
        });
    });
}
