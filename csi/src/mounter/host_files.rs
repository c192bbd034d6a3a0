//! The files on the node of mounts whose engine systemd runs: credentials and a cache, in the driver's directory. Enters: credentials, a
//! target. Leaves: files that the engine reads. Removes the files of targets that are no longer mounted.
//!
//! The credential files have the paths of release 1.2, unless those are not unique. Files of release 1.2 are kept up to date
//! beside ours, so engines of that release get new credentials.
//!
//! Never here: a mount, a credential in an error or a log.

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use mountpoint::sync::Arc;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use super::MountRequest;
use super::comm_files::CredentialFiles;
use super::credentials::{self, Profile};
use super::mountinfo::Mounts;
use crate::contract::{comm, digest, target};
use crate::error::{Error, Result};

/// Hexadecimal digits of a target's key: enough that the keys of a node's targets differ.
const KEY_DIGITS: usize = 32;

/// A short name of a target, for a unit or a directory.
pub(super) fn key(target: &Path) -> String {
    let mut digest = digest(&[&target.to_string_lossy()]);
    digest.truncate(KEY_DIGITS);
    digest
}

/// The driver's directory on this node.
#[derive(Clone, Debug)]
pub(super) struct HostFiles {
    kubelet: PathBuf,
    directory: PathBuf,
    /// A lock that is held for reading while a mount is being made, which is not in the mount table yet; for writing while unused files are
    /// removed.
    making: Arc<RwLock<()>>,
}

impl HostFiles {
    /// The files of the driver below this kubelet's directory, whose path has no symbolic link.
    pub(super) fn of(kubelet: &Path) -> Self {
        Self {
            kubelet: kubelet.to_owned(),
            directory: comm::plugin_directory(kubelet),
            making: Arc::default(),
        }
    }

    /// A guard for the time in which a mount is being made: unused files are not removed meanwhile.
    pub(super) async fn making(&self) -> OwnedRwLockReadGuard<()> {
        Arc::clone(&self.making).read_owned().await
    }

    /// A guard for a time in which no mount is being made; `None` if one is.
    pub(super) fn alone(&self) -> Option<OwnedRwLockWriteGuard<()>> {
        Arc::clone(&self.making).try_write_owned().ok()
    }

    /// The directory; its path is the same for the driver and the host.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes the request's credentials, if it has any, for the engine of this workload and volume.
    ///
    /// # Errors
    /// The same as [`Profile::new`] and [`Profile::write`].
    pub(super) fn write_keys(&self, request: &MountRequest) -> Result<Option<Profile>> {
        let Some(keys) = &request.credentials else { return Ok(None) };
        let profile = Profile::new(&request.workload_uid, &request.handle)?;
        let files = CredentialFiles::open(&self.directory)
            .map_err(|error| credentials::failed(&self.directory, &error))?;
        profile.write(&files, keys)?;
        Ok(Some(profile))
    }

    /// Creates the directory for the cache of a target's engine, for its owner alone. The cache of an earlier engine is used again.
    ///
    /// # Errors
    /// `Internal`: the directory can't be created.
    pub(super) fn cache(&self, target: &Path) -> Result<PathBuf> {
        let path = self.caches().join(key(target));
        private(&path, "cache directory")?;
        Ok(path)
    }

    /// Creates the directory in which engines record uploads in progress, for its owner alone. All engines of the node share it: an engine
    /// that crashed leaves its records there, and the next mount of that bucket aborts these uploads.
    ///
    /// # Errors
    /// `Internal`: the directory can't be created.
    pub(super) fn state(&self) -> Result<PathBuf> {
        let path = self.directory.join("state");
        private(&path, "directory for notes of uploads")?;
        Ok(path)
    }

    /// Removes the files of an unmounted target's engine. The workload's credentials stay while another of its volumes is mounted.
    pub(super) fn forget(&self, target: &Path, mounts: &Mounts) {
        self.remove_cache(&self.caches().join(key(target)));
        let Some(gone) = target::workload(target, &self.kubelet) else { return };
        if !self.workloads(mounts).contains(&gone) {
            self.remove_keys(|file| credentials::is_of_pod(file, &gone));
        }
    }

    /// Removes the files of a failed mount, but not those of the workload's other volumes, which may be in the making without a mounted
    /// target.
    pub(super) fn forget_failed(&self, request: &MountRequest, target: &Path) {
        self.remove_cache(&self.caches().join(key(target)));
        if let Ok(profile) = Profile::new(&request.workload_uid, &request.handle) {
            self.remove_keys(|file| profile.owns(file));
        }
    }

    /// Removes files that no mounted target needs, which a driver that ended early has left. The caller holds [`Self::alone`].
    pub(super) fn sweep(&self, mounts: &Mounts) {
        let used: BTreeSet<_> = mounts.buckets().map(key).collect();
        for entry in std::fs::read_dir(self.caches()).into_iter().flatten().flatten() {
            if !used.contains(entry.file_name().to_string_lossy().as_ref()) {
                self.remove_cache(&entry.path());
            }
        }
        let workloads = self.workloads(mounts);
        self.remove_keys(|file| {
            let is_used = workloads.iter().any(|uid| credentials::is_of_pod(file, uid));
            credentials::is_of_a_profile(file) && !is_used
        });
    }

    fn caches(&self) -> PathBuf {
        self.directory.join("cache")
    }

    /// UIDs of workloads with a mounted volume.
    fn workloads(&self, mounts: &Mounts) -> BTreeSet<String> {
        mounts.buckets().filter_map(|point| target::workload(point, &self.kubelet)).collect()
    }

    fn remove_cache(&self, path: &Path) {
        absent("the cache", path, std::fs::remove_dir_all(path));
    }

    fn remove_keys(&self, unused: impl Fn(&str) -> bool) {
        for entry in std::fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(&unused) {
                absent("keys in", &entry.path(), std::fs::remove_file(entry.path()));
            }
        }
    }
}

fn private(path: &Path, what: &str) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| Error::internal(format!("making the {what} {}: {error}", path.display())))
}

fn absent(what: &str, path: &Path, removed: io::Result<()>) {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("removing {what} {}: {error}", path.display());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::mounter::Credentials;

    fn home() -> (HostFiles, PathBuf, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let kubelet = folder.path().canonicalize().unwrap();
        let files = HostFiles::of(&kubelet);
        std::fs::create_dir_all(files.directory()).unwrap();
        (files, kubelet, folder)
    }

    fn target(kubelet: &Path, uid: &str, volume: &str) -> PathBuf {
        kubelet.join("pods").join(uid).join("volumes/kubernetes.io~csi").join(volume).join("mount")
    }

    fn request(uid: &str, handle: &str) -> MountRequest {
        MountRequest {
            volume: "pv".into(),
            handle: handle.into(),
            workload_uid: uid.into(),
            workload: None,
            target: PathBuf::new(),
            read_only: false,
            source_read_only: false,
            bucket: "bucket".into(),
            place: "place".into(),
            args: Vec::new(),
            env: Vec::new(),
            unusable: None,
            credentials: Some(Credentials {
                access_key_id: "AKIA".into(),
                secret_access_key: "canary".into(),
                session_token: None,
            }),
            of_secret: false,
            token: None,
            agent: None,
        }
    }

    fn table(folder: &Path, points: &[&Path]) -> Mounts {
        let path = folder.join("table");
        let line = |point: &&Path| {
            format!("90 22 0:50 / {} rw - fuse mountpoint-s3 rw,user_id=0\n", point.display())
        };
        std::fs::write(&path, points.iter().map(line).collect::<String>()).unwrap();
        Mounts::read_from(&path).unwrap()
    }

    fn names(files: &HostFiles) -> Vec<String> {
        let entries = std::fs::read_dir(files.directory()).unwrap();
        let mut names: Vec<_> = entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn keys_lie_where_release_1_2_put_them_and_a_cache_is_its_owners_alone() {
        let (files, kubelet, _folder) = home();
        files.write_keys(&request("u1", "handle")).unwrap().unwrap();
        assert_eq!(names(&files), ["u1-handle-s3-csi-config", "u1-handle-s3-csi-credentials"]);
        let cache = files.cache(&target(&kubelet, "u1", "a")).unwrap();
        assert_eq!(cache.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(files.cache(&target(&kubelet, "u1", "a")).unwrap(), cache);
        assert_ne!(files.cache(&target(&kubelet, "u1", "b")).unwrap(), cache);
        assert_eq!(files.state().unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert!(
            files.write_keys(&MountRequest { credentials: None, ..request("u2", "h") }).unwrap().is_none()
        );
    }

    #[test]
    fn keys_and_cache_go_with_the_last_volume_of_their_workload() {
        let (files, kubelet, folder) = home();
        let (a, b) = (target(&kubelet, "u1", "a"), target(&kubelet, "u1", "b"));
        for (uid, handle) in [("u1", "a"), ("u1", "b"), ("u10", "c")] {
            files.write_keys(&request(uid, handle)).unwrap();
        }
        std::fs::write(files.directory().join(".u1-a-s3-csi-credentials.new"), "half").unwrap();
        std::fs::write(files.directory().join("csi.sock"), "").unwrap();
        let cache = files.cache(&a).unwrap();
        std::fs::write(cache.join("block"), "1").unwrap();
        files.forget(&a, &table(folder.path(), &[&b]));
        assert!(!cache.exists());
        assert!(names(&files).contains(&"u1-a-s3-csi-credentials".to_owned()), "another volume is mounted");
        files.forget(&b, &table(folder.path(), &[]));
        assert_eq!(names(&files), ["cache", "csi.sock", "u10-c-s3-csi-config", "u10-c-s3-csi-credentials"]);
    }

    #[test]
    fn a_mount_that_failed_takes_its_own_keys_and_cache_away_and_no_others() {
        let (files, kubelet, _folder) = home();
        for (uid, handle) in [("u1", "a/b"), ("u1", "a:b"), ("u1", "a")] {
            files.write_keys(&request(uid, handle)).unwrap();
        }
        let (target, beside) = (target(&kubelet, "u1", "a"), target(&kubelet, "u1", "b"));
        let caches = [files.cache(&target).unwrap(), files.cache(&beside).unwrap()];
        files.forget_failed(&request("u1", "a/b"), &target);
        assert!(!caches[0].exists() && caches[1].exists());
        let left = names(&files);
        assert_eq!(left.len(), 5, "two files of each other volume, and the caches: {left:?}");
        assert!(left.contains(&"u1-a-s3-csi-credentials".to_owned()));
        files.forget_failed(&request("u1", "a:b"), &beside);
        assert_eq!(names(&files), ["cache", "u1-a-s3-csi-config", "u1-a-s3-csi-credentials"]);
    }

    #[tokio::test]
    async fn nothing_is_swept_while_a_mount_is_made() {
        let (files, _kubelet, _folder) = home();
        let (one, two) = (files.clone().making().await, files.making().await);
        assert!(files.alone().is_none());
        drop(one);
        assert!(files.alone().is_none());
        drop(two);
        assert!(files.alone().is_some());
    }

    #[test]
    fn what_a_driver_left_that_ended_too_early_is_swept() {
        let (files, kubelet, folder) = home();
        let (used, unused) = (target(&kubelet, "u1", "a"), target(&kubelet, "u2", "a"));
        let caches = [files.cache(&used).unwrap(), files.cache(&unused).unwrap()];
        for uid in ["u1", "u2"] {
            files.write_keys(&request(uid, "a")).unwrap();
        }
        std::fs::write(files.directory().join("csi.sock"), "").unwrap();
        std::fs::write(files.state().unwrap().join("upload"), "").unwrap();
        files.sweep(&table(folder.path(), &[&used]));
        assert!(caches[0].exists() && !caches[1].exists());
        let left = ["cache", "csi.sock", "state", "u1-a-s3-csi-config", "u1-a-s3-csi-credentials"];
        assert_eq!(names(&files), left);
        assert!(files.directory().join("state/upload").exists(), "a mount of its bucket may need it yet");
    }
}
