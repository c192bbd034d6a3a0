//! Stand-ins for Kubernetes' side-cars in the lab, where the real ones are not available. They take the real ones' places in
//! the chart (one more stand-in, `ci/kubernetes/registrar`, is in Go). Enters: the flags in upstream's README, the driver's socket, an
//! API server. Leaves: the answers to a probe; volumes for claims. Also a stand-in for a cloud's token service (`sts`).
//!
//! Never here: released code. Not implemented: upstream's metrics, profiles, log formats, Windows.

pub mod driver;
pub mod flags;
pub mod liveness;
pub mod provisioner;
pub mod sts;

/// Writes a line of the log to standard error.
pub fn log(text: impl std::fmt::Display) {
    eprintln!("{text}");
}
