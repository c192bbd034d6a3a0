//! Room for Mountpoint Pods beside workloads that ask for it by a scheduling gate. Enters: [`Facts`]. Leaves: steps.
//!
//! A gated workload gets a label, each of its volumes of this driver gets a headroom pod with an affinity to that label, and then the
//! gate is removed: scheduler and autoscaler see both at once. The Mountpoint Pods of a labelled workload preempt its headroom pods. When
//! the workload is no longer Pending, its remaining headroom pods and the label are removed.
//!
//! Never here: a call to the API server, a clock. The next step follows only when the effect of the step before is visible; a step on old
//! facts fails.

pub mod act;
pub mod observe;

use std::collections::BTreeSet;

use csi::contract::reason::Reason;
use csi::events::{Notice, WorkloadRef};

use crate::plan::Version;
use crate::pod_spec::{HeadroomRequest, Settings};

/// The facts about workloads with gate or label, and about headroom pods.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The workloads.
    pub workloads: Vec<Workload>,
    /// The headroom pods.
    pub pods: Vec<HeadroomPod>,
}

/// A workload that has the gate or the label.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The workload.
    pub at: WorkloadRef,
    /// The version that was seen.
    pub version: Version,
    /// The workload has the gate.
    pub gated: bool,
    /// The workload's other gates.
    pub other_gates: Vec<String>,
    /// The workload has the label.
    pub labelled: bool,
    /// The workload has not begun, and may.
    pub pending: bool,
    /// Whether its deletion has begun.
    pub deleting: bool,
    /// The workload has waited for longer than a volume usually takes to be made.
    pub waits_long: bool,
    /// The workload's volumes of this driver, or the reason why they are unknown.
    pub volumes: Result<Vec<(String, Settings)>, String>,
}

/// A headroom pod.
#[derive(Clone, Debug)]
pub struct HeadroomPod {
    /// The version that was seen.
    pub version: Version,
    /// The UID of its workload.
    pub workload_uid: String,
    /// The PersistentVolume.
    pub volume: String,
    /// Whether its deletion has begun.
    pub deleting: bool,
}

/// A step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Labels this workload, so that its headroom pods are drawn to it.
    Label(WorkloadRef, Version),
    /// Make a headroom pod.
    Create(Box<HeadroomRequest>),
    /// Removes our gate from a workload; the other gates stay.
    Ungate(WorkloadRef, Version, Vec<String>),
    /// Delete a headroom pod.
    Delete(Version),
    /// Removes the label of a workload that needs no headroom any more.
    Unlabel(WorkloadRef, Version),
    /// Tells the user of a workload.
    Tell(Notice),
}

/// The steps that are due, and whether some workload still waits for room.
#[must_use]
pub fn plan(facts: &Facts) -> (Vec<Step>, bool) {
    let mut steps = Vec::new();
    let mut waits = false;
    for workload in &facts.workloads {
        let own: Vec<_> = facts.pods.iter().filter(|pod| pod.workload_uid == workload.at.uid).collect();
        let at = || (workload.at.clone(), workload.version.clone());
        if workload.pending && !workload.deleting {
            if workload.gated {
                waits = true;
                reserve(workload, &own, &mut steps);
            }
            // Otherwise the workload's Mountpoint Pods are about to start.
        } else if own.is_empty() {
            if workload.labelled && !workload.deleting {
                let (at, version) = at();
                steps.push(Step::Unlabel(at, version));
            }
        } else {
            steps.extend(own.into_iter().filter_map(delete));
        }
    }
    let known: BTreeSet<_> = facts.workloads.iter().map(|workload| workload.at.uid.as_str()).collect();
    let orphans = facts.pods.iter().filter(|pod| !known.contains(pod.workload_uid.as_str()));
    steps.extend(orphans.filter_map(delete));
    (steps, waits)
}

fn reserve(workload: &Workload, own: &[&HeadroomPod], steps: &mut Vec<Step>) {
    let Workload { at, version, .. } = workload;
    let volumes = match &workload.volumes {
        Ok(volumes) => volumes,
        Err(why) => {
            if workload.waits_long {
                let note =
                    format!("no room is reserved for its Mountpoint Pods, and it is not scheduled: {why}");
                steps.push(Step::Tell(Notice { workload: at.clone(), reason: Reason::HeadroomWaits, note }));
            }
            return;
        }
    };
    if !workload.labelled && !volumes.is_empty() {
        steps.push(Step::Label(at.clone(), version.clone()));
    }
    let missing: Vec<_> =
        volumes.iter().filter(|(volume, _)| !own.iter().any(|pod| pod.volume == *volume)).collect();
    if missing.is_empty() && (workload.labelled || volumes.is_empty()) {
        steps.push(Step::Ungate(at.clone(), version.clone(), workload.other_gates.clone()));
    }
    steps.extend(missing.into_iter().map(|(volume, settings)| {
        let (volume, settings) = (volume.clone(), settings.clone());
        Step::Create(Box::new(HeadroomRequest { workload: at.clone(), volume, settings }))
    }));
}

fn delete(pod: &HeadroomPod) -> Option<Step> {
    (!pod.deleting).then(|| Step::Delete(pod.version.clone()))
}

#[cfg(test)]
mod tests;
