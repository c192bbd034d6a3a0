//! The main loop against an API server in foul weather: watches that expire, end and break off, calls that are refused or whose answer
//! is lost, deletes that take their time. Goal: the cluster comes to the same rest as in fair weather.
//!
//! Nothing here looks at a clock: each step is waited for.

mod fixtures;

use std::time::Duration;

use csi::contract::VERSION;
use csi::contract::pod;
use fixtures::{Cluster, Fault, NAMESPACE, On, Trouble};
use futures_util::future::join_all;
use k8s_openapi::jiff::Timestamp;
use reconciler::leader::Leadership;
use reconciler::main_loop::{Health, MainLoop, SWEEP_EVERY, carry_out};
use serde_json::{Value, json};
use testkit::until_async;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const ATTACHMENTS: &str = "mountpoints3podattachments";
const WATCHED: [&str; 4] = ["pods", "persistentvolumeclaims", "persistentvolumes", ATTACHMENTS];

/// A cluster with a node and a running reconciler.
struct World {
    cluster: Cluster,
    what: String,
    stop: tokio::sync::oneshot::Sender<()>,
    wheel: JoinHandle<()>,
    node: JoinHandle<()>,
    health: watch::Receiver<Health>,
}

impl World {
    fn new(what: String, change: impl FnOnce(&Cluster)) -> Self {
        Self::led_by(Leadership::forever(), what, change)
    }

    fn led_by(leadership: Leadership, what: String, change: impl FnOnce(&Cluster)) -> Self {
        let (cluster, _) = Cluster::with(&[]);
        cluster.lock().now = Timestamp::now();
        change(&cluster);
        let main_loop = MainLoop::new(&cluster.client(), NAMESPACE, cluster.applier(), leadership);
        let health = main_loop.health();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let wheel = tokio::spawn(main_loop.run(async {
            let _ = stopped.await;
        }));
        let node = tokio::spawn(node(cluster.clone()));
        Self { cluster, what, stop, wheel, node, health }
    }

    /// Waits until a condition holds. If that takes long, prints the attachments now and then.
    async fn until(&self, what: &str, so: impl Fn(&Cluster) -> bool) {
        let (what, mut rounds) = (format!("{}: {what}", self.what), 0);
        until_async(&what, || {
            rounds += 1;
            if rounds % 2_000 == 0 {
                eprintln!("waits until {what}; {:#?}", self.cluster.attachments());
            }
            so(&self.cluster)
        })
        .await;
    }

    /// Lets a workload come and be served, and another one share its Mountpoint Pod; then both go, and nothing is left.
    async fn a_life(&self) {
        self.cluster.put("pods", fixtures::workload("w", "node", "pv"));
        self.until("the first workload is served", |cluster| serves(cluster, &["uid-of-w"])).await;
        self.cluster.put("pods", fixtures::workload("w2", "node", "pv"));
        self.until("both are served", |cluster| serves(cluster, &["uid-of-w", "uid-of-w2"])).await;
        for name in ["w", "w2"] {
            self.cluster.edit("pods", "default", name, |pod| pod["status"]["phase"] = json!("Succeeded"));
        }
        self.until("nothing is left", |cluster| {
            cluster.attachments().is_empty() && cluster.mountpoint_pods().is_empty()
        })
        .await;
    }

    async fn end(self) {
        drop(self.stop);
        self.wheel.await.unwrap();
        self.node.abort();
    }
}

/// Whether one attachment names one living Mountpoint Pod, for these workloads and no others, and no other pod exists.
fn serves(cluster: &Cluster, uids: &[&str]) -> bool {
    let (attachments, pods) = (cluster.attachments(), cluster.mountpoint_pods());
    let ([attachment], [pod]) = (&attachments[..], &pods[..]) else { return false };
    let entries = attachment["spec"]["mountpointS3PodAttachments"].as_object().unwrap();
    let name = pod["metadata"]["name"].as_str().unwrap();
    let mut named: Vec<_> = entries
        .get(name)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|it| &it["workloadPodUID"])
        .collect();
    named.sort_by_key(|uid| uid.to_string());
    entries.len() == 1 && named == uids && pod["status"]["phase"] == "Running"
}

/// The kubelet: starts Mountpoint Pods, and ends those that were asked to unmount.
async fn node(cluster: Cluster) {
    loop {
        for pod in cluster.mountpoint_pods() {
            let unmounts = pod["metadata"]["annotations"][pod::NEEDS_UNMOUNT] == "true";
            let phase = match pod["status"]["phase"].as_str() {
                Some("Pending") if !unmounts => "Running",
                Some("Running") if unmounts => "Succeeded",
                _ => continue,
            };
            let name = pod["metadata"]["name"].as_str().unwrap();
            if cluster.get("pods", NAMESPACE, name).is_some() {
                cluster.edit("pods", NAMESPACE, name, |pod| pod["status"]["phase"] = json!(phase));
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs a life in each of these, at once.
async fn lives(faults: Vec<Fault>) {
    let worlds = faults.into_iter().map(|fault| async move {
        let times = fault.times;
        let world = World::new(format!("{fault:?}"), |cluster| cluster.lock().faults.push(fault));
        world.a_life().await;
        assert!(world.cluster.lock().faults_left() < times, "{}: it never struck", world.what);
        world.end().await;
    });
    join_all(worlds).await;
}

#[tokio::test]
async fn watches_and_lists_that_fail_end_or_break_off_hide_nothing_for_good() {
    let troubles = [
        (On::Watch, Trouble::Refused { code: 410, retry_after_s: 0 }),
        (On::Watch, Trouble::Refused { code: 429, retry_after_s: 1 }),
        (On::Watch, Trouble::ByProxy(502)),
        (On::Watch, Trouble::Ends),
        (On::Watch, Trouble::BreaksOff),
        (On::List, Trouble::Refused { code: 500, retry_after_s: 0 }),
        (On::List, Trouble::Refused { code: 429, retry_after_s: 1 }),
        (On::List, Trouble::ByProxy(503)),
    ];
    let all = WATCHED
        .into_iter()
        .flat_map(|resource| troubles.map(|(on, trouble)| Fault { on, resource, times: 1, trouble }));
    lives(all.collect()).await;
}

#[tokio::test]
async fn calls_that_are_refused_for_now_or_whose_answer_is_lost_are_made_good() {
    let troubles = [
        Trouble::Refused { code: 429, retry_after_s: 1 },
        Trouble::Refused { code: 500, retry_after_s: 0 },
        Trouble::Refused { code: 503, retry_after_s: 1 },
        Trouble::Refused { code: 409, retry_after_s: 0 },
        Trouble::ByProxy(429),
        Trouble::ByProxy(502),
        Trouble::AnswerLost,
    ];
    let calls = [
        (On::Create, "pods"),
        (On::Create, ATTACHMENTS),
        (On::Patch, ATTACHMENTS),
        (On::Patch, "pods"),
        (On::Delete, ATTACHMENTS),
        (On::Delete, "pods"),
    ];
    let all = calls
        .into_iter()
        .flat_map(|(on, resource)| troubles.map(|trouble| Fault { on, resource, times: 2, trouble }));
    lives(all.collect()).await;
}

/// Goal: after all events between were forgotten, a reconciler still serves the new workload, and not the one that went.
#[tokio::test]
async fn what_happened_while_the_watches_expired_is_seen_in_either_form_of_410() {
    let worlds = [false, true].map(|by_status| async move {
        let what = format!("410 as {}", if by_status { "a status" } else { "an event" });
        let world = World::new(what, |cluster| cluster.lock().expires_by_status = by_status);
        world.cluster.put("pods", fixtures::workload("w", "node", "pv"));
        world.until("the first workload is served", |cluster| serves(cluster, &["uid-of-w"])).await;
        for resource in WATCHED {
            let trouble = Trouble::ByProxy(502);
            world.cluster.lock().faults.push(Fault { on: On::Watch, resource, times: 1, trouble });
        }
        // Each watch ends with its present state, and the next watch is refused; then no version is left to go on from.
        world.cluster.edit("pods", "default", "w", |pod| pod["metadata"]["labels"] = json!({"a": "b"}));
        world
            .until("the watch of the pods is away", |cluster| {
                cluster.lock().faults.iter().any(|fault| fault.resource == "pods" && fault.times == 0)
            })
            .await;
        world.cluster.remove("pods", "default", "w");
        world.cluster.put("pods", fixtures::workload("w2", "node", "pv"));
        world.cluster.compact();
        world
            .until("the second workload is served", |cluster| {
                cluster.attachments().iter().any(|it| it.to_string().contains("uid-of-w2"))
                    && !cluster.attachments().iter().any(|it| it.to_string().contains("uid-of-w\""))
            })
            .await;
        world.end().await;
    });
    join_all(worlds).await;
}

#[tokio::test]
async fn deletes_that_take_their_time_lose_no_workload_that_comes_meanwhile() {
    let world = World::new("deletes linger".into(), |cluster| cluster.lock().deletes_linger = true);
    let cluster = &world.cluster;
    cluster.put("pods", fixtures::workload("w", "node", "pv"));
    world.until("the first workload is served", |cluster| serves(cluster, &["uid-of-w"])).await;
    cluster.edit("pods", "default", "w", |pod| pod["status"]["phase"] = json!("Succeeded"));
    let lingers = |object: &Value| object["metadata"]["deletionTimestamp"].is_string();
    world.until("the attachment is being deleted", |cluster| cluster.attachments().iter().all(lingers)).await;
    let calls = cluster.lock().calls.len();
    cluster.put("pods", fixtures::workload("w2", "node", "pv"));
    world.until("something is done for the second one", |cluster| cluster.lock().calls.len() > calls).await;
    // Their grace periods and finalizers end one after the other.
    world
        .until("the second workload is served", |cluster| {
            cluster.finish_deletes();
            serves(cluster, &["uid-of-w2"])
        })
        .await;
    cluster.edit("pods", "default", "w2", |pod| pod["status"]["phase"] = json!("Succeeded"));
    world
        .until("nothing is left", |cluster| {
            cluster.finish_deletes();
            cluster.attachments().is_empty() && cluster.mountpoint_pods().is_empty()
        })
        .await;
    world.end().await;
}

/// Goal: a server that has too many requests gets no more of them.
#[tokio::test]
async fn a_server_that_says_when_to_come_back_is_left_alone_until_then() {
    let (cluster, group) = Cluster::with(&["w"]);
    let seconds = |n| Some(Duration::from_secs(n));
    for (resource, trouble, rest) in [
        ("pods", Trouble::Refused { code: 429, retry_after_s: 7 }, seconds(7)),
        ("pods", Trouble::ByProxy(429), seconds(1)),
        ("pods", Trouble::Refused { code: 500, retry_after_s: 0 }, None),
        (ATTACHMENTS, Trouble::Refused { code: 503, retry_after_s: 3 }, seconds(3)),
    ] {
        cluster.lock().faults = vec![Fault { on: On::Create, resource, times: 1, trouble }];
        let facts = cluster.cache().facts(&group, VERSION, cluster.now());
        let left = carry_out(&cluster.applier(), &Leadership::forever(), facts).await.unwrap_err();
        assert_eq!(left.rest, rest, "{left:?}");
    }
}

/// Goal: an API server that was away delays no workload until the next sweep.
#[tokio::test]
async fn a_workload_that_came_while_the_lease_had_run_out_is_served_at_once() {
    let far = Some(Instant::now() + 10 * SWEEP_EVERY);
    let (until, told) = watch::channel(far);
    let (world, begun) =
        (World::led_by(Leadership::until(told), "a Lease".to_owned(), |_| {}), Instant::now());
    // A renewal, after which nothing is missed: the cluster has no group.
    world.until("the caches are filled", |_| world.health.borrow().ready).await;
    until.send_replace(far);
    world.until("nothing is missed", |_| !world.health.borrow().missed).await;
    // An expiry notifies nobody.
    until.send_if_modified(|until| {
        *until = Some(Instant::now());
        false
    });
    world.cluster.put("pods", fixtures::workload("w", "node", "pv"));
    world.until("its group waits", |_| world.health.borrow().missed).await;
    assert!(world.cluster.attachments().is_empty(), "nobody leads");
    until.send_replace(far);
    world.until("it is served", |cluster| serves(cluster, &["uid-of-w"])).await;
    assert!(begun.elapsed() < SWEEP_EVERY, "a sweep found it");
    world.end().await;
}

/// Goal: a plan that was cut short is made again.
#[tokio::test]
async fn a_plan_whose_lease_runs_out_meanwhile_is_made_again() {
    let (cluster, group) = Cluster::with(&["w"]);
    let facts = cluster.cache().facts(&group, VERSION, cluster.now());
    let expired = Leadership::until(watch::channel(Some(Instant::now())).1);
    let left = carry_out(&cluster.applier(), &expired, facts).await.unwrap_err();
    assert!(left.conflict && left.why.contains("Lease"), "{left:?}");
    assert!(cluster.mountpoint_pods().is_empty());
}
