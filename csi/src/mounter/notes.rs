//! A node's notes on its Mountpoint Pods: the UID of each pod with a mounted source, a digest of where the data is that the source serves, and
//! whether its keys are those of a Secret, and the place of its stage with the volume. A restarted driver finds the comm directory of a source by the UID, without the API server, and knows
//! by the rest which workloads the source may serve, and with which keys. Enters: names and UIDs from the API server, digests. Leaves: the same.
//!
//! The files are in the driver's own directory on the node, to which no pod can write. In a pod's volume, a workload could plant a note,
//! and get the credentials of another pod with the next refresh.
//!
//! Never here: a credential, a path that a pod can reach.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use crate::contract::comm;

/// The third line of a note whose source has credentials of a Secret.
const OF_SECRET: &str = "secret";

/// The notes of this node.
#[derive(Clone, Debug)]
pub struct Notes(PathBuf);

impl Notes {
    /// The notes of the driver below this kubelet's directory.
    #[must_use]
    pub fn of(kubelet: &Path) -> Self {
        Self(comm::plugin_directory(kubelet).join("pods"))
    }

    /// Notes a Mountpoint Pod, whole or not at all. The lines about its source stay.
    ///
    /// # Errors
    /// An error of the file system; a name that is not valid for a file.
    pub fn remember(&self, mountpoint_pod: &str, uid: &str) -> io::Result<()> {
        if self.uid(mountpoint_pod).as_deref() == Some(uid) {
            return Ok(());
        }
        self.write(mountpoint_pod, uid)
    }

    /// Remembers a Mountpoint Pod, where the data is that its source serves from now on, whether the keys are those of a Secret, and the place of
    /// its stage and its volume; no stage is an empty word.
    ///
    /// # Errors
    /// The same as [`Self::remember`].
    pub fn remember_source(
        &self,
        mountpoint_pod: &str,
        uid: &str,
        place: &str,
        of_secret: bool,
        (stage, volume): (&str, &str),
    ) -> io::Result<()> {
        let keys = if of_secret { OF_SECRET } else { "" };
        self.write(mountpoint_pod, &format!("{uid}\n{place}\n{keys}\n{stage}\n{volume}"))
    }

    fn write(&self, mountpoint_pod: &str, note: &str) -> io::Result<()> {
        let path = self.file(mountpoint_pod)?;
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let temporary = self.0.join(unfinished(mountpoint_pod));
        let mut file = File::create(&temporary)?;
        file.write_all(note.as_bytes())?;
        std::fs::rename(&temporary, path)
    }

    /// The noted UID of a Mountpoint Pod.
    #[must_use]
    pub fn uid(&self, mountpoint_pod: &str) -> Option<String> {
        self.line(mountpoint_pod, 0)
    }

    /// The place of its source's data; `None` if no source is noted, or a release without such notes mounted it.
    #[must_use]
    pub fn place(&self, mountpoint_pod: &str) -> Option<String> {
        self.line(mountpoint_pod, 1)
    }

    /// Whether its source was mounted with the credentials of a Secret, according to the note.
    #[must_use]
    pub fn is_of_secret(&self, mountpoint_pod: &str) -> bool {
        self.line(mountpoint_pod, 2).as_deref() == Some(OF_SECRET)
    }

    /// The place of the stage that its source was mounted with.
    #[must_use]
    pub fn stage(&self, mountpoint_pod: &str) -> Option<String> {
        self.line(mountpoint_pod, 3)
    }

    /// The Mountpoint Pods whose source has a stage and is of this volume.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn with_stage_of(&self, volume: &str) -> io::Result<Vec<String>> {
        let has = |name: &String| self.stage(name).is_some() && self.line(name, 4).as_deref() == Some(volume);
        Ok(self.all()?.into_keys().filter(has).collect())
    }

    fn line(&self, mountpoint_pod: &str, number: usize) -> Option<String> {
        let note = std::fs::read_to_string(self.file(mountpoint_pod).ok()?).ok()?;
        line_of(&note, number)
    }

    /// The UIDs of all noted pods, by name.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn all(&self) -> io::Result<BTreeMap<String, String>> {
        let entries = match std::fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            entries => entries?,
        };
        let mut all = BTreeMap::new();
        for entry in entries {
            let Some(name) = entry?.file_name().into_string().ok().filter(|name| is_name(name)) else {
                continue;
            };
            match std::fs::read_to_string(self.0.join(&name)) {
                Ok(note) => all.extend(line_of(&note, 0).map(|uid| (name, uid))),
                // The note was removed meanwhile, or is not text.
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// Removes the note of a Mountpoint Pod; it may be missing.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn forget(&self, mountpoint_pod: &str) -> io::Result<()> {
        match std::fs::remove_file(self.file(mountpoint_pod)?) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes all notes but the needed ones, which a driver that ended before its mount may have left. Unfinished notes of needed pods
    /// stay.
    pub fn keep(&self, needed: impl Fn(&str) -> bool) {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
            if !needed(of_unfinished(&name).unwrap_or(&name))
                && let Err(error) = std::fs::remove_file(self.0.join(&name))
            {
                tracing::warn!("forgetting Mountpoint Pod {name}: {error}");
            }
        }
    }

    fn file(&self, mountpoint_pod: &str) -> io::Result<PathBuf> {
        if is_name(mountpoint_pod) {
            return Ok(self.0.join(mountpoint_pod));
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{mountpoint_pod:?} is not a pod's name")))
    }
}

fn line_of(note: &str, number: usize) -> Option<String> {
    note.lines().nth(number).filter(|line| is_name(line)).map(str::to_owned)
}

/// The temporary file of an unfinished note. A pod's name has no leading dot.
fn unfinished(mountpoint_pod: &str) -> String {
    format!(".{mountpoint_pod}.new")
}

fn of_unfinished(file: &str) -> Option<&str> {
    file.strip_prefix('.')?.strip_suffix(".new")
}

/// Whether a text has only characters of Kubernetes' names and UIDs, and so can't be a path to another directory.
fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_pod_is_remembered_until_it_is_forgotten() {
        let kubelet = tempfile::tempdir().unwrap();
        let notes = Notes::of(kubelet.path());
        assert_eq!(notes.uid("mp-1"), None);
        notes.remember("mp-1", "uid-1").unwrap();
        notes.remember("mp-1", "uid-2").unwrap();
        notes.remember("mp-2", "uid-3").unwrap();
        assert_eq!(Notes::of(kubelet.path()).uid("mp-1").as_deref(), Some("uid-2"));
        notes.forget("mp-1").unwrap();
        notes.forget("mp-1").unwrap();
        assert_eq!(notes.uid("mp-1"), None);
        std::fs::write(notes.0.join(".mp-3.new"), "half").unwrap();
        notes.remember("mp-4", "uid-4").unwrap();
        notes.keep(|name| name == "mp-2");
        assert_eq!(std::fs::read_dir(&notes.0).unwrap().count(), 1);
        std::fs::write(notes.0.join(".mp-5.new"), "").unwrap();
        notes.keep(|name| name == "mp-2" || name == "mp-5");
        assert_eq!(std::fs::read_dir(&notes.0).unwrap().count(), 2, "another thread writes it");
        assert_eq!(notes.all().unwrap(), [("mp-2".to_owned(), "uid-3".to_owned())].into());
        assert_eq!(notes.uid("mp-2").as_deref(), Some("uid-3"));
        assert_eq!(notes.0.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_sources_place_and_keys_are_remembered_with_its_pod_only() {
        let kubelet = tempfile::tempdir().unwrap();
        let notes = Notes::of(kubelet.path());
        notes.remember("mp-1", "uid-1").unwrap();
        assert_eq!(notes.place("mp-1"), None, "as an older release left it");
        notes.remember_source("mp-1", "uid-1", "here", true, ("", "pv-1")).unwrap();
        notes.remember("mp-1", "uid-1").unwrap();
        assert_eq!((notes.uid("mp-1"), notes.place("mp-1")), (Some("uid-1".into()), Some("here".into())));
        assert!(notes.is_of_secret("mp-1"));
        assert_eq!(notes.stage("mp-1"), None);
        notes.remember_source("mp-1", "uid-1", "there", false, ("pod", "pv-1")).unwrap();
        assert_eq!(notes.place("mp-1").as_deref(), Some("there"));
        assert!(!notes.is_of_secret("mp-1"));
        assert_eq!(notes.stage("mp-1").as_deref(), Some("pod"));
        assert_eq!(notes.with_stage_of("pv-1").unwrap(), ["mp-1"]);
        assert!(notes.with_stage_of("pv-2").unwrap().is_empty());
        notes.remember_source("mp-1", "uid-1", "there", true, ("", "pv-1")).unwrap();
        notes.remember("mp-1", "uid-2").unwrap();
        assert!(!notes.is_of_secret("mp-1"));
        assert_eq!((notes.uid("mp-1"), notes.place("mp-1")), (Some("uid-2".into()), None));
    }

    #[test]
    fn neither_a_name_nor_a_uid_leads_elsewhere() {
        let kubelet = tempfile::tempdir().unwrap();
        let notes = Notes::of(kubelet.path());
        for name in ["", ".", "..", "../x", "a/b", ".mp"] {
            assert_eq!(
                notes.remember(name, "uid").unwrap_err().kind(),
                io::ErrorKind::InvalidInput,
                "{name}"
            );
            assert_eq!(notes.uid(name), None);
        }
        notes.remember("mp-1", "../../../etc").unwrap();
        assert_eq!(notes.uid("mp-1"), None);
    }
}
