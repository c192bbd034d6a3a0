//! Whole mounts on real FUSE devices: the API server is in memory, the engine serves an empty directory and can be killed.

mod deaths;
mod empty_secret;
mod stored;
mod usage;

use super::*;
use crate::mounter::mountinfo::{Changes, Mount, Mounts};
use crate::mounter::testing::api::{Server, attachment, lease, mountpoint_pod};
use crate::mounter::testing::engine::MountpointPod;
use crate::mounter::testing::{dirs, fuse, isolated, processes, runtime};
use crate::mounter::{Agent, Credentials, Token};

const NODE: &str = "worker-1";
const LONG: Duration = Duration::from_secs(60);

/// A node with an API server, and a Mountpoint Pod `mp-1` that serves workloads `w1` and `w2` of volume `pv-1`.
struct Home {
    kubelet: PathBuf,
    server: Server,
    pod: MountpointPod,
    mounter: Arc<PodMounter>,
    _folder: tempfile::TempDir,
}

impl Home {
    /// `None` where there is no FUSE.
    fn new() -> Option<Self> {
        fuse()?;
        let ([kubelet], folder) = dirs();
        let server = Server::start();
        let pod = MountpointPod::start(&kubelet, "pod-uid");
        server.pods().put("mp-1", mountpoint_pod("mp-1", "pod-uid", NODE, "Running"));
        let pairs = json_pairs(&[("mp-1", &["w1", "w2"])]);
        server.attachments().put("a", pairs);
        let mounter = Arc::new(mounter(&server, &kubelet));
        Some(Self { kubelet, server, pod, mounter, _folder: folder })
    }

    fn target(&self, workload: &str) -> PathBuf {
        self.kubelet.join("pods").join(workload).join("volumes/kubernetes.io~csi/pv-1/mount")
    }

    fn request(&self, workload: &str, key: &str) -> MountRequest {
        MountRequest {
            volume: "pv-1".into(),
            handle: "handle-1".into(),
            workload_uid: workload.into(),
            workload: Some(WorkloadRef {
                namespace: "team".into(),
                name: workload.into(),
                uid: workload.into(),
            }),
            target: self.target(workload),
            read_only: false,
            source_read_only: false,
            bucket: "bucket".into(),
            place: "place".into(),
            args: vec!["--allow-delete".into(), "--read-only".into()],
            env: vec![("AWS_REGION".into(), "r".into()), ("AWS_PROFILE".into(), "not this".into())],
            unusable: None,
            credentials: Some(Credentials {
                access_key_id: key.into(),
                secret_access_key: "canary".into(),
                session_token: None,
            }),
            of_secret: false,
            token: None,
            agent: None,
        }
    }

    /// A request of a workload that only reads.
    fn reader(&self, workload: &str) -> MountRequest {
        MountRequest { read_only: true, ..self.request(workload, "key-1") }
    }

    /// A mounter as after a start of the driver while the API server is away; it has given `w1` the key `key-2`.
    async fn started_anew_without_the_api_server(&self) -> (Server, PodMounter) {
        let gone = Server::start();
        gone.attachments().hide(true);
        gone.pods().hide(true);
        let anew = mounter(&gone, &self.kubelet);
        anew.mount(self.request("w1", "key-2")).await.unwrap();
        assert!(self.keys().contains("key-2"));
        (gone, anew)
    }

    /// Waits until the mounter has seen that this workload is assigned.
    async fn knows(&self, workload: &str) {
        while self.mounter.node.assignments.known("pv-1", workload).is_none() {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until a target that was bound to a dead connection is bound to the next one, and answers. For a moment the lowest layer is there
    /// alone.
    async fn bound_anew(&self, workload: &str, dead: &str) {
        let (changes, target) = (Changes::watch().unwrap(), self.target(workload));
        let source = self.source();
        let is_new = |mounts: &Mounts| {
            let of_source = mounts.at(&source).map(|it| &it.device);
            mounts.at(&target).is_some_and(|it| it.device != dead && Some(&it.device) == of_source)
        };
        assert!(changes.until(Instant::now() + LONG, is_new).await.unwrap());
        std::fs::metadata(&target).unwrap();
    }

    fn source(&self) -> PathBuf {
        comm::source(&self.kubelet, "mp-1")
    }

    fn keys(&self) -> String {
        let name = "pod-uid-handle-1-s3-csi-credentials";
        let path = Comm::on_host(&self.kubelet, "pod-uid").credentials().join(name);
        std::fs::read_to_string(path).unwrap_or_default()
    }
}

fn mounter(server: &Server, kubelet: &Path) -> PodMounter {
    let processes = processes(&kubelet.join("proc"), &["pod-uid", "pod-uid-2"]);
    let config = Config { kubelet: kubelet.to_owned(), sweep_every: LONG, processes, ..Config::new(NODE) };
    PodMounter::new(server.client(), config).unwrap()
}

fn json_pairs(pods: &[(&str, &[&str])]) -> serde_json::Value {
    let mut it = attachment("a", NODE, "pv-1", &[]);
    for (pod, uids) in pods {
        let list = uids.iter().map(|uid| {
            attachment("", "", "", &[(pod, uid)])["spec"]["mountpointS3PodAttachments"][pod][0].clone()
        });
        it["spec"]["mountpointS3PodAttachments"][pod] = list.collect();
    }
    it
}

fn mounted(point: &Path) -> Option<Mount> {
    Mounts::read().unwrap().at(point).cloned()
}

/// Runs with a home in a mount namespace of its own.
fn at_home<F: AsyncFn(&Home)>(test: F) {
    runtime().block_on(async {
        if let Some(home) = Home::new() {
            test(&home).await;
        }
    });
}

#[test]
fn a_service_accounts_token_is_a_file_and_its_role_is_the_attachments() {
    isolated(|| {
        at_home(async |home| {
            let token = |text: &str| MountRequest {
                credentials: None,
                token: Some(Token(text.into())),
                env: vec![("AWS_REGION".into(), "r".into())],
                ..home.request("w1", "")
            };
            // The attachment is of before the volume said so.
            let error = home.mounter.mount(token("canary.1")).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{error}");
            assert!(
                error.to_string().contains("role-arn") && !error.to_string().contains("canary"),
                "{error}"
            );
            assert!(mounted(&home.source()).is_none());

            let mut attachment = json_pairs(&[("mp-1", &["w1"])]);
            attachment["spec"]["authenticationSource"] = "pod".into();
            attachment["spec"]["workloadServiceAccountIAMRoleARN"] = "arn:role".into();
            home.server.attachments().put("a", attachment);
            // The watch brings it when it brings it.
            while home.mounter.mount(token("canary.1")).await.is_err() {}
            let file = "/comm/credentials/pod-uid-handle-1-s3-csi-token";
            let messages = home.pod.messages();
            let wanted = [
                "AWS_REGION=r".to_owned(),
                "AWS_EC2_METADATA_DISABLED=true".to_owned(),
                "AWS_ROLE_ARN=arn:role".to_owned(),
                "AWS_ROLE_SESSION_NAME=s3-csi-driver".to_owned(),
                format!("AWS_WEB_IDENTITY_TOKEN_FILE={file}"),
            ];
            assert_eq!(messages.last().unwrap().env, wanted);
            let held = || {
                let at = Comm::on_host(&home.kubelet, "pod-uid").credentials();
                std::fs::read_to_string(at.join("pod-uid-handle-1-s3-csi-token")).unwrap()
            };
            assert_eq!((held().as_str(), home.keys().as_str()), ("canary.1", ""));
            home.mounter.mount(token("canary.2")).await.unwrap();
            assert_eq!(held(), "canary.2", "the next publish call renews it");
        });
    });
}

#[test]
fn an_account_without_a_role_gets_its_keys_of_the_nodes_agent() {
    isolated(|| {
        at_home(async |home| {
            let url = "http://169.254.170.23/v1/credentials";
            let request = |text: &str| MountRequest {
                credentials: None,
                token: Some(Token("for-sts".into())),
                agent: Some(Agent { url: url.into(), token: Token(text.into()) }),
                env: vec![("AWS_REGION".into(), "r".into())],
                ..home.request("w1", "")
            };
            // Without an account in the attachment its pod may serve others' workloads.
            let error = home.mounter.mount(request("canary.1")).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{error}");

            let mut attachment = json_pairs(&[("mp-1", &["w1"])]);
            attachment["spec"]["authenticationSource"] = "pod".into();
            attachment["spec"]["workloadServiceAccountIAMRoleARN"] = "".into();
            home.server.attachments().put("a", attachment);
            // The watch brings it when it brings it.
            while home.mounter.mount(request("canary.1")).await.is_err() {}
            let messages = home.pod.messages();
            let wanted = [
                "AWS_REGION=r".to_owned(),
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=/comm/credentials/pod-uid-handle-1-s3-csi-agent-token".to_owned(),
                format!("AWS_CONTAINER_CREDENTIALS_FULL_URI={url}"),
                "AWS_EC2_METADATA_DISABLED=true".to_owned(),
            ];
            assert_eq!(messages.last().unwrap().env, wanted);
            let held = || {
                let at = Comm::on_host(&home.kubelet, "pod-uid").credentials();
                std::fs::read_to_string(at.join("pod-uid-handle-1-s3-csi-agent-token")).unwrap()
            };
            assert_eq!(held(), "canary.1");
            home.mounter.mount(request("canary.2")).await.unwrap();
            assert_eq!(held(), "canary.2", "the next publish call renews it");
        });
    });
}

#[test]
fn workloads_share_a_source_and_the_last_one_leaves_nothing_behind() {
    isolated(|| {
        at_home(async |home| {
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
            let reader = home.reader("w2");
            home.mounter.mount(reader.clone()).await.unwrap();
            let (first, second) =
                (mounted(&home.target("w1")).unwrap(), mounted(&home.target("w2")).unwrap());
            assert!(first.device == second.device && !first.read_only && second.read_only);
            let messages = home.pod.messages();
            assert_eq!(messages.len(), 1, "one hand-over serves both");
            assert_eq!(messages[0].args, ["--allow-delete"]);
            let in_pod = "/comm/credentials/pod-uid-handle-1-s3-csi";
            assert_eq!(
                messages[0].env,
                [
                    "AWS_REGION=r".to_owned(),
                    format!("AWS_CONFIG_FILE={in_pod}-config"),
                    "AWS_PROFILE=pod-uid-handle-1-s3-csi".to_owned(),
                    format!("AWS_SHARED_CREDENTIALS_FILE={in_pod}-credentials"),
                ]
            );

            // The kubelet asks again and again: new keys, and nothing else.
            home.mounter.mount(MountRequest { ..home.request("w1", "key-2") }).await.unwrap();
            home.mounter.mount(MountRequest { credentials: None, ..reader }).await.unwrap();
            assert!(home.keys().contains("key-2") && mounted(&home.target("w2")).unwrap().read_only);
            assert_eq!(home.pod.messages().len(), 1);

            home.mounter.unmount(&home.target("w1")).await.unwrap();
            home.mounter.unmount(&home.target("w1")).await.unwrap();
            assert!(!home.target("w1").exists() && mounted(&home.source()).is_some());
            home.mounter.unmount(&home.target("w2")).await.unwrap();
            let mut marked = mountpoint_pod("mp-1", "pod-uid", NODE, "Running");
            marked["metadata"]["annotations"][pod::NEEDS_UNMOUNT] = "true".into();
            let changes = Changes::watch().unwrap();
            home.server.pods().put("mp-1", marked);
            let gone = changes.until(Instant::now() + LONG, |mounts| mounts.at(&home.source()).is_none());
            assert!(gone.await.unwrap());
            // The unmount goes on under the pod's lock.
            drop(home.mounter.node.locks.lock("mp-1").await);
            let comm = Comm::on_host(&home.kubelet, "pod-uid");
            assert!(!home.source().exists() && !comm.credentials().exists() && comm.exit().exists());
            let error = home.mounter.mount(home.request("w1", "key-1")).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unavailable, "a marked pod takes nobody: {error}");
        });
    });
}

/// Goal: readers wait for a new mount as long as it takes to make it, however often the engine dies; the kubelet's next call is a minute
/// away.
/// Goal: a target of an engine that dies again and again is bound each time, over the mount that containers hold a copy of.
/// Goal: a container with a subPath starts again after its engine died: the kubelet's stat of the old bind fails, and it never goes on.
#[test]
fn badly_edited_options_stop_only_the_next_mount() {
    isolated(|| {
        at_home(async |home| {
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
            let edited = |workload, key| MountRequest {
                unusable: Some("mount option 'alow-delete' is unknown".into()),
                ..home.request(workload, key)
            };
            home.mounter.mount(edited("w1", "key-2")).await.unwrap();
            assert!(home.keys().contains("key-2"));
            home.pod.kill_engine();
            let error = home.mounter.mount(edited("w1", "key-2")).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("alow-delete"), "{error}");
            home.mounter.mount(home.request("w1", "key-2")).await.unwrap();
        });
    });
}

#[test]
fn a_workload_of_a_volume_made_again_is_not_bound_to_the_old_source() {
    isolated(|| {
        at_home(async |home| {
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
            let made_again = || MountRequest { place: "elsewhere".into(), ..home.request("w2", "key-2") };
            let refused = async |mounter: &PodMounter| {
                let error = mounter.mount(made_again()).await.unwrap_err();
                assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{error}");
                let text = error.to_string();
                assert!(text.contains("PersistentVolume pv-1") && text.contains("Delete this pod"), "{text}");
                assert!(!home.target("w2").exists() && !home.keys().contains("key-2"));
            };
            refused(&home.mounter).await;
            // The note outlives the driver, and the refreshes of the first.
            let anew = mounter(&home.server, &home.kubelet);
            anew.mount(home.request("w1", "key-3")).await.unwrap();
            refused(&anew).await;
            // The release before this one noted no more than the UID.
            Notes::of(&home.kubelet).remember("mp-1", "another").unwrap();
            Notes::of(&home.kubelet).remember("mp-1", "pod-uid").unwrap();
            anew.mount(made_again()).await.unwrap();
            assert!(mounted(&home.target("w2")).is_some());
        });
    });
}

#[test]
fn a_failed_mount_leaves_nothing_and_says_what_the_engine_said() {
    isolated(|| {
        at_home(async |home| {
            home.pod.refuse(Some("no such bucket"));
            let error = home.mounter.mount(home.request("w1", "key-1")).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::FailedPrecondition);
            let text = error.to_string();
            assert!(
                text.contains("no such bucket") && text.contains("kubectl -n mount-s3 logs mp-1"),
                "{text}"
            );
            assert!(!text.contains("canary"), "{text}");
            assert!(!home.source().exists() && !home.target("w1").exists());
            assert!(!Comm::on_host(&home.kubelet, "pod-uid").credentials().exists());
            home.pod.refuse(None);
            // A target that can't be bound takes the source with it.
            std::fs::create_dir_all(home.target("w1").parent().unwrap()).unwrap();
            std::fs::write(home.target("w1"), "a file of somebody").unwrap();
            let error = home.mounter.mount(home.request("w1", "key-1")).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Internal);
            assert!(!home.source().exists() && home.target("w1").is_file(), "{error}");
            std::fs::remove_file(home.target("w1")).unwrap();
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
        });
    });
}

#[test]
fn a_driver_started_anew_without_the_api_server_refreshes_and_unmounts() {
    isolated(|| {
        at_home(async |home| {
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
            let (_gone, anew) = home.started_anew_without_the_api_server().await;
            assert!(!home.keys().contains("key-1"));
            let error = anew.mount(home.request("w2", "key-2")).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unavailable);
            assert!(anew.fault().is_some() && !home.target("w2").exists());
            anew.unmount(&home.target("w1")).await.unwrap();
            assert!(mounted(&home.source()).is_some(), "a picture that is not whole ends no source");
        });
    });
}

#[test]
fn keys_go_to_no_workload_that_says_it_is_the_mountpoint_pod() {
    isolated(|| {
        at_home(async |home| {
            // A root workload with an emptyDir of the name `comm`, before and after the mount.
            let theirs = Comm::on_host(&home.kubelet, "a-workload");
            std::fs::create_dir_all(theirs.credentials()).unwrap();
            std::fs::write(theirs.credentials().join("source"), "mp-1").unwrap();
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
            let (_gone, anew) = home.started_anew_without_the_api_server().await;
            let planted = std::fs::read_dir(theirs.credentials()).unwrap().flatten();
            assert_eq!(planted.map(|it| it.file_name()).collect::<Vec<_>>(), ["source"], "no key came there");
            // Without the driver's own note nobody is believed.
            Notes::of(&home.kubelet).forget("mp-1").unwrap();
            let error = anew.mount(home.request("w1", "key-3")).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
            assert_eq!(std::fs::read_dir(theirs.credentials()).unwrap().count(), 1);
        });
    });
}

#[test]
fn a_target_of_another_source_is_bound_to_the_workloads_own() {
    isolated(|| {
        at_home(async |home| {
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
            let second = MountpointPod::start(&home.kubelet, "pod-uid-2");
            home.server.pods().put("mp-2", mountpoint_pod("mp-2", "pod-uid-2", NODE, "Running"));
            home.server.attachments().put("a", json_pairs(&[("mp-2", &["w1"])]));
            let mut known = home.mounter.node.assignments.known("pv-1", "w1");
            while known.as_deref() != Some("mp-2") {
                tokio::task::yield_now().await;
                known = home.mounter.node.assignments.known("pv-1", "w1");
            }
            // While the new one is not served, the old one is there.
            second.refuse(Some("the store is down"));
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap_err();
            assert_eq!(mounted(&home.target("w1")).unwrap().device, mounted(&home.source()).unwrap().device);
            std::fs::metadata(home.target("w1")).unwrap();
            second.refuse(None);
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
            assert_eq!(second.messages().len(), 2);
            assert_eq!(Mounts::read().unwrap().layers(&home.target("w1")).count(), 1);
            let source = mounted(&comm::source(&home.kubelet, "mp-2")).unwrap();
            assert_eq!(mounted(&home.target("w1")).unwrap().device, source.device);
        });
    });
}

#[test]
fn a_reader_s_target_that_a_crash_left_writable_is_made_read_only() {
    isolated(|| {
        at_home(async |home| {
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
            assert!(!mounted(&home.target("w1")).unwrap().read_only);
            home.mounter.mount(home.reader("w1")).await.unwrap();
            assert!(mounted(&home.target("w1")).unwrap().read_only);
            assert!(!mounted(&home.source()).unwrap().read_only, "its source serves writers");
        });
    });
}

#[test]
fn a_mounted_volume_that_became_read_only_is_read_only_for_new_workloads() {
    isolated(|| {
        at_home(async |home| {
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
            let edited =
                |workload| MountRequest { source_read_only: true, ..home.request(workload, "key-1") };
            home.mounter.mount(edited("w2")).await.unwrap();
            assert_eq!(home.pod.messages().len(), 1, "they share a source");
            assert!(mounted(&home.target("w2")).unwrap().read_only);
            home.mounter.mount(edited("w1")).await.unwrap();
            assert!(!mounted(&home.target("w1")).unwrap().read_only, "what is mounted goes on as it is");
        });
    });
}

#[test]
fn what_another_mounted_at_a_target_is_left_alone() {
    isolated(|| {
        at_home(async |home| {
            let target = home.target("w1");
            std::fs::create_dir_all(&target).unwrap();
            rustix::mount::mount("tmpfs", &target, "tmpfs", rustix::mount::MountFlags::empty(), None)
                .unwrap();
            let error = home.mounter.mount(home.request("w1", "key-1")).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::FailedPrecondition);
            assert_eq!(mounted(&target).unwrap().kind, "tmpfs");
        });
    });
}

#[test]
fn a_link_does_not_lead_out_of_the_kubelets_directory() {
    isolated(|| {
        at_home(async |home| {
            let outside = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(home.kubelet.join("pods")).unwrap();
            std::os::unix::fs::symlink(outside.path(), home.kubelet.join("pods/w1")).unwrap();
            let target = home.target("w1");
            let words = |error: Error| {
                assert_eq!(error.kind, ErrorKind::InvalidArgument, "{error}");
                assert!(error.to_string().contains("target_path leads by a symbolic link to "), "{error}");
                assert!(error.to_string().contains("node.kubeletPath"), "{error}");
            };
            words(home.mounter.mount(home.request("w1", "key-1")).await.unwrap_err());
            assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0, "nothing is made there");
            assert_eq!(mounted(&home.source()), None);
            std::fs::create_dir_all(&target).unwrap();
            words(home.mounter.unmount(&target).await.unwrap_err());
            assert!(target.exists(), "nothing is removed there");
        });
    });
}

#[test]
fn one_call_at_a_time_for_a_target() {
    isolated(|| {
        at_home(async |home| {
            let mounter = Arc::clone(&home.mounter);
            let unassigned = home.request("w9", "key-1");
            let first = tokio::spawn(async move { mounter.mount(unassigned).await });
            let locks = &home.mounter.node.locks;
            let name = home.target("w9").to_string_lossy().into_owned();
            while !locks.is_wanted(&name) {
                tokio::task::yield_now().await;
            }
            let second = home.mounter.mount(home.request("w9", "key-1")).await.unwrap_err();
            assert_eq!(second.kind, ErrorKind::Aborted);
            assert_eq!(home.mounter.unmount(&home.target("w9")).await.unwrap_err().kind, ErrorKind::Aborted);
            home.server.attachments().put("a", json_pairs(&[("mp-1", &["w9"])]));
            first.await.unwrap().unwrap();
            assert!(mounted(&home.target("w9")).is_some());
        });
    });
}

/// Goal: a pod that waits while no reconciler works says why, and nothing else waits.
#[test]
fn without_a_reconciler_a_new_workload_fails_and_an_assigned_one_mounts() {
    isolated(|| {
        at_home(async |home| {
            home.server.leases().put("scality-csi-controller", lease("2025-06-01T10:00:00.000000Z"));
            // Killed before the Mountpoint Pod was made, or between it and its attachment: no attachment names the workload.
            for _ in 0..2 {
                let error = home.mounter.mount(home.request("w3", "key-1")).await.unwrap_err();
                assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
                let said = error.to_string();
                assert!(
                    said.contains("no reconciler works") && said.contains("reconciler-1 had it last"),
                    "{said}"
                );
                assert!(said.contains("Lease kube-system/scality-csi-controller"), "{said}");
            }
            assert!(!home.target("w3").exists());
            home.knows("w1").await;
            home.knows("w2").await;
            // An assigned pod needs no reconciler.
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
            home.mounter.mount(home.request("w2", "key-2")).await.unwrap();
            home.mounter.unmount(&home.target("w2")).await.unwrap();
            // Back: between two calls of the kubelet, and during a call.
            let renewed = |at: &str| {
                let mut held = lease(at);
                // No renewal follows, and a busy machine may need more than a second for the watch.
                held["spec"]["leaseDurationSeconds"] = 60.into();
                held
            };
            home.server.leases().put("scality-csi-controller", renewed("2025-06-01T11:00:00.000000Z"));
            home.server.attachments().put("a", json_pairs(&[("mp-1", &["w1", "w3"])]));
            home.mounter.mount(home.request("w3", "key-1")).await.unwrap();
            home.server.leases().put("scality-csi-controller", renewed("2025-06-01T12:00:00.000000Z"));
            let (outcome, ()) = tokio::join!(home.mounter.mount(home.request("w4", "key-1")), async {
                tokio::task::yield_now().await;
                home.server.attachments().put("a", json_pairs(&[("mp-1", &["w1", "w3", "w4"])]));
            });
            outcome.unwrap();
            assert!(mounted(&home.target("w4")).is_some());
        });
    });
}

/// Goal: a node where fifty pods start at once, or whose fifty volumes are refreshed at once. It prints times; machines differ.
#[test]
fn fifty_publishes_at_once_at_a_source_that_is_served() {
    let said = isolated(|| {
        at_home(async |home| {
            let workloads: Vec<_> = (1..=50).map(|number| format!("w{number}")).collect();
            let names: Vec<_> = workloads.iter().map(String::as_str).collect();
            home.server.attachments().put("a", json_pairs(&[("mp-1", &names)]));
            home.mounter.mount(home.request("w1", "key-1")).await.unwrap();
            for what in ["new targets", "the same again", "and again"] {
                let mut all = JoinSet::new();
                for workload in &workloads[1..] {
                    let (mounter, request) = (Arc::clone(&home.mounter), home.request(workload, "key-1"));
                    all.spawn(async move {
                        let began = Instant::now();
                        mounter.mount(request).await.map(|_| began.elapsed())
                    });
                }
                let mut took: Vec<_> = all.join_all().await.into_iter().map(Result::unwrap).collect();
                took.sort();
                eprintln!("{what}: median {:?}, longest of 49 {:?}", took[24], took[48]);
            }
            let device = mounted(&home.source()).unwrap().device;
            for workload in &workloads {
                assert_eq!(mounted(&home.target(workload)).unwrap().device, device, "{workload}");
            }
        });
    });
    eprintln!("{}", said.unwrap_or_default());
}
