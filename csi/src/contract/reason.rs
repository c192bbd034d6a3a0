//! The reasons of Events: one word each, which `kubectl get events` shows and alerts and scripts match.
//!
//! Never here: the text of an Event.

use std::fmt;

/// The reason of an Event of the driver or of the reconciler. Its text is the variant's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// A workload that ran without an attachment has one again.
    AttachedAgain,
    /// A second attachment names a workload.
    AttachedTwice,
    /// The node's disk for caches has no room for a volume's cache, so the volume is mounted without one.
    CacheLeftOut,
    /// A volume sets no size for its cache, which gets the default.
    CacheLimited,
    /// The API server refuses headroom pods, which reserve room for Mountpoint Pods.
    HeadroomRefused,
    /// A workload waits for room for its Mountpoint Pods.
    HeadroomWaits,
    /// A mount option has no effect.
    MountOptionLeftOut,
    /// No reconciler runs, so systemd makes the mount in place of a Mountpoint Pod.
    MountedBySystemd,
    /// A running workload's Mountpoint Pod was asked to end.
    MountpointPodEnds,
    /// The Mountpoint Pod of a running workload has ended.
    MountpointPodLost,
    /// A Mountpoint Pod ended before it served. Repetitions are one Event with a count.
    MountpointPodNotServing,
    /// The API server refuses to make a Mountpoint Pod.
    MountpointPodRefused,
    /// The image of a Mountpoint Pod was not changed: a file is being written, or its engine could not be asked.
    MountpointPodUpgradeHeldBack,
    /// A Mountpoint Pod did not run with its new image, and got the old one back.
    MountpointPodUpgradeTakenBack,
    /// A Mountpoint Pod runs a new image, and its mount went on.
    MountpointPodUpgraded,
    /// A Mountpoint Pod does not start.
    MountpointPodWaits,
    /// A volume has attributes that the driver does not know.
    VolumeAttributeUnknown,
    /// The store says that the bucket of a mounted volume is gone.
    VolumeBucketGone,
    /// The bucket of a deleted volume was kept, because it has objects.
    VolumeDataKept,
    /// The engine of a mounted volume died, and the volume is mounted again.
    VolumeEngineDied,
    /// The engine of a mounted volume died, and the next one goes on with the same mount. Repetitions are one Event with a count.
    VolumeEngineRestarted,
    /// A volume ends, and the bucket lacks files that were written to it.
    VolumeFilesNotStored,
    /// Several PersistentVolumes have the same volume handle.
    VolumeHandleNotUnique,
    /// The engines pod of the node has no room for another volume.
    VolumeLimitReached,
    /// The settings of a volume are invalid, so it gets no Mountpoint Pod.
    VolumeRefused,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_reads_as_it_is_named() {
        assert_eq!(Reason::VolumeEngineDied.to_string(), "VolumeEngineDied");
    }
}
