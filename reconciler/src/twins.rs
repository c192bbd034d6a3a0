//! PersistentVolumes with the same handle, which the kubelet treats as one volume. Enters: the [`Facts`] of one of them. Leaves: the
//! notices for its workloads.
//!
//! Never here: an effect on them. If the kubelet asks to mount the second one, the node refuses it while the first is in use
//! (`csi::node::claims`).

use csi::contract::reason::Reason;
use csi::events::Notice;

use crate::facts::{Facts, Group};

/// A notice for each workload that uses the volume, while workloads on the node use its twins.
pub(crate) fn notices(facts: &Facts) -> Vec<Notice> {
    if facts.twins.is_empty() {
        return Vec::new();
    }
    let twins: Vec<&str> = facts.twins.iter().map(String::as_str).collect();
    let Group { node, volume } = &facts.group;
    let note = format!(
        "PersistentVolumes {volume} and {} have the same volumeHandle, and pods on node {node} use them. The kubelet treats them \
         as one volume and does not mount the second one. Give each a volumeHandle of its own; they may name the same bucket.",
        twins.join(" and ")
    );
    let uses =
        facts.workloads.values().filter(|it| it.wants.is_some() && !it.phase.has_ended() && !it.deleting);
    uses.map(|it| Notice {
        workload: it.at.clone(),
        reason: Reason::VolumeHandleNotUnique,
        note: note.clone(),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use csi::contract::attachment::ShareKey;
    use csi::events::WorkloadRef;
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::facts::{Phase, Wants, Workload};
    use crate::pod_spec::Settings;

    #[test]
    fn workloads_that_use_one_of_two_volumes_with_one_handle_are_told_of_both() {
        let key = ShareKey {
            node: "n".into(),
            volume: "v".into(),
            handle: "h".into(),
            mount_options: String::new(),
            fs_group: String::new(),
            identity: None,
        };
        let wants = Some(Wants { key, volume_uid: None, settings: Ok(Settings::default()) });
        let workload = |uid: &str, phase, deleting, wants| {
            let at = WorkloadRef { namespace: "default".into(), name: uid.into(), uid: uid.into() };
            (uid.to_owned(), Workload { at, phase, deleting, wants })
        };
        let mut facts = Facts {
            now: Timestamp::UNIX_EPOCH,
            group: Group { node: "n".into(), volume: "v".into() },
            release: "1".into(),
            workloads: BTreeMap::from([
                workload("runs", Phase::Running, false, wants.clone()),
                workload("waits", Phase::Pending, false, wants.clone()),
                workload("leaves", Phase::Running, true, wants.clone()),
                workload("ended", Phase::Failed, false, wants),
                workload("unbound", Phase::Running, false, None),
            ]),
            attachments: Vec::new(),
            pods: BTreeMap::new(),
            twins: BTreeSet::new(),
            refused: BTreeSet::new(),
        };
        assert_eq!(notices(&facts), []);
        facts.twins = BTreeSet::from(["other".to_owned(), "third".to_owned()]);
        let told = notices(&facts);
        assert_eq!(told.iter().map(|it| it.workload.uid.as_str()).collect::<Vec<_>>(), ["runs", "waits"]);
        assert!(
            told.iter().all(|it| it.note.contains("PersistentVolumes v and other and third")),
            "{told:?}"
        );
    }
}
