//! Engines with a cache. Enters: a request for a mount. Leaves: the arguments of an engine with its cache, or without one, and a connection
//! to each engine whose files the kernel reads by itself.
//!
//! Never here: an engine's usage, because all engines of a pod have one control group.

use std::io;
use std::path::Path;

use mountpoint::sync::Arc;
use tokio::time::{Instant, timeout_at};

use super::Node;
use super::caches::{Sources, Wanted, name_of};
use super::engines_pod::EnginesPod;
use super::shares::Share;
use crate::contract::cache;
use crate::contract::comm::{self, Comm};
use crate::contract::engines_pod::is_source;
use crate::error::Result;
use crate::mounter::MountRequest;
use crate::mounter::deaths;
use crate::mounter::engines::Peer;
use crate::mounter::targets::table;

/// The engine's flags about a cache.
const OF_CACHE: [&str; 3] = ["--cache", "--max-cache-size", "--cache-passthrough"];

/// The flag of an argument, without its value.
fn flag(arg: &str) -> &str {
    arg.split_once('=').map_or(arg, |(flag, _)| flag)
}

impl Node {
    /// The engine's arguments, and the name and size of its cache. Without room for its cache, or if the disk does not answer, a volume is mounted
    /// without one, and an Event tells its workload.
    pub(super) async fn args(
        self: &Arc<Self>,
        request: &MountRequest,
        name: &str,
        pod: &EnginesPod,
        (user, deadline): (u32, Instant),
    ) -> Result<(Vec<String>, Option<(String, u64)>)> {
        if !request.args.iter().any(|arg| flag(arg) == "--cache") {
            return Ok((request.args.clone(), None));
        }
        let size = request.args.iter().find_map(|arg| arg.strip_prefix("--max-cache-size="));
        let mib = size.and_then(|size| size.parse().ok()).unwrap_or_else(|| cache::SIZE.bytes() >> 20);
        let (node, cache) = (Arc::clone(self), name_of(request));
        let (source, of_pod) = (name.to_owned(), Comm::on_host(&self.config.kubelet, &pod.uid));
        let (of_task, uid) = (cache.clone(), pod.uid.clone());
        let within = self.config.cache_within;
        let until = deadline.min(Instant::now() + within);
        let taking = async {
            // One volume at a time calls the disk, so a disk that hangs occupies one thread.
            let turn = timeout_at(until, self.caches.turn()).await.map_err(|_elapsed| {
                format!("room for the cache of another volume is still being made after {within:?}: does the disk of shared.cache answer?")
            })?;
            // The task keeps its turn, and goes on after the time limit: the cache then is ready for the next mount of this source. Until
            // then the note of the source says that its engine has no cache, so another volume may get the room.
            let taking = tokio::task::spawn_blocking(move || {
                let wanted = Wanted { source: &source, comm: &of_pod, user, mib };
                node.caches.take(&turn, &of_task, &wanted, || node.sources(&uid))
            });
            let taken = timeout_at(until, taking).await.map_err(|_elapsed| {
                format!("the disk of shared.cache did not make room for it within {within:?}: does the disk answer?")
            })?;
            taken.map_err(|error| error.to_string())?
        };
        let is_of_cache = |arg: &String| OF_CACHE.contains(&flag(arg));
        let mut args = request.args.clone();
        match taking.await {
            Ok(()) => {
                args.retain(|arg| flag(arg) == "--cache-passthrough" || !is_of_cache(arg));
                args.extend([
                    format!("--cache={}/{cache}", cache::DIRECTORY),
                    format!("--max-cache-size={mib}"),
                ]);
                Ok((args, Some((cache, mib))))
            }
            Err(why) => {
                let (notices, volume) = (&self.config.notices, &request.volume);
                deaths::tell_of_cache(notices, request.workload.as_ref(), volume, &why);
                args.retain(|arg| !is_of_cache(arg));
                Ok((args, None))
            }
        }
    }

    /// The sources that exist, and those whose engine may still end in the pod.
    fn sources(&self, pod: &str) -> io::Result<Sources> {
        let noted = |name: String| {
            let share = self.shares.get(&name).filter(Share::is_readable);
            (name, share)
        };
        let mut sources: Sources = self.shares.names()?.into_iter().map(noted).collect();
        for entry in std::fs::read_dir(Comm::on_host(&self.config.kubelet, pod).directory())? {
            let name = entry?.file_name().into_string().ok().filter(|name| is_source(name));
            if let Some(name) = name {
                sources.entry(name).or_default();
            }
        }
        Ok(sources)
    }

    /// Connects to all engines after a start of the driver.
    pub(super) fn dial_all(&self) {
        self.shares.all().unwrap_or_default().keys().for_each(|name| self.dial(name));
    }

    /// Connects to the engine of a source if it has a cache. Returns at once.
    pub(super) fn dial(&self, name: &str) {
        let (Ok(mounts), Ok(shares)) = (table(), self.shares.all()) else { return };
        let minor = |name: &str| mounts.at(&comm::source(&self.config.kubelet, name))?.minor();
        let there: Vec<_> = shares.keys().filter_map(|name| minor(name)).collect();
        self.engines.keep(|name| shares.contains_key(name), |minor| there.contains(&minor));
        let Some(share) = shares.get(name) else { return };
        let of_pod = Comm::on_host(&self.config.kubelet, &share.pod);
        let Some(cache) = share.used_cache().and_then(|cache| self.caches.directory(&of_pod, cache)) else {
            return;
        };
        let (slot, uid, source) = (name.to_owned(), share.pod.clone(), minor(name));
        let (engines, processes) = (Arc::clone(&self.engines), self.config.processes.clone());
        let (comm, opens) = (of_pod.of_source(name), self.config.kernel_reads);
        tokio::spawn(async move {
            let (cache, processes) = (Some(&*cache), &processes);
            engines
                .dial(&Peer { slot: &slot, uid: &uid, cache, comm: &comm, processes, source, opens })
                .await;
        });
    }

    /// Forgets the registered files of an earlier mount that had this source's device number.
    pub(super) fn forget_counts(&self, source: &Path) {
        let minor = table().ok().and_then(|mounts| mounts.at(source)?.minor());
        if let Some(minor) = minor {
            self.engines.forget_source(minor);
        }
    }
}
