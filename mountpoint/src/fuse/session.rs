//! A session with the kernel: mount or adopt a device, serve it on a few threads, unmount.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::Context as _;

use super::auto_unmount::AutoUnmount;
use super::device::{Connection, FuseDevice};
use super::fuser::start_fuser;
use super::gate::Requests;
use super::mounted::{device_behind, device_of, is_helped, topmost, unmount_directory};
use super::on_runtime::OnRuntime;
use super::operations::Operations;
use super::options::{Device, MountOptions, Outliving, Transport};
use super::serve::{go_on, greet, rings_for, serve};
use crate::fs::{self, FileSystem};
use crate::metrics::Metrics;
use crate::mountinfo;
use crate::outlive::{Agreed, Refused};
use crate::sync::{Arc, Mutex};

/// A session in progress.
#[derive(Debug)]
pub struct Session {
    serving: Vec<JoinHandle<io::Result<()>>>,
    unmounter: Unmounter,
    auto_unmount: Option<AutoUnmount>,
    requests: Option<Requests>,
}

/// Ends a session, from any thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    way: Way,
    /// Number of the file system, if it is known.
    device: Option<fs::DeviceNo>,
    /// The connection, for checks; `None` with fuser.
    connection: Option<Connection>,
}

#[derive(Clone, Debug)]
enum Way {
    /// The device was adopted, so another process unmounts it.
    NotOurs,
    Directory(PathBuf),
    Fuser(PathBuf, Arc<Mutex<::fuser::SessionUnmounter>>),
}

impl Session {
    /// Mounts a bucket, and serves it until the unmount. Returns once INIT is answered: programs can use the file system.
    ///
    /// # Errors
    /// An error of mount(2), fusermount3 or the kernel's INIT; nothing is left mounted then.
    pub fn start(
        device: Device,
        fs: Arc<FileSystem>,
        options: &MountOptions,
        metrics: Arc<Metrics>,
        runtime: tokio::runtime::Handle,
    ) -> anyhow::Result<Self> {
        // A thread that waits for a disk holds up all requests of its ring.
        let may_wait = if options.transport == Transport::IoUring { 0 } else { options.threads / 2 };
        Self::start_with(device, OnRuntime::new(fs, runtime.clone(), may_wait), options, metrics, runtime)
    }

    /// Serves any file system, as [`Session::start`] does. Work of the transport beside the requests runs on `runtime`, which needs timers.
    ///
    /// # Errors
    /// The errors of [`Session::start`].
    pub fn start_with(
        device: Device,
        ops: impl Operations,
        options: &MountOptions,
        metrics: Arc<Metrics>,
        runtime: tokio::runtime::Handle,
    ) -> anyhow::Result<Self> {
        let mounted_on = match &device {
            Device::Mount(dir) => Some(dir.clone()),
            Device::Adopted(_) => None,
            Device::Outliving(outliving) => outliving.dir.clone().filter(|_| outliving.device.is_none()),
        };
        let mut session = match options.transport {
            Transport::Dev | Transport::IoUring => Self::start_own(device, ops, options, metrics, runtime)?,
            Transport::Fuser => {
                let started = start_fuser(device, ops, options, metrics)?;
                let way = match (&mounted_on, started.unmounter) {
                    (Some(dir), Some(unmounter)) => Way::Fuser(dir.clone(), Arc::new(Mutex::new(unmounter))),
                    _ => Way::NotOurs,
                };
                let unmounter = Unmounter { way, device: started.number, connection: None };
                Self { serving: vec![started.serving], unmounter, auto_unmount: None, requests: None }
            }
        };
        if let (Some(dir), Some(bytes)) = (&mounted_on, options.read_ahead) {
            set_read_ahead(dir, bytes);
        }
        if let (Some(dir), true) = (&mounted_on, options.auto_unmount) {
            let watching = session
                .unmounter
                .device
                .context("the device of the mount is not known")
                .and_then(|device| AutoUnmount::watch(dir, device).context("starting its process"));
            match watching {
                Ok(watcher) => session.auto_unmount = Some(watcher),
                Err(error) => {
                    let _ = session.unmounter.unmount();
                    return Err(error.context("--auto-unmount"));
                }
            }
        }
        Ok(session)
    }

    fn start_own(
        device: Device,
        ops: impl Operations,
        options: &MountOptions,
        metrics: Arc<Metrics>,
        runtime: tokio::runtime::Handle,
    ) -> anyhow::Result<Self> {
        let (device, dir, number) = match device {
            Device::Outliving(outliving) => {
                return Self::start_outliving(outliving, ops, options, metrics, runtime);
            }
            Device::Adopted(fd) => {
                let number = device_behind(&fd);
                (FuseDevice::adopt(fd), None, number)
            }
            Device::Mount(dir) => {
                let device = FuseDevice::mount(&dir, options)?;
                let number = device_of(&dir);
                (device, Some(dir), number)
            }
        };
        let connection = Some(device.connection());
        number.into_iter().for_each(|number| ops.mounted_as(number));
        let by_ring = options.transport == Transport::IoUring;
        let rings = |offered, device: BorrowedFd<'_>| by_ring.then(|| rings_for(offered, device)).flatten();
        let started = greet(device, ops, options, rings, metrics, runtime, None)
            .and_then(|greeted| serve(greeted, options.threads).context("starting the FUSE threads"));
        match (started, dir) {
            (Ok(serving), dir) => {
                let way = dir.map_or(Way::NotOurs, Way::Directory);
                let unmounter = Unmounter { way, device: number, connection };
                Ok(Self { serving, unmounter, auto_unmount: None, requests: None })
            }
            (Err(error), dir) => {
                if let Some(dir) = dir {
                    let _ = unmount_directory(&dir, number, false);
                }
                Err(error)
            }
        }
    }

    /// Serves a mount that outlives its engine: a new mount, or the mount of an earlier engine.
    fn start_outliving(
        outliving: Outliving,
        ops: impl Operations,
        options: &MountOptions,
        metrics: Arc<Metrics>,
        runtime: tokio::runtime::Handle,
    ) -> anyhow::Result<Self> {
        let Outliving { dir, device, journal, keep } = outliving;
        let (way, agreed) = (dir.clone().map_or(Way::NotOurs, Way::Directory), journal.agreed());
        let known = (agreed.connection > 0)
            .then_some(fs::DeviceNo { major: 0, minor: u32::try_from(agreed.connection).unwrap_or(0) });
        let (device, number, is_new) = match (device, dir.as_deref()) {
            (Some(fd), _) => {
                let behind = device_behind(&fd);
                if known.is_some() && behind.is_some() && known != behind {
                    return Err(Refused::AnotherDevice.into());
                }
                let number = known.or(behind);
                (FuseDevice::adopt(fd), number, false)
            }
            (None, Some(dir)) => {
                let device = FuseDevice::mount(dir, options)?;
                let number = device_of(dir);
                (device, number, true)
            }
            (None, None) => anyhow::bail!("there is neither a device nor a directory to mount on"),
        };
        let connection = Some(device.connection());
        let begin = || {
            let number = number.filter(|number| number.major == 0);
            journal.agree(Agreed { connection: number.map_or(0, |it| it.minor.into()), ..agreed })?;
            if is_new {
                keep(device.as_fd()).context("giving the mount's device to the service manager")?;
            }
            number.into_iter().for_each(|number| ops.mounted_as(number));
            let journal = Arc::clone(&journal);
            let greeted = match is_new {
                true => greet(device, ops, options, |_, _| None, metrics, runtime, Some(journal)),
                false => go_on(device, ops, options, metrics, runtime, journal),
            }?;
            let requests = greeted.channel.requests();
            let serving = serve(greeted, options.threads).context("starting the FUSE threads")?;
            anyhow::Ok((serving, requests))
        };
        match begin() {
            Ok((serving, requests)) => {
                let unmounter = Unmounter { way, device: number, connection };
                Ok(Self { serving, unmounter, auto_unmount: None, requests })
            }
            Err(error) => {
                if let Some(dir) = dir.filter(|_| is_new) {
                    let _ = unmount_directory(&dir, number, false);
                }
                Err(error)
            }
        }
    }

    /// A handle that ends the session.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// The requests of a mount that outlives this process.
    pub fn requests(&self) -> Option<Requests> {
        self.requests.clone()
    }

    /// Waits until the mount was unmounted, by any process.
    ///
    /// # Errors
    /// The device failed otherwise than by an unmount.
    pub fn wait(self) -> io::Result<()> {
        let mut outcome = Ok(());
        for thread in self.serving {
            let served = thread.join().unwrap_or_else(|_| Err(io::Error::other("a FUSE thread panicked")));
            outcome = outcome.and(served);
        }
        outcome
    }
}

impl Unmounter {
    /// Unmounts. A mount in use is detached: its directory is free at once, and the mount ends with its last open file. `false`: the device
    /// was adopted, and another process must unmount it.
    ///
    /// # Errors
    /// Another mount covers this one; or an error of umount(2) or fusermount3.
    pub fn unmount(&self) -> anyhow::Result<bool> {
        let is_connected = self.connection.as_ref().is_some_and(Connection::is_there);
        match &self.way {
            Way::NotOurs => return Ok(false),
            Way::Directory(dir) => unmount_directory(dir, self.device, is_connected)?,
            Way::Fuser(dir, unmounter) => {
                let is_there = topmost(dir, self.device, is_connected)?.is_some();
                // A sandbox does not let `fuser` start the fusermount3 with which it unmounts.
                if is_there && (is_helped() || unmounter.lock().unmount().is_err()) {
                    unmount_directory(dir, self.device, is_connected)?;
                }
            }
        }
        Ok(true)
    }

    /// The number of the mount's file system, if it is known.
    pub fn device(&self) -> Option<fs::DeviceNo> {
        self.device
    }

    /// Whether this process's table of mounts still has the mount. `false` also if the table can't be read, or the mount's number is not
    /// known. A connection that was aborted ends under its mount; after an unmount the mount is gone first.
    pub fn is_still_mounted(&self) -> bool {
        self.stands() == Some(true)
    }

    /// Whether our table of mounts is known to lack the mount.
    pub fn is_gone(&self) -> bool {
        self.stands() == Some(false)
    }

    fn stands(&self) -> Option<bool> {
        let (device, table) = (self.device?, std::fs::read(mountinfo::OWN).ok()?);
        Some(mountinfo::lines(&table).any(|line| device.is(line.device)))
    }
}

/// Sets how far the kernel may read ahead. Its default for FUSE, 128 KiB, makes eight requests of each MiB. Needs root; without it the
/// mount works all the same, a little slower.
fn set_read_ahead(dir: &Path, bytes: u64) {
    let set = |shown: fs::DeviceNo| {
        let file = format!("/sys/class/bdi/{}:{}/read_ahead_kb", shown.major, shown.minor);
        std::fs::write(file, (bytes / 1024).to_string())
    };
    if let Some(Err(error)) = device_of(dir).map(set) {
        tracing::debug!("read-ahead stays at the kernel's default: {error}");
    }
}
