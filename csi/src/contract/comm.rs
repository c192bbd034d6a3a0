//! The comm directory, which the node and a Mountpoint Pod share, and the source directory, the first mount of a bucket.

use std::path::{Path, PathBuf};

use super::{DRIVER, pod};

/// The comm directory, by its path on the node or in the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comm(PathBuf);

impl Comm {
    /// The name of the mounter's socket in the directory.
    pub const SOCKET: &str = "mount.sock";
    /// The name of the engine's socket in the directory.
    pub const ENGINE_SOCKET: &str = "engine.sock";
    /// The name of the socket at which the mounter registers its mount with the node's holder.
    pub const HOLD_SOCKET: &str = "hold.sock";
    /// The name of the socket at which the first process of an engines pod listens for requests.
    pub const ENGINES_SOCKET: &str = "engines.sock";
    /// The name of the file that exists while no engine serves the mount.
    pub const STATE: &str = "mount.state";
    /// The name of the file that reports a deleted bucket.
    pub const GONE: &str = "mount.gone";
    /// The name of the file by which the node asks the engine to leave its mount to the next container.
    pub const HANDOVER: &str = "mount.handover";

    /// The directory on the node: the pod's `comm` volume below the kubelet's directory.
    #[must_use]
    pub fn on_host(kubelet: &Path, mountpoint_pod_uid: &str) -> Self {
        Self(
            kubelet
                .join("pods")
                .join(mountpoint_pod_uid)
                .join("volumes/kubernetes.io~empty-dir")
                .join(pod::COMM_VOLUME),
        )
    }

    /// The directory in the pod.
    #[must_use]
    pub fn in_pod() -> Self {
        Self::at("/comm")
    }

    /// The directory at another path, for a mounter that is started with it.
    #[must_use]
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// The directory of one source in the comm directory of an engines pod.
    #[must_use]
    pub fn of_source(&self, source: &str) -> Self {
        Self(self.0.join(source))
    }

    /// The path of the directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.0
    }

    /// The socket on which the mounter listens while it waits for a device.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.0.join(Self::SOCKET)
    }

    /// The socket on which the engine answers the node's requests for its usage. Engines of earlier releases have none.
    #[must_use]
    pub fn engine_socket(&self) -> PathBuf {
        self.0.join(Self::ENGINE_SOCKET)
    }

    /// The socket on which the mounter listens while it keeps a mount's device and journal: the node's holder takes copies of both.
    #[must_use]
    pub fn hold_socket(&self) -> PathBuf {
        self.0.join(Self::HOLD_SOCKET)
    }

    /// The socket on which the first process of an engines pod listens: the node asks it for mounters.
    #[must_use]
    pub fn engines_socket(&self) -> PathBuf {
        self.0.join(Self::ENGINES_SOCKET)
    }

    /// File that exists while the engines pod has a disk for caches. The pod's first process makes it; that of an earlier release never
    /// does.
    #[must_use]
    pub fn engines_cache(&self) -> PathBuf {
        self.0.join("engines.cache")
    }

    /// The file with the error of an engine that failed, mode 0600.
    #[must_use]
    pub fn error(&self) -> PathBuf {
        self.0.join("mount.err")
    }

    /// The file in which the mounter says that its engine died and the next one does not serve yet
    /// ([`Restarting`](super::restart::Restarting)), mode 0600.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.0.join(Self::STATE)
    }

    /// The file that the mounter writes each time the store tells its engine that the bucket does not exist. Its content does not matter.
    #[must_use]
    pub fn gone(&self) -> PathBuf {
        self.0.join(Self::GONE)
    }

    /// The file by which the node asks the engine to leave its mount to the next container ([`HandingOver`](super::upgrade::HandingOver)),
    /// mode 0644.
    #[must_use]
    pub fn handover(&self) -> PathBuf {
        self.0.join(Self::HANDOVER)
    }

    /// The file of a container whose engine left its mount to the next container.
    #[must_use]
    pub fn left(&self) -> PathBuf {
        self.0.join("mount.left")
    }

    /// The file of a container that waits for the pod's new image.
    #[must_use]
    pub fn waits(&self) -> PathBuf {
        self.0.join("mount.waits")
    }

    /// The socket over which the engine sends its journal to the mounter while it starts.
    #[must_use]
    pub fn notify_socket(&self) -> PathBuf {
        self.0.join("notify.sock")
    }

    /// The file by whose existence the node announces that it unmounts on purpose.
    #[must_use]
    pub fn exit(&self) -> PathBuf {
        self.0.join("mount.exit")
    }

    /// The directory of credential files, mode 0750.
    #[must_use]
    pub fn credentials(&self) -> PathBuf {
        self.0.join("credentials")
    }
}

/// The driver's directory below the kubelet's directory, for its socket and its sources.
#[must_use]
pub fn plugin_directory(kubelet: &Path) -> PathBuf {
    kubelet.join("plugins").join(DRIVER)
}

/// The source of a Mountpoint Pod: the first mount of its bucket. Targets are bind mounts of it.
#[must_use]
pub fn source(kubelet: &Path, mountpoint_pod: &str) -> PathBuf {
    sources(kubelet).join(mountpoint_pod)
}

/// The directory of all sources.
#[must_use]
pub fn sources(kubelet: &Path) -> PathBuf {
    plugin_directory(kubelet).join("mnt")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_release_2_2() {
        let kubelet = Path::new("/var/lib/kubelet");
        let comm = Comm::on_host(kubelet, "0f-1");
        let at = "/var/lib/kubelet/pods/0f-1/volumes/kubernetes.io~empty-dir/comm";
        assert_eq!(comm.directory(), Path::new(at));
        assert_eq!(comm.socket(), Path::new(at).join("mount.sock"));
        assert_eq!(comm.error(), Path::new(at).join("mount.err"));
        assert_eq!(comm.exit(), Path::new(at).join("mount.exit"));
        assert_eq!(comm.credentials(), Path::new(at).join("credentials"));
        assert_eq!(Comm::in_pod().socket(), Path::new("/comm/mount.sock"));
        assert_eq!(
            source(kubelet, "mp-1"),
            Path::new("/var/lib/kubelet/plugins/s3.csi.scality.com/mnt/mp-1")
        );
    }
}
