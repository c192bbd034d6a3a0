//! Files of the caches of Mountpoint Pods that the kernel reads itself (FUSE passthrough). They are registered here, because only a
//! privileged process may. Enters: the requests of an engine, each with a copy of its FUSE device. Leaves: the id of a registered file, or
//! a refusal.
//!
//! The engine is not trusted. It names a file and never sends a descriptor: the kernel opens a registered file with the rights of the
//! process that registered it, so a read-only descriptor would give more than it has. The name is opened here, below a read-only copy of
//! that pod's own cache volume.
//!
//! Never here: a stat of a mount; a copy of a device after its request: it would keep the readers of a dead engine waiting.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use mountpoint::fuse::{connection_of, forget_here, is_device, register_here};
use mountpoint::sync::atomic::{AtomicBool, Ordering};
use mountpoint::sync::{Arc, Mutex};
use mountpoint::telemetry::engine_lines::{Answer, CLOSE, OPEN, Request};
use rustix::fs::{FileType, fstat};
use tokio::time::timeout;

use super::read_only;
use super::received::{Busy, Files};

/// Most registered files of one source; after them the engine reads itself. Doubled, one bucket can have twice as many open files that the
/// kernel reads, and each engine can take twice as much of the kernel's memory.
const OF_SOURCE_MAX: u32 = 4096;
/// Most registered files of all sources of a node. Doubled, the engines of a node can together take twice as much of the kernel's memory.
const OF_NODE_MAX: u32 = 32_768;
/// Time limit of one request, for a disk that hangs; the engine then reads itself. Doubled, the longest open on a hanging disk takes twice
/// as long.
const WITHIN: Duration = Duration::from_millis(200);

/// Counts of registered files of this node's engines, by the minor number of the source's device.
#[derive(Debug, Default)]
pub(super) struct Counts(Mutex<HashMap<u32, Source>>);

#[derive(Debug, Default)]
struct Source {
    /// Number of registered files.
    ids: u32,
    busy: Arc<Busy>,
}

impl Counts {
    /// Takes over the engine's own count of its registered files: an earlier driver may have registered them.
    fn told(&self, source: u32, ids: u32) {
        let mut sources = self.0.lock();
        let source = sources.entry(source).or_default();
        source.ids = ids.min(OF_SOURCE_MAX).max(source.ids);
    }

    /// The marker of the one thread that may handle descriptors of an engine.
    pub(super) fn busy(&self, source: u32) -> Arc<Busy> {
        Arc::clone(&self.0.lock().entry(source).or_default().busy)
    }

    /// Forgets an earlier source, whose device number another mount has now.
    pub(super) fn forget(&self, source: u32) {
        self.0.lock().remove(&source);
    }

    /// Forgets sources that are gone: their registered files were closed with the connection.
    pub(super) fn keep(&self, is_there: impl Fn(u32) -> bool) {
        self.0.lock().retain(|minor, source| is_there(*minor) || source.busy.is());
    }

    fn add(&self, source: u32) -> Result<(), String> {
        let mut sources = self.0.lock();
        if sources.values().map(|source| source.ids).sum::<u32>() >= OF_NODE_MAX {
            return Err(format!("this node has {OF_NODE_MAX} such files, the most that it takes"));
        }
        let source = sources.entry(source).or_default();
        if source.ids >= OF_SOURCE_MAX {
            return Err(format!("this mount has {OF_SOURCE_MAX} such files, the most that it may have"));
        }
        source.ids += 1;
        Ok(())
    }

    fn remove(&self, source: u32) {
        if let Some(source) = self.0.lock().get_mut(&source) {
            source.ids = source.ids.saturating_sub(1);
        }
    }

    #[cfg(test)]
    pub(super) fn is_stuck(&self, source: u32) -> bool {
        self.0.lock().get(&source).is_some_and(|source| source.busy.is())
    }

    #[cfg(test)]
    pub(super) fn of(&self, source: u32) -> u32 {
        self.0.lock().get(&source).map_or(0, |source| source.ids)
    }
}

/// The handler of one engine's requests.
#[derive(Debug)]
pub(super) struct Desk {
    counts: Arc<Counts>,
    /// The cache volume of the engine's pod.
    cache: PathBuf,
    /// The minor number of the source's device.
    source: u32,
    busy: Arc<Busy>,
    /// Whether files are registered. Registered files are closed in any case.
    opens: bool,
    /// Whether the next refusal is logged as information: only the first one is.
    tells: AtomicBool,
}

impl Desk {
    /// The handler for an engine that has `ids` registered files already.
    pub(super) fn new(counts: Arc<Counts>, cache: PathBuf, source: u32, ids: u32, opens: bool) -> Self {
        counts.told(source, ids);
        let busy = counts.busy(source);
        Self { counts, cache, source, busy, opens, tells: AtomicBool::new(true) }
    }

    /// Executes a request, and returns its answer.
    pub(super) async fn answer(&self, request: Request, files: Files) -> Answer {
        let number = Some(request.number);
        match self.serve(request, files).await {
            Ok(id) => Answer { number, id: Some(id), ..Answer::default() },
            Err(Refusal { why: error, busy }) => {
                if self.tells.swap(false, Ordering::Relaxed) {
                    tracing::info!("the kernel does not read a file of {}: {error}", self.cache.display());
                } else {
                    tracing::debug!("the kernel does not read a file of {}: {error}", self.cache.display());
                }
                Answer { number, error: Some(error), busy, ..Answer::default() }
            }
        }
    }

    async fn serve(&self, request: Request, files: Files) -> Result<u32, Refusal> {
        let wish = Wish::of(request);
        let Files { held, is_cut, came_while_busy } = files;
        let count = held.len();
        let opens = matches!(wish, Ok(Wish::Open { .. })) && count == 1 && !is_cut;
        let counted = match opens {
            true if !self.opens => Err("the chart's mountpointPod.kernelReads is off".to_owned()),
            true => self.counts.add(self.source).map(|()| true),
            false => Ok(false),
        };
        let is_counted = counted == Ok(true);
        let job = Job { cache: self.cache.clone(), source: self.source, counts: Arc::clone(&self.counts) };
        // Received descriptors are checked and closed on a separate thread: one may be a file of a mount that does not answer.
        let done = self.on_a_thread(held, move |held, place| {
            counted?;
            let [device] = <[OwnedFd; 1]>::try_from(held).map_err(|_| {
                format!("a request brings one descriptor, the FUSE device, and this one brings {count}")
            })?;
            if is_cut {
                return Err("a request brings one descriptor, the FUSE device".to_owned());
            }
            job.run(wish?, device, place)
        });
        let done = done.await;
        if is_counted && done.is_err() {
            self.counts.remove(self.source);
        }
        if came_while_busy { done.map_err(|_| Refusal::busy()) } else { done }
    }

    /// Runs work that may hang on a thread, one at a time, and waits for at most [`WITHIN`].
    async fn on_a_thread(
        &self,
        held: Vec<OwnedFd>,
        work: impl FnOnce(Vec<OwnedFd>, &Place) -> Result<u32, String> + Send + 'static,
    ) -> Result<u32, Refusal> {
        let Some(held) = self.busy.begin(held) else { return Err(Refusal::busy()) };
        let (place, busy) = (Arc::new(Place::default()), Arc::clone(&self.busy));
        let of_work = Arc::clone(&place);
        let mut working = tokio::task::spawn_blocking(move || {
            let done = work(held, &of_work);
            busy.end();
            done
        });
        if let Ok(done) = timeout(WITHIN, &mut working).await {
            return Ok(done.map_err(|error| error.to_string())??);
        }
        if place.give_up() {
            // The file has just been registered, and the answer comes at once.
            return Ok(working.await.map_err(|error| error.to_string())??);
        }
        Err(Refusal { why: format!("no answer of the node's disk within {WITHIN:?}"), busy: true })
    }
}

/// The reason why a request was not executed.
#[derive(Debug)]
struct Refusal {
    why: String,
    /// Whether the same request may succeed later.
    busy: bool,
}

impl Refusal {
    fn busy() -> Self {
        let why = "an earlier request hangs: does the node's disk answer?".to_owned();
        Self { why, busy: true }
    }
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self { why, busy: false }
    }
}

/// The device of a request in progress. A caller that gives up closes it, unless the kernel is being called right now.
#[derive(Debug, Default)]
struct Place(Mutex<Lent>);

#[derive(Debug, Default)]
struct Lent {
    device: Option<OwnedFd>,
    /// Whether a file was registered, or the caller has given up, whichever came first.
    is_over: bool,
}

impl Place {
    fn keep(&self, device: OwnedFd) {
        let mut lent = self.0.lock();
        // If the caller has given up, the device is closed.
        lent.device = (!lent.is_over).then_some(device);
    }

    fn take(&self) -> Result<OwnedFd, String> {
        self.0.lock().device.take().ok_or_else(|| "nobody waits any more".to_owned())
    }

    /// Notes that a file was registered. `false` if the caller has given up.
    fn finish(&self) -> bool {
        !std::mem::replace(&mut self.0.lock().is_over, true)
    }

    /// Gives up. `true` if a file was registered before.
    fn give_up(&self) -> bool {
        let mut lent = self.0.lock();
        lent.device = None;
        std::mem::replace(&mut lent.is_over, true)
    }
}

/// A request with checked fields.
enum Wish {
    Open { name: String, dev: u64, ino: u64 },
    Close { id: u32 },
}

impl Wish {
    fn of(Request { request, name, dev, ino, id, .. }: Request) -> Result<Self, String> {
        match (request.as_str(), name, dev, ino, id) {
            (OPEN, Some(name), Some(dev), Some(ino), _) => Ok(Self::Open { name, dev, ino }),
            (CLOSE, .., Some(id)) => Ok(Self::Close { id }),
            (OPEN, ..) => Err("an open has a name, a dev and an ino".to_owned()),
            (CLOSE, ..) => Err("a close has an id".to_owned()),
            _ => Err(format!("this driver answers only {OPEN:?} and {CLOSE:?}")),
        }
    }
}

/// The execution of one request.
struct Job {
    cache: PathBuf,
    source: u32,
    counts: Arc<Counts>,
}

impl Job {
    /// Executes the request.
    fn run(&self, wish: Wish, device: OwnedFd, place: &Place) -> Result<u32, String> {
        check_device(device.as_fd(), self.source)?;
        // The disk may be slow. The device is kept no longer than the caller waits.
        place.keep(device);
        match wish {
            Wish::Open { name, dev, ino } => {
                let failed = |what: &str, error: io::Error| format!("{what}: {error}");
                let copy = read_only::copy(&self.cache).map_err(|error| failed("its cache volume", error))?;
                let file = read_only::open_below(&copy, &name).map_err(|error| failed("the file", error))?;
                let stat = fstat(&file).map_err(|error| failed("the file", error.into()))?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return Err("the name is not of a regular file".to_owned());
                }
                if (stat.st_dev, stat.st_ino) != (dev, ino) {
                    return Err("the file of that name is another one".to_owned());
                }
                let device = place.take()?;
                let id = register_here(&device, file.as_fd())
                    .map_err(|error| failed("the kernel refuses the file", error))?;
                if !place.finish() {
                    let _ = forget_here(&device, id);
                    return Err("nobody waits any more".to_owned());
                }
                Ok(id)
            }
            Wish::Close { id } => {
                forget_here(&place.take()?, id)
                    .map_err(|error| format!("the kernel refuses the number: {error}"))?;
                self.counts.remove(self.source);
                Ok(id)
            }
        }
    }
}

/// Checks that a descriptor is a FUSE device, and, if the kernel tells (Linux 6.18), that of this source. No file system is called.
fn check_device(device: BorrowedFd<'_>, source: u32) -> Result<(), String> {
    let unknown = |error: io::Error| format!("the descriptor: {error}");
    if !is_device(device).map_err(unknown)? {
        return Err("the descriptor is not of a FUSE device".to_owned());
    }
    match connection_of(device).map_err(unknown)? {
        Some(of) if of != source => Err("the FUSE device is another mount's".to_owned()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
