//! Keeps the rename of a directory apart from what else happens to names below it.
//!
//! The rename copies what the bucket has below the old name, then deletes it. A send that stores an object there meanwhile would leave the
//! object under the old name, a removal would leave the copy. So sends of the stage below both directories wait until the rename ends,
//! removals, renames and new directories as well; and the rename waits for those that began before it.
//!
//! Without a stage a file may be stored while the rename copies: that is noted here, and the rename moves it at its end. While the rename
//! deletes, it holds the files below back itself (`follow.rs`). An open for writing begins neither below such a directory nor while its
//! own name changes: what it finds would be gone.

use tokio::sync::watch;

use crate::object::{ETag, ObjectKey};
use crate::sync::{Arc, Mutex};

/// The directories that are being renamed, and the changes of names in progress.
#[derive(Clone, Debug, Default)]
pub(super) struct Pauses(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    paused: Vec<Entry>,
    changing: Vec<Entry>,
    /// Opens for writing that find out which object they replace or continue.
    opening: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    /// Keys of both directories, with their `/`; or the names that change, without.
    keys: Vec<ObjectKey>,
    /// Files that were stored below the first directory since.
    late: Vec<Late>,
    /// Closed when the rename or the change ends.
    end: watch::Receiver<()>,
}

/// A file that was stored below a directory during the directory's rename.
#[derive(Debug)]
pub(in crate::fs) struct Late {
    pub(in crate::fs) key: ObjectKey,
    pub(in crate::fs) etag: ETag,
}

/// A guard: sends and changes below two directories wait until it is dropped.
#[derive(Debug)]
pub(in crate::fs) struct Pause(Guard);

/// A guard: renames of the directories above some names wait until it is dropped. Opens for writing exclude changes of their name.
#[derive(Debug)]
pub(in crate::fs) struct Change(#[expect(dead_code, reason = "held")] Guard);

#[derive(Debug)]
struct Guard {
    pauses: Pauses,
    number: u64,
    _end: watch::Sender<()>,
}

impl State {
    fn entry(&mut self, keys: Vec<ObjectKey>) -> (Entry, watch::Sender<()>) {
        let (sender, end) = watch::channel(());
        self.next += 1;
        (Entry { number: self.next, keys, late: Vec::new(), end }, sender)
    }

    fn pause_above(&self, key: &ObjectKey) -> Option<&Entry> {
        let is_above = |paused: &&Entry| paused.keys.iter().any(|top| key.as_str().starts_with(top.as_str()));
        self.paused.iter().find(is_above)
    }

    /// The end of what keeps a change of these names from beginning, or an open for writing (`opens`).
    fn in_the_way(&self, keys: &[ObjectKey], opens: bool) -> Option<watch::Receiver<()>> {
        let others = if opens { &self.changing } else { &self.opening };
        let is_of_them = |other: &&Entry| other.keys.iter().any(|key| keys.contains(key));
        let above = keys.iter().find_map(|key| self.pause_above(key));
        above.or_else(|| others.iter().find(is_of_them)).map(|entry| entry.end.clone())
    }
}

impl Pauses {
    /// Pauses sends and changes below these directories.
    pub(super) fn begin(&self, below: [ObjectKey; 2]) -> Pause {
        let mut state = self.0.lock();
        let (entry, end) = state.entry(below.into());
        let number = entry.number;
        state.paused.push(entry);
        Pause(Guard { pauses: self.clone(), number, _end: end })
    }

    /// Whether a send of this file must wait.
    pub(super) fn has(&self, key: &ObjectKey) -> bool {
        self.0.lock().pause_above(key).is_some()
    }

    /// Returns once no directory above this file is being renamed.
    pub(super) async fn ended(&self, key: &ObjectKey) {
        while let Some(mut end) = self.end_of(key) {
            // An error means that the rename has ended.
            let _ = end.changed().await;
        }
    }

    fn end_of(&self, key: &ObjectKey) -> Option<watch::Receiver<()>> {
        self.0.lock().pause_above(key).map(|paused| paused.end.clone())
    }

    /// Begins a change of names once no directory above them is being renamed, and none of them is being opened for writing. `keys` says
    /// the present keys of the names, which a rename changes.
    pub(super) async fn change(&self, keys: impl Fn() -> Vec<ObjectKey>) -> Change {
        self.begin_alone(keys, false).await
    }

    /// Begins an open for writing once neither its name nor that of a directory above changes. `key` says the present key of the file.
    pub(super) async fn open(&self, key: impl Fn() -> Option<ObjectKey>) -> Change {
        self.begin_alone(|| key().into_iter().collect(), true).await
    }

    async fn begin_alone(&self, keys: impl Fn() -> Vec<ObjectKey>, opens: bool) -> Change {
        loop {
            let wanted = keys();
            match self.begin_change(&wanted, opens) {
                Ok(change) if keys() == wanted => return change,
                Ok(_) => {}
                // An error means that it has ended.
                Err(mut end) => _ = end.changed().await,
            }
        }
    }

    /// Takes in that a file is stored. `tell` tells the tree of names: either the rename of a directory above hears of the file before its
    /// end, or `tell` finds the file under its new name.
    pub(super) fn stored(&self, key: &ObjectKey, etag: &ETag, tell: impl FnOnce()) {
        let mut state = self.0.lock();
        let is_above = |paused: &&mut Entry| {
            paused.keys.first().is_some_and(|from| key.as_str().starts_with(from.as_str()))
        };
        for paused in state.paused.iter_mut().filter(is_above) {
            paused.late.push(Late { key: key.clone(), etag: etag.clone() });
        }
        tell();
    }

    /// Begins a change of these names, or an open for writing. The error is the end of what it must wait for.
    fn begin_change(&self, keys: &[ObjectKey], opens: bool) -> Result<Change, watch::Receiver<()>> {
        let mut state = self.0.lock();
        if let Some(end) = state.in_the_way(keys, opens) {
            return Err(end);
        }
        let (entry, end) = state.entry(keys.to_vec());
        let number = entry.number;
        let begun = if opens { &mut state.opening } else { &mut state.changing };
        begun.push(entry);
        Ok(Change(Guard { pauses: self.clone(), number, _end: end }))
    }
}

impl Pause {
    /// Returns once all changes and opens below the directories have ended that began before the pause.
    pub(in crate::fs) async fn alone(&self) {
        while let Some(mut end) = self.change_below() {
            // An error means that the change has ended.
            let _ = end.changed().await;
        }
    }

    /// Takes the files that were stored below the old name since the last call.
    pub(in crate::fs) fn take_late(&self) -> Vec<Late> {
        let mut state = self.0.pauses.0.lock();
        let own = state.paused.iter_mut().find(|paused| paused.number == self.0.number);
        own.map_or_else(Vec::new, |own| std::mem::take(&mut own.late))
    }

    /// Tells the tree of names by `tell` that the directory has its new name, unless a file was stored below the old name meanwhile.
    pub(in crate::fs) fn unless_late<T>(&self, tell: impl FnOnce() -> T) -> Option<T> {
        let state = self.0.pauses.0.lock();
        let is_late = |paused: &Entry| paused.number == self.0.number && !paused.late.is_empty();
        (!state.paused.iter().any(is_late)).then(tell)
    }

    fn change_below(&self) -> Option<watch::Receiver<()>> {
        let state = self.0.pauses.0.lock();
        let tops = &state.paused.iter().find(|paused| paused.number == self.0.number)?.keys;
        let is_below = |key: &ObjectKey| tops.iter().any(|top| key.as_str().starts_with(top.as_str()));
        // A change of a directory's own name is the rename itself.
        let is_own =
            |key: &ObjectKey| tops.iter().any(|top| top.as_str().strip_suffix('/') == Some(key.as_str()));
        let change = state
            .changing
            .iter()
            .chain(&state.opening)
            .find(|change| change.keys.iter().any(is_below) && !change.keys.iter().any(is_own))?;
        Some(change.end.clone())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut state = self.pauses.0.lock();
        state.paused.retain(|paused| paused.number != self.number);
        state.changing.retain(|change| change.number != self.number);
        state.opening.retain(|open| open.number != self.number);
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

    #[test]
    fn a_rename_hears_of_each_file_stored_below_the_old_name_before_its_end() {
        let pauses = Pauses::default();
        let store = |key: &str| pauses.stored(&key.into(), &ETag::new("\"1\""), || ());
        store("a/before");
        let pause = pauses.begin(["a/".into(), "b/".into()]);
        ["a/x", "b/x", "ab"].into_iter().for_each(store);
        assert_eq!(pause.unless_late(|| ()), None);
        let late: Vec<_> = pause.take_late().into_iter().map(|late| late.key.as_str().to_owned()).collect();
        assert_eq!((late, pause.take_late().len()), (vec!["a/x".to_owned()], 0));
        assert_eq!(pause.unless_late(|| 7), Some(7));
    }

    #[tokio::test]
    async fn changes_and_renames_above_them_wait_for_those_that_began_before() {
        let pauses = Pauses::default();
        let first = pauses.change(|| vec!["a/x".into()]).await;
        let elsewhere = pauses.change(|| vec!["c/x".into(), "ab".into()]).await;
        let own = pauses.change(|| vec!["a".into(), "b".into()]).await;
        let pause = pauses.begin(["a/".into(), "b/".into()]);
        let key = Arc::new(Mutex::new("a/y"));
        let second = {
            let (pauses, key) = (pauses.clone(), Arc::clone(&key));
            tokio::spawn(async move { pauses.change(|| vec![(*key.lock()).into()]).await })
        };
        tokio::task::yield_now().await;
        assert!(!second.is_finished() && pause.change_below().is_some());
        drop(first);
        pause.alone().await;
        *key.lock() = "b/y";
        drop(pause);
        let second = second.await.unwrap();
        assert!(pauses.begin(["a/".into(), "c/d/".into()]).change_below().is_none());
        assert!(pauses.begin(["b/".into(), "d/".into()]).change_below().is_some(), "it has the new key");
        drop((second, elsewhere, own));
        assert!(pauses.0.lock().changing.is_empty() && pauses.0.lock().paused.is_empty());
    }

    #[tokio::test]
    async fn an_open_for_writing_and_a_change_of_its_name_exclude_each_other() {
        let pauses = Pauses::default();
        let open = pauses.open(|| Some("a".into())).await;
        let (beside, other) =
            (pauses.open(|| Some("a".into())).await, pauses.change(|| vec!["b".into()]).await);
        let mut change = std::pin::pin!(pauses.change(|| vec!["a".into(), "c".into()]));
        assert!(futures_util::poll!(change.as_mut()).is_pending());
        drop(open);
        assert!(futures_util::poll!(change.as_mut()).is_pending());
        drop(beside);
        let change = change.await;
        let mut open = std::pin::pin!(pauses.open(|| Some("c".into())));
        assert!(futures_util::poll!(open.as_mut()).is_pending());
        drop(change);
        let open = open.await;
        drop(other);
        // A rename of a directory waits for the open below it.
        let pause = pauses.begin(["c/".into(), "d/".into()]);
        assert!(pause.change_below().is_none());
        drop(pause);
        let below = pauses.open(|| Some("c/x".into())).await;
        let pause = pauses.begin(["c/".into(), "d/".into()]);
        assert!(pause.change_below().is_some());
        drop((below, open));
        pause.alone().await;
        assert!(pauses.0.lock().opening.is_empty());
    }
}
