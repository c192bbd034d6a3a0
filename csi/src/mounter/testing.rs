//! What the tests of this room share: mount namespaces of their own, directories, a device.

pub(crate) mod api;
pub(crate) mod engine;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;

/// Whether the test may go on; where it can't, it says so aloud, and in CI it fails.
pub(crate) fn need(what: &str, there: bool) -> bool {
    if !there {
        assert!(std::env::var_os("CI").is_none(), "{what} is needed, and CI may not skip it");
        eprintln!("SKIPPED: {}: needs {what}", std::thread::current().name().unwrap_or("a test"));
    }
    there
}

/// Runs the body in a process with a mount namespace of its own: the same test binary, with this test alone. What it leaves
/// mounted goes with it, and nobody else sees it.
pub(crate) fn isolated<F: Fn()>(body: F) {
    if std::env::var_os("CSI_TEST_ISOLATED").is_some() {
        body();
        return;
    }
    if !need("root", rustix::process::geteuid().is_root()) {
        return;
    }
    let path = std::any::type_name::<F>();
    let name = path.split_once("::").and_then(|(_, rest)| rest.split("::{{closure}}").next()).unwrap();
    let binary = std::env::current_exe().unwrap();
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(binary)
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env("CSI_TEST_ISOLATED", "1")
        .output()
        .expect("unshare of util-linux");
    let text = String::from_utf8_lossy(&status.stdout);
    eprint!("{}", String::from_utf8_lossy(&status.stderr));
    assert!(status.status.success() && text.contains("1 passed"), "{name} in its namespace:\n{text}");
}

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

/// A device; `None`, said aloud, where there is no FUSE.
pub(crate) fn fuse() -> Option<OwnedFd> {
    let device = super::sys::open_device().ok();
    need("/dev/fuse", device.is_some()).then_some(device).flatten()
}

/// A runtime of two threads.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}
