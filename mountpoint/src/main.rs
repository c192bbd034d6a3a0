//! `mount-s3`: parses flags, mounts, and exits with a code. 0: mounted (background) or unmounted (foreground); 1: failure; 2: bad usage; 3:
//! the journal of a mount that outlives its engine can't be used.

mod logging;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;
use mountpoint::cli::{self, Args, Asked, FromMount, Remark};
use mountpoint::clock::Clock;
use mountpoint::config::{self, Config};
use mountpoint::daemon::{self, ReadyFile, ServiceManager};
use mountpoint::fuse::Watcher;
use mountpoint::handover::{self, Guard};
use mountpoint::mount::{self, Process};
use mountpoint::outlive::Refused;
use mountpoint::supervise::Supervisor;
use mountpoint::sync::Arc;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::iterator::Signals;

/// The allocator of this process. Measured: receiving through hyper costs 30 % less CPU with mimalloc than with glibc's allocator (the
/// reason for `mimalloc` in Cargo.toml).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Most open files of this process, if its hard limit allows them. Doubling it allows twice as many parts on disk, and delays the start of
/// a child that closes every descriptor up to its limit.
const OPEN_FILES_MAX: u64 = 1 << 20;

/// The exit status for an unusable journal. Units name it in `RestartPreventExitStatus=`.
const JOURNAL_REFUSED: u8 = 3;

fn main() -> ExitCode {
    free_across_threads();
    if let Some(watcher) = Watcher::asked(std::env::args_os()) {
        return match watcher.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE, // no one reads its output
        };
    }
    if let Some(desk) = mount::Desk::asked(std::env::args_os()) {
        return match desk.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE, // no one reads its output
        };
    }
    if let Some(guard) = Guard::asked(std::env::args_os()) {
        let manager = std::env::var_os(daemon::NOTIFY_ENV).and_then(|socket| ServiceManager::at(&socket));
        return match guard.run(manager.as_ref()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(&error),
        };
    }
    huge_pages_where_asked_for();
    let in_background = std::env::var_os(daemon::BACKGROUND_ENV).is_some();
    let words: Vec<_> = std::env::args_os().collect();
    if let Some(page) = cli::pages::asked(&words, Args::command) {
        let _ = std::io::stdout().write_all(&page.unwrap_or_else(|error| error.exit()));
        return ExitCode::SUCCESS;
    }
    let asked = match cli::asked(words) {
        Ok(asked) => asked,
        Err(error) => error.exit(),
    };
    let (args, from_mount) = match asked {
        Asked::Mount(args) => (args, FromMount::default()),
        Asked::Fstab(args, from_mount) => {
            if !in_background {
                say("Using 'fstab' style options as detected use of `-o` argument.");
            }
            (args, from_mount)
        }
    };
    let outcome = match (args.foreground, in_background) {
        _ if args.check_journal => config::check_journal(&args),
        (false, false) if from_mount.fake => Ok(()),
        (false, false) => in_the_background(&args, &from_mount),
        (_, in_background) => run(&args, in_background && !args.foreground),
    };
    logging::flush();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

/// Prints the error, and returns the exit status for it.
fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("mount-s3: {}", daemon::one_line(error));
    match error.downcast_ref::<Refused>() {
        // A restart would have the same result.
        Some(refused) if !matches!(refused, Refused::NoResend) => ExitCode::from(JOURNAL_REFUSED),
        _ => ExitCode::FAILURE,
    }
}

/// Prints a line to standard output. A closed output is not an error.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// The line on standard output that scripts wait for.
fn is_mounted(args: &Args) -> String {
    format!("{} is mounted at {}", args.description(), args.directory.display())
}

fn in_the_background(args: &Args, from_mount: &FromMount) -> anyhow::Result<()> {
    if let Some(namespace) = &from_mount.namespace {
        daemon::enter_mount_namespace(namespace)?;
    }
    if let Some(ready) = &args.ready_file {
        config::keep_from_children(ready)?;
    }
    daemon::start(args.ready_file.as_deref(), from_mount.namespace.is_some())?;
    say(&is_mounted(args));
    Ok(())
}

fn run(args: &Args, in_background: bool) -> anyhow::Result<()> {
    // A background process has the ready pipe instead; the first process writes the ready file.
    let ready = args.ready_file.as_deref().filter(|_| !in_background).map(ReadyFile::open).transpose()?;
    if in_background {
        daemon::detach()?;
    }
    let guard = config::guard_s_ready_file()?;
    // The manager follows the first process of its unit, so a background process does not report. The socket is created before the sandbox,
    // which forbids new sockets.
    let manager = std::env::var_os(daemon::NOTIFY_ENV).filter(|_| !in_background);
    let manager = manager.and_then(|socket| ServiceManager::at(&socket));
    let mounted = start(args);
    let outcome = mounted.as_ref().map(|_| ());
    if let Some(guard) = guard {
        guard.say(outcome)?;
    }
    if let Some(manager) = manager {
        manager.say(outcome);
    }
    let said = match ready {
        _ if in_background => daemon::report(outcome),
        Some(ready) => ready.say(outcome),
        None => Ok(()),
    };
    if let (Err(_), Ok(mounted)) = (&said, &mounted) {
        // No process waits for this mount any more.
        let _ = mounted.unmounter().unmount();
    }
    if in_background && said.is_ok() && mounted.is_err() {
        // The first process prints the error.
        std::process::exit(1);
    }
    let mounted = mounted?;
    said?;
    tracing::info!("successfully mounted {} at {}", args.description(), args.directory.display());
    // A JSON log has this line already, on the same standard output.
    if !in_background && !args.logs_json() {
        // The log uses the same standard output, so earlier lines come first.
        logging::flush();
        say(&is_mounted(args));
    }
    // Returns the memory that the start took and freed: this thread only waits from here on.
    collect();
    let served = mounted.wait();
    tracing::info!("{} is unmounted", args.description());
    served
}

/// Mounts, and starts every thread of this process. After it, nothing can fail before "ready" is reported.
fn start(args: &Args) -> anyhow::Result<mount::Mounted> {
    // First of all, because each of these signals would end the process by default.
    let asides = Signals::new([SIGUSR1, SIGUSR2, SIGALRM, SIGXFSZ]).context("taking signals")?;
    let level = logging::init(&logging::Config::from_args(args))?;
    heed_asides(asides, level)?;
    tracing::info!("mount-s3 {}", cli::VERSION);
    if let Some(reason) = std::env::var_os(handover::BACK_ENV) {
        let reason = reason.to_string_lossy();
        tracing::error!(
            "the installed program did not take the mount over: {reason}; the engine of before serves again"
        );
    }
    for remark in &args.remarks {
        match remark {
            Remark::Warning(text) => tracing::warn!("{text}"),
            Remark::Info(text) => tracing::info!("{text}"),
        }
    }
    raise_open_files();
    let process = Process { collect, flush_log: logging::flush, recent_errors: logging::recent };
    let started =
        Config::from_args(args).and_then(|config| mount::connect(config, process)).and_then(|connected| {
            // A signal during requests to the store may end the process; from here on there may be a mount, which must not be left behind.
            let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("taking signals")?;
            let mounted = connected.mount()?;
            if let Err(error) = unmount_on_signals(signals, &mounted) {
                let _ = mounted.unmounter().unmount();
                return Err(error);
            }
            Ok(mounted)
        });
    if let Err(error) = &started {
        tracing::error!("{}", daemon::one_line(error));
    }
    started
}

/// Raises the limit on open files: each part on disk, connection and file of the cache needs one. The usual limit, 1024, protects programs
/// that call select(2), which supports no higher descriptors; the engine does not call it. The children that inherit the limit
/// (fusermount3, a credential process, the watcher of `--auto-unmount`) inherit no high descriptors.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX).min(OPEN_FILES_MAX);
    if limit.current.is_none_or(|now| now >= most) {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit }) {
        tracing::warn!(%error, "the limit of open files can't be raised to {most}: parts of uploads wait in memory sooner");
    }
}

/// Sets how mimalloc reuses pages when one thread frees what another allocated, as it happens with names. With the setting a full page
/// belongs to no thread, and the last `free` in it returns it. By default a thread that frees into a full page takes the page over, and
/// memory that others free there waits until that thread allocates. Measured: a million forgotten names leave 34 MiB of RSS instead of 59
/// (with fuser 47 instead of 66).
#[expect(unsafe_code, reason = "the allocator's crate has no safe name for it: fence 4 of ci/tidy/fences.md")]
fn free_across_threads() {
    unsafe extern "C" {
        /// Sets an option of mimalloc, which is linked in as the allocator.
        fn mi_option_set(option: std::ffi::c_int, value: std::ffi::c_long);
    }
    /// `mi_option_page_reclaim_on_free` of mimalloc 3.3.
    const PAGE_RECLAIM_ON_FREE: std::ffi::c_int = 35;
    // SAFETY: options are plain numbers that may be set at any time, and one out of range is ignored; the signature is that of the
    // version that Cargo.lock names.
    unsafe { mi_option_set(PAGE_RECLAIM_ON_FREE, -1) }
}

/// Limits huge pages to blocks, which request them. On a machine that gives them to all memory (`always`), stacks and the allocator's heaps
/// would take 46 MiB more with 32 readers and 32 writers. Needs Linux 6.18; an older kernel refuses, and the machine's setting stays.
/// Children inherit the limit.
#[expect(unsafe_code, reason = "rustix has no name for the flag: fence 4 of ci/tidy/fences.md")]
fn huge_pages_where_asked_for() {
    unsafe extern "C" {
        /// prctl(2).
        fn prctl(option: std::ffi::c_int, ...) -> std::ffi::c_int;
    }
    const PR_SET_THP_DISABLE: std::ffi::c_int = 41;
    const PR_THP_DISABLE_EXCEPT_ADVISED: std::ffi::c_ulong = 1 << 1;
    let (on, unused): (std::ffi::c_ulong, std::ffi::c_ulong) = (1, 0);
    // SAFETY: this option names no memory, and takes four numbers of this width.
    unsafe { prctl(PR_SET_THP_DISABLE, on, PR_THP_DISABLE_EXCEPT_ADVISED, unused, unused) };
}

/// Returns freed memory to the system. The allocator would keep it until the next allocation, which after a walk through a million names
/// may be hours away.
#[expect(unsafe_code, reason = "the allocator's crate has no safe name for it: fence 4 of ci/tidy/fences.md")]
fn collect() {
    unsafe extern "C" {
        /// Returns free memory of mimalloc, which is linked in as the allocator.
        fn mi_collect(force: bool);
    }
    // SAFETY: it may be called by any thread at any time, and touches nothing but memory that was freed; the signature is that of
    // the version that Cargo.lock names.
    unsafe { mi_collect(true) }
}

/// Handles signals that must not end a mount: SIGUSR2 sets the next log level, the others do nothing.
fn heed_asides(mut asides: Signals, mut level: logging::Level) -> anyhow::Result<()> {
    let supervisor = Supervisor { metrics: Arc::default(), clock: Clock::machine() };
    supervisor.thread("asides".to_owned(), move || {
        for signal in asides.forever() {
            match signal {
                SIGUSR2 => level.cycle(),
                // The write beyond the limit on file sizes has failed, and its caller logs that.
                SIGXFSZ => {}
                other => tracing::info!("signal {other} is ignored"),
            }
        }
    })?;
    Ok(())
}

/// Unmounts on SIGINT, SIGTERM and SIGHUP, which ends serving. A device from another process is left to it: this process only ends uploads
/// and exits.
fn unmount_on_signals(mut signals: Signals, mounted: &mount::Mounted) -> anyhow::Result<()> {
    let (unmounter, farewell, leaver) = (mounted.unmounter(), mounted.farewell(), mounted.leaver());
    let supervisor = Supervisor { metrics: Arc::clone(mounted.metrics()), clock: Clock::machine() };
    supervisor.thread("signals".to_owned(), move || {
        for signal in signals.forever() {
            tracing::info!("signal {signal}: unmounting");
            match unmounter.unmount() {
                Ok(true) => leaver.leave_once_unused(|| {
                    logging::flush();
                    std::process::exit(0)
                }),
                Ok(false) => {
                    farewell.say(mountpoint::fs::MountEnd::Left);
                    logging::flush();
                    std::process::exit(0)
                }
                Err(error) => tracing::error!("unmounting failed: {error}"),
            }
        }
    })?;
    Ok(())
}
