//! The reconciler's Lease: the one that leads renews it, and nodes see by it whether any reconciler works.

use std::time::Duration;

/// Its name, in the namespace of the release.
pub const NAME: &str = "scality-csi-controller";
/// A Lease that was not renewed for this time may be taken by others.
pub const DURATION: Duration = Duration::from_secs(15);
