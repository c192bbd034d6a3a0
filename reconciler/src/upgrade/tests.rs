//! The steps of upgrades in place, at each state of a pod.

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn reference(name: &str) -> WorkloadRef {
    WorkloadRef { namespace: "n".into(), name: name.into(), uid: format!("uid-of-{name}") }
}

/// A pod that serves a workload with the image before.
fn pod(name: &str) -> Pod {
    let uid = format!("uid-of-{name}");
    Pod {
        at: reference(name),
        version: Version { name: name.into(), uid, resource_version: "1".into() },
        node: "node".into(),
        image: "i:1".into(),
        attempt: None,
        serves: true,
        runs_since: Some(at(-10_000)),
        restarts: 3,
        ended: None,
        workloads: vec![reference("w")],
    }
}

fn attempt(stage: Stage, second: i64) -> Option<Attempt> {
    Some(Attempt { stage, from: "i:1".into(), to: "i:2".into(), since: at(second), restarts: 3 })
}

fn facts(pods: Vec<Pod>) -> Facts {
    let drivers = [("node".to_owned(), ["i:2".to_owned()].into())].into();
    Facts { now: at(0), image: Some("i:2".into()), drivers, pods }
}

/// The steps in short: the pod, its image if that changes, the stage, and the notices.
fn steps(facts: &Facts) -> String {
    let words = plan(facts).into_iter().map(|step| {
        let image = step.image.map(|image| format!(" {image}")).unwrap_or_default();
        let stage = step.attempt.map_or_else(
            || "over".to_owned(),
            |attempt| {
                assert_eq!(attempt.since, facts.now);
                format!("{:?}", attempt.stage)
            },
        );
        let told = step.notices.iter().map(|it| format!(", {} {}", it.reason, it.workload.name));
        format!("{}{image} {stage}{}", step.at.name, told.collect::<String>())
    });
    words.collect::<Vec<_>>().join("; ")
}

/// The step of one pod at this second.
fn step(pod: Pod, second: i64) -> String {
    steps(&Facts { now: at(second), ..facts(vec![pod]) })
}

#[test]
fn one_pod_of_a_node_is_asked_at_a_time() {
    let elsewhere = Pod { node: "other".into(), ..pod("mp-3") };
    let mut facts = facts(vec![pod("mp-1"), pod("mp-2"), elsewhere]);
    facts.drivers.insert("other".into(), ["i:2".to_owned()].into());
    assert_eq!(steps(&facts), "mp-1 Asked; mp-3 Asked");
    for stage in [Stage::Asked, Stage::Patched, Stage::Runs] {
        facts.pods[1].attempt = attempt(stage, 0);
        facts.pods[1].image = if stage == Stage::Asked { "i:1" } else { "i:2" }.into();
        assert_eq!(steps(&facts), "mp-3 Asked", "mp-2 is under way: {stage:?}");
    }
    facts.pods[1].attempt = attempt(Stage::HeldBack, 0);
    facts.pods[1].image = "i:1".into();
    assert_eq!(steps(&facts), "mp-1 Asked; mp-3 Asked");
}

#[test]
fn a_pod_is_asked_where_the_driver_has_the_image_and_the_switch_is_on() {
    let one = facts(vec![pod("mp-1")]);
    assert_eq!(steps(&one), "mp-1 Asked");
    assert_eq!(steps(&Facts { image: None, ..one.clone() }), "", "the switch is off");
    assert_eq!(steps(&Facts { image: Some("i:1".into()), ..one.clone() }), "", "it has that image");
    let other = [("node".to_owned(), ["i:1".to_owned()].into())].into();
    assert_eq!(steps(&Facts { drivers: other, ..one.clone() }), "", "the driver has another image");
    assert_eq!(steps(&Facts { drivers: BTreeMap::new(), ..one }), "", "no driver runs there");
    assert_eq!(step(Pod { serves: false, ..pod("mp-1") }, 0), "", "it serves nobody, or ends");
    assert_eq!(step(Pod { runs_since: None, ..pod("mp-1") }, 0), "");
    let first = Pod { runs_since: Some(at(-1)), ..pod("mp-1") };
    assert_eq!(step(first.clone(), 0), "mp-1 Asked", "its first container");
    let again = |ago: i64| Pod { ended: Some((137, at(-2000))), runs_since: Some(at(-ago)), ..first.clone() };
    assert_eq!(step(again(659), 0), "", "the kubelet may wait before it starts the next container");
    assert_eq!(step(again(660), 0), "mp-1 Asked");
}

/// Goal: no writer is killed.
#[test]
fn the_image_is_patched_only_once_the_engine_has_left_its_mount() {
    let asked = Pod { attempt: attempt(Stage::Asked, 0), ..pod("mp-1") };
    assert_eq!(step(asked.clone(), 29), "");
    let left = Pod { ended: Some((75, at(5))), restarts: 4, ..asked };
    assert_eq!(step(left.clone(), 6), "mp-1 i:2 Patched");
    for (not, why) in [
        (Pod { runs_since: None, ..left.clone() }, "the container that takes no mount does not run yet"),
        (Pod { restarts: 3, ..left.clone() }, "that was before the question"),
        (Pod { restarts: 5, ..left.clone() }, "another container went on with the mount"),
        (Pod { ended: Some((137, at(5))), ..left.clone() }, "the container was killed"),
    ] {
        assert_eq!(step(not.clone(), 6), "", "{why}");
        assert_eq!(step(not, 30), "mp-1 HeldBack, MountpointPodUpgradeHeldBack mp-1", "{why}");
    }
    assert_eq!(step(Pod { serves: false, ..left.clone() }, 6), "mp-1 over");
    assert_eq!(step(Pod { image: "i:9".into(), ..left }, 6), "mp-1 over", "somebody else patched it");
}

#[test]
fn a_writer_holds_an_upgrade_back_for_minutes() {
    let asked = Pod { attempt: attempt(Stage::Asked, 0), ..pod("mp-1") };
    assert_eq!(step(asked, 30), "mp-1 HeldBack, MountpointPodUpgradeHeldBack mp-1");
    let held_back = Pod { attempt: attempt(Stage::HeldBack, 30), ..pod("mp-1") };
    assert_eq!(step(held_back.clone(), 329), "");
    assert_eq!(step(held_back, 330), "mp-1 Asked");
}

#[test]
fn a_pod_that_runs_with_its_new_image_is_done_and_its_workloads_are_told() {
    let patched = Pod { attempt: attempt(Stage::Patched, 0), image: "i:2".into(), ..pod("mp-1") };
    assert_eq!(step(patched.clone(), 100), "", "the container before still runs");
    let next = Pod { restarts: 4, ..patched };
    assert_eq!(step(next.clone(), 9), "mp-1 Runs", "its engine may refuse yet");
    let runs = Pod { attempt: attempt(Stage::Runs, 9), restarts: 3, ..next };
    assert_eq!(step(runs.clone(), 28), "");
    assert_eq!(step(runs, 29), "mp-1 over, MountpointPodUpgraded w, MountpointPodUpgraded mp-1");
}

/// Goal: an image whose engine refuses the mount never counts as upgraded, however slowly its container starts and its engine refuses.
#[test]
fn an_engine_that_refuses_late_is_taken_back_and_not_told_as_upgraded() {
    let patched = Pod { attempt: attempt(Stage::Patched, 0), image: "i:2".into(), ..pod("mp-1") };
    let told = "MountpointPodUpgradeTakenBack w, MountpointPodUpgradeTakenBack mp-1";
    let starts_late = Pod { restarts: 4, ..patched.clone() };
    assert_eq!(step(starts_late, 25), "mp-1 Runs", "it is not asked how long ago the patch was");
    let runs = Pod { attempt: attempt(Stage::Runs, 25), ..patched };
    assert_eq!(step(runs.clone(), 37), "");
    let refused = Pod { runs_since: None, ..runs.clone() };
    assert_eq!(step(refused, 37), format!("mp-1 i:1 TakenBack, {told}"));
    let began_again = Pod { restarts: 4, ..runs };
    assert_eq!(step(began_again, 60), "mp-1 Runs", "its end was not seen");
}

#[test]
fn an_image_that_does_not_run_is_taken_back_and_not_tried_again() {
    let patched = Pod { attempt: attempt(Stage::Patched, 0), image: "i:2".into(), ..pod("mp-1") };
    let waits = Pod { runs_since: None, ..patched };
    let told = "MountpointPodUpgradeTakenBack w, MountpointPodUpgradeTakenBack mp-1";
    assert_eq!(step(waits.clone(), 29), "");
    assert_eq!(step(waits.clone(), 30), format!("mp-1 i:1 TakenBack, {told}"));
    let ended = Pod { restarts: 4, ..waits };
    assert_eq!(step(ended, 1), format!("mp-1 i:1 TakenBack, {told}"), "it began and ended");
    let back = Pod { attempt: attempt(Stage::TakenBack, 0), ..pod("mp-1") };
    assert_eq!(step(back.clone(), 1_000_000), "");
    let mut another = Facts { now: at(60), image: Some("i:3".into()), ..facts(vec![back]) };
    another.drivers.get_mut("node").unwrap().insert("i:3".into());
    assert_eq!(steps(&another), "mp-1 Asked", "another image");
}

/// Goal: the image of before gets the mount while the node's holder has it, whatever the clock of the reconciler that patched.
#[test]
fn a_patch_from_ahead_of_this_clock_counts_from_when_it_is_seen() {
    let patched = Pod { attempt: attempt(Stage::Patched, 0), image: "i:2".into(), ..pod("mp-1") };
    let waits = Pod { runs_since: None, ..patched.clone() };
    assert_eq!(step(waits.clone(), -2), "", "clocks differ a little");
    assert_eq!(step(waits.clone(), -40), "mp-1 Patched");
    let seen = Pod { attempt: attempt(Stage::Patched, -40), ..waits };
    assert_eq!(step(seen.clone(), -11), "");
    assert!(step(seen, -10).starts_with("mp-1 i:1 TakenBack"));
    assert_eq!(step(Pod { restarts: 4, ..patched }, -40), "mp-1 Runs", "it runs");
}

#[test]
fn an_upgrade_that_has_begun_is_ended_also_with_the_switch_off() {
    let patched =
        Pod { attempt: attempt(Stage::Patched, 0), image: "i:2".into(), restarts: 4, ..pod("mp-1") };
    let mut off = Facts { now: at(20), image: None, ..facts(vec![patched]) };
    assert_eq!(steps(&off), "mp-1 Runs");
    off.pods[0].attempt = attempt(Stage::Runs, 0);
    off.pods[0].restarts = 3;
    assert!(steps(&off).starts_with("mp-1 over"), "{}", steps(&off));
}
