//! Options of a mount and its service, as a caller sets them: plain data.

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

use crate::broker::Registrar;
use crate::outlive::Journal;
use crate::sync::Arc;

/// The source of requests.
#[derive(Debug)]
pub enum Device {
    /// The engine mounts on this directory, and unmounts.
    Mount(PathBuf),
    /// A device that another process opened and mounted, and will unmount.
    Adopted(OwnedFd),
    /// A mount that outlives its engine.
    Outliving(Outliving),
}

/// A mount that outlives its engine: a holder keeps its device and its journal.
pub struct Outliving {
    /// The mount point; `None` if another process unmounts it.
    pub dir: Option<PathBuf>,
    /// The device; `None` before the first engine has mounted.
    pub device: Option<OwnedFd>,
    /// The records of an earlier engine.
    pub journal: Arc<Journal>,
    /// Gives the holder the device of a new mount.
    pub keep: Box<dyn FnOnce(BorrowedFd<'_>) -> io::Result<()> + Send>,
}

impl fmt::Debug for Outliving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outliving")
            .field("dir", &self.dir)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// The transport of requests and replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The engine's own loop: vectored replies, interrupts.
    #[default]
    Dev,
    /// The transport `Dev`, but over io_uring; falls back to `Dev`, with a line in the log, if the kernel does not offer it.
    IoUring,
    /// The loop of the crate `fuser`.
    Fuser,
}

/// The options of a mount.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// The transport of requests.
    pub transport: Transport,
    /// Whether the mount is read-only; the kernel refuses changes at once.
    pub read_only: bool,
    /// Whether no file can be executed, whatever its mode.
    pub no_exec: bool,
    /// SELinux labels, each in the form of mount(2): `context="..."`. Only root may set them.
    pub labels: Vec<String>,
    /// Whether every user may access the mount.
    pub allow_other: bool,
    /// Whether root may access the mount beside the mounting user.
    pub allow_root: bool,
    /// Whether a separate process unmounts after the end of this one.
    pub auto_unmount: bool,
    /// Number of threads that take requests. More threads help with many small requests at once on many cores; no thread ever waits.
    pub threads: usize,
    /// Whether files may be opened past the page cache for reading; programs can map them then.
    pub reads_direct: bool,
    /// Whether the kernel may itself read files of the disk cache, if the kernel has passthrough and the engine the privilege.
    pub passthrough: bool,
    /// The client of the node's driver, which registers those files for an engine without the privilege.
    pub registrar: Option<Arc<Registrar>>,
    /// Most bytes that the kernel reads ahead of a reader (`/sys/class/bdi`), if this process may set it. `None`: the kernel's default.
    pub read_ahead: Option<u64>,
}
