//! The usage of a volume, and whether its mount answers. Enters: a mount point. Leaves: usage, or the problem of the mount.
//!
//! A mount with a dead or hanging engine may block its caller. So a separate thread makes the call, for at most [`LIMIT`], and no
//! second thread starts while one waits for the same mount.
//!
//! Never here: a check that the path is a volume.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mountpoint::sync::Arc;
use tokio::sync::oneshot;

use crate::contract::target::OfPod;

/// Longest wait for the answer of statfs(2); after it the mount counts as not answering. The kubelet asks every minute, one volume after
/// another, so a dead mount must not delay the others.
pub const LIMIT: Duration = Duration::from_secs(2);

/// Most other mounts of a volume that are asked in place of a dead one. Usually the first answers; each hanging one occupies a thread.
const OTHERS_MAX: usize = 4;

/// The answer of statfs(2), in bytes and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that may still be written.
    pub available_bytes: u64,
    /// Size of the volume in bytes.
    pub total_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Inodes that may still be created.
    pub free_inodes: u64,
    /// Number of inodes of the volume.
    pub total_inodes: u64,
}

type Statfs = dyn Fn(&Path) -> io::Result<Usage> + Send + Sync;

/// Asks mounts for their usage.
#[derive(Clone)]
pub struct Stats {
    statfs: Arc<Statfs>,
    limit: Duration,
    /// Mounts with a request in progress.
    asked: Arc<Mutex<HashSet<PathBuf>>>,
}

impl fmt::Debug for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stats").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Default for Stats {
    fn default() -> Self {
        Self::new(statfs, LIMIT)
    }
}

impl Stats {
    /// Asks by `statfs`, and waits at most `limit` for an answer.
    #[must_use]
    pub fn new(statfs: impl Fn(&Path) -> io::Result<Usage> + Send + Sync + 'static, limit: Duration) -> Self {
        Self { statfs: Arc::new(statfs), limit, asked: Arc::default() }
    }

    /// The usage from the first of these mounts that answers, within one limit for all; `None` if none does.
    pub async fn of_first(&self, paths: Vec<PathBuf>) -> Option<Usage> {
        let first = async {
            for path in paths {
                if let Ok(usage) = self.of(&path).await {
                    return Some(usage);
                }
            }
            None
        };
        tokio::time::timeout(self.limit, first).await.ok().flatten()
    }

    /// The usage of the mount at this path.
    ///
    /// # Errors
    /// The problem of the mount, as a sentence for an administrator.
    pub async fn of(&self, path: &Path) -> Result<Usage, String> {
        let Some(asked) = Asked::claim(&self.asked, path) else {
            return Err(format!(
                "the mount at {} has not answered an earlier request yet: look at the log of its Mountpoint Pod",
                path.display()
            ));
        };
        let (answer, answered) = oneshot::channel();
        let (statfs, at) = (self.statfs.clone(), path.to_owned());
        // The thread is not one of the runtime's pool: a hanging thread of a pool would also delay the end of the process.
        let thread = std::thread::Builder::new().name("statfs".into()).spawn(move || {
            let result = statfs(&at);
            drop(asked);
            // The caller does not wait any more if its limit has passed.
            drop(answer.send(result));
        });
        if let Err(error) = thread {
            return Err(format!("no thread to ask the mount at {}: {error}", path.display()));
        }
        match tokio::time::timeout(self.limit, answered).await {
            Ok(Ok(Ok(usage))) => Ok(usage),
            Ok(Ok(Err(error))) => Err(wrong(path, &error)),
            Ok(Err(_)) => Err(format!("asking the mount at {} ended without an answer", path.display())),
            Err(_) => Err(format!(
                "the mount at {} did not answer within {:?}: look at the log of its Mountpoint Pod",
                path.display(),
                self.limit
            )),
        }
    }
}

/// Other targets of the volume at this path, at most `OTHERS_MAX`. The kubelet has one set of figures for a claim, from any of its
/// pods: a dead mount without figures could make a claim in use by other pods look full or empty.
#[must_use]
pub fn others<'a>(buckets: impl Iterator<Item = &'a Path>, path: &Path, kubelet: &Path) -> Vec<PathBuf> {
    let Some(of) = OfPod::of_mount_point(path, kubelet) else { return Vec::new() };
    let is_other = |point: &&Path| {
        *point != path && OfPod::of_mount_point(point, kubelet).is_some_and(|other| other.volume == of.volume)
    };
    buckets.filter(is_other).take(OTHERS_MAX).map(Path::to_owned).collect()
}

fn wrong(path: &Path, error: &io::Error) -> String {
    let path = path.display();
    if error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error()) {
        format!("the engine of the mount at {path} is gone ({error}): restart the workload's pod")
    } else {
        format!("the mount at {path} fails: {error}; look at the log of its Mountpoint Pod")
    }
}

/// A mount's entry in the set of requests, until the thread ends.
struct Asked {
    set: Arc<Mutex<HashSet<PathBuf>>>,
    path: PathBuf,
}

impl Asked {
    fn claim(set: &Arc<Mutex<HashSet<PathBuf>>>, path: &Path) -> Option<Self> {
        lock(set).insert(path.to_owned()).then(|| Self { set: set.clone(), path: path.to_owned() })
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        lock(&self.set).remove(&self.path);
    }
}

fn lock(set: &Mutex<HashSet<PathBuf>>) -> MutexGuard<'_, HashSet<PathBuf>> {
    set.lock().unwrap_or_else(PoisonError::into_inner)
}

fn statfs(path: &Path) -> io::Result<Usage> {
    let said = rustix::fs::statvfs(path)?;
    Ok(Usage {
        available_bytes: said.f_bavail.saturating_mul(said.f_frsize),
        total_bytes: said.f_blocks.saturating_mul(said.f_frsize),
        used_bytes: said.f_blocks.saturating_sub(said.f_bfree).saturating_mul(said.f_frsize),
        free_inodes: said.f_ffree,
        total_inodes: said.f_files,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_live_file_system_tells_its_size() {
        let directory = tempfile::tempdir().unwrap();
        let usage = Stats::new(statfs, Duration::from_secs(60)).of(directory.path()).await.unwrap();
        assert!(usage.total_bytes > 0 && usage.used_bytes <= usage.total_bytes, "{usage:?}");
    }

    #[tokio::test]
    async fn a_dead_mount_says_what_to_do() {
        let dead = |_: &Path| Err(io::Error::from(rustix::io::Errno::NOTCONN));
        let error = Stats::new(dead, Duration::from_secs(60)).of(Path::new("/x")).await.unwrap_err();
        assert!(error.contains("engine of the mount at /x is gone") && error.contains("restart"), "{error}");
    }

    /// Goal: one thread waits for a mount that hangs, and no more. The double's question ends when the test says so.
    #[tokio::test]
    async fn a_mount_that_hangs_is_asked_once_and_again_when_it_has_answered() {
        let (release, hanging) = mpsc::channel::<()>();
        let (count, counted) = mpsc::channel();
        let hanging = Mutex::new(hanging);
        let hang = move |_: &Path| {
            count.send(()).unwrap();
            hanging.lock().unwrap().recv().ok();
            Ok(Usage::default())
        };
        let stats = Stats::new(hang, Duration::from_millis(20));
        let path = Path::new("/x");
        let first = stats.of(path).await.unwrap_err();
        assert!(first.contains("did not answer"), "{first}");
        let second = stats.of(path).await.unwrap_err();
        assert!(second.contains("earlier request"), "{second}");
        counted.recv().unwrap();
        assert!(counted.try_recv().is_err(), "a second thread was started");
        drop(release);
        // The thread ends in its own time.
        while lock(&stats.asked).contains(path) {
            tokio::task::yield_now().await;
        }
        let stats = Stats { limit: Duration::from_secs(60), ..stats };
        stats.of(path).await.unwrap();
    }
}
