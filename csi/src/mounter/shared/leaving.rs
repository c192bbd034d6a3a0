//! Mounts of an engines pod after `node.mounter` was changed from `shared` to `pod`. Enters: the calls for all targets of the node. Leaves:
//! new keys for targets that engines of that pod serve, and their sources unmounted once they have no target. All other calls are the other
//! mounter's.
//!
//! A mount whose engine is dead is the other mounter's, too: it binds a source of its own over it.
//!
//! Never here: a new source; a mounter that is begun; the API server.

use std::path::Path;

use futures_util::future::BoxFuture;
use mountpoint::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::shares::{Share, Shares};
use super::{Config, Node, unused};
use crate::contract::comm;
use crate::contract::engines_pod::is_source;
use crate::contract::restart::Restarting;
use crate::error::Result;
use crate::mounter::assignment::View;
use crate::mounter::sys::{self, Health};
use crate::mounter::targets::{self, table};
use crate::mounter::{Made, MountRequest, Mounter, VolumeUsage, source};

/// Whether the node has sources of an engines pod, mounted or noted.
#[must_use]
pub fn has_sources(kubelet: &Path) -> bool {
    // Notes that can't be read may be of some.
    let noted = !Shares::of(kubelet, 0).names().is_ok_and(|names| names.is_empty());
    let mut there = std::fs::read_dir(comm::sources(kubelet)).into_iter().flatten().flatten();
    noted || there.any(|it| it.file_name().to_str().is_some_and(is_source))
}

/// The mounter `M` on a node that still has mounts of an engines pod. Owns the task that unmounts their sources, which ends when it is
/// dropped. Mounts stay.
#[derive(Debug)]
pub struct Leaving<M> {
    next: M,
    node: Arc<Node>,
    _tasks: JoinSet<()>,
}

impl<M: Mounter> Leaving<M> {
    /// Cares for the sources of the engines pod; `next` makes all mounts.
    ///
    /// # Errors
    /// The kubelet's root directory is not there.
    pub fn new(next: M, config: Config) -> Result<Self> {
        let config = Config { kubelet: targets::kubelet(&config.kubelet)?, ..config };
        // No engine is begun any more, so the pod is known by its notes alone.
        let node = Node::new(config, watch::channel(View::default()).1, true);
        let mut tasks = JoinSet::new();
        tasks.spawn(unused::run(Arc::clone(&node)));
        Ok(Self { next, node, _tasks: tasks })
    }
}

impl<M: Mounter> Mounter for Leaving<M> {
    fn mount(&self, request: MountRequest) -> BoxFuture<'_, Result<Made>> {
        Box::pin(async move {
            if self.node.refreshed(&request).await? {
                return Ok(Made::AsUsual);
            }
            self.next.mount(request).await
        })
    }

    fn fault(&self) -> Option<String> {
        self.next.fault()
    }

    fn ignores(&self) -> &'static [&'static str] {
        self.next.ignores()
    }

    fn leaves_out(&self) -> (&'static [&'static str], &'static str) {
        self.next.leaves_out()
    }

    fn refuses(&self) -> &'static [&'static str] {
        self.next.refuses()
    }

    fn no_stage(&self) -> Option<&'static str> {
        self.next.no_stage()
    }

    fn keeps_stages(&self) -> bool {
        self.next.keeps_stages()
    }

    fn volumes_max(&self) -> Option<usize> {
        self.next.volumes_max()
    }

    fn is_outdated(&self) -> Option<bool> {
        self.next.is_outdated()
    }

    fn restarting(&self, target: &Path) -> Option<Restarting> {
        self.node.restarting_at(target).or_else(|| self.next.restarting(target))
    }

    fn usage(&self) -> BoxFuture<'_, Vec<VolumeUsage>> {
        self.next.usage()
    }

    fn unmount<'a>(&'a self, target: &'a Path) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.next.unmount(target).await?;
            self.node.released.notify_one();
            Ok(())
        })
    }
}

impl Node {
    /// Whether an engine of the engines pod serves the target, which then stays as it is and whose engine gets the request's keys.
    async fn refreshed(&self, request: &MountRequest) -> Result<bool> {
        let Some(target) = self.targets.find(&request.target)? else { return Ok(false) };
        let (mounts, sources) = (table()?, comm::sources(&self.config.kubelet));
        let source = mounts.at(target.path()).and_then(|mount| mounts.source_of(mount, &sources));
        let name = source.and_then(|it| it.point.file_name()?.to_str()).filter(|name| is_source(name));
        let Some(name) = name else { return Ok(false) };
        let health = self.probes.check(target.path(), sys::PROBE_LIMIT).await;
        if let Health::Dead(why) = &health {
            tracing::warn!(
                "the engine behind {} has ended ({why}), and no engines pod replaces it",
                target.path().display()
            );
            return Ok(false);
        }
        match self.shares.get(name).filter(Share::is_readable) {
            Some(share) => {
                self.check_keys(request, &share)?;
                self.write_credentials(request, &share.pod, &self.comm(&share.pod, name))?;
            }
            None => self.refuse_keys(request, name)?,
        }
        // An engine that is restarted goes on with this mount.
        if health == Health::Hung && self.restarting(name).is_none() {
            return Err(source::hangs(target.path(), None));
        }
        Ok(true)
    }
}
