//! Files that root reaches only by a capability, which a sandbox takes away.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Bits of a mode: to read a file, to change a folder, to go through one.
const READ: u32 = 0o4;
const CHANGE: u32 = 0o7;
const PASS: u32 = 0o1;

/// A user without capabilities, and its groups.
#[derive(Debug)]
pub(super) struct Who {
    user: u32,
    groups: Vec<u32>,
}

impl Who {
    /// The user of this process, if it is root. Modes bind all other users anyway.
    pub(super) fn root() -> Option<Self> {
        let user = rustix::process::geteuid();
        let mut groups: Vec<_> =
            rustix::process::getgroups().ok()?.into_iter().map(rustix::process::Gid::as_raw).collect();
        groups.push(rustix::process::getegid().as_raw());
        user.is_root().then(|| Self { user: user.as_raw(), groups })
    }

    /// A user that owns no file of a test.
    #[cfg(test)]
    pub(super) fn stranger() -> Self {
        Self { user: u32::MAX - 7, groups: Vec::new() }
    }

    /// Whether modes let this user read a file, if it exists.
    pub(super) fn reads(&self, file: &Path) -> bool {
        self.reaches(file, READ)
    }

    /// Whether modes let this user make and remove files in a folder, if it exists.
    pub(super) fn changes(&self, folder: &Path) -> bool {
        self.reaches(folder, CHANGE)
    }

    fn reaches(&self, path: &Path, bits: u32) -> bool {
        let Ok(path) = std::path::absolute(path) else { return true };
        let found = fs::canonicalize(&path).ok();
        let is_there = found.is_some();
        let Some(nearest) = found.or_else(|| path.ancestors().find_map(|above| fs::canonicalize(above).ok()))
        else {
            return true;
        };
        let may = |path: &Path, bits| fs::metadata(path).is_ok_and(|about| self.may(&about, bits));
        may(&nearest, if is_there { bits } else { PASS })
            && nearest.ancestors().skip(1).all(|above| may(above, PASS))
    }

    fn may(&self, about: &Metadata, bits: u32) -> bool {
        let shift = match about {
            about if about.uid() == self.user => 6,
            about if self.groups.contains(&about.gid()) => 3,
            _ => 0,
        };
        about.mode() >> shift & bits == bits
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn files_of_another_user_are_reached_as_their_modes_say() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, file) = (dir.path().join("folder"), dir.path().join("folder/file"));
        fs::create_dir(&folder).unwrap();
        fs::write(&file, "").unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        set(dir.path(), 0o755);
        let about = fs::metadata(&file).unwrap();
        let stranger = Who { user: about.uid() + 1, groups: vec![about.gid() + 1] };
        let member = Who { user: about.uid() + 1, groups: vec![about.gid()] };
        let owner = Who { user: about.uid(), groups: vec![] };
        for (modes, reads, changes) in [
            ([0o755, 0o600], [true, false, false], [true, false, false]),
            ([0o755, 0o640], [true, true, false], [true, false, false]),
            ([0o755, 0o644], [true, true, true], [true, false, false]),
            ([0o775, 0o644], [true, true, true], [true, true, false]),
            ([0o700, 0o644], [true, false, false], [true, false, false]),
            ([0o777, 0o644], [true, true, true], [true, true, true]),
        ] {
            set(&folder, modes[0]);
            set(&file, modes[1]);
            let all = [&owner, &member, &stranger];
            assert_eq!(all.map(|who| who.reads(&file)), reads, "{modes:?}");
            assert_eq!(all.map(|who| who.changes(&folder)), changes, "{modes:?}");
            let later = folder.join("later/file");
            assert_eq!(stranger.reads(&later), modes[0] != 0o700, "a missing file: {modes:?}");
        }
    }
}
