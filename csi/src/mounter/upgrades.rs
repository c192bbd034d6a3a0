//! Asks engines to leave their mounts, for upgrades in place. Enters: the watch of the pods, with the reconciler's attempts. Leaves: the
//! file `mount.handover`, and a request to the engine.
//!
//! Never here: a patch of a pod. The exit status of the container tells the reconciler that an engine has left.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use mountpoint::telemetry::engine_lines::{Answer, HAND_OVER, Hello, Lines, Request, VERSION, read};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::assignment::{MountpointPod, View};
use super::comm_files::CommFiles;
use super::peer::Processes;
use super::received::Receiving;
use crate::contract::comm::Comm;
use crate::contract::upgrade::{Stage, WRITERS_WITHIN};
use crate::error::{Error, ErrorKind, Result};

/// Time limit of an engine's answer, beyond the time for its writers. Doubled, an engine that hangs keeps a connection for twice as long.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// Largest age of a request that is passed on: ten seconds, and five for clocks that differ. Half a minute after its request the reconciler
/// concludes that the engine goes on; an engine that left later would stop its readers for nothing.
const ASKED_WITHIN: SignedDuration = SignedDuration::from_secs(15);

/// Passes the reconciler's requests on to engines, until the watch of the pods ends.
pub(super) async fn run(
    kubelet: PathBuf,
    processes: Processes,
    mut pods: watch::Receiver<View<MountpointPod>>,
) {
    let (mut asked, mut asking) = (BTreeMap::new(), JoinSet::new());
    loop {
        let steps = steps(&pods.borrow_and_update(), &mut asked, Timestamp::now());
        for step in steps {
            match step {
                Step::Ask { name, uid } => {
                    let (comm, processes) = (Comm::on_host(&kubelet, &uid), processes.clone());
                    asking.spawn(async move {
                        match ask(&comm, &uid, &processes, WRITERS_WITHIN).await {
                            Ok(()) => tracing::info!(
                                "the engine of Mountpoint Pod {name} left its mount to the next image"
                            ),
                            Err(why) => {
                                tracing::warn!("the upgrade of Mountpoint Pod {name} is held back: {why}");
                            }
                        }
                    });
                }
                Step::Forget { uid } => {
                    // The kubelet may have removed the directory.
                    let files = CommFiles::open(&Comm::on_host(&kubelet, &uid));
                    let _ = files.and_then(|files| files.forget_hand_over());
                }
            }
        }
        tokio::select! {
            changed = pods.changed() => if changed.is_err() { return },
            Some(_) = asking.join_next(), if !asking.is_empty() => {}
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Ask { name: String, uid: String },
    Forget { uid: String },
}

/// The next steps for these pods. `asked` has the attempts seen so far, by the pod's UID; `None` for a pod whose last request is forgotten.
fn steps(
    pods: &View<MountpointPod>,
    asked: &mut BTreeMap<String, Option<Timestamp>>,
    now: Timestamp,
) -> Vec<Step> {
    let mut steps = Vec::new();
    for (name, pod) in &pods.items {
        let uid = pod.uid.clone();
        match pod.upgrade.as_ref().map(|attempt| (attempt.stage, attempt.since)) {
            Some((Stage::Asked, since)) => {
                if asked.insert(uid.clone(), Some(since)) == Some(Some(since)) {
                    continue;
                }
                let age = now.duration_since(since);
                if age <= ASKED_WITHIN {
                    steps.push(Step::Ask { name: name.clone(), uid });
                } else {
                    tracing::warn!(
                        "Mountpoint Pod {name} gets no other image now: that was asked for {} s ago",
                        age.as_secs()
                    );
                }
            }
            Some((Stage::Patched | Stage::Runs, _)) => {}
            Some((Stage::HeldBack | Stage::TakenBack, _)) | None => {
                // A pod that this process sees for the first time may have a request of the driver before.
                if asked.insert(uid.clone(), None) != Some(None) {
                    steps.push(Step::Forget { uid });
                }
            }
        }
    }
    asked.retain(|uid, _| pods.items.values().any(|pod| pod.uid == *uid));
    steps
}

/// Asks the engine of a pod to leave its mount to the next container. Files being written may take the time `within`. Writes the file
/// `mount.handover` first, because the mounter must find it when the engine ends. The file stays if the engine could not be asked: an
/// engine that was asked before may have left.
///
/// # Errors
/// `Unavailable` if the engine goes on or can't be asked; `FailedPrecondition` if another pod's process has its socket.
pub async fn ask(comm: &Comm, uid: &str, processes: &Processes, within: Duration) -> Result<()> {
    let failed = |error: io::Error| Error::new(ErrorKind::Unavailable, format!("asking its engine: {error}"));
    let files = CommFiles::open(comm).map_err(failed)?;
    files.ask_hand_over().map_err(failed)?;
    let stream = files.connect(Comm::ENGINE_SOCKET).map_err(failed)?;
    let (stream, _ended) = Receiving::new(stream, None).map_err(failed)?;
    processes.check_process(stream.peer(), uid, Comm::ENGINE_SOCKET)?;
    let mut lines = Lines::new(stream);
    let answer = timeout(within + ANSWERS_WITHIN, leaves(&mut lines, within)).await;
    let late = || failed(io::Error::from(io::ErrorKind::TimedOut));
    match answer.map_err(|_| late())?.map_err(failed)? {
        None => Ok(()),
        Some(_) => {
            files.forget_hand_over().map_err(failed)?;
            // The engine's own words may name objects.
            Err(Error::new(ErrorKind::Unavailable, "its engine goes on, and its log says why"))
        }
    }
}

/// Sends the request. Returns the answer of an engine that goes on, and `None` after the end of one that leaves.
async fn leaves(lines: &mut Lines<Receiving>, within: Duration) -> io::Result<Option<Answer>> {
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    lines.write(&Hello { version: VERSION, registers: false, ids: None }).await?;
    let hello = lines.read().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    read::<Hello>(&hello).map_err(invalid)?;
    let within = u32::try_from(within.as_secs()).ok();
    let request = Request { number: 1, request: HAND_OVER.to_owned(), within, ..Request::default() };
    lines.write(&request).await?;
    match lines.read().await {
        Ok(Some(line)) => read(&line).map(Some).map_err(invalid),
        // The engine has ended.
        Ok(None) | Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::upgrade::Attempt;

    #[test]
    fn each_attempt_is_asked_for_once_and_forgotten_when_it_is_over() {
        let mut asked = BTreeMap::new();
        let mut after = |attempt: Option<(Stage, i64)>, now: i64| {
            let attempt = attempt.map(|(stage, second)| Attempt {
                stage,
                from: "i:1".into(),
                to: "i:2".into(),
                since: Timestamp::from_second(second).unwrap(),
                restarts: 0,
            });
            let pod = MountpointPod { uid: "u".into(), upgrade: attempt, ..MountpointPod::default() };
            let mut view = View::default();
            view.items.insert("mp-1".to_owned(), pod);
            steps(&view, &mut asked, Timestamp::from_second(now).unwrap())
        };
        let ask = || vec![Step::Ask { name: "mp-1".into(), uid: "u".into() }];
        let forget = || vec![Step::Forget { uid: "u".into() }];
        assert_eq!(after(None, 0), forget(), "a driver before may have asked");
        assert_eq!(after(None, 0), []);
        assert_eq!(after(Some((Stage::Asked, 1)), 1), ask());
        assert_eq!(after(Some((Stage::Asked, 1)), 2), []);
        assert_eq!(after(Some((Stage::HeldBack, 31)), 31), forget());
        assert_eq!(after(Some((Stage::Asked, 331)), 346), ask());
        assert_eq!(after(Some((Stage::Patched, 350)), 350), [], "the mounter may look again");
        assert_eq!(after(Some((Stage::Runs, 352)), 352), [], "the engine may refuse yet");
        assert_eq!(after(None, 360), forget());
        assert_eq!(after(None, 361), []);
        assert_eq!(after(Some((Stage::Asked, 400)), 416), [], "its engine would leave too late");
        assert_eq!(after(Some((Stage::Asked, 400)), 401), [], "it is not asked after all");
        assert_eq!(after(Some((Stage::Asked, 700)), 690), ask(), "this clock is late");
    }

    /// Goal: an image that goes on after another one refused has its usual time to serve.
    #[test]
    fn a_driver_that_starts_anew_withdraws_what_the_one_before_asked_for() {
        for last in [Stage::Runs, Stage::TakenBack] {
            let mut asked = BTreeMap::new();
            let mut after = |stage| {
                let since = Timestamp::UNIX_EPOCH;
                let attempt = Attempt { stage, from: "i:1".into(), to: "i:2".into(), since, restarts: 0 };
                let pod =
                    MountpointPod { uid: "u".into(), upgrade: Some(attempt), ..MountpointPod::default() };
                let mut view = View::default();
                view.items.insert("mp-1".to_owned(), pod);
                steps(&view, &mut asked, Timestamp::UNIX_EPOCH)
            };
            if last == Stage::Runs {
                assert_eq!(after(last), [], "the mounter may look again");
            }
            assert_eq!(after(Stage::TakenBack), [Step::Forget { uid: "u".into() }], "{last:?}");
            assert_eq!(after(Stage::TakenBack), [], "once");
        }
    }
}
