//! `mount-s3-ctl sync`: makes a mount store the pending files below a path (`--mode full`), waits for that, and lists those that can't be
//! stored.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use http::{Request, StatusCode};
use indicatif::HumanBytes;
use mountpoint::telemetry::{SYNC, SocketFolder, Synced};

use super::ask::{SOON, Seen, ask, send};
use super::{find, printable, say};

/// Syncs the files at `path` and below. `within`: seconds in which the mount retries files that can't be stored.
pub(super) async fn run(places: &[SocketFolder], path: &Path, within: u32) -> anyhow::Result<ExitCode> {
    let shown = printable(path.display());
    let found = find::at(places, path)?;
    let below = find::below(&found, path)?;
    let entry = found.entry.clone().with_context(|| {
        format!("{shown}: the mount has no socket in /run/mount-s3 or XDG_RUNTIME_DIR: it can't be asked")
    })?;
    // A healthy mount answers this at once, but the sync only when all files are stored, which may take long.
    if matches!(ask(&found, SOON).await, Seen::Hangs(_)) {
        bail!("{shown}: the mount does not answer: see 'mount-s3-ctl status {shown}'");
    }
    let below = base16ct::lower::encode_string(below.as_os_str().as_bytes());
    let request = Request::post(format!("{SYNC}?within={within}&below={below}"));
    let (status, body) = send(&entry, request).await.with_context(|| format!("{shown}: asking the mount"))?;
    match status {
        StatusCode::OK => {}
        StatusCode::CONFLICT => bail!("{shown}: {}", printable(String::from_utf8_lossy(&body))),
        _ => bail!("{shown}: version {} of mount-s3 can't be asked to sync ({status})", entry.origin.version),
    }
    let Synced { unsynced } = serde_json::from_slice(&body).map_err(io::Error::other)?;
    if unsynced.is_empty() {
        say(&format!("{shown}: the bucket has all of it\n"));
        return Ok(ExitCode::SUCCESS);
    }
    for file in &unsynced {
        let name = printable(found.mount_point().join(&file.path).display());
        say(&format!("{name}: {} are not in the bucket: {}\n", HumanBytes(file.bytes), printable(&file.why)));
    }
    Ok(ExitCode::FAILURE)
}
