//! Unmounts sources without targets. Enters: the table of mounts, the notes. Leaves: a source that had no target for a while is unmounted,
//! and its keys and its note are removed.
//!
//! Sources of Mountpoint Pods are unmounted, too: the driver may have made them before `node.mounter` was changed, and no reconciler is
//! left. After a change the other way round they are the other mounter's.
//!
//! Never here: an unmount while a target is bound.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use mountpoint::sync::Arc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::Node;
use super::shares::Share;
use crate::contract::comm::{self, Comm};
use crate::contract::engines_pod::is_source;
use crate::mounter::comm_files::CommFiles;
use crate::mounter::idle::Unmounting;
use crate::mounter::mountinfo::Mounts;
use crate::mounter::notes::Notes;

/// Interval of the search for sources whose unmount failed or whose driver ended.
const LOOK_EVERY: Duration = Duration::from_secs(120);
/// Time for which a process that only looks at a source may keep it in use.
const LOOKED_AT: Duration = Duration::from_secs(3);

/// The sources that have had no target for `unused_for`, and the time when the next one is due. `since` keeps the start of each one's time.
fn due(
    since: &mut BTreeMap<String, Instant>,
    unused: &BTreeSet<String>,
    now: Instant,
    unused_for: Duration,
) -> (Vec<String>, Option<Instant>) {
    since.retain(|name, _| unused.contains(name));
    for name in unused {
        since.entry(name.clone()).or_insert(now);
    }
    let is_due = |then: &Instant| now.duration_since(*then) >= unused_for;
    let due = since.iter().filter(|(_, then)| is_due(then)).map(|(name, _)| name.clone()).collect();
    let next = since.values().filter(|then| !is_due(then)).min().map(|then| *then + unused_for);
    (due, next)
}

/// Unmounts unused sources until this task is dropped. One that waits, such as for a mount of its volume, stops no other.
pub(super) async fn run(node: Arc<Node>) {
    let mut since = BTreeMap::new();
    let mut under_way = JoinSet::new();
    let mut names = BTreeSet::new();
    loop {
        let unused = node.unused();
        let (due, next) = due(&mut since, &unused, Instant::now(), node.config.unused_for);
        for name in due {
            if names.insert(name.clone()) {
                let node = Arc::clone(&node);
                under_way.spawn(async move {
                    let outcome = node.unmount_source(&name).await;
                    (name, outcome)
                });
            }
        }
        let again = Instant::now() + LOOK_EVERY;
        let until = next.map_or(again, |next| next.min(again));
        tokio::select! {
            _ = timeout(until.saturating_duration_since(Instant::now()), node.released.notified()) => {}
            Some(done) = under_way.join_next(), if !under_way.is_empty() => {
                let Ok((name, outcome)) = done else { continue };
                names.remove(&name);
                if let Err(why) = outcome {
                    tracing::warn!("the source {name} has no target and stays: {why}");
                }
                // One that stays is tried again after the same time.
                since.insert(name, Instant::now());
            }
        }
    }
}

impl Node {
    /// The sources without a target, mounted or only noted.
    pub(super) fn unused(&self) -> BTreeSet<String> {
        let kubelet = &self.config.kubelet;
        let Ok(mounts) = Mounts::read() else { return BTreeSet::new() };
        let entries = std::fs::read_dir(comm::sources(kubelet)).into_iter().flatten().flatten();
        let there = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let noted = self.shares.all().unwrap_or_default().into_keys();
        let ours = |name: &String| !self.leaves || is_source(name);
        there.chain(noted).filter(|name| ours(name) && !self.has_targets(&mounts, name)).collect()
    }

    fn has_targets(&self, mounts: &Mounts, name: &str) -> bool {
        let source = mounts.at(&comm::source(&self.config.kubelet, name));
        source.is_some_and(|source| mounts.references(source, &self.config.kubelet).next().is_some())
    }

    pub(super) async fn unmount_source(&self, name: &str) -> Result<(), String> {
        let key = self.shares.get(name).map(|share| share.key);
        let _source = self.locks.lock(key.as_deref().unwrap_or(name)).await;
        // A mount that held the lock may have moved the source to another pod.
        let share = self.shares.get(name);
        let mounts = Mounts::read().map_err(|error| format!("reading the table of mounts: {error}"))?;
        // Targets of a dead mount are bound to no source until the source is mounted again, and that needs its note.
        if self.has_targets(&mounts, name) || self.revivals.of(name).is_some() {
            return Ok(());
        }
        let comm = match &share {
            Some(share) if share.is_readable() => Some(self.comm(&share.pod, name)),
            // The pod of before has ended, or the present one has the source.
            Some(_) => self.pods.known().map(|uid| self.comm(&uid, name)),
            None => {
                Notes::of(&self.config.kubelet).uid(name).map(|uid| Comm::on_host(&self.config.kubelet, &uid))
            }
        };
        // The directory is missing if the kubelet has removed the pod.
        let files = comm.map(|comm| CommFiles::find(&comm)).transpose();
        let files = files.map_err(|error| error.to_string())?.flatten();
        let unmounting = Unmounting {
            source: comm::source(&self.config.kubelet, name),
            kubelet: self.config.kubelet.clone(),
            notes: Notes::of(&self.config.kubelet),
            within: LOOKED_AT,
            probes: self.probes.clone(),
        };
        if let Some(files) = &files {
            files.announce_exit().map_err(|error| error.to_string())?;
        }
        if let Err(why) = unmounting.take_away(files.as_ref()).await {
            // The engine goes on.
            let _ = files.map(|files| files.withdraw_exit());
            return Err(why);
        }
        let source = &unmounting.source;
        match std::fs::remove_dir(source) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(format!("removing the directory {}: {error}", source.display()));
            }
            _ => {}
        }
        if let Some(files) = &files {
            files.remove_credentials().map_err(|error| format!("removing credentials: {error}"))?;
        }
        if let Some(cache) = share.as_ref().and_then(Share::used_cache) {
            self.caches.leave(cache, name);
        }
        let forgotten = match share {
            Some(_) => self.shares.forget(name),
            None => unmounting.notes.forget(name),
        };
        forgotten.map_err(|error| format!("forgetting it: {error}"))?;
        tracing::info!("{} is unmounted", source.display());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_due_a_minute_after_its_last_target_and_not_if_one_came() {
        let (start, mut since) = (Instant::now(), BTreeMap::new());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut due = |names: &[&str], seconds| {
            let unused = names.iter().map(|&it| it.to_owned()).collect();
            super::due(&mut since, &unused, at(seconds), Duration::from_secs(60))
        };
        assert_eq!(due(&["a", "b"], 0), (vec![], Some(at(60))));
        assert_eq!(due(&["a"], 30), (vec![], Some(at(60))), "b has a target");
        assert_eq!(due(&["a", "b"], 60), (vec!["a".to_owned()], Some(at(120))));
        assert_eq!(due(&[], 90), (vec![], None));
    }
}
