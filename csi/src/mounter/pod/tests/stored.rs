//! Unmounts of volumes with `mode full`, and what becomes of files that wait in their stage.

use tokio::sync::mpsc::{Receiver, channel};

use super::*;
use crate::contract::reason::Reason;
use crate::events::Notice;

impl Home {
    /// A mounter that waits for files only briefly, and its notices.
    fn full(&self, stage_directory: Option<PathBuf>) -> (PodMounter, Receiver<Notice>) {
        let (to, notices) = channel(8);
        let config = Config {
            kubelet: self.kubelet.clone(),
            processes: processes(&self.kubelet.join("proc"), &["pod-uid"]),
            notices: Some(to),
            stored_within: Duration::from_millis(300),
            stages: true,
            stage_directory,
            ..Config::new(NODE)
        };
        (PodMounter::new(self.server.client(), config).unwrap(), notices)
    }

    fn full_request(&self, workload: &str) -> MountRequest {
        let args = vec!["--mode=full".to_owned(), "--stage=/stage/data".to_owned()];
        MountRequest { args, ..self.request(workload, "key-1") }
    }

    /// A stage in a volume of the pod, with a file that waits.
    fn waits_in_pod(&self) -> PathBuf {
        let comm = Comm::on_host(&self.kubelet, "pod-uid");
        waits_in(&comm.directory().with_file_name("stage").join("data"))
    }
}

fn waits_in(stage: &Path) -> PathBuf {
    let file = stage.join("files/7");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "bytes").unwrap();
    file
}

#[test]
fn the_last_workload_stays_until_the_bucket_has_the_files_of_its_pod() {
    isolated(|| {
        at_home(async |home| {
            let (mounter, mut notices) = home.full(None);
            assert_eq!((home.mounter.no_stage(), mounter.no_stage()), (Some(stage::EXPERIMENTAL), None));
            let error = mounter.mount(home.full_request("w1")).await.unwrap_err();
            assert!(error.to_string().contains("the Mountpoint Pod has no stage"), "{error}");
            let waiting = home.waits_in_pod();
            for workload in ["w1", "w2"] {
                mounter.mount(home.full_request(workload)).await.unwrap();
            }
            assert!(!home.pod.messages()[0].stage);
            mounter.unmount(&home.target("w1")).await.unwrap();
            assert!(notices.try_recv().is_err(), "another workload keeps the engine");
            let error = mounter.unmount(&home.target("w2")).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unavailable);
            assert!(error.to_string().contains("1 file with 5 bytes waits"), "{error}");
            assert!(mounted(&home.target("w2")).is_some());
            let notice = notices.recv().await.unwrap();
            assert_eq!((notice.reason, &*notice.workload.name), (Reason::VolumeFilesNotStored, "w2"));
            assert!(
                notice.note.contains("1 file with 5 bytes") && notice.note.contains("mp-1"),
                "{}",
                notice.note
            );
            std::fs::remove_file(waiting).unwrap();
            mounter.unmount(&home.target("w2")).await.unwrap();
            assert!(!home.target("w2").exists() && notices.try_recv().is_err());
        });
    });
}

/// Goal: at least one of the last two targets waits for the files, in every order of the two unmounts.
#[test]
fn of_the_last_two_targets_the_one_that_began_later_waits() {
    isolated(|| {
        at_home(async |home| {
            home.waits_in_pod();
            let (mounter, _notices) = home.full(None);
            for workload in ["w1", "w2"] {
                mounter.mount(home.full_request(workload)).await.unwrap();
            }
            let (first, second) = (home.target("w1"), home.target("w2"));
            // The first has begun, and is not taken away yet.
            let leaving = mounter.node.stored(&first).await.unwrap();
            let error = mounter.unmount(&second).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unavailable);
            // The first goes away between the look of the second at the set and its look at the table.
            let (_leaving, seen) = mounter.node.leave(&second);
            drop(leaving);
            assert!(seen.contains(&first));
        });
    });
}

#[test]
fn files_of_a_dead_engine_that_is_not_replaced_keep_the_workload() {
    isolated(|| {
        at_home(async |home| {
            let waiting = home.waits_in_pod();
            let (mounter, _notices) = home.full(None);
            mounter.mount(home.full_request("w1")).await.unwrap();
            home.pod.kill_engine();
            home.pod.refuse(Some("the store is away"));
            mounter.mount(home.full_request("w1")).await.unwrap_err();
            mounter.unmount(&home.target("w1")).await.unwrap_err();
            std::fs::remove_file(waiting).unwrap();
            mounter.unmount(&home.target("w1")).await.unwrap();
        });
    });
}

/// Goal: files that wait survive a restart of the node, after which nothing is mounted and the driver's memory is gone.
#[test]
fn a_workload_whose_mount_went_with_the_node_stays_until_all_is_stored() {
    isolated(|| {
        at_home(async |home| {
            let waiting = home.waits_in_pod();
            let (first, _) = home.full(None);
            first.mount(home.full_request("w1")).await.unwrap();
            drop(first);
            home.pod.kill_engine();
            for point in [home.target("w1"), home.source()] {
                sys::unmount(&point, sys::Busy::Detach).unwrap();
            }
            let (second, _notices) = home.full(None);
            let error = second.unmount(&home.target("w1")).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unavailable);
            assert!(error.to_string().contains("1 file with 5 bytes waits"), "{error}");
            assert!(home.target("w1").exists());
            std::fs::remove_file(waiting).unwrap();
            second.unmount(&home.target("w1")).await.unwrap();
            assert!(!home.target("w1").exists());
        });
    });
}

#[test]
fn a_pod_that_is_to_end_gets_another_engine_while_files_wait_there() {
    isolated(|| {
        at_home(async |home| {
            let waiting = home.waits_in_pod();
            let (mounter, _notices) = home.full(None);
            mounter.mount(home.full_request("w1")).await.unwrap();
            let dead = mounted(&home.target("w1")).unwrap().device;
            let mut marked = mountpoint_pod("mp-1", "pod-uid", NODE, "Running");
            marked["metadata"]["annotations"][pod::NEEDS_UNMOUNT] = "true".into();
            home.server.pods().put("mp-1", marked);
            while !mounter.node.assignments.pod("mp-1").is_some_and(|pod| pod.needs_unmount) {
                tokio::task::yield_now().await;
            }
            home.pod.kill_engine();
            home.pod.listen();
            home.bound_anew("w1", &dead).await;
            assert!(!Comm::on_host(&home.kubelet, "pod-uid").exit().exists());
            std::fs::remove_file(waiting).unwrap();
            while let Err(error) = mounter.unmount(&home.target("w1")).await {
                assert_eq!(error.kind, ErrorKind::Aborted, "{error}");
                tokio::task::yield_now().await;
            }
        });
    });
}

/// Goal: an engine that follows one that died sends the files of that one, whatever the chart says meanwhile.
#[test]
fn the_next_engine_gets_the_stage_of_the_one_before() {
    isolated(|| {
        at_home(async |home| {
            home.waits_in_pod();
            let (first, _) = home.full(None);
            first.mount(home.full_request("w1")).await.unwrap();
            drop(first);
            let directory = home.kubelet.join("stages");
            std::fs::create_dir(&directory).unwrap();
            home.pod.kill_engine();
            home.pod.listen();
            let (second, _) = home.full(Some(directory.clone()));
            second.mount(home.full_request("w1")).await.unwrap();
            assert!(!home.pod.messages().last().unwrap().stage, "the pod's own stage");
            assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
            second.unmount(&home.target("w1")).await.unwrap_err();
        });
    });
}

#[test]
fn a_stage_of_the_node_that_the_driver_lost_is_named() {
    isolated(|| {
        at_home(async |home| {
            let directory = home.kubelet.join("stages");
            std::fs::create_dir(&directory).unwrap();
            let (first, _) = home.full(Some(directory.clone()));
            first.mount(home.full_request("w1")).await.unwrap();
            drop(first);
            let waiting = waits_in(&directory.join("pv-1-place"));
            home.pod.kill_engine();
            home.pod.listen();
            home.waits_in_pod();
            let (second, _) = home.full(None);
            let error = second.mount(home.full_request("w1")).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::FailedPrecondition);
            assert!(error.to_string().contains("may wait in the stage pv-1-place"), "{error}");
            let (third, _) = home.full(Some(directory));
            third.mount(home.full_request("w1")).await.unwrap();
            assert!(home.pod.messages().last().unwrap().stage && waiting.exists());
        });
    });
}

#[test]
fn a_stage_of_the_node_keeps_its_files_for_the_next_pod() {
    isolated(|| {
        at_home(async |home| {
            let directory = home.kubelet.join("stages");
            std::fs::create_dir(&directory).unwrap();
            let (mounter, mut notices) = home.full(Some(directory.clone()));
            assert!(mounter.keeps_stages());
            mounter.mount(home.full_request("w1")).await.unwrap();
            assert!(home.pod.messages()[0].stage, "the directory came with the device");
            let waiting = waits_in(&directory.join("pv-1-place"));
            mounter.unmount(&home.target("w1")).await.unwrap();
            assert!(!home.target("w1").exists() && waiting.exists());
            let notice = notices.recv().await.unwrap();
            assert_eq!(notice.reason, Reason::VolumeFilesNotStored);
            assert!(notice.note.contains("in the stage pv-1-place"), "{}", notice.note);
        });
    });
}

#[test]
fn a_stage_that_can_not_be_read_is_told_and_a_nodes_stage_lets_go() {
    isolated(|| {
        at_home(async |home| {
            let directory = home.kubelet.join("stages");
            std::fs::create_dir(&directory).unwrap();
            let of_pod = home.waits_in_pod();
            for (stages, files) in
                [(Some(directory.clone()), directory.join("pv-1-place/files")), (None, of_pod)]
            {
                let (mounter, mut notices) = home.full(stages.clone());
                mounter.mount(home.full_request("w1")).await.unwrap();
                let files = if stages.is_some() { files } else { files.parent().unwrap().to_owned() };
                let _ = std::fs::remove_dir_all(&files);
                std::fs::write(&files, "no directory").unwrap();
                let left = mounter.unmount(&home.target("w1")).await;
                assert_eq!(
                    left.map_err(|it| it.kind).err(),
                    stages.is_none().then_some(ErrorKind::Unavailable)
                );
                let note = notices.recv().await.unwrap().note;
                assert!(note.contains("can't be read") && note.contains("files may wait there"), "{note}");
                let gone = mounter.node.notes.forget("mp-1");
                gone.and_then(|()| sys::unmount(&home.source(), sys::Busy::Detach)).unwrap();
                home.pod.listen();
            }
        });
    });
}
