//! The holder: a process of the node pod that keeps a copy of the device and the journal of each mount, in case the whole container of its
//! Mountpoint Pod ends. Enters: the driver's notes of the pods, and the registrations of their mounters at `hold.sock`. Leaves: both
//! descriptors, for the next container of the same pod.
//!
//! The holder calls neither the driver nor the API server, so it works while they are down. After its own restart it connects to each
//! mounter again.
//!
//! Never here: a call that a mount must answer, not even in a thread: a holder that waits for a mount could not be killed, and the mount
//! could not end. Never a descriptor that was not requested; never a hold of more than a minute without an engine.

mod entry;
mod held;
pub mod status;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mountpoint::sync::{Arc, Mutex};
use tokio::task::JoinHandle;

use crate::contract::comm::{self, Comm};
use crate::error::{Error, Result};
use crate::mounter::notes::Notes;
use crate::mounter::peer::Processes;
use held::Pod;

/// Interval between checks of notes and sockets. Doubled, a container that ends within a second of its mount loses it more often; halved,
/// an idle node reads a directory twice as often.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The configuration of the holder.
#[derive(Clone, Debug)]
pub struct Config {
    /// The kubelet's directory.
    pub kubelet: PathBuf,
    /// The process table for the check of mounters: the node's `/proc`.
    pub processes: Processes,
}

/// The names of the Mountpoint Pods whose mounts are held, for [`status`].
pub type Holds = Arc<Mutex<BTreeMap<String, &'static str>>>;

/// Holds mounts until the future is dropped. Needs a runtime of tokio.
///
/// # Errors
/// The kubelet's directory is missing.
pub async fn run(config: Config, holds: Holds) -> Result<()> {
    let kubelet = config.kubelet.canonicalize().map_err(|error| {
        Error::internal(format!("the kubelet's directory {}: {error}", config.kubelet.display()))
    })?;
    let notes = Notes::of(&kubelet);
    let mut tasks: BTreeMap<(String, String), Task> = BTreeMap::new();
    loop {
        let noted: Vec<_> = match notes.all() {
            Ok(noted) => noted.into_iter().collect(),
            Err(error) => {
                tracing::warn!(
                    "reading the driver's notes of Mountpoint Pods: {error}; what is held stays held"
                );
                tokio::time::sleep(LOOK_EVERY).await;
                continue;
            }
        };
        tasks.retain(|pod, task| noted.contains(pod) && !task.0.is_finished());
        for (name, uid) in noted {
            let key = (name, uid);
            let pod = pod(&kubelet, &config.processes, &key, &holds);
            tasks.entry(key).or_insert_with(|| Task(tokio::spawn(pod.hold())));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn pod(kubelet: &Path, processes: &Processes, (name, uid): &(String, String), holds: &Holds) -> Pod {
    Pod {
        name: name.clone(),
        uid: uid.clone(),
        comm: Comm::on_host(kubelet, uid),
        source: comm::source(kubelet, name),
        processes: processes.clone(),
        holds: Arc::clone(holds),
        busy: Arc::default(),
    }
}

/// The task of one pod. It is aborted when this value is dropped: the driver has unmounted the source and forgotten the pod.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests;
