//! The stand-in for a side-car of Kubernetes, for the lab: where the real one can't be had, this takes its place in the chart's
//! DaemonSet (the other one, `ci/kubernetes/registrar`, is Go). Enters: the flags that upstream's README lists, the driver's socket. Leaves: what the kubelet and a probe are told.
//!
//! Never here: anything that ships. What upstream does and is not written here: metrics, profiles, log formats, Windows.

pub mod driver;
pub mod flags;
pub mod liveness;

/// A line of the log.
pub fn log(text: impl std::fmt::Display) {
    eprintln!("{text}");
}
