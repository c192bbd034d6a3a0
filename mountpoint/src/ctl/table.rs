//! The mounts of `mount-s3` in the kernel's table of mounts. Reading the table accesses no mount.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use mountpoint::mountinfo::{self, Line};

/// The file system type of mount-s3.
const KIND: &str = "fuse.mount-s3";

/// A mount of mount-s3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mounted {
    pub(super) point: PathBuf,
    /// The user who made the mount.
    pub(super) uid: u32,
}

/// All mounts of mount-s3, the uppermost of each mount point last.
pub(super) fn read() -> anyhow::Result<Vec<Mounted>> {
    let table = std::fs::read(mountinfo::OWN).with_context(|| format!("reading {}", mountinfo::OWN))?;
    Ok(mountinfo::lines(&table).filter_map(ours).collect())
}

fn ours(mount: Line<'_>) -> Option<Mounted> {
    if *mount.kind.plain() != *KIND {
        return None;
    }
    let uid = mount.system_options.value("user_id")?.parse().ok()?;
    Some(Mounted { point: mount.point.path(), uid })
}

/// The mount that contains this absolute path.
pub(super) fn holding<'a>(table: &'a [Mounted], path: &Path) -> Option<&'a Mounted> {
    path.ancestors().find_map(|point| table.iter().rev().find(|mount| mount.point == point))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(lines: &[&str]) -> Vec<Mounted> {
        mountinfo::lines(lines.join("\n").as_bytes()).filter_map(ours).collect()
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
