//! The targets in use: a call works on them, or they are published. Enters: a target and its volume. Leaves: a claim on the target, or
//! the reason to refuse it. A target has one call at a time, a volume with a single writer has one live target, and a volume handle means
//! one PersistentVolume.
//!
//! The kernel's mount table shows the live targets; memory adds the handles, and the volumes of targets with unusual paths. A restarted
//! driver reads the handles from the kubelet's own files, so it knows the same.
//!
//! Never here: a stat of a mount, which may block.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mountpoint::sync::Arc;
use serde::Deserialize;

use crate::contract::DRIVER;
use crate::contract::target::OfPod;
use crate::error::{Error, ErrorKind, Result};
use crate::mounter::mountinfo::Mounts;

/// The mount table of this process, and the kubelet's directory, which distinguishes targets from other mounts.
#[derive(Debug)]
pub struct Table {
    /// The file of the table: `/proc/self/mountinfo`.
    pub path: PathBuf,
    /// The kubelet's directory.
    pub kubelet: PathBuf,
}

impl Table {
    /// Reads the present table.
    ///
    /// # Errors
    /// `Internal`: the table can't be read.
    pub fn read(&self) -> Result<Mounts> {
        Mounts::read_from(&self.path).map_err(|error| {
            Error::internal(format!("reading the mount table {}: {error}", self.path.display()))
        })
    }
}

/// A PersistentVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// The volume's name.
    pub name: String,
    /// The volume handle, by which the kubelet identifies the volume.
    pub handle: String,
}

/// All claims of this driver.
#[derive(Clone, Debug)]
pub struct Claims {
    table: Arc<Table>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Targets with a call in progress, each with its volume; `None` for a call that unpublishes an unknown target.
    busy: HashMap<PathBuf, Option<Volume>>,
    /// Published volumes by target, as far as they are known.
    published: HashMap<PathBuf, Volume>,
}

/// A claim on one target, which ends when it is dropped.
#[derive(Debug)]
pub struct Claim {
    claims: Claims,
    target: PathBuf,
}

impl Claims {
    /// Makes the claims of a driver that starts. Volumes in the mount table count as published.
    #[must_use]
    pub fn new(table: Arc<Table>) -> Self {
        // If the table can't be read, each call that needs it fails.
        let mounts = table.read().unwrap_or_default();
        let published =
            mounts.buckets().filter_map(|point| Some((point.to_owned(), noted(point, &table.kubelet)?)));
        let state = State { busy: HashMap::new(), published: published.collect() };
        Self { table, state: Arc::new(Mutex::new(state)) }
    }

    /// Claims a target in order to publish a volume there.
    ///
    /// # Errors
    /// `Aborted` while another call works on this target; `FailedPrecondition` if the volume may have only one target and has another, or
    /// if another PersistentVolume with the same handle is in use.
    pub fn publish(&self, target: &Path, volume: &Volume, single_writer: bool) -> Result<Claim> {
        let mut state = self.lock();
        self.free(&state, target)?;
        self.check_handle(&state, target, volume)?;
        // A call for a mounted target only refreshes it, even if the access mode was edited since.
        let is_new = single_writer && self.table.read()?.at(target).is_none();
        if is_new && let Some(other) = self.other(&state, target, &volume.name)? {
            return Err(Error::new(
                ErrorKind::FailedPrecondition,
                format!(
                    "PersistentVolume {} may be published once (ReadWriteOncePod), and is at {}: delete that pod \
                     first, or give the volume another access mode",
                    volume.name,
                    other.display()
                ),
            ));
        }
        state.busy.insert(target.to_owned(), Some(volume.clone()));
        drop(state);
        Ok(Claim { claims: self.clone(), target: target.to_owned() })
    }

    /// Claims a target in order to unpublish it.
    ///
    /// # Errors
    /// `Aborted` while another call works on this target.
    pub fn unpublish(&self, target: &Path) -> Result<Claim> {
        let mut state = self.lock();
        self.free(&state, target)?;
        let volume = state.published.get(target).cloned();
        state.busy.insert(target.to_owned(), volume);
        drop(state);
        Ok(Claim { claims: self.clone(), target: target.to_owned() })
    }

    fn free(&self, state: &State, target: &Path) -> Result<()> {
        if state.busy.contains_key(target) {
            return Err(Error::new(
                ErrorKind::Aborted,
                format!("another call for {} is in progress; the kubelet tries again", target.display()),
            ));
        }
        Ok(())
    }

    /// Another target of this volume that is mounted or being published.
    fn other(&self, state: &State, target: &Path, volume: &str) -> Result<Option<PathBuf>> {
        let mounts = self.table.read()?;
        // Only buckets count: the path of an inline volume has the name that the pod gives it, which another driver's volume may have, too.
        let live = mounts.buckets().filter(|point| match state.published.get(*point) {
            Some(known) => known.name == volume,
            None => OfPod::of_mount_point(point, &self.table.kubelet).is_some_and(|it| it.volume == volume),
        });
        let busy = state.busy.iter().filter(|(_, it)| it.as_ref().is_some_and(|it| it.name == volume));
        let coming = busy.map(|(point, _)| point.as_path());
        Ok(live.chain(coming).find(|point| *point != target).map(Path::to_owned))
    }

    /// Refuses a second PersistentVolume with a handle in use: the kubelet would take both for one volume. A mounted target is still
    /// refreshed.
    fn check_handle(&self, state: &State, target: &Path, volume: &Volume) -> Result<()> {
        let is_twin = |it: &Volume| it.handle == volume.handle && it.name != volume.name;
        let coming =
            state.busy.iter().find_map(|(point, it)| Some((point, it.as_ref().filter(|it| is_twin(it))?)));
        let mut known = state.published.iter().filter(|(_, it)| is_twin(it)).peekable();
        if coming.is_none() && known.peek().is_none() {
            return Ok(());
        }
        let mounts = self.table.read()?;
        if mounts.at(target).is_some() {
            return Ok(());
        }
        let live = known.find(|(point, _)| mounts.at(point).is_some());
        let Some((point, other)) = coming.or(live) else { return Ok(()) };
        Err(Error::new(
            ErrorKind::FailedPrecondition,
            format!(
                "PersistentVolumes {} and {} have the same volumeHandle {:?}, so the kubelet treats them as one volume, and {} is in use \
                 on this node at {}: give each PersistentVolume a volumeHandle of its own; both may name the same bucket",
                volume.name,
                other.name,
                volume.handle,
                other.name,
                point.display()
            ),
        ))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    /// Records that the target is published.
    pub fn published(self) {
        let mut state = self.claims.lock();
        if let Some(volume) = state.busy.get(&self.target).cloned().flatten() {
            state.published.insert(self.target.clone(), volume);
        }
    }

    /// Records that the target was unpublished.
    pub fn gone(self) {
        self.claims.lock().published.remove(&self.target);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claims.lock().busy.remove(&self.target);
    }
}

/// The fields of the kubelet's file beside a target (`vol_data.json`) that claims need.
#[derive(Deserialize)]
struct Note {
    #[serde(rename = "driverName")]
    driver: String,
    #[serde(rename = "volumeHandle")]
    handle: String,
    #[serde(rename = "volumeLifecycleMode", default)]
    lifecycle: String,
}

/// The lifecycle of an inline volume, which has no PersistentVolume.
const INLINE: &str = "Ephemeral";

/// The volume at a target of the kubelet, from its file. `None` without the file, and for another driver's volume, whose mount may look
/// like ours: nothing is refused because of it.
fn noted(target: &Path, kubelet: &Path) -> Option<Volume> {
    let of_path = OfPod::of_mount_point(target, kubelet)?.volume;
    let note = std::fs::read(target.with_file_name("vol_data.json")).ok()?;
    let Note { driver, handle, lifecycle } = serde_json::from_slice(&note).ok()?;
    let name = if lifecycle == INLINE { handle.clone() } else { of_path };
    (driver == DRIVER).then_some(Volume { name, handle })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBELET: &str = "/var/lib/kubelet";

    fn target(pod: &str) -> PathBuf {
        PathBuf::from(format!("{KUBELET}/pods/{pod}/volumes/kubernetes.io~csi/pv-1/mount"))
    }

    fn volume(name: &str) -> Volume {
        Volume { name: name.to_owned(), handle: format!("handle of {name}") }
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
        let claim = it.claims.publish(&target("a"), &volume("pv-1"), false).unwrap();
        let error = it.claims.publish(&target("a"), &volume("pv-1"), false).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Aborted);
        assert_eq!(it.claims.unpublish(&target("a")).unwrap_err().kind, ErrorKind::Aborted);
        it.claims.publish(&target("b"), &volume("pv-1"), false).unwrap();
        drop(claim);
        it.claims.unpublish(&target("a")).unwrap();
    }

    #[test]
    fn a_single_writer_has_one_live_target_whoever_mounted_it() {
        let it = Fixture::new();
        it.mounted(&[Path::new("/"), &target("a")]);
        let error = it.claims.publish(&target("b"), &volume("pv-1"), true).unwrap_err();
        assert_eq!(error.kind, ErrorKind::FailedPrecondition);
        assert!(error.to_string().contains("pods/a/"), "{error}");
        // Two that were mounted before the access mode was edited are refreshed.
        it.mounted(&[&target("a"), &target("b")]);
        it.claims.publish(&target("b"), &volume("pv-1"), true).unwrap();
        it.mounted(&[Path::new("/"), &target("a")]);
        // The same target again, another volume, and a volume of many writers are not a second target.
        it.claims.publish(&target("a"), &volume("pv-1"), true).unwrap();
        it.claims.publish(&target("b"), &volume("pv-2"), true).unwrap();
        it.claims.publish(&target("b"), &volume("pv-1"), false).unwrap();
        it.mounted(&[Path::new("/")]);
        it.claims.publish(&target("b"), &volume("pv-1"), true).unwrap();
    }

    #[test]
    fn a_single_writer_ignores_another_drivers_volume_of_the_same_name() {
        let it = Fixture::new();
        let line = format!("40 30 0:50 / {} rw,relatime - tmpfs tmpfs rw\n", target("a").display());
        std::fs::write(it.table.path(), line).unwrap();
        it.claims.publish(&target("b"), &volume("pv-1"), true).unwrap();
    }

    #[test]
    fn a_single_writer_ignores_an_inline_volume_of_the_same_name() {
        let it = Fixture::new();
        let inline = Volume { name: "csi-0f".to_owned(), handle: "csi-0f".to_owned() };
        it.claims.publish(&target("a"), &inline, false).unwrap().published();
        it.mounted(&[&target("a")]);
        it.claims.publish(&target("b"), &volume("pv-1"), true).unwrap();
        // A driver started anew reads in the kubelet's note that it is none of a PersistentVolume.
        let kubelet = Kubelet::new();
        let inline = r#"{"driverName":"s3.csi.scality.com","specVolID":"pv-1","volumeHandle":"csi-0f","volumeLifecycleMode":"Ephemeral"}"#;
        kubelet.notes("pv-1", inline);
        it.mounted(&[&kubelet.at("pv-1")]);
        let target = kubelet.directory.path().join("pods/b/volumes/kubernetes.io~csi/pv-1/mount");
        kubelet.claims(&it).publish(&target, &volume("pv-1"), true).unwrap();
    }

    #[test]
    fn a_single_writer_that_is_being_published_is_a_target_already() {
        let it = Fixture::new();
        let _claim = it.claims.publish(&target("a"), &volume("pv-1"), true).unwrap();
        let error = it.claims.publish(&target("b"), &volume("pv-1"), true).unwrap_err();
        assert_eq!(error.kind, ErrorKind::FailedPrecondition);
    }

    #[test]
    fn a_plain_target_is_remembered_while_it_is_mounted() {
        let it = Fixture::new();
        let (one, two) = (Path::new("/var/lib/kubelet/x/one"), Path::new("/var/lib/kubelet/x/two"));
        it.claims.publish(one, &volume("h"), true).unwrap().published();
        it.mounted(&[one]);
        assert!(it.claims.publish(two, &volume("h"), true).is_err());
        it.mounted(&[]);
        it.claims.publish(two, &volume("h"), true).unwrap();
        it.mounted(&[one]);
        it.claims.unpublish(one).unwrap().gone();
        it.claims.publish(two, &volume("h"), true).unwrap();
    }

    #[test]
    fn a_mount_table_that_can_not_be_read_is_no_licence() {
        let table = Table { path: "/nonexistent".into(), kubelet: KUBELET.into() };
        let error = Claims::new(Arc::new(table)).publish(&target("a"), &volume("pv-1"), true).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal);
    }

    /// Twins: two PersistentVolumes with one handle.
    fn twin(name: &str) -> Volume {
        Volume { name: name.to_owned(), handle: "same".to_owned() }
    }

    fn target_of(name: &str) -> PathBuf {
        PathBuf::from(format!("{KUBELET}/pods/{name}/volumes/kubernetes.io~csi/{name}/mount"))
    }

    #[test]
    fn a_second_volume_with_one_handle_is_refused_while_the_first_is_in_use() {
        let it = Fixture::new();
        let (first, second) = (target_of("pv-1"), target_of("pv-2"));
        let refused = || {
            let error = it.claims.publish(&second, &twin("pv-2"), false).unwrap_err();
            assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{error}");
            for word in
                ["PersistentVolumes pv-2 and pv-1", "\"same\"", "pods/pv-1/", "a volumeHandle of its own"]
            {
                assert!(error.to_string().contains(word), "{word}: {error}");
            }
        };
        let claim = it.claims.publish(&first, &twin("pv-1"), false).unwrap();
        refused();
        it.mounted(&[&first]);
        claim.published();
        refused();
        // The same volume again, and another handle.
        it.claims.publish(&target("b"), &twin("pv-1"), false).unwrap();
        it.claims.publish(&second, &volume("pv-2"), false).unwrap();
        // Both were mounted by a release that refused neither: they are refreshed.
        it.mounted(&[&first, &second]);
        it.claims.publish(&second, &twin("pv-2"), false).unwrap();
        it.mounted(&[]);
        it.claims.publish(&second, &twin("pv-2"), false).unwrap();
    }

    /// A kubelet's directory with notes of the kubelet.
    struct Kubelet {
        directory: tempfile::TempDir,
    }

    impl Kubelet {
        fn new() -> Self {
            Self { directory: tempfile::tempdir().unwrap() }
        }

        fn at(&self, name: &str) -> PathBuf {
            self.directory.path().join(target_of(name).strip_prefix(KUBELET).unwrap())
        }

        fn notes(&self, name: &str, text: &str) {
            std::fs::create_dir_all(self.at(name)).unwrap();
            std::fs::write(self.at(name).with_file_name("vol_data.json"), text).unwrap();
        }

        /// The claims of a driver that starts now.
        fn claims(&self, it: &Fixture) -> Claims {
            let kubelet = self.directory.path().to_owned();
            Claims::new(Arc::new(Table { path: it.table.path().to_owned(), kubelet }))
        }
    }

    #[test]
    fn a_driver_started_anew_knows_handles_from_the_kubelets_notes() {
        let kubelet = Kubelet::new();
        let at = |name| kubelet.at(name);
        kubelet.notes(
            "pv-1",
            r#"{"driverName":"s3.csi.scality.com","specVolID":"pv-1","volumeHandle":"same","volumeLifecycleMode":"Persistent"}"#,
        );
        kubelet.notes("pv-3", "half of a no");
        let it = Fixture::new();
        it.mounted(&[&at("pv-1"), &at("pv-3"), &at("pv-4")]);
        let anew = kubelet.claims(&it);
        let error = anew.publish(&at("pv-2"), &twin("pv-2"), false).unwrap_err();
        assert!(error.to_string().contains("PersistentVolumes pv-2 and pv-1"), "{error}");
        anew.publish(&at("pv-2"), &volume("pv-2"), false).unwrap();
        anew.unpublish(&at("pv-1")).unwrap().gone();
        anew.publish(&at("pv-2"), &twin("pv-2"), false).unwrap();
    }

    /// Goal: beside AWS's driver, whose mounts have the same type and name.
    #[test]
    fn a_driver_started_anew_takes_no_other_drivers_volume_for_a_twin() {
        let kubelet = Kubelet::new();
        kubelet.notes("pv-1", r#"{"driverName":"s3.csi.aws.com","volumeHandle":"same"}"#);
        let it = Fixture::new();
        it.mounted(&[&kubelet.at("pv-1")]);
        kubelet.claims(&it).publish(&kubelet.at("pv-2"), &twin("pv-2"), false).unwrap();
    }
}
