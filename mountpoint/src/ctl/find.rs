//! Finds mounts: by their files in the folders of sockets, and by the kernel's table of mounts.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::table::{self, Mounted};
use crate::telemetry::{self, Entry};

/// Folders of users' runtime directories, for root.
const OF_USERS: &str = "/run/user";

/// A mount, as far as it is known without asking it.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// What it told of itself.
    pub(super) entry: Option<Entry>,
    /// The kernel's line.
    pub(super) mounted: Option<Mounted>,
}

impl Found {
    pub(super) fn mount_point(&self) -> PathBuf {
        match (&self.mounted, &self.entry) {
            (Some(mounted), _) => mounted.point.clone(),
            (None, Some(entry)) => PathBuf::from(&entry.origin.mount_point),
            (None, None) => PathBuf::new(),
        }
    }
}

/// All folders that may have sockets for us.
pub(super) fn places(runtime_dir: Option<&Path>) -> Vec<PathBuf> {
    let mut places = telemetry::places(runtime_dir);
    let of_users = std::fs::read_dir(OF_USERS).into_iter().flatten().flatten();
    places.extend(of_users.map(|user| user.path().join("mount-s3")));
    places.sort();
    places.dedup();
    places
}

/// Every mount of this user, or of all users for root. What a dead process left is removed, unless its mount is still there.
pub(super) fn all(places: &[PathBuf]) -> anyhow::Result<Vec<Found>> {
    let me = rustix::process::geteuid().as_raw();
    let entries: Vec<Entry> = places.iter().flat_map(|folder| telemetry::read_entries(folder)).collect();
    let mut table = table::read()?;
    let mut found = Vec::new();
    for entry in entries {
        let at = table.iter().rposition(|mounted| mounted.point == Path::new(&entry.origin.mount_point));
        let mounted = at.map(|at| table.remove(at));
        if mounted.is_none() && entry.is_gone() {
            entry.remove();
            continue;
        }
        found.push(Found { entry: Some(entry), mounted });
    }
    let rest = table.into_iter().filter(|mounted| me == 0 || mounted.uid == me);
    found.extend(rest.map(|mounted| Found { entry: None, mounted: Some(mounted) }));
    found.sort_by_key(Found::mount_point);
    Ok(found)
}

/// The mount that contains this path, of any user.
///
/// # Errors
/// It is in no mount of ours.
pub(super) fn at(places: &[PathBuf], dir: &Path) -> anyhow::Result<Found> {
    let table = table::read()?;
    let entries: Vec<Entry> = places.iter().flat_map(|folder| telemetry::read_entries(folder)).collect();
    for path in spellings(dir)? {
        let mounted = table::holding(&table, &path).cloned();
        let point = mounted.as_ref().map_or(&path, |mounted| &mounted.point);
        let mut of_it: Vec<&Entry> =
            entries.iter().filter(|entry| Path::new(&entry.origin.mount_point) == point).collect();
        // A dead one's file may lie beside the file of the mount that took its place.
        of_it.sort_by_key(|entry| entry.is_gone());
        let entry = of_it.first().copied().cloned();
        if mounted.is_some() || entry.is_some() {
            return Ok(Found { entry, mounted });
        }
    }
    anyhow::bail!(
        "{} is in no mount of mount-s3: 'mount-s3-ctl status' lists yours, 'findmnt -t fuse.mount-s3' those of all users",
        dir.display()
    )
}

/// The path as it is written and with the links before its last name resolved. The last name itself is not looked at: its mount may
/// hang.
fn spellings(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let absolute = std::path::absolute(dir).with_context(|| format!("{}", dir.display()))?;
    let mut path = PathBuf::new();
    for part in absolute.components() {
        match part {
            std::path::Component::ParentDir => {
                path.pop();
            }
            part => path.push(part),
        }
    }
    let mut spellings = vec![path.clone()];
    if let (Some(parent), Some(name)) = (path.parent(), path.file_name())
        && let Ok(parent) = std::fs::canonicalize(parent)
    {
        spellings.push(parent.join(name));
    }
    Ok(spellings)
}
