//! `mount-s3`: flags, then a mount, then an exit code. 0: mounted (background) or unmounted (foreground); 1: it failed; 2: bad usage.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use mountpoint::cli::Args;
use mountpoint::config::{self, Config};
use mountpoint::daemon;
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
        (false, false) => daemon::start(),
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
    if in_background {
        daemon::detach()?;
    }
    let mounted = start(args);
    if in_background {
        if let Err(error) = daemon::report(mounted.as_ref().map(|_| ())) {
            // Nobody waits for this mount any more.
            if let Ok((mounted, _)) = &mounted {
                let _ = mounted.unmounter().unmount();
            }
            return Err(error);
        }
        if mounted.is_err() {
            // The first process tells the user.
            std::process::exit(1);
        }
    }
    let (mounted, signals) = mounted?;
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
