//! Workloads that run without an attachment, because an administrator deleted it or edited it by hand.

use csi::contract::attachment::Identity;

use super::*;

#[test]
fn running_workloads_without_an_attachment_are_attached_to_their_pod() {
    let mut facts = facts();
    // The workload that the pod was made for is gone; two that shared it run on. An upgrade came in between.
    let shared = MountpointPod { named: false, used: false, release: Some("2.2.0".into()), ..pod("gone") };
    facts.pods.insert("mp".into(), shared);
    facts.workloads = ["w", "w2"].map(|uid| (uid.to_owned(), workload(uid, Phase::Running))).into();
    let mut new = key("o", "").attachment("mp", attached("w"));
    new.spec.mountpoint_pods.get_mut("mp").unwrap().push(attached("w2"));
    assert_eq!(effects(&facts), [unattached(&["w", "w2"]), Effect::CreateAttachment(Box::new(new))]);
    let said = notices(&facts);
    assert_eq!(said.len(), 2);
    assert!(said[0].reason == Reason::AttachedAgain && said[0].note.contains("mp"), "{said:?}");
    // An attachment of theirs that is there takes them.
    facts.attachments = vec![attachment("a", &[])];
    assert_eq!(effects(&facts), [unattached(&["w", "w2"]), update(&[("mp", Some(&["w", "w2"]))], None)]);
}

#[test]
fn an_attachment_emptied_by_hand_gets_running_workloads_back() {
    let mut facts = served();
    facts.workloads = ["w", "w2"].map(|uid| (uid.to_owned(), workload(uid, Phase::Running))).into();
    facts.attachments = vec![attachment("a", &[("mp", &[])])];
    facts.pods.get_mut("mp").unwrap().used = false;
    assert_eq!(effects(&facts), [unattached(&["w", "w2"]), update(&[("mp", Some(&["w", "w2"]))], None)]);
    // Without the one that the pod was made for, an entry is empty because its workloads ended. Release 1 may have mounted the others.
    facts.workloads.remove("w");
    let mark = mark(version("mp", "uid-w", "7"));
    assert_eq!(effects(&facts), [mark, Effect::DeleteAttachment(version("a", "uid-a", "3"))]);
}

#[test]
fn a_pod_of_an_unknown_identity_serves_only_its_own_workload() {
    let mut facts = facts();
    let workload = facts.workloads.get_mut("w").unwrap();
    workload.phase = Phase::Running;
    let identity = Identity { namespace: "a".into(), service_account: "b".into(), role: "c".into() };
    workload.wants.as_mut().unwrap().key.identity = Some(identity);
    let attaches = |facts: &Facts| effects(facts).iter().any(|it| matches!(it, Effect::CreateAttachment(_)));
    for (made_for, adopted) in [("gone", false), ("w", true)] {
        let free = MountpointPod { named: false, used: false, ..pod(made_for) };
        facts.pods = BTreeMap::from([("mp".to_owned(), free)]);
        assert_eq!(attaches(&facts), adopted, "{made_for}");
    }
}

#[test]
fn a_workload_that_runs_is_release_1s_unless_one_pod_alone_may_serve_it() {
    let free = MountpointPod { named: false, used: false, ..pod("gone") };
    let edits: [fn(&mut MountpointPod); 5] = [
        |pod| pod.named = true,
        |pod| pod.needs_unmount = true,
        |pod| pod.deleting = true,
        |pod| pod.ours = false,
        |pod| pod.volume = Some("other".into()),
    ];
    let mut facts = facts();
    facts.workloads.get_mut("w").unwrap().phase = Phase::Running;
    for edit in edits {
        let mut pod = free.clone();
        edit(&mut pod);
        facts.pods = BTreeMap::from([("mp".to_owned(), pod)]);
        assert!(!effects(&facts).iter().any(|it| matches!(it, Effect::CreateAttachment(_))));
    }
    // Nobody can say which of two.
    facts.pods = [("mp", "gone"), ("mp2", "gone2")]
        .map(|(name, of)| (name.to_owned(), MountpointPod { named: false, ..pod(of) }))
        .into();
    assert!(!effects(&facts).iter().any(|it| matches!(it, Effect::CreateAttachment(_))));
    // It was made for a workload with other options.
    let mut other = workload("other", Phase::Running);
    other.wants.as_mut().unwrap().key = key("p", "");
    facts.workloads.insert("other".into(), other);
    facts.pods =
        BTreeMap::from([("mp".to_owned(), MountpointPod { named: false, used: false, ..pod("other") })]);
    let new = key("p", "").attachment("mp", attached("other"));
    assert_eq!(effects(&facts), [unattached(&["other"]), Effect::CreateAttachment(Box::new(new))]);
}
