//! Calls to the kernel: the FUSE device, mount, bind mount, unmount, and asking whether a mount still answers. Enters: paths that
//! were checked. Leaves: what the kernel said.
//!
//! Never here: a decision about when to mount; a stat of a mount on the caller's thread, which a hung engine would keep for ever.

use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use mountpoint::sync::{Arc, Mutex};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use tokio::sync::watch;

/// What our mounts are called in the table of mounts.
pub const FS_NAME: &str = "mountpoint-s3";

/// A mount that has not answered a stat for so long is called hung. Twice as long keeps a caller waiting twice as long before it
/// is told; half as long calls an engine hung that only has much to do.
pub const PROBE_LIMIT: Duration = Duration::from_secs(5);

/// So many mounts over one another are taken away by one call; more is an error of somebody else.
const STACKED_MAX: usize = 16;

const MOUNT_FLAGS: MountFlags = MountFlags::NODEV.union(MountFlags::NOSUID).union(MountFlags::NOATIME);

/// Opens a FUSE device. No program that this process starts inherits it.
///
/// # Errors
/// What open(2) says.
pub fn open_device() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Mounts the device's file system. It answers once somebody serves the device.
///
/// # Errors
/// What mount(2) says.
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

/// Binds a source to a target. Read-only concerns this target alone, and takes two calls: nobody is told of the target between them.
///
/// # Errors
/// What mount(2) says; nothing is bound then.
pub fn bind(source: &Path, target: &Path, read_only: bool) -> io::Result<()> {
    rustix::mount::mount_bind(source, target)?;
    if !read_only {
        return Ok(());
    }
    // A remount sets all flags anew, so those of the source are repeated.
    let flags = MountFlags::BIND | MountFlags::RDONLY | MOUNT_FLAGS;
    rustix::mount::mount_remount(target, flags, c"").map_err(|error| {
        let _ = rustix::mount::unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        error.into()
    })
}

/// What to do about a mount that somebody stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// Leave it, and say so.
    Refuse,
    /// Take it out of the tree; its file system ends when the last user leaves.
    Detach,
}

/// Takes away whatever is mounted at this path, and says whether anything was.
///
/// # Errors
/// `ResourceBusy` for [`Busy::Refuse`]; what else umount2(2) says.
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
            // Not a mount point, or not there.
            Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR) => return Ok(taken > 0),
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::other(format!("more than {STACKED_MAX} mounts over one another")))
}

/// The path as the table of mounts has it: its directory without symbolic links. The last part is not looked at, since a mount
/// there may not answer.
///
/// # Errors
/// The directory is not there, or the path has no last part.
pub fn resolved(path: &Path) -> io::Result<PathBuf> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a mount point has a directory and a name"));
    };
    Ok(directory.canonicalize()?.join(name))
}

/// What a mount answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Somebody serves it, were it with an error.
    Alive,
    /// Its engine is gone; and the kernel's word for it.
    Dead(String),
    /// No answer in time.
    Hung,
}

/// Asks mounts whether they answer, each by at most one thread at a time: that many threads may hang, and no more.
#[derive(Clone, Debug, Default)]
pub struct Probes(Arc<Mutex<HashMap<PathBuf, watch::Receiver<Option<Health>>>>>);

impl Probes {
    /// Asks the engine, past all caches. Whoever comes while the question is open waits for the same answer.
    pub async fn check(&self, point: &Path, limit: Duration) -> Health {
        let mut answer = self.ask(point);
        let answered = tokio::time::timeout(limit, answer.wait_for(Option::is_some)).await;
        match answered {
            Ok(Ok(health)) => health.clone().unwrap_or(Health::Hung),
            // No thread could be started: nothing is known.
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

/// Waits for ever if the engine does.
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
        // An engine that answers with an error is there. To unmount it would take it from others.
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
    fn a_mount_nobody_serves_is_hung_while_its_device_is_open_and_dead_once_it_is_closed() {
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
        let health = runtime().block_on(Probes::default().check(folder.path(), Duration::from_secs(60)));
        assert_eq!(health, Health::Alive);
        let gone = runtime().block_on(Probes::default().check(&folder.path().join("x"), PROBE_LIMIT));
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
