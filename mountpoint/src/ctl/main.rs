//! `mount-s3-ctl`: shows the state of running mounts, fills their caches, and examines a store before it is mounted.
//!
//! Enters: a command line. Leaves: text or JSON on standard output, and an exit code. 0: done; 1: a problem, which the output describes; 2:
//! bad usage. The command never waits long for a hanging mount, never reads a directory whose mount may hang, and never serves a file.

mod ask;
mod doctor;
mod find;
mod kept;
mod show;
mod status;
mod sync;
mod table;
mod top;
mod upgrade;
mod warm;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use mountpoint::cli::{self, StoreOptions, VERSION};
use mountpoint::config::{self, StoreConfig};
use mountpoint::daemon::one_line;

/// The parent of users' runtime directories, for root. Their names are the users' ids.
const OF_USERS: &str = "/run/user";

/// Look at running mounts of mount-s3, and at stores before they are mounted
#[derive(Debug, Parser)]
#[command(name = "mount-s3-ctl", version = VERSION, max_term_width = 100, after_help = AFTER)]
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
        /// Seconds between two updates
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
        every: u64,
    },
    /// Read files and folders into the disk cache of their mount; run again after an interruption, it continues where it stopped
    Warm {
        /// Files, or folders with all that is below
        #[arg(required = true)]
        paths: Vec<PathBuf>,
        /// Files read at once
        #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
        at_once: u16,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Hand the supervised mount at DIR to the program that is installed now, without unmounting it
    #[command(after_help = UPGRADE_AFTER)]
    Upgrade {
        /// Directory of a mount, or one in it
        dir: PathBuf,
        /// Seconds to wait for files that are being written
        #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(0..=86_400))]
        within: u32,
    },
    /// List the files that a stage of --mode full keeps because they could not be stored, with the reason
    Kept {
        /// Directory of --stage
        stage: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Store what a mount with --mode full has pending at PATH or below it, wait for that, and name what can't be stored
    #[command(after_help = SYNC_AFTER)]
    Sync {
        /// File or directory in a mount
        path: PathBuf,
        /// Seconds in which files that can't be stored, or that programs have open for writing, are tried again
        #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=86_400))]
        within: u32,
    },
    /// Copy a kept file to where it is wanted, and keep it no more
    #[command(after_help = RESTORE_AFTER)]
    Restore {
        /// File in kept/ of a stage, as 'mount-s3-ctl kept' names it
        file: PathBuf,
        /// New file, in a mount or elsewhere
        to: PathBuf,
        /// Take a file that has zeros where bytes of the object were never fetched
        #[arg(long)]
        partial: bool,
    },
    /// Ask the kernel about the file system at DIR; the exit code has the answer
    #[command(name = ask::LOOK, hide = true)]
    Look { dir: PathBuf },
    /// Examine the store of a bucket: what works, what will not, and the flags to mount with
    #[command(after_help = DOCTOR_AFTER)]
    Doctor {
        #[command(flatten)]
        store: Box<StoreOptions>,
        /// Write, too: below a new prefix, whose objects are removed at the end
        #[arg(long)]
        write_probes: bool,
        /// Connections that read at once when throughput is measured; it is also measured with one
        #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=64))]
        connections: u16,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

const AFTER: &str = "mount-s3-ctl --completions bash|elvish|fish|powershell|zsh prints completions, mount-s3-ctl --man [COMMAND] manual pages.";

const UPGRADE_AFTER: &str = "\
The mount needs --supervised. Programs that read see a pause; open files, listings and working directories go on. Files that are being written are
waited for, and named if they are still open at the end of that time: nothing has changed then. If the new program does not serve within 10
seconds, the program of before serves again.

Exit code 0: the new program serves; 1: the program of before serves, or the mount could not be asked; 2: bad usage.";

const SYNC_AFTER: &str = "\
It waits as long as bytes take to be sent. A store that is away is given up as by any request of the mount, and tried again within that time.

Exit code 0: the bucket has all of it; 1: it lacks the files that are named, or the mount could not be asked; 2: bad usage.";

const RESTORE_AFTER: &str = "\
The file is removed from the stage once all of it is written and synced under the new name. It replaces no file there.

Exit code 0: it is restored; 1: it is kept as before, and the error says why; 2: bad usage.";

const DOCTOR_AFTER: &str = "\
It takes the flags of mount-s3 that name the store, and sends the requests of a mount. Without --write-probes it writes nothing.
The measurements read at most 64 MiB on each connection.

Exit code 0: everything that was tried will work; 1: something will not work, or the bucket can't be reached; 2: bad usage.";

/// Reads the command line, and the environment with the rules of AWS's tools.
fn read(line: Vec<OsString>) -> Result<Line, clap::Error> {
    let mut remarks = Vec::new();
    let (command, _) = cli::heeded(Line::command());
    let command = command.mut_subcommand("doctor", |doctor| {
        let (doctor, found) = cli::heeded(doctor);
        remarks = found;
        doctor
    });
    let mut line = Line::from_arg_matches(&command.try_get_matches_from(line)?)?;
    if let Command::Doctor { store, .. } = &mut line.command {
        let completed = store.as_ref().clone().completed();
        **store = completed.map_err(|error| clap::Error::raw(ErrorKind::ValueValidation, error + "\n"))?;
        for remark in remarks {
            if let cli::Remark::Warning(text) = remark {
                eprintln!("mount-s3-ctl: {text}");
            }
        }
    }
    Ok(line)
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    if let Some(page) = cli::pages::asked(&words, Line::command) {
        let _ = std::io::stdout().write_all(&page.unwrap_or_else(|error| error.exit()));
        return ExitCode::SUCCESS;
    }
    let line = match read(words) {
        Ok(line) => line,
        Err(error) => error.exit(),
    };
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
    let runtime_dir = line.runtime_dir.as_deref().filter(|dir| !dir.as_os_str().is_empty());
    let places = find::places(runtime_dir, Path::new(OF_USERS));
    let outcome = match line.command {
        Command::Status { dir, json } => runtime.block_on(status::run(&places, dir.as_deref(), json)),
        Command::Look { dir } => Ok(ask::look(&dir)),
        Command::Kept { stage, json } => kept::list(&stage, json),
        Command::Sync { path, within } => runtime.block_on(sync::run(&places, &path, within)),
        Command::Restore { file, to, partial } => kept::restore(&file, &to, partial),
        Command::Top { dir, every } => {
            runtime.block_on(top::run(&places, &dir, std::time::Duration::from_secs(every)))
        }
        Command::Upgrade { dir, within } => runtime.block_on(upgrade::run(&places, &dir, within)),
        Command::Warm { paths, at_once, json } => warm::run(&runtime, &places, &paths, at_once.into(), json),
        Command::Doctor { store, write_probes, connections, json } => {
            let StoreConfig { s3, checksum, part } =
                config::store(&store, doctor::PATIENCE).map_err(anyhow::Error::msg)?;
            let config = doctor::Config { s3, checksum, part, connections: connections.into(), write_probes };
            let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
            let words = words.skip_while(|word| word != "doctor").skip(1).collect::<Vec<_>>();
            doctor::command::run(config, &store.bucket, &words, json)
        }
    };
    // A thread that waits for a hanging mount, or for a key, must not keep the program alive.
    runtime.shutdown_background();
    outcome
}

/// A name that is safe on a terminal: control characters, which could command the terminal, are replaced with `?`.
fn printable(name: impl std::fmt::Display) -> String {
    name.to_string().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A word of a command, quoted for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=/.:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Prints to standard output. A closed output is not an error.
fn say(text: &str) {
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
