//! Calls to the kernel: the FUSE device, mount, bind mount, unmount, and a check whether a mount answers. Enters: checked paths.
//! Leaves: the kernel's answers.
//!
//! Never here: a decision when to mount; a stat of a mount on the caller's thread, which a hanging engine would block for ever.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use mountpoint::sync::atomic::{AtomicUsize, Ordering};
use mountpoint::sync::{Arc, Mutex};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    UnmountFlags,
};
use tokio::sync::watch;

/// The source of the driver's mounts in the mount table.
pub const FS_NAME: &str = "mountpoint-s3";

/// Time without an answer to stat after which a mount counts as hung. Doubled, callers wait twice as long; halved, a
/// busy engine counts as hung.
pub const PROBE_LIMIT: Duration = Duration::from_secs(5);

/// Most mounts at one path that one call removes; with more it fails. The driver makes two, and systemd at most seven before the driver
/// unmounts dead ones.
const STACKED_MAX: usize = 16;

const MOUNT_FLAGS: MountFlags = MountFlags::NODEV.union(MountFlags::NOSUID).union(MountFlags::NOATIME);

/// Opens a FUSE device. Child processes do not inherit it.
///
/// # Errors
/// An error of open(2).
pub fn open_device() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Mounts the device's file system. It answers when a process serves the device.
///
/// # Errors
/// An error of mount(2).
pub fn mount_fuse(device: BorrowedFd<'_>, directory: &Path, read_only: bool) -> io::Result<()> {
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,allow_other",
        device.as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let data = CString::new(data).map_err(io::Error::other)?;
    let flags = if read_only { MOUNT_FLAGS | MountFlags::RDONLY } else { MOUNT_FLAGS };
    Ok(rustix::mount::mount(FS_NAME, directory, "fuse", flags, data.as_c_str())?)
}

/// Mounts the device's file system detached, for [`attach`]. It is unmounted when the descriptor is closed.
///
/// # Errors
/// `Unsupported` and others if the kernel, or a filter of system calls, is older than detached mounts (Linux 5.2).
pub fn mount_fuse_detached(device: BorrowedFd<'_>, read_only: bool) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let numbers = [
        ("fd", device.as_raw_fd().to_string()),
        ("user_id", rustix::process::geteuid().as_raw().to_string()),
        ("group_id", rustix::process::getegid().as_raw().to_string()),
    ];
    for (key, value) in &numbers {
        rustix::mount::fsconfig_set_string(&context, *key, value.as_str())?;
    }
    for (key, value) in [("source", FS_NAME), ("rootmode", "40000")] {
        rustix::mount::fsconfig_set_string(&context, key, value)?;
    }
    for key in ["default_permissions", "allow_other"].into_iter().chain(read_only.then_some("ro")) {
        rustix::mount::fsconfig_set_flag(&context, key)?;
    }
    rustix::mount::fsconfig_create(&context)?;
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NOATIME;
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, read_only);
    Ok(rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Attaches a detached mount to a directory.
///
/// # Errors
/// An error of move_mount(2).
pub fn attach(mount: BorrowedFd<'_>, directory: &Path) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(mount, "", CWD, directory, flags)?)
}

/// Binds a source to a target. `read_only` applies to this target alone. The bind takes several calls, which are made at a private
/// place; the target becomes a copy of the result. So a read-only target is never writable, even if this process is killed in between. And
/// the target is not a peer of the source or of its other targets: a mount over one of them does not appear over another.
///
/// # Errors
/// An error of mount(2); then nothing is bound.
pub fn bind(source: &Path, target: &Path, read_only: bool) -> io::Result<()> {
    let copy = OwnCopy::of(source, read_only)?;
    Ok(rustix::mount::mount_bind(&copy.0, target)?)
}

/// Makes one bind mount read-only, but not the others of its file system.
///
/// # Errors
/// An error of mount(2).
pub fn make_read_only(target: &Path) -> io::Result<()> {
    // A remount sets all flags, so those of the source are repeated.
    let flags = MountFlags::BIND | MountFlags::RDONLY | MOUNT_FLAGS;
    Ok(rustix::mount::mount_remount(target, flags, c"")?)
}

/// A private bind mount of a source outside the kubelet's directory. It is unmounted when dropped, or with the end of the container.
struct OwnCopy(PathBuf);

impl OwnCopy {
    fn of(source: &Path, read_only: bool) -> io::Result<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let place = std::env::temp_dir();
        std::fs::create_dir_all(&place)?;
        let path = loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = place.join(format!("s3-csi-bind-{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => break made.map(|()| path)?,
            }
        };
        let copy = Self(path);
        rustix::mount::mount_bind(source, &copy.0)?;
        rustix::mount::mount_change(&copy.0, MountPropagationFlags::PRIVATE)?;
        if read_only {
            make_read_only(&copy.0)?;
        }
        Ok(copy)
    }
}

impl Drop for OwnCopy {
    fn drop(&mut self) {
        // This fails if the bind failed: then nothing is mounted.
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        if let Err(error) = std::fs::remove_dir(&self.0) {
            tracing::warn!("removing {}: {error}", self.0.display());
        }
    }
}

/// The treatment of a mount in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// Keep it mounted, and return an error.
    Refuse,
    /// Detach it: its file system ends when the last user closes it.
    Detach,
}

/// Unmounts all mounts at this path. Returns whether there were any.
///
/// # Errors
/// `ResourceBusy` for [`Busy::Refuse`]; other errors of umount2(2).
pub fn unmount(point: &Path, busy: Busy) -> io::Result<bool> {
    for taken in 0..STACKED_MAX {
        let plain = rustix::mount::unmount(point, UnmountFlags::NOFOLLOW);
        let result = match (plain, busy) {
            (Err(Errno::BUSY), Busy::Detach) => {
                rustix::mount::unmount(point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
            }
            (plain, _) => plain,
        };
        match result {
            Ok(()) => {}
            // The path is not a mount point, or missing.
            Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR) => return Ok(taken > 0),
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::other(format!("more than {STACKED_MAX} mounts over one another")))
}

/// Detaches the uppermost mount at this path: its file system ends when the last user closes it.
///
/// # Errors
/// An error of umount2(2).
pub fn detach(point: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?)
}

/// The path in the form of the mount table: its directory has no symbolic links. The last part is not looked up, because a mount
/// there may not answer.
///
/// # Errors
/// The directory is missing, or the path has no last part.
pub fn resolved(path: &Path) -> io::Result<PathBuf> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the path of a mount point needs a directory and a name, such as /mnt/data",
        ));
    };
    Ok(directory.canonicalize()?.join(name))
}

/// The state of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// A process serves it, perhaps only with errors.
    Alive,
    /// The engine is gone; with the kernel's error.
    Dead(String),
    /// There is no answer in time.
    Hung,
}

/// Checks whether mounts answer. Each mount occupies at most one thread, so hanging mounts never occupy more threads than there are
/// mounts.
#[derive(Clone, Debug, Default)]
pub struct Probes(Arc<Mutex<HashMap<PathBuf, watch::Receiver<Option<Health>>>>>);

impl Probes {
    /// Asks the engine, past all caches. Callers during the check share its result.
    pub async fn check(&self, point: &Path, limit: Duration) -> Health {
        let mut answer = self.ask(point);
        let answered = tokio::time::timeout(limit, answer.wait_for(Option::is_some)).await;
        match answered {
            Ok(Ok(health)) => health.clone().unwrap_or(Health::Hung),
            // No thread could be started, so the state is unknown.
            Ok(Err(_)) | Err(_) => Health::Hung,
        }
    }

    fn ask(&self, point: &Path) -> watch::Receiver<Option<Health>> {
        let mut open = self.0.lock();
        if let Some(answer) = open.get(point) {
            return answer.clone();
        }
        let (tell, answer) = watch::channel(None);
        let (probes, path) = (self.clone(), point.to_owned());
        let started = thread::Builder::new().name("probe".into()).spawn(move || {
            let health = answered(&path);
            probes.0.lock().remove(&path);
            tell.send_replace(Some(health));
        });
        if started.is_ok() {
            open.insert(point.to_owned(), answer.clone());
        }
        answer
    }
}

/// Calls statx(2) on a mount; waits for ever if its engine hangs.
fn answered(point: &Path) -> Health {
    match statx(CWD, point, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS) {
        Err(
            error @ (Errno::NOTCONN
            | Errno::CONNABORTED
            | Errno::STALE
            | Errno::NODEV
            | Errno::HOSTDOWN
            | Errno::NOENT
            | Errno::SHUTDOWN),
        ) => Health::Dead(io::Error::from(error).to_string()),
        // An engine that answers with an error is alive: an unmount would take the mount from others.
        Ok(_) | Err(_) => Health::Alive,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::time::Instant;

    use super::*;
    use crate::mounter::mountinfo::{Changes, Mounts};
    use crate::mounter::testing::{dirs, fuse, isolated, runtime};

    fn tmpfs(at: &Path) {
        rustix::mount::mount("tmpfs", at, "tmpfs", MOUNT_FLAGS, None).unwrap();
    }

    #[test]
    fn a_read_only_bind_leaves_its_source_and_other_binds_writable() {
        isolated(|| {
            let ([source, reader, writer], _folder) = dirs();
            tmpfs(&source);
            bind(&source, &reader, true).unwrap();
            bind(&source, &writer, false).unwrap();
            std::fs::write(writer.join("a"), "1").unwrap();
            let refused = std::fs::write(reader.join("a"), "2").unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem);
            std::fs::write(source.join("a"), "3").unwrap();
            assert_eq!(std::fs::read(reader.join("a")).unwrap(), b"3");

            let mounts = Mounts::read().unwrap();
            let (of, beneath) = (mounts.at(&source).unwrap(), source.parent().unwrap());
            assert_eq!(mounts.references(of, beneath).count(), 2);
            assert!(mounts.at(&reader).unwrap().read_only && !mounts.at(&writer).unwrap().read_only);
            assert_eq!(mounts.source_of(mounts.at(&reader).unwrap(), beneath), Some(of));
        });
    }

    /// Goal: whenever the driver is ended, a reader's target is read-only or not there. A thread checks all the time.
    #[test]
    fn a_read_only_bind_is_at_no_moment_writable() {
        isolated(|| {
            let ([source, target], _folder) = dirs();
            tmpfs(&source);
            let (stop, seen) = (AtomicUsize::new(0), AtomicUsize::new(0));
            thread::scope(|scope| {
                let watcher = scope.spawn(|| {
                    while stop.load(Ordering::Acquire) == 0 {
                        if let Some(mount) = Mounts::read().unwrap().at(&target) {
                            assert!(mount.read_only, "writable for a moment");
                            seen.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
                for _ in 0..300 {
                    bind(&source, &target, true).unwrap();
                    unmount(&target, Busy::Refuse).unwrap();
                }
                bind(&source, &target, true).unwrap();
                while seen.load(Ordering::Relaxed) == 0 && !watcher.is_finished() {
                    thread::yield_now();
                }
                stop.store(1, Ordering::Release);
            });
            let left = Mounts::read().unwrap();
            assert!(!left.points().any(|point| point.to_string_lossy().contains("s3-csi-bind")));
        });
    }

    /// A node's kubelet directory is shared with its containers, and with it all that is mounted there.
    #[test]
    fn what_is_mounted_over_one_target_appears_over_no_other() {
        isolated(|| {
            let ([kubelet], _folder) = dirs();
            tmpfs(&kubelet);
            rustix::mount::mount_change(&kubelet, MountPropagationFlags::SHARED).unwrap();
            let [source, next, first, second] =
                ["source", "next", "first", "second"].map(|it| kubelet.join(it));
            for directory in [&source, &next, &first, &second] {
                std::fs::create_dir(directory).unwrap();
            }
            tmpfs(&source);
            tmpfs(&next);
            bind(&source, &first, false).unwrap();
            bind(&source, &second, true).unwrap();
            bind(&next, &first, false).unwrap();
            let mounts = Mounts::read().unwrap();
            let device = |at: &Path| mounts.at(at).unwrap().device.clone();
            assert_eq!(device(&first), device(&next));
            assert_eq!(
                device(&second),
                device(&source),
                "the second target has a new mount that nobody made for it"
            );
            assert_eq!(mounts.layers(&source).count(), 1);
            assert!(mounts.at(&second).unwrap().read_only);
        });
    }

    #[test]
    fn unmount_takes_every_layer_and_none_is_no_error() {
        isolated(|| {
            let ([point], folder) = dirs();
            tmpfs(&point);
            tmpfs(&point);
            assert!(unmount(&point, Busy::Refuse).unwrap());
            assert!(Mounts::read().unwrap().at(&point).is_none());
            assert!(!unmount(&point, Busy::Refuse).unwrap());
            assert!(!unmount(&folder.path().join("not there"), Busy::Detach).unwrap());
        });
    }

    #[test]
    fn a_mount_that_somebody_stands_in_is_refused_or_detached_as_asked() {
        isolated(|| {
            let ([point], _folder) = dirs();
            tmpfs(&point);
            let user = std::fs::File::create(point.join("open")).unwrap();
            let error = unmount(&point, Busy::Refuse).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
            assert!(Mounts::read().unwrap().at(&point).is_some());
            assert!(unmount(&point, Busy::Detach).unwrap());
            assert!(Mounts::read().unwrap().at(&point).is_none());
            drop(user);
        });
    }

    #[test]
    fn a_wait_for_the_table_ends_with_the_mount_that_it_waits_for() {
        isolated(|| {
            let ([point, other], _folder) = dirs();
            runtime().block_on(async {
                let changes = Changes::watch().unwrap();
                let long = tokio::time::Instant::now() + Duration::from_secs(60);
                let waiter = changes.until(long, |mounts| mounts.at(&point).is_some());
                let mounter = async {
                    tmpfs(&other);
                    tokio::task::yield_now().await;
                    tmpfs(&point);
                };
                let (seen, ()) = tokio::join!(waiter, mounter);
                assert!(seen.unwrap());
                let soon = tokio::time::Instant::now() + Duration::from_millis(20);
                assert!(!changes.until(soon, |mounts| mounts.at(&point).is_none()).await.unwrap());
                let gone = changes.until(long, |mounts| mounts.at(&point).is_none());
                let (seen, taken) = tokio::join!(gone, async { unmount(&point, Busy::Refuse) });
                assert!(seen.unwrap() && taken.unwrap());
            });
        });
    }

    #[test]
    fn an_unserved_mount_is_hung_until_its_device_closes_and_dead_then() {
        isolated(|| {
            let ([point], _folder) = dirs();
            let Some(device) = fuse() else { return };
            mount_fuse(device.as_fd(), &point, true).unwrap();
            let mounts = Mounts::read().unwrap();
            let mount = mounts.at(&point).unwrap();
            assert!(mount.is_bucket() && mount.read_only, "{mount:?}");
            runtime().block_on(async {
                let probes = Probes::default();
                assert_eq!(probes.check(&point, Duration::from_millis(50)).await, Health::Hung);
                assert_eq!(probes.0.lock().len(), 1, "one thread waits");
                assert_eq!(probes.check(&point, Duration::from_millis(50)).await, Health::Hung);
                assert_eq!(probes.0.lock().len(), 1, "the second question waited for the first");
                drop(device);
                let started = Instant::now();
                let health = probes.check(&point, Duration::from_secs(60)).await;
                assert!(matches!(health, Health::Dead(_)), "{health:?} after {:?}", started.elapsed());
                assert_eq!(probes.0.lock().len(), 0, "no thread is left");
            });
            assert!(unmount(&point, Busy::Refuse).unwrap());
        });
    }

    #[test]
    fn a_mount_that_answers_is_alive() {
        let folder = tempfile::tempdir().unwrap();
        let limit = Duration::from_secs(60);
        let health = runtime().block_on(Probes::default().check(folder.path(), limit));
        assert_eq!(health, Health::Alive);
        let gone = runtime().block_on(Probes::default().check(&folder.path().join("x"), limit));
        assert!(matches!(gone, Health::Dead(_)), "{gone:?}");
    }

    #[test]
    fn a_path_is_resolved_up_to_its_last_part() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, folder.path().join("link")).unwrap();
        assert_eq!(resolved(&folder.path().join("link/target")).unwrap(), real.join("target"));
        assert_eq!(resolved(&folder.path().join("none/target")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
