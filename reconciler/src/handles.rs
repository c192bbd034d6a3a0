//! An index of this driver's PersistentVolumes by volume handle. Enters: the events of the watch of volumes. Leaves: the names of the
//! volumes with one handle, without a scan of all volumes: every change of a pod needs them.
//!
//! Never here: the volumes themselves. A volume may have been deleted, or created again, since; the caller checks.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use csi::contract::DRIVER;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;

type Names = HashMap<String, BTreeSet<String>>;

/// The index. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Handles(Arc<Mutex<Index>>);

#[derive(Debug, Default)]
struct Index {
    names: Names,
    /// The names of a list in progress; they replace `names` when the list is complete.
    listing: Names,
}

impl Handles {
    /// Applies one event of the watch. Events must come in order.
    pub fn see(&self, event: &Event<PersistentVolume>) {
        let Index { names, listing } = &mut *self.lock();
        match event {
            Event::Init => listing.clear(),
            Event::InitApply(volume) => add(listing, volume),
            Event::InitDone => *names = std::mem::take(listing),
            Event::Apply(volume) => add(names, volume),
            Event::Delete(volume) => remove(names, volume),
        }
    }

    /// The names of the volumes with this handle.
    #[must_use]
    pub fn names(&self, handle: &str) -> BTreeSet<String> {
        self.lock().names.get(handle).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The handle of a volume; `None` if it belongs to another driver.
#[must_use]
pub fn handle_of(volume: &PersistentVolume) -> Option<&str> {
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    (csi.driver == DRIVER).then_some(&csi.volume_handle)
}

fn add(names: &mut Names, volume: &PersistentVolume) {
    if let Some(handle) = handle_of(volume) {
        names.entry(handle.to_owned()).or_default().insert(volume.name_any());
    }
}

fn remove(names: &mut Names, volume: &PersistentVolume) {
    let Some(handle) = handle_of(volume) else { return };
    if let Some(same) = names.get_mut(handle) {
        same.remove(&volume.name_any());
        if same.is_empty() {
            names.remove(handle);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn volume(name: &str, handle: &str, driver: &str) -> PersistentVolume {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"csi": {"driver": driver, "volumeHandle": handle}},
        }))
        .unwrap()
    }

    #[test]
    fn names_follow_the_watch_and_a_list_counts_once_it_is_complete() {
        let handles = Handles::default();
        let names = |handle: &str| handles.names(handle).into_iter().collect::<Vec<_>>().join(" ");
        handles.see(&Event::Apply(volume("a", "same", DRIVER)));
        handles.see(&Event::Apply(volume("b", "same", DRIVER)));
        handles.see(&Event::Apply(volume("b", "same", DRIVER)));
        handles.see(&Event::Apply(volume("c", "same", "another.example.com")));
        assert_eq!((names("same"), names("none")), ("a b".to_owned(), String::new()));
        handles.see(&Event::Delete(volume("a", "same", DRIVER)));
        assert_eq!(names("same"), "b");
        handles.see(&Event::Init);
        handles.see(&Event::InitApply(volume("d", "same", DRIVER)));
        assert_eq!(names("same"), "b", "the list goes on");
        handles.see(&Event::InitDone);
        assert_eq!(names("same"), "d");
        handles.see(&Event::Delete(volume("d", "same", DRIVER)));
        assert_eq!(handles.lock().names.len(), 0, "a handle that nobody has is forgotten");
    }
}
