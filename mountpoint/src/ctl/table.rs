//! The kernel's table of mounts, as far as it has ours. Reading it touches no mount.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use procfs::process::{MountInfo, Process};

/// The type of our mounts.
const KIND: &str = "fuse.mount-s3";

/// A mount of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mounted {
    pub(super) point: PathBuf,
    /// The user who mounted it.
    pub(super) uid: u32,
}

/// All of them, the uppermost last.
pub(super) fn read() -> anyhow::Result<Vec<Mounted>> {
    let table = Process::myself().and_then(|me| me.mountinfo()).context("reading /proc/self/mountinfo")?;
    Ok(table.into_iter().filter_map(ours).collect())
}

fn ours(mount: MountInfo) -> Option<Mounted> {
    let uid = mount.super_options.get("user_id").cloned().flatten()?.parse().ok()?;
    (mount.fs_type == KIND).then(|| Mounted { point: unescaped(&mount.mount_point), uid })
}

/// The mount that this path, absolute, is in.
pub(super) fn holding<'a>(table: &'a [Mounted], path: &Path) -> Option<&'a Mounted> {
    path.ancestors().find_map(|point| table.iter().rev().find(|mount| mount.point == point))
}

/// The kernel writes space, tab, line end and backslash as three octal digits.
fn unescaped(path: &Path) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let octal = bytes.get(at + 1..at + 4).filter(|_| bytes[at] == b'\\');
        let code = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        plain.push(code.unwrap_or(bytes[at]));
        at += if code.is_some() { 4 } else { 1 };
    }
    PathBuf::from(OsString::from_vec(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(lines: &[&str]) -> Vec<Mounted> {
        lines.iter().filter_map(|line| ours(MountInfo::from_line(line).unwrap())).collect()
    }

    #[test]
    fn our_mounts_are_found_with_their_owner_and_their_real_path() {
        let ours = table(&[
            "36 35 98:0 / /mnt/ext rw,noatime master:1 - ext3 /dev/root rw,errors=continue",
            r"52 35 0:48 / /mnt/a\040b\134 rw,nosuid shared:1 - fuse.mount-s3 mountpoint-s3 rw,user_id=1000,group_id=1000",
        ]);
        assert_eq!(ours, [Mounted { point: r"/mnt/a b\".into(), uid: 1000 }]);
    }

    #[test]
    fn a_path_below_belongs_to_the_innermost_mount() {
        let line = |point: &str, uid| {
            format!("52 35 0:48 / {point} rw - fuse.mount-s3 mountpoint-s3 rw,user_id={uid},group_id=0")
        };
        let lines = [line("/mnt", 1), line("/mnt/in", 2), line("/mnt/in", 3)];
        let table = table(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        let uid = |path: &str| holding(&table, Path::new(path)).map(|mount| mount.uid);
        assert_eq!(
            [uid("/mnt"), uid("/mnt/in/a/b"), uid("/mnt/inner"), uid("/other")],
            [Some(1), Some(3), Some(1), None]
        );
    }
}
