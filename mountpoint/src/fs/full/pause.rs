//! Pauses sends of files below a directory during its rename. Without the pause, a send could store an object under the old name, and the
//! rename would leave the object there.

use tokio::sync::watch;

use crate::object::ObjectKey;
use crate::sync::{Arc, Mutex};

/// The directories that are being renamed.
#[derive(Clone, Debug, Default)]
pub(super) struct Pauses(Arc<Mutex<Vec<Paused>>>);

#[derive(Debug)]
struct Paused {
    number: u64,
    /// Keys of both directories, with their `/`.
    below: [ObjectKey; 2],
    /// Closed when the rename ends.
    end: watch::Receiver<()>,
}

/// A guard: sends below two directories wait until it is dropped.
#[derive(Debug)]
pub(in crate::fs) struct Pause {
    pauses: Pauses,
    number: u64,
    _end: watch::Sender<()>,
}

impl Pauses {
    /// Pauses sends of files below these directories.
    pub(super) fn begin(&self, below: [ObjectKey; 2]) -> Pause {
        let (sender, end) = watch::channel(());
        let mut all = self.0.lock();
        let number = all.last().map_or(0, |last| last.number + 1);
        all.push(Paused { number, below, end });
        Pause { pauses: self.clone(), number, _end: sender }
    }

    /// Whether a send of this file must wait.
    pub(super) fn has(&self, key: &ObjectKey) -> bool {
        self.end_of(key).is_some()
    }

    /// Returns once no directory above this file is being renamed.
    pub(super) async fn ended(&self, key: &ObjectKey) {
        while let Some(mut end) = self.end_of(key) {
            // An error means that the rename has ended.
            let _ = end.changed().await;
        }
    }

    fn end_of(&self, key: &ObjectKey) -> Option<watch::Receiver<()>> {
        let is_below =
            |paused: &&Paused| paused.below.iter().any(|top| key.as_str().starts_with(top.as_str()));
        self.0.lock().iter().find(is_below).map(|paused| paused.end.clone())
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.pauses.0.lock().retain(|paused| paused.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn files_below_both_directories_wait_until_the_rename_ends() {
        let pauses = Pauses::default();
        let (first, second) =
            (pauses.begin(["a/".into(), "b/".into()]), pauses.begin(["a/c/".into(), "d/".into()]));
        for (key, waits) in [("a/x", true), ("b/x/y", true), ("d/x", true), ("ab", false), ("c/x", false)] {
            assert_eq!(pauses.has(&key.into()), waits, "{key}");
        }
        pauses.ended(&"c/x".into()).await;
        let (waits, key) = (pauses.clone(), "a/c/x".into());
        let waiting = tokio::spawn(async move { waits.ended(&key).await });
        drop(first);
        assert!(pauses.has(&"a/c/x".into()) && !pauses.has(&"a/x".into()));
        drop(second);
        waiting.await.unwrap();
    }
}
