//! Decisions about held mounts. Enters: facts about a registration, or about a mount whose container ended. Leaves: whether the
//! registration is accepted, and whether the mount is kept.
//!
//! Never here: a descriptor, a file, a wait.

use std::fmt;
use std::time::Duration;

use crate::contract::restart::RESTART_WITHIN;

/// The facts of a registration. Its sender has been checked: the process runs in the pod whose directory has the socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given<'a> {
    /// Whether the first descriptor leads to `/dev/fuse`, according to the kernel: the mount is not asked.
    pub(super) is_fuse: bool,
    /// The number of its FUSE connection, which the kernel tells since Linux 6.17.
    pub(super) connection: Option<u32>,
    /// Whether the second descriptor is a memfd.
    pub(super) is_memfd: bool,
    /// The device number `major:minor` of the mount at the pod's own source, if there is a mount.
    pub(super) source: Option<&'a str>,
}

/// The reason why a registration is refused. The mounter keeps its mount in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    NotADevice,
    NotAJournal,
    /// The source has no mount yet: it appears a moment after the engine serves, so a retry helps.
    NotMounted,
    AnotherMount,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotADevice => "its first descriptor is not the FUSE device",
            Self::NotAJournal => "its second descriptor does not lead to a memfd",
            Self::NotMounted => "nothing is mounted at the pod's source",
            Self::AnotherMount => "its device is that of another mount than the pod's source",
        })
    }
}

impl Given<'_> {
    /// Checks the facts: `Ok` accepts the registration.
    pub(super) fn admit(&self) -> Result<(), Refused> {
        let Self { is_fuse, connection, is_memfd, source } = *self;
        if !is_fuse {
            return Err(Refused::NotADevice);
        }
        if !is_memfd {
            return Err(Refused::NotAJournal);
        }
        let source = source.ok_or(Refused::NotMounted)?;
        match connection {
            Some(number) if source != format!("0:{number}") => Err(Refused::AnotherMount),
            _ => Ok(()),
        }
    }
}

/// The facts about a mount whose container ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    /// The time since the container ended.
    pub(super) age: Duration,
    /// Whether the kernel still has its end of the device: nobody has unmounted or aborted the mount.
    pub(super) connected: bool,
    /// Whether the node announced the unmount.
    pub(super) announced: bool,
    /// Whether the kubelet has removed the pod's directory: no container follows.
    pub(super) deleted: bool,
}

/// The reason why a mount is not held any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closed {
    Unmounted,
    Deleted,
    Late,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmounted => f.write_str("it is unmounted"),
            Self::Deleted => f.write_str("the pod is deleted"),
            Self::Late => write!(f, "no container took it within {} s", RESTART_WITHIN.as_secs()),
        }
    }
}

impl Lost {
    /// Decides whether to keep the mount for the next container: `Ok` keeps it.
    pub(super) fn keep(&self) -> Result<(), Closed> {
        match *self {
            Self { announced: true, .. } | Self { connected: false, .. } => Err(Closed::Unmounted),
            Self { deleted: true, .. } => Err(Closed::Deleted),
            Self { age, .. } if age >= RESTART_WITHIN => Err(Closed::Late),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_device_of_the_pods_own_source_and_a_journal_are_held() {
        let own = Given { is_fuse: true, connection: Some(57), is_memfd: true, source: Some("0:57") };
        assert_eq!(own.admit(), Ok(()));
        assert_eq!(Given { connection: None, ..own }.admit(), Ok(()), "a kernel before 6.17");
        for (given, why) in [
            (Given { is_fuse: false, ..own }, Refused::NotADevice),
            (Given { is_memfd: false, ..own }, Refused::NotAJournal),
            (Given { source: None, ..own }, Refused::NotMounted),
            (Given { source: None, connection: None, ..own }, Refused::NotMounted),
            (Given { source: Some("0:58"), ..own }, Refused::AnotherMount),
            (Given { source: Some("8:57"), ..own }, Refused::AnotherMount),
            (Given { connection: Some(5), ..own }, Refused::AnotherMount),
        ] {
            assert_eq!(given.admit(), Err(why), "{given:?}");
        }
    }

    #[test]
    fn a_lost_mount_is_kept_for_a_minute_and_not_once_it_is_unmounted() {
        let lost = Lost { age: Duration::ZERO, connected: true, announced: false, deleted: false };
        assert_eq!(lost.keep(), Ok(()));
        let nearly = RESTART_WITHIN.checked_sub(Duration::from_millis(1)).unwrap();
        assert_eq!(Lost { age: nearly, ..lost }.keep(), Ok(()));
        assert_eq!(Lost { age: RESTART_WITHIN, ..lost }.keep(), Err(Closed::Late));
        assert_eq!(Lost { connected: false, ..lost }.keep(), Err(Closed::Unmounted));
        assert_eq!(Lost { deleted: true, ..lost }.keep(), Err(Closed::Deleted));
        assert_eq!(Lost { announced: true, ..lost }.keep(), Err(Closed::Unmounted));
    }
}
