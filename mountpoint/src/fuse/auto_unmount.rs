//! `--auto-unmount`: a small process that unmounts when the engine is gone, however it ended.
//!
//! `fusermount3` has an option of that name, but it does not help a user without `--allow-other`: the kernel refuses its last check of
//! the mount, which it makes as root, and the dead mount stays.

use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::fs::DeviceNo;

/// `$0` is the directory; `$1` and `$2` are its device and its path as mountinfo shows them. Another mount that came to the same place
/// meanwhile has another device; and the mount has another path if a directory above it was renamed. At another path it counts if it is
/// dead: a mount that was made since ours was unmounted may have got its number. The last line of a path is the topmost mount, the only
/// one that its path unmounts. Signals to the engine's whole group are not meant for the watcher.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
while read -r _; do :; done
_point=
while read -r _ _ _device _ _path _; do
    if [ "$_device" = "$1" ] && [ "$_point" != "$2" ]; then _point=$_path; fi
done </proc/self/mountinfo
_top=
while read -r _ _ _device _ _path _; do
    if [ "$_path" = "$_point" ]; then _top=$_device; fi
done </proc/self/mountinfo
if [ "$_top" = "$1" ]; then
    _dir=$0
    if [ "$_point" != "$2" ]; then
        _dir=$(printf '%bx' "$_point")
        _dir=${_dir%x}
        if stat -f -- "$_dir" >/dev/null 2>&1; then exit; fi
    fi
    fusermount3 -u -z -q -- "$_dir" || umount -l -- "$_dir"
fi
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
        command(dir, device).spawn().map(Self)
    }
}

fn command(dir: &Path, device: DeviceNo) -> Command {
    let mut watcher = Command::new("sh");
    watcher.args(["-c", SCRIPT]).arg(dir);
    watcher.arg(format!("{}:{}", device.major, device.minor)).arg(as_in_mountinfo(dir));
    watcher.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    watcher.current_dir("/").process_group(0);
    watcher
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

    /// The commands that the watcher of a mount of this device on this directory runs when its engine ends. Both tools say what they were asked, instead
    /// of doing it; `fusermount3` then ends with this status, and each file system seems dead.
    fn runs(dir: &Path, device: DeviceNo, status: u8) -> String {
        let folder = tempfile::tempdir().unwrap();
        // Another process writes the tools: a test that forks meanwhile would hold them open for writing, and they could not be run.
        let tools = r#"
            cd "$0"
            printf '#!/bin/sh\necho fusermount3 "$@"\nexit %s\n' "$1" >fusermount3
            printf '#!/bin/sh\necho umount "$@"\n' >umount
            printf '#!/bin/sh\nexit 1\n' >stat
            chmod 755 fusermount3 umount stat
        "#;
        let written =
            Command::new("sh").args(["-c", tools]).arg(folder.path()).arg(status.to_string()).status();
        assert!(written.unwrap().success());
        let mut path = folder.path().as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut watcher = command(dir, device);
        let mut child = watcher.env("PATH", path).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = child.stdout.take().unwrap();
        drop(AutoUnmount(child));
        io::read_to_string(&mut said).unwrap()
    }

    /// The device on /proc: of the last line, as mounts may cover each other there.
    fn device_of_proc() -> DeviceNo {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let fields: Vec<_> = table.lines().map(|line| line.split(' ').collect::<Vec<_>>()).collect();
        let (major, minor) = fields.iter().rfind(|f| f[4] == "/proc").unwrap()[2].split_once(':').unwrap();
        DeviceNo { major: major.parse().unwrap(), minor: minor.parse().unwrap() }
    }

    #[test]
    fn the_watcher_unmounts_after_its_engine_and_leaves_other_mounts_alone() {
        let (proc, device) = (Path::new("/proc"), device_of_proc());
        assert_eq!(runs(proc, device, 0), "fusermount3 -u -z -q -- /proc\n");
        assert_eq!(runs(proc, device, 1), "fusermount3 -u -z -q -- /proc\numount -l -- /proc\n");
        // Its path was another one when it was mounted.
        let elsewhere = runs(Path::new("/no such"), device, 0);
        assert!(
            elsewhere.starts_with("fusermount3 -u -z -q -- /") && !elsewhere.contains("no such"),
            "{elsewhere}"
        );
        // Something is mounted there, and it is of another device.
        assert_eq!(runs(proc, DeviceNo { minor: u32::MAX, ..device }, 0), "");
    }
}
