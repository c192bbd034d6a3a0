//! Stand-ins for two side-cars of Kubernetes, for the lab: where the real ones can't be had, these take their places in the chart's
//! DaemonSet. Enters: the flags that upstream's README lists, the driver's socket. Leaves: what the kubelet and a probe are told.
//!
//! Never here: anything that ships. What upstream does and is not written here: metrics, profiles, log formats, Windows.

pub mod driver;
pub mod flags;
pub mod liveness;
pub mod registration;

/// A line of the log.
pub fn log(text: impl std::fmt::Display) {
    eprintln!("{text}");
}
