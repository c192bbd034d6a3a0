//! One test per row of the table: facts, and the resulting effects.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::*;
use crate::facts::Group;
use crate::pod_spec::Settings;

mod attach_again;
mod ends;
mod made_again;
mod marked;

const RELEASE: &str = "9.9.9";
const VOLUME_UID: &str = "uid-v";

/// Workload `w` on node `n`, volume `v`; its own Mountpoint Pod is `first()`.
fn facts() -> Facts {
    Facts {
        now: facts_now(),
        group: Group { node: "n".into(), volume: "v".into() },
        release: RELEASE.into(),
        workloads: BTreeMap::from([("w".to_owned(), workload("w", Phase::Pending))]),
        attachments: Vec::new(),
        pods: BTreeMap::new(),
        twins: BTreeSet::new(),
        refused: BTreeSet::new(),
    }
}

fn key(options: &str, fs_group: &str) -> ShareKey {
    ShareKey {
        node: "n".into(),
        volume: "v".into(),
        handle: "h".into(),
        mount_options: options.into(),
        fs_group: fs_group.into(),
        identity: None,
    }
}

fn workload(uid: &str, phase: Phase) -> Workload {
    Workload {
        at: WorkloadRef { namespace: "default".into(), name: format!("pod-{uid}"), uid: uid.into() },
        phase,
        deleting: false,
        wants: Some(Wants {
            key: key("o", ""),
            volume_uid: Some(VOLUME_UID.into()),
            settings: Ok(Settings::default()),
        }),
    }
}

/// A Mountpoint Pod that serves; an attachment names it with a workload.
fn pod(of: &str) -> MountpointPod {
    MountpointPod {
        uid: format!("uid-{of}"),
        resource_version: "7".into(),
        phase: Phase::Running,
        began: true,
        runs: true,
        restarts: 0,
        gave_up: false,
        has_stage: false,
        restarts_when_marked: None,
        deleting: false,
        ends_at: None,
        ours: true,
        release: Some(RELEASE.into()),
        needs_unmount: false,
        no_new_workload: false,
        workload_uid: Some(of.into()),
        volume: Some("v".into()),
        volume_uid: Some(VOLUME_UID.into()),
        created: Timestamp::UNIX_EPOCH,
        spec: None,
        outdated: false,
        named: true,
        used: true,
        trouble: None,
    }
}

fn attachment(name: &str, entries: &[(&str, &[&str])]) -> MountpointS3PodAttachment {
    let mut attachment = key("o", "").attachment("x", attached("x"));
    attachment.metadata.name = Some(name.into());
    attachment.metadata.uid = Some(format!("uid-{name}"));
    attachment.metadata.resource_version = Some("3".into());
    attachment.spec.mountpoint_pods = entries
        .iter()
        .map(|(pod, uids)| ((*pod).to_owned(), uids.iter().map(|uid| attached(uid)).collect()))
        .collect();
    attachment
}

fn attached(uid: &str) -> WorkloadAttachment {
    WorkloadAttachment { workload_pod_uid: uid.into(), attachment_time: Time(facts_now()) }
}

fn facts_now() -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1)
}

/// `w` is served by `mp`.
fn served() -> Facts {
    Facts {
        attachments: vec![attachment("a", &[("mp", &["w"])])],
        pods: BTreeMap::from([("mp".to_owned(), pod("w"))]),
        ..facts()
    }
}

fn name(uid: &str, attempt: u32) -> String {
    pod::name(uid, "v", RELEASE, attempt)
}

fn version(name: &str, uid: &str, resource_version: &str) -> Version {
    Version { name: name.into(), uid: uid.into(), resource_version: resource_version.into() }
}

/// A mark of a pod whose container has never restarted.
fn mark(at: Version) -> Effect {
    Effect::MarkNeedsUnmount { at, restarts: 0 }
}

fn create(uid: &str, attempt: u32) -> Effect {
    let request = PodRequest {
        name: name(uid, attempt),
        node: "n".into(),
        volume: "v".into(),
        volume_uid: Some(VOLUME_UID.into()),
        handle: "h".into(),
        workload_uid: uid.into(),
        settings: Settings::default(),
    };
    Effect::CreatePod { request: Box::new(request), workload: workload(uid, Phase::Pending).at }
}

fn update(entries: &[(&str, Option<&[&str]>)], attempts: Option<u32>) -> Effect {
    let entries = entries
        .iter()
        .map(|(pod, now)| ((*pod).to_owned(), now.map(|now| now.iter().map(|uid| attached(uid)).collect())))
        .collect();
    let annotations = attempts.map(used_up).unwrap_or_default();
    Effect::UpdateAttachment { at: version("a", "uid-a", "3"), entries, annotations }
}

/// The effects of a plan without its notices.
fn effects(facts: &Facts) -> Vec<Effect> {
    plan(facts).effects.into_iter().filter(|effect| !matches!(effect, Effect::Tell(_))).collect()
}

fn notices(facts: &Facts) -> Vec<Notice> {
    let said = plan(facts).effects.into_iter();
    said.filter_map(|effect| if let Effect::Tell(notice) = effect { Some(notice) } else { None }).collect()
}

#[test]
fn a_first_workload_gets_a_pod_and_then_an_attachment() {
    let new = key("o", "").attachment(&name("w", 0), attached("w"));
    assert_eq!(effects(&facts()), [create("w", 0), Effect::CreateAttachment(Box::new(new))]);
}

#[test]
fn a_workload_that_is_attached_stays_so_whatever_the_volume_says_now() {
    let mut facts = served();
    facts.workloads.get_mut("w").unwrap().wants.as_mut().unwrap().key = key("edited", "");
    assert_eq!(effects(&facts), []);
    facts.workloads.get_mut("w").unwrap().wants = None;
    assert_eq!(effects(&facts), []);
}

#[test]
fn a_second_workload_joins_the_first_ones_pod_under_any_name() {
    let mut facts = served();
    facts.workloads.insert("w2".into(), workload("w2", Phase::Pending));
    assert_eq!(effects(&facts), [update(&[("mp", Some(&["w", "w2"]))], None)]);
}

#[test]
fn an_unseen_pod_is_asked_for_before_its_workload_gets_another() {
    let mut facts = served();
    facts.pods.clear();
    // The workload that was attached to it has lost its volume, so nothing else asks.
    facts.workloads.get_mut("w").unwrap().wants = None;
    facts.workloads.insert("w2".into(), workload("w2", Phase::Pending));
    let effects = effects(&facts);
    assert!(effects.contains(&Effect::ConfirmPodEnded { pod: "mp".into() }), "{effects:?}");
    assert!(effects.contains(&create("w2", 0)), "{effects:?}");
    assert!(!effects.contains(&Effect::ConfirmPodEnded { pod: name("w2", 0) }), "{effects:?}");
}

#[test]
fn other_options_or_another_group_make_another_pod() {
    for other in [key("p", ""), key("o", "1000")] {
        let mut facts = served();
        let mut second = workload("w2", Phase::Pending);
        second.wants.as_mut().unwrap().key = other.clone();
        facts.workloads.insert("w2".into(), second);
        let new = other.attachment(&name("w2", 0), attached("w2"));
        assert_eq!(effects(&facts), [create("w2", 0), Effect::CreateAttachment(Box::new(new))]);
    }
}

#[test]
fn a_pod_that_is_marked_or_of_another_release_or_leaving_takes_nobody_new() {
    let edits: [fn(&mut MountpointPod); 4] = [
        |pod| pod.needs_unmount = true,
        |pod| pod.no_new_workload = true,
        |pod| pod.release = Some("2.2.0".into()),
        |pod| pod.deleting = true,
    ];
    for edit in edits {
        let mut facts = served();
        facts.workloads.get_mut("w").unwrap().phase = Phase::Running;
        edit(facts.pods.get_mut("mp").unwrap());
        facts.workloads.insert("w2".into(), workload("w2", Phase::Pending));
        assert_eq!(effects(&facts), [create("w2", 0), update(&[(&name("w2", 0), Some(&["w2"]))], None)]);
    }
}

#[test]
fn a_workload_that_ended_is_detached_and_one_whose_deletion_began_is_not() {
    let mut facts = served();
    facts.workloads.get_mut("w").unwrap().deleting = true;
    facts.workloads.get_mut("w").unwrap().phase = Phase::Running;
    assert_eq!(effects(&facts), []);
    facts.workloads.get_mut("w").unwrap().phase = Phase::Failed;
    // Neither claim nor volume is needed.
    facts.workloads.get_mut("w").unwrap().wants = None;
    assert_eq!(effects(&facts), [update(&[("mp", Some(&[]))], None)]);
}

#[test]
fn an_unseen_workload_is_detached_only_after_a_question_to_the_server() {
    let mut facts = served();
    facts.workloads.clear();
    let uids = BTreeSet::from(["w".to_owned()]);
    let ask = Effect::ConfirmWorkloadsEnded { node: "n".into(), uids };
    assert_eq!(effects(&facts), [ask, update(&[("mp", Some(&[]))], None)]);
}

#[test]
fn an_unused_pod_is_marked_then_dropped_and_the_attachment_goes_last() {
    let mut facts = served();
    facts.workloads.clear();
    facts.attachments = vec![attachment("a", &[("mp", &[])])];
    facts.pods.get_mut("mp").unwrap().used = false;
    let mark = mark(version("mp", "uid-w", "7"));
    assert_eq!(effects(&facts), [mark, Effect::DeleteAttachment(version("a", "uid-a", "3"))]);
    // Already marked, or gone.
    facts.pods.get_mut("mp").unwrap().needs_unmount = true;
    assert_eq!(effects(&facts), [Effect::DeleteAttachment(version("a", "uid-a", "3"))]);
    facts.pods.clear();
    assert_eq!(effects(&facts), [Effect::DeleteAttachment(version("a", "uid-a", "3"))]);
}

#[test]
fn nobody_joins_an_entry_that_was_seen_empty() {
    let mut facts = facts();
    facts.attachments = vec![attachment("a", &[("mp", &[])])];
    facts.pods = BTreeMap::from([("mp".to_owned(), MountpointPod { used: false, ..pod("gone") })]);
    let mark = mark(version("mp", "uid-gone", "7"));
    let own = name("w", 0);
    assert_eq!(effects(&facts), [mark, create("w", 0), update(&[("mp", None), (&own, Some(&["w"]))], None)]);
}

#[test]
fn a_pod_that_another_attachment_uses_is_not_told_to_unmount() {
    let mut facts = served();
    facts.attachments.push(attachment("b", &[("mp", &[])]));
    assert_eq!(effects(&facts), [Effect::DeleteAttachment(version("b", "uid-b", "3"))]);
}

#[test]
fn of_two_attachments_that_name_a_workload_the_first_one_keeps_it() {
    let mut facts = served();
    facts.attachments.insert(0, attachment("b", &[("other", &["w"])]));
    facts.pods.insert("other".into(), pod("w"));
    let entries = BTreeMap::from([("other".to_owned(), Some(Vec::new()))]);
    let at = version("b", "uid-b", "3");
    assert_eq!(effects(&facts), [Effect::UpdateAttachment { at, entries, annotations: BTreeMap::new() }]);
    let said = notices(&facts);
    assert_eq!(said.len(), 1);
    assert!(
        said[0].reason == Reason::AttachedTwice && said[0].note.contains("MountpointS3PodAttachment b"),
        "{said:?}"
    );
}

#[test]
fn a_failed_pod_is_replaced_under_a_new_name_and_the_workload_hears_why() {
    let mut facts = served();
    let own = name("w", 0);
    facts.attachments = vec![attachment("a", &[(&own, &["w"])])];
    let failed = MountpointPod { phase: Phase::Failed, trouble: Some("Evicted".into()), ..pod("w") };
    facts.pods = BTreeMap::from([(own.clone(), failed)]);
    facts.workloads.get_mut("w").unwrap().phase = Phase::Running;
    let next = name("w", 1);
    assert_eq!(
        effects(&facts),
        [create("w", 1), update(&[(&own, Some(&[])), (&next, Some(&["w"]))], Some(1))]
    );
    let [said] = &notices(&facts)[..] else { panic!("one notice") };
    assert_eq!(said.reason, Reason::MountpointPodLost);
    for part in [&own, &next, "Evicted", "HostToContainer"] {
        assert!(said.note.contains(part), "{}", said.note);
    }
}

#[test]
fn all_who_shared_a_lost_pod_share_the_new_one() {
    let mut facts = served();
    facts.attachments = vec![attachment("a", &[("mp", &["w", "w2"])])];
    facts.workloads.insert("w2".into(), workload("w2", Phase::Running));
    facts.pods.clear();
    let own = name("w", 0);
    let ask = Effect::ConfirmPodEnded { pod: "mp".into() };
    let moved = counted(&[("mp", Some(&[])), (&own, Some(&["w", "w2"]))], None, 1);
    assert_eq!(effects(&facts), [ask, create("w", 0), moved]);
    assert_eq!(notices(&facts).len(), 2);
}

#[test]
fn a_name_that_was_used_up_is_not_used_again_when_its_pod_is_gone() {
    let mut facts = served();
    let second = name("w", 1);
    facts.attachments = vec![attachment("a", &[(&second, &["w"])])];
    let attempts = BTreeMap::from([(ATTEMPTS.to_owned(), "1".to_owned())]);
    facts.attachments[0].metadata.annotations = Some(attempts);
    facts.pods.clear();
    assert!(effects(&facts).contains(&create("w", 2)));
}

#[test]
fn a_running_workload_keeps_a_leaving_pod_and_a_waiting_one_gets_another() {
    for leaving in
        [MountpointPod { deleting: true, ..pod("w") }, MountpointPod { needs_unmount: true, ..pod("w") }]
    {
        let mut facts = served();
        facts.pods.insert("mp".into(), leaving);
        facts.workloads.get_mut("w").unwrap().phase = Phase::Running;
        assert_eq!(effects(&facts), []);
        facts.workloads.get_mut("w").unwrap().phase = Phase::Pending;
        let moved = counted(&[("mp", Some(&[])), (&name("w", 0), Some(&["w"]))], None, 1);
        assert_eq!(effects(&facts), [create("w", 0), moved]);
    }
}

/// Goal: a mark names the observed version of the pod: if the pod has begun since, the mark fails, and the workload stays.
#[test]
fn an_unstarted_pod_is_marked_before_its_workload_goes_elsewhere() {
    let outdated =
        MountpointPod { phase: Phase::Pending, began: false, runs: false, outdated: true, ..pod("w") };
    // One that runs has lost an earlier one, and got nothing of this one.
    for phase in [Phase::Pending, Phase::Running] {
        let mut facts = served();
        facts.pods.insert("mp".into(), outdated.clone());
        facts.workloads.get_mut("w").unwrap().phase = phase;
        let moved = counted(&[("mp", Some(&[])), (&name("w", 0), Some(&["w"]))], None, 1);
        assert_eq!(effects(&facts), [create("w", 0), mark(version("mp", "uid-w", "7")), moved]);
        assert_eq!(notices(&facts)[0].reason, Reason::MountpointPodNotServing);
    }
}

#[test]
fn a_lost_pod_without_its_volume_is_not_replaced_and_the_workload_hears() {
    let mut facts = served();
    facts.pods.get_mut("mp").unwrap().phase = Phase::Succeeded;
    facts.workloads.get_mut("w").unwrap().wants = None;
    assert_eq!(effects(&facts), []);
    assert!(notices(&facts)[0].note.contains("does not exist any more"));
}

#[test]
fn a_pod_whose_maker_did_not_get_further_is_adopted() {
    let mut facts = facts();
    facts.pods.insert(name("w", 0), MountpointPod { named: false, used: false, ..pod("w") });
    let new = key("o", "").attachment(&name("w", 0), attached("w"));
    assert_eq!(effects(&facts), [Effect::CreateAttachment(Box::new(new.clone()))]);
    // Also for a workload that runs: somebody deleted its attachment.
    facts.workloads.get_mut("w").unwrap().phase = Phase::Running;
    assert_eq!(effects(&facts), [unattached(&["w"]), Effect::CreateAttachment(Box::new(new))]);
}

/// `w` waits for a pod that the kubelet rejected.
fn rejected(seconds_ago: i64, count: u32) -> Facts {
    let mut facts = served();
    let own = name("w", 0);
    facts.attachments = vec![attachment("a", &[(&own, &["w"])])];
    if count > 0 {
        let last = facts.now - SignedDuration::from_secs(seconds_ago);
        let text = format!("{count} {last}");
        facts.attachments[0].metadata.annotations = Some(BTreeMap::from([(REPLACED.to_owned(), text)]));
    }
    let pod = MountpointPod {
        phase: Phase::Failed,
        began: false,
        trouble: Some("Evicted: The node had condition: [DiskPressure].".into()),
        ..pod("w")
    };
    facts.pods = BTreeMap::from([(own, pod)]);
    facts
}

#[test]
fn a_rejected_pod_is_replaced_with_growing_pauses_that_are_counted() {
    let (first, second) = (name("w", 0), name("w", 1));
    let moved = |count| counted(&[(&first, Some(&[])), (&second, Some(&["w"]))], Some(1), count);
    assert_eq!(effects(&rejected(0, 0)), [create("w", 1), moved(1)]);
    for (count, pause) in [(1, 10), (2, 20), (5, 160), (6, 300), (7, 300), (100, 300)] {
        let early = plan(&rejected(pause - 3, count));
        assert_eq!(
            (early.effects, early.look_again_in),
            (Vec::new(), Some(Duration::from_secs(3))),
            "{count}"
        );
        assert_eq!(effects(&rejected(pause, count)), [create("w", 1), moved(count + 1)], "{count}");
    }
    assert_eq!(effects(&rejected(600, 9)), [create("w", 1), moved(1)], "ten quiet minutes end a row");
    // Also where the workload runs: its pod was evicted, and now none begins.
    let mut facts = rejected(1, 3);
    facts.workloads.get_mut("w").unwrap().phase = Phase::Running;
    assert_eq!(effects(&facts), []);
    let said = notices(&rejected(10, 1));
    assert_eq!(said[0].reason, Reason::MountpointPodNotServing);
    assert!(said[0].note.contains("DiskPressure") && !said[0].note.contains("mp-"), "{said:?}");
}

#[test]
fn a_pod_that_served_a_new_workload_and_a_detach_skip_the_pause() {
    let mut facts = rejected(1, 6);
    facts.workloads.insert("w2".into(), workload("w2", Phase::Pending));
    assert_eq!(effects(&facts), [create("w2", 0), update(&[(&name("w2", 0), Some(&["w2"]))], None)]);
    facts.workloads.insert("w2".into(), workload("w2", Phase::Succeeded));
    let own = name("w", 0);
    facts.attachments[0].spec.mountpoint_pods.get_mut(&own).unwrap().push(attached("w2"));
    assert_eq!(effects(&facts), [update(&[(&own, Some(&["w"]))], None)]);
    let mut served = rejected(1, 6);
    served.workloads.get_mut("w").unwrap().phase = Phase::Running;
    served.pods.get_mut(&own).unwrap().began = true;
    assert!(effects(&served).contains(&create("w", 1)));
}

#[test]
fn what_the_api_server_refuses_is_planned_without() {
    let mut facts = served();
    facts.workloads.insert("w2".into(), workload("w2", Phase::Pending));
    facts.workloads.get_mut("w2").unwrap().wants.as_mut().unwrap().key = key("p", "");
    facts.workloads.get_mut("w").unwrap().phase = Phase::Succeeded;
    assert!(effects(&facts).contains(&create("w2", 0)));
    facts.refused.insert(name("w2", 0));
    assert_eq!(effects(&facts), [update(&[("mp", Some(&[]))], None)]);
}

fn counted(entries: &[(&str, Option<&[&str]>)], attempts: Option<u32>, count: u32) -> Effect {
    let Effect::UpdateAttachment { at, entries, mut annotations } = update(entries, attempts) else {
        unreachable!("update() makes an update")
    };
    annotations.insert(REPLACED.to_owned(), format!("{count} {}", facts_now()));
    Effect::UpdateAttachment { at, entries, annotations }
}

fn unattached(uids: &[&str]) -> Effect {
    Effect::ConfirmUnattached { uids: uids.iter().map(|&uid| uid.to_owned()).collect() }
}

#[test]
fn a_name_that_somebody_else_has_is_left_to_him() {
    let mut facts = facts();
    let theirs = MountpointPod { ours: false, named: false, used: false, ..pod("w") };
    facts.pods.insert(name("w", 0), theirs);
    let [first, Effect::CreateAttachment(new)] = &effects(&facts)[..] else {
        panic!("a pod and an attachment")
    };
    assert_eq!(*first, create("w", 1));
    assert_eq!(new.metadata.annotations, Some(BTreeMap::from([(ATTEMPTS.to_owned(), "1".to_owned())])));
}

#[test]
fn an_ended_leaving_or_older_workload_gets_nothing_new() {
    let edits: [fn(&mut Workload); 5] = [
        |workload| workload.phase = Phase::Running,
        |workload| workload.phase = Phase::Succeeded,
        |workload| workload.phase = Phase::Failed,
        |workload| workload.deleting = true,
        |workload| workload.wants = None,
    ];
    for edit in edits {
        let mut facts = facts();
        edit(facts.workloads.get_mut("w").unwrap());
        assert_eq!(effects(&facts), []);
    }
}

#[test]
fn an_unnamed_pod_is_marked_after_a_while_and_not_before() {
    let mut facts = facts();
    facts.workloads.clear();
    let orphan = MountpointPod { named: false, used: false, created: facts.now, ..pod("gone") };
    facts.pods.insert("mp".into(), orphan);
    let young = plan(&facts);
    assert_eq!((young.effects, young.look_again_in), (Vec::new(), Some(UNNAMED_FOR)));
    facts.now += SignedDuration::from_secs(90);
    let mark = mark(version("mp", "uid-gone", "7"));
    assert_eq!(effects(&facts), [Effect::ConfirmUnnamed { pod: "mp".into() }, mark]);
}

#[test]
fn a_pod_that_is_over_is_deleted_once_nobody_names_it() {
    for phase in [Phase::Succeeded, Phase::Failed] {
        let mut facts = facts();
        facts.workloads.clear();
        facts.pods.insert("mp".into(), MountpointPod { phase, named: false, used: false, ..pod("gone") });
        assert_eq!(effects(&facts), [Effect::DeletePod(version("mp", "uid-gone", "7"))]);
        facts.pods.get_mut("mp").unwrap().named = true;
        assert_eq!(effects(&facts), []);
    }
}

#[test]
fn a_marked_pod_that_never_began_is_deleted_and_a_running_one_ends_itself() {
    let mut facts = facts();
    facts.workloads.clear();
    let marked = MountpointPod {
        needs_unmount: true,
        restarts_when_marked: Some(0),
        named: false,
        used: false,
        ..pod("gone")
    };
    facts.pods.insert("mp".into(), MountpointPod { phase: Phase::Pending, ..marked.clone() });
    assert_eq!(effects(&facts), [Effect::DeletePod(version("mp", "uid-gone", "7"))]);
    facts.pods.insert("mp".into(), marked);
    assert_eq!(effects(&facts), []);
}

#[test]
fn a_pod_of_somebody_else_is_left_alone() {
    let mut facts = facts();
    facts.workloads.clear();
    let theirs =
        MountpointPod { ours: false, named: false, used: false, phase: Phase::Succeeded, ..pod("gone") };
    facts.pods.insert("mp".into(), theirs);
    assert_eq!(effects(&facts), []);
}

#[test]
fn whoever_waits_for_a_pod_that_does_not_start_hears_why() {
    let mut facts = served();
    let stuck =
        MountpointPod { phase: Phase::Pending, trouble: Some("Unschedulable: no memory".into()), ..pod("w") };
    facts.pods.insert("mp".into(), stuck);
    let [said] = &notices(&facts)[..] else { panic!("one notice") };
    assert_eq!((said.reason, said.workload.uid.as_str()), (Reason::MountpointPodWaits, "w"));
    assert!(said.note.contains("Unschedulable: no memory"));
}

#[test]
fn senseless_attributes_make_no_pod_and_an_event_names_the_volume() {
    let mut facts = facts();
    facts.workloads.get_mut("w").unwrap().wants.as_mut().unwrap().settings = Err("attribute x is bad".into());
    assert_eq!(effects(&facts), []);
    let [said] = &notices(&facts)[..] else { panic!("one notice") };
    assert_eq!(said.reason, Reason::VolumeRefused);
    assert!(said.note.contains("attribute x is bad") && said.note.contains("PersistentVolume v"));
}

#[test]
fn of_two_first_workloads_one_makes_the_attachment_and_the_other_joins() {
    let mut facts = facts();
    facts.workloads.insert("w2".into(), workload("w2", Phase::Pending));
    let new = key("o", "").attachment(&name("w", 0), attached("w"));
    assert_eq!(effects(&facts), [create("w", 0), Effect::CreateAttachment(Box::new(new))]);
}
