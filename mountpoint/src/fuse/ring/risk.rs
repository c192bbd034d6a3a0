//! The risk of the kernel's switch for FUSE over io_uring: while it is on, others who can open `/dev/fuse` can attack the machine.
//!
//! Enters: the kernel's release and the mode of `/dev/fuse`. Leaves: the warning, or nothing. A release says nothing of what its
//! distribution has mended, so this is never a reason to refuse a mount.

use std::os::unix::fs::PermissionsExt as _;

use super::super::capability;

/// The permissions of everybody and of the group to use a device: it is opened for reading and writing.
const OTHERS: u32 = 0o006;
const GROUP: u32 = 0o060;

/// The warning for this machine, whose switch is on; `None`: only root can open `/dev/fuse`, or the device is not visible here.
pub(in crate::fuse) fn here(release: &str) -> Option<String> {
    let device = std::fs::metadata("/dev/fuse").ok()?;
    warning(release, device.permissions().mode())
}

/// The warning for a kernel of this release and a `/dev/fuse` of this mode.
fn warning(release: &str, mode: u32) -> Option<String> {
    let users = match mode {
        _ if mode & OTHERS == OTHERS => "every user",
        _ if mode & GROUP == GROUP => "the group of /dev/fuse",
        _ => return None,
    };
    let old = match has_known_fixes(release) {
        true => "",
        false => "CVE-2026-64259, -64260, -64261 and -64588, fixed in Linux 6.18.39 and 7.1.4, and ",
    };
    Some(format!(
        "/sys/module/fuse/parameters/enable_uring is on, and {users} can open /dev/fuse: on Linux {} that may be enough to attack the \
         machine ({old}CVE-2026-99293, for which no fixed release is known). Unless your distribution has fixed its kernel, turn the \
         switch off or chmod 600 /dev/fuse: see docs/configuration.md",
        release.trim()
    ))
}

/// Whether a kernel of this release has the fixes for which releases are known: of memory that is used after its end, when a server answers
/// out of turn or ends.
fn has_known_fixes(release: &str) -> bool {
    let version = capability::version(release);
    version >= [7, 1, 4] || ([6, 18, 39]..[6, 19, 0]).contains(&version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_with_known_holes_is_warned_of_with_the_releases_that_fix_them() {
        for old in ["6.14.0-27-generic", "6.18.3", "6.18.38-1", "6.19.0", "6.19.14", "7.0.9", "7.1.3", ""] {
            let line = warning(old, 0o666).unwrap();
            assert!(
                line.contains("fixed in Linux 6.18.39 and 7.1.4") && line.contains("-64588"),
                "{old}: {line}"
            );
        }
        for new in ["6.18.39", "6.18.44-fc-v595", "7.1.4", "7.2.0-rc1", "8.0.1"] {
            let line = warning(new, 0o666).unwrap();
            assert!(!line.contains("-64588") && line.contains("CVE-2026-99293"), "{new}: {line}");
        }
    }

    #[test]
    fn only_a_device_that_others_can_open_is_a_risk() {
        for alone in [0o600, 0o644, 0o640] {
            assert_eq!(warning("6.18.3", alone), None, "{alone:o}");
        }
        for (mode, users) in [(0o660, "the group of /dev/fuse"), (0o666, "every user")] {
            let line = warning("6.18.3\n", mode).unwrap();
            assert!(line.contains(users) && line.contains("on Linux 6.18.3 that"), "{line}");
        }
    }
}
