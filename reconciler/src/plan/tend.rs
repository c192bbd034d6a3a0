//! The Mountpoint Pods of a group apart from the plan of their workloads. Enters: the pods, and which of them the plan names. Leaves: marks
//! and deletions of pods that no attachment names, and notices for the workloads that wait for a pod.
//!
//! Never here: the deletion of a pod that may serve. Usually the node ends a marked pod: it unmounts the source and tells the mounter to
//! end. On a node without a running driver nothing ends the pod, which would stay for good. So this file deletes the pod once its
//! container does not run, or has started again since the mark after it ended by itself: a mounter that waits for a device in vain ends
//! within ten minutes, and one that was killed may have left its mount to the node's holder. A time limit after the mark would not do: a
//! container can still have a mount that the host no longer has.

use super::{Effect, Planner, UNNAMED_FOR, mark, version_of};
use crate::facts::{MountpointPod, Phase};
use csi::contract::reason::Reason;

impl Planner<'_> {
    /// Deletes pods that ended and asks other pods to unmount, unless an attachment names them.
    pub(super) fn tend_pods(&mut self) {
        for (name, pod) in &self.facts.pods {
            self.explain(name, pod);
            self.announce_end(name, pod);
            if !pod.ours || pod.deleting || pod.named || self.is_listed(name) || self.is_adopted(name) {
                continue;
            }
            if pod.phase.has_ended() || (pod.needs_unmount && pod.phase == Phase::Pending) {
                self.deletions.push(Effect::DeletePod(version_of(name, pod)));
            } else if pod.needs_unmount && !pod.may_serve() {
                self.unnamed.insert(name.clone());
                self.deletions.push(Effect::DeletePod(version_of(name, pod)));
            } else if pod.needs_unmount {
                // An earlier release, or an administrator, has marked the pod without the number of its restarts.
                if pod.restarts_when_marked.is_none() {
                    self.marks.insert(name.clone(), mark(name, pod));
                }
            } else {
                let age = self.facts.now.duration_since(pod.created).unsigned_abs();
                if age >= UNNAMED_FOR {
                    self.unnamed.insert(name.clone());
                    self.marks.insert(name.clone(), mark(name, pod));
                } else {
                    self.look_again(UNNAMED_FOR - age);
                }
            }
        }
    }

    /// Tells running workloads until when their pod serves, after its deletion has begun. A writer that does not know would go on until the
    /// end and lose the file.
    fn announce_end(&mut self, name: &str, pod: &MountpointPod) {
        let Some(ends_at) = pod.ends_at.filter(|_| pod.phase == Phase::Running && pod.may_serve()) else {
            return;
        };
        let named = self.drafts.iter().filter_map(|draft| draft.entries.get(name)).flatten();
        let served: Vec<_> = named
            .filter_map(|it| self.facts.workloads.get(&it.workload_pod_uid))
            .filter(|workload| workload.phase == Phase::Running && !workload.deleting)
            .collect();
        for workload in served {
            let note = format!(
                "Mountpoint Pod {name} of PersistentVolume {} was asked to end. It serves this pod until {} at the latest; after that files give \
                 \"Transport endpoint is not connected\". Close files and restart this pod before: the new one gets another Mountpoint Pod.",
                self.facts.group.volume,
                ends_at.strftime("%Y-%m-%d %H:%M:%S UTC")
            );
            self.tell(workload, Reason::MountpointPodEnds, note);
        }
    }

    /// Tells workloads why the pod for which they wait does not start.
    fn explain(&mut self, name: &str, pod: &MountpointPod) {
        let Some(trouble) = pod.trouble.as_ref().filter(|_| pod.phase == Phase::Pending) else { return };
        let named = self.drafts.iter().filter_map(|draft| draft.entries.get(name)).flatten();
        let waiting: Vec<_> = named
            .filter_map(|it| self.facts.workloads.get(&it.workload_pod_uid))
            .filter(|workload| !workload.phase.has_ended())
            .collect();
        for workload in waiting {
            self.tell(
                workload,
                Reason::MountpointPodWaits,
                format!("Mountpoint Pod {name} does not start: {trouble}"),
            );
        }
    }
}
