//! The stand-in for a side-car of Kubernetes, for the lab, where the real side-car is not available. It takes the place of the real one
//! in the chart's DaemonSet (the other stand-in, `ci/kubernetes/registrar`, is in Go). Enters: the flags in upstream's README, the
//! driver's socket. Leaves: the answers to the kubelet and a probe.
//!
//! Never here: released code. Not implemented: upstream's metrics, profiles, log formats, Windows.

pub mod driver;
pub mod flags;
pub mod liveness;

/// A line of the log.
pub fn log(text: impl std::fmt::Display) {
    eprintln!("{text}");
}
