//! The reconciler's Lease: the leading reconciler renews it, so nodes can see whether any reconciler works.

use std::time::Duration;

/// The Lease's name, in the namespace of the release.
pub const NAME: &str = "scality-csi-controller";
/// A Lease that was not renewed for this time may be taken by others.
pub const DURATION: Duration = Duration::from_secs(15);
