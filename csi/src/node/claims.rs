//! The targets that are in use: a call works on them, or they are published. Enters: a target and its volume. Leaves: a claim on it, or
//! the reason to refuse one. A target has one call at a time, and a volume of a single writer has one live target.
//!
//! The kernel's mount table shows the live targets; memory only adds the volumes of targets with unusual paths. A restarted driver
//! therefore knows the same.
//!
//! Never here: a stat of a mount, which may hang.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::contract::target::OfPod;
use crate::error::{Error, ErrorKind, Result};
use crate::mounter::mountinfo::Mounts;

/// The mount table of this process, and the kubelet whose targets are told from other mounts.
#[derive(Debug)]
pub struct Table {
    /// `/proc/self/mountinfo`.
    pub path: PathBuf,
    /// The kubelet's directory.
    pub kubelet: PathBuf,
}

impl Table {
    /// As it is now.
    ///
    /// # Errors
    /// `Internal`: it can't be read.
    pub fn read(&self) -> Result<Mounts> {
        Mounts::read_from(&self.path).map_err(|error| {
            Error::internal(format!("reading the mount table {}: {error}", self.path.display()))
        })
    }
}

/// All claims of this driver.
#[derive(Clone, Debug)]
pub struct Claims {
    table: Arc<Table>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Target to volume; a call is under way.
    busy: HashMap<PathBuf, String>,
    /// Target to volume; as far as we know.
    published: HashMap<PathBuf, String>,
}

/// One target, claimed until dropped.
#[derive(Debug)]
pub struct Claim {
    claims: Claims,
    target: PathBuf,
}

impl Claims {
    /// None yet.
    #[must_use]
    pub fn new(table: Arc<Table>) -> Self {
        Self { table, state: Arc::default() }
    }

    /// Claims a target to publish `volume` at.
    ///
    /// # Errors
    /// `Aborted` while another call is about this target; `FailedPrecondition` if the volume allows one target and has another.
    pub fn publish(&self, target: &Path, volume: &str, single_writer: bool) -> Result<Claim> {
        let mut state = self.lock();
        self.free(&state, target)?;
        // A mounted target is refreshed, whatever the volume's access mode has become.
        let is_new = single_writer && self.table.read()?.at(target).is_none();
        if is_new && let Some(other) = self.other(&state, target, volume)? {
            return Err(Error::new(
                ErrorKind::FailedPrecondition,
                format!(
                    "PersistentVolume {volume} may be published once (ReadWriteOncePod), and is at {}: delete that pod \
                     first, or give the volume another access mode",
                    other.display()
                ),
            ));
        }
        state.busy.insert(target.to_owned(), volume.to_owned());
        drop(state);
        Ok(Claim { claims: self.clone(), target: target.to_owned() })
    }

    /// Claims a target to take it away.
    ///
    /// # Errors
    /// `Aborted` while another call is about this target.
    pub fn unpublish(&self, target: &Path) -> Result<Claim> {
        let mut state = self.lock();
        self.free(&state, target)?;
        let volume = state.published.get(target).cloned().unwrap_or_default();
        state.busy.insert(target.to_owned(), volume);
        drop(state);
        Ok(Claim { claims: self.clone(), target: target.to_owned() })
    }

    fn free(&self, state: &State, target: &Path) -> Result<()> {
        if state.busy.contains_key(target) {
            return Err(Error::new(
                ErrorKind::Aborted,
                format!("another call for {} is under way; the kubelet tries again", target.display()),
            ));
        }
        Ok(())
    }

    /// Another target of this volume that is live or about to be.
    fn other(&self, state: &State, target: &Path, volume: &str) -> Result<Option<PathBuf>> {
        let mounts = self.table.read()?;
        let live = mounts.points().filter(|point| {
            let of_kubelet = OfPod::of_mount_point(point, &self.table.kubelet);
            of_kubelet.is_some_and(|it| it.volume == volume)
                || state.published.get(*point).is_some_and(|it| it == volume)
        });
        let coming = state.busy.iter().filter(|(_, it)| *it == volume).map(|(point, _)| point.as_path());
        Ok(live.chain(coming).find(|point| *point != target).map(Path::to_owned))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    /// The target is published.
    pub fn published(self) {
        let mut state = self.claims.lock();
        if let Some(volume) = state.busy.get(&self.target).cloned() {
            state.published.insert(self.target.clone(), volume);
        }
    }

    /// The target is gone.
    pub fn gone(self) {
        self.claims.lock().published.remove(&self.target);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claims.lock().busy.remove(&self.target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBELET: &str = "/var/lib/kubelet";

    fn target(pod: &str) -> PathBuf {
        PathBuf::from(format!("{KUBELET}/pods/{pod}/volumes/kubernetes.io~csi/pv-1/mount"))
    }

    struct Fixture {
        table: tempfile::NamedTempFile,
        claims: Claims,
    }

    impl Fixture {
        fn new() -> Self {
            let table = tempfile::NamedTempFile::new().unwrap();
            let mounts = Table { path: table.path().to_owned(), kubelet: KUBELET.into() };
            Self { claims: Claims::new(Arc::new(mounts)), table }
        }

        fn mounted(&self, points: &[&Path]) {
            let line = |point: &&Path| {
                format!("40 30 0:50 / {} rw,relatime shared:9 - fuse mountpoint-s3 rw\n", point.display())
            };
            std::fs::write(self.table.path(), points.iter().map(line).collect::<String>()).unwrap();
        }
    }

    #[test]
    fn one_call_at_a_time_for_a_target() {
        let it = Fixture::new();
        let claim = it.claims.publish(&target("a"), "pv-1", false).unwrap();
        let error = it.claims.publish(&target("a"), "pv-1", false).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Aborted);
        assert_eq!(it.claims.unpublish(&target("a")).unwrap_err().kind, ErrorKind::Aborted);
        it.claims.publish(&target("b"), "pv-1", false).unwrap();
        drop(claim);
        it.claims.unpublish(&target("a")).unwrap();
    }

    #[test]
    fn a_single_writer_has_one_live_target_whoever_mounted_it() {
        let it = Fixture::new();
        it.mounted(&[Path::new("/"), &target("a")]);
        let error = it.claims.publish(&target("b"), "pv-1", true).unwrap_err();
        assert_eq!(error.kind, ErrorKind::FailedPrecondition);
        assert!(error.to_string().contains("pods/a/"), "{error}");
        // Two that were mounted before the access mode was edited are refreshed.
        it.mounted(&[&target("a"), &target("b")]);
        it.claims.publish(&target("b"), "pv-1", true).unwrap();
        it.mounted(&[Path::new("/"), &target("a")]);
        // The same target again, another volume, and a volume of many writers are no second target.
        it.claims.publish(&target("a"), "pv-1", true).unwrap();
        it.claims.publish(&target("b"), "pv-2", true).unwrap();
        it.claims.publish(&target("b"), "pv-1", false).unwrap();
        it.mounted(&[Path::new("/")]);
        it.claims.publish(&target("b"), "pv-1", true).unwrap();
    }

    #[test]
    fn a_single_writer_that_is_being_published_is_a_target_already() {
        let it = Fixture::new();
        let _claim = it.claims.publish(&target("a"), "pv-1", true).unwrap();
        let error = it.claims.publish(&target("b"), "pv-1", true).unwrap_err();
        assert_eq!(error.kind, ErrorKind::FailedPrecondition);
    }

    #[test]
    fn a_plain_target_is_remembered_while_it_is_mounted() {
        let it = Fixture::new();
        let (one, two) = (Path::new("/var/lib/kubelet/x/one"), Path::new("/var/lib/kubelet/x/two"));
        it.claims.publish(one, "h", true).unwrap().published();
        it.mounted(&[one]);
        assert!(it.claims.publish(two, "h", true).is_err());
        it.mounted(&[]);
        it.claims.publish(two, "h", true).unwrap();
        it.mounted(&[one]);
        it.claims.unpublish(one).unwrap().gone();
        it.claims.publish(two, "h", true).unwrap();
    }

    #[test]
    fn a_mount_table_that_can_not_be_read_is_no_licence() {
        let table = Table { path: "/nonexistent".into(), kubelet: KUBELET.into() };
        let error = Claims::new(Arc::new(table)).publish(&target("a"), "pv-1", true).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal);
    }
}
