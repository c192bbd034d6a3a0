//! Targets: the paths at which the kubelet wants volumes. Enters: a path of a call. Leaves: the path in the form of the mount table,
//! locked for this call; or an unmounted and removed target.
//!
//! Never here: a mount; a change outside the kubelet's directory, wherever links lead.

use std::io;
use std::path::{Path, PathBuf};

use mountpoint::sync::Arc;
use tokio::sync::OwnedMutexGuard;

use super::locks::Locks;
use super::mount_id::MountId;
use super::mountinfo::{Mount, Mounts};
use super::sys::{self, Busy};
use crate::error::{Error, ErrorKind, Result};

/// The path of the kubelet's directory without symbolic links.
pub(super) fn kubelet(path: &Path) -> Result<PathBuf> {
    path.canonicalize()
        .map_err(|error| Error::invalid(format!("the kubelet's directory {}: {error}", path.display())))
}

/// All targets of this node.
#[derive(Debug)]
pub(super) struct Targets {
    kubelet: PathBuf,
    locks: Arc<Locks>,
}

impl Targets {
    /// The targets below this kubelet's directory, whose path has no symbolic link.
    pub(super) fn new(kubelet: &Path, locks: Arc<Locks>) -> Self {
        Self { kubelet: kubelet.to_owned(), locks }
    }

    /// The target to mount at. Creates the directories above it: the kubelet creates them, other callers may not.
    ///
    /// # Errors
    /// `InvalidArgument` if a link leads out of the kubelet's directory, `Aborted` while another call works on the target.
    pub(super) fn make(&self, target: &Path) -> Result<Target> {
        let failed = |error: io::Error| {
            Error::internal(format!("making the target path {}: {error}", target.display()))
        };
        // This is checked before anything is created: a link in the path may lead outside.
        let there = target.ancestors().skip(1).find(|directory| directory.exists());
        if let Some(directory) = there {
            self.check_beneath(&directory.canonicalize().map_err(failed)?)?;
        }
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        self.lock(sys::resolved(target).map_err(failed)?)
    }

    /// The target to unmount; `None` if the directory above it is gone.
    ///
    /// # Errors
    /// The same as [`Self::make`].
    pub(super) fn find(&self, target: &Path) -> Result<Option<Target>> {
        let resolved = match sys::resolved(target) {
            Ok(resolved) => resolved,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::invalid(format!("target path {}: {error}", target.display()))),
        };
        self.check_beneath(&resolved)?;
        self.lock(resolved).map(Some)
    }

    /// Refuses a path that is outside the kubelet's directory after its symbolic links are resolved.
    ///
    /// # Errors
    /// `InvalidArgument` for such a path.
    fn check_beneath(&self, resolved: &Path) -> Result<()> {
        let kubelet = &self.kubelet;
        if resolved.starts_with(kubelet) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "target_path leads by a symbolic link to {}, which is not beneath the kubelet's directory {}: if this node's \
             kubelet keeps its pods elsewhere, set node.kubeletPath in the chart to that place",
            resolved.display(),
            kubelet.display()
        )))
    }

    fn lock(&self, path: PathBuf) -> Result<Target> {
        let lock = self.locks.try_lock(&path.to_string_lossy()).ok_or_else(|| {
            Error::new(ErrorKind::Aborted, format!("another call for {} is in progress", path.display()))
        })?;
        Ok(Target { path, _lock: lock })
    }
}

/// One target, locked for one call.
#[derive(Debug)]
pub(super) struct Target {
    path: PathBuf,
    _lock: OwnedMutexGuard<()>,
}

impl Target {
    /// The path in the form of the mount table.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Unmounts the target if it is mounted, and removes its directory if it exists.
    pub(super) fn take_away(&self) -> Result<()> {
        let path = &self.path;
        unmounted(path)?;
        match std::fs::remove_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let text = format!("{} is unmounted, but can't be removed: {error}", path.display());
                Err(Error::internal(text))
            }
            _ => Ok(()),
        }
    }
}

/// Refuses a mount that is not a bucket: it is not ours to unmount.
pub(super) fn check_ours(mount: &Mount) -> Result<()> {
    if mount.is_bucket() {
        return Ok(());
    }
    let Mount { point, kind, name, .. } = mount;
    let text = format!("{} of {name} is mounted at {} already: unmount it first", kind, point.display());
    Err(Error::new(ErrorKind::FailedPrecondition, text))
}

/// Unmounts the target. `true` if it was mounted.
pub(super) fn unmounted(target: &Path) -> Result<bool> {
    sys::unmount(target, Busy::Detach)
        .map_err(|error| Error::internal(format!("unmounting {}: {error}", target.display())))
}

/// The mount at this path, if any.
pub(super) fn mounted(path: &Path) -> Result<Option<MountId>> {
    MountId::at(path)
        .map_err(|error| Error::internal(format!("looking for a mount at {}: {error}", path.display())))
}

/// The present mount table.
pub(super) fn table() -> Result<Mounts> {
    Mounts::read().map_err(|error| Error::internal(format!("reading the table of mounts: {error}")))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::mounter::testing::{dirs, fuse, isolated};

    /// Does what a publish and an unpublish do on the caller's thread, except for the question whether the source answers.
    fn bound_and_taken_away(kubelet: &Path, source: &Path) -> Result<()> {
        let targets = Targets::new(kubelet, Arc::default());
        let at = kubelet.join("pods/w/volumes/kubernetes.io~csi/pv-1/mount");
        for read_only in [false, true] {
            let target = targets.make(&at)?;
            std::fs::create_dir(&at).unwrap();
            sys::bind(source, &at, read_only).unwrap();
            sys::make_read_only(&at).unwrap();
            drop(target);
            let target = targets.make(&at)?;
            let mounts = table()?;
            let (of_source, of_target) = (mounts.at(source).unwrap(), mounts.at(&at).unwrap());
            check_ours(of_target)?;
            assert_eq!(mounts.source_of(of_target, kubelet), Some(of_source));
            assert!(mounted(&at)?.is_some() && of_target.read_only && !of_source.read_only);
            for directory in [source, &at] {
                let error = std::fs::create_dir(directory).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
                let error = std::fs::remove_dir(directory).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
            }
            drop(target);
            targets.find(&at)?.unwrap().take_away()?;
        }
        assert!(!at.exists());
        sys::unmount(source, Busy::Refuse).unwrap();
        Ok(())
    }

    /// Goal: no call of a publish or an unpublish but the probe's waits for an engine, so that one that hangs holds up its own volume alone.
    #[test]
    fn a_target_whose_engine_hangs_is_bound_and_taken_away_at_once() {
        isolated(|| {
            let ([kubelet], _folder) = dirs();
            let Some(device) = fuse() else { return };
            let source = kubelet.join("source");
            std::fs::create_dir(&source).unwrap();
            sys::mount_fuse(device.as_fd(), &source, false).unwrap();
            let (done, is_done) = mpsc::channel();
            thread::spawn(move || done.send(bound_and_taken_away(&kubelet, &source)).unwrap());
            is_done.recv_timeout(Duration::from_secs(60)).expect("no call waits for the engine").unwrap();
        });
    }
}
