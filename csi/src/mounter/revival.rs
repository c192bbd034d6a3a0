//! The sources to mount again after their engines ended. Enters: the mount that each Mountpoint Pod serves, from the last publish. Leaves:
//! the names of pods whose mounter waits for a device although its source is mounted, or restarts its engine, with backoff.
//!
//! A mounter that waits creates its socket: after its engine ended, or when its container restarts. The mounter's state file
//! says that it restarts an engine. inotify reports the new files. A restarted driver knows a pod again from the kubelet's
//! next call on.
//!
//! Never here: a mount; the conclusion that an engine is dead. A pod that creates sockets for nothing causes checks of its mount, with the
//! backoff of [`Pace`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::BoxFuture;
use mountpoint::sync::{Arc, Mutex};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::MountRequest;
use crate::contract::comm::Comm;
use crate::error::Result;
use crate::events::WorkloadRef;

/// Time after which a serving engine counts as well: its death begins a new series. Doubled, a slow series of deaths gets pauses,
/// too.
const WELL_AFTER: Duration = Duration::from_secs(10);
/// The pause before the second mount of a series; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause between mounts that succeed. Doubled, readers wait twice as long for an engine that dies at once each time; halved, it
/// takes twice the CPU time.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Longest pause after mounts that fail, because the bucket is gone or credentials are refused. The kubelet's calls also mount.
const PAUSE_OF_FAILURES_MAX: Duration = Duration::from_secs(60);
/// Buffer for events of inotify, in bytes; further events wait in the kernel.
const EVENTS_BYTES: usize = 4096;

/// A mounted source, and its targets.
#[derive(Clone, Debug)]
pub(super) struct Served {
    /// The UID of the Mountpoint Pod.
    pub(super) uid: String,
    /// The last request for it, with the newest credentials.
    pub(super) request: MountRequest,
    /// The targets that are bound to it.
    pub(super) targets: BTreeMap<PathBuf, Bound>,
}

/// One target of a source.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    /// Whether the target's bind is read-only.
    pub(super) read_only: bool,
    /// The workload of the target.
    pub(super) workload: Option<WorkloadRef>,
}

/// The sources of this node by the names of their Mountpoint Pods.
#[derive(Debug)]
pub(super) struct Revivals {
    inside: Mutex<Inside>,
    /// The inotify descriptor; `None` if the kernel has none left: then only the kubelet's calls mount again.
    events: Option<AsyncFd<OwnedFd>>,
    woken: Notify,
}

#[derive(Debug, Default)]
struct Inside {
    served: BTreeMap<String, Served>,
    watches: HashMap<i32, String>,
    due: BTreeSet<String>,
    /// Pods whose mounter reported a restart since the last call of `take_restarted`.
    restarted: BTreeSet<String>,
    gone: BTreeSet<String>,
}

impl Revivals {
    /// Creates the set without pods. Needs a runtime.
    pub(super) fn new() -> Self {
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .map_err(io::Error::from)
            .and_then(readable)
            .inspect_err(|error| {
                tracing::warn!(
                    "a dead engine is noticed with the kubelet's next call only, since inotify_init1 failed: {error}; look at \
                     fs.inotify.max_user_instances of the node"
                );
            });
        Self { inside: Mutex::default(), events: events.ok(), woken: Notify::new() }
    }

    /// Records the pod's mount, and a target of it. A target is bound to only one source.
    pub(super) fn remember(&self, name: &str, uid: &str, comm: &Comm, request: &MountRequest, target: &Path) {
        let mut inside = self.inside.lock();
        let is_moved = |(other, it): &(&String, &Served)| *other != name && it.targets.contains_key(target);
        let moved: Vec<String> =
            inside.served.iter().filter(is_moved).map(|(other, _)| other.clone()).collect();
        for other in moved {
            self.unbind(&mut inside, &other, target);
        }
        if inside.served.get(name).is_some_and(|it| it.uid != uid) {
            self.drop_pod(&mut inside, name);
        }
        if !inside.served.contains_key(name) {
            self.watch(&mut inside, name, comm);
        }
        let served = inside.served.entry(name.to_owned()).or_insert_with(|| Served {
            uid: uid.to_owned(),
            request: request.clone(),
            targets: BTreeMap::new(),
        });
        if request.unusable.is_none() {
            served.request = request.clone();
        } else {
            // The earlier options stay; the credentials are new.
            served.request.credentials.clone_from(&request.credentials);
            served.request.token.clone_from(&request.token);
            served.request.agent.clone_from(&request.agent);
        }
        let bound = Bound { read_only: request.read_only, workload: request.workload.clone() };
        served.targets.insert(target.to_owned(), bound);
    }

    /// Forgets an unmounted target, and the pod with its last target.
    pub(super) fn forget(&self, target: &Path) {
        let mut inside = self.inside.lock();
        let of: Vec<String> = inside
            .served
            .iter()
            .filter(|(_, it)| it.targets.contains_key(target))
            .map(|(name, _)| name.clone())
            .collect();
        for name in of {
            self.unbind(&mut inside, &name, target);
        }
    }

    /// The mount that this pod serves.
    pub(super) fn of(&self, name: &str) -> Option<Served> {
        self.inside.lock().served.get(name).cloned()
    }

    /// The pod that serves this target, and the other targets of that pod.
    pub(super) fn of_target(&self, target: &Path) -> Option<(String, Vec<PathBuf>)> {
        let inside = self.inside.lock();
        let (name, served) = inside.served.iter().find(|(_, it)| it.targets.contains_key(target))?;
        Some((name.clone(), served.targets.keys().filter(|it| *it != target).cloned().collect()))
    }

    /// Whether this pod's mounter has reported a restart of its engine since the last call.
    pub(super) fn take_restarted(&self, name: &str) -> bool {
        self.inside.lock().restarted.remove(name)
    }

    /// Whether this pod's mounter has reported a missing bucket since the last call.
    pub(super) fn take_gone(&self, name: &str) -> bool {
        self.inside.lock().gone.remove(name)
    }

    /// Makes a pod due for a check, as if its mounter had created a socket.
    pub(super) fn wake(&self, name: &str) {
        self.inside.lock().due.insert(name.to_owned());
        self.woken.notify_one();
    }

    /// Makes all sources due for a check.
    pub(super) fn wake_all(&self) {
        let mut inside = self.inside.lock();
        let all: Vec<_> = inside.served.keys().cloned().collect();
        inside.due.extend(all);
        self.woken.notify_one();
    }

    /// Watches another pod's directory for a source from now on: that pod serves it, at the same targets.
    pub(super) fn follow(&self, name: &str, uid: &str, comm: &Comm) {
        let mut inside = self.inside.lock();
        let Some(mut served) = inside.served.get(name).filter(|it| it.uid != uid).cloned() else { return };
        self.drop_pod(&mut inside, name);
        uid.clone_into(&mut served.uid);
        inside.served.insert(name.to_owned(), served);
        self.watch(&mut inside, name, comm);
    }

    /// Starts [`Self::run`] as a task, with a node's way to mount a source again.
    pub(super) fn spawn<N: Send + Sync + 'static>(
        self: &Arc<Self>,
        tasks: &mut JoinSet<()>,
        node: &Arc<N>,
        revive: for<'a> fn(&'a Arc<N>, &'a str) -> BoxFuture<'a, Result<bool>>,
    ) {
        let node = Arc::clone(node);
        tasks.spawn(Arc::clone(self).run(move |name| {
            let node = Arc::clone(&node);
            async move { revive(&node, &name).await }
        }));
    }

    /// Calls `revive` with the name of each pod that is due, one call at a time for a pod. It returns whether it mounted anything.
    pub(super) async fn run<F>(self: Arc<Self>, revive: impl Fn(String) -> F)
    where
        F: Future<Output = Result<bool>> + Send + 'static,
    {
        let (mut under_way, mut busy) = (JoinSet::new(), BTreeSet::new());
        let mut paces: BTreeMap<String, Pace> = BTreeMap::new();
        loop {
            let name = tokio::select! {
                name = self.next(&busy) => name,
                Some(done) = under_way.join_next(), if !under_way.is_empty() => {
                    let Ok((name, result)): std::result::Result<(String, Result<bool>), _> = done else { continue };
                    busy.remove(&name);
                    let pace = paces.remove(&name).unwrap_or_default();
                    match result {
                        Ok(false) => {}
                        Ok(true) => drop(paces.insert(name, pace.after(Instant::now(), false))),
                        Err(error) => {
                            tracing::warn!("mounting the source of Mountpoint Pod {name} again: {error}");
                            paces.insert(name, pace.after(Instant::now(), true));
                        }
                    }
                    continue;
                }
            };
            {
                let inside = self.inside.lock();
                paces.retain(|name, _| inside.served.contains_key(name));
            }
            let wait = paces.get(&name).map_or(Duration::ZERO, |pace| pace.wait(Instant::now()));
            busy.insert(name.clone());
            let reviving = revive(name.clone());
            under_way.spawn(async move {
                tokio::time::sleep(wait).await;
                (name, reviving.await)
            });
        }
    }

    /// The next pod that is due and has no call in progress.
    async fn next(&self, busy: &BTreeSet<String>) -> String {
        loop {
            {
                let mut inside = self.inside.lock();
                let free = inside.due.iter().find(|name| !busy.contains(*name)).cloned();
                if let Some(name) = free {
                    inside.due.remove(&name);
                    return name;
                }
            }
            tokio::select! {
                () = self.woken.notified() => {}
                () = self.listen() => {}
            }
        }
    }

    /// Waits for events of inotify about new files, and makes their pods due.
    async fn listen(&self) {
        let Some(events) = &self.events else { return std::future::pending().await };
        let mut ready = match events.readable().await {
            Ok(ready) => ready,
            Err(error) => {
                tracing::error!("waiting for inotify: {error}");
                return std::future::pending().await;
            }
        };
        let mut space = [MaybeUninit::uninit(); EVENTS_BYTES];
        let mut reader = inotify::Reader::new(events.get_ref(), &mut space);
        let mut inside = self.inside.lock();
        loop {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                    let all: Vec<_> = inside.served.keys().cloned().collect();
                    inside.due.extend(all);
                }
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => {
                    inside.watches.remove(&event.wd());
                }
                Ok(event) => {
                    let Some(whose) = inside.watches.get(&event.wd()).cloned() else { continue };
                    match event.file_name().map(std::ffi::CStr::to_bytes) {
                        // A holder that gives a mount up removes the state file.
                        Some(name) if event.events().contains(ReadFlags::DELETE) => {
                            let of_state = name == Comm::STATE.as_bytes();
                            inside.due.extend(of_state.then_some(whose));
                        }
                        Some(name) if name == Comm::SOCKET.as_bytes() => drop(inside.due.insert(whose)),
                        Some(name) if name == Comm::STATE.as_bytes() => {
                            inside.restarted.insert(whose.clone());
                            inside.due.insert(whose);
                        }
                        Some(name) if name == Comm::GONE.as_bytes() => {
                            inside.gone.insert(whose.clone());
                            inside.due.insert(whose);
                        }
                        _ => {}
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    ready.clear_ready();
                    return;
                }
                Err(error) => {
                    tracing::error!("reading from inotify: {error}");
                    ready.clear_ready();
                    return;
                }
            }
        }
    }

    fn watch(&self, inside: &mut Inside, name: &str, comm: &Comm) {
        let Some(events) = &self.events else { return };
        let changes = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE;
        let flags = changes | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW;
        match inotify::add_watch(events.get_ref(), comm.directory(), flags) {
            Ok(watch) => drop(inside.watches.insert(watch, name.to_owned())),
            Err(error) => tracing::warn!(
                "a dead engine of Mountpoint Pod {name} is noticed with the kubelet's next call only, since watching {} failed: \
                 {error}; look at fs.inotify.max_user_watches of the node",
                comm.directory().display()
            ),
        }
    }

    fn unbind(&self, inside: &mut Inside, name: &str, target: &Path) {
        let Some(served) = inside.served.get_mut(name) else { return };
        served.targets.remove(target);
        if served.targets.is_empty() {
            self.drop_pod(inside, name);
        }
    }

    fn drop_pod(&self, inside: &mut Inside, name: &str) {
        inside.served.remove(name);
        inside.due.remove(name);
        inside.restarted.remove(name);
        inside.gone.remove(name);
        let watch = inside.watches.iter().find(|(_, of)| *of == name).map(|(&watch, _)| watch);
        if let (Some(events), Some(watch)) = (&self.events, watch) {
            inside.watches.remove(&watch);
            // The directory may be gone, with its watch.
            let _ = inotify::remove_watch(events.get_ref(), watch);
        }
    }
}

#[expect(
    deprecated,
    reason = "its successor is unsafe, for types whose descriptor changes; that of an OwnedFd does not"
)]
fn readable(events: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(events, Interest::READABLE)
}

/// The last mount of one source, and the number of mounts of its series.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    last: Option<Instant>,
    in_a_row: u32,
    failed: bool,
}

impl Pace {
    /// The pace after one more mount.
    fn after(self, now: Instant, failed: bool) -> Self {
        let was_well = !failed && self.last.is_none_or(|last| now.duration_since(last) >= WELL_AFTER);
        Self { last: Some(now), in_a_row: if was_well { 1 } else { self.in_a_row + 1 }, failed }
    }

    /// Wait from now until the next mount.
    fn wait(self, now: Instant) -> Duration {
        let Some(last) = self.last else { return Duration::ZERO };
        let since = now.duration_since(last);
        if !self.failed && since >= WELL_AFTER {
            return Duration::ZERO;
        }
        let longest = if self.failed { PAUSE_OF_FAILURES_MAX } else { PAUSE_MAX };
        let doubled = FIRST_PAUSE.saturating_mul(1 << self.in_a_row.saturating_sub(1).min(16));
        doubled.min(longest).saturating_sub(since)
    }
}

#[cfg(test)]
mod tests;
