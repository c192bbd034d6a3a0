//! The mount table: mounts, their bind mounts, and waiting for a change. Reading it calls no file system, so it works even when an
//! engine is dead or hangs.
//!
//! Never here: a mount, an unmount, a stat of a mount.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use procfs::process::MountInfo;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, timeout_at};

use super::sys::FS_NAME;

/// Of our own mount namespace. `/proc/thread-self` would be the calling thread's; all our threads share one.
const TABLE: &str = "/proc/self/mountinfo";

/// The mounts of one moment.
#[derive(Clone, Debug, Default)]
pub struct Mounts(Vec<Mount>);

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where.
    pub point: PathBuf,
    /// `major:minor` of the file system: bind mounts of one another have the same.
    pub device: String,
    /// `fuse`, `tmpfs`.
    pub kind: String,
    /// The source in the call of mount(2).
    pub name: String,
    /// This mount is read-only; others of the same file system may not be.
    pub read_only: bool,
}

impl Mount {
    /// Whether it is a bucket that a driver mounted: this one or an earlier release.
    #[must_use]
    pub fn is_bucket(&self) -> bool {
        (self.kind == "fuse" || self.kind.starts_with("fuse.")) && self.name == FS_NAME
    }
}

impl Mounts {
    /// As it is now.
    ///
    /// # Errors
    /// `/proc` is not there.
    pub fn read() -> io::Result<Self> {
        Self::read_from(Path::new(TABLE))
    }

    /// As this table has it.
    ///
    /// # Errors
    /// It can't be read.
    pub fn read_from(table: &Path) -> io::Result<Self> {
        Ok(Self::parse(&std::fs::read(table)?))
    }

    /// A line that can't be understood is none of ours: another's odd mount must not stop our driver.
    fn parse(table: &[u8]) -> Self {
        let lines = table.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        Self(
            lines
                .filter_map(|line| MountInfo::from_line(&String::from_utf8_lossy(line)).ok())
                .map(mount)
                .collect(),
        )
    }

    /// The uppermost mount at this path. The path has no symbolic link in it.
    #[must_use]
    pub fn at(&self, point: &Path) -> Option<&Mount> {
        // A later line is mounted over an earlier one.
        self.0.iter().rev().find(|mount| mount.point == point)
    }

    /// Every mount point; one with several mounts over one another comes several times.
    pub fn points(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|mount| mount.point.as_path())
    }

    /// The mount points of buckets.
    pub fn buckets(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().filter(|mount| mount.is_bucket()).map(|mount| mount.point.as_path())
    }

    /// How many mounts lie over one another at this path.
    #[must_use]
    pub fn layers(&self, point: &Path) -> usize {
        self.0.iter().filter(|mount| mount.point == point).count()
    }

    /// The other mounts of a mount's file system beneath a directory: its bind mounts, while a workload has it. Beneath the
    /// kubelet's directory alone, because our container may see a source a second time where its own volumes are.
    pub fn references<'a>(&'a self, of: &'a Mount, beneath: &'a Path) -> impl Iterator<Item = &'a Mount> {
        self.0
            .iter()
            .filter(move |it| it.device == of.device && it.point != of.point && it.point.starts_with(beneath))
    }

    /// The mount directly in `sources` that this one is a bind mount of.
    #[must_use]
    pub fn source_of(&self, bound: &Mount, sources: &Path) -> Option<&Mount> {
        self.0.iter().find(|it| it.device == bound.device && it.point.parent() == Some(sources))
    }
}

fn mount(info: MountInfo) -> Mount {
    Mount {
        point: unescaped(&info.mount_point.to_string_lossy()),
        device: info.majmin,
        kind: info.fs_type,
        name: info.mount_source.unwrap_or_default(),
        read_only: info.mount_options.contains_key("ro"),
    }
}

/// The kernel writes white space and backslashes as three octal digits.
fn unescaped(text: &str) -> PathBuf {
    let bytes = text.as_bytes();
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

/// Waits for changes of the table. Taken before the table is read, it misses none.
#[derive(Debug)]
pub struct Changes(AsyncFd<File>);

impl Changes {
    /// From now on.
    ///
    /// # Errors
    /// `/proc` is not there, or there is no runtime with I/O.
    #[expect(
        deprecated,
        reason = "its successor is unsafe, for types whose descriptor changes; a File's does not"
    )]
    pub fn watch() -> io::Result<Self> {
        // The kernel tells a change as priority and error at once.
        let interest = Interest::PRIORITY | Interest::ERROR;
        Ok(Self(AsyncFd::with_interest(File::open(TABLE)?, interest)?))
    }

    /// Waits until the table is so; `false` if it is not by then.
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

    #[test]
    fn only_whole_octal_codes_are_unescaped() {
        assert_eq!(unescaped("/a\\011b\\134c"), Path::new("/a\tb\\c"));
        assert_eq!(unescaped("/a\\04"), Path::new("/a\\04"));
        assert_eq!(unescaped("/a\\999"), Path::new("/a\\999"));
    }
}
