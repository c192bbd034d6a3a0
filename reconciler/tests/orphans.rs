//! Tests how long unused objects stay. Time stands still and passes by the second, for the product's own facts, plan, calls and queue.
//! The event about the change is lost each time, so that only a sweep finds the change, as late as a sweep can be; the same holds for the
//! node, if a driver runs there.

#![expect(clippy::print_stdout, reason = "a test prints what it measured")]

mod fixtures;

use std::time::{Duration, Instant};

use csi::contract::{VERSION, pod};
use fixtures::{Cluster, NAMESPACE};
use reconciler::leader::Leadership;
use reconciler::main_loop::{SWEEP_EVERY, carry_out};
use reconciler::queue::Queue;
use serde_json::json;

const MARKED_WITHIN: Duration = Duration::from_secs(120);
const GONE_WITHIN: Duration = Duration::from_secs(300);
/// A mounter that gets no device waits for so long (`--mount-sock-recv-timeout`); then its container begins again.
const MOUNTER_WAITS: Duration = Duration::from_secs(600);
/// The limit on a node without a driver.
const GONE_WITHOUT_DRIVER_WITHIN: Duration = Duration::from_secs(12 * 60);
const ATTACHMENTS: &str = "mountpoints3podattachments";

struct World {
    cluster: Cluster,
    /// Whether a driver runs on the node.
    driver: bool,
    queue: Queue,
    now: Instant,
}

impl World {
    /// A running workload, with the Mountpoint Pod that serves it.
    async fn new() -> Self {
        let cluster = Cluster::new();
        cluster.put("persistentvolumes", fixtures::volume("pv"));
        cluster.put("persistentvolumeclaims", fixtures::claim("pv"));
        cluster.put("pods", fixtures::workload("w", "node", "pv"));
        let mut world = Self { cluster, driver: true, queue: Queue::default(), now: Instant::now() };
        world.sweep();
        world.work().await;
        for (namespace, name) in [(NAMESPACE, world.mountpoint_pod()), ("default", "w".to_owned())] {
            world.cluster.edit("pods", namespace, &name, |pod| pod["status"]["phase"] = json!("Running"));
        }
        world.sweep();
        world.work().await;
        world
    }

    fn mountpoint_pod(&self) -> String {
        pod::name("uid-of-w", "pv", VERSION, 0)
    }

    fn sweep(&mut self) {
        for group in self.cluster.cache().groups() {
            self.queue.add(group, self.now);
        }
    }

    /// Does all work that is due now. Writes of this reconciler come back as events.
    async fn work(&mut self) {
        while let Some(group) = self.queue.take(self.now) {
            let before = self.cluster.revision();
            let facts = self.cluster.cache().facts(&group, VERSION, self.cluster.now());
            match carry_out(&self.cluster.applier(), &Leadership::forever(), facts).await {
                Ok(again) => self.queue.done(group.clone(), again, self.now),
                Err(left) => {
                    self.queue.failed(group.clone(), left.rest.unwrap_or_default(), self.now);
                }
            }
            if self.cluster.revision() != before {
                self.queue.add(group, self.now);
            }
        }
    }

    fn is_marked(&self) -> bool {
        let is = |pod: &serde_json::Value| pod["metadata"]["annotations"][pod::NEEDS_UNMOUNT] == "true";
        self.cluster.mountpoint_pods().iter().all(is)
    }

    fn is_gone(&self) -> bool {
        self.cluster.mountpoint_pods().is_empty() && self.cluster.attachments().is_empty()
    }

    /// The driver unmounts, and the engine ends; the kubelet says so.
    fn driver_ends_marked(&mut self) {
        for pod in self.cluster.mountpoint_pods() {
            let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
            self.cluster.edit("pods", NAMESPACE, &name, |pod| pod["status"]["phase"] = json!("Succeeded"));
            self.sweep();
        }
    }

    /// Restarts the mounter, which got no device. No event reports that.
    fn mounter_begins_again(&self) {
        for pod in self.cluster.mountpoint_pods() {
            let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
            self.cluster.edit("pods", NAMESPACE, &name, |pod| {
                let before = pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0);
                pod["status"]["containerStatuses"] = json!([{
                    "name": pod::CONTAINER, "image": "i", "imageID": "", "ready": true, "restartCount": before + 1,
                    "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "lastState": {"terminated": {"exitCode": 1}},
                }]);
            });
        }
    }

    /// Lets time pass until nothing is left; when the pod was marked, and when all was gone.
    async fn until_gone(&mut self) -> (Duration, Duration) {
        let node_sweeps_every = csi::mounter::pod::Config::new("node").sweep_every;
        let gone_within = if self.driver { GONE_WITHIN } else { GONE_WITHOUT_DRIVER_WITHIN };
        let (start, mut marked) = (self.now, None);
        loop {
            self.now += Duration::from_secs(1);
            self.cluster.wait(1);
            let passed = self.now - start;
            assert!(
                passed <= gone_within,
                "left: {:#?}",
                (self.cluster.mountpoint_pods(), self.cluster.attachments())
            );
            if passed.as_secs().is_multiple_of(SWEEP_EVERY.as_secs()) {
                self.sweep();
            }
            self.work().await;
            if marked.is_none() && self.is_marked() {
                marked = Some(passed);
            }
            if self.driver && marked.is_some_and(|at| passed >= at + node_sweeps_every) {
                self.driver_ends_marked();
                self.work().await;
            }
            if !self.driver && passed.as_secs().is_multiple_of(MOUNTER_WAITS.as_secs()) {
                self.mounter_begins_again();
            }
            if self.is_gone() {
                return (marked.expect("a mark before the end"), passed);
            }
        }
    }
}

#[tokio::test]
async fn unused_pods_are_marked_in_two_minutes_and_gone_in_five_without_events() {
    type Orphan = fn(&World);
    let orphans: [(&str, Orphan); 6] = [
        ("the workload ended", |world| {
            world.cluster.edit("pods", "default", "w", |pod| pod["status"]["phase"] = json!("Succeeded"));
        }),
        ("the workload is gone", |world| world.cluster.remove("pods", "default", "w")),
        ("workload, claim and volume are gone", |world| {
            world.cluster.remove("pods", "default", "w");
            world.cluster.remove("persistentvolumeclaims", "default", "pv");
            world.cluster.remove("persistentvolumes", "", "pv");
        }),
        ("workload and attachment are gone", |world| {
            world.cluster.remove("pods", "default", "w");
            let name = world.cluster.attachments()[0]["metadata"]["name"].as_str().unwrap().to_owned();
            world.cluster.remove(ATTACHMENTS, "", &name);
        }),
        ("the workload is gone, and the Mountpoint Pod never began", |world| {
            world.cluster.remove("pods", "default", "w");
            let name = world.mountpoint_pod();
            world.cluster.edit("pods", NAMESPACE, &name, |pod| pod["status"]["phase"] = json!("Pending"));
        }),
        ("workload and Mountpoint Pod are gone", |world| {
            world.cluster.remove("pods", "default", "w");
            world.cluster.remove("pods", NAMESPACE, &world.mountpoint_pod());
        }),
    ];
    for (what, orphan) in orphans {
        let mut world = World::new().await;
        orphan(&world);
        let (marked, gone) = world.until_gone().await;
        println!("{what}: marked after {marked:?}, gone after {gone:?}");
        assert!(marked <= MARKED_WITHIN, "{what}: marked after {marked:?}");
    }
}

#[tokio::test]
async fn without_a_driver_an_unused_pod_is_gone_after_twelve_minutes() {
    let mut world = World::new().await;
    world.driver = false;
    world.cluster.remove("pods", "default", "w");
    let (marked, gone) = world.until_gone().await;
    println!("marked after {marked:?}, gone after {gone:?}");
    assert!(marked <= MARKED_WITHIN, "marked after {marked:?}");
}
