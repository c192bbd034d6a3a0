//! The stage of a Mountpoint Pod whose volume has the mount option `mode full`. Enters: mount options of a volume. Leaves: the volume of the
//! pod for files under change, or a sentence about options that a pod can't keep.
//!
//! Reconciler and node both use this file: the reconciler makes the volume, the node passes its directory to the engine.

use super::quantity::Quantity;
use super::volume;

/// The volume of a Mountpoint Pod with the stage.
pub const VOLUME: &str = "stage";
/// The mount point of that volume in the pod.
pub const MOUNT_PATH: &str = "/stage";
/// The stage's directory in that volume. The engine makes it, and makes it private, which it can't do with the mount point: that is root's.
pub const IN_VOLUME: &str = "data";
/// The stage in the pod.
pub const DIRECTORY: &str = "/stage/data";
/// The engine's own default of `stage-size`, in MiB.
const DEFAULT_MIB: u64 = 10_240;
/// Disk beside the files under change, in MiB: the log, and a little of `kept/`.
const BESIDE_MIB: u64 = 64;

/// A stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// `stage-size` of the engine, in MiB.
    pub mib: u64,
    /// fsync waits for the stage alone (`commit disk`).
    pub is_promise: bool,
}

impl Stage {
    /// The stage of a volume; `None` without `mode full`.
    ///
    /// # Errors
    /// A sentence that names the option and the way out.
    pub fn read(options: &[String]) -> Result<Option<Self>, String> {
        let values = |wanted: &'static str| {
            let all = options.iter().map(|option| volume::name_and_value(option));
            all.filter(move |(name, _)| *name == wanted).map(|(_, value)| value)
        };
        if !values("mode").any(|mode| mode == "full") {
            let needing = ["commit", "stage-size"].into_iter().find(|name| values(name).next().is_some());
            return match needing {
                Some(name) => {
                    Err(format!("mount option '{name}' belongs to 'mode full': add that, or leave it out"))
                }
                None => Ok(None),
            };
        }
        // The engine refuses words that are not numbers.
        let mib = values("stage-size").find_map(|mib| mib.parse().ok()).filter(|mib| *mib > 0);
        let is_promise = values("commit").any(|commit| commit == "disk");
        Ok(Some(Self { mib: mib.unwrap_or(DEFAULT_MIB), is_promise }))
    }

    /// Refuses a promise that a stage can't keep.
    ///
    /// # Errors
    /// A sentence that names the option and the ways out.
    pub fn check(&self, outlives_pod: bool) -> Result<(), String> {
        match self.is_promise && !outlives_pod {
            true => Err(format!("mount option 'commit disk' is not allowed: {NO_DISK}")),
            false => Ok(()),
        }
    }

    /// The disk that the pod asks for.
    #[must_use]
    pub fn request(&self) -> Quantity {
        Quantity::of(self.mib.saturating_add(BESIDE_MIB).saturating_mul(1 << 20))
    }

    /// The size at which the kubelet ends the pod, and with it the stage. The engine keeps files under change below `stage-size`; files that
    /// could not be stored may have as much again.
    #[must_use]
    pub fn limit(&self) -> Quantity {
        Quantity::of(self.mib.saturating_mul(2).saturating_add(BESIDE_MIB).saturating_mul(1 << 20))
    }
}

/// The reason why volumes may not have `mode full` until the administrator allows it.
pub const EXPERIMENTAL: &str = "it is experimental in Kubernetes, and files can still be lost when a pod, its engine and the driver end together; set \
                                mountpointPod.stage.experimental=true in the chart to try it (docs/full-mode.md says what it lacks), or leave it out";

const NO_DISK: &str = "the stage goes with the Mountpoint Pod, and files that were synced there could be lost; name a directory of the nodes in \
                       mountpointPod.stage.hostPath of the chart, or use 'commit fsync', with which fsync waits for the bucket";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: &[&str]) -> Result<Option<Stage>, String> {
        let options: Vec<_> = options.iter().map(|&it| it.to_owned()).collect();
        Stage::read(&options)
    }

    #[test]
    fn only_mode_full_has_a_stage_and_its_size_is_the_options() {
        assert_eq!(read(&["allow-delete"]), Ok(None));
        assert_eq!(read(&["mode=object"]), Ok(None));
        assert_eq!(read(&["mode full"]), Ok(Some(Stage { mib: 10_240, is_promise: false })));
        for size in ["stage-size=100", "--stage-size 100"] {
            let stage = read(&["--mode=full", "commit fsync", size]).unwrap().unwrap();
            assert_eq!(stage, Stage { mib: 100, is_promise: false });
            assert_eq!(stage.check(false), Ok(()));
            assert_eq!(
                (stage.request().as_memory(), stage.limit().as_memory()),
                ("164Mi".into(), "264Mi".into())
            );
        }
    }

    #[test]
    fn options_of_a_stage_that_a_pod_can_not_keep_say_what_to_do() {
        let disk = read(&["mode=full", "commit=disk"]).unwrap().unwrap();
        assert_eq!(disk.check(true), Ok(()));
        let error = disk.check(false).unwrap_err();
        assert!(error.contains("'commit disk'") && error.contains("mountpointPod.stage.hostPath"), "{error}");
        for option in ["commit=fsync", "stage-size=5"] {
            let error = read(&["mode=object", option]).unwrap_err();
            assert!(error.contains("belongs to 'mode full': add that"), "{error}");
        }
    }

    #[test]
    fn a_size_beyond_all_numbers_is_no_overflow() {
        let huge = read(&["mode=full", "stage-size=18446744073709551615"]).unwrap().unwrap();
        assert!(huge.limit() >= huge.request());
    }
}
