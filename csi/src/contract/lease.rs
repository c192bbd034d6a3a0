//! The reconciler's Lease: the leading reconciler renews it, so nodes can see whether any reconciler works.

use std::time::Duration;

/// The Lease's name, in the namespace of the release.
pub const NAME: &str = "scality-csi-controller";
/// Time after the last renewal at which another reconciler may take the Lease.
pub const DURATION: Duration = Duration::from_secs(15);
