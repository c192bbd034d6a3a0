//! Helpers for the tests of this room: mount namespaces, directories, a device.

pub(crate) mod api;
pub(crate) mod engine;

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::peer::Processes;
use super::{Credentials, MountRequest};
use crate::events::WorkloadRef;

pub(crate) use testkit::{isolated, need};

/// Creates new directories.
pub(crate) fn dirs<const N: usize>() -> ([PathBuf; N], tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let made = std::array::from_fn(|i| {
        let dir = root.join(format!("dir{i}"));
        std::fs::create_dir(&dir).unwrap();
        dir
    });
    (made, folder)
}

/// A `/proc` in which this process runs in these pods.
pub(crate) fn processes(root: &Path, pods: &[&str]) -> Processes {
    let directory = root.join(std::process::id().to_string());
    std::fs::create_dir_all(&directory).unwrap();
    let cgroups: String = pods.iter().map(|uid| format!("0::/kubepods/pod{uid}/x\n")).collect();
    std::fs::write(directory.join("cgroup"), cgroups).unwrap();
    Processes::at(root)
}

/// A request for a volume of the bucket `bucket`, at the target of this workload below `/kubelet`.
pub(crate) fn request(volume: &str, workload: &str) -> MountRequest {
    let target = format!("/kubelet/pods/{workload}/volumes/kubernetes.io~csi/{volume}/mount");
    MountRequest {
        volume: volume.into(),
        handle: format!("handle of {volume}"),
        workload_uid: workload.into(),
        workload: Some(WorkloadRef { namespace: "team".into(), name: workload.into(), uid: workload.into() }),
        target: target.into(),
        read_only: false,
        source_read_only: false,
        bucket: "bucket".into(),
        place: "place".into(),
        args: vec!["--allow-delete".into()],
        env: vec![("AWS_REGION".into(), "r".into())],
        unusable: None,
        credentials: Some(Credentials {
            access_key_id: "key-1".into(),
            secret_access_key: "canary".into(),
            session_token: None,
        }),
        of_secret: false,
        token: None,
        agent: None,
    }
}

/// A FUSE device; `None`, with a line of `need`, on a machine without FUSE.
pub(crate) fn fuse() -> Option<OwnedFd> {
    let device = super::sys::open_device().ok();
    need("/dev/fuse", device.is_some()).then_some(device).flatten()
}

/// A runtime of two threads.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Time for which a close waits for a peer that reads nothing.
pub(crate) const LINGERS: Duration = Duration::from_secs(90);

/// Closes descriptors on a separate thread: the close of a last copy may block.
pub(crate) fn let_go(files: Vec<OwnedFd>) {
    std::thread::spawn(move || drop(files));
}

/// A socket whose close blocks until its peer is gone: it has bytes that nobody reads. The first value is the peer.
pub(crate) fn lingering() -> (TcpStream, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    rustix::net::sockopt::set_socket_linger(&ours, Some(LINGERS)).unwrap();
    ours.set_nonblocking(true).unwrap();
    while ours.write(&[0; 65536]).is_ok() {}
    (peer, ours.into())
}
