//! `scality-s3-csi-holder`: the process of the node pod that keeps the mounts of Mountpoint Pods whose container ends. It may end at any
//! time: mounts go on, and mounters register them with the next holder.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use csi::command_line;
use csi::contract::log::{self, LogFormat};
use csi::holder::{self, Config, Holds, status};
use csi::mounter::peer::Processes;
use tokio::signal::unix::{SignalKind, signal};

/// Keeps the device and the journal of each mount, for the next container of its Mountpoint Pod.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The kubelet's directory
    #[arg(long, env = "KUBELET_PATH", default_value = "/var/lib/kubelet", value_name = "DIR")]
    kubelet: PathBuf,
    /// Form of log lines: text or json
    #[arg(long, env = log::VARIABLE, default_value = "text")]
    log_format: LogFormat,
    /// Print what the holder of this pod holds, and end
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let args: Args = command_line::read();
    let lines = tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false);
    match args.log_format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().init(),
    }
    let done = if args.check { check() } else { hold(args.kubelet) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn check() -> io::Result<()> {
    let text = status::ask()
        .map_err(|error| io::Error::new(error.kind(), format!("no holder answers in this pod: {error}")))?;
    io::stdout().write_all(text.as_bytes())
}

/// Runs the holder until SIGTERM or SIGINT.
fn hold(kubelet: PathBuf) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let holds = Holds::default();
        let config = Config { kubelet, processes: Processes::default() };
        tokio::select! {
            ended = holder::run(config, Holds::clone(&holds)) => ended.map_err(io::Error::other),
            ended = status::answer(holds) => ended,
            _ = terminate.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
        }
    });
    // A thread may still wait for a mounter that sends nothing.
    runtime.shutdown_background();
    ended
}
