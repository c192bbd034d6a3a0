//! The bind mount of a target to a source. Enters: the state of the target. Leaves: a target that is bound to the source.
//!
//! Never here: a probe of a mount; the mount of a source.

use std::io;
use std::path::Path;

use super::dead;
use super::mountinfo::Mounts;
use super::sys::{self, Health};
use super::targets::{check_ours, mounted, table, unmounted};
use crate::error::{Error, Result};

/// The state of a target before a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// The target is not mounted.
    Empty,
    /// The target has the right mount: no new one is needed.
    Nothing,
    /// The target has a dead mount; the new one covers it.
    Dead,
    /// The target has a live mount of another source than the workload's. It is removed once the new source is served.
    Another,
}

/// The state of a mounted target. `moved`: the workload is now assigned to another source.
pub(super) fn over(health: &Health, moved: bool) -> Over {
    match health {
        Health::Dead(_) => Over::Dead,
        Health::Alive | Health::Hung if moved => Over::Another,
        Health::Alive | Health::Hung => Over::Nothing,
    }
}

/// Binds the target, unless it is bound to this source already.
pub(super) fn bind(source: &Path, target: &Path, over: Over, read_only: bool, kubelet: &Path) -> Result<()> {
    let mounts = if mounted(target)?.is_some() { table()? } else { Mounts::default() };
    if let Some(mount) = mounts.at(target) {
        check_ours(mount)?;
        if mounts.at(source).is_some_and(|it| it.device == mount.device) {
            return Ok(());
        }
        match over {
            Over::Another => drop(unmounted(target)?),
            Over::Dead => dead::make_room(target, kubelet)?,
            Over::Empty | Over::Nothing => {}
        }
    }
    let failed =
        |what: &str, error: io::Error| Error::internal(format!("{what} {}: {error}", target.display()));
    let made = match std::fs::create_dir(target) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(failed("making the target", error)),
    };
    sys::bind(source, target, read_only).map_err(|error| {
        if made {
            let _ = std::fs::remove_dir(target);
        }
        failed("binding the source to", error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_stays_is_covered_or_makes_room() {
        let dead = || Health::Dead(String::new());
        for (health, moved, expected) in [
            (Health::Alive, false, Over::Nothing),
            (Health::Alive, true, Over::Another),
            (Health::Hung, false, Over::Nothing),
            (Health::Hung, true, Over::Another),
            (dead(), false, Over::Dead),
            (dead(), true, Over::Dead),
        ] {
            assert_eq!(over(&health, moved), expected, "{health:?}, {moved}");
        }
    }
}
