//! The upgrade of a Mountpoint Pod in place. The reconciler requests it by an annotation, the node's driver asks the engine to leave its
//! mount, and the container ends with a reserved status. No engine runs between that container and the next one: the reconciler changes the
//! image then, and the node's holder keeps the mount.
//!
//! Never here: access to a file, a decision.

use std::fmt;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// Annotation of a Mountpoint Pod: an [`Attempt`], as JSON.
pub const ANNOTATION: &str = "s3.csi.scality.com/upgrade";

/// Exit status of an engine that left its mount, and of its container.
pub const HANDED_OVER: u8 = 75;

/// Time for which files being written may delay an upgrade; after it the engine goes on. Doubled, an upgrade meets fewer writers, and the
/// reconciler learns of those twice as late.
pub const WRITERS_WITHIN: Duration = Duration::from_secs(10);

/// Time for which the container after a leaving engine waits for the new image; then the next one goes on with the mount. Doubled, a slow
/// API server costs fewer upgrades, and programs wait longer while it is unreachable.
pub const IMAGE_WITHIN: Duration = Duration::from_secs(20);

/// Time for the new image's engine to serve. After it the container ends, and the old image goes on with the mount. Doubled, an engine that
/// hangs stops programs for twice as long; halved, good images are taken back on a busy machine.
pub const SERVES_WITHIN: Duration = Duration::from_secs(10);

/// Largest age of a valid `mount.handover`: the engine leaves within 12 s of it, and the holder keeps the mount for 60 s. Halved, an image
/// that comes late and then fails costs the mount.
const BELIEVED_FOR: SignedDuration = SignedDuration::from_secs(75);

/// The state of the upgrade of one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// The last step.
    pub stage: Stage,
    /// The image before the upgrade.
    pub from: String,
    /// The new image.
    pub to: String,
    /// The time of the last step, by the reconciler's clock.
    pub since: Timestamp,
    /// The number of restarts of the container at the last step.
    pub restarts: u32,
}

/// The steps of an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stage {
    /// The reconciler asked for an upgrade: the driver asks the engine to leave its mount.
    Asked,
    /// The engine left its mount, and the image was changed.
    Patched,
    /// A container of the new image runs. Its engine serves within [`SERVES_WITHIN`], or the container ends.
    Runs,
    /// The engine kept its mount: a file is being written, or the engine could not be asked.
    HeldBack,
    /// The new image did not run, and the old one was restored.
    TakenBack,
}

/// The text of `mount.handover` in the comm directory: the node asks the engine to leave its mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandingOver {
    /// The time of the node's request.
    pub since: Timestamp,
}

impl HandingOver {
    const WORDS: &str = "handing over since ";

    /// Parses a text. `None` for any other text, and for an old request: its container may have ended since.
    #[must_use]
    pub fn read(text: &str, now: Timestamp) -> Option<Self> {
        let since: Timestamp = text.trim_end().strip_prefix(Self::WORDS)?.parse().ok()?;
        (now.duration_since(since).abs() <= BELIEVED_FOR).then_some(Self { since })
    }
}

impl fmt::Display for HandingOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:.3}", Self::WORDS, self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_word_is_believed_as_long_as_its_holder_keeps_the_mount() {
        let at = |ms| Timestamp::from_millisecond(ms).unwrap();
        let word = HandingOver { since: at(1_764_173_000_250) };
        assert_eq!(word.to_string(), "handing over since 2025-11-26T16:03:20.250Z");
        let read = |ms: i64| HandingOver::read(&format!("{word}\n"), at(1_764_173_000_250 + ms));
        assert_eq!((read(0), read(75_000), read(76_000)), (Some(word), Some(word), None));
        for text in ["", "handing over", "restarting since 2025-11-26T16:03:20.250Z"] {
            assert_eq!(HandingOver::read(text, word.since), None, "{text}");
        }
    }

    #[test]
    fn an_attempt_reads_as_it_was_written() {
        let text =
            r#"{"stage":"heldBack","from":"a:1","to":"a:2","since":"2025-11-26T16:03:20Z","restarts":1}"#;
        let attempt: Attempt = serde_json::from_str(text).unwrap();
        assert_eq!((attempt.stage, attempt.restarts), (Stage::HeldBack, 1));
        assert_eq!(serde_json::to_string(&attempt).unwrap(), text);
    }
}
