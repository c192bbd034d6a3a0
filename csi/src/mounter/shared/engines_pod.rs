//! The engines pod of this node. Enters: the watch of the DaemonSet's pods. Leaves: the pod that takes mounts now, and mounters that start
//! there. While the API server is away, the node's note of the last pod serves.
//!
//! Never here: a source, a mount.

use std::path::{Path, PathBuf};

use tokio::sync::watch;
use tokio::time::Instant;

use super::shares::write_whole;
use crate::contract::comm::{self, Comm};
use crate::contract::engines_pod::{self, APP, Begin};
use crate::contract::message::{self, Answer};
use crate::error::{Error, ErrorKind, Result};
use crate::mounter::assignment::{MountpointPod, Step, View, wait};
use crate::mounter::comm_files::{CommFiles, one_line};
use crate::mounter::peer::{self, Processes};
use crate::mounter::source;

/// The note of the last pod, in the driver's directory on the node.
const NOTE: &str = "engines-pod";

/// An engines pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EnginesPod {
    /// The pod's name, or the DaemonSet's name while the API server is away.
    pub(super) name: String,
    /// The UID.
    pub(super) uid: String,
}

/// The engines pods of this node: one, and during a replacement also its successor.
#[derive(Clone, Debug)]
pub(super) struct EnginesPods {
    pods: watch::Receiver<View<MountpointPod>>,
    kubelet: PathBuf,
    namespace: String,
    processes: Processes,
}

impl EnginesPods {
    pub(super) fn new(
        pods: watch::Receiver<View<MountpointPod>>,
        kubelet: &Path,
        namespace: &str,
        processes: Processes,
    ) -> Self {
        Self { pods, kubelet: kubelet.to_owned(), namespace: namespace.to_owned(), processes }
    }

    /// Waits for the pod that takes mounts, and notes it.
    ///
    /// # Errors
    /// `Unavailable` at the deadline, with the reason why the pod takes no mounts.
    pub(super) async fn wait(&self, deadline: Instant) -> Result<EnginesPod> {
        let pod = wait(self.pods.clone(), deadline, |view| self.decide(view)).await?;
        self.remember(&pod.uid);
        Ok(pod)
    }

    /// The UID of the pod that takes mounts, if one is known now.
    pub(super) fn known(&self) -> Option<String> {
        match self.decide(&self.pods.borrow()) {
            Step::Ready(pod) => Some(pod.uid),
            Step::Wait(_) | Step::Fail(_) => None,
        }
    }

    /// Waits until another pod takes mounts than `last`, and puts its UID there. Returns `false` when the watch has ended.
    pub(super) async fn replaced(&mut self, last: &mut Option<String>) -> bool {
        loop {
            self.pods.mark_unchanged();
            let now = self.known();
            if now.is_some() && now != *last {
                *last = now;
                return true;
            }
            if self.pods.changed().await.is_err() {
                return false;
            }
        }
    }

    /// The reason why no mount can be made now.
    pub(super) fn fault(&self) -> Option<String> {
        match self.decide(&self.pods.borrow()) {
            Step::Ready(_) => None,
            Step::Wait(why) | Step::Fail(why) => Some(why.to_string()),
        }
    }

    /// Whether the pod that takes mounts has another template than the chart's `revision`; `None` while no such pod is known.
    pub(super) fn is_outdated(&self, revision: &str) -> Option<bool> {
        let uid = self.known()?;
        let view = self.pods.borrow();
        let pod = view.items.values().find(|pod| pod.uid == uid)?;
        Some(pod.revision.as_deref() != Some(revision))
    }

    /// Starts a mounter for a source, and returns the UID of the pod's processes. A mounter that waits or serves already stays.
    ///
    /// # Errors
    /// `Unavailable` with the pod's words; `FailedPrecondition` if a process outside the pod listens at its socket.
    pub(super) async fn begin(&self, pod: &EnginesPod, source: &str, deadline: Instant) -> Result<u32> {
        let failed = |error: std::io::Error| {
            let text = format!("asking the engines pod {} for a mounter: {error}", pod.name);
            Error::new(ErrorKind::Unavailable, text)
        };
        let files = CommFiles::open(&Comm::on_host(&self.kubelet, &pod.uid)).map_err(failed)?;
        let stream = source::dial(&files, Comm::ENGINES_SOCKET, deadline).await?;
        self.processes.check(&stream, &pod.uid, Comm::ENGINES_SOCKET)?;
        let user = peer::user(&stream).map_err(failed)?;
        let begin = Begin { source: source.to_owned() };
        let within = deadline.saturating_duration_since(Instant::now());
        let ask = move || {
            engines_pod::ask(&stream, &begin, within)?;
            message::read_answer(&stream, within)
        };
        match tokio::task::spawn_blocking(ask).await.map_err(Error::internal)?.map_err(failed)? {
            Some(Answer::Ready) => Ok(user),
            Some(Answer::Failed { error }) => Err(failed(std::io::Error::other(one_line(&error)))),
            None => Err(failed(std::io::ErrorKind::UnexpectedEof.into())),
        }
    }

    fn decide(&self, view: &View<MountpointPod>) -> Step<EnginesPod> {
        decide(view, &self.namespace, self.remembered())
    }

    fn note(&self) -> PathBuf {
        comm::plugin_directory(&self.kubelet).join(NOTE)
    }

    fn remember(&self, uid: &str) {
        if std::fs::read_to_string(self.note()).is_ok_and(|noted| noted == uid) {
            return;
        }
        let directory = comm::plugin_directory(&self.kubelet);
        if let Err(error) = write_whole(&directory, NOTE, uid.as_bytes()) {
            tracing::warn!("noting the engines pod in {}: {error}", self.note().display());
        }
    }

    /// The UID of the noted pod, unless the kubelet has removed its directory.
    fn remembered(&self) -> Option<String> {
        let uid = std::fs::read_to_string(self.note()).ok()?;
        let is_uid = !uid.is_empty() && uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        (is_uid && Comm::on_host(&self.kubelet, &uid).directory().is_dir()).then_some(uid)
    }
}

/// Decides on the pod that takes mounts: one that runs and is not being deleted. `noted` is the last one, which counts while the API server
/// is away and no pod is known.
fn decide(view: &View<MountpointPod>, namespace: &str, noted: Option<String>) -> Step<EnginesPod> {
    let serves = |pod: &MountpointPod| pod.phase == "Running" && !pod.leaving && pod.waits.is_none();
    if let Some((name, pod)) = view.items.iter().find(|(_, pod)| serves(pod)) {
        return Step::Ready(EnginesPod { name: name.clone(), uid: pod.uid.clone() });
    }
    let look = format!("kubectl -n {namespace} get pods -l app={APP}");
    let why = match (view.fault(), view.items.iter().next(), noted) {
        (Some(_), None, Some(uid)) => return Step::Ready(EnginesPod { name: APP.to_owned(), uid }),
        (Some(fault), None, None) => format!("the engines pod of this node is not known: {fault}"),
        (_, None, _) => format!("this node has no engines pod: is its DaemonSet {APP} there? ({look})"),
        (_, Some((name, pod)), _) => {
            let state = match (&pod.waits, pod.leaving) {
                (Some(waits), _) => format!("does not run: {waits}"),
                (None, true) => "is being removed, and its successor begins then".to_owned(),
                (None, false) => format!("is {}", pod.phase.to_lowercase()),
            };
            let why = pod.why.as_deref().filter(|_| pod.waits.is_none());
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            format!("the engines pod {name} {state}{why} ({look})")
        }
    };
    Step::Wait(Error::new(ErrorKind::Unavailable, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(synced: bool, pods: &[(&str, MountpointPod)]) -> View<MountpointPod> {
        let mut view = View::default();
        view.synced = synced;
        view.items.extend(pods.iter().map(|(name, pod)| ((*name).to_owned(), pod.clone())));
        view
    }

    fn pod(uid: &str, phase: &str) -> MountpointPod {
        MountpointPod { uid: uid.into(), phase: phase.into(), ..MountpointPod::default() }
    }

    fn decided(view: &View<MountpointPod>, noted: Option<&str>) -> std::result::Result<String, String> {
        match decide(view, "kube-system", noted.map(str::to_owned)) {
            Step::Ready(pod) => Ok(pod.uid),
            Step::Wait(why) | Step::Fail(why) => Err(why.to_string()),
        }
    }

    #[test]
    fn the_pod_that_runs_and_stays_takes_mounts() {
        let leaving = MountpointPod { leaving: true, ..pod("old", "Running") };
        let both = view(true, &[("e-1", leaving.clone()), ("e-2", pod("new", "Running"))]);
        assert_eq!(decided(&both, Some("old")).as_deref(), Ok("new"));
        let why = decided(&view(true, &[("e-1", leaving)]), Some("old")).unwrap_err();
        assert!(why.contains("is being removed"), "{why}");
        let waits = MountpointPod { waits: Some("CrashLoopBackOff".into()), ..pod("new", "Running") };
        let why = decided(&view(true, &[("e-2", waits)]), Some("new")).unwrap_err();
        assert!(why.contains("CrashLoopBackOff"), "{why}");
        assert!(decided(&view(true, &[]), Some("old")).unwrap_err().contains(APP));
    }

    #[test]
    fn the_note_of_the_next_pod_replaces_a_whole_one_at_once() {
        let kubelet = tempfile::tempdir().unwrap();
        let directory = comm::plugin_directory(kubelet.path());
        std::fs::create_dir_all(&directory).unwrap();
        for uid in ["old", "new"] {
            std::fs::create_dir_all(Comm::on_host(kubelet.path(), uid).directory()).unwrap();
        }
        let (_tell, pods) = watch::channel(view(false, &[]));
        let pods = EnginesPods::new(pods, kubelet.path(), "kube-system", Processes::default());
        pods.remember("old");
        // A second name of the first note: a write into its file would show here, and a driver that ends in it would leave half a note.
        let earlier = directory.join("earlier");
        std::fs::hard_link(pods.note(), &earlier).unwrap();
        pods.remember("new");
        assert_eq!(pods.known().as_deref(), Some("new"));
        assert_eq!(std::fs::read_to_string(&earlier).unwrap(), "old");
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 2, "nothing temporary is left");
    }

    #[test]
    fn a_noted_pod_takes_mounts_while_the_api_server_says_nothing() {
        assert_eq!(decided(&view(false, &[]), Some("old")).as_deref(), Ok("old"));
        let why = decided(&view(false, &[]), None).unwrap_err();
        assert!(why.contains("has not answered yet"), "{why}");
    }
}
