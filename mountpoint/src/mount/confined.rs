//! The sandbox of a mount, put together: the helper that starts before it, and the moment from which it holds.
//!
//! A device from another process is served only after the confinement. This process's own mount needs privileges until it exists, so it
//! is served without the sandbox for a moment.

use std::process::Child;

use anyhow::bail;

use super::desk;
use crate::broker;
use crate::config::sandboxed::Sandbox;
use crate::fs::DeviceNo;
use crate::fuse::{Device, Transport};
use crate::s3;
use crate::sandbox::{self, Folders, Lacking, Rings};

/// A sandbox that holds, or is about to.
#[derive(Debug)]
pub(super) struct Confinement {
    is_required: bool,
    folders: Folders,
    rings: Rings,
    _helper: Child,
}

impl Confinement {
    /// Starts the helper. `None`: there is no sandbox, because the user wants none, or because the helper can't start.
    ///
    /// # Errors The sandbox is required, and the helper can't start.
    pub(super) fn begin(
        wish: Option<Sandbox>,
        device: &Device,
        transport: Transport,
    ) -> anyhow::Result<Option<Self>> {
        let Some(Sandbox { is_required, folders, cache }) = wish else { return Ok(None) };
        let dir = match device {
            Device::Mount(dir) => Some(dir.as_path()),
            Device::Adopted(_) | Device::Outliving(_) => None,
        };
        let is_adopted = matches!(device, Device::Adopted(_));
        let rings = if is_adopted && transport == Transport::IoUring { Rings::Made } else { Rings::Open };
        match desk::start(dir, cache.as_deref()) {
            Ok(helper) => Ok(Some(Self { is_required, folders, rings, _helper: helper })),
            Err(error) if is_required => Err(error.context("--sandbox on")),
            Err(error) => {
                tracing::warn!("no sandbox, as its helper can't start: {error:#}");
                Ok(None)
            }
        }
    }

    /// The sandbox, unless the keys of this profile could not be renewed in it. A required sandbox stays.
    pub(super) async fn if_keys_allow(self, profile: Option<&str>) -> Option<Self> {
        if self.is_required || !s3::needs_no_sandbox(profile).await {
            return Some(self);
        }
        tracing::warn!(
            "no sandbox, because it would close the source of the profile's keys: a credential_process behind source_profile, or a \
             web_identity_token_file; --sandbox on confines all the same"
        );
        None
    }

    /// Confines this process.
    ///
    /// # Errors
    /// The sandbox is required, and this system lacks a part of it.
    pub(super) fn enter(&self) -> anyhow::Result<()> {
        make_missing(&self.folders);
        if let Some(broker) = broker::of_this_process() {
            broker.confined()?;
        }
        let lacking = sandbox::enter(&self.folders, self.rings);
        if lacking.is_empty() {
            tracing::info!("this process is confined to its mount: docs/hosts.md says what it may still do");
            return Ok(());
        }
        let lacking = named(&lacking);
        if self.is_required {
            bail!(
                "--sandbox on: this system can't confine everything: {lacking}; --sandbox auto mounts without it"
            );
        }
        tracing::warn!("the sandbox lacks a part, and the mount works without it: {lacking}");
        Ok(())
    }

    /// Confines this process, and names its own mount, which the helper unmounts from here on.
    ///
    /// # Errors The same as [`Self::enter`], or the helper does not answer.
    pub(super) fn enter_mounted(&self, device: Option<DeviceNo>) -> anyhow::Result<()> {
        if let Some(broker) = broker::of_this_process() {
            broker.mounted(device.map(|device| (device.major, device.minor)))?;
        }
        self.enter()
    }
}

/// The parts in one line.
fn named(lacking: &[Lacking]) -> String {
    lacking.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Makes folders that the engine otherwise makes at their first use: a rule needs an existing folder. A folder that can't be made causes
/// an error later.
fn make_missing(folders: &Folders) {
    use std::os::unix::fs::DirBuilderExt as _;
    for folder in &folders.written {
        let _ = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    }
}
