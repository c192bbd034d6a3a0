//! Settings of a node that are one of a few words. Enters: the word. Leaves: the choice, or the words that are allowed.

use std::str::FromStr;

/// The part that makes the mounts of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MounterKind {
    /// Mountpoint Pods.
    Pod,
    /// The engines pod of the node.
    Shared,
    /// The node's systemd.
    Systemd,
}

impl FromStr for MounterKind {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let all = [("pod", Self::Pod), ("shared", Self::Shared), ("systemd", Self::Systemd)];
        one_of(text, &all, "node.mounter")
    }
}

/// The part that makes new mounts while no reconciler works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Degraded {
    /// Nothing: new workloads wait.
    Unavailable,
    /// The node's systemd.
    Systemd,
}

impl FromStr for Degraded {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let all = [("unavailable", Self::Unavailable), ("systemd", Self::Systemd)];
        one_of(text, &all, "node.degraded")
    }
}

/// The choice that a word names. The error tells all words, and the `value` of the chart that has it.
fn one_of<T: Copy>(text: &str, all: &[(&str, T)], value: &str) -> std::result::Result<T, String> {
    if let Some((_, chosen)) = all.iter().find(|(word, _)| *word == text.trim()) {
        return Ok(*chosen);
    }
    let words: Vec<_> = all.iter().map(|(word, _)| *word).collect();
    let words = words
        .split_last()
        .map_or_else(String::new, |(last, first)| format!("{} or {last}", first.join(", ")));
    Err(format!("must be {words} ({value} in the chart)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_choice_and_any_other_is_told_all_of_them() {
        assert_eq!("shared\n".parse(), Ok(MounterKind::Shared));
        assert_eq!("systemd".parse(), Ok(Degraded::Systemd));
        let why = "Pod".parse::<MounterKind>().unwrap_err();
        assert_eq!(why, "must be pod, shared or systemd (node.mounter in the chart)");
        let why = "".parse::<Degraded>().unwrap_err();
        assert_eq!(why, "must be unavailable or systemd (node.degraded in the chart)");
    }
}
