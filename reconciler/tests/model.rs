//! Random events in a small cluster with two reconcilers: their caches lag, their plans may be cut off anywhere, and both believe
//! that they lead. Goal: in every case,
//! - a workload has one live Mountpoint Pod per volume,
//! - at rest there is no orphan: no pod that serves no workload, no attachment without workloads,
//! - no mount in use is unmounted,
//! - a reconciler that sees everything gives a workload a pod of its volume, not of one with another bucket that had the volume's name.
//!
//! Method: the product's own facts, plan and calls, against the API in memory. After the random part the cluster comes to rest and the
//! test checks it; then all workloads end, and nothing must be left.

mod fixtures;
mod judge;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fixtures::{Cluster, NAMESPACE};
use judge::{
    ATTACHMENTS, BARE_NODE, claim_of, is_alive, is_bare, is_live_workload, is_marked, judge, name_of,
    pods_of, restarts, uid_of, volume_of, wrong_volumes,
};
use proptest::prelude::*;
use reconciler::apply::{Applier, Outcome};
use reconciler::plan::{Effect, plan};
use serde_json::{Value, json};
use tokio::sync::Mutex;

const VOLUMES: [&str; 2] = ["pv-a", "pv-b"];

/// One event. Its numbers choose among the present objects.
#[derive(Clone, Debug)]
enum Op {
    Schedule {
        node: u8,
        volume: u8,
        group: bool,
    },
    Start(usize),
    BeginDeletion(usize),
    End(usize),
    Vanish(usize),
    EditOptions(u8),
    DeleteVolume(u8),
    CreateVolume(u8),
    PodRuns(usize),
    PodFails(usize),
    PodIsDeletedByHand(usize),
    PodVanishes(usize),
    NodeUnmounts(usize),
    /// The mounter waited for a device in vain and begins again.
    MounterBeginsAgain(usize),
    AdminStopsIntake(usize),
    See {
        leader: usize,
        resource: usize,
        part: u8,
    },
    Think {
        leader: usize,
        group: usize,
    },
    /// A reconciler sees everything, plans, and carries out all of the plan.
    Work {
        leader: usize,
        group: usize,
    },
    Act {
        leader: usize,
        effects: u8,
    },
    Crash(usize),
    TimePasses,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let at = any::<usize>;
    let leader = || 0..2_usize;
    let rare = || prop_oneof![7 => Just(0_u8), 1 => Just(1_u8)];
    let node = || prop_oneof![6 => Just(0_u8), 1 => Just(1_u8), 1 => Just(2_u8)];
    let op = prop_oneof![
        // Mostly the same: what meets is what can go wrong.
        6 => (node(), rare(), rare()).prop_map(|(node, volume, group)| Op::Schedule { node, volume, group: group == 1 }),
        4 => at().prop_map(Op::Start),
        1 => at().prop_map(Op::BeginDeletion),
        3 => at().prop_map(Op::End),
        1 => at().prop_map(Op::Vanish),
        2 => (0..2_u8).prop_map(Op::EditOptions),
        1 => (0..2_u8).prop_map(Op::DeleteVolume),
        2 => (0..2_u8).prop_map(Op::CreateVolume),
        4 => at().prop_map(Op::PodRuns),
        1 => at().prop_map(Op::PodFails),
        1 => at().prop_map(Op::PodIsDeletedByHand),
        1 => at().prop_map(Op::PodVanishes),
        2 => at().prop_map(Op::NodeUnmounts),
        2 => at().prop_map(Op::MounterBeginsAgain),
        1 => at().prop_map(Op::AdminStopsIntake),
        12 => (leader(), 0..4_usize, any::<u8>()).prop_map(|(leader, resource, part)| Op::See { leader, resource, part }),
        8 => (leader(), at()).prop_map(|(leader, group)| Op::Think { leader, group }),
        8 => (leader(), at()).prop_map(|(leader, group)| Op::Work { leader, group }),
        12 => (leader(), 1..6_u8).prop_map(|(leader, effects)| Op::Act { leader, effects }),
        1 => leader().prop_map(Op::Crash),
        1 => Just(Op::TimePasses),
    ];
    prop::collection::vec(op, 1..90)
}

#[derive(Default)]
struct Leader {
    seen: [u64; 4],
    pending: Vec<Effect>,
}

struct World {
    cluster: Cluster,
    applier: Applier,
    leaders: [Leader; 2],
    violations: Arc<Mutex<Vec<String>>>,
    /// Mounts of the node: Mountpoint Pods by workload.
    mounted: BTreeMap<String, String>,
    /// The bucket that a Mountpoint Pod serves, from its first workload on.
    served: BTreeMap<String, String>,
    /// The reconciler at work has seen everything.
    sees_all: Arc<AtomicBool>,
    born: usize,
    /// Reconcilers believe every absence that their caches show.
    credulous: bool,
}

impl World {
    fn new(credulous: bool) -> Self {
        let cluster = Cluster::new();
        for name in VOLUMES {
            cluster.put("persistentvolumes", fixtures::volume(name));
            cluster.put("persistentvolumeclaims", fixtures::claim(name));
        }
        let violations = Arc::new(Mutex::new(Vec::new()));
        let (noted, sees_all) = (violations.clone(), Arc::new(AtomicBool::new(false)));
        let exact = sees_all.clone();
        cluster.lock().watcher = Some(Box::new(move |before, after, key| {
            let mut noted = noted.try_lock().expect("one writer");
            noted.extend(judge(before, after, key));
            if exact.load(Ordering::Relaxed) {
                noted.extend(wrong_volumes(before, after, key));
            }
        }));
        let applier = cluster.applier();
        let leaders = Default::default();
        let (mounted, served) = (BTreeMap::new(), BTreeMap::new());
        Self { cluster, applier, leaders, violations, mounted, served, sees_all, born: 0, credulous }
    }

    async fn step(&mut self, op: Op) {
        match op {
            Op::Schedule { node, volume, group } => self.schedule(node, volume, group),
            Op::Start(at) => self.start(at),
            Op::BeginDeletion(at) => self.with_workload(at, |pod| {
                pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }),
            Op::End(at) => self.with_workload(at, |pod| pod["status"]["phase"] = json!("Succeeded")),
            Op::Vanish(at) => {
                if let Some(pod) = pick(&self.workloads(), at) {
                    self.cluster.remove("pods", "default", name_of(pod));
                }
            }
            Op::EditOptions(which) => {
                let (name, born) = (VOLUMES[usize::from(which)], self.born);
                if self.cluster.get("persistentvolumes", "", name).is_some() {
                    self.cluster.edit("persistentvolumes", "", name, |volume| {
                        volume["spec"]["mountOptions"] = json!([format!("metadata-ttl={}", born % 3)]);
                    });
                }
            }
            Op::DeleteVolume(which) => {
                self.cluster.remove("persistentvolumes", "", VOLUMES[usize::from(which)]);
            }
            Op::CreateVolume(which) => {
                let name = VOLUMES[usize::from(which)];
                if self.cluster.get("persistentvolumes", "", name).is_none() {
                    // Each volume has a separate UID.
                    let mut volume = fixtures::volume(name);
                    let bucket = format!("bucket-{}", self.cluster.revision());
                    volume["spec"]["csi"]["volumeAttributes"]["bucketName"] = json!(bucket);
                    self.cluster.put("persistentvolumes", volume);
                }
            }
            Op::PodRuns(at) => self.with_pod(at, |pod| {
                if pod["status"]["phase"] == "Pending" {
                    pod["status"]["phase"] = json!("Running");
                }
            }),
            Op::PodFails(at) => self.with_pod(at, |pod| {
                if pod["status"]["phase"] != "Succeeded" {
                    pod["status"] = json!({"phase": "Failed", "reason": "Evicted"});
                }
            }),
            Op::PodIsDeletedByHand(at) => self.with_pod(at, |pod| {
                pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }),
            Op::PodVanishes(at) => {
                let pods = self.cluster.mountpoint_pods();
                if let Some(pod) =
                    pick(&pods, at).filter(|pod| !pod["metadata"]["deletionTimestamp"].is_null())
                {
                    self.cluster.remove("pods", NAMESPACE, name_of(pod));
                }
            }
            Op::NodeUnmounts(at) => {
                let pods = self.cluster.mountpoint_pods();
                if let Some(pod) = pick(&pods, at) {
                    self.node_unmounts(&pod.clone());
                }
            }
            Op::MounterBeginsAgain(at) => {
                let pods = self.cluster.mountpoint_pods();
                if let Some(pod) = pick(&pods, at) {
                    self.begins_again(&pod.clone());
                }
            }
            Op::AdminStopsIntake(at) => self.with_pod(at, |pod| {
                pod["metadata"]["annotations"]["s3.csi.scality.com/no-new-workload"] = json!("true");
            }),
            Op::See { leader, resource, part } => {
                let head = self.cluster.revision();
                let seen = &mut self.leaders[leader].seen[resource];
                *seen += ((head - *seen) * (u64::from(part) + 1)).div_ceil(256);
            }
            Op::Think { leader, group } => {
                self.think(leader, group);
            }
            Op::Work { leader, group } => {
                self.leaders[leader].seen = [self.cluster.revision(); 4];
                self.think(leader, group);
                self.sees_all.store(true, Ordering::Relaxed);
                while !self.leaders[leader].pending.is_empty() {
                    self.act(leader).await;
                }
                self.sees_all.store(false, Ordering::Relaxed);
            }
            Op::Act { leader, effects } => {
                for _ in 0..effects {
                    self.act(leader).await;
                }
            }
            Op::Crash(leader) => self.leaders[leader].pending.clear(),
            // Longer than any plan lives: calls time out, and a Lease runs out.
            Op::TimePasses => {
                self.leaders.iter_mut().for_each(|leader| leader.pending.clear());
                self.cluster.wait(100);
            }
        }
        self.check();
    }

    fn think(&mut self, leader: usize, group: usize) {
        let cache = self.cluster.cache_at(self.leaders[leader].seen);
        let groups: Vec<_> = cache.groups().into_iter().collect();
        if let Some(group) = pick(&groups, group) {
            let facts = cache.facts(group, csi::contract::VERSION, self.cluster.now());
            self.leaders[leader].pending = plan(&facts).effects;
        }
    }

    async fn act(&mut self, leader: usize) {
        let pending = &mut self.leaders[leader].pending;
        if pending.is_empty() {
            return;
        }
        let effect = pending.remove(0);
        let asks = matches!(
            effect,
            Effect::ConfirmWorkloadsEnded { .. }
                | Effect::ConfirmPodEnded { .. }
                | Effect::ConfirmUnnamed { .. }
                | Effect::ConfirmUnattached { .. }
        );
        if asks && self.credulous {
            return;
        }
        let readers = self.readers_of_deleted(&effect);
        if self.applier.apply(&effect).await.expect("the API in memory answers") != Outcome::Done {
            self.leaders[leader].pending.clear();
        } else if !readers.is_empty() {
            let found = format!("{effect:?}, and {readers:?} read it");
            self.violations.try_lock().expect("one writer").push(found);
        }
    }

    fn schedule(&mut self, node: u8, volume: u8, group: bool) {
        if self.workloads().len() >= 6 {
            return;
        }
        self.born += 1;
        let name = format!("w{}", self.born);
        let mut pod = fixtures::workload(&name, &format!("node-{node}"), VOLUMES[usize::from(volume)]);
        if group {
            pod["spec"]["securityContext"] = json!({"fsGroup": 1000});
        }
        self.cluster.put("pods", pod);
    }

    /// Starts a workload as the kubelet does once the node has mounted; the node mounts volumes whose attachment names a serving pod, and
    /// refuses a pod that serves another bucket than the volume names.
    fn start(&mut self, at: usize) {
        let waiting: Vec<_> =
            self.workloads().into_iter().filter(|pod| pod["status"]["phase"] == "Pending").collect();
        let Some(pod) = pick(&waiting, at).filter(|pod| pod["spec"]["nodeName"] != BARE_NODE) else { return };
        let Some(volume) = self.cluster.get("persistentvolumes", "", claim_of(pod)) else { return };
        let bucket = volume["spec"]["csi"]["volumeAttributes"]["bucketName"].as_str().unwrap();
        let named = pods_of(&self.cluster.lock().objects, uid_of(pod));
        for name in named {
            let serves = self.cluster.get("pods", NAMESPACE, &name).is_some_and(|pod| {
                pod["status"]["phase"] == "Running"
                    && !is_marked(&pod)
                    && pod["metadata"]["deletionTimestamp"].is_null()
            });
            if serves && self.served.entry(name.clone()).or_insert_with(|| bucket.to_owned()) == bucket {
                self.mounted.insert(uid_of(pod).to_owned(), name);
                self.cluster
                    .edit("pods", "default", name_of(pod), |pod| pod["status"]["phase"] = json!("Running"));
                return;
            }
        }
    }

    /// Unmounts marked sources without binds, as the node does, and completes their pods.
    fn node_unmounts(&self, pod: &Value) -> bool {
        let bound = !self.readers(name_of(pod)).is_empty();
        if !is_marked(pod) || bound || pod["status"]["phase"] != "Running" || is_bare(pod) {
            return false;
        }
        self.cluster.edit("pods", NAMESPACE, name_of(pod), |pod| pod["status"]["phase"] = json!("Succeeded"));
        true
    }

    /// Restarts a mounter, unless an engine runs in it, which never waits.
    fn begins_again(&self, pod: &Value) {
        if pod["status"]["phase"] != "Running" || !self.readers(name_of(pod)).is_empty() {
            return;
        }
        self.cluster.edit("pods", NAMESPACE, name_of(pod), |pod| {
            pod["status"]["containerStatuses"] = json!([{
                "name": "mountpoint", "image": "i", "imageID": "", "ready": true, "restartCount": restarts(pod) + 1,
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "lastState": {"terminated": {"exitCode": 1}},
            }]);
        });
    }

    /// Live workloads that have a mount of this pod, whatever the attachments say.
    fn readers(&self, pod: &str) -> Vec<String> {
        let uids = self.workloads().iter().map(|it| uid_of(it).to_owned()).collect::<Vec<_>>();
        uids.into_iter().filter(|uid| self.mounted.get(uid).is_some_and(|it| it == pod)).collect()
    }

    fn readers_of_deleted(&self, effect: &Effect) -> Vec<String> {
        let Effect::DeletePod(at) = effect else { return Vec::new() };
        let runs = |pod: &Value| pod["status"]["phase"] == "Running";
        let is_served = self.cluster.get("pods", NAMESPACE, &at.name).as_ref().is_some_and(runs);
        if is_served { self.readers(&at.name) } else { Vec::new() }
    }

    fn workloads(&self) -> Vec<Value> {
        self.cluster.lock().all("pods").into_iter().filter(is_live_workload).collect()
    }

    fn with_workload(&self, at: usize, edit: impl FnOnce(&mut Value)) {
        if let Some(pod) = pick(&self.workloads(), at) {
            self.cluster.edit("pods", "default", name_of(pod), edit);
        }
    }

    fn with_pod(&self, at: usize, edit: impl FnOnce(&mut Value)) {
        if let Some(pod) = pick(&self.cluster.mountpoint_pods(), at) {
            self.cluster.edit("pods", NAMESPACE, name_of(pod), edit);
        }
    }

    fn check(&self) {
        let violations = self.violations.try_lock().expect("nobody writes now");
        assert!(violations.is_empty(), "{violations:#?}");
    }

    /// Lets one reconciler with fresh caches, and the nodes, work until nothing changes.
    async fn rest(&mut self) {
        self.leaders.iter_mut().for_each(|leader| leader.pending.clear());
        self.sees_all.store(true, Ordering::Relaxed);
        for _ in 0..60 {
            let before = self.cluster.revision();
            let groups = self.cluster.cache().groups();
            for group in groups {
                let facts = self.cluster.cache().facts(&group, csi::contract::VERSION, self.cluster.now());
                for effect in plan(&facts).effects.iter().filter(|effect| !matches!(effect, Effect::Tell(_)))
                {
                    let outcome = self.applier.apply(effect).await.expect("the API in memory answers");
                    assert_eq!(outcome, Outcome::Done, "fresh facts are not stale: {effect:?}");
                }
            }
            for pod in self.cluster.mountpoint_pods() {
                if pod["metadata"]["deletionTimestamp"].is_string() {
                    self.cluster.remove("pods", NAMESPACE, name_of(&pod));
                } else if is_bare(&pod) && is_marked(&pod) {
                    self.begins_again(&pod);
                } else {
                    self.node_unmounts(&pod);
                }
            }
            self.check();
            self.cluster.wait(50);
            // Two quiet rounds are needed for what waits for its time; the third proves it.
            if self.cluster.revision() == before {
                self.cluster.wait(100);
                let groups = self.cluster.cache().groups();
                let due = groups.iter().any(|group| {
                    let facts = self.cluster.cache().facts(group, csi::contract::VERSION, self.cluster.now());
                    let plan = plan(&facts);
                    // A pod that failed too often waits for its time.
                    plan.look_again_in.is_some()
                        || plan.effects.iter().any(|effect| !matches!(effect, Effect::Tell(_)))
                });
                if !due {
                    return;
                }
            }
        }
        panic!("it never comes to rest");
    }

    fn check_rest(&self) {
        let objects = self.cluster.lock().objects.clone();
        for workload in self.workloads() {
            let has_volume = volume_of(&objects, &workload).is_some();
            let is_leaving = !workload["metadata"]["deletionTimestamp"].is_null();
            let named = pods_of(&objects, uid_of(&workload));
            if is_leaving || !has_volume {
                assert!(named.len() <= 1, "{} has {named:?}", name_of(&workload));
                continue;
            }
            assert_eq!(named.len(), 1, "{} has {named:?}", name_of(&workload));
            let pod = objects.get(&("pods".into(), NAMESPACE.into(), named[0].clone()));
            assert!(pod.is_some_and(is_alive), "{} has {pod:?}", name_of(&workload));
        }
        let mut serving = BTreeSet::new();
        for attachment in objects.iter().filter(|(key, _)| key.0 == ATTACHMENTS).map(|(_, it)| it) {
            let entries = attachment["spec"]["mountpointS3PodAttachments"].as_object().unwrap();
            assert!(!entries.is_empty(), "{attachment}");
            for (pod, workloads) in entries {
                assert!(!workloads.as_array().unwrap().is_empty(), "{attachment}");
                serving.insert(pod.clone());
            }
        }
        for pod in self.cluster.mountpoint_pods() {
            let bound = self.mounted.values().any(|it| it == name_of(&pod));
            assert!(serving.contains(name_of(&pod)) || (is_marked(&pod) && bound), "an orphan: {pod}");
        }
    }
}

fn pick<T>(among: &[T], at: usize) -> Option<&T> {
    among.get(at.checked_rem(among.len())?)
}

/// One life of a cluster: events, then rest, then the end of all workloads.
fn live(ops: Vec<Op>, credulous: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let mut world = World::new(credulous);
        for op in ops {
            world.step(op).await;
        }
        world.rest().await;
        world.check_rest();
        for pod in world.workloads() {
            world.cluster.edit("pods", "default", name_of(&pod), |pod| {
                pod["status"]["phase"] = json!("Failed");
            });
        }
        world.rest().await;
        assert_eq!(world.cluster.attachments(), Vec::<Value>::new());
        assert_eq!(world.cluster.mountpoint_pods(), Vec::<Value>::new());
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn each_workload_has_one_pod_nothing_is_orphaned_or_unmounted_in_use(ops in ops()) {
        live(ops, false);
    }
}

/// Goal: the model catches reconcilers that take "not seen" for "gone". The seed is fixed.
#[test]
fn reconcilers_that_believe_their_caches_are_caught() {
    let config = ProptestConfig {
        cases: 2000,
        max_shrink_iters: 0,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let rng = proptest::test_runner::TestRng::deterministic_rng(config.rng_algorithm);
    let mut runner = proptest::test_runner::TestRunner::new_with_rng(config, rng);
    let result = runner.run(&ops(), |ops| {
        live(ops, true);
        Ok(())
    });
    let caught = result.expect_err("two thousand lives without a fault").to_string();
    assert!(caught.contains("has lost its attachment") || caught.contains("while"), "{caught}");
}
