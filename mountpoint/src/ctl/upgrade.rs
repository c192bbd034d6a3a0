//! `mount-s3-ctl upgrade`: makes a mount hand over to the installed program, and reports which program then serves it.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use http::{Request, StatusCode};
use mountpoint::clock::Clock;
use mountpoint::telemetry::{SocketFolder, UPGRADE};

use super::ask::{SOON, Seen, ask, send};
use super::{find, printable, say};

/// Longest wait for a serving engine after the handover began: the new engine has 10 s, then the old one returns.
const SERVES_WITHIN: Duration = Duration::from_secs(30);
/// Longest wait for a mount's answer, besides the wait for writers. The check of the new program takes up to 10 s of it.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);
/// Interval between requests for the mount's state.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Upgrades the mount at `dir`. `within`: seconds to wait for files that are being written.
pub(super) async fn run(places: &[SocketFolder], dir: &Path, within: u32) -> anyhow::Result<ExitCode> {
    let shown = printable(dir.display());
    let found = find::at(places, dir)?;
    let before = found.entry.with_context(|| {
        format!("{shown}: the mount has no socket in /run/mount-s3 or XDG_RUNTIME_DIR: it can't be asked")
    })?;
    let clock = Clock::machine();
    let request = Request::post(format!("{UPGRADE}?within={within}"));
    let limit = Duration::from_secs(within.into()) + ANSWERS_WITHIN;
    match clock.timeout(limit, send(&before, request)).await {
        None => bail!("{shown}: the mount does not answer: see 'mount-s3-ctl status {shown}'"),
        Some(Ok((StatusCode::CONFLICT, reason))) => {
            bail!("{shown}: {}", printable(String::from_utf8_lossy(&reason)))
        }
        Some(Ok((status, _))) => {
            bail!(
                "{shown}: version {} of mount-s3 can't be upgraded in place ({status}): unmount it",
                before.origin.version
            )
        }
        Some(Err(error)) if is_unreachable(&error) => {
            return Err(error).with_context(|| format!("{shown}: asking the mount"));
        }
        // The mount's process runs another program: the connection ends without an answer.
        Some(Err(_)) => {}
    }
    let until = clock.now() + SERVES_WITHIN;
    let now = loop {
        if let Ok(found) = find::at(places, dir)
            && let Seen::Serving(status) = ask(&found, SOON).await
        {
            break status.origin;
        }
        if clock.now() > until {
            bail!(
                "{shown}: no engine serves the mount after {} s: see its log, and 'systemctl status' of its unit",
                SERVES_WITHIN.as_secs()
            );
        }
        clock.sleep(ASK_AGAIN).await;
    };
    if now.pid == before.origin.pid {
        bail!(
            "{shown}: the installed program did not take the mount over, and version {} (process {}) serves it again: its log says why",
            now.version,
            now.pid
        );
    }
    say(&format!("{shown}: version {} (process {}) serves it now\n", printable(&now.version), now.pid));
    Ok(ExitCode::SUCCESS)
}

/// Whether the request can't have reached the mount.
fn is_unreachable(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied};
    matches!(error.kind(), ConnectionRefused | NotFound | PermissionDenied)
}
