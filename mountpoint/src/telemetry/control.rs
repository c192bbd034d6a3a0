//! The control socket of a mount, and the file beside it that describes the mount, in a folder of the user, for `mount-s3-ctl`.
//!
//! Both have mode 0600 and the process's PID as their name. If the process hangs, the file can still be read, but the socket does not
//! answer. The next mount of the same user, and `mount-s3-ctl`, remove the files of dead processes.

use std::cmp::Reverse;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, unlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::http::{Door, bind_unix, serve_unix};
use super::{Origin, Telemetry};
use crate::supervise::Supervisor;
use crate::sync::Arc;

/// The name of mount-s3's folder in the user's runtime directory.
const FOLDER: &str = "mount-s3";
/// The parent of the folder for mounts of root and of services.
const OF_THE_SYSTEM: &str = "/run";
/// The mode that admits only the mounting user.
pub const PERMITTED: u32 = 0o600;
/// The extension of the file that describes a mount.
const FILE: &str = "json";
/// The extension of the socket.
const SOCKET: &str = "sock";
/// Most bytes of a file; a longer one is ignored. The longest command line that anyone writes by hand has a tenth of them.
const FILE_MAX: u64 = 64 << 10;
/// Most files of one folder that are read. No machine has that many mounts.
const FILES_MAX: usize = 1_000;

/// A folder for sockets, and the user whose files in it are trusted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SocketFolder {
    /// The folder.
    pub folder: PathBuf,
    /// The user who must own the folder and its files. `None`: any user, for a parent directory in which only root creates folders.
    pub owner: Option<u32>,
}

/// The folders for sockets: first in the user's runtime directory (`XDG_RUNTIME_DIR`), if there is one, then the system's. The runtime
/// directory of another user is skipped: `sudo` may keep the variable, and that user could put a folder there.
pub fn places(runtime_dir: Option<&Path>) -> Vec<SocketFolder> {
    let me = rustix::process::geteuid().as_raw();
    let is_others = |dir: &Path| std::fs::metadata(dir).is_ok_and(|about| about.uid() != me);
    let absolute = runtime_dir.filter(|dir| dir.is_absolute() && !is_others(dir));
    let of_user = absolute.map(|dir| SocketFolder::below(dir, Some(me)));
    of_user.into_iter().chain([SocketFolder::below(Path::new(OF_THE_SYSTEM), None)]).collect()
}

impl SocketFolder {
    /// The folder of mount-s3 in a runtime directory.
    pub fn below(runtime_dir: &Path, owner: Option<u32>) -> Self {
        Self { folder: runtime_dir.join(FOLDER), owner }
    }

    /// Opens the folder, so a later change of its path has no effect. Returns the owner, too. Fails with `EPERM` if other users own it or
    /// can write to it.
    fn open(&self) -> io::Result<(OwnedFd, u32)> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(&self.folder, flags, Mode::empty())?;
        let there = fstat(&folder)?;
        if self.owner.is_some_and(|owner| owner != there.st_uid) || there.st_mode & 0o022 != 0 {
            return Err(Errno::PERM.into());
        }
        Ok((folder, there.st_uid))
    }
}

/// A mount that has files in a folder.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Bucket, mount point and process of the mount.
    pub origin: Origin,
    folder: Arc<OwnedFd>,
    /// The name of the mount's files, without extension.
    name: OsString,
}

/// An open socket: its path stays valid even if its name is removed meanwhile.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl Socket {
    /// The path for connect(2).
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

impl Entry {
    /// Opens the control socket of the mount.
    ///
    /// # Errors
    /// `NotFound`; `ConnectionRefused`, as for a socket without a listener, if the file is not a socket or belongs to another user.
    pub fn socket(&self) -> io::Result<Socket> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = openat(&*self.folder, self.file(SOCKET), flags, Mode::empty())?;
        let there = fstat(&socket)?;
        if FileType::from_raw_mode(there.st_mode) != FileType::Socket || there.st_uid != self.origin.uid {
            return Err(Errno::CONNREFUSED.into());
        }
        Ok(Socket(socket))
    }

    /// Whether the mount's process is dead: then nothing listens on the socket. A hanging process still listens, even if its queue is full.
    pub fn is_gone(&self) -> bool {
        self.knock().is_err_and(|error| {
            matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
        })
    }

    fn knock(&self) -> io::Result<()> {
        let socket = self.socket()?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let ours = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&ours, &SocketAddrUnix::new(socket.path())?)?;
        Ok(())
    }

    /// Removes the files of a dead process.
    pub fn remove(&self) {
        for ending in [SOCKET, FILE] {
            let _ = unlinkat(&*self.folder, self.file(ending), AtFlags::empty());
        }
    }

    fn file(&self, ending: &str) -> OsString {
        let mut file = self.name.clone();
        file.push(".");
        file.push(ending);
        file
    }
}

/// The mounts with files in a folder, as far as this user can read it, newest first. An unmounted mount may still be storing files while
/// the next one is mounted in its place.
///
/// Root also reads the folders of users, who may put anything there. So the function follows no link, never waits for a pipe, and trusts a
/// file no more than its owner.
pub fn read_entries(place: &SocketFolder) -> Vec<Entry> {
    let Ok((folder, owner)) = place.open() else { return Vec::new() };
    let folder = Arc::new(folder);
    let Ok(files) = Dir::read_from(&*folder) else { return Vec::new() };
    let files = files.flatten().map(|file| OsStr::from_bytes(file.file_name().to_bytes()).to_owned());
    let named = files.filter(|file| Path::new(file).extension().is_some_and(|ending| ending == FILE));
    let mut entries: Vec<(SystemTime, Entry)> = named
        .take(FILES_MAX)
        .filter_map(|file| {
            let (origin, since) = read_origin(&folder, &file, owner).ok()?;
            let name = Path::new(&file).file_stem()?.to_owned();
            Some((since, Entry { origin, folder: Arc::clone(&folder), name }))
        })
        .collect();
    entries.sort_by_key(|(since, _)| Reverse(*since));
    entries.into_iter().map(|(_, entry)| entry).collect()
}

/// The content of a file that this user owns, and its modification time.
fn read_origin(folder: &OwnedFd, name: &OsStr, owner: u32) -> io::Result<(Origin, SystemTime)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(folder.as_fd(), name, flags, Mode::empty())?);
    let there = file.metadata()?;
    if !there.is_file() || there.uid() != owner || there.len() > FILE_MAX {
        return Err(Errno::PERM.into());
    }
    let mut text = Vec::new();
    file.take(FILE_MAX).read_to_end(&mut text)?;
    let origin: Origin = serde_json::from_slice(&text)?;
    match origin.uid == owner {
        true => Ok((origin, there.modified()?)),
        false => Err(Errno::PERM.into()),
    }
}

/// The socket and file of this mount, removed at the end of the mount.
#[derive(Debug)]
pub(super) struct Registered(Entry);

impl Drop for Registered {
    fn drop(&mut self) {
        self.0.remove();
    }
}

impl Registered {
    /// Serves the socket in the first usable folder, or logs why there is none. That is usual in a Mountpoint Pod, whose root is
    /// read-only, so the line does not warn.
    pub(super) fn serve_or_say(
        places: &[SocketFolder],
        telemetry: &Arc<Telemetry>,
        supervisor: &Supervisor,
        runtime: &tokio::runtime::Handle,
    ) -> Option<Self> {
        let served = Self::serve(places, telemetry, supervisor, runtime);
        served.inspect_err(|error| tracing::info!("mount-s3-ctl will not find this mount: {error:#}")).ok()
    }

    /// Serves the socket in the first usable folder.
    pub(super) fn serve(
        places: &[SocketFolder],
        telemetry: &Arc<Telemetry>,
        supervisor: &Supervisor,
        runtime: &tokio::runtime::Handle,
    ) -> anyhow::Result<Self> {
        let mut last = None;
        for place in places {
            match Self::serve_in(place, telemetry, supervisor, runtime) {
                Ok(registered) => return Ok(registered),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| anyhow::anyhow!("there is no folder for its socket")))
    }

    fn serve_in(
        place: &SocketFolder,
        telemetry: &Arc<Telemetry>,
        supervisor: &Supervisor,
        runtime: &tokio::runtime::Handle,
    ) -> anyhow::Result<Self> {
        make_folder(&place.folder)?;
        read_entries(place).iter().filter(|entry| entry.is_gone()).for_each(Entry::remove);
        let (folder, _) =
            place.open().with_context(|| format!("opening the folder {}", place.folder.display()))?;
        let name = OsString::from(telemetry.origin.pid.to_string());
        let entry = Entry { origin: telemetry.origin.clone(), folder: Arc::new(folder), name };
        let socket = place.folder.join(entry.file(SOCKET));
        let listener = bind_unix(&socket)?;
        let registered = Self(entry);
        std::fs::set_permissions(&socket, Permissions::from_mode(PERMITTED))
            .with_context(|| format!("setting the mode of {}", socket.display()))?;
        let beside = socket.with_extension(FILE);
        let context = || format!("writing {}", beside.display());
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(PERMITTED)
            .open(&beside)
            .with_context(context)?;
        file.write_all(&serde_json::to_vec(&telemetry.origin)?).with_context(context)?;
        serve_unix(listener, telemetry, supervisor, runtime, Door::Control)
            .with_context(|| format!("serving {}", socket.display()))?;
        Ok(registered)
    }
}

/// Creates the folder if it is missing, and checks it: in a folder that other users can write to, they could replace the socket.
fn make_folder(folder: &Path) -> anyhow::Result<()> {
    let context = || format!("making the folder {}", folder.display());
    match DirBuilder::new().mode(0o755).create(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error).with_context(context),
    }
    let there = std::fs::symlink_metadata(folder).with_context(context)?;
    let owner = rustix::process::geteuid().as_raw();
    if !there.is_dir() || there.uid() != owner || there.mode() & 0o022 != 0 {
        bail!("{} must be a folder of user {owner} that only this user may write to", folder.display());
    }
    Ok(())
}
