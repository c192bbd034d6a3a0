//! The steps for each state of a workload that asks for room.

use super::*;

fn version(name: &str) -> Version {
    Version { name: name.into(), uid: format!("uid-of-{name}"), resource_version: "1".into() }
}

fn workload(volumes: &[&str]) -> Workload {
    Workload {
        at: WorkloadRef { namespace: "default".into(), name: "w".into(), uid: "uid-of-w".into() },
        version: version("w"),
        gated: true,
        other_gates: vec!["example.com/quota".into()],
        labelled: false,
        pending: true,
        deleting: false,
        waits_long: false,
        volumes: Ok(volumes.iter().map(|name| ((*name).to_owned(), Settings::default())).collect()),
    }
}

fn holds(volume: &str) -> HeadroomPod {
    HeadroomPod {
        version: version(&format!("hr-{volume}")),
        workload_uid: "uid-of-w".into(),
        volume: volume.into(),
        deleting: false,
    }
}

/// The steps in short, and whether a workload waits.
fn steps(workloads: Vec<Workload>, pods: Vec<HeadroomPod>) -> (String, bool) {
    let (steps, waits) = plan(&Facts { workloads, pods });
    let words = steps.into_iter().map(|step| match step {
        Step::Label(at, _) => format!("label {}", at.name),
        Step::Unlabel(at, _) => format!("unlabel {}", at.name),
        Step::Create(request) => format!("create {}", request.volume),
        Step::Ungate(at, _, others) => format!("ungate {} but {}", at.name, others.join(",")),
        Step::Delete(version) => format!("delete {}", version.name),
        Step::Tell(notice) => format!("tell {}", notice.reason),
    });
    (words.collect::<Vec<_>>().join("; "), waits)
}

fn is(words: &str, waits: bool) -> (String, bool) {
    (words.to_owned(), waits)
}

#[test]
fn a_workload_goes_once_its_headroom_was_seen_and_keeps_other_gates() {
    let seen = || Workload { labelled: true, ..workload(&["a", "b"]) };
    assert_eq!(steps(vec![workload(&["a", "b"])], vec![]), is("label w; create a; create b", true));
    assert_eq!(steps(vec![seen()], vec![holds("a")]), is("create b", true));
    let unlabelled = steps(vec![workload(&["a", "b"])], vec![holds("a"), holds("b")]);
    assert_eq!(unlabelled, is("label w", true));
    assert_eq!(steps(vec![seen()], vec![holds("a"), holds("b")]), is("ungate w but example.com/quota", true));
}

#[test]
fn a_workload_without_a_volume_of_ours_waits_for_nothing() {
    assert_eq!(steps(vec![workload(&[])], vec![]), is("ungate w but example.com/quota", true));
}

#[test]
fn who_waits_for_a_claim_is_told_so_only_after_a_while() {
    let unbound = Workload { volumes: Err("claim c is not bound".into()), ..workload(&[]) };
    assert_eq!(steps(vec![unbound.clone()], vec![]), is("", true));
    assert_eq!(steps(vec![Workload { waits_long: true, ..unbound }], vec![]), is("tell HeadroomWaits", true));
}

#[test]
fn room_is_held_until_the_workload_runs_and_the_label_goes_last() {
    let free = Workload { gated: false, labelled: true, ..workload(&["a"]) };
    assert_eq!(steps(vec![free.clone()], vec![holds("a")]), is("", false), "its Mountpoint Pod comes");
    assert_eq!(steps(vec![free.clone()], vec![]), is("", false), "its Mountpoint Pod has taken it");
    let runs = Workload { pending: false, ..free };
    assert_eq!(steps(vec![runs.clone()], vec![holds("a")]), is("delete hr-a", false));
    let going = HeadroomPod { deleting: true, ..holds("a") };
    assert_eq!(steps(vec![runs.clone()], vec![going]), is("", false));
    assert_eq!(steps(vec![runs.clone()], vec![]), is("unlabel w", false));
    assert_eq!(steps(vec![Workload { labelled: false, ..runs }], vec![]), is("", false));
}

#[test]
fn a_workload_that_is_deleted_or_gone_holds_no_room() {
    let leaving = Workload { deleting: true, labelled: true, ..workload(&["a"]) };
    assert_eq!(steps(vec![leaving.clone()], vec![holds("a")]), is("delete hr-a", false));
    assert_eq!(steps(vec![leaving], vec![]), is("", false));
    assert_eq!(steps(vec![], vec![holds("a")]), is("delete hr-a", false));
}
