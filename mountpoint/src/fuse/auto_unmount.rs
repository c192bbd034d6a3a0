//! `--auto-unmount`: a small process that unmounts after the end of the engine, however it ended.
//!
//! That process is this program once more, started with a hidden flag. It waits for the end of a pipe from the engine. `fusermount3` has an
//! option of that name, which does not help a user without `--allow-other`: `fusermount3` checks the mount as root before it unmounts, the
//! kernel refuses root the access, and the dead mount stays.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::Context as _;
use rustix::mount::{UnmountFlags, unmount};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::helper::helper;
use super::mounted::{Standing, fusermount, standing};
use crate::clock::Clock;
use crate::fs::DeviceNo;
use crate::mountinfo;

/// The hidden flag. The directory and the device of the mount follow it.
const FLAG: &str = "--unmount-after-engine";
/// The name of the process. It differs from the engine's: `pkill mount-s3` ends engines alone.
const NAME: &str = "s3-unmounter";

/// The engine's handle on its watcher. The watcher's standard input is a pipe from the engine, which closes when the engine ends.
#[derive(Debug)]
pub(super) struct AutoUnmount(Child);

impl AutoUnmount {
    /// Starts the watcher for the mount of `device` on `dir`, an absolute path without links.
    ///
    /// # Errors
    /// This program can't be started once more.
    pub(super) fn watch(dir: &Path, device: DeviceNo) -> io::Result<Self> {
        let mut watcher = helper("/proc/self/exe");
        watcher.arg0(NAME).arg(FLAG).arg(dir).arg(format!("{}:{}", device.major, device.minor));
        watcher.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        watcher.current_dir("/").process_group(0);
        watcher.spawn().map(Self)
    }
}

impl Drop for AutoUnmount {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The watcher of a mount, in its own process.
#[derive(Debug, PartialEq, Eq)]
pub struct Watcher {
    dir: PathBuf,
    device: DeviceNo,
}

impl Watcher {
    /// Parses the command line of a watcher; `None` for any other command line.
    pub fn asked(line: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let mut words = line.into_iter().skip(1);
        words.next().filter(|word| word == FLAG)?;
        Some(Self { dir: words.next()?.into(), device: DeviceNo::of(words.next()?.to_str()?)? })
    }

    /// Waits for the end of the engine, then unmounts the rest of its mount.
    ///
    /// # Errors
    /// The unmount failed, and the dead mount stays.
    pub fn run(&self) -> anyhow::Result<()> {
        // When systemd ends a unit, it signals all processes of the unit: the watcher must outlive the engine.
        let _heard = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("taking signals")?;
        let name = std::ffi::CString::new(NAME)?;
        let _ = rustix::thread::set_name(&name);
        io::copy(&mut io::stdin().lock(), &mut io::sink()).context("waiting for the end of the engine")?;
        let table = std::fs::read(mountinfo::OWN).context("reading the table of mounts")?;
        let Some(dir) = self.left(&table, |dir| rustix::fs::statfs(dir).is_err()) else { return Ok(()) };
        if unmount(&dir, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_err() {
            fusermount(&dir, &Clock::machine()).context("starting fusermount3 to unmount")?;
        }
        Ok(())
    }

    /// The path at which the rest of the mount can be unmounted. A later mount at the same path has another device, and stays. If a
    /// directory above the mount was renamed, the mount has another path. There the mount counts only if it is dead: a mount that was made
    /// after ours was unmounted may have got the same number.
    fn left(&self, table: &[u8], is_dead: impl Fn(&Path) -> bool) -> Option<PathBuf> {
        match standing(table, &self.dir, self.device, true) {
            Standing::Top(point) => Some(point).filter(|point| *point == self.dir || is_dead(point)),
            Standing::Covered(_) | Standing::Gone => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_flag_makes_this_program_the_watcher() {
        let asked = |line: &[&str]| Watcher::asked(line.iter().map(OsString::from));
        let watcher = Watcher { dir: "/a b".into(), device: DeviceNo { major: 0, minor: 44 } };
        assert_eq!(asked(&[NAME, FLAG, "/a b", "0:44"]), Some(watcher));
        for line in [
            &["mount-s3"][..],
            &["mount-s3", "bucket", FLAG],
            &[NAME, FLAG, "/a b"],
            &[NAME, FLAG, "/a", "44"],
        ] {
            assert_eq!(asked(line), None, "{line:?}");
        }
    }

    #[test]
    fn the_watcher_unmounts_the_mount_of_its_engine_and_no_other() {
        let line = |minor: u32, point: &str| format!("7 1 0:{minor} / {point} rw - any any rw\n");
        let watcher = Watcher { dir: "/a b".into(), device: DeviceNo { major: 0, minor: 44 } };
        let (ours, other, moved) = (line(44, "/a\\040b"), line(45, "/a\\040b"), line(44, "/new"));
        for (table, is_dead, left) in [
            (ours.clone(), true, Some("/a b")),
            // The kernel may not have noticed yet.
            (ours.clone(), false, Some("/a b")),
            (format!("{other}{ours}"), true, Some("/a b")),
            (format!("{ours}{other}"), true, None),
            (other.clone(), true, None),
            (format!("{moved}{other}"), true, Some("/new")),
            (format!("{moved}{other}"), false, None),
            (String::new(), true, None),
        ] {
            let found = watcher.left(table.as_bytes(), |_| is_dead);
            assert_eq!(found.as_deref(), left.map(Path::new), "{table}");
        }
    }
}
