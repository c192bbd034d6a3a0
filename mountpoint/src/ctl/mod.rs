//! The command `mount-s3-ctl`: asks running mounts for their state, fills their caches.
//!
//! Enters: a command line. Leaves: text or JSON on standard output, an exit code. It never waits long for a mount that hangs, never
//! looks into a directory whose mount may hang, and never serves a file.

mod ask;
mod find;
mod show;
mod status;
mod table;
mod top;
mod warm;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use crate::cli::VERSION;
use crate::daemon::one_line;

/// Look at running mounts of mount-s3
#[derive(Debug, Parser)]
#[command(name = "mount-s3-ctl", version = VERSION, max_term_width = 100)]
struct Line {
    /// Folder of the mounts' sockets, beside /run/mount-s3
    #[arg(long, env = "XDG_RUNTIME_DIR", hide = true)]
    runtime_dir: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the state of all mounts of this user, or of the one at DIR
    Status {
        /// Directory of a mount, or one in it
        dir: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the state of one mount, live
    Top {
        /// Directory of a mount, or one in it
        dir: PathBuf,
        /// Seconds between two looks
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
        every: u64,
    },
    /// Read files and folders into the disk cache of their mount; run it again to go on where it stopped
    Warm {
        /// Files, or folders with all that is below
        #[arg(required = true)]
        paths: Vec<PathBuf>,
        /// Files read at once
        #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
        at_once: u16,
    },
}

/// Runs it.
pub fn main() -> ExitCode {
    let line = Line::parse();
    match run(line) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("mount-s3-ctl: {}", one_line(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(line: Line) -> anyhow::Result<ExitCode> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting a runtime")?;
    let places = find::places(line.runtime_dir.as_deref().filter(|dir| !dir.as_os_str().is_empty()));
    let outcome = match line.command {
        Command::Status { dir, json } => runtime.block_on(status::run(&places, dir.as_deref(), json)),
        Command::Top { dir, every } => {
            runtime.block_on(top::run(&places, &dir, std::time::Duration::from_secs(every)))
        }
        Command::Warm { paths, at_once } => warm::run(&runtime, &places, &paths, at_once.into()),
    };
    // A thread that looks at a mount that hangs, or waits for a key, must not hold us.
    runtime.shutdown_background();
    outcome
}

/// A name fit for a terminal: a control character in it could speak to the terminal.
fn printable(name: impl std::fmt::Display) -> String {
    name.to_string().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Prints on standard output. A closed output is no error.
fn say(text: &str) {
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
