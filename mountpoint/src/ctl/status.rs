//! `mount-s3-ctl status`: prints the state of all mounts, or of one.

use std::path::Path;
use std::process::ExitCode;

use mountpoint::telemetry::SocketFolder;
use serde::Serialize;

use super::ask::{SOON, Seen, ask};
use super::{find, say, show};

#[derive(Debug, Serialize)]
struct Report {
    mounts: Vec<Seen>,
}

/// Prints the state of mounts. The exit code is 1 if one of them does not work.
pub(super) async fn run(places: &[SocketFolder], dir: Option<&Path>, json: bool) -> anyhow::Result<ExitCode> {
    let found = match dir {
        Some(dir) => vec![find::at(places, dir)?],
        None => find::all(places)?,
    };
    let asked: Vec<_> = found.iter().map(|it| ask(it, SOON)).collect();
    let mounts = futures_util::future::join_all(asked).await;
    let all_serve =
        mounts.iter().all(|seen| matches!(seen, Seen::Serving(_) | Seen::Silent { answers: true, .. }));
    if json {
        say(&format!("{}\n", serde_json::to_string_pretty(&Report { mounts })?));
    } else if mounts.is_empty() {
        say("No mount of this user.\n");
    } else {
        let texts: Vec<String> = mounts.iter().map(show::seen).collect();
        say(&texts.join("\n"));
    }
    Ok(if all_serve { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
