//! The end of a mount with a stage: what is closed is stored, what is not stored is kept and named.

use std::time::Duration;

use crate::fs::{FileSystem, MountEnd};
use crate::inode::InodeNo;
use crate::stage::Staged;
use crate::sync::Arc;

impl FileSystem {
    /// Stores what the bucket lacks, as long as bytes move; keeps the rest. All at once.
    pub(in crate::fs) async fn end_staged(self: &Arc<Self>, limit: Duration, how: MountEnd) {
        let Some(full) = &self.full else { return };
        let end = |(ino, staged)| {
            let fs = Arc::clone(self);
            tokio::spawn(async move { fs.end_one(ino, &staged, limit, how).await })
        };
        let ends: Vec<_> = full.all().into_iter().map(end).collect();
        for end in ends {
            let _ = end.await;
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
