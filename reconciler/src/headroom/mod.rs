//! Headroom: room for Mountpoint Pods beside workloads that request it by a scheduling gate. Enters: [`Facts`]. Leaves: steps.
//!
//! A gated workload gets a label, each of its volumes of this driver gets a headroom pod with an affinity to that label, and then the
//! gate is removed: scheduler and autoscaler see both at once. The Mountpoint Pods of a labelled workload preempt its headroom pods. When
//! the workload is no longer Pending, its remaining headroom pods and the label are removed.
//!
//! Never here: a call to the API server, a clock. A step follows only when the caches show the effect of the step before; a step with
//! outdated facts fails.

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
    /// The workload's namespace, name and UID.
    pub at: WorkloadRef,
    /// The version of the object that was read.
    pub version: Version,
    /// Whether the workload has the gate.
    pub gated: bool,
    /// The names of the workload's other gates.
    pub other_gates: Vec<String>,
    /// Whether the workload has the label.
    pub labelled: bool,
    /// Whether the workload's pod is pending: not started, and not ended.
    pub pending: bool,
    /// Whether the deletion of the workload has begun.
    pub deleting: bool,
    /// Whether the workload has waited for longer than a volume usually needs to be provisioned.
    pub waits_long: bool,
    /// The workload's volumes of this driver by name, or the reason why they are unknown.
    pub volumes: Result<Vec<(String, Settings)>, String>,
}

/// A headroom pod.
#[derive(Clone, Debug)]
pub struct HeadroomPod {
    /// The version of the object that was read.
    pub version: Version,
    /// The UID of the headroom pod's workload.
    pub workload_uid: String,
    /// The PersistentVolume for whose Mountpoint Pod the headroom pod reserves room.
    pub volume: String,
    /// Whether the deletion of the headroom pod has begun.
    pub deleting: bool,
}

/// One write to the cluster, or one Event.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Labels this workload, so its headroom pods have an affinity to it.
    Label(WorkloadRef, Version),
    /// Creates a headroom pod.
    Create(Box<HeadroomRequest>),
    /// Removes our gate from a workload; the gates in the list stay.
    Ungate(WorkloadRef, Version, Vec<String>),
    /// Deletes a headroom pod.
    Delete(Version),
    /// Removes the label of a workload that needs no headroom any more.
    Unlabel(WorkloadRef, Version),
    /// Writes an Event on a workload.
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
            // A workload without the gate keeps its headroom: its Mountpoint Pods are about to start.
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
