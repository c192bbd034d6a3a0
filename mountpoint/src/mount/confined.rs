//! The sandbox of a mount, put together: its helper, which starts before it, and the moment of the confinement.
//!
//! A device from another process is served only after the confinement. This process's own mount needs privileges until it exists, so it
//! is served without the sandbox for a moment.

use std::process::Child;

use anyhow::bail;

use super::desk;
use super::owned::Who;
use crate::broker;
use crate::config::sandboxed::Sandbox;
use crate::fs::DeviceNo;
use crate::fuse::{Device, Transport};
use crate::s3::{self, SourceOfKeys};
use crate::sandbox::{self, Folders, Lacking, Rings};

/// The sandbox of this process, in force or about to be.
#[derive(Debug)]
pub(super) struct Confinement {
    is_required: bool,
    folders: Folders,
    rings: Rings,
    _helper: Child,
}

impl Confinement {
    /// Starts the helper. `None`: there is no sandbox, because the user wants none, because a mount would lose its keys in it, or because
    /// the helper can't start. Call this before the first request to a helper: a started helper stays.
    ///
    /// # Errors
    /// The sandbox is required, and the helper can't start.
    pub(super) async fn begin(
        wish: Option<Sandbox>,
        device: &Device,
        transport: Transport,
        of_store: &s3::Config,
    ) -> anyhow::Result<Option<Self>> {
        let Some(wish) = wish else { return Ok(None) };
        let source = s3::source_of_keys(of_store.profile.as_deref()).await;
        let has_proxies = of_store.proxies.http.is_some() || of_store.proxies.https.is_some();
        if !wish.is_required
            && let Some(why) = prevented(&wish, &source, has_proxies, Who::root().as_ref())
        {
            tracing::warn!("no sandbox, because {why}; MOUNT_S3_SANDBOX=0 or --sandbox says what you want");
            return Ok(None);
        }
        let Sandbox { is_required, folders, cache, .. } = wish;
        let dir = match device {
            Device::Mount(dir) => Some(dir.as_path()),
            Device::Adopted(_) | Device::Outliving(_) => None,
        };
        let is_adopted = matches!(device, Device::Adopted(_));
        let rings = if is_adopted && transport == Transport::IoUring { Rings::Made } else { Rings::Open };
        match desk::start(dir, cache.as_deref()) {
            Ok(helper) => {
                // A confined engine can't name a program any more.
                if let (Some(broker), Some(program)) = (broker::of_this_process(), source.program) {
                    broker.program(program)?;
                }
                Ok(Some(Self { is_required, folders, rings, _helper: helper }))
            }
            Err(error) if is_required => Err(error.context("--sandbox on")),
            Err(error) => {
                tracing::warn!("no sandbox, as its helper can't start: {error:#}");
                Ok(None)
            }
        }
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
        judge(&sandbox::enter(&self.folders, self.rings), self.is_required)
    }

    /// Confines this process, after it told the helper the mount to unmount from here on.
    ///
    /// # Errors
    /// The errors of [`Self::enter`], or the helper does not answer.
    pub(super) fn enter_mounted(&self, device: Option<DeviceNo>) -> anyhow::Result<()> {
        if let Some(broker) = broker::of_this_process() {
            broker.mounted(device.map(|device| (device.major, device.minor)))?;
        }
        self.enter()
    }
}

/// The reason why a mount that works would fail in this sandbox, at once or after hours. `root`: the user, if it is root.
fn prevented(wish: &Sandbox, keys: &SourceOfKeys, has_proxies: bool, root: Option<&Who>) -> Option<String> {
    if keys.is_out_of_reach {
        return Some(
            "it would close the source of the profile's keys: a credential_process behind source_profile, a web_identity_token_file, or \
             an sso_session"
                .to_owned(),
        );
    }
    if has_proxies && keys.program.is_some() {
        return Some(
            "the profile's credential_process would run without the variables of proxies".to_owned(),
        );
    }
    let root = root?;
    let key = wish.keys.iter().find(|file| !root.reads(file));
    let beyond = key.or_else(|| wish.folders.written.iter().find(|folder| !root.changes(folder)))?;
    Some(format!("root would have no rights to {}, which another user owns", beyond.display()))
}

/// Logs what the sandbox lacks.
///
/// # Errors
/// A required sandbox lacks a part.
fn judge(lacking: &[Lacking], is_required: bool) -> anyhow::Result<()> {
    if lacking.is_empty() {
        tracing::info!("this process is confined to its mount: docs/hosts.md says what it may still do");
        return Ok(());
    }
    let lacking = named(lacking);
    if is_required {
        bail!(
            "--sandbox on: this system can't confine everything: {lacking}; --sandbox auto mounts without it"
        );
    }
    tracing::warn!("the sandbox lacks a part, and the mount works without it: {lacking}");
    Ok(())
}

/// The missing parts in one line.
fn named(lacking: &[Lacking]) -> String {
    lacking.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Creates folders that the engine otherwise makes at their first use: a rule needs an existing folder. A failure here is ignored; it
/// causes an error at the use.
fn make_missing(folders: &Folders) {
    use std::os::unix::fs::DirBuilderExt as _;
    for folder in &folders.written {
        let _ = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::testing::log_of;

    #[test]
    fn a_kernel_without_landlock_is_warned_of_or_refused_if_it_is_required() {
        let lacking = [Lacking::Files("this kernel has none".to_owned())];
        let log = log_of(|| judge(&lacking, false).unwrap());
        assert!(log.contains(" WARN ") && log.contains("landlock, which confines files"), "{log}");
        let refused = log_of(|| {
            let error = judge(&lacking, true).unwrap_err().to_string();
            assert!(error.contains("landlock") && error.contains("--sandbox auto"), "{error}");
        });
        assert_eq!(refused, "", "the error says it");
        let whole = log_of(|| judge(&[], true).unwrap());
        assert!(whole.contains(" INFO ") && whole.contains("confined to its mount"), "{whole}");
    }

    #[test]
    fn a_sandbox_that_would_end_keys_or_a_cache_is_prevented() {
        let dir = tempfile::tempdir().unwrap();
        let closed = dir.path().join("closed");
        std::fs::write(&closed, "").unwrap();
        let modes = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&closed, modes(0o600)).unwrap();
        std::fs::set_permissions(dir.path(), modes(0o755)).unwrap();
        let (nobody, open) = (Who::stranger(), dir.path().to_owned());
        let wish = |keys: &[&Path], written: &[&Path]| {
            let of = |paths: &[&Path]| paths.iter().map(|&path| path.to_owned()).collect();
            let folders = Folders { written: of(written), read: Vec::new() };
            Sandbox { is_required: false, folders, keys: of(keys), cache: None }
        };
        let (known, printed) = (
            SourceOfKeys::default(),
            SourceOfKeys { program: Some("cat".to_owned()), ..SourceOfKeys::default() },
        );
        let lost = SourceOfKeys { is_out_of_reach: true, ..SourceOfKeys::default() };
        let plain = wish(&[&open], &[]);
        for (wish, source, has_proxies, who, expected) in [
            (&plain, &known, true, Some(&nobody), None),
            (&plain, &printed, false, None, None),
            (&plain, &printed, true, None, Some("proxies")),
            (&plain, &lost, false, None, Some("sso_session")),
            (&wish(&[&closed], &[]), &known, false, None, None),
            (&wish(&[&closed], &[]), &known, false, Some(&nobody), Some("closed")),
            (&wish(&[], &[&open]), &known, false, Some(&nobody), Some("another user")),
        ] {
            let why = prevented(wish, source, has_proxies, who);
            assert_eq!(why.is_some(), expected.is_some(), "{why:?}");
            assert!(why.unwrap_or_default().contains(expected.unwrap_or_default()));
        }
    }
}
