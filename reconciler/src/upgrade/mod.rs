//! Upgrades of Mountpoint Pods in place. Enters: [`Facts`]. Leaves: steps, each one write of a pod.
//!
//! The order loses no write: the reconciler asks, the node's driver has the engine give up its mount once no file is being written, and the
//! container ends with a reserved status. Only then is the image patched: no engine runs, so no writer can have begun since. The next
//! container of the old image waits without a mount for as long as the patch may come (`csi::mountpoint_pod::upgrade`), and then ends. The
//! patch names the version of the pod that was seen, so a late patch fails.
//!
//! Never here: a call to the API server, a clock; the upgrade of a second pod of a node before the first one is done.

pub mod act;
pub mod observe;

use std::collections::{BTreeMap, BTreeSet};

use csi::contract::reason::Reason;
use csi::contract::upgrade::{Attempt, HANDED_OVER, SERVES_WITHIN, Stage};
use csi::events::{Notice, WorkloadRef};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::plan::Version;

/// Time for an engine to give up its mount; after it the attempt ends. Writers may take 10 s of it, and the kubelet a few for the next
/// container. Doubled, an attempt that meets a writer keeps the other pods of its node waiting for twice as long.
const LEFT_WITHIN: SignedDuration = SignedDuration::from_secs(30);
/// Time for the container of the new image to run; after it the pod gets the old image back. The node's holder keeps the mount for 60 s
/// from the end of the engine, and 20 s may pass before the patch and before the run that finds the time over: 10 s are left for the old
/// image to go on with the mount.
const RUNS_WITHIN: SignedDuration = SignedDuration::from_secs(30);
/// Time for which one container of the new image must run before the pod counts as upgraded: the time for its engine to serve, and some for
/// the holder to hand over the mount and for the kubelet to report an end. Doubled, the node's next pod waits twice as long.
const SETTLES: SignedDuration = SignedDuration::from_secs(SERVES_WITHIN.as_secs().cast_signed() + 10);
/// Difference of two reconcilers' clocks that costs nothing. Beyond it, a patch of the one counts from the moment at which the other sees it.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_secs(2);
/// The pause after a writer delayed an upgrade.
const AGAIN_AFTER: SignedDuration = SignedDuration::from_secs(300);
/// Run time of a restarted container after which the kubelet starts the next one without backoff: ten minutes, and one for clocks that
/// differ.
const STARTS_AT_ONCE: SignedDuration = SignedDuration::from_secs(660);

/// The facts about the Mountpoint Pods of all nodes.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Now.
    pub now: Timestamp,
    /// The image of new Mountpoint Pods; `None`: upgrades in place are off, and upgrades in progress are finished.
    pub image: Option<String>,
    /// The images of the running drivers, by node.
    pub drivers: BTreeMap<String, BTreeSet<String>>,
    /// The Mountpoint Pods.
    pub pods: Vec<Pod>,
}

/// A Mountpoint Pod.
#[derive(Clone, Debug)]
pub struct Pod {
    /// The pod's namespace, name and UID.
    pub at: WorkloadRef,
    /// The version of the object that was read.
    pub version: Version,
    /// The node of the pod.
    pub node: String,
    /// The image of the pod.
    pub image: String,
    /// The annotation of the last attempt, if there was one.
    pub attempt: Option<Attempt>,
    /// Whether the pod serves workloads, and nothing has begun to end it.
    pub serves: bool,
    /// The start time of the mounter's container; `None` while it does not run.
    pub runs_since: Option<Timestamp>,
    /// The number of restarts of its container.
    pub restarts: u32,
    /// Exit status and end of the container before.
    pub ended: Option<(i32, Timestamp)>,
    /// The workloads that it serves.
    pub workloads: Vec<WorkloadRef>,
}

/// One write of a pod, and the notices to send after it.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The pod, as the plan saw it.
    pub at: Version,
    /// The pod's new image; `None` keeps the present one.
    pub image: Option<String>,
    /// The new annotation of the attempt; `None` removes it.
    pub attempt: Option<Attempt>,
    /// The notices to send after the write.
    pub notices: Vec<Notice>,
}

/// The steps that are due, for all pods.
#[must_use]
pub fn plan(facts: &Facts) -> Vec<Step> {
    let mut steps = Vec::new();
    let is_under_way = |pod: &&Pod| pod.attempt.as_ref().is_some_and(is_under_way);
    let mut busy: BTreeSet<_> = facts.pods.iter().filter(is_under_way).map(|pod| pod.node.as_str()).collect();
    for pod in &facts.pods {
        match &pod.attempt {
            Some(attempt) if is_under_way(&pod) => steps.extend(go_on(pod, attempt, facts.now)),
            _ => {
                if let Some(step) = begin(pod, facts).filter(|_| busy.insert(&pod.node)) {
                    steps.push(step);
                }
            }
        }
    }
    steps
}

fn is_under_way(attempt: &Attempt) -> bool {
    matches!(attempt.stage, Stage::Asked | Stage::Patched | Stage::Runs)
}

/// The first step of an upgrade, if the pod needs one and it may succeed.
fn begin(pod: &Pod, facts: &Facts) -> Option<Step> {
    let to = facts.image.as_ref().filter(|image| **image != pod.image)?;
    let rests = pod.attempt.as_ref().is_some_and(|last| match last.stage {
        Stage::TakenBack => last.to == *to,
        _ => facts.now.duration_since(last.since) < AGAIN_AFTER,
    });
    let is_there = facts.drivers.get(&pod.node).is_some_and(|images| images.contains(to));
    let since = pod.runs_since?;
    // The kubelet's backoff could otherwise be longer than the holder keeps the mount.
    let starts_at_once = pod.ended.is_none() || facts.now.duration_since(since) >= STARTS_AT_ONCE;
    if rests || !is_there || !pod.serves || !starts_at_once {
        return None;
    }
    let (from, to, restarts) = (pod.image.clone(), to.clone(), pod.restarts);
    Some(pod.step(None, Some(Attempt { stage: Stage::Asked, from, to, since: facts.now, restarts })))
}

/// The next step of an upgrade, if one is due.
fn go_on(pod: &Pod, attempt: &Attempt, now: Timestamp) -> Option<Step> {
    let age = now.duration_since(attempt.since);
    let after = |stage| Some(Attempt { stage, since: now, restarts: pod.restarts, ..attempt.clone() });
    let Attempt { from, to, .. } = attempt;
    if attempt.stage == Stage::Asked {
        if !pod.serves || pod.image != *from {
            return Some(pod.step(None, None));
        }
        // The next container runs, and waits for the new image.
        let has_left = pod.ended.is_some_and(|(status, _)| status == i32::from(HANDED_OVER))
            && pod.restarts == attempt.restarts + 1
            && pod.runs();
        return if has_left {
            Some(pod.step(Some(to), after(Stage::Patched)))
        } else if age >= LEFT_WITHIN {
            let note = format!(
                "Mountpoint Pod {} keeps its image {from}: within {} s its engine did not leave the mount to {to}. Is a file being written? Its \
                 log and the driver's say why. The next attempt follows in some minutes",
                pod.at.name,
                LEFT_WITHIN.as_secs()
            );
            let step = pod.step(None, after(Stage::HeldBack));
            Some(Step { notices: vec![notice(&pod.at, Reason::MountpointPodUpgradeHeldBack, &note)], ..step })
        } else {
            None
        };
    }
    if pod.image != *to {
        return Some(pod.step(None, None));
    }
    let is_next = pod.restarts > attempt.restarts;
    if !pod.runs() {
        // The container began and ended, or does not start.
        if !is_next && attempt.stage == Stage::Patched && age < RUNS_WITHIN {
            // The reconciler before had a clock that is ahead of this one. Its time would end when the holder has given the mount up.
            return (age < -CLOCKS_DIFFER).then(|| pod.step(None, after(Stage::Patched)));
        }
        let note = format!(
            "Mountpoint Pod {} did not run with image {to}, and gets {from} again; that image is not tried again. The log of its container \
             (--previous) says why",
            pod.at.name
        );
        let step = pod.step(Some(from), after(Stage::TakenBack));
        return Some(Step { notices: pod.tells_all(Reason::MountpointPodUpgradeTakenBack, &note), ..step });
    }
    // An upgrade is not taken back while its container runs, which may serve writers. Each container's time counts from its own start.
    if is_next {
        return Some(pod.step(None, after(Stage::Runs)));
    }
    if attempt.stage == Stage::Runs && age >= SETTLES {
        let note = format!(
            "Mountpoint Pod {} has image {to} now, and had {from}: its mount went on meanwhile",
            pod.at.name
        );
        let step = pod.step(None, None);
        return Some(Step { notices: pod.tells_all(Reason::MountpointPodUpgraded, &note), ..step });
    }
    None
}

impl Pod {
    fn runs(&self) -> bool {
        self.runs_since.is_some()
    }

    fn step(&self, image: Option<&String>, attempt: Option<Attempt>) -> Step {
        Step { at: self.version.clone(), image: image.cloned(), attempt, notices: Vec::new() }
    }

    fn tells_all(&self, reason: Reason, note: &str) -> Vec<Notice> {
        self.workloads.iter().chain([&self.at]).map(|at| notice(at, reason, note)).collect()
    }
}

fn notice(at: &WorkloadRef, reason: Reason, note: &str) -> Notice {
    Notice { workload: at.clone(), reason, note: note.to_owned() }
}

#[cfg(test)]
mod tests;
