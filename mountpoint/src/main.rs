//! `mount-s3`: flags, then a mount, then an exit code. 0: mounted (background) or unmounted (foreground); 1: it failed; 2: bad usage.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use mountpoint::cli::Args;
use mountpoint::config::{self, Config};
use mountpoint::daemon::{self, ReadyFile};
use mountpoint::fuse::Unmounter;
use mountpoint::{logging, mount};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Measured: receiving through hyper costs 30 % less CPU than with glibc's allocator (ARCHITECTURE.md, Decisions).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let args = Args::parse();
    let in_background = std::env::var_os(daemon::BACKGROUND_ENV).is_some();
    let outcome = match (args.foreground, in_background) {
        (true, _) => run(&args, false),
        (false, true) => run(&args, true),
        (false, false) => daemon::start(args.ready_file.as_deref()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mount-s3: {}", daemon::one_line(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args, in_background: bool) -> anyhow::Result<()> {
    // In the background the first process has the ready file, and we have the ready pipe.
    let ready = args.ready_file.as_deref().filter(|_| !in_background).map(ReadyFile::open).transpose()?;
    if in_background {
        daemon::detach()?;
    }
    let mounted = start(args);
    let outcome = mounted.as_ref().map(|_| ());
    let said = match ready {
        _ if in_background => daemon::report(outcome),
        Some(ready) => ready.say(outcome),
        None => Ok(()),
    };
    if let (Err(_), Ok((mounted, _))) = (&said, &mounted) {
        // Nobody waits for this mount any more.
        let _ = mounted.unmounter().unmount();
    }
    if in_background && said.is_ok() && mounted.is_err() {
        // The first process tells the user.
        std::process::exit(1);
    }
    let (mounted, signals) = mounted?;
    said?;
    tracing::info!("{} is mounted at {}", args.bucket, args.directory.display());
    unmount_on_signals(signals, mounted.unmounter(), mounted.farewell())?;
    let served = mounted.wait();
    tracing::info!("{} is unmounted", args.bucket);
    served
}

fn start(args: &Args) -> anyhow::Result<(mount::Mounted, Signals)> {
    logging::init(&config::logging(args))?;
    let started = Config::from_args(args).and_then(mount::connect).and_then(|connected| {
        // While the store is asked a signal simply ends us; from here on there may be a mount to be left behind.
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("taking signals")?;
        Ok((connected.mount()?, signals))
    });
    if let Err(error) = &started {
        tracing::error!("{}", daemon::one_line(error));
    }
    started
}

/// SIGINT, SIGTERM and SIGHUP unmount; serving ends then by itself. A device that was handed to us is left: its
/// owner unmounts, or mounts anew; uploads are ended before we leave.
fn unmount_on_signals(
    mut signals: Signals,
    unmounter: Unmounter,
    farewell: mount::Farewell,
) -> anyhow::Result<()> {
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            tracing::info!("signal {signal}: unmounting");
            match unmounter.unmount() {
                Ok(true) => {}
                Ok(false) => {
                    farewell.say();
                    std::process::exit(0)
                }
                Err(error) => tracing::error!("unmounting failed: {error}"),
            }
        }
    })?;
    Ok(())
}
