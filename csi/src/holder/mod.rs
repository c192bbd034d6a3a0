//! The holder: a process of the node pod that keeps a copy of the device and the journal of each mount, for a Mountpoint Pod whose container ends as
//! a whole. Enters: the driver's notes of the pods, and what their mounters register at `hold.sock`. Leaves: both descriptors, to the next
//! container of the same pod.
//!
//! It asks neither the driver nor the API server, so it works while they are away. After its own restart it connects to each mounter anew.
//!
//! Never here: a look at a mount, not even in a thread. A holder that waited for an answer of a mount could not end, and the mount could not,
//! either. Never a descriptor that was not asked for; never a longer hold than a minute without an engine.

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

/// How often notes and sockets are looked for. Doubled, a container that ends within a second of its mount loses it more often; halved, an idle
/// node reads a directory twice as often.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The configuration of the holder.
#[derive(Clone, Debug)]
pub struct Config {
    /// The kubelet's directory.
    pub kubelet: PathBuf,
    /// The table in which mounters' processes are looked up: the node's `/proc`.
    pub processes: Processes,
}

/// The names of the Mountpoint Pods whose mounts are held, for [`status`].
pub type Holds = Arc<Mutex<BTreeMap<String, &'static str>>>;

/// Holds mounts until the process ends. Needs a runtime.
///
/// # Errors
/// The kubelet's directory is not there.
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

/// The task of one pod, which ends with this value: the driver has unmounted the source and forgotten the pod.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests;
