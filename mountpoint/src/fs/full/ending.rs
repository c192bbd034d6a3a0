//! The end of a mount with a stage: closed files are stored. Files that can't be stored are kept and named or, with `--commit fsync` and
//! `disk`, left to the next mount.

use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::sending::SENDS_MAX;
use crate::fs::{FileSystem, MountEnd};
use crate::inode::InodeNo;
use crate::stage::Staged;
use crate::sync::Arc;

impl FileSystem {
    /// Stores all files whose changes the bucket lacks, side by side, as long as bytes move; keeps the others.
    pub(in crate::fs) async fn end_staged(self: &Arc<Self>, limit: Duration, how: MountEnd) {
        let Some(full) = &self.full else { return };
        if full.is_deferred() {
            return self.end_pending(limit, how).await;
        }
        let end = |(ino, staged)| {
            let fs = Arc::clone(self);
            tokio::spawn(async move { fs.end_one(ino, &staged, limit, how).await })
        };
        let ends: Vec<_> = full.all().into_iter().map(end).collect();
        for end in ends {
            let _ = end.await;
        }
    }

    /// Sends waiting files, as long as bytes move or the store copies parts, and leaves the rest to the next mount.
    async fn end_pending(self: &Arc<Self>, limit: Duration, how: MountEnd) {
        let Some(full) = &self.full else { return };
        full.sending.end();
        let mut files = full.all();
        // First the local disk gets everything, so that a loss of power loses nothing.
        let changed = files.iter().map(|(_, staged)| staged).filter(|staged| staged.is_dirty());
        let synced = full.area.sync_all(changed.map(Arc::clone).collect()).await;
        if let Err(error) = synced {
            tracing::error!("what is not stored yet is not safe from a loss of power: {error}");
        }
        files.retain(|(ino, _)| how == MountEnd::Unmounted || full.users(*ino) == 0);
        files.sort_unstable_by_key(|(_, staged)| staged.number());
        let mut sends = JoinSet::new();
        let turns = Arc::new(Semaphore::new(SENDS_MAX));
        for (ino, staged) in files {
            let (fs, turns) = (Arc::clone(self), Arc::clone(&turns));
            sends.spawn(async move {
                let _one_of_some = turns.acquire().await;
                if staged.is_dirty() {
                    let turn = staged.turn().await;
                    if let Err(error) = fs.store_staged(ino, &staged, &turn).await {
                        tracing::debug!(%error, "a file of the stage was not stored at the end of the mount");
                    }
                }
                // A stored file leaves the stage, so that the next mount does not find it there.
                if fs.full.as_ref().is_some_and(|full| full.users(ino) == 0) {
                    fs.settle_staged(ino, &staged).await;
                }
            });
        }
        let owing = full.directories.lock().all();
        let all = async {
            for (directory, error) in self.store_all_owed(owing).await {
                tracing::debug!(%error, "the marker of \"{}\" was not stored at the end of the mount", directory.key());
            }
            while sends.join_next().await.is_some() {}
            full.sending.ended().await;
        };
        self.while_bytes_move(limit * 3 / 4, all).await;
        // Files that left the stage are deleted here: nothing else does so any more.
        if let Err(error) = full.area.sync_all(Vec::new()).await {
            tracing::debug!(%error, "files that left the stage are not all deleted");
        }
        let (left, owing) = (full.pending(), full.directories.lock().all());
        let file = left.first().map(|staged| staged.key());
        if let Some(first) = file.or_else(|| owing.first().map(|directory| directory.key().clone())) {
            let bytes: u64 = left.iter().map(|staged| staged.size()).sum();
            tracing::warn!(
                "{} files ({bytes} bytes) and {} new directories are not stored yet, \"{first}\" is one: \
                 they stay in the stage, and the next mount with it goes on",
                left.len(),
                owing.len()
            );
        }
    }

    async fn end_one(&self, ino: InodeNo, staged: &Arc<Staged>, limit: Duration, how: MountEnd) {
        let is_open = self.full.as_ref().is_some_and(|full| full.users(ino) > 0);
        let why = if is_open && how != MountEnd::Unmounted {
            "the file was still open when the mount ended".to_owned()
        } else {
            let store = async {
                let turn = staged.turn().await;
                self.store_staged(ino, staged, &turn).await
            };
            match self.while_bytes_move(limit * 3 / 4, store).await {
                Some(Ok(())) => return,
                Some(Err(error)) => error.to_string(),
                None => "the mount ended before the store confirmed it".to_owned(),
            }
        };
        if staged.is_kept() || !staged.is_dirty() {
            return;
        }
        match staged.keep(&why).await {
            Ok(kept) => tracing::error!(
                "\"{}\" was not stored: {why}; what was written is in {}",
                staged.key(),
                kept.display()
            ),
            Err(error) => tracing::error!(
                "\"{}\" was not stored: {why}; what was written stays in the stage: {error}",
                staged.key()
            ),
        }
    }
}
