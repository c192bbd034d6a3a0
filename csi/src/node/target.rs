//! The kubelet's target path for a volume. Enters: the path of a call and the kubelet's directory. Leaves: the checked path, and the
//! workload and volume in it.
//!
//! Never here: access to the disk. Only the text of the path is checked.

use std::path::{Component, Path, PathBuf};

use crate::contract::target::OfPod;
use crate::error::{Error, Result};

/// A target path below the kubelet's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The absolute path, without `.`, `..` or double slashes.
    pub path: PathBuf,
    /// The names in the path, if it has the kubelet's form: `pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount`.
    pub of_pod: Option<OfPod>,
    /// The path relative to the kubelet's directory.
    below: String,
}

impl Target {
    /// Checks `path`, which is the call's field `field`.
    ///
    /// # Errors
    /// `InvalidArgument` if the path is empty, not absolute, contains `..`, or is not below `kubelet`.
    pub fn parse(field: &str, path: &str, kubelet: &Path) -> Result<Self> {
        if path.is_empty() {
            return Err(Error::invalid(format!("{field} is missing: the kubelet must send it")));
        }
        if path.contains('\0') {
            return Err(Error::invalid(format!("{field} holds a zero byte, which no path can")));
        }
        let normal = normalised(Path::new(path)).ok_or_else(|| {
            Error::invalid(format!("{field} {path:?} must be an absolute path without '..'"))
        })?;
        let kubelet = normalised(kubelet).unwrap_or_else(|| kubelet.to_owned());
        let below = match normal.strip_prefix(&kubelet) {
            Ok(below) if below != Path::new("") => below.to_owned(),
            _ => {
                return Err(Error::invalid(format!(
                    "{field} {path:?} is not beneath the kubelet's directory {}: if this node's kubelet has another \
                     one, set node.kubeletPath in the chart",
                    kubelet.display()
                )));
            }
        };
        // The path is UTF-8, so nothing is lost.
        let below_text = below.to_string_lossy().into_owned();
        Ok(Self { path: normal, of_pod: OfPod::read(&below), below: below_text })
    }

    /// The workload's UID: from the call, else from the path. A caller without both, such as csi-sanity, is identified by the
    /// relative path.
    #[must_use]
    pub fn workload_uid(&self, said: Option<&str>) -> String {
        let of_path = self.of_pod.as_ref().map(|pod| pod.uid.as_str());
        said.filter(|uid| !uid.is_empty()).or(of_path).unwrap_or(&self.below).to_owned()
    }

    /// The PersistentVolume's name from the path, else the volume's handle.
    #[must_use]
    pub fn volume(&self, handle: &str) -> String {
        self.of_pod.as_ref().map_or(handle, |pod| &pod.volume).to_owned()
    }
}

/// The path without `.` and double slashes; `None` if it is relative, or has a `..`, whose meaning depends on links.
fn normalised(path: &Path) -> Option<PathBuf> {
    if !path.is_absolute() {
        return None;
    }
    let mut normal = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => normal.push(name),
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(normal)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::ErrorKind;

    const KUBELET: &str = "/var/lib/kubelet";

    fn parse(path: &str) -> Result<Target> {
        Target::parse("target_path", path, Path::new(KUBELET))
    }

    #[test]
    fn a_target_of_the_kubelet_names_pod_and_volume() {
        let target = parse("/var/lib/kubelet//pods/0f-1/volumes/kubernetes.io~csi/pv.1/./mount/").unwrap();
        assert_eq!(target.path, Path::new("/var/lib/kubelet/pods/0f-1/volumes/kubernetes.io~csi/pv.1/mount"));
        assert_eq!(target.workload_uid(None), "0f-1");
        assert_eq!(target.workload_uid(Some("")), "0f-1");
        assert_eq!(target.workload_uid(Some("said")), "said");
        assert_eq!(target.volume("handle"), "pv.1");
    }

    #[test]
    fn a_plain_target_beneath_the_kubelet_is_known_by_itself() {
        let target = parse("/var/lib/kubelet/sanity/target").unwrap();
        assert_eq!(target.of_pod, None);
        assert_eq!(target.workload_uid(None), "sanity/target");
        assert_eq!(target.volume("handle"), "handle");
    }

    #[test]
    fn another_directory_is_another_place_even_if_the_text_begins_alike() {
        for path in [
            "/var/lib/kubelet",
            "/var/lib/kubelet/",
            "/var/lib/kubelet2/pods/u/volumes/kubernetes.io~csi/pv/mount",
            "/var/lib/kubelet/../../../etc",
            "/var/lib/kubelet/pods/../../../etc",
            "/etc",
            "/",
            "var/lib/kubelet/pods/u",
            "",
            "/var/lib/kubelet/a\0b",
        ] {
            let error = parse(path).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument, "{path}");
            assert!(error.to_string().contains("target_path"), "{error}");
        }
        assert!(parse("/etc").unwrap_err().to_string().contains("node.kubeletPath"));
    }

    #[test]
    fn the_kubelet_may_be_written_with_a_slash_at_its_end() {
        assert!(Target::parse("target_path", "/k/pods/x", Path::new("/k/")).is_ok());
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_stays_beneath_the_kubelet(path in "(/var/lib/kubelet)?(/|\\.|\\.\\.|[a-z]{1,2}){0,12}") {
            if let Ok(target) = parse(&path) {
                prop_assert!(target.path.starts_with(KUBELET) && target.path != Path::new(KUBELET));
                prop_assert!(target.path.components().all(|c| c != Component::ParentDir));
            }
        }
    }
}
