//! Canaries: the secrets of the tests' stores, which nothing that a mount leaves, shows or starts may have.

use std::fs;
use std::path::Path;

use super::Store;

/// A session token, which the store ignores.
pub(crate) const TOKEN: &str = "canary-of-the-session-token";
/// The password for an exporter's endpoint.
pub(crate) const EXPORTER: &str = "canary-of-the-exporter";

/// The canary that these bytes contain.
pub(crate) fn canary_in(bytes: &[u8]) -> Option<&'static str> {
    let canaries = [Store::SECRET_KEY, TOKEN, EXPORTER];
    canaries.into_iter().find(|canary| bytes.windows(canary.len()).any(|window| window == canary.as_bytes()))
}

/// Asserts that no file below a folder has a canary; how many files there are.
pub(crate) fn assert_none_below(folder: &Path) -> usize {
    let mut files = 0;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            files += assert_none_below(&path);
        } else if let Ok(bytes) = fs::read(&path) {
            files += 1;
            assert_eq!(canary_in(&bytes), None, "{}", path.display());
        }
    }
    files
}

/// Asserts that neither the arguments of a process nor arguments and environment of its children have a canary. Returns the number of
/// children.
pub(crate) fn assert_none_of(pid: u32) -> usize {
    let read = |pid: u32, file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    assert_eq!(canary_in(&read(pid, "cmdline")), None, "the arguments of the engine");
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut children = 0;
    for thread in threads {
        let line = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in line.split(' ').filter_map(|number| number.parse().ok()) {
            children += 1;
            for file in ["cmdline", "environ"] {
                let bytes = read(child, file);
                let shown = String::from_utf8_lossy(&bytes);
                assert_eq!(canary_in(&bytes), None, "{file} of the child {child}: {shown}");
            }
        }
    }
    children
}
