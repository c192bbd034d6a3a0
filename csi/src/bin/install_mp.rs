//! `install-mp`: the init container of architecture v1. Enters: the engine for hosts, from this image. Leaves: a copy on the host, which
//! systemd starts.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use csi::command_line;
use csi::install::install;

/// Copies mount-s3 to a directory of the host. Running mounts keep the engine that they have.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The engine to install: one that needs no library of the host
    #[arg(
        long,
        env = "MOUNTPOINT_HOST_ENGINE",
        default_value = "/mountpoint-s3/host/mount-s3",
        value_name = "FILE"
    )]
    engine: PathBuf,
    /// The directory of the host, as this container sees it
    #[arg(long, env = "MOUNTPOINT_INSTALL_DIR", value_name = "DIR")]
    directory: PathBuf,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let args: Args = command_line::read();
    match install(&args.engine, &args.directory) {
        Ok(path) => {
            tracing::info!("{} is installed", path.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            let (engine, directory) = (args.engine.display(), args.directory.display());
            tracing::error!("installing {engine} in {directory}: {error}; is the host's directory writable?");
            ExitCode::FAILURE
        }
    }
}
