//! The directory that the node and a Mountpoint Pod share, and the directory of the bucket's first mount.

use std::path::{Path, PathBuf};

use super::{DRIVER, pod};

/// The comm directory, as one of its two sides sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comm(PathBuf);

impl Comm {
    /// The name of the mounter's socket in the directory.
    pub const SOCKET: &str = "mount.sock";
    /// The name of the engine's socket.
    pub const ENGINE_SOCKET: &str = "engine.sock";
    /// The name of the socket at which the mounter registers its mount with the node's holder.
    pub const HOLD_SOCKET: &str = "hold.sock";
    /// The name of the socket at which the first process of an engines pod listens.
    pub const ENGINES_SOCKET: &str = "engines.sock";
    /// The name of the file that says that no engine serves for now.
    pub const STATE: &str = "mount.state";
    /// The name of the file that says that the store knows the bucket no longer.
    pub const GONE: &str = "mount.gone";
    /// The name of the file by which the node asks for the mount to be left to the next container.
    pub const HANDOVER: &str = "mount.handover";

    /// The directory as the node sees it: the pod's `comm` volume beneath the kubelet's directory.
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

    /// The directory as the mounter sees it.
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

    /// The directory itself.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.0
    }

    /// The socket on which the mounter listens while it waits for a device.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.0.join(Self::SOCKET)
    }

    /// The engine listens here, while it serves: the node asks it what it uses. One of an earlier release does not.
    #[must_use]
    pub fn engine_socket(&self) -> PathBuf {
        self.0.join(Self::ENGINE_SOCKET)
    }

    /// The mounter listens here while it keeps a mount's device and journal: the holder of the node takes copies of both.
    #[must_use]
    pub fn hold_socket(&self) -> PathBuf {
        self.0.join(Self::HOLD_SOCKET)
    }

    /// The first process of an engines pod listens here: the node asks it for mounters.
    #[must_use]
    pub fn engines_socket(&self) -> PathBuf {
        self.0.join(Self::ENGINES_SOCKET)
    }

    /// The engine's error when it failed, mode 0600.
    #[must_use]
    pub fn error(&self) -> PathBuf {
        self.0.join("mount.err")
    }

    /// The mounter says here that its engine died and the next one has not begun to serve ([`Restarting`](super::restart::Restarting)),
    /// mode 0600.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.0.join(Self::STATE)
    }

    /// The file that the mounter writes anew when its engine hears from the store that the bucket is gone. Its content does not matter.
    #[must_use]
    pub fn gone(&self) -> PathBuf {
        self.0.join(Self::GONE)
    }

    /// The node asks here for the mount to be left to the next container ([`HandingOver`](super::upgrade::HandingOver)), mode 0644.
    #[must_use]
    pub fn handover(&self) -> PathBuf {
        self.0.join(Self::HANDOVER)
    }

    /// The file of a container whose engine left its mount to the next one.
    #[must_use]
    pub fn left(&self) -> PathBuf {
        self.0.join("mount.left")
    }

    /// The file of the container that waits for another image.
    #[must_use]
    pub fn waits(&self) -> PathBuf {
        self.0.join("mount.waits")
    }

    /// The socket by which the engine gives the mounter its journal, while it starts.
    #[must_use]
    pub fn notify_socket(&self) -> PathBuf {
        self.0.join("notify.sock")
    }

    /// A file whose existence means that the node is unmounting on purpose.
    #[must_use]
    pub fn exit(&self) -> PathBuf {
        self.0.join("mount.exit")
    }

    /// Credential files, mode 0750.
    #[must_use]
    pub fn credentials(&self) -> PathBuf {
        self.0.join("credentials")
    }
}

/// The driver's directory beneath the kubelet's: its socket and its sources.
#[must_use]
pub fn plugin_directory(kubelet: &Path) -> PathBuf {
    kubelet.join("plugins").join(DRIVER)
}

/// The directory at which the bucket of a Mountpoint Pod is mounted first. Targets are bind mounts of this one.
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
