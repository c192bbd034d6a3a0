//! The target path of the kubelet: `pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount` below its directory.

use std::ffi::OsStr;
use std::path::Path;

/// The names in a target path of the kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfPod {
    /// The workload's pod.
    pub uid: String,
    /// The PersistentVolume's name, or the volume's name in the pod if it is inline.
    pub volume: String,
}

impl OfPod {
    /// Parses a path relative to the kubelet's directory; `None` if it has another form.
    #[must_use]
    pub fn read(below: &Path) -> Option<Self> {
        let parts: Vec<&str> = below.iter().map(OsStr::to_str).collect::<Option<_>>()?;
        match parts[..] {
            ["pods", uid, "volumes", "kubernetes.io~csi", volume, "mount"] => {
                Some(Self { uid: uid.to_owned(), volume: volume.to_owned() })
            }
            _ => None,
        }
    }

    /// Parses a mount point; `None` if it is not a target path of the kubelet.
    #[must_use]
    pub fn of_mount_point(path: &Path, kubelet: &Path) -> Option<Self> {
        Self::read(path.strip_prefix(kubelet).ok()?)
    }
}

/// The UID of the workload of a target path below the kubelet's directory. For another path there, such as csi-sanity's, the path itself
/// replaces the UID.
#[must_use]
pub fn workload(path: &Path, kubelet: &Path) -> Option<String> {
    let below = path.strip_prefix(kubelet).ok()?;
    Some(OfPod::read(below).map_or_else(|| below.to_string_lossy().into_owned(), |pod| pod.uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_of_the_kubelet_is_known_by_its_pod_and_another_by_itself() {
        let target = Path::new("/k/pods/u/volumes/kubernetes.io~csi/v/mount");
        let names = OfPod { uid: "u".into(), volume: "v".into() };
        assert_eq!(OfPod::of_mount_point(target, Path::new("/k/")), Some(names));
        assert_eq!(OfPod::of_mount_point(target, Path::new("/other")), None);
        assert_eq!(workload(target, Path::new("/k/")).as_deref(), Some("u"));
        assert_eq!(
            workload(Path::new("/k/sanity/target"), Path::new("/k")).as_deref(),
            Some("sanity/target")
        );
        assert_eq!(workload(Path::new("/elsewhere"), Path::new("/k")), None);
    }
}
