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
        match text.trim() {
            "pod" => Ok(Self::Pod),
            "shared" => Ok(Self::Shared),
            "systemd" => Ok(Self::Systemd),
            _ => Err("must be pod, shared or systemd (node.mounter in the chart)".to_owned()),
        }
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
        match text.trim() {
            "unavailable" => Ok(Self::Unavailable),
            "systemd" => Ok(Self::Systemd),
            _ => Err("must be unavailable or systemd (node.degraded in the chart)".to_owned()),
        }
    }
}
