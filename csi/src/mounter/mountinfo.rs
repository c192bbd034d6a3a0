//! The mount table: mounts, their bind mounts, and waiting for a change. Reading it calls no file system, so it works even if an
//! engine is dead or hangs.
//!
//! Never here: a mount, an unmount, a stat of a mount.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use mountpoint::mountinfo::{self, Line};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, timeout_at};

use super::sys::FS_NAME;

/// The mounts at one moment.
#[derive(Clone, Debug, Default)]
pub struct Mounts(Vec<Mount>);

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mount point.
    pub point: PathBuf,
    /// The device number `major:minor` of the file system, which its bind mounts share.
    pub device: String,
    /// The type of the file system: `fuse`, `tmpfs`.
    pub kind: String,
    /// The source argument of mount(2).
    pub name: String,
    /// Whether this mount is read-only; others of the same file system may not be.
    pub read_only: bool,
}

impl Mount {
    /// The minor number of the file system's device.
    #[must_use]
    pub fn minor(&self) -> Option<u32> {
        self.device.split_once(':')?.1.parse().ok()
    }

    /// Whether this driver or an earlier release mounted the file system: a bucket.
    #[must_use]
    pub fn is_bucket(&self) -> bool {
        (self.kind == "fuse" || self.kind.starts_with("fuse.")) && self.name == FS_NAME
    }
}

impl Mounts {
    /// Reads the present table.
    ///
    /// # Errors
    /// `/proc` is missing.
    pub fn read() -> io::Result<Self> {
        Self::read_from(Path::new(mountinfo::OWN))
    }

    /// Reads the mounts in this file.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn read_from(table: &Path) -> io::Result<Self> {
        Ok(Self::parse(&std::fs::read(table)?))
    }

    fn parse(table: &[u8]) -> Self {
        Self(mountinfo::lines(table).map(mount).collect())
    }

    /// The uppermost mount at this path, which has no symbolic link in it.
    #[must_use]
    pub fn at(&self, point: &Path) -> Option<&Mount> {
        // A later line covers an earlier one.
        self.0.iter().rev().find(|mount| mount.point == point)
    }

    /// Every mount point. A path with several mounts, one over the other, comes several times.
    pub fn points(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|mount| mount.point.as_path())
    }

    /// The mount points of buckets.
    pub fn buckets(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().filter(|mount| mount.is_bucket()).map(|mount| mount.point.as_path())
    }

    /// The device numbers of the mounts at this path, the lowest mount first.
    pub fn layers<'a>(&'a self, point: &'a Path) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |mount| mount.point == point).map(|mount| mount.device.as_str())
    }

    /// The mounts below a directory, the uppermost first.
    pub fn beneath<'a>(&'a self, directory: &'a Path) -> impl Iterator<Item = &'a Mount> {
        self.0.iter().rev().filter(move |mount| mount.point.starts_with(directory))
    }

    /// The other mounts of the same file system below a directory: a source's bind mounts for workloads. Only the kubelet's directory
    /// counts: our container may also see a source at the place of its own volumes.
    pub fn references<'a>(&'a self, of: &'a Mount, beneath: &'a Path) -> impl Iterator<Item = &'a Mount> {
        self.0
            .iter()
            .filter(move |it| it.device == of.device && it.point != of.point && it.point.starts_with(beneath))
    }

    /// The mount directly in `sources` of which this one is a bind mount.
    #[must_use]
    pub fn source_of(&self, bound: &Mount, sources: &Path) -> Option<&Mount> {
        self.0.iter().find(|it| it.device == bound.device && it.point.parent() == Some(sources))
    }
}

fn mount(line: Line<'_>) -> Mount {
    Mount {
        point: line.point.path(),
        device: line.device.to_owned(),
        kind: line.kind.text(),
        name: line.source.text(),
        read_only: line.options.has("ro"),
    }
}

/// Waits for changes of the table. No change is missed if the watch begins before the table is read.
#[derive(Debug)]
pub struct Changes(AsyncFd<File>);

impl Changes {
    /// Watches the table from now on.
    ///
    /// # Errors
    /// `/proc` is missing, or there is no runtime with I/O.
    #[expect(
        deprecated,
        reason = "its successor is unsafe, for types whose descriptor changes; a File's does not"
    )]
    pub fn watch() -> io::Result<Self> {
        // The kernel reports a change as priority and error at once.
        let interest = Interest::PRIORITY | Interest::ERROR;
        Ok(Self(AsyncFd::with_interest(File::open(mountinfo::OWN)?, interest)?))
    }

    /// Waits until `so` returns true for the table; `false` at the deadline.
    ///
    /// # Errors
    /// An error of reading the table.
    pub async fn until(&self, deadline: Instant, mut so: impl FnMut(&Mounts) -> bool) -> io::Result<bool> {
        loop {
            if so(&Mounts::read()?) {
                return Ok(true);
            }
            match timeout_at(deadline, self.0.ready(Interest::PRIORITY | Interest::ERROR)).await {
                Err(_elapsed) => return Ok(false),
                Ok(changed) => changed?.clear_ready(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &[u8] = b"22 1 0:21 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
        90 22 0:50 / /k/plugins/mnt/mp-1 rw,nosuid,nodev,noatime shared:7 - fuse mountpoint-s3 rw,user_id=0\n\
        91 22 0:50 / /k/pods/a/v\\040b/mount ro,nosuid - fuse mountpoint-s3 rw,user_id=0\n\
        92 22 0:50 / /csi/mnt/mp-1 rw,nosuid - fuse mountpoint-s3 rw,user_id=0\n\
        93 22 0:51 / /k/pods/b/mount rw - tmpfs none rw\n\
        94 22 0:52 / /k/pods/b/mount rw - fuse.sshfs host: rw\n\
        95 22 0:53 / /\xff rw - tmpfs none rw\n\
        a line of tomorrow's kernel\n";

    #[test]
    fn the_uppermost_mount_of_a_path_is_found_with_its_facts() {
        let mounts = Mounts::parse(LINES);
        let target = mounts.at(Path::new("/k/pods/a/v b/mount")).unwrap();
        assert!(target.read_only && target.is_bucket(), "{target:?}");
        let source = mounts.at(Path::new("/k/plugins/mnt/mp-1")).unwrap();
        assert!(!source.read_only && source.is_bucket());
        let upper = mounts.at(Path::new("/k/pods/b/mount")).unwrap();
        assert!(upper.kind == "fuse.sshfs" && !upper.is_bucket());
        assert_eq!(mounts.at(Path::new("/k/pods/b")), None);
    }

    #[test]
    fn bind_mounts_of_a_source_are_its_references_and_lead_back_to_it() {
        let mounts = Mounts::parse(LINES);
        let source = mounts.at(Path::new("/k/plugins/mnt/mp-1")).unwrap();
        let references: Vec<_> =
            mounts.references(source, Path::new("/k")).map(|it| it.point.clone()).collect();
        assert_eq!(references, [Path::new("/k/pods/a/v b/mount")]);
        let target = mounts.at(&references[0]).unwrap();
        assert_eq!(mounts.source_of(target, Path::new("/k/plugins/mnt")), Some(source));
        let other = mounts.at(Path::new("/k/pods/b/mount")).unwrap();
        assert_eq!(mounts.source_of(other, Path::new("/k/plugins/mnt")), None);
    }

    #[test]
    fn the_table_of_this_process_has_its_root() {
        assert!(Mounts::read().unwrap().points().any(|point| point == Path::new("/")));
        assert!(Mounts::read_from(Path::new("/nonexistent")).is_err());
    }
}
