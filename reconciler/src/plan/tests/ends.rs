//! Mountpoint Pods that are told to end while workloads use them.

use super::*;

#[test]
fn a_pod_told_to_end_is_announced_to_the_workloads_that_run() {
    let ends_at = facts_now() + SignedDuration::from_mins(10);
    let ending = MountpointPod { deleting: true, ends_at: Some(ends_at), ..pod("w") };
    let told = |phase, workload_leaves: bool, ending: &MountpointPod| {
        let mut facts = served();
        facts.pods.insert("mp".into(), ending.clone());
        let workload = facts.workloads.get_mut("w").unwrap();
        (workload.phase, workload.deleting) = (phase, workload_leaves);
        let said = notices(&facts).into_iter().filter(|it| it.reason == Reason::MountpointPodEnds);
        said.map(|it| it.note).collect::<Vec<_>>()
    };
    let said = told(Phase::Running, false, &ending);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("Mountpoint Pod mp of PersistentVolume v"), "{said:?}");
    assert!(said[0].contains("until 1970-01-01 01:10:00 UTC"), "{said:?}");
    assert!(told(Phase::Running, true, &ending).is_empty(), "it leaves anyway");
    assert!(told(Phase::Pending, false, &ending).is_empty(), "it gets another one");
    assert!(told(Phase::Running, false, &pod("w")).is_empty());
    assert!(
        told(Phase::Running, false, &MountpointPod { runs: false, ..ending }).is_empty(),
        "it serves nothing"
    );
}
