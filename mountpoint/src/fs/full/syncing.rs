//! `mount-s3-ctl sync`: stores the pending files below a path now, and names those that can't be stored.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::Full;
use super::sending::SENDS_MAX;
use crate::fs::{FileSystem, Result};
use crate::inode::{InodeNo, ROOT};
use crate::object::ObjectKey;
use crate::stage::{Staged, Turn};
use crate::sync::Arc;

/// The first pause before files that could not be stored are tried again; each further pause doubles, up to the longest. Doubling both
/// constants asks an unreachable store half as often, and notices its return later.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The reason for a file that is not sent, since it may be half-written.
const WRITTEN: &str = "a program has it open for writing";

/// A file of which the bucket lacks a change, or a directory of which it lacks the marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsynced {
    /// The path below the mount point.
    pub path: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// The reason.
    pub why: String,
}

impl Full {
    /// The right to send a file. Waits until no directory above the file is being renamed.
    pub(super) async fn turn_to_send(&self, staged: &Staged) -> Turn {
        loop {
            self.pauses.ended(&staged.key()).await;
            let turn = staged.turn().await;
            if !self.pauses.has(&staged.key()) {
                return turn;
            }
        }
    }
}

impl FileSystem {
    /// Stores the pending files at a path below the mount point, and under it. Files that can't be stored, or that programs have open for
    /// writing, are tried again within this time, and named afterwards. `None`: the mount has no stage.
    pub async fn sync_below(self: Arc<Self>, below: &Path, within: Duration) -> Option<Vec<Unsynced>> {
        let full = self.full.as_ref()?;
        let root = self.inodes.key_of(ROOT).map_or_else(String::new, |key| key.as_str().to_owned());
        let top = format!("{root}{}", below.to_string_lossy());
        let (until, mut pause) = (self.clock.now() + within, PAUSE);
        let (mut lost, mut left) = (Vec::new(), BTreeMap::<InodeNo, (Arc<Staged>, Unsynced)>::new());
        loop {
            // A file that waited for this pass may have gone to `kept/`: it lacks no change then, and the stage may not have it any more.
            for (staged, waited) in std::mem::take(&mut left).into_values() {
                if staged.is_kept() {
                    let why = staged.error().map_or(waited.why, |error| error.to_string());
                    lost.push(Unsynced { why, ..waited });
                }
            }
            let (mut sends, turns) = (Vec::new(), Arc::new(Semaphore::new(SENDS_MAX)));
            for (ino, staged) in full.all() {
                if !staged.is_dirty() || !is_below(staged.key().as_str(), &top) {
                    continue;
                }
                if full.writers(ino) > 0 {
                    let unsynced = unsynced(&root, &staged, WRITTEN);
                    left.insert(ino, (staged, unsynced));
                    continue;
                }
                let (fs, turns, of_task) = (Arc::clone(&self), Arc::clone(&turns), Arc::clone(&staged));
                // The send is a task of its own, so that a caller that gives up does not leave half an object.
                let send = tokio::spawn(async move {
                    let _one_of_some = turns.acquire().await;
                    fs.sync_one(ino, &of_task).await
                });
                sends.push((ino, staged, send));
            }
            let below = full.directories.lock().all();
            let below = below.into_iter().filter(|owing| is_below(owing.key().as_str(), &top)).collect();
            let owing = self.store_all_owed(below).await;
            for (ino, staged, send) in sends {
                let why = match send.await {
                    Ok(Ok(())) if !staged.is_dirty() => continue,
                    Ok(Ok(())) => WRITTEN.to_owned(),
                    Ok(Err(error)) => error.to_string(),
                    Err(panicked) => panicked.to_string(),
                };
                let unsynced = unsynced(&root, &staged, &why);
                match staged.is_kept() {
                    true => lost.push(unsynced),
                    false => drop(left.insert(ino, (staged, unsynced))),
                }
            }
            let now = self.clock.now();
            if left.is_empty() && owing.is_empty() || now >= until {
                lost.extend(left.into_values().map(|(_, unsynced)| unsynced));
                lost.extend(owing.iter().map(|(directory, error)| {
                    let path = path_of(&root, directory.key());
                    Unsynced { path, bytes: 0, why: error.to_string() }
                }));
                lost.sort_unstable_by(|a, b| a.path.cmp(&b.path));
                return Some(lost);
            }
            self.clock.sleep(pause.min(until - now)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn sync_one(&self, ino: InodeNo, staged: &Arc<Staged>) -> Result<()> {
        let full = self.full()?;
        let turn = full.turn_to_send(staged).await;
        // A program may have opened the file since and be in the middle of writing it.
        let stored = self.store_staged_while(ino, staged, &turn, &|| full.writers(ino) == 0).await;
        if stored.is_err() {
            self.give_name_back(ino, staged);
        }
        stored
    }
}

/// Whether a key belongs to a file at this path, or below it.
fn is_below(key: &str, top: &str) -> bool {
    match key.strip_prefix(top) {
        Some(rest) => rest.is_empty() || rest.starts_with('/') || top.is_empty() || top.ends_with('/'),
        None => false,
    }
}

fn unsynced(root: &str, staged: &Staged, why: &str) -> Unsynced {
    Unsynced { path: path_of(root, &staged.key()), bytes: staged.size(), why: why.to_owned() }
}

/// The path of a key below the mount point.
fn path_of(root: &str, key: &ObjectKey) -> String {
    key.as_str().strip_prefix(root).unwrap_or(key.as_str()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stands_for_itself_and_what_is_under_it() {
        for (key, top, is_it) in [
            ("a", "", true),
            ("dir/a", "dir", true),
            ("dir/a", "dir/a", true),
            ("dir-a", "dir", false),
            ("dir/ab", "dir/a", false),
            ("prefix/a", "prefix/", true),
            ("prefix", "prefix/a", false),
        ] {
            assert_eq!(is_below(key, top), is_it, "{key} {top}");
        }
    }
}
