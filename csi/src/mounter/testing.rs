//! Helpers for the tests of this room: mount namespaces, directories, a device.

pub(crate) mod api;
pub(crate) mod engine;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::peer::Processes;

pub(crate) use testkit::{isolated, need};

/// Fresh directories.
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

/// A device; `None`, said aloud, where there is no FUSE.
pub(crate) fn fuse() -> Option<OwnedFd> {
    let device = super::sys::open_device().ok();
    need("/dev/fuse", device.is_some()).then_some(device).flatten()
}

/// A runtime of two threads.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}
