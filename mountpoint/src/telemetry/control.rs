//! The control socket of a mount, and the file beside it that describes the mount: in a folder of the user, for `mount-s3-ctl`.
//!
//! Both have mode 0600 and are named after the process. While the process hangs, the file is readable, but the socket does not answer.
//! The next mount of the same user, and `mount-s3-ctl`, remove the files of dead processes.

use std::cmp::Reverse;
use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, bail};

use super::http::{Door, bind_unix, serve_unix};
use super::{Origin, Telemetry};
use crate::supervise::Supervisor;
use crate::sync::Arc;

/// Our folder in the user's runtime directory.
const FOLDER: &str = "mount-s3";
/// Where root's mounts are, and those of services.
const OF_THE_SYSTEM: &str = "/run";
/// Only the mounting user.
pub const PERMITTED: u32 = 0o600;

/// Folders for sockets: that of the user's runtime directory (`XDG_RUNTIME_DIR`) if there is one, then the system's.
pub fn places(runtime_dir: Option<&Path>) -> Vec<PathBuf> {
    let absolute = runtime_dir.filter(|dir| dir.is_absolute());
    absolute.into_iter().chain([Path::new(OF_THE_SYSTEM)]).map(|dir| dir.join(FOLDER)).collect()
}

/// A mount that a folder tells of.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What is mounted where.
    pub origin: Origin,
    /// Where it is asked for its state.
    pub socket: PathBuf,
}

impl Entry {
    /// Whether its process is gone: nothing listens on the socket. A process that hangs still does.
    pub fn is_gone(&self) -> bool {
        match UnixStream::connect(&self.socket) {
            Ok(_) => false,
            Err(error) => {
                matches!(error.kind(), std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::NotFound)
            }
        }
    }

    /// Removes what a dead process left.
    pub fn remove(&self) {
        let _ = std::fs::remove_file(&self.socket);
        let _ = std::fs::remove_file(self.socket.with_extension("json"));
    }
}

/// The mounts that a folder tells of, as far as this user may read it; the newest first. An unmounted one may still be storing files while
/// the next is mounted in its place.
pub fn read_entries(folder: &Path) -> Vec<Entry> {
    let Ok(files) = std::fs::read_dir(folder) else { return Vec::new() };
    let named =
        files.flatten().map(|file| file.path()).filter(|path| path.extension().is_some_and(|e| e == "json"));
    let mut entries: Vec<(SystemTime, Entry)> = named
        .filter_map(|path| {
            let origin = serde_json::from_slice(&std::fs::read(&path).ok()?).ok()?;
            let since = std::fs::metadata(&path).and_then(|file| file.modified()).ok()?;
            Some((since, Entry { origin, socket: path.with_extension("sock") }))
        })
        .collect();
    entries.sort_by_key(|(since, _)| Reverse(*since));
    entries.into_iter().map(|(_, entry)| entry).collect()
}

/// This mount's socket and file; removed when the mount ends.
#[derive(Debug)]
pub(super) struct Registered(Entry);

impl Drop for Registered {
    fn drop(&mut self) {
        self.0.remove();
    }
}

impl Registered {
    /// In the first folder that can be used.
    pub(super) fn serve(
        folders: &[PathBuf],
        telemetry: &Arc<Telemetry>,
        supervisor: &Supervisor,
        runtime: &tokio::runtime::Handle,
    ) -> anyhow::Result<Self> {
        let mut last = None;
        for folder in folders {
            match Self::serve_in(folder, telemetry, supervisor, runtime) {
                Ok(registered) => return Ok(registered),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| anyhow::anyhow!("there is no folder for its socket")))
    }

    fn serve_in(
        folder: &Path,
        telemetry: &Arc<Telemetry>,
        supervisor: &Supervisor,
        runtime: &tokio::runtime::Handle,
    ) -> anyhow::Result<Self> {
        make_folder(folder)?;
        read_entries(folder).iter().filter(|entry| entry.is_gone()).for_each(Entry::remove);
        let socket = folder.join(format!("{}.sock", telemetry.origin.pid));
        let listener = bind_unix(&socket)?;
        let registered = Self(Entry { origin: telemetry.origin.clone(), socket: socket.clone() });
        std::fs::set_permissions(&socket, Permissions::from_mode(PERMITTED))
            .with_context(|| format!("setting the mode of {}", socket.display()))?;
        let beside = socket.with_extension("json");
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

/// Makes the folder if it is missing. One in which others may write would let them put a socket in our place.
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
