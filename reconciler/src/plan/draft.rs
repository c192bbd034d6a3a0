//! An attachment in a plan. Enters: the observed attachment. Leaves: the write that brings it to the planned state.
//!
//! Never here: a decision about its workloads.

use std::collections::BTreeMap;

use csi::contract::attachment::{MountpointS3PodAttachment, WorkloadAttachment};

use super::{ATTEMPTS, Effect, REPLACED, Version};
use crate::replacements::Replacements;

/// An attachment: as observed, and with its planned changes.
pub(super) struct Draft<'a> {
    pub(super) seen: &'a MountpointS3PodAttachment,
    pub(super) entries: BTreeMap<String, Vec<WorkloadAttachment>>,
    pub(super) attempts: u32,
    pub(super) replaced: Replacements,
}

impl<'a> Draft<'a> {
    pub(super) fn new(seen: &'a MountpointS3PodAttachment) -> Self {
        Self { seen, entries: BTreeMap::new(), attempts: attempts(seen), replaced: replaced(seen) }
    }

    pub(super) fn version(&self) -> Version {
        let metadata = self.seen.metadata.clone();
        Version {
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            resource_version: metadata.resource_version.unwrap_or_default(),
        }
    }

    /// The write that makes the planned changes; `None` if there are none.
    pub(super) fn update(&self) -> Option<Effect> {
        let seen = &self.seen.spec.mountpoint_pods;
        let gone =
            seen.keys().filter(|name| !self.entries.contains_key(*name)).map(|name| (name.clone(), None));
        let changed = self.entries.iter().filter(|(name, now)| seen.get(*name) != Some(now));
        let changed = changed.map(|(name, now)| (name.clone(), Some(now.clone())));
        let entries: BTreeMap<_, _> = gone.chain(changed).collect();
        let mut annotations = BTreeMap::new();
        if self.attempts > attempts(self.seen) {
            annotations.insert(ATTEMPTS.to_owned(), self.attempts.to_string());
        }
        if self.replaced != replaced(self.seen) {
            annotations.insert(REPLACED.to_owned(), self.replaced.to_string());
        }
        (!entries.is_empty()).then(|| Effect::UpdateAttachment { at: self.version(), entries, annotations })
    }
}

/// The annotation after which names below this attempt are not used again.
pub(super) fn used_up(attempt: u32) -> BTreeMap<String, String> {
    BTreeMap::from([(ATTEMPTS.to_owned(), attempt.to_string())])
}

fn attempts(attachment: &MountpointS3PodAttachment) -> u32 {
    annotation(attachment, ATTEMPTS).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn replaced(attachment: &MountpointS3PodAttachment) -> Replacements {
    annotation(attachment, REPLACED).map(Replacements::parse).unwrap_or_default()
}

fn annotation<'a>(attachment: &'a MountpointS3PodAttachment, key: &str) -> Option<&'a str> {
    attachment.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}
