//! Decides what to do about one volume on one node. Enters: [`Facts`]. Leaves: a [`Plan`], effects in their order.
//!
//! Never here: a call to the API server, a clock, a computed name to find an existing object.
//!
//! Facts may be old, a plan may stop after any effect, and for moments two reconcilers may plan at once. These rules make
//! that safe:
//! - A plan creates a Mountpoint Pod before the attachment that names it, under a name that a retry computes again.
//! - One write changes an attachment, and it fails if another writer changed the attachment first.
//! - An entry that was seen empty is closed: no workload is added to it. A pod is asked to unmount only when no workload can join.
//! - "Not seen" is not "gone": before a plan concludes anything from an absence, it asks the API server.
//! - A pod that had not started when it was seen may have started since: it is asked to unmount before its workloads go to another one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use csi::contract::attachment::{MountpointS3PodAttachment, ShareKey, WorkloadAttachment};
use csi::contract::pod;
use csi::contract::reason::Reason;
use csi::events::{Notice, WorkloadRef};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::facts::{Facts, MountpointPod, Phase, Wants, Workload};
use crate::pod_spec::PodRequest;
use crate::twins;

mod draft;
mod tend;

use draft::{Draft, used_up};

/// Age at which a Mountpoint Pod that no attachment names is adopted, or asked to unmount. By then its creator has either named
/// it or given up: a call takes at most 10 s, and a Lease expires after 15 s.
pub const UNNAMED_FOR: Duration = Duration::from_secs(90);

/// Annotation of an attachment: the names of Mountpoint Pods below this attempt are not used again, even when no pod has them any more. A
/// source directory of such a pod may still be mounted.
pub const ATTEMPTS: &str = "s3.csi.scality.com/attempts";

/// Most attempts whose names are compared with a pod's name. A workload rarely needs two; a pod of a later attempt is not recognized.
const ATTEMPTS_TRIED: u32 = 64;

/// Annotation of an attachment: [`Replacements`](crate::replacements::Replacements) of Mountpoint Pods that ended before they served.
pub const REPLACED: &str = "s3.csi.scality.com/replaced";

/// The effects, in their order. If an effect finds its facts outdated, the rest is dropped, and the group is planned again.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    /// The effects.
    pub effects: Vec<Effect>,
    /// The time after which the group is due again even without an event.
    pub look_again_in: Option<Duration>,
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Asks the API server to confirm that none of these pods runs on the node any more.
    ConfirmWorkloadsEnded {
        /// The node.
        node: String,
        /// UIDs of workloads.
        uids: BTreeSet<String>,
    },
    /// Asks the API server to confirm that the pod is gone, or has ended.
    ConfirmPodEnded {
        /// The Mountpoint Pod.
        pod: String,
    },
    /// Asks the API server to confirm that no attachment names this pod.
    ConfirmUnnamed {
        /// The Mountpoint Pod.
        pod: String,
    },
    /// Asks the API server to confirm that no attachment names these workloads.
    ConfirmUnattached {
        /// UIDs of workloads.
        uids: BTreeSet<String>,
    },
    /// Asks a Mountpoint Pod to unmount.
    MarkNeedsUnmount {
        /// The Mountpoint Pod, as the plan saw it.
        at: Version,
        /// The number of restarts of its container so far.
        restarts: u32,
    },
    /// Creates a Mountpoint Pod. A pod that has the name already is taken if it was created for the same workload and volume.
    CreatePod {
        /// The pod to create.
        request: Box<PodRequest>,
        /// The workloads that wait for the pod.
        workload: WorkloadRef,
    },
    /// Creates an attachment.
    CreateAttachment(Box<MountpointS3PodAttachment>),
    /// Changes entries of an attachment.
    UpdateAttachment {
        /// The attachment, as the plan saw it.
        at: Version,
        /// The new workloads of each changed entry, by Mountpoint Pod; `None` removes the entry.
        entries: BTreeMap<String, Option<Vec<WorkloadAttachment>>>,
        /// New values of [`ATTEMPTS`] and [`REPLACED`], if they change.
        annotations: BTreeMap<String, String>,
    },
    /// Deletes an attachment without entries.
    DeleteAttachment(Version),
    /// Deletes a Mountpoint Pod that has ended, or that serves no mount and is not needed.
    DeletePod(Version),
    /// Writes an Event on a workload.
    Tell(Notice),
}

/// An object as the plan saw it: the effect fails if the object was changed or replaced since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The object's name.
    pub name: String,
    /// The object's UID.
    pub uid: String,
    /// The object's resource version.
    pub resource_version: String,
}

/// Decides the effects for these facts.
#[must_use]
pub fn plan(facts: &Facts) -> Plan {
    let mut planner = Planner::new(facts);
    planner.take_out_ended();
    planner.drop_empty();
    planner.replace_lost();
    planner.attach_new();
    planner.write_attachments();
    planner.tend_pods();
    planner.notices.extend(twins::notices(facts));
    planner.finish()
}

struct Planner<'a> {
    facts: &'a Facts,
    drafts: Vec<Draft<'a>>,
    /// Live workloads that an attachment names.
    attached: BTreeSet<&'a str>,
    ended: BTreeSet<String>,
    pods_ended: BTreeSet<String>,
    unnamed: BTreeSet<String>,
    unattached: BTreeSet<String>,
    /// Marks of pods, by name: two attachments may name the same pod.
    marks: BTreeMap<String, Effect>,
    new_pods: Vec<Effect>,
    /// Marks of pods that had not started, by name, to apply after their workloads have another pod. If such a pod has started since, its
    /// mark fails, and its workloads stay.
    left: BTreeMap<String, Effect>,
    new_attachments: BTreeMap<ShareKey, MountpointS3PodAttachment>,
    writes: Vec<Effect>,
    deletions: Vec<Effect>,
    notices: Vec<Notice>,
    look_again_in: Option<Duration>,
}

impl<'a> Planner<'a> {
    fn new(facts: &'a Facts) -> Self {
        let mut drafts: Vec<_> = facts.attachments.iter().map(Draft::new).collect();
        // The oldest attachment is the first one, for every reconciler.
        drafts.sort_by_key(|draft| {
            let metadata = &draft.seen.metadata;
            (metadata.creation_timestamp.as_ref().map(|time| time.0), metadata.name.clone())
        });
        Self {
            facts,
            drafts,
            attached: BTreeSet::new(),
            ended: BTreeSet::new(),
            pods_ended: BTreeSet::new(),
            unnamed: BTreeSet::new(),
            unattached: BTreeSet::new(),
            marks: BTreeMap::new(),
            new_pods: Vec::new(),
            left: BTreeMap::new(),
            new_attachments: BTreeMap::new(),
            writes: Vec::new(),
            deletions: Vec::new(),
            notices: Vec::new(),
            look_again_in: None,
        }
    }

    /// Detaches workloads that have ended or are gone, and workloads that an older attachment already names.
    fn take_out_ended(&mut self) {
        let facts = self.facts;
        for draft in &mut self.drafts {
            for (pod, seen) in &draft.seen.spec.mountpoint_pods {
                let stays =
                    |workload: &&WorkloadAttachment| match facts.workloads.get(&workload.workload_pod_uid) {
                        Some(known) if known.phase.has_ended() => false,
                        Some(known) => {
                            let is_first = self.attached.insert(&known.at.uid);
                            self.notices.extend((!is_first).then(|| claimed_twice(known, draft.seen, pod)));
                            is_first
                        }
                        None => {
                            self.ended.insert(workload.workload_pod_uid.clone());
                            false
                        }
                    };
                let left = seen.iter().filter(stays).cloned().collect();
                draft.entries.insert(pod.clone(), left);
            }
        }
    }

    /// Removes entries that were seen empty: the entry's pod is asked to unmount, and the entry is dropped.
    fn drop_empty(&mut self) {
        for draft in &mut self.drafts {
            for (name, _) in
                draft.seen.spec.mountpoint_pods.iter().filter(|(_, workloads)| workloads.is_empty())
            {
                draft.entries.remove(name);
                if let Some(pod) = self.facts.pods.get(name)
                    && pod.ours
                    && !pod.used
                    && !pod.needs_unmount
                    && !pod.phase.has_ended()
                    && !emptied_by_hand(self.facts, &self.attached, pod)
                {
                    self.marks.insert(name.clone(), mark(name, pod));
                }
            }
        }
    }

    /// Gives another Mountpoint Pod to workloads whose pod is gone, or ends before it served them.
    fn replace_lost(&mut self) {
        for index in 0..self.drafts.len() {
            let entries = self.drafts[index].entries.clone();
            for (name, workloads) in entries {
                let pod = self.facts.pods.get(&name);
                for attached in workloads {
                    let workload = &self.facts.workloads[&attached.workload_pod_uid];
                    let lost = pod.is_none_or(|pod| pod.phase.has_ended());
                    // A workload that runs keeps its mount until the pod has really ended: the node does not unmount a mount in use. A pod
                    // that never started gave it no mount.
                    let never_came = pod.is_some_and(|pod| {
                        !pod.stays() && (pod.outdated || workload.phase == Phase::Pending)
                    });
                    if workload.deleting || !(lost || never_came) {
                        continue;
                    }
                    let why = match pod {
                        None => "is gone".to_owned(),
                        Some(pod) if lost => {
                            let trouble = pod.trouble.as_deref().unwrap_or("no reason given");
                            format!("has ended ({trouble})")
                        }
                        Some(pod) if pod.outdated => {
                            "never began, and would be made otherwise by now".to_owned()
                        }
                        Some(_) => "is being removed".to_owned(),
                    };
                    let Some(wants) = &workload.wants else {
                        self.tell(workload, Reason::MountpointPodLost, format!(
                            "Mountpoint Pod {name} {why}, and there is no new one: the claim or the PersistentVolume {} does not \
                             exist any more. Delete this pod.", self.facts.group.volume));
                        continue;
                    };
                    // The pod did not serve a pending workload. It served a running one, unless this pod never started.
                    let unserved = workload.phase == Phase::Pending || pod.is_some_and(|pod| !pod.began);
                    let counted = unserved && self.open_entry(&self.drafts[index], wants).is_none();
                    let wait = self.drafts[index].replaced.wait(self.facts.now);
                    if counted && !wait.is_zero() {
                        self.look_again(wait);
                        continue;
                    }
                    if pod.is_none() {
                        self.pods_ended.insert(name.clone());
                    }
                    let Some(next) = self.place(index, workload, wants) else { continue };
                    if counted {
                        let draft = &mut self.drafts[index];
                        draft.replaced = draft.replaced.another(self.facts.now);
                    }
                    if let Some(pod) = pod.filter(|pod| pod.outdated && !pod.needs_unmount) {
                        self.left.insert(name.clone(), mark(&name, pod));
                    }
                    let left = self.drafts[index]
                        .entries
                        .get_mut(&name)
                        .expect("entries of a draft stay in this step");
                    left.retain(|it| it.workload_pod_uid != attached.workload_pod_uid);
                    if unserved {
                        // The text does not name the pod, so that it stays the same each time.
                        self.tell(workload, Reason::MountpointPodNotServing, format!(
                            "the Mountpoint Pod of PersistentVolume {} {why} before it served. Another takes its place: at most 6 in \
                             10 minutes, with pauses of up to 5 minutes.", self.facts.group.volume));
                        continue;
                    }
                    self.tell(workload, Reason::MountpointPodLost, format!(
                        "Mountpoint Pod {name} {why}; {next} takes its place. A container that does not see the new mount \
                         (mountPropagation is not HostToContainer) must be restarted."));
                }
            }
        }
    }

    /// Attaches workloads that no attachment names yet.
    fn attach_new(&mut self) {
        for (uid, workload) in &self.facts.workloads {
            let Some(wants) = &workload.wants else { continue };
            if self.attached.contains(uid.as_str()) || workload.phase.has_ended() || workload.deleting {
                continue;
            }
            if workload.phase == Phase::Running {
                self.attach_again(workload, wants);
                continue;
            }
            let same = |draft: &Draft<'_>| draft.seen.spec.share_key() == wants.key;
            let is_open = |draft: &Draft<'_>| same(draft) && self.open_entry(draft, wants).is_some();
            let open = self.drafts.iter().position(is_open);
            if let Some(index) = open.or_else(|| self.drafts.iter().position(same)) {
                self.place(index, workload, wants);
            } else if !self.new_attachments.contains_key(&wants.key) {
                let Some((name, attempt)) = self.new_pod(0, workload, wants) else { continue };
                let mut attachment = wants.key.attachment(&name, self.attach(workload));
                attachment.metadata.annotations = (attempt > 0).then(|| used_up(attempt));
                self.new_attachments.insert(wants.key.clone(), attachment);
            }
            // Otherwise the workload joins the new attachment once the cache has that.
        }
    }

    /// Attaches a workload that runs without an attachment. If a fitting Mountpoint Pod lives that no attachment names, the attachment was
    /// deleted, and the plan creates it again. Otherwise release 1 mounted the volume on the host, and the workload is left alone.
    fn attach_again(&mut self, workload: &Workload, wants: &Wants) {
        let Some(name) = self.adoptable(&workload.at.uid, wants).map(str::to_owned) else { return };
        let attached = self.attach(workload);
        self.unattached.insert(workload.at.uid.clone());
        let same = |draft: &Draft<'_>| draft.seen.spec.share_key() == wants.key;
        if let Some(index) = self.drafts.iter().position(same) {
            self.drafts[index].entries.entry(name.clone()).or_default().push(attached);
        } else if let Some(new) = self.new_attachments.get_mut(&wants.key) {
            new.spec.mountpoint_pods.entry(name.clone()).or_default().push(attached);
        } else {
            let mut new = wants.key.attachment(&name, attached);
            let (uid, volume) = (&workload.at.uid, &self.facts.group.volume);
            let is = |attempt: &u32| pod::name(uid, volume, &self.facts.release, *attempt) == name;
            new.metadata.annotations = (1..ATTEMPTS_TRIED).find(is).map(used_up);
            self.new_attachments.insert(wants.key.clone(), new);
        }
        self.tell(workload, Reason::AttachedAgain, format!(
            "this pod ran without an attachment; Mountpoint Pod {name} of PersistentVolume {} is attached to it again",
            self.facts.group.volume));
    }

    /// The pod that was created for this workload and so has mounted its volume, even if the volume changed since; otherwise the only pod
    /// that may serve it.
    fn adoptable(&self, uid: &str, wants: &Wants) -> Option<&str> {
        let key = &wants.key;
        let serves_others = |pod: &MountpointPod| {
            let maker = pod.workload_uid.as_ref().and_then(|uid| self.facts.workloads.get(uid));
            maker.and_then(|maker| maker.wants.as_ref()).is_some_and(|wants| wants.key != *key)
        };
        let is_own = |pod: &MountpointPod| pod.workload_uid.as_deref() == Some(uid);
        let is_of = |pod: &MountpointPod| pod.is_of(wants.volume_uid.as_deref());
        let free = |(name, pod): &(&String, &MountpointPod)| {
            pod.ours
                && pod.stays()
                && pod.volume.as_ref() == Some(&self.facts.group.volume)
                && (emptied_by_hand(self.facts, &self.attached, pod)
                    || !pod.named
                        && !self.drafts.iter().any(|it| it.seen.spec.mountpoint_pods.contains_key(*name)))
                && !serves_others(pod)
                && (is_own(pod) || is_of(pod))
        };
        let mut found: Vec<_> = self.facts.pods.iter().filter(free).collect();
        let own = |also: bool| found.iter().position(|(_, pod)| is_own(pod) && (also || is_of(pod)));
        if let Some(own) = own(false).or_else(|| own(true)) {
            found = vec![found[own]];
        } else if key.identity.is_some() {
            // The pod's identity can't be found any more.
            return None;
        }
        match found[..] {
            [(name, _)] => Some(name),
            _ => None,
        }
    }

    /// Puts a workload into an entry that accepts it, or into the entry of a new pod; returns the pod's name. `None`: the volume's
    /// attributes for Mountpoint Pods are invalid, or the creation of the pod was refused.
    fn place(&mut self, index: usize, workload: &Workload, wants: &Wants) -> Option<String> {
        let draft = &self.drafts[index];
        let name = if let Some(name) = self.open_entry(draft, wants) {
            name.to_owned()
        } else {
            // A pod that an attachment names may take workloads even if the cache does not have it.
            let unseen = draft.entries.iter().filter(|(name, workloads)| {
                !workloads.is_empty() && !self.facts.pods.contains_key(*name) && !self.is_new(name)
            });
            let unseen: Vec<_> = unseen.map(|(name, _)| name.clone()).collect();
            let (name, attempt) = self.new_pod(draft.attempts, workload, wants)?;
            self.pods_ended.extend(unseen);
            self.drafts[index].attempts = attempt;
            name
        };
        let attached = self.attach(workload);
        self.drafts[index].entries.entry(name.clone()).or_default().push(attached);
        Some(name)
    }

    /// The first entry that accepts workloads of this volume: an entry with a workload, or a new one. A volume that was deleted and created
    /// again under its name needs another pod: the old pod serves the old bucket.
    fn open_entry<'d>(&self, draft: &'d Draft<'_>, wants: &Wants) -> Option<&'d str> {
        let seen = &draft.seen.spec.mountpoint_pods;
        draft.entries.keys().map(String::as_str).find(|name| {
            let takes = |pod: &MountpointPod| {
                pod.takes(&self.facts.release) && pod.is_of(wants.volume_uid.as_deref())
            };
            let Some(workloads) = seen.get(*name) else {
                return self.facts.pods.get(*name).is_none_or(takes);
            };
            !workloads.is_empty() && self.facts.pods.get(*name).is_some_and(takes)
        })
    }

    /// A pod for this workload: one that was created for it and not named yet, or a new one. Returns its name and the attempt.
    fn new_pod(&mut self, from: u32, workload: &Workload, wants: &Wants) -> Option<(String, u32)> {
        let settings = match &wants.settings {
            Ok(settings) => settings.clone(),
            Err(why) => {
                let volume = &self.facts.group.volume;
                let note = match why.contains(&format!("PersistentVolume {volume}")) {
                    true => format!("no Mountpoint Pod is made: {why}."),
                    false => format!("no Mountpoint Pod is made: {why}. Correct PersistentVolume {volume}."),
                };
                self.tell(workload, Reason::VolumeRefused, note);
                return None;
            }
        };
        let (uid, volume) = (&workload.at.uid, &self.facts.group.volume);
        for attempt in from..=u32::MAX {
            let name = pod::name(uid, volume, &self.facts.release, attempt);
            if self.facts.refused.contains(&name) {
                return None;
            }
            if self.is_listed(&name) {
                continue;
            }
            match self.facts.pods.get(&name) {
                Some(pod) if self.is_waiting(pod, uid, wants) => {}
                Some(_) => continue,
                None => {
                    let request = PodRequest {
                        name: name.clone(),
                        node: self.facts.group.node.clone(),
                        volume: volume.clone(),
                        volume_uid: wants.volume_uid.clone(),
                        handle: wants.key.handle.clone(),
                        workload_uid: uid.clone(),
                        settings,
                    };
                    self.new_pods.push(Effect::CreatePod {
                        request: Box::new(request),
                        workload: workload.at.clone(),
                    });
                }
            }
            return Some((name, attempt));
        }
        None
    }

    fn write_attachments(&mut self) {
        for draft in &self.drafts {
            if draft.entries.is_empty() {
                self.writes.push(Effect::DeleteAttachment(draft.version()));
            } else if let Some(update) = draft.update() {
                self.writes.push(update);
            }
        }
        let new = std::mem::take(&mut self.new_attachments);
        self.writes.extend(new.into_values().map(|it| Effect::CreateAttachment(Box::new(it))));
    }

    fn finish(self) -> Plan {
        let mut effects = Vec::new();
        if !self.ended.is_empty() {
            let node = self.facts.group.node.clone();
            effects.push(Effect::ConfirmWorkloadsEnded { node, uids: self.ended });
        }
        effects.extend(self.pods_ended.into_iter().map(|pod| Effect::ConfirmPodEnded { pod }));
        effects.extend(self.unnamed.into_iter().map(|pod| Effect::ConfirmUnnamed { pod }));
        if !self.unattached.is_empty() {
            effects.push(Effect::ConfirmUnattached { uids: self.unattached });
        }
        effects.extend(self.marks.into_values());
        effects.extend(self.new_pods);
        effects.extend(self.left.into_values());
        effects.extend(self.writes);
        effects.extend(self.deletions);
        effects.extend(self.notices.into_iter().map(Effect::Tell));
        Plan { effects, look_again_in: self.look_again_in }
    }

    /// Whether an attachment of the group names this pod, or will after this plan.
    fn is_listed(&self, name: &str) -> bool {
        self.facts.attachments.iter().any(|it| it.spec.mountpoint_pods.contains_key(name))
            || self.drafts.iter().any(|draft| draft.entries.contains_key(name))
            || self.is_adopted(name)
    }

    /// Whether a pod was created for this workload, by a reconciler that ended before it wrote the attachment.
    fn is_waiting(&self, pod: &MountpointPod, uid: &str, wants: &Wants) -> bool {
        pod.is_for(uid, &self.facts.group.volume)
            && pod.is_of(wants.volume_uid.as_deref())
            && pod.takes(&self.facts.release)
            && !pod.named
    }

    fn is_adopted(&self, name: &str) -> bool {
        self.new_attachments.values().any(|it| it.spec.mountpoint_pods.contains_key(name))
            || self.writes.iter().any(|write| {
                matches!(write, Effect::CreateAttachment(it) if it.spec.mountpoint_pods.contains_key(name))
            })
    }

    fn is_new(&self, name: &str) -> bool {
        self.new_pods.iter().any(|it| matches!(it, Effect::CreatePod { request, .. } if request.name == name))
    }

    fn attach(&self, workload: &Workload) -> WorkloadAttachment {
        WorkloadAttachment {
            workload_pod_uid: workload.at.uid.clone(),
            attachment_time: Time(self.facts.now),
        }
    }

    fn look_again(&mut self, wait: Duration) {
        self.look_again_in = Some(self.look_again_in.map_or(wait, |other| other.min(wait)));
    }

    fn tell(&mut self, workload: &Workload, reason: Reason, note: String) {
        self.notices.push(Notice { workload: workload.at.clone(), reason, note });
    }
}

/// The notice for a workload that two attachments name. Two reconcilers may cause that for moments; a second attachment that stays was
/// written by hand.
fn claimed_twice(workload: &Workload, attachment: &MountpointS3PodAttachment, pod: &str) -> Notice {
    let name = attachment.metadata.name.as_deref().unwrap_or_default();
    let note = format!(
        "MountpointS3PodAttachment {name} names this pod beside an older one: it is taken out there, and what it has mounted stays. Mountpoint \
         Pod {pod} does not serve it. Look for the writer of that attachment"
    );
    Notice { workload: workload.at.clone(), reason: Reason::AttachedTwice, note }
}

fn mark(name: &str, pod: &MountpointPod) -> Effect {
    Effect::MarkNeedsUnmount { at: version_of(name, pod), restarts: pod.restarts }
}

fn version_of(name: &str, pod: &MountpointPod) -> Version {
    Version { name: name.to_owned(), uid: pod.uid.clone(), resource_version: pod.resource_version.clone() }
}

/// Whether the workload for which this pod was created runs, and no attachment names it. Then somebody emptied the entry: the reconciler
/// empties it only when its workloads have ended.
fn emptied_by_hand(facts: &Facts, attached: &BTreeSet<&str>, pod: &MountpointPod) -> bool {
    let maker = pod.workload_uid.as_ref().and_then(|uid| facts.workloads.get(uid));
    let runs = |it: &&Workload| it.phase == Phase::Running && !it.deleting && it.wants.is_some();
    !pod.used && maker.filter(runs).is_some_and(|it| !attached.contains(it.at.uid.as_str()))
}

#[cfg(test)]
mod tests;
