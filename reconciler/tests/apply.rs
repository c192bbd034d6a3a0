//! Effects against the API in memory, and the main loop on its watches.

mod fixtures;

use csi::contract::VERSION;
use csi::contract::pod;
use fixtures::{Cluster, NAMESPACE};
use reconciler::apply::{Applier, Error, Outcome};
use reconciler::facts::Group;
use reconciler::leader::{Elector, Leadership};
use reconciler::main_loop::{Again, MainLoop, carry_out};
use reconciler::plan::{Effect, plan};
use serde_json::{Value, json};
use testkit::until_async;

/// A cluster with one workload that waits for one volume.
fn cluster() -> Cluster {
    let cluster = Cluster::new();
    cluster.put("persistentvolumes", fixtures::volume("pv"));
    cluster.put("persistentvolumeclaims", fixtures::claim("pv"));
    cluster.put("pods", fixtures::workload("w", "node", "pv"));
    cluster
}

fn effects(cluster: &Cluster) -> Vec<Effect> {
    let group = Group { node: "node".into(), volume: "pv".into() };
    plan(&cluster.cache().facts(&group, VERSION, cluster.now())).effects
}

/// One turn of the wheel: facts, plan and effects.
async fn round(cluster: &Cluster) -> Again {
    let group = Group { node: "node".into(), volume: "pv".into() };
    let facts = cluster.cache().facts(&group, VERSION, cluster.now());
    carry_out(&cluster.applier(), &Leadership::forever(), facts).await
}

async fn all(applier: &Applier, effects: &[Effect]) -> Outcome {
    for effect in effects {
        let outcome = applier.apply(effect).await.unwrap();
        if outcome != Outcome::Done {
            return outcome;
        }
    }
    Outcome::Done
}

fn first_pod() -> String {
    pod::name("uid-of-w", "pv", VERSION, 0)
}

#[tokio::test]
async fn the_pod_comes_first_and_the_attachment_names_it() {
    let cluster = cluster();
    assert_eq!(all(&cluster.applier(), &effects(&cluster)).await, Outcome::Done);
    let calls = cluster.lock().calls.clone();
    let owners = ["GET nodes/node", "GET namespaces/mount-s3"];
    assert_eq!(calls, [owners[0], owners[1], "POST pods/", "POST mountpoints3podattachments/"]);
    let spec = &cluster.attachments()[0]["spec"];
    assert_eq!(spec["mountpointS3PodAttachments"][first_pod()][0]["workloadPodUID"], "uid-of-w");
    assert_eq!(spec["mountOptions"], "allow-delete");
    assert_eq!(effects(&cluster), []);
}

#[tokio::test]
async fn a_pod_belongs_to_its_namespace_and_to_the_current_node_object() {
    let cluster = cluster();
    let object =
        |kind, name, uid| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "uid": uid}});
    cluster.put("nodes", object("Node", "node", "uid-of-node"));
    cluster.put("namespaces", object("Namespace", NAMESPACE, "uid-of-namespace"));
    all(&cluster.applier(), &effects(&cluster)).await;
    let owners = &cluster.mountpoint_pods()[0]["metadata"]["ownerReferences"];
    let is = |at: usize| (&owners[at]["kind"], &owners[at]["uid"], &owners[at]["controller"]);
    assert_eq!(is(0), (&json!("Namespace"), &json!("uid-of-namespace"), &json!(true)), "{owners}");
    assert_eq!(is(1), (&json!("Node"), &json!("uid-of-node"), &Value::Null), "{owners}");
}

#[tokio::test]
async fn a_pod_of_the_same_name_and_purpose_is_adopted_and_else_left() {
    let cluster = cluster();
    let plan = effects(&cluster);
    let applier = cluster.applier();
    assert_eq!(applier.apply(&plan[0]).await.unwrap(), Outcome::Done);
    assert_eq!(applier.apply(&plan[0]).await.unwrap(), Outcome::Done, "made by the attempt that we retry");
    cluster.edit("pods", NAMESPACE, &first_pod(), |pod| {
        pod["metadata"]["annotations"][pod::WORKLOAD_UID] = json!("somebody");
    });
    assert!(matches!(applier.apply(&plan[0]).await.unwrap(), Outcome::Stale(_)));
    // Fresh facts show the stranger, and the next name is taken.
    assert_eq!(all(&applier, &effects(&cluster)).await, Outcome::Done);
    let second = pod::name("uid-of-w", "pv", VERSION, 1);
    let attachment = &cluster.attachments()[0];
    assert!(attachment["spec"]["mountpointS3PodAttachments"][&second].is_array(), "{attachment}");
}

#[tokio::test]
async fn a_pod_of_a_gone_volume_of_the_same_name_is_not_adopted() {
    let cluster = cluster();
    let applier = cluster.applier();
    assert_eq!(applier.apply(&effects(&cluster)[0]).await.unwrap(), Outcome::Done);
    cluster.remove("persistentvolumes", "", "pv");
    cluster.put("persistentvolumes", fixtures::volume("pv"));
    // The cache has not seen the pod yet.
    let group = Group { node: "node".into(), volume: "pv".into() };
    let mut facts = cluster.cache().facts(&group, VERSION, cluster.now());
    facts.pods.clear();
    assert!(matches!(applier.apply(&plan(&facts).effects[0]).await.unwrap(), Outcome::Stale(_)));
    assert_eq!(all(&applier, &effects(&cluster)).await, Outcome::Done);
    let second = pod::name("uid-of-w", "pv", VERSION, 1);
    let attachment = &cluster.attachments()[0];
    assert!(attachment["spec"]["mountpointS3PodAttachments"][&second].is_array(), "{attachment}");
}

#[tokio::test]
async fn a_write_to_what_has_changed_since_is_stale_and_changes_nothing() {
    let cluster = cluster();
    let applier = cluster.applier();
    all(&applier, &effects(&cluster)).await;
    cluster.put("pods", fixtures::workload("w2", "node", "pv"));
    let join = effects(&cluster);
    let name = cluster.attachments()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    cluster.edit("mountpoints3podattachments", "", &name, |it| it["metadata"]["labels"]["x"] = json!("y"));
    let before = cluster.attachments();
    assert!(matches!(all(&applier, &join).await, Outcome::Stale(_)));
    assert_eq!(cluster.attachments(), before);
    assert_eq!(all(&applier, &effects(&cluster)).await, Outcome::Done);
    let entries = cluster.attachments()[0]["spec"]["mountpointS3PodAttachments"][first_pod()].clone();
    assert_eq!(entries.as_array().unwrap().len(), 2);
    assert_eq!(cluster.attachments()[0]["metadata"]["labels"]["x"], "y", "what others wrote stays");
}

#[tokio::test]
async fn a_workload_that_a_cache_missed_is_not_detached() {
    let cluster = cluster();
    let applier = cluster.applier();
    all(&applier, &effects(&cluster)).await;
    let group = Group { node: "node".into(), volume: "pv".into() };
    let blind = cluster.cache_at([0, u64::MAX, u64::MAX, u64::MAX]);
    let facts = blind.facts(&group, VERSION, cluster.now());
    assert!(matches!(all(&applier, &plan(&facts).effects).await, Outcome::Stale(_)));
    assert_eq!(effects(&cluster), []);
}

#[tokio::test]
async fn from_the_last_workloads_end_to_an_empty_cluster() {
    let cluster = cluster();
    let applier = cluster.applier();
    all(&applier, &effects(&cluster)).await;
    cluster.remove("persistentvolumes", "", "pv");
    cluster.remove("persistentvolumeclaims", "default", "pv");
    cluster.edit("pods", NAMESPACE, &first_pod(), |pod| pod["status"]["phase"] = json!("Running"));
    cluster.remove("pods", "default", "w");
    while !cluster.attachments().is_empty() {
        assert_eq!(all(&applier, &effects(&cluster)).await, Outcome::Done);
    }
    let pod = cluster.get("pods", NAMESPACE, &first_pod()).unwrap();
    assert_eq!(pod["metadata"]["annotations"][pod::NEEDS_UNMOUNT], "true");
    assert_eq!(effects(&cluster), [], "the node's turn");
    cluster.edit("pods", NAMESPACE, &first_pod(), |pod| pod["status"]["phase"] = json!("Succeeded"));
    assert_eq!(all(&applier, &effects(&cluster)).await, Outcome::Done);
    assert_eq!(cluster.all("pods"), Vec::<Value>::new());
}

#[tokio::test]
async fn a_pod_that_the_api_server_refuses_is_an_event_on_the_workload_once() {
    let cluster = cluster();
    cluster.lock().refuse_pods = Some((403, "exceeded quota: pods=10".into()));
    let applier = cluster.applier();
    for _ in 0..2 {
        let error = applier.apply(&effects(&cluster)[0]).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        assert!(error.to_string().contains("exceeded quota") && error.to_string().contains("default/w"));
    }
    let events = cluster.all("events");
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["regarding"]["uid"], "uid-of-w");
    assert_eq!(events[0]["reason"], "MountpointPodRefused");
    assert!(events[0]["note"].as_str().unwrap().contains("exceeded quota"));
}

/// Goal: a used-up quota delays no detachment, and leaves no pod without workloads.
#[tokio::test]
async fn a_refused_pod_keeps_nobody_from_being_attached_and_detached() {
    let cluster = cluster();
    let applier = cluster.applier();
    all(&applier, &effects(&cluster)).await;
    cluster.edit("pods", "default", "w", |pod| pod["status"]["phase"] = json!("Succeeded"));
    let mut other = fixtures::workload("w2", "node", "pv");
    other["spec"]["securityContext"] = json!({"fsGroup": 1000});
    cluster.put("pods", other);
    for refusal in [(403, "exceeded quota: pods=1"), (500, "failed calling webhook")] {
        cluster.lock().refuse_pods = Some((refusal.0, refusal.1.into()));
        let left = round(&cluster).await.unwrap_err();
        assert!(left.why.contains(refusal.1), "{left:?}");
        round(&cluster).await.unwrap_err();
    }
    assert_eq!(cluster.attachments(), Vec::<Value>::new(), "detached, and its attachment deleted");
    let marked = cluster.get("pods", NAMESPACE, &first_pod());
    assert!(marked.is_none_or(|pod| pod["metadata"]["annotations"][pod::NEEDS_UNMOUNT] == "true"));
    // Once there is room, the workload that waited is served.
    cluster.lock().refuse_pods = None;
    round(&cluster).await.unwrap();
    let second = pod::name("uid-of-w2", "pv", VERSION, 0);
    assert!(cluster.attachments()[0]["spec"]["mountpointS3PodAttachments"][second].is_array());
}

/// Goal: a node that rejects every Mountpoint Pod gets six in ten minutes, and the workload one Event that counts them.
#[tokio::test]
async fn a_node_that_rejects_every_pod_is_asked_six_times_in_ten_minutes() {
    let cluster = cluster();
    let group = Group { node: "node".into(), volume: "pv".into() };
    let begin = cluster.now();
    let (mut made, applier) = (0, cluster.applier());
    while cluster.now().duration_since(begin).as_secs() < 600 {
        // The attachment says what it goes by.
        let facts = cluster.cache().facts(&group, VERSION, cluster.now());
        carry_out(&applier, &Leadership::forever(), facts).await.unwrap();
        for pod in cluster.mountpoint_pods() {
            if pod["status"]["phase"] == "Pending" {
                made += 1;
                cluster.edit("pods", NAMESPACE, pod["metadata"]["name"].as_str().unwrap(), |pod| {
                    pod["status"] =
                        json!({"phase": "Failed", "reason": "Evicted", "message": "DiskPressure"});
                });
            }
        }
        cluster.wait(2);
    }
    assert_eq!(made, 7, "the first, and six in its place");
    let events = cluster.all("events");
    assert_eq!(events.len(), 1, "{events:#?}");
    assert_eq!(
        (&events[0]["reason"], &events[0]["series"]["count"]),
        (&json!("MountpointPodNotServing"), &json!(6))
    );
    assert!(cluster.mountpoint_pods().len() <= 2, "the failed ones are deleted");
}

#[tokio::test]
async fn a_gone_object_counts_as_deleted_and_a_replaced_one_is_not_touched() {
    let cluster = cluster();
    let applier = cluster.applier();
    all(&applier, &effects(&cluster)).await;
    cluster.edit("pods", "default", "w", |pod| pod["status"]["phase"] = json!("Succeeded"));
    all(&applier, &effects(&cluster)).await;
    let last = effects(&cluster);
    let attachment = cluster.attachments()[0].clone();
    let name = attachment["metadata"]["name"].as_str().unwrap();
    cluster.edit("mountpoints3podattachments", "", name, |it| it["metadata"]["uid"] = json!("another"));
    let delete = last.last().unwrap();
    assert!(matches!(delete, Effect::DeleteAttachment(_)));
    assert!(matches!(applier.apply(delete).await.unwrap(), Outcome::Stale(_)));
    cluster.remove("mountpoints3podattachments", "", name);
    assert_eq!(applier.apply(delete).await.unwrap(), Outcome::Done);
}

#[tokio::test]
async fn only_claims_that_are_bound_to_volumes_of_ours_make_groups() {
    let cluster = cluster();
    let groups = || cluster.cache().groups().into_iter().map(|group| group.volume).collect::<Vec<_>>();
    assert_eq!(groups(), ["pv"]);
    let edits: [fn(&mut Value); 4] = [
        |volume| volume["spec"]["csi"]["driver"] = json!("other"),
        |volume| volume["spec"]["claimRef"]["name"] = json!("other"),
        |volume| volume["spec"]["claimRef"] = Value::Null,
        |volume| volume["spec"]["volumeMode"] = json!("Block"),
    ];
    for edit in edits {
        cluster.edit("persistentvolumes", "", "pv", edit);
        assert_eq!(groups(), Vec::<String>::new());
        cluster.put("persistentvolumes", fixtures::volume("pv"));
    }
    cluster.edit("pods", "default", "w", |pod| pod["spec"]["nodeName"] = Value::Null);
    assert_eq!(groups(), Vec::<String>::new(), "not scheduled yet");
}

#[tokio::test]
async fn a_claim_that_kubernetes_made_for_the_pod_counts_if_it_belongs_to_it() {
    let cluster = cluster();
    cluster.edit("pods", "default", "w", |pod| {
        pod["spec"]["volumes"] =
            json!([{"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]);
    });
    let mut claim = fixtures::claim("pv");
    claim["metadata"]["name"] = json!("w-data");
    cluster.put("persistentvolumeclaims", claim);
    cluster
        .edit("persistentvolumes", "", "pv", |volume| volume["spec"]["claimRef"]["name"] = json!("w-data"));
    assert!(cluster.cache().groups().is_empty(), "somebody else's claim of that name");
    cluster.edit("persistentvolumeclaims", "default", "w-data", |claim| {
        claim["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "w", "uid": "uid-of-w", "controller": true}]);
    });
    assert_eq!(cluster.cache().groups().len(), 1);
}

#[tokio::test]
async fn the_wheel_turns_on_what_it_sees_from_the_first_pod_to_the_last() {
    let cluster = cluster();
    let main_loop = MainLoop::new(&cluster.client(), NAMESPACE, cluster.applier(), Leadership::forever());
    let mut health = main_loop.health();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(main_loop.run(async {
        let _ = stopped.await;
    }));
    health.wait_for(|health| health.ready).await.unwrap();
    until_async("there is an attachment", || cluster.attachments().len() == 1).await;
    // A second workload shares the pod; a late claim is noticed.
    cluster.put("pods", fixtures::workload("w2", "node", "pv"));
    let is_shared =
        || cluster.attachments()[0]["spec"]["mountpointS3PodAttachments"][first_pod()][1].is_object();
    until_async("the second workload shares the pod", is_shared).await;
    cluster.put("pods", fixtures::workload("w3", "node", "late"));
    cluster.put("persistentvolumes", fixtures::volume("late"));
    cluster.put("persistentvolumeclaims", fixtures::claim("late"));
    until_async("there are two attachments", || cluster.attachments().len() == 2).await;
    for name in ["w", "w2", "w3"] {
        cluster.remove("pods", "default", name);
    }
    until_async("no attachment is left", || cluster.attachments().is_empty()).await;
    // Pods that never began go at once.
    until_async("no pod is left", || cluster.all("pods").is_empty()).await;
    drop(stop);
    running.await.unwrap();
}

#[tokio::test]
async fn one_of_two_leads_and_the_other_follows_when_it_steps_down() {
    let cluster = Cluster::new();
    let elect = |name: &str| Elector::new(cluster.client(), "kube-system", name);
    let (mut first, mut second) = (elect("first"), elect("second"));
    let (of_first, of_second) = (first.leadership(), second.leadership());
    assert!(!of_first.holds(), "nobody leads before the election");
    tokio::select! {
        () = first.run() => {}
        () = until_async("the first one leads", || of_first.holds()) => {}
    }
    // The second one asks at least once and has to wait.
    let asked = cluster.lock().calls.len();
    tokio::select! {
        () = second.run() => {}
        () = until_async("the second one has asked", || cluster.lock().calls.len() > asked) => {}
    }
    assert!(of_first.holds() && !of_second.holds());
    first.step_down().await;
    assert!(!of_first.holds());
    tokio::select! {
        () = second.run() => {}
        () = until_async("the second one leads", || of_second.holds()) => {}
    }
    assert_eq!(cluster.all("leases")[0]["spec"]["holderIdentity"], "second");
}

#[tokio::test]
async fn who_does_not_lead_changes_nothing() {
    let cluster = cluster();
    let elector = Elector::new(cluster.client(), "kube-system", "nobody");
    let main_loop = MainLoop::new(&cluster.client(), NAMESPACE, cluster.applier(), elector.leadership());
    let mut health = main_loop.health();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(main_loop.run(async {
        let _ = stopped.await;
    }));
    health.wait_for(|health| health.ready).await.unwrap();
    // The wheel has turned with full caches at least twice more.
    for _ in 0..2 {
        cluster.edit("pods", "default", "w", |pod| pod["metadata"]["labels"] = json!({"turn": "x"}));
        health.changed().await.unwrap();
    }
    drop(stop);
    running.await.unwrap();
    assert!(cluster.attachments().is_empty() && cluster.mountpoint_pods().is_empty());
}

#[tokio::test]
async fn no_workload_stays_on_a_pod_that_another_reconciler_marks() {
    // One reconciler has seen the last workload go; the other sees a new workload come. Each order of their effects is tried.
    for order in 0_u32..1 << 6 {
        let cluster = cluster();
        let applier = cluster.applier();
        all(&applier, &effects(&cluster)).await;
        cluster.edit("pods", NAMESPACE, &first_pod(), |pod| pod["status"]["phase"] = json!("Running"));
        cluster.edit("pods", "default", "w", |pod| pod["status"]["phase"] = json!("Succeeded"));
        all(&applier, &effects(&cluster)).await;
        let mut leaving = effects(&cluster);
        assert!(matches!(leaving[0], Effect::MarkNeedsUnmount { .. }), "{leaving:?}");
        cluster.put("pods", fixtures::workload("w2", "node", "pv"));
        let mut coming = effects(&cluster);
        for turn in 0..6 {
            let plan = if order >> turn & 1 == 0 { &mut leaving } else { &mut coming };
            if !plan.is_empty() && applier.apply(&plan.remove(0)).await.unwrap() != Outcome::Done {
                plan.clear();
            }
            for attachment in cluster.attachments() {
                for (name, workloads) in attachment["spec"]["mountpointS3PodAttachments"].as_object().unwrap()
                {
                    let pod = cluster.get("pods", NAMESPACE, name).unwrap();
                    let is_marked = pod["metadata"]["annotations"][pod::NEEDS_UNMOUNT] == "true";
                    assert!(
                        !is_marked || workloads.as_array().unwrap().is_empty(),
                        "order {order:b}: {attachment}"
                    );
                }
            }
        }
    }
}
