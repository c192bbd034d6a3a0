//! PersistentVolumes that were deleted and made again under their name, with another bucket.

use super::*;

const NEW: &str = "uid-new";

/// The effect of [`create`], for the new volume.
fn create_new(uid: &str, attempt: u32) -> Effect {
    let Effect::CreatePod { mut request, workload } = create(uid, attempt) else {
        unreachable!("that is one")
    };
    request.volume_uid = Some(NEW.into());
    Effect::CreatePod { request, workload }
}

fn of_new(uid: &str, phase: Phase) -> Workload {
    let mut workload = workload(uid, phase);
    workload.wants.as_mut().unwrap().volume_uid = Some(NEW.into());
    workload
}

#[test]
fn a_workload_of_a_volume_made_again_does_not_join_the_old_pod() {
    let mut facts = served();
    // The first one runs on: what it has mounted stays.
    facts.workloads.insert("w".into(), of_new("w", Phase::Running));
    facts.workloads.insert("w2".into(), of_new("w2", Phase::Pending));
    assert_eq!(effects(&facts), [create_new("w2", 0), update(&[(&name("w2", 0), Some(&["w2"]))], None)]);
    // A third joins the second.
    let entries: [(&str, &[&str]); 2] = [("mp", &["w"]), (&name("w2", 0), &["w2"])];
    facts.attachments = vec![attachment("a", &entries)];
    let second = MountpointPod { volume_uid: Some(NEW.into()), ..pod("w2") };
    facts.pods.insert(name("w2", 0), second);
    facts.workloads.insert("w3".into(), of_new("w3", Phase::Pending));
    assert_eq!(effects(&facts), [update(&[(&name("w2", 0), Some(&["w2", "w3"]))], None)]);
}

#[test]
fn after_an_unseen_delete_and_apply_the_old_volumes_pod_takes_nobody() {
    let mut facts = served();
    facts.workloads = BTreeMap::from([("w2".to_owned(), of_new("w2", Phase::Pending))]);
    let ask = Effect::ConfirmWorkloadsEnded { node: "n".into(), uids: BTreeSet::from(["w".to_owned()]) };
    let own = name("w2", 0);
    assert_eq!(
        effects(&facts),
        [ask, create_new("w2", 0), update(&[("mp", Some(&[])), (&own, Some(&["w2"]))], None)]
    );
}

#[test]
fn a_pod_that_was_made_for_the_workload_and_the_old_volume_is_not_named() {
    let mut facts = facts();
    facts.workloads.insert("w".into(), of_new("w", Phase::Pending));
    let old = MountpointPod { named: false, used: false, created: facts.now, ..pod("w") };
    facts.pods.insert(name("w", 0), old);
    let mut new = key("o", "").attachment(&name("w", 1), attached("w"));
    new.metadata.annotations = Some(used_up(1));
    assert_eq!(effects(&facts), [create_new("w", 1), Effect::CreateAttachment(Box::new(new))]);
}

#[test]
fn a_running_workload_is_attached_again_to_a_pod_of_its_volume() {
    let mut facts = facts();
    facts.workloads.insert("w".into(), of_new("w", Phase::Running));
    let attaches = |facts: &Facts| effects(facts).iter().any(|it| matches!(it, Effect::CreateAttachment(_)));
    for (made_for, volume_uid, adopted) in
        [("gone", VOLUME_UID, false), ("gone", NEW, true), ("w", VOLUME_UID, true), ("w", NEW, true)]
    {
        let volume_uid = Some(volume_uid.to_owned());
        let free = MountpointPod { named: false, used: false, volume_uid, ..pod(made_for) };
        facts.pods = BTreeMap::from([("mp".to_owned(), free)]);
        assert_eq!(attaches(&facts), adopted, "{made_for} {:?}", facts.pods["mp"].volume_uid);
    }
    // The one of the volume as it is now, of two of its own.
    let own = |volume_uid: &str| MountpointPod {
        named: false,
        used: false,
        volume_uid: Some(volume_uid.to_owned()),
        ..pod("w")
    };
    facts.pods = [("mp-1", VOLUME_UID), ("mp-2", NEW)].map(|(name, uid)| (name.to_owned(), own(uid))).into();
    let new = key("o", "").attachment("mp-2", attached("w"));
    assert!(effects(&facts).contains(&Effect::CreateAttachment(Box::new(new))));
}

#[test]
fn where_a_pod_or_a_volume_has_no_uid_the_name_counts() {
    let edits: [fn(&mut Facts); 2] = [
        // A pod of an older release.
        |facts| facts.pods.get_mut("mp").unwrap().volume_uid = None,
        // A volume that stands in the pod.
        |facts| facts.workloads.get_mut("w2").unwrap().wants.as_mut().unwrap().volume_uid = None,
    ];
    for edit in edits {
        let mut facts = served();
        facts.workloads.insert("w2".into(), of_new("w2", Phase::Pending));
        edit(&mut facts);
        assert_eq!(effects(&facts), [update(&[("mp", Some(&["w", "w2"]))], None)]);
    }
}
