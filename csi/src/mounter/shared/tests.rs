//! Whole mounts on real FUSE devices: the API server is in memory; the first process of the engines pod and its mounters are threads, whose engines
//! serve an empty directory and can be killed.

use std::collections::BTreeMap;
use std::task::Poll;
use std::thread;

use mountpoint::sync::Mutex;
use tokio::sync::mpsc;

use super::*;
use crate::contract::engines_pod as wire;
use crate::contract::message::{self, Answer};
use crate::contract::reason::Reason;
use crate::events::Notice;
use crate::mounter::Token;
use crate::mounter::mountinfo::{Changes, Mounts};
use crate::mounter::testing::api::{Server, mountpoint_pod};
use crate::mounter::testing::engine::MountpointPod;
use crate::mounter::testing::{dirs, fuse, isolated, processes, runtime};

mod caches;
mod leaving;

const NODE: &str = "worker-1";
const LONG: Duration = Duration::from_secs(60);

/// A simulated engines pod, which runs in threads of the test. `sources` has its mounters by the name of the source.
#[derive(Clone)]
struct Pod {
    sources: Arc<Mutex<BTreeMap<String, MountpointPod>>>,
    refusal: Arc<Mutex<Option<String>>>,
}

impl Pod {
    /// Runs on the node, and shows in the API server.
    fn start(kubelet: &Path, server: &Server, uid: &str) -> Self {
        let comm = Comm::on_host(kubelet, uid);
        std::fs::create_dir_all(comm.directory()).unwrap();
        let pod = Self { sources: Arc::default(), refusal: Arc::default() };
        std::fs::write(comm.engines_cache(), "").unwrap();
        let listener = message::listen(&comm.engines_socket()).unwrap();
        let (sources, refusal) = (Arc::clone(&pod.sources), Arc::clone(&pod.refusal));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let source = wire::receive(&stream, LONG).unwrap().source;
                let mounter = || MountpointPod::at(comm.of_source(&source));
                sources
                    .lock()
                    .entry(source.clone())
                    .or_insert_with(mounter)
                    .refuse(refusal.lock().as_deref());
                message::answer(&stream, &Answer::Ready).unwrap();
            }
        });
        let mut shown = mountpoint_pod(&format!("s3-csi-engines-{uid}"), uid, NODE, "Running");
        shown["metadata"]["labels"] = serde_json::json!({"app": APP});
        shown["metadata"]["annotations"] = serde_json::json!({wire::REVISION: uid});
        server.pods().put(&format!("s3-csi-engines-{uid}"), shown);
        pod
    }

    fn source(&self, name: &str) -> MountpointPod {
        self.sources.lock()[name].clone()
    }

    /// Ends all its engines, as with the pod.
    fn kill(&self, server: &Server, uid: &str) {
        for source in self.sources.lock().values() {
            source.kill_engine();
        }
        server.pods().remove(&format!("s3-csi-engines-{uid}"));
    }
}

/// A node with room for two sources.
struct Home {
    kubelet: PathBuf,
    server: Server,
    pod: Pod,
    mounter: SharedMounter,
    notices: mpsc::Receiver<Notice>,
    _folder: tempfile::TempDir,
}

impl Home {
    /// `None` where there is no FUSE.
    fn new(unused_for: Duration) -> Option<Self> {
        fuse()?;
        let ([kubelet], folder) = dirs();
        let server = Server::start();
        std::fs::create_dir(kubelet.join("disk")).unwrap();
        let pod = Pod::start(&kubelet, &server, "pod-uid");
        let (told, notices) = mpsc::channel(16);
        let mounter = SharedMounter::new(&server.client(), config(&kubelet, unused_for, Some(told))).unwrap();
        Some(Self { kubelet, server, pod, mounter, notices, _folder: folder })
    }

    fn target(&self, volume: &str, workload: &str) -> PathBuf {
        self.kubelet.join(format!("pods/{workload}/volumes/kubernetes.io~csi/{volume}/mount"))
    }

    fn request(&self, volume: &str, workload: &str) -> MountRequest {
        let target = self.target(volume, workload);
        MountRequest { target, ..crate::mounter::testing::request(volume, workload) }
    }

    /// A request for a volume with a cache of this size, in MiB.
    fn cached(&self, volume: &str, mib: u64) -> MountRequest {
        let args = ["--cache=/local-cache".to_owned(), format!("--max-cache-size={mib}")];
        MountRequest { args: args.into(), ..self.request(volume, "w1") }
    }

    /// The arguments of the engine that serves a volume.
    fn args(&self, volume: &str) -> Vec<String> {
        self.pod.source(&self.source_of(volume, "w1")).messages().pop().unwrap().args
    }

    /// The driver's note of the cache of a request.
    fn note_of_cache(&self, request: &MountRequest) -> PathBuf {
        comm::plugin_directory(&self.kubelet).join("shared-caches").join(super::caches::name_of(request))
    }

    /// Kills the engine of a volume, and waits until its target is bound to the mount of the next one.
    async fn engine_dies(&self, volume: &str) {
        let (source, dead) = (self.pod.source(&self.source_of(volume, "w1")), self.device(volume, "w1"));
        source.kill_engine();
        source.listen();
        self.bound_anew((volume, "w1"), &dead).await;
    }

    /// Unmounts a volume, and its source at once.
    async fn end(&self, volume: &str) {
        let source = self.source_of(volume, "w1");
        self.mounter.unmount(&self.target(volume, "w1")).await.unwrap();
        self.mounter.node.unmount_source(&source).await.unwrap();
        // The first process of the pod does this.
        let comm = Comm::on_host(&self.kubelet, "pod-uid").of_source(&source);
        std::fs::remove_dir_all(comm.directory()).unwrap();
        self.pod.sources.lock().remove(&source);
    }

    async fn mount(&self, volume: &str, workload: &str) -> Result<Made> {
        self.mounter.mount(self.request(volume, workload)).await
    }

    /// The name of the source that a target is bound to.
    fn source_of(&self, volume: &str, workload: &str) -> String {
        let mounts = Mounts::read().unwrap();
        let mount = mounts.at(&self.target(volume, workload)).expect("a mounted target");
        let source = mounts.source_of(mount, &comm::sources(&self.kubelet)).expect("a source");
        source.point.file_name().unwrap().to_str().unwrap().to_owned()
    }

    fn device(&self, volume: &str, workload: &str) -> String {
        Mounts::read().unwrap().at(&self.target(volume, workload)).unwrap().device.clone()
    }

    /// Waits until a target is bound to another connection than this one, and answers.
    async fn bound_anew(&self, (volume, workload): (&str, &str), dead: &str) {
        let (changes, target) = (Changes::watch().unwrap(), self.target(volume, workload));
        let sources = comm::sources(&self.kubelet);
        let is_new = |mounts: &Mounts| {
            let mount = mounts.at(&target).filter(|mount| mount.device != dead);
            mount.is_some_and(|mount| mounts.source_of(mount, &sources).is_some())
        };
        assert!(changes.until(Instant::now() + LONG, is_new).await.unwrap());
        std::fs::metadata(&target).unwrap();
    }

    async fn told(&mut self, reason: Reason) -> Notice {
        loop {
            let notice = self.notices.recv().await.unwrap();
            if notice.reason == reason {
                return notice;
            }
        }
    }

    fn keys(&self, pod: &str, source: &str, volume: &str) -> String {
        let comm = Comm::on_host(&self.kubelet, pod).of_source(source);
        let profile = Profile::new(pod, &format!("handle of {volume}")).unwrap();
        let named = profile.env(&comm.credentials());
        let file = named.iter().find(|(name, _)| name == "AWS_SHARED_CREDENTIALS_FILE").unwrap();
        std::fs::read_to_string(&file.1).unwrap_or_default()
    }
}

fn config(kubelet: &Path, unused_for: Duration, notices: Notices) -> Config {
    let processes = processes(&kubelet.join("proc"), &["pod-uid", "pod-uid-2"]);
    let disk = Some(Disk { mib: 100, directory: Some(kubelet.join("disk")) });
    let revision = Some("pod-uid".to_owned());
    Config {
        kubelet: kubelet.to_owned(),
        processes,
        unused_for,
        notices,
        disk,
        revision,
        ..Config::new(NODE, 2)
    }
}

/// Runs a test on a node of its own, in an isolated process.
fn on_node<F: Future<Output = ()>>(unused_for: Duration, body: impl Fn(Home) -> F) {
    runtime().block_on(async {
        if let Some(home) = Home::new(unused_for) {
            body(home).await;
        }
    });
}

#[test]
fn workloads_of_one_volume_share_a_source_and_one_volume_too_many_waits() {
    isolated(|| {
        on_node(LONG, |mut home| async move {
            for (volume, workload) in [("pv-1", "w1"), ("pv-1", "w2"), ("pv-2", "w1")] {
                home.mount(volume, workload).await.unwrap();
            }
            let source = home.source_of("pv-1", "w1");
            assert_eq!(home.source_of("pv-1", "w2"), source);
            assert_ne!(home.source_of("pv-2", "w1"), source);
            let [message] = &home.pod.source(&source).messages()[..] else { panic!("one hand-over") };
            let dir = format!("/comm/{source}/credentials/");
            assert!(message.env.iter().any(|it| it.contains(&dir)), "{:?}", message.env);
            assert!(home.keys("pod-uid", &source, "pv-1").contains("key-1"));

            let error = home.mount("pv-3", "w1").await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::ResourceExhausted);
            let notice = home.told(Reason::VolumeLimitReached).await;
            assert!(
                notice.note.contains("serves 2 volumes") && notice.note.contains("pv-3"),
                "{}",
                notice.note
            );
            assert!(!home.target("pv-3", "w1").exists());
            home.mount("pv-2", "w2").await.unwrap();
        })
    });
}

#[test]
fn a_volume_with_its_pods_account_is_refused_with_what_to_set() {
    isolated(|| {
        on_node(LONG, |home| async move {
            let token = Some(Token("the token of a pod".to_owned()));
            let request = MountRequest { token, ..home.request("pv-1", "w1") };
            let error = home.mounter.mount(request).await.unwrap_err();
            let said = error.to_string();
            assert_eq!(error.kind, ErrorKind::FailedPrecondition);
            assert!(said.contains("node.mounter: pod") && !said.contains("the token"), "{said}");
            assert!(Mounts::read().unwrap().at(&home.target("pv-1", "w1")).is_none());
            home.mount("pv-1", "w1").await.unwrap();
        })
    });
}

#[test]
fn a_source_without_targets_is_unmounted_later_and_frees_its_place() {
    isolated(|| {
        on_node(Duration::from_millis(300), |home| async move {
            home.mount("pv-1", "w1").await.unwrap();
            home.mount("pv-2", "w1").await.unwrap();
            let source = home.source_of("pv-1", "w1");
            let at = comm::source(&home.kubelet, &source);
            let changes = Changes::watch().unwrap();
            home.mounter.unmount(&home.target("pv-1", "w1")).await.unwrap();
            assert!(changes.until(Instant::now() + LONG, |mounts| mounts.at(&at).is_none()).await.unwrap());
            while home.mount("pv-3", "w1").await.is_err() {
                tokio::task::yield_now().await;
            }
            let files = CommFiles::open(&Comm::on_host(&home.kubelet, "pod-uid").of_source(&source)).unwrap();
            assert!(files.exit_announced() && !at.exists());
            assert_eq!(home.keys("pod-uid", &source, "pv-1"), "");
            std::fs::metadata(home.target("pv-2", "w1")).unwrap();
        })
    });
}

/// Goal: while places are rare, a volume that mounts slowly takes up its own alone.
#[test]
fn a_mount_under_way_stops_the_unmount_of_no_other_source() {
    isolated(|| {
        on_node(Duration::from_millis(300), |home| async move {
            let mut volumes = ["pv-1", "pv-2"];
            for volume in volumes {
                home.mount(volume, "w1").await.unwrap();
            }
            // The first to be unmounted waits for a mount.
            volumes.sort_by_key(|volume| home.source_of(volume, "w1"));
            let names = volumes.map(|volume| home.source_of(volume, "w1"));
            let [one, two] = names.each_ref().map(|name| comm::source(&home.kubelet, name));
            let node = &home.mounter.node;
            let mounting = node.locks.lock(&node.shares.get(&names[0]).unwrap().key).await;
            let changes = Changes::watch().unwrap();
            for volume in volumes {
                home.mounter.unmount(&home.target(volume, "w1")).await.unwrap();
            }
            let until = Instant::now() + LONG;
            assert!(changes.until(until, |mounts| mounts.at(&two).is_none()).await.unwrap());
            assert!(Mounts::read().unwrap().at(&one).is_some());
            drop(mounting);
            assert!(changes.until(until, |mounts| mounts.at(&one).is_none()).await.unwrap());
        })
    });
}

/// Goal: a mounter that nobody ends would keep the place of a volume for as long as the pod runs.
#[test]
fn a_mounter_that_can_not_be_told_to_end_is_told_later() {
    isolated(|| {
        on_node(LONG, |home| async move {
            let (request, node) = (home.request("pv-1", "w1"), &home.mounter.node);
            let (name, is_new) = node.source_for(&request, "key").unwrap();
            assert!(is_new);
            let share = node.shares.get(&name).unwrap();
            node.shares.put(&name, &Share { pod: "pod-uid".into(), ..share }).unwrap();
            let comm = Comm::on_host(&home.kubelet, "pod-uid").of_source(&name);
            let (at, flags) = (comm.directory(), rustix::mount::MountFlags::empty());
            std::fs::create_dir(at).unwrap();
            // A file system with room for one file.
            rustix::mount::mount("tmpfs", at, "tmpfs", flags, c"nr_inodes=2").unwrap();
            std::fs::write(at.join("full"), "").unwrap();
            node.give_up(&name);
            assert!(node.unused().contains(&name), "it is tried again");
            let why = node.unmount_source(&name).await.unwrap_err();
            assert!(why.contains("mount.exit"), "{why}");
            let next = node.source_for(&request, "key").unwrap();
            assert_eq!(next, (name.clone(), false), "the volume's next attempt takes that mounter");
            std::fs::remove_file(at.join("full")).unwrap();
            node.unmount_source(&name).await.unwrap();
            assert!(comm.exit().exists() && node.shares.get(&name).is_none());
        })
    });
}

#[test]
fn a_dead_engine_of_the_pod_costs_its_own_volume_a_moment() {
    isolated(|| {
        on_node(LONG, |mut home| async move {
            for (volume, workload) in [("pv-1", "w1"), ("pv-1", "w2"), ("pv-2", "w1")] {
                home.mount(volume, workload).await.unwrap();
            }
            let (dead, other) = (home.device("pv-1", "w1"), home.device("pv-2", "w1"));
            let source = home.pod.source(&home.source_of("pv-1", "w1"));
            source.kill_engine();
            source.listen();
            for workload in ["w1", "w2"] {
                home.bound_anew(("pv-1", workload), &dead).await;
                home.told(Reason::VolumeEngineDied).await;
            }
            assert_eq!(home.device("pv-2", "w1"), other, "it never died");
            assert_eq!(source.messages().len(), 2);
        })
    });
}

#[test]
fn a_pod_that_is_replaced_gives_all_its_sources_to_its_successor() {
    isolated(|| {
        on_node(LONG, |home| async move {
            home.mount("pv-1", "w1").await.unwrap();
            home.mount("pv-2", "w1").await.unwrap();
            let volumes = ["pv-1", "pv-2"];
            let (sources, dead) = (
                volumes.map(|volume| home.source_of(volume, "w1")),
                volumes.map(|volume| home.device(volume, "w1")),
            );
            home.pod.kill(&home.server, "pod-uid");
            let next = Pod::start(&home.kubelet, &home.server, "pod-uid-2");
            for at in 0..2 {
                home.bound_anew((volumes[at], "w1"), &dead[at]).await;
                assert_eq!(home.source_of(volumes[at], "w1"), sources[at]);
                assert_eq!(next.source(&sources[at]).messages().len(), 1);
                assert!(home.keys("pod-uid-2", &sources[at], volumes[at]).contains("key-1"));
            }
            // The second pod is watched like the first.
            let dead = home.device("pv-1", "w1");
            next.source(&sources[0]).kill_engine();
            next.source(&sources[0]).listen();
            home.bound_anew(("pv-1", "w1"), &dead).await;
        })
    });
}

/// Goal: a pod that is away for longer than an unused source stays costs no volume.
#[test]
fn a_source_that_is_not_mounted_again_yet_keeps_its_note_for_its_targets() {
    isolated(|| {
        on_node(LONG, |home| async move {
            home.mount("pv-1", "w1").await.unwrap();
            let (name, dead) = (home.source_of("pv-1", "w1"), home.device("pv-1", "w1"));
            let (at, changes) = (comm::source(&home.kubelet, &name), Changes::watch().unwrap());
            let source = home.pod.source(&name);
            *home.pod.refusal.lock() = Some("no such bucket".into());
            source.kill_engine();
            source.listen();
            assert!(changes.until(Instant::now() + LONG, |mounts| mounts.at(&at).is_none()).await.unwrap());
            home.mounter.node.unmount_source(&name).await.unwrap();
            assert!(home.mounter.node.shares.get(&name).is_some(), "its target is bound to the dead mount");
            *home.pod.refusal.lock() = None;
            source.listen();
            home.bound_anew(("pv-1", "w1"), &dead).await;
            assert_eq!(home.source_of("pv-1", "w1"), name);
            // Without a target it goes like any other. The task that bound the target may have it locked still.
            while home.mounter.unmount(&home.target("pv-1", "w1")).await.is_err() {
                tokio::task::yield_now().await;
            }
            home.mounter.node.unmount_source(&name).await.unwrap();
            assert!(home.mounter.node.shares.get(&name).is_none() && !at.exists());
        })
    });
}

#[test]
fn a_noted_pod_takes_mounts_and_fresh_keys_without_the_api_server() {
    isolated(|| {
        on_node(LONG, |home| async move {
            home.mount("pv-1", "w1").await.unwrap();
            let source = home.source_of("pv-1", "w1");
            let gone = Server::start();
            gone.pods().hide(true);
            let anew = SharedMounter::new(&gone.client(), config(&home.kubelet, LONG, None)).unwrap();
            let mut request = home.request("pv-1", "w1");
            request.credentials.as_mut().unwrap().access_key_id = "key-2".into();
            anew.mount(request).await.unwrap();
            assert!(home.keys("pod-uid", &source, "pv-1").contains("key-2"));
            anew.mount(home.request("pv-2", "w1")).await.unwrap();
            assert_eq!(
                anew.mount(home.request("pv-3", "w1")).await.unwrap_err().kind,
                ErrorKind::ResourceExhausted
            );
            anew.unmount(&home.target("pv-2", "w1")).await.unwrap();
            assert!(!home.target("pv-2", "w1").exists());
        })
    });
}

#[test]
fn a_workload_stays_at_its_source_though_its_volume_was_edited() {
    isolated(|| {
        on_node(LONG, |home| async move {
            home.mount("pv-1", "w1").await.unwrap();
            let (source, dead) = (home.source_of("pv-1", "w1"), home.device("pv-1", "w1"));
            let edited =
                |workload| MountRequest { args: vec!["--edited".into()], ..home.request("pv-1", workload) };
            home.mounter.mount(edited("w1")).await.unwrap();
            assert_eq!(home.device("pv-1", "w1"), dead, "it stays as it is");
            home.mounter.mount(edited("w2")).await.unwrap();
            assert_ne!(home.source_of("pv-1", "w2"), source, "new workloads get the new options");
            let engine = home.pod.source(&source);
            engine.kill_engine();
            let died = std::fs::metadata(home.target("pv-1", "w1"));
            assert!(died.is_err());
            engine.listen();
            home.bound_anew(("pv-1", "w1"), &dead).await;
            assert_eq!(home.source_of("pv-1", "w1"), source);
        })
    });
}

#[test]
fn a_refused_mount_leaves_no_source_and_its_next_attempt_succeeds() {
    isolated(|| {
        on_node(LONG, |home| async move {
            let request = home.request("pv-1", "w1");
            let token = MountRequest { token: Some(Token("canary".into())), ..request.clone() };
            let error = home.mounter.mount(token).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::FailedPrecondition);
            assert!(home.pod.sources.lock().is_empty());

            *home.pod.refusal.lock() = Some("no such bucket".into());
            let error = home.mount("pv-1", "w1").await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::FailedPrecondition);
            assert!(error.to_string().contains("no such bucket"), "{error}");
            let names = [0, 1].map(|attempt| wire::name(&key_of(&request), attempt));
            let files =
                CommFiles::open(&Comm::on_host(&home.kubelet, "pod-uid").of_source(&names[0])).unwrap();
            assert!(files.exit_announced(), "its mounter ends");
            assert!(
                !home.target("pv-1", "w1").exists() && home.keys("pod-uid", &names[0], "pv-1").is_empty()
            );
            *home.pod.refusal.lock() = None;
            home.mount("pv-1", "w1").await.unwrap();
            assert_eq!(home.source_of("pv-1", "w1"), names[1], "the first may still be ending");
            let unusable = MountRequest { unusable: Some("bad".into()), ..home.request("pv-3", "w1") };
            assert_eq!(home.mounter.mount(unusable).await.unwrap_err().kind, ErrorKind::InvalidArgument);
            home.mount("pv-2", "w1").await.unwrap();
        })
    });
}

/// Goal: keys never go to a place that nobody knows, and the error tells the way out.
#[test]
fn a_source_whose_note_is_unreadable_gets_no_keys_and_serves_on() {
    isolated(|| {
        on_node(LONG, |home| async move {
            home.mount("pv-1", "w1").await.unwrap();
            let (name, dead) = (home.source_of("pv-1", "w1"), home.device("pv-1", "w1"));
            let note = comm::plugin_directory(&home.kubelet).join("shared").join(&name);
            std::fs::write(&note, "half").unwrap();
            let why = home.mount("pv-1", "w1").await.unwrap_err().to_string();
            assert!(why.contains(&format!("shared/{name}")) && why.contains("can't be read"), "{why}");
            let without_keys = MountRequest { credentials: None, ..home.request("pv-1", "w1") };
            home.mounter.mount(without_keys).await.unwrap();
            assert_eq!(home.device("pv-1", "w1"), dead, "it serves on");

            home.pod.source(&name).kill_engine();
            home.pod.source(&name).listen();
            assert!(!home.mounter.node.revive(&name).await.unwrap());
            assert_eq!(std::fs::read_to_string(&note).unwrap(), "half", "no other note takes its place");
            home.mount("pv-1", "w1").await.unwrap();
            let other = home.source_of("pv-1", "w1");
            assert_ne!(other, name);
            assert!(home.keys("pod-uid", &other, "pv-1").contains("key-1"));
            // The task that bound the target may have it locked still.
            while home.mounter.unmount(&home.target("pv-1", "w1")).await.is_err() {
                tokio::task::yield_now().await;
            }
            home.mounter.node.unmount_source(&name).await.unwrap();
            let files = CommFiles::open(&Comm::on_host(&home.kubelet, "pod-uid").of_source(&name)).unwrap();
            assert!(files.exit_announced() && !note.exists(), "its mounter ends");
        })
    });
}

#[test]
fn a_source_that_moved_while_its_unmount_waited_ends_in_its_new_pod() {
    isolated(|| {
        on_node(LONG, |home| async move {
            home.mount("pv-1", "w1").await.unwrap();
            let (name, node) = (home.source_of("pv-1", "w1"), Arc::clone(&home.mounter.node));
            home.mounter.unmount(&home.target("pv-1", "w1")).await.unwrap();
            let share = node.shares.get(&name).unwrap();
            let mounting = node.locks.lock(&share.key).await;
            let mut unmounting = std::pin::pin!(node.unmount_source(&name));
            let waits =
                std::future::poll_fn(|context| Poll::Ready(unmounting.as_mut().poll(context).is_pending()));
            assert!(waits.await);
            // A mount that fails has begun a mounter in the next pod.
            let next = Comm::on_host(&home.kubelet, "pod-uid-2").of_source(&name);
            std::fs::create_dir_all(next.directory()).unwrap();
            node.shares.put(&name, &Share { pod: "pod-uid-2".into(), ..share }).unwrap();
            drop(mounting);
            unmounting.await.unwrap();
            assert!(CommFiles::open(&next).unwrap().exit_announced());
        })
    });
}

#[test]
fn a_pod_of_another_chart_is_outdated_and_none_is_not() {
    isolated(|| {
        on_node(LONG, |home| async move {
            home.mount("pv-1", "w1").await.unwrap();
            assert_eq!(home.mounter.is_outdated(), Some(false));
            let dead = home.device("pv-1", "w1");
            home.pod.kill(&home.server, "pod-uid");
            let _next = Pod::start(&home.kubelet, &home.server, "pod-uid-2");
            home.bound_anew(("pv-1", "w1"), &dead).await;
            assert_eq!(home.mounter.is_outdated(), Some(true));
        })
    });
}
