//! The provisioner's requests. Enters: the fields that every call for a new volume has. Leaves: checked values, or an error that names the
//! field. Pure.

use crate::error::{Error, Result};
use crate::proto::csi::volume_capability::{AccessType, access_mode::Mode};
use crate::proto::csi::{CapacityRange, VolumeCapability};

/// The recorded capacity if a claim names none, in bytes; as in release 2.2.
const DEFAULT_BYTES: i64 = 1 << 30;
/// The longest name of a request, in bytes: CSI's limit for strings.
const NAME_MAX: usize = 128;

/// Checks the name of a request.
///
/// # Errors
/// `InvalidArgument`: the request has no name, or one longer than CSI allows.
pub fn name(name: &str) -> Result<&str> {
    match name.len() {
        0 => Err(Error::invalid("name is missing: the provisioner names each volume")),
        1..=NAME_MAX => Ok(name),
        _ => Err(Error::invalid(format!("name is longer than {NAME_MAX} bytes"))),
    }
}

/// Checks the capabilities that a volume must have. A bucket can't be a block device.
///
/// # Errors
/// `InvalidArgument`: no capability, or one that a bucket can't have.
pub fn capabilities(capabilities: &[VolumeCapability]) -> Result<()> {
    if capabilities.is_empty() {
        return Err(Error::invalid(
            "volume_capabilities is missing: the claim's accessModes become capabilities",
        ));
    }
    capabilities.iter().try_for_each(|capability| match unfit(capability) {
        Some(why) => Err(Error::invalid(why)),
        None => Ok(()),
    })
}

/// The reason why a bucket can't have this capability; `None` if it can.
#[must_use]
pub fn unfit(capability: &VolumeCapability) -> Option<&'static str> {
    let mode = capability.access_mode.map_or(Mode::Unknown, |access| access.mode());
    match &capability.access_type {
        Some(AccessType::Block(_)) => Some(
            "volume_capability asks for a block device, and a bucket is a file system: set volumeMode: Filesystem in the \
             PersistentVolumeClaim",
        ),
        None => Some("volume_capability.access_type is missing: it must be mount"),
        Some(AccessType::Mount(_)) if mode == Mode::Unknown => Some(
            "volume_capability.access_mode is missing or unknown: set accessModes of the PersistentVolumeClaim to \
             ReadWriteMany, ReadOnlyMany, ReadWriteOnce or ReadWriteOncePod",
        ),
        Some(AccessType::Mount(_)) => None,
    }
}

/// The capacity that a claim requests, in bytes. It is recorded, never enforced: a bucket has no size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    required: i64,
    /// The upper limit; 0 for none.
    limit: i64,
}

impl Capacity {
    /// Checks the capacity of a call.
    ///
    /// # Errors
    /// `InvalidArgument`: a negative number, or a limit below the required size.
    pub fn new(range: Option<CapacityRange>) -> Result<Self> {
        let range = range.unwrap_or_default();
        let (required, limit) = (range.required_bytes, range.limit_bytes);
        if required < 0 || limit < 0 {
            return Err(Error::invalid("capacity_range holds a number below zero"));
        }
        if limit != 0 && limit < required {
            return Err(Error::invalid(format!(
                "capacity_range.limit_bytes {limit} is less than required_bytes {required}"
            )));
        }
        Ok(Self { required, limit })
    }

    /// The capacity to record and to answer, in bytes.
    #[must_use]
    pub fn recorded(self) -> i64 {
        match (self.required, self.limit) {
            (0, 0) => DEFAULT_BYTES,
            (0, limit) => limit.min(DEFAULT_BYTES),
            (required, _) => required,
        }
    }

    /// Whether a volume of `bytes` has the requested size.
    #[must_use]
    pub fn is_met_by(self, bytes: i64) -> bool {
        bytes >= self.required && (self.limit == 0 || bytes <= self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::csi::volume_capability::{AccessMode, BlockVolume, MountVolume};

    fn capability(mode: Mode) -> VolumeCapability {
        VolumeCapability {
            access_mode: Some(AccessMode { mode: mode.into() }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        }
    }

    fn capacity(required: i64, limit: i64) -> Result<Capacity> {
        Capacity::new(Some(CapacityRange { required_bytes: required, limit_bytes: limit }))
    }

    #[test]
    fn a_bucket_can_be_mounted_in_every_mode_and_is_no_block_device() {
        for mode in [
            Mode::SingleNodeWriter,
            Mode::SingleNodeReaderOnly,
            Mode::MultiNodeReaderOnly,
            Mode::MultiNodeSingleWriter,
            Mode::MultiNodeMultiWriter,
            Mode::SingleNodeSingleWriter,
            Mode::SingleNodeMultiWriter,
        ] {
            assert!(capabilities(&[capability(mode)]).is_ok(), "{mode:?}");
        }
        let good = capability(Mode::MultiNodeMultiWriter);
        let block = VolumeCapability {
            access_mode: good.access_mode,
            access_type: Some(AccessType::Block(BlockVolume {})),
        };
        for (given, words) in [
            (vec![], "volume_capabilities is missing"),
            (vec![good.clone(), capability(Mode::Unknown)], "accessModes"),
            (vec![VolumeCapability { access_mode: None, ..good.clone() }], "accessModes"),
            (vec![VolumeCapability { access_type: None, ..good.clone() }], "access_type"),
            (vec![good, block], "volumeMode: Filesystem"),
        ] {
            let error = capabilities(&given).unwrap_err().to_string();
            assert!(error.contains(words), "{words}: {error}");
        }
    }

    #[test]
    fn a_size_is_recorded_within_its_limit() {
        assert_eq!(Capacity::new(None).unwrap().recorded(), 1 << 30);
        assert_eq!(capacity(5, 0).unwrap().recorded(), 5);
        assert_eq!(capacity(5, 7).unwrap().recorded(), 5);
        assert_eq!(capacity(0, 7).unwrap().recorded(), 7);
        for (required, limit) in [(-1, 0), (0, -1), (7, 5)] {
            assert!(capacity(required, limit).is_err(), "{required} {limit}");
        }
        let asked = capacity(5, 7).unwrap();
        assert!(
            [5, 6, 7].into_iter().all(|bytes| asked.is_met_by(bytes))
                && !asked.is_met_by(4)
                && !asked.is_met_by(8)
        );
    }

    #[test]
    fn a_name_is_as_long_as_csi_allows() {
        assert!(name(&"n".repeat(128)).is_ok());
        assert!(name("").is_err() && name(&"n".repeat(129)).is_err());
    }
}
