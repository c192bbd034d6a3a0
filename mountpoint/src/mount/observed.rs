//! The state of a mount, measured on request.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::Process;
use super::upgrade::Upgrade;
use crate::buffer::{Pool, Use};
use crate::cache::DiskCache;
use crate::daemon;
use crate::fs::{FileSystem, Unsynced};
use crate::metrics::Metrics;
use crate::sync::Arc;
use crate::telemetry::{self, ErrorLine, Synced};
use crate::upload::Stage;

/// The answer to a sync of a mount without a stage.
const NOTHING_WAITS: &str =
    "this mount has no stage (--mode full): nothing waits there, and a file is stored when it is closed";

/// The parts that a mount measures for its state.
pub(super) struct Observed {
    pub(super) fs: Arc<FileSystem>,
    pub(super) process: Process,
    pub(super) pool: Pool,
    pub(super) cache: Option<Arc<DiskCache>>,
    pub(super) memory_target: u64,
    pub(super) threads: u64,
    /// The upgrade in place, once the mount accepts requests for it.
    pub(super) upgrade: Arc<OnceLock<Upgrade>>,
    /// The answer to an upgrade, if there is none.
    pub(super) no_upgrade: &'static str,
}

impl std::fmt::Debug for Observed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observed").finish_non_exhaustive()
    }
}

impl telemetry::Mount for Observed {
    fn measure(&self, metrics: &Metrics) {
        let open = self.fs.open_files();
        metrics.open_files.of("read").set(open.reading);
        metrics.open_files.of("write").set(open.writing.len() as u64);
        for (name, purpose) in [("demand", Use::Demand), ("write", Use::Write), ("ahead", Use::Ahead)] {
            metrics.memory_used.of(name).set(self.pool.used(purpose));
        }
        metrics.memory_target.set(self.memory_target);
        metrics.fuse_threads.set(self.threads);
        metrics.cache_used.set(self.cache.as_ref().map_or(0, |cache| cache.used_bytes()));
        if let Some(stage) = self.fs.stage() {
            metrics.stage_used.set(stage.bytes);
            metrics.stage_pending.set(stage.pending);
            metrics.stage_pending_bytes.set(stage.pending_bytes);
            metrics.stage_kept.set(stage.kept.files);
            metrics.stage_kept_bytes.set(stage.kept.bytes);
            metrics.stage_oldest.set(stage.oldest.map_or(0, |age| age.as_secs()));
        }
        let process = procfs::process::Process::myself().and_then(|process| process.stat());
        if let Ok(stat) = process {
            metrics.process_memory.set(stat.rss * rustix::param::page_size() as u64);
            let ticks = u128::from(stat.utime + stat.stime);
            let micros = ticks * 1_000_000 / u128::from(procfs::ticks_per_second());
            metrics.process_cpu.reach(u64::try_from(micros).unwrap_or(u64::MAX));
        }
    }

    fn uploads(&self) -> Vec<telemetry::Upload> {
        let writing = self.fs.open_files().writing.into_iter();
        writing
            .map(|file| telemetry::Upload {
                key: file.key.as_str().to_owned(),
                bytes: file.bytes,
                state: match file.stage {
                    Stage::Open { .. } => "writing",
                    Stage::Finishing { .. } | Stage::Committing { .. } => "storing",
                    Stage::Stored { .. } => "stored",
                    Stage::Failed { .. } => "failed",
                }
                .to_owned(),
            })
            .collect()
    }

    fn stage(&self) -> Option<telemetry::Stage> {
        self.fs.stage().map(|stage| telemetry::Stage {
            directory: stage.dir.display().to_string(),
            used_bytes: stage.bytes,
            limit_bytes: stage.bytes_max,
            pending_files: stage.pending,
            pending_bytes: stage.pending_bytes,
            kept_files: stage.kept.files,
            kept_bytes: stage.kept.bytes,
        })
    }

    fn errors(&self) -> Vec<ErrorLine> {
        (self.process.recent_errors)()
    }

    fn hand_over(&self, within: Duration) -> BoxFuture<'static, String> {
        let (upgrade, why) = (Arc::clone(&self.upgrade), self.no_upgrade);
        Box::pin(async move {
            match upgrade.get() {
                Some(upgrade) => daemon::one_line(&upgrade.run(within).await),
                None => why.to_owned(),
            }
        })
    }

    fn sync(&self, below: PathBuf, within: Duration) -> BoxFuture<'static, Result<Synced, String>> {
        let fs = Arc::clone(&self.fs);
        Box::pin(async move {
            let unsynced = fs.sync_below(&below, within).await.ok_or(NOTHING_WAITS)?;
            let told = |file: Unsynced| {
                let Unsynced { path, bytes, why } = file;
                telemetry::Unsynced { path, bytes, why }
            };
            Ok(Synced { unsynced: unsynced.into_iter().map(told).collect() })
        })
    }
}
