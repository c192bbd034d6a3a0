//! Mounts whose engines are dead: the layers at a target, and the kubelet's bind mounts of subdirectories. Enters: a target whose engine
//! has ended. Leaves: only the lowest layer, which a new mount can cover.
//!
//! Never here: a mount that answers, or a mount of another connection; a container's own mount namespace.

use std::path::{Path, PathBuf};

use super::mountinfo::Mounts;
use super::sys;
use super::targets::table;
use crate::contract::target::OfPod;
use crate::error::{Error, Result};

/// Unmounts all layers of a dead target but the lowest, and the bind mounts of its dead subdirectories. A container has a copy of the
/// lowest layer: with HostToContainer propagation it sees what is mounted on the root of that layer, but never a mount that replaces the
/// layer (both tried, ci/e2e.d/README.md).
pub(super) fn make_room(target: &Path, kubelet: &Path) -> Result<()> {
    let mounts = table()?;
    let layers: Vec<_> = mounts.layers(target).collect();
    detach_sub_paths(&mounts, target, kubelet, &layers)?;
    for _ in layers.iter().skip(1) {
        detach(target)?;
    }
    Ok(())
}

/// Unmounts the bind mounts of subdirectories of dead layers below a target's live mount: systemd has restarted its engine.
pub(super) fn forget_lower(mounts: &Mounts, target: &Path, kubelet: &Path) -> Result<()> {
    let layers: Vec<_> = mounts.layers(target).collect();
    let dead = layers.split_last().map_or(&[][..], |(_, lower)| lower);
    detach_sub_paths(mounts, target, kubelet, dead)
}

/// Unmounts dead binds of a container's `subPath`, which the kubelet makes below `volume-subpaths`. When the container restarts, the
/// kubelet first checks the bind, and fails for ever if the engine behind it has ended. Without the bind it makes a new one.
fn detach_sub_paths(mounts: &Mounts, target: &Path, kubelet: &Path, dead: &[&str]) -> Result<()> {
    let Some(directory) = sub_paths(target, kubelet) else { return Ok(()) };
    for mount in mounts.beneath(&directory).filter(|mount| dead.contains(&mount.device.as_str())) {
        tracing::info!(
            "{}: the bind of a subPath whose engine has ended is taken away",
            mount.point.display()
        );
        detach(&mount.point)?;
    }
    Ok(())
}

/// The directory with the kubelet's bind mounts of subdirectories of the volume at this target.
fn sub_paths(target: &Path, kubelet: &Path) -> Option<PathBuf> {
    let OfPod { uid, volume } = OfPod::of_mount_point(target, kubelet)?;
    Some(kubelet.join("pods").join(uid).join("volume-subpaths").join(volume))
}

fn detach(point: &Path) -> Result<()> {
    sys::detach(point).map_err(|error| {
        Error::internal(format!("unmounting {}, whose engine is gone: {error}", point.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounter::mount_id::MountId;
    use crate::mounter::testing::{dirs, isolated};

    fn tmpfs(at: &Path) {
        std::fs::create_dir_all(at).unwrap();
        rustix::mount::mount("tmpfs", at, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    }

    #[test]
    fn the_lowest_layer_stays_and_only_its_own_sub_paths_go() {
        isolated(|| {
            let ([kubelet, other], _folder) = dirs();
            let target = kubelet.join("pods/w1/volumes/kubernetes.io~csi/pv-1/mount");
            let sub_path = |pod: &str, volume: &str, number: u32| {
                let at = kubelet.join(format!("pods/{pod}/volume-subpaths/{volume}/main/{number}"));
                std::fs::create_dir_all(&at).unwrap();
                at
            };
            tmpfs(&target);
            let lowest = MountId::at(&target).unwrap();
            let of_lowest = [sub_path("w1", "pv-1", 0), sub_path("w2", "pv-1", 0), sub_path("w1", "pv-2", 0)];
            for at in &of_lowest {
                sys::bind(&target, at, false).unwrap();
            }
            tmpfs(&target);
            let of_upper = sub_path("w1", "pv-1", 1);
            sys::bind(&target, &of_upper, false).unwrap();
            // The kubelet has bound a living mount here anew already.
            tmpfs(&other);
            let living = sub_path("w1", "pv-1", 2);
            sys::bind(&other, &living, false).unwrap();

            make_room(&target, &kubelet).unwrap();
            assert_eq!(MountId::at(&target).unwrap(), lowest);
            let is_mounted = |at: &Path| MountId::at(at).unwrap().is_some();
            assert!(!is_mounted(&of_lowest[0]) && !is_mounted(&of_upper));
            assert!(is_mounted(&living), "its device is another");
            assert!(
                is_mounted(&of_lowest[1]) && is_mounted(&of_lowest[2]),
                "another pod's, another volume's"
            );
            make_room(&target, &kubelet).unwrap();
            assert_eq!(MountId::at(&target).unwrap(), lowest, "as often as it is asked");
        });
    }

    #[test]
    fn below_a_living_mount_the_sub_paths_of_dead_ones_go() {
        isolated(|| {
            let ([kubelet], _folder) = dirs();
            let target = kubelet.join("pods/w1/volumes/kubernetes.io~csi/pv-1/mount");
            let at = |number: u32| kubelet.join(format!("pods/w1/volume-subpaths/pv-1/main/{number}"));
            for number in [0, 1] {
                tmpfs(&target);
                std::fs::create_dir_all(at(number)).unwrap();
                sys::bind(&target, &at(number), false).unwrap();
            }
            forget_lower(&table().unwrap(), &target, &kubelet).unwrap();
            let is_mounted = |number| MountId::at(&at(number)).unwrap().is_some();
            assert!(!is_mounted(0) && is_mounted(1));
            assert_eq!(table().unwrap().layers(&target).count(), 2);
        });
    }
}
