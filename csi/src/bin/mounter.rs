//! `scality-s3-csi-mounter`: the process of a Mountpoint Pod. Exit code 0 means that the node has unmounted. After any other code the
//! container restarts; after 75 it gets the next image. With `--many` it is the first process of an engines pod, which starts this program
//! for each source.

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use clap::Parser;
use csi::command_line::{self, WITHOUT_FLAG};
use csi::contract::cache;
use csi::contract::comm::Comm;
use csi::contract::log::{self, LogFormat};
use csi::contract::pod;
use csi::contract::upgrade::{HANDED_OVER, IMAGE_WITHIN};
use csi::contract::volume::ENGINE_VARIABLES;
use csi::error::{Error, Result};
use csi::mountpoint_pod::many::{self, Many};
use csi::mountpoint_pod::share::AT_START;
use csi::mountpoint_pod::{Among, Config, Outcome, Serving, kernel_resends, run};
use mountpoint::sync::Arc;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Receives a FUSE device from the node and runs mount-s3 on it.
#[derive(Parser)]
#[command(version, override_usage = "scality-s3-csi-mounter [OPTIONS]")]
struct Args {
    /// How long to wait for the node, such as 90s or 2m; then the container restarts. The kubelet restarts a container at once if it ran for
    /// ten minutes
    #[arg(long, default_value = "10m", value_name = "DURATION")]
    mount_sock_recv_timeout: kube::core::Duration,
    /// The directory of mount-s3
    #[arg(long, env = "MOUNTPOINT_BIN_DIR", default_value = "/mountpoint-s3/bin", value_name = "DIR")]
    mountpoint_bin_dir: PathBuf,
    /// The directory that is shared with the node
    #[arg(long, default_value = "/comm", value_name = "DIR")]
    comm_dir: PathBuf,
    /// Memory for the engine's data, in MiB, if the volume does not set it; without this flag, the engine chooses it
    #[arg(long, value_name = "MiB")]
    memory_target: Option<u64>,
    /// Size of the pod's stage, in MiB, for a volume with the mount option `mode full`
    #[arg(long, value_name = "MiB")]
    stage_size: Option<u64>,
    /// Form of log lines, also of the engine if the volume does not set it: text or json
    #[arg(long, env = log::VARIABLE, default_value = "text")]
    log_format: LogFormat,
    /// The port where the engine serves its metrics
    #[arg(long, value_name = "PORT", requires = "pod_ip")]
    metrics_port: Option<u16>,
    /// The pod's address, on which that port listens
    #[arg(long, env = pod::POD_ADDRESS, value_name = "ADDRESS")]
    pod_ip: Option<IpAddr>,
    /// Be the first process of an engines pod, which starts a mounter for each source that the node names
    #[arg(long, conflicts_with_all = ["metrics_port", "source"])]
    many: bool,
    /// The most sources at a time, with --many
    #[arg(long, default_value_t = 8, value_name = "NUMBER")]
    sources_max: usize,
    /// The share of each engine in the memory of an engines pod, in MiB: at more its reads fail or it ends, and the others go on
    #[arg(long, value_name = "MiB")]
    share: Option<u64>,
    /// The directory that outlives a container of the pod
    #[arg(long, default_value = pod::STATE_DIRECTORY, value_name = "DIR")]
    state_dir: PathBuf,
    /// The disk for caches of an engines pod
    #[arg(long, default_value = cache::DIRECTORY, value_name = "DIR")]
    cache_dir: PathBuf,
    /// The source that this mounter of an engines pod serves; --many sets it
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    /// Proxy of the engine for http URLs, if the volume does not set it
    #[arg(env = HTTP_PROXY, value_name = HTTP_PROXY, hide_env_values = true, help_heading = WITHOUT_FLAG)]
    http_proxy: Option<String>,
    /// Proxy of the engine for https URLs, if the volume does not set it
    #[arg(env = HTTPS_PROXY, value_name = HTTPS_PROXY, hide_env_values = true, help_heading = WITHOUT_FLAG)]
    https_proxy: Option<String>,
    /// Hosts that the engine reaches without them, if the volume does not set it
    #[arg(env = NO_PROXY, value_name = NO_PROXY, hide_env_values = true, help_heading = WITHOUT_FLAG)]
    no_proxy: Option<String>,
}

const HTTP_PROXY: &str = ENGINE_VARIABLES[0];
const HTTPS_PROXY: &str = ENGINE_VARIABLES[1];
const NO_PROXY: &str = ENGINE_VARIABLES[2];

/// User id of the node's driver in the containers of the node.
const NODE: u32 = 0;

fn main() -> ExitCode {
    let args: Args = command_line::read();
    let lines = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false);
    match args.log_format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().init(),
    }
    let ended = match (args.many, &args.source) {
        (true, _) => first_of_many(args).map(|()| ExitCode::SUCCESS),
        (false, None) => mounter(args, None),
        (false, Some(_)) => one_of_many(&args).and_then(|among| mounter(args, Some(among))),
    };
    match ended {
        Ok(code) => code,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn mounter(args: Args, among: Option<Among>) -> Result<ExitCode> {
    let of_source = |directory: PathBuf| match &args.source {
        Some(source) => directory.join(source),
        None => directory,
    };
    let config = Config {
        comm: Comm::at(of_source(args.comm_dir)),
        engine_directory: args.mountpoint_bin_dir,
        receive_within: args.mount_sock_recv_timeout.into(),
        ca_directory: PathBuf::from(pod::CA_DIRECTORY),
        state_directory: of_source(args.state_dir),
        local_cache: args.cache_dir,
        memory_target: args.memory_target,
        stage_size: args.stage_size,
        log_format: args.log_format,
        metrics: args.pod_ip.zip(args.metrics_port).map(SocketAddr::from),
        memory_events: ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"]
            .map(PathBuf::from)
            .into(),
        restarts: kernel_resends(),
        image_within: IMAGE_WITHIN,
        engine_env: ENGINE_VARIABLES
            .into_iter()
            .zip([args.http_proxy, args.https_proxy, args.no_proxy])
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect(),
        among,
    };
    let serving = Arc::new(Serving::default());
    let of_signals = Arc::clone(&serving);
    outlive_signals(move || of_signals.told_to_end()).map_err(taking_signals)?;
    Ok(match run(&config, &serving)? {
        Outcome::Unmounted => {
            tracing::info!("the bucket is unmounted");
            ExitCode::SUCCESS
        }
        Outcome::HandedOver => {
            tracing::info!("the mount is left to the next container");
            ExitCode::from(HANDED_OVER)
        }
    })
}

/// Runs the first process of an engines pod, which starts mounters with the arguments of this process.
fn first_of_many(args: Args) -> Result<()> {
    let prepare = || hide().and_then(|()| inherit());
    prepare()
        .map_err(|error| Error::internal(format!("keeping this process from its neighbours: {error}")))?;
    let given = std::env::args_os().skip(1).filter(|arg| arg != "--many");
    let config = many::Config {
        comm: Comm::at(args.comm_dir),
        state_directory: args.state_dir,
        cache_directory: args.cache_dir,
        program: std::env::current_exe().map_err(Error::internal)?,
        args: given.collect::<Vec<OsString>>(),
        sources_max: args.sources_max,
        among: Among { node: NODE, share: None },
    };
    let many = Arc::new(Many::new(config));
    let mut ends = Signals::new([SIGCHLD]).map_err(taking_signals)?;
    let of_ends = Arc::clone(&many);
    thread::spawn(move || ends.forever().for_each(|_| of_ends.reap()));
    let of_signals = Arc::clone(&many);
    outlive_signals(move || of_signals.serves()).map_err(taking_signals)?;
    many.run()
}

/// Prepares a mounter of an engines pod: its engine gets a share of the pod's memory, and dies alone if that is too little.
fn one_of_many(args: &Args) -> Result<Among> {
    let prepare = || -> io::Result<()> {
        hide()?;
        inherit()?;
        if args.share.is_some() {
            let limits = rustix::process::getrlimit(Resource::Data);
            rustix::process::setrlimit(Resource::Data, Rlimit { current: Some(AT_START), ..limits })?;
        }
        Ok(())
    };
    prepare().map_err(|error| Error::internal(format!("limiting the mounter: {error}")))?;
    Ok(Among { node: NODE, share: args.share.map(|mib| mib << 20) })
}

/// Hides the memory and the descriptors of this process from other processes of its user.
fn hide() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Makes this process the parent of processes whose own parent dies.
fn inherit() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1))?)
}

fn taking_signals(error: io::Error) -> Error {
    Error::internal(format!("taking signals: {error}"))
}

/// Keeps the mounter alive after the signals of a pod's deletion: it goes on serving while its workloads drain. The kubelet's
/// SIGKILL ends it.
fn outlive_signals(stays: impl Fn() -> bool + Send + 'static) -> io::Result<()> {
    // The kernel gives PID 1 no default action for signals, so the process exits by itself.
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    thread::spawn(move || {
        for signal in signals.forever() {
            if !stays() {
                tracing::info!("asked to end while no engine serves");
                std::process::exit(128 + signal);
            }
            tracing::info!(
                "asked to end, but workloads may still read: the engine serves until the node unmounts"
            );
        }
    });
    Ok(())
}
