//! The stages of mounts in Mountpoint Pods (`mode full`). Enters: a request for a mount; a target that is about to be taken away. Leaves: the
//! stage that an engine gets; a wait until the bucket has what programs wrote, or an Event about what it lacks.
//!
//! Never here: a file of a stage.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use super::{Assigned, Node};
use crate::contract::comm::{self, Comm};
use crate::error::{Error, ErrorKind, Result};
use crate::mounter::mountinfo::Mounts;
use crate::mounter::stages::{Stage, Waiting};
use crate::mounter::targets::table;
use crate::mounter::{MountRequest, deaths};

/// The pause between two looks at a stage. Doubled, an unmount takes up to half a second longer.
const AGAIN: Duration = Duration::from_millis(250);

/// A target that is being taken away. The unmount of another one does not count on it to keep the engine.
pub(super) struct Leaving<'a>(&'a Node, &'a Path);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.leaving.lock().remove(self.1);
    }
}

impl Node {
    /// The stage for a new mount of a source: the noted one while its Mountpoint Pod lives, since an earlier engine may have left files there.
    ///
    /// # Errors
    /// `FailedPrecondition`: the volume had no `mode full` when its Mountpoint Pod was made, or the noted stage can't be had any more.
    pub(super) fn stage(&self, request: &MountRequest, pod: &Assigned<'_>) -> Result<Option<Stage>> {
        let volume = &request.volume;
        let refused = |why: String| Err(Error::new(ErrorKind::FailedPrecondition, why));
        let noted =
            self.notes.stage(pod.name).filter(|_| self.notes.uid(pod.name).as_deref() == Some(pod.uid));
        let (noted, wanted) = (noted.as_deref().and_then(Stage::read), self.stages.of(request));
        if let (Some(Stage::OfNode(name)), Some(Stage::OfPod)) = (&noted, &wanted) {
            return refused(format!(
                "files of PersistentVolume {volume} may wait in the stage {name} of this node, whose directory the driver does not know any \
                 more: set mountpointPod.stage.hostPath of the chart as before, or delete all pods of this node that use the volume"
            ));
        }
        let Some(stage) = wanted.map(|wanted| noted.unwrap_or(wanted)) else { return Ok(None) };
        // The engine makes the stage itself, in a volume of its pod.
        let comm = self.comm(pod);
        let of_pod = self.stages.path(&stage, &comm).and_then(|path| path.parent().map(Path::to_owned));
        if of_pod.is_some_and(|it| !it.is_dir()) {
            return refused(format!(
                "the Mountpoint Pod has no stage, because mount options of PersistentVolume {volume} had no 'mode full' when it was made: \
                 delete all pods of this node that use the volume, and the next one gets a Mountpoint Pod with a stage"
            ));
        }
        Ok(Some(stage))
    }

    /// Waits until the bucket has what was written through a target, if that is the last one of its source. After a limit an Event says what
    /// waits. A stage of the node keeps it for the next Mountpoint Pod; one of the pod would be lost with the pod. The caller keeps the guard until
    /// the target is taken away.
    ///
    /// # Errors
    /// `Unavailable`: files wait in a stage that goes with its Mountpoint Pod.
    pub(super) async fn stored<'a>(&'a self, target: &'a Path) -> Result<Leaving<'a>> {
        let (leaving, seen) = self.leave(target);
        let Some((name, others)) = self.source_of(target)? else { return Ok(leaving) };
        let stage = self.notes.stage(&name).as_deref().and_then(Stage::read);
        let Some((stage, uid)) = stage.zip(self.uid_of(&name)) else { return Ok(leaving) };
        if others.iter().any(|it| !seen.contains(it)) {
            return Ok(leaving);
        }
        let comm = Comm::on_host(&self.config.kubelet, &uid);
        let deadline = Instant::now() + self.config.stored_within;
        let waiting = loop {
            let waiting = self.stages.waiting(&stage, &comm);
            if waiting.as_ref().is_ok_and(|it| it.files == 0) || Instant::now() >= deadline {
                break waiting;
            }
            tokio::time::sleep(AGAIN).await;
        };
        let pod = Assigned { name: &name, uid: &uid };
        let (has_files, what) = match &waiting {
            Ok(waiting) => (waiting.files > 0, in_words(*waiting)),
            Err(error) => (true, format!("its stage can't be read ({error}), and files may wait there")),
        };
        if !matches!(waiting, Ok(Waiting { files: 0, kept: 0, .. })) {
            self.tell_of_waiting(target, &pod, &stage, (has_files, &what));
        }
        match &stage {
            Stage::OfPod if has_files => Err(Error::new(
                ErrorKind::Unavailable,
                format!("{what}, and Mountpoint Pod {name} is needed until then"),
            )),
            _ => Ok(leaving),
        }
    }

    /// Begins to take a target away. The targets that leave now, from before the table of mounts is read: one that is gone from the set later
    /// may still be in the table, and one that joins it sees this target.
    pub(super) fn leave<'a>(&'a self, target: &'a Path) -> (Leaving<'a>, BTreeSet<PathBuf>) {
        let mut all = self.leaving.lock();
        all.insert(target.to_owned());
        (Leaving(self, target), all.clone())
    }

    /// The Mountpoint Pod of a target, and the other targets of the same source.
    fn source_of(&self, target: &Path) -> Result<Option<(String, Vec<PathBuf>)>> {
        let (mounts, sources) = (table()?, comm::sources(&self.config.kubelet));
        let source = mounts.at(target).and_then(|bound| mounts.source_of(bound, &sources));
        let name = source.and_then(|source| source.point.file_name()?.to_str());
        Ok(match source.zip(name) {
            Some((source, name)) => {
                let others = mounts.references(source, &self.config.kubelet).map(|it| it.point.clone());
                Some((name.to_owned(), others.filter(|it| it != target).collect()))
            }
            // The engine died, and the next mount of the source has failed so far.
            None => match self.revivals.of_target(target) {
                Some(known) => Some(known),
                None => self.noted_source_of(target, &mounts)?,
            },
        })
    }

    /// The Mountpoint Pod of a target that was mounted before this driver or the node started anew: by the notes, that of its volume with files
    /// in a stage and without a target.
    fn noted_source_of(&self, target: &Path, mounts: &Mounts) -> Result<Option<(String, Vec<PathBuf>)>> {
        let of_kubelet = target.parent().and_then(Path::file_name).and_then(OsStr::to_str);
        let Some(volume) = of_kubelet else { return Ok(None) };
        let names = self.notes.with_stage_of(volume);
        let names =
            names.map_err(|error| Error::internal(format!("reading the notes of this node: {error}")))?;
        let is_unused = |name: &String| {
            let source = mounts.at(&comm::source(&self.config.kubelet, name));
            source.is_none_or(|it| mounts.references(it, &self.config.kubelet).next().is_none())
        };
        let has_files = |name: &String| {
            let stage = self.notes.stage(name).as_deref().and_then(Stage::read);
            stage.zip(self.uid_of(name)).is_some_and(|(stage, uid)| {
                let waiting = self.stages.waiting(&stage, &Comm::on_host(&self.config.kubelet, &uid));
                !waiting.is_ok_and(|it| it.files == 0)
            })
        };
        let found = names.into_iter().find(|name| is_unused(name) && has_files(name));
        Ok(found.map(|name| (name, Vec::new())))
    }

    fn tell_of_waiting(
        &self,
        target: &Path,
        pod: &Assigned<'_>,
        stage: &Stage,
        (has_files, what): (bool, &str),
    ) {
        let served = self.revivals.of(pod.name);
        let workload = served.as_ref().and_then(|it| it.targets.get(target)?.workload.as_ref());
        let volume = served.as_ref().map_or("", |it| &it.request.volume);
        let (pod, namespace) = (pod.name, &self.config.namespace);
        let log = format!("'kubectl -n {namespace} logs {pod}' says why");
        let why = match (stage, has_files) {
            (Stage::OfNode(_), false) => return,
            (Stage::OfPod, false) => {
                format!("PersistentVolume {volume}: {what}. That goes with Mountpoint Pod {pod}; {log}")
            }
            (Stage::OfPod, true) => format!(
                "PersistentVolume {volume}: {what}. This pod stays until the bucket has all; {log}. Deleting Mountpoint Pod {pod} gives the rest \
                 up"
            ),
            (Stage::OfNode(name), true) => format!(
                "PersistentVolume {volume}: {what}. That stays on this node, in the stage {name}, until a pod uses the volume here; {log}"
            ),
        };
        deaths::tell_of_files(&self.config.notices, workload, volume, why);
    }
}

/// The number and size of files that wait, and the number of files that could not be stored.
fn in_words(Waiting { files, bytes, kept }: Waiting) -> String {
    let waiting = match files {
        1 => format!("1 file with {bytes} bytes waits to be stored"),
        _ => format!("{files} files with {bytes} bytes wait to be stored"),
    };
    match (files, kept) {
        (_, 0) => waiting,
        (0, _) => format!("{kept} of its files could not be stored"),
        _ => format!("{waiting}, and {kept} could not be stored"),
    }
}
