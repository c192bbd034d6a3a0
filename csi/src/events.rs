//! Events on workloads, which `kubectl describe pod` shows. Enters: a [`Notice`]. Leaves: an Event, unless the same Event was written
//! a short time ago. An Event that can't be written is logged, and delays nothing else.
//!
//! Never here: the decision to write an Event.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::Mutex;

use crate::contract::reason::Reason;

/// Time within which the same notice is not written again. Kubernetes keeps an Event for an hour.
const SAID_FOR: Duration = Duration::from_secs(600);
/// Most notices that are remembered. At the limit all are forgotten, and some Events may be repeated early.
const REMEMBERED: usize = 4096;
/// Most bytes of an Event's note that the API server accepts. A longer text is shortened.
const NOTE_LIMIT: usize = 1024;

/// A pod, for messages and Events.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkloadRef {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
}

/// A warning about a workload, to be written as an Event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Notice {
    /// The workload.
    pub workload: WorkloadRef,
    /// The reason of the Event: one word, which alerts and scripts match.
    pub reason: Reason,
    /// The text: what happened, and the next thing to check.
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
    /// A writer of Events in the name of this `instance` of `controller`.
    #[must_use]
    pub fn new(client: Client, controller: &str, instance: &str) -> Self {
        let reporter = Reporter { controller: controller.to_owned(), instance: Some(instance.to_owned()) };
        let counting = Recorder::new(client.clone(), reporter.clone());
        Self { client, reporter, counting, said: Mutex::default() }
    }

    /// Writes an Event on the workload. The same notice is not written again within ten minutes, unless its reason is one that counts. A
    /// failure is logged.
    pub async fn tell(&self, notice: &Notice) {
        let Notice { workload, reason, note } = notice;
        // Events with these reasons repeat while the trouble lasts.
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
        // Other Events get a separate recorder each: a shared one would count a new text as a repetition of the old one.
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
