//! Stand-ins for side-cars of Kubernetes, for the lab, where the real ones are not available. They take the places of the real ones in
//! the chart (one more stand-in, `ci/kubernetes/registrar`, is in Go). Enters: the flags in upstream's README, the driver's socket, an
//! API server. Leaves: the answers to a probe; volumes for claims. Also a stand-in for the token service of a cloud (`sts`).
//!
//! Never here: released code. Not implemented: upstream's metrics, profiles, log formats, Windows.

pub mod driver;
pub mod flags;
pub mod liveness;
pub mod provisioner;
pub mod sts;

/// A line of the log.
pub fn log(text: impl std::fmt::Display) {
    eprintln!("{text}");
}
