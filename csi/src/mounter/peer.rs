//! Identifies the process that listens in a comm directory. Enters: a connection, the UID of the Mountpoint Pod. Leaves: proof that the
//! process at the other end runs in that pod's cgroup, or an error. Later data (a FUSE device, the names of credential files) reaches
//! only that pod: a workload that put its own socket or directory there runs in another cgroup.
//!
//! Never here: sending or reading data.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::fs::{Gid, Uid};

use crate::error::{Error, ErrorKind, Result};

/// The process table of this node.
#[derive(Clone, Debug)]
pub struct Processes(PathBuf);

impl Default for Processes {
    fn default() -> Self {
        Self::at("/proc")
    }
}

impl Processes {
    /// The processes in a directory like `/proc`.
    #[must_use]
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// Checks that the listening process belongs to the pod. Afterwards the stream is blocking. Needs a runtime with I/O.
    ///
    /// # Errors
    /// `FailedPrecondition`: the process belongs to another pod or to none, or it can't be found.
    pub fn check(&self, stream: &UnixStream, pod_uid: &str, socket: &str) -> Result<()> {
        self.check_process(pid(stream), pod_uid, socket)
    }

    /// Checks a process like [`Self::check`].
    ///
    /// # Errors
    /// The same.
    pub fn check_process(&self, pid: io::Result<Option<i32>>, pod_uid: &str, socket: &str) -> Result<()> {
        let refused = |why: String| Err(Error::new(ErrorKind::FailedPrecondition, why));
        let peer = match pid {
            Ok(peer) => peer.unwrap_or_default(),
            Err(error) => {
                return refused(format!("the process that listens at {socket} is not known: {error}"));
            }
        };
        match std::fs::read_to_string(self.file(peer)) {
            Ok(cgroups) if is_in_pod(&cgroups, pod_uid) => Ok(()),
            Ok(_) => refused(format!(
                "the process that listens at {socket} (PID {peer}) does not run in the Mountpoint Pod's cgroup: another process \
                 took the socket's place; nothing was sent to it"
            )),
            Err(error) => refused(format!(
                "the process that listens at {socket} (PID {peer}) can't be checked, reading {}: {error}; the driver's pod \
                 needs hostPID, as the chart has it",
                self.file(peer).display()
            )),
        }
    }

    fn file(&self, pid: i32) -> PathBuf {
        self.0.join(pid.to_string()).join("cgroup")
    }
}

/// The user of the process that called listen(2). The stream blocks afterwards. Needs a runtime with I/O.
pub(super) fn user(stream: &UnixStream) -> io::Result<u32> {
    stream.set_nonblocking(true)?;
    let user = tokio::net::UnixStream::from_std(stream.try_clone()?)?.peer_cred()?.uid();
    stream.set_nonblocking(false)?;
    Ok(user)
}

/// The id of the process that called listen(2); 0 if it is not visible from here.
fn pid(stream: &UnixStream) -> io::Result<Option<i32>> {
    stream.set_nonblocking(true)?;
    let pid = tokio::net::UnixStream::from_std(stream.try_clone()?)?.peer_cred()?.pid();
    stream.set_nonblocking(false)?;
    Ok(pid)
}

/// The user and the group of the process at the other end.
pub(super) fn owner(stream: &UnixStream) -> io::Result<(Uid, Gid)> {
    stream.set_nonblocking(true)?;
    let peer = tokio::net::UnixStream::from_std(stream.try_clone()?)?.peer_cred()?;
    stream.set_nonblocking(false)?;
    Ok((Uid::from_raw(peer.uid()), Gid::from_raw(peer.gid())))
}

/// Whether one of these cgroups is the pod's: `pod<uid>`, or with systemd `kubepods-<class>-pod<uid>.slice` with `_` for `-`.
fn is_in_pod(cgroups: &str, uid: &str) -> bool {
    let (plain, of_systemd) = (format!("pod{uid}"), format!("-pod{}", uid.replace('-', "_")));
    let is_pod = |part: &str| {
        part == plain || part.strip_suffix(".slice").is_some_and(|unit| unit.ends_with(&of_systemd))
    };
    !uid.is_empty()
        && cgroups.lines().any(|line| line.rsplit(':').next().is_some_and(|path| path.split('/').any(is_pod)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    const UID: &str = "0f3c-11aa-9";

    #[test]
    fn a_pods_cgroup_is_known_by_both_drivers_and_both_versions() {
        for cgroups in [
            "0::/kubepods/burstable/pod0f3c-11aa-9/abc\n",
            "0::/../../kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f3c_11aa_9.slice/cri-abc.scope\n",
            "0::/kubepods.slice/kubepods-pod0f3c_11aa_9.slice/cri-abc.scope\n",
            "12:memory:/kubepods/besteffort/pod0f3c-11aa-9/abc\n1:name=systemd:/x\n0::/\n",
        ] {
            assert!(is_in_pod(cgroups, UID), "{cgroups}");
        }
        for cgroups in [
            "",
            "0::/",
            "0::/kubepods/burstable/pod0f3c-11aa-90/abc\n",
            "0::/kubepods/burstable/xpod0f3c-11aa-9/abc\n",
            "0::/kubepods.slice/kubepods-burstable-pod0f3c_11aa_90.slice/x\n",
        ] {
            assert!(!is_in_pod(cgroups, UID), "{cgroups}");
        }
        assert!(!is_in_pod("0::/kubepods/pod/x", ""));
    }

    #[tokio::test]
    async fn only_a_process_of_the_pod_is_believed() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let _listener = UnixListener::bind(&socket).unwrap();
        let stream = UnixStream::connect(&socket).unwrap();
        let ours = folder.path().join(std::process::id().to_string());
        let processes = Processes::at(folder.path());
        let error = processes.check(&stream, UID, "x.sock").unwrap_err();
        assert!(error.to_string().contains("hostPID"), "{error}");
        std::fs::create_dir(&ours).unwrap();
        std::fs::write(ours.join("cgroup"), "0::/kubepods/podsomebody-else/x\n").unwrap();
        let error = processes.check(&stream, UID, "x.sock").unwrap_err();
        assert_eq!(error.kind, ErrorKind::FailedPrecondition);
        assert!(error.to_string().contains("nothing was sent"), "{error}");
        std::fs::write(ours.join("cgroup"), format!("0::/kubepods/pod{UID}/x\n")).unwrap();
        processes.check(&stream, UID, "x.sock").unwrap();
        // The test's own process is in no pod.
        Processes::default().check(&stream, UID, "x.sock").unwrap_err();
    }
}
