//! One Mountpoint Pod, from the registration of its mount to the mount's end. Enters: the pod's directory. Leaves: device and journal, for
//! the pod's next container.
//!
//! The pod is not trusted: its process is checked like at a hand-over, a line has a limit and a time, and any other bytes end
//! the hold.
//!
//! Never here: stat, read or poll of a descriptor, unless it leads to /dev/fuse.

use std::io::{self, Read as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use mountpoint::fuse::{connection_of, is_device};
use mountpoint::sync::Arc;
use mountpoint::sync::atomic::{AtomicBool, Ordering};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Uid;
use rustix::net::sockopt::socket_peercred;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::entry::{Given, Lost, Refused};
use super::{Holds, LOOK_EVERY};
use crate::contract::comm::Comm;
use crate::contract::hold;
use crate::contract::message::{self, Answer, Mount, MountMessage};
use crate::contract::restart::{RESTART_WITHIN, Restarting};
use crate::mounter::comm_files::CommFiles;
use crate::mounter::mountinfo::Mounts;
use crate::mounter::peer::Processes;

/// Interval between checks for the next container; programs wait this much longer at most. Halved, a slow container costs twice the calls.
const LOOK_FOR_CONTAINER: Duration = Duration::from_millis(20);
/// Wait for a container's answer that it can't go on with the mount. The engine's answer may come later, and is not waited for.
const REFUSED_WITHIN: Duration = Duration::from_secs(1);
/// The error of a mount whose container ended, for Events.
const ENDED: &str = "the container of its Mountpoint Pod ended with mounter and engine. Was it out of memory? kubectl describe pod says so; then raise \
                     the memory limit of the volume (mountpointContainerResourcesLimitsMemory) or of the chart (mountpointPod.resources)";

/// The error of a mount whose container ended for an upgrade, for Events.
const UPGRADED: &str = "its Mountpoint Pod gets another image";

/// A Mountpoint Pod of this node, from the driver's note.
pub(super) struct Pod {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) comm: Comm,
    pub(super) source: PathBuf,
    pub(super) processes: Processes,
    pub(super) holds: Holds,
    /// Whether a thread reads a connection of this pod, or closes its descriptors. Meanwhile no further connection is made.
    pub(super) busy: Arc<AtomicBool>,
}

/// A held mount.
struct Held {
    message: MountMessage,
    /// The user of the mounter.
    user: Uid,
    device: OwnedFd,
    journal: OwnedFd,
}

/// A connection to a mounter. A separate thread reads and closes it: a close may block, also on descriptors in unread messages, which the
/// kernel closes then.
struct Line {
    /// A copy of the stream; it is dropped before the thread's own.
    stream: UnixStream,
    parted: oneshot::Receiver<Parted>,
    /// Takes further descriptors that the thread must close. The thread ends when this sender is dropped, which happens last.
    rest: SyncSender<Rest>,
}

type Rest = (OwnedFd, OwnedFd);

impl Line {
    /// Closes descriptors on the thread. A descriptor that does not lead to a device may belong to a file system that answers a close late,
    /// or never.
    fn close(self, device: OwnedFd, journal: OwnedFd) {
        let _ = self.rest.send((device, journal));
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // Shutdown wakes the thread.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// The result of reading a mounter's registration.
type Offer = Result<(MountMessage, Uid, Mount<OwnedFd>, Line), String>;

/// Reads a registration and sends it by `tell`, and later how the connection ended. Closes the stream when the [`Line`] is dropped.
fn read(
    stream: UnixStream,
    check: impl FnOnce(&UnixStream) -> Result<(), String>,
    tell: oneshot::Sender<Offer>,
) {
    let (rest, left): (_, Receiver<Rest>) = sync_channel(1);
    let (part, parted) = oneshot::channel();
    let offer = check(&stream).and_then(|()| {
        let user = socket_peercred(&stream).map_err(|error| error.to_string())?.uid;
        let (message, mount) = hold::receive(&stream).map_err(|error| error.to_string())?;
        let copy = stream.set_read_timeout(None).and_then(|()| stream.try_clone());
        let line = Line { stream: copy.map_err(|error| error.to_string())?, parted, rest };
        Ok((message, user, mount, line))
    });
    let is_offered = offer.is_ok();
    // Without a receiver, the offer's descriptors are closed on this thread.
    if tell.send(offer).is_err() || !is_offered {
        return;
    }
    let mut said = [0; hold::END.len()];
    let how = loop {
        match (&stream).read(&mut said) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(1..) => break Parted::Ended,
            Ok(0) | Err(_) => break Parted::Lost,
        }
    };
    let _ = part.send(how);
    drop(left.iter().collect::<Vec<_>>());
}

/// Marks a thread as busy until this value is dropped.
struct BusyHere(Arc<AtomicBool>);

impl Drop for BusyHere {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// The way in which the connection to a mounter ended.
enum Parted {
    /// The mounter sent [`hold::END`], or any other bytes: the mount needs no holder.
    Ended,
    /// The connection ended without bytes: the container ended.
    Lost,
}

impl Pod {
    /// Holds this pod's mounts, one after the other, until the future is dropped.
    pub(super) async fn hold(self) {
        if self.files().is_ok_and(|files| files.is_held()) {
            // An earlier holder has ended, and its descriptors are closed.
            self.forget_state();
        }
        let (mut refused, mut again) = (None, None);
        loop {
            let registered = match again.take() {
                Some(registered) => Ok(Some(registered)),
                None => self.registration().await,
            };
            match registered {
                Ok(Some((mut line, held))) => {
                    refused = None;
                    if let Parted::Lost = self.registered(&mut line).await {
                        drop(line);
                        again = self.lost(held).await;
                    }
                }
                Ok(None) => {}
                // An error repeats at each check; it is logged once.
                Err(why) if refused.as_ref() == Some(&why) => {}
                Err(why) => {
                    tracing::warn!("the mount of Mountpoint Pod {} is not held: {why}", self.name);
                    refused = Some(why);
                }
            }
            if again.is_none() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }

    /// Waits until the connection of a registered mount ends.
    async fn registered(&self, line: &mut Line) -> Parted {
        let _shown = self.show("held");
        tracing::info!("the mount of Mountpoint Pod {} is held", self.name);
        let parted = (&mut line.parted).await.unwrap_or(Parted::Lost);
        if let Parted::Ended = parted {
            tracing::info!("the mount of Mountpoint Pod {} needs no holder any more", self.name);
        }
        parted
    }

    /// Connects to the mounter and reads a registration; `None` if there is no mounter, or the pod's thread is busy.
    async fn registration(&self) -> Result<Option<(Line, Held)>, String> {
        if self.busy.swap(true, Ordering::SeqCst) {
            return Ok(None);
        }
        let busy = BusyHere(Arc::clone(&self.busy));
        let Ok(stream) = self.files().and_then(|files| files.connect(Comm::HOLD_SOCKET)) else {
            return Ok(None);
        };
        let (processes, uid) = (self.processes.clone(), self.uid.clone());
        let (tell, told) = oneshot::channel();
        let runtime = Handle::current();
        let reading = thread::Builder::new().name("holding".into()).spawn(move || {
            let _busy = busy;
            let check = |stream: &UnixStream| {
                let _inside = runtime.enter();
                processes.check(stream, &uid, Comm::HOLD_SOCKET).map_err(|error| error.to_string())
            };
            read(stream, check, tell);
        });
        reading.map_err(|error| error.to_string())?;
        let (message, user, mount, line) = told.await.map_err(|error| error.to_string())??;
        let Mount { device, journal: Some(journal), .. } = mount else { return Ok(None) };
        let given = Mounts::read().map(|mounts| {
            let source = mounts.at(&self.source).map(|mount| mount.device.as_str());
            let is_fuse = is_device(&device).is_ok_and(|is| is);
            let is_memfd =
                leads_to(&journal).is_some_and(|path| path.to_string_lossy().starts_with("/memfd:"));
            Given { is_fuse, connection: connection_of(&device).ok().flatten(), is_memfd, source }.admit()
        });
        match given {
            Ok(Ok(())) => Ok(Some((line, Held { message, user, device, journal }))),
            refused => {
                line.close(device, journal);
                match refused {
                    Ok(Ok(()) | Err(Refused::NotMounted)) => Ok(None),
                    Ok(Err(why)) => Err(why.to_string()),
                    Err(error) => Err(format!("reading the table of mounts: {error}")),
                }
            }
        }
    }

    /// Brings a mount to the next container. Returns the registration of that container; `None` once the mount is given up.
    async fn lost(&self, held: Held) -> Option<(Line, Held)> {
        let _shown = self.show("without an engine");
        let (began, since) = (Instant::now(), Timestamp::now());
        let message = MountMessage { adopt: Some(since), ..held.message };
        // This is dropped after the mount: the driver checks the mount when the state file disappears.
        let mut told = Told { pod: self, stays: false };
        let mount = Mount { device: held.device, journal: Some(held.journal), stage: None };
        let noted = self.files().and_then(|files| {
            let words = if files.is_handing_over() { UPGRADED } else { ENDED };
            files.note_ended(words, Restarting { since }, held.user)
        });
        if let Err(error) = noted {
            tracing::warn!("telling the driver that Mountpoint Pod {} is started again: {error}", self.name);
        }
        tracing::warn!(
            "the container of Mountpoint Pod {} ended; its mount waits for the next one",
            self.name
        );
        let (mut warned, mut brought) = (false, false);
        loop {
            let files = self.files();
            let lost = Lost {
                age: began.elapsed(),
                connected: is_connected(&mount.device),
                deleted: files.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound),
                announced: files.is_ok_and(|files| files.exit_announced()),
            };
            if let Err(why) = lost.keep() {
                tracing::info!("the mount of Mountpoint Pod {} is not held any more: {why}", self.name);
                break;
            }
            match self.bring(&message, &mount, began + RESTART_WITHIN, &mut warned).await {
                Ok(sent) => brought |= sent,
                Err(why) => {
                    tracing::error!("the mount of Mountpoint Pod {} is given up: {why}", self.name);
                    break;
                }
            }
            // No other process may have the mount before.
            if let Ok(Some(registered)) = self.registration().await {
                // A registration before our message means that the mounter lives, and its connection to another holder ended.
                told.stays = brought;
                tracing::info!("Mountpoint Pod {} has its mount again", self.name);
                if !brought {
                    // A mounter that registers and hangs up again and again is checked no more often than others.
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                return Some(registered);
            }
            tokio::time::sleep(LOOK_FOR_CONTAINER).await;
        }
        None
    }

    /// Sends a mount to the mounter that waits for one; `false` if there is none.
    ///
    /// # Errors
    /// The mounter's answer that it can't go on with the mount.
    async fn bring(
        &self,
        message: &MountMessage,
        mount: &Mount<OwnedFd>,
        until: Instant,
        warned: &mut bool,
    ) -> Result<bool, String> {
        let Ok(stream) = self.files().and_then(|files| files.connect(Comm::SOCKET)) else {
            return Ok(false);
        };
        let copy = |descriptor: &OwnedFd| descriptor.try_clone().map_err(|error| error.to_string());
        let device = copy(&mount.device)?;
        let journal = mount.journal.as_ref().map(copy).transpose()?;
        let message = message.clone();
        let (processes, uid, runtime) = (self.processes.clone(), self.uid.clone(), Handle::current());
        // The thread also closes the stream.
        let sent = move || {
            let checked = {
                let _inside = runtime.enter();
                processes.check(&stream, &uid, Comm::SOCKET)
            };
            if let Err(why) = checked {
                return Err(why.to_string());
            }
            let both =
                Mount { device: device.as_fd(), journal: journal.as_ref().map(OwnedFd::as_fd), stage: None };
            let answer =
                message::send(&stream, &message, both, until.saturating_duration_since(Instant::now()))
                    .and_then(|()| message::read_answer(&stream, REFUSED_WITHIN));
            Ok(answer)
        };
        match tokio::task::spawn_blocking(sent).await.map_err(|error| error.to_string())? {
            Err(why) => {
                if !std::mem::replace(warned, true) {
                    tracing::warn!("the mount of Mountpoint Pod {} is not brought: {why}", self.name);
                }
                Ok(false)
            }
            Ok(Ok(Some(Answer::Failed { error }))) => Err(error),
            // Without an answer the engine is slow, or this container ended, too. The next registration shows which.
            Ok(Ok(Some(Answer::Ready) | None) | Err(_)) => Ok(true),
        }
    }

    fn files(&self) -> io::Result<CommFiles> {
        CommFiles::open(&self.comm)
    }

    fn forget_state(&self) {
        // The kubelet may have removed the directory.
        let _ = self.files().and_then(|files| files.forget_state());
    }

    fn show(&self, state: &'static str) -> Shown<'_> {
        self.holds.lock().insert(self.name.clone(), state);
        Shown(self)
    }
}

/// The entry of a pod in the holder's status, until this value is dropped.
struct Shown<'a>(&'a Pod);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        self.0.holds.lock().remove(&self.0.name);
    }
}

/// The state file by which the holder tells the driver that no container serves. It is removed with this value, unless the next mounter
/// owns it.
struct Told<'a> {
    pod: &'a Pod,
    stays: bool,
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if !self.stays {
            self.pod.forget_state();
        }
    }
}

/// The path behind a descriptor, from /proc: no file system is asked.
fn leads_to(descriptor: &OwnedFd) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).ok()
}

/// Whether the kernel still has its end of the device.
fn is_connected(device: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(device, PollFlags::empty())], Some(&Timespec::default()))
        .is_ok_and(|ready| ready == 0)
}
