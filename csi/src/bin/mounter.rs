//! `scality-s3-csi-mounter`: the process of a Mountpoint Pod. Exit code 0 means that the node has unmounted; after any other code the
//! container restarts, after 75 with the next image.

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
use csi::mountpoint_pod::{Config, Outcome, Serving, kernel_resends, run};
use mountpoint::sync::Arc;
use signal_hook::consts::{SIGINT, SIGTERM};
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
    /// Form of log lines, also of the engine if the volume does not set it: text or json
    #[arg(long, env = log::VARIABLE, default_value = "text")]
    log_format: LogFormat,
    /// The port where the engine serves its metrics
    #[arg(long, value_name = "PORT", requires = "pod_ip")]
    metrics_port: Option<u16>,
    /// The pod's address, on which that port listens
    #[arg(long, env = pod::POD_ADDRESS, value_name = "ADDRESS")]
    pod_ip: Option<IpAddr>,
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

fn main() -> ExitCode {
    let args: Args = command_line::read();
    let lines = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false);
    match args.log_format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().init(),
    }
    let config = Config {
        comm: Comm::at(args.comm_dir),
        engine_directory: args.mountpoint_bin_dir,
        receive_within: args.mount_sock_recv_timeout.into(),
        ca_directory: PathBuf::from(pod::CA_DIRECTORY),
        state_directory: PathBuf::from(pod::STATE_DIRECTORY),
        local_cache: PathBuf::from(cache::DIRECTORY),
        memory_target: args.memory_target,
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
    };
    let serving = Arc::new(Serving::default());
    if let Err(error) = outlive_signals(Arc::clone(&serving)) {
        tracing::error!("taking signals: {error}");
        return ExitCode::FAILURE;
    }
    match run(&config, &serving) {
        Ok(Outcome::Unmounted) => {
            tracing::info!("the bucket is unmounted");
            ExitCode::SUCCESS
        }
        Ok(Outcome::HandedOver) => {
            tracing::info!("the mount is left to the next container");
            ExitCode::from(HANDED_OVER)
        }
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Keeps the mounter alive through the signals of a pod's deletion: the pod goes on serving while its workloads drain. The kubelet's
/// SIGKILL ends it.
fn outlive_signals(serving: Arc<Serving>) -> std::io::Result<()> {
    // PID 1 would not end by the signal: the kernel gives it no default action.
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    thread::spawn(move || {
        for signal in signals.forever() {
            if !serving.told_to_end() {
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
