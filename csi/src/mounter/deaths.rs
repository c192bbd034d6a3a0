//! Notices for workloads whose engine died or whose bucket is gone. Enters: a dead target that is mounted again, a target whose engine is
//! restarted on its mount, or one whose store reported a missing bucket. Leaves: a [`Notice`] for its workload.
//!
//! Never here: the writing of an Event; a wait for its writer.

use k8s_openapi::jiff::Timestamp;
use tokio::sync::mpsc;

use crate::contract::reason::Reason;
use crate::events::{Notice, WorkloadRef};

/// The channel to the writer of Events; `None`: notices are only logged.
pub type Notices = Option<mpsc::Sender<Notice>>;

/// Tells a workload that its engine died, and that `server` has mounted its volume again. `words` are the engine's last message.
pub(super) fn tell(
    notices: &Notices,
    workload: Option<&WorkloadRef>,
    volume: &str,
    server: &str,
    words: Option<&str>,
) {
    send(notices, workload, Reason::VolumeEngineDied, volume, note(volume, server, words, Timestamp::now()));
}

/// Tells a workload that its engine died, and that `server` starts the next one on the same mount.
pub(super) fn tell_of_restart(
    notices: &Notices,
    workload: Option<&WorkloadRef>,
    volume: &str,
    server: &str,
    words: Option<&str>,
) {
    let note = restart_note(volume, server, words);
    send(notices, workload, Reason::VolumeEngineRestarted, volume, note);
}

/// Tells a workload that the store reported a missing bucket to the engine in `pod`.
pub(super) fn tell_of_bucket(
    notices: &Notices,
    workload: Option<&WorkloadRef>,
    volume: &str,
    bucket: &str,
    pod: &str,
) {
    let note = format!(
        "the store says that the bucket {bucket} of PersistentVolume {volume} does not exist any more: reading and writing fail with \
         \"Input/output error\". Was it deleted, or does another store answer at the endpoint? The mount goes on once the bucket is there \
         again; the log of Mountpoint Pod {pod} has the requests"
    );
    send(notices, workload, Reason::VolumeBucketGone, volume, note);
}

/// Tells a workload that its volume ends while files of it are not stored.
pub(super) fn tell_of_files(notices: &Notices, workload: Option<&WorkloadRef>, volume: &str, why: String) {
    send(notices, workload, Reason::VolumeFilesNotStored, volume, why);
}

/// Tells a workload that the node has no room for its volume.
pub(super) fn tell_of_limit(notices: &Notices, workload: Option<&WorkloadRef>, why: String) {
    send(notices, workload, Reason::VolumeLimitReached, "", why);
}

/// Tells a workload why its volume is mounted without a cache.
pub(super) fn tell_of_cache(notices: &Notices, workload: Option<&WorkloadRef>, volume: &str, why: &str) {
    let note =
        format!("PersistentVolume {volume} is mounted without its cache, and reads from the store: {why}");
    send(notices, workload, Reason::CacheLeftOut, volume, note);
}

fn send(notices: &Notices, workload: Option<&WorkloadRef>, reason: Reason, volume: &str, note: String) {
    let (Some(notices), Some(workload)) = (notices, workload) else {
        tracing::warn!("{note}");
        return;
    };
    let notice = Notice { workload: workload.clone(), reason, note };
    if let Err(error) = notices.try_send(notice) {
        let WorkloadRef { namespace, name, .. } = workload;
        tracing::warn!(%namespace, pod = %name, %error, "no Event {reason} tells of PersistentVolume {volume}");
    }
}

/// The text of a notice about a restart. It has no time, so the Event of the next death counts as a repetition.
fn restart_note(volume: &str, server: &str, words: Option<&str>) -> String {
    let words = words.map(|words| format!(" The engine's last words: {words}")).unwrap_or_default();
    format!(
        "the engine of PersistentVolume {volume} died, and {server} starts it again on the same mount: programs that read wait and go on, a file \
         that was being written fails with \"Input/output error\" and is not stored.{words}"
    )
}

/// The text of a notice about a death, with the time, so two deaths are two Events.
fn note(volume: &str, server: &str, words: Option<&str>, now: Timestamp) -> String {
    let words = words.map(|words| format!(" The engine's last words: {words}")).unwrap_or_default();
    format!(
        "the engine of PersistentVolume {volume} died, and {server} serves the volume again since {}. A container without mountPropagation: \
         HostToContainer, or with a subPath, gets \"Transport endpoint is not connected\" until it is restarted.{words}",
        now.strftime("%H:%M:%S%.3f UTC")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_says_which_containers_must_be_restarted_and_differs_by_time() {
        let at = |ms| Timestamp::from_millisecond(ms).unwrap();
        let first = note("pv-1", "Mountpoint Pod mp-1", Some("signal: 9 (SIGKILL)"), at(3_600_007));
        assert!(
            first.contains("pv-1") && first.contains("mp-1 serves the volume again since 01:00:00.007 UTC"),
            "{first}"
        );
        assert!(first.contains("HostToContainer") && first.contains("subPath"), "{first}");
        assert!(first.ends_with("The engine's last words: signal: 9 (SIGKILL)"), "{first}");
        assert_ne!(note("pv-1", "x", None, at(1)), note("pv-1", "x", None, at(2)));
    }

    #[test]
    fn notes_of_two_restarts_are_the_same_and_name_the_cause() {
        let note = |words| restart_note("pv-1", "Mountpoint Pod mp-1", Some(words));
        assert_eq!(note("signal: 9 (SIGKILL)"), note("signal: 9 (SIGKILL)"));
        assert!(note("x").contains("pv-1") && note("x").contains("Mountpoint Pod mp-1"), "{}", note("x"));
        assert!(note("out of memory").ends_with("The engine's last words: out of memory"));
    }

    #[tokio::test]
    async fn a_full_queue_or_an_unknown_workload_stops_nothing() {
        let (to, mut from) = mpsc::channel(1);
        let workload = WorkloadRef { namespace: "n".into(), name: "p".into(), uid: "u".into() };
        let notices = Some(to);
        for _ in 0..2 {
            tell(&notices, Some(&workload), "pv-1", "mp-1", None);
        }
        tell(&notices, None, "pv-1", "mp-1", None);
        tell(&None, Some(&workload), "pv-1", "mp-1", None);
        let notice = from.recv().await.unwrap();
        assert_eq!((notice.reason, &notice.workload), (Reason::VolumeEngineDied, &workload));
        drop(notices);
        assert!(from.recv().await.is_none());
    }
}
