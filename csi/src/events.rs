//! Events on workloads, as `kubectl describe pod` shows them. Enters: a [`Notice`]. Leaves: an Event, unless the same Event was written
//! a short time ago. An Event that can't be written is logged, and stops nothing.
//!
//! Never here: the decision to write an Event.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::Mutex;

use crate::contract::reason::Reason;

/// The time within which the same notice is not written again. An Event lives for an hour.
const SAID_FOR: Duration = Duration::from_secs(600);
/// Most notices that are kept. Beyond it all are dropped, and some Events may be repeated early.
const REMEMBERED: usize = 4096;
/// Most bytes of text that the API server takes in an Event. A longer text is shortened.
const NOTE_LIMIT: usize = 1024;

/// A reference to a workload's pod, for messages and Events.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkloadRef {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
}

/// A warning on a workload.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Notice {
    /// The workload.
    pub workload: WorkloadRef,
    /// The reason of the Event: one word, which alerts and scripts match.
    pub reason: Reason,
    /// The text: the event, and the next thing to look at.
    pub note: String,
}

/// Writes Events.
pub struct Teller {
    client: Client,
    reporter: Reporter,
    counting: Recorder,
    said: Mutex<HashMap<Notice, Instant>>,
}

impl Teller {
    /// A writer of Events whose reporter is this `instance` of `controller`.
    #[must_use]
    pub fn new(client: Client, controller: &str, instance: &str) -> Self {
        let reporter = Reporter { controller: controller.to_owned(), instance: Some(instance.to_owned()) };
        let counting = Recorder::new(client.clone(), reporter.clone());
        Self { client, reporter, counting, said: Mutex::default() }
    }

    /// Writes an Event on the workload, unless the same notice was written within ten minutes and its reason is not a counting one. A
    /// failure is logged.
    pub async fn tell(&self, notice: &Notice) {
        let Notice { workload, reason, note } = notice;
        // Such an Event repeats while the trouble lasts.
        let counts = matches!(reason, Reason::MountpointPodNotServing | Reason::VolumeEngineRestarted);
        if !counts && !self.is_news(notice, Instant::now()).await {
            return;
        }
        let event = Event {
            type_: EventType::Warning,
            reason: reason.to_string(),
            note: Some(shortened(note)),
            action: "Mount".to_owned(),
            secondary: None,
        };
        let regarding = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(workload.namespace.clone()),
            name: Some(workload.name.clone()),
            uid: Some(workload.uid.clone()),
            ..ObjectReference::default()
        };
        tracing::warn!(workload = %workload.name, namespace = %workload.namespace, %reason, "{note}");
        // Each of the other Events gets a recorder of its own: a shared one would count a new text as a repetition of the old one.
        let single = || Recorder::new(self.client.clone(), self.reporter.clone());
        let recorder = if counts { self.counting.clone() } else { single() };
        if let Err(error) = recorder.publish(&event, &regarding).await {
            tracing::warn!(workload = %workload.name, namespace = %workload.namespace, %error, "an Event was not written");
            self.said.lock().await.remove(notice);
        }
    }

    async fn is_news(&self, notice: &Notice, now: Instant) -> bool {
        let mut said = self.said.lock().await;
        if said.get(notice).is_some_and(|then| now.duration_since(*then) < SAID_FOR) {
            return false;
        }
        if said.len() >= REMEMBERED {
            said.clear();
        }
        said.insert(notice.clone(), now);
        true
    }
}

fn shortened(note: &str) -> String {
    let mut end = note.len().min(NOTE_LIMIT);
    while !note.is_char_boundary(end) {
        end -= 1;
    }
    note[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_note_is_cut_between_characters() {
        assert_eq!(shortened("short"), "short");
        let long = "ä".repeat(600);
        assert!(shortened(&long).len() <= NOTE_LIMIT && long.starts_with(&shortened(&long)));
        assert_eq!(shortened(&format!("x{long}")).len(), 1023);
    }
}
