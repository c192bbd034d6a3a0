//! The text of `mount.state` in the comm directory. The mounter writes it while its engine is dead and the next one does not serve yet;
//! the node reads it before it treats a mount as hung.
//!
//! The node's holder writes it when the container ends, with a second line: the next container then keeps the file until it has the mount.
//!
//! This file also knows the flags with which an engine can't hand its mount over.
//!
//! Never here: access to a file.

use std::fmt;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// Longest time that a mount may be without an engine. After it the mounter closes the device, and programs get an error. Doubled,
/// programs wait twice as long for an engine that hangs at its start; halved, a busy machine loses mounts.
pub const RESTART_WITHIN: Duration = Duration::from_secs(60);

/// Largest step of the clock that is tolerated while an engine is restarted.
const CLOCK_STEPS: SignedDuration = SignedDuration::from_secs(2);

/// The state of a mount whose engine died, while the next one does not serve yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restarting {
    /// The time of the engine's death.
    pub since: Timestamp,
}

impl Restarting {
    const WORDS: &str = "restarting since ";
    const HELD: &str = "held";

    /// Parses the first line. `None` for any other text, and for a time more than [`RESTART_WITHIN`] ago: a mounter gives up before that,
    /// so the writer was killed.
    #[must_use]
    pub fn read(text: &str, now: Timestamp) -> Option<Self> {
        let since: Timestamp = text.lines().next()?.trim_end().strip_prefix(Self::WORDS)?.parse().ok()?;
        let age = now.duration_since(since);
        let is_now =
            age >= -CLOCK_STEPS && age <= SignedDuration::try_from(RESTART_WITHIN).ok()? + CLOCK_STEPS;
        is_now.then_some(Self { since })
    }

    /// The text that the holder writes.
    #[must_use]
    pub fn held(self) -> String {
        format!("{self}\n{}", Self::HELD)
    }

    /// Whether the holder wrote the text, and a mounter may still take the mount over.
    #[must_use]
    pub fn is_held(text: &str, now: Timestamp) -> bool {
        Self::read(text, now).is_some() && text.lines().nth(1) == Some(Self::HELD)
    }
}

impl fmt::Display for Restarting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:.3}", Self::WORDS, self.since)
    }
}

/// Whether an engine with these flags supports `--supervised`: with some transports the mount ends with its engine, and with `--mode full`.
#[must_use]
pub fn can_outlive(args: &[String]) -> bool {
    let words: Vec<&str> = args.iter().flat_map(|arg| arg.splitn(2, '=')).collect();
    !words.windows(2).any(|it| matches!(it, ["--fuse-transport", "io-uring" | "fuser"] | ["--mode", "full"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(ms).unwrap()
    }

    #[test]
    fn a_state_is_read_as_it_was_written_and_ignored_once_it_is_old() {
        let since = at(1_764_173_000_250);
        let text = Restarting { since }.to_string();
        assert_eq!(text, "restarting since 2025-11-26T16:03:20.250Z");
        for (now, known) in [(250, true), (60_000, true), (130_000, false), (-5_000, false)] {
            let now = at(since.as_millisecond() + now);
            assert_eq!(Restarting::read(&format!("{text}\nmore"), now).is_some(), known, "{now}");
        }
        assert_eq!(Restarting::read(&text, since), Some(Restarting { since }));
    }

    #[test]
    fn the_holders_state_reads_as_one_and_is_told_from_the_mounters() {
        let state = Restarting { since: at(1_764_173_000_250) };
        assert_eq!(Restarting::read(&state.held(), state.since), Some(state));
        assert!(Restarting::is_held(&state.held(), state.since));
        assert!(!Restarting::is_held(&state.held(), at(1_764_173_130_250)), "it is old");
        assert!(!Restarting::is_held(&state.to_string(), state.since));
    }

    #[test]
    fn any_other_text_says_nothing() {
        for text in [
            "",
            "\n",
            "serving",
            "restarting since",
            "restarting since yesterday",
            "restarting since 2025-11-26",
        ] {
            assert_eq!(Restarting::read(text, at(1_764_173_000_250)), None, "{text:?}");
        }
    }

    #[test]
    fn mounts_that_end_with_their_engine_are_told_by_their_flags() {
        let can = |args: &[&str]| can_outlive(&args.iter().map(|&it| it.to_owned()).collect::<Vec<_>>());
        assert!(can(&["--allow-delete", "--fuse-transport=dev", "--prefix=fuser"]));
        assert!(!can(&["--allow-other", "--mode=full"]) && can(&["--mode=object"]));
        assert!(!can(&["--fuse-transport=io-uring"]) && !can(&["--fuse-transport", "fuser"]));
    }
}
