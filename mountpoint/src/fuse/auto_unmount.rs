//! `--auto-unmount`: a small process that unmounts when the engine is gone, however it ended.
//!
//! `fusermount3` has an option of that name. It is of no use to a user without `--allow-other`: its last look at the mount, as root, is
//! refused, and the dead mount stays.

use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::fs::DeviceNo;

/// `$0` is the directory; `$1` and `$2` are its device and its path as mountinfo shows them. Another mount that came to the same place
/// meanwhile has another device. Signals to the engine's whole group are not meant for the watcher.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
while read -r _; do :; done
while read -r _ _ _device _ _path _; do
    if [ "$_device" = "$1" ] && [ "$_path" = "$2" ]; then
        fusermount3 -u -z -q -- "$0" || umount -l -- "$0"
    fi
done </proc/self/mountinfo
"#;

/// The watcher. Its standard input is a pipe from the engine, which closes when the engine ends.
#[derive(Debug)]
pub(super) struct AutoUnmount(Child);

impl AutoUnmount {
    /// Starts the watcher for the mount of `device` on `dir`, an absolute path without links.
    ///
    /// # Errors
    /// `sh` can't be started.
    pub(super) fn watch(dir: &Path, device: DeviceNo) -> io::Result<Self> {
        let mut watcher = Command::new("sh");
        watcher.args(["-c", SCRIPT]).arg(dir);
        watcher.arg(format!("{}:{}", device.major, device.minor)).arg(as_in_mountinfo(dir));
        watcher.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        watcher.current_dir("/").process_group(0).spawn().map(Self)
    }
}

impl Drop for AutoUnmount {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// mountinfo shows some bytes of a path as a backslash and three octal digits.
fn as_in_mountinfo(path: &Path) -> std::ffi::OsString {
    let mut shown = Vec::with_capacity(path.as_os_str().len());
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => {
                let mut octal = String::with_capacity(4);
                let _ = write!(octal, "\\{byte:03o}");
                shown.extend_from_slice(octal.as_bytes());
            }
            _ => shown.push(byte),
        }
    }
    std::os::unix::ffi::OsStringExt::from_vec(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_compared_as_mountinfo_shows_it() {
        assert_eq!(as_in_mountinfo(Path::new("/a b\\c\td\ne/ü")), "/a\\040b\\134c\\011d\\012e/ü");
    }

    #[test]
    fn the_watcher_ends_with_its_engine_and_leaves_other_mounts_alone() {
        // Something is mounted there, and it is of another device.
        let watcher = AutoUnmount::watch(Path::new("/proc"), DeviceNo { major: 0, minor: u32::MAX }).unwrap();
        drop(watcher);
        assert!(Path::new("/proc/self").exists());
    }
}
