//! `scality-s3-csi-driver`: the driver of one node, or the controller service. Enters: the command line, the environment, SIGTERM.
//! Leaves: a served socket, and a log on standard error with one line per record.
//!
//! Never here: the meaning of a call, the steps of a mount. This file only connects the parts.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use csi::command_line;
use csi::config::{self, Args, Config, ControllerConfig, Mounting, Start};
use csi::contract::log::LogFormat;
use csi::contract::{DRIVER, VERSION};
use csi::controller::ControllerService;
use csi::controller::cluster::Cluster;
use csi::controller::volumes::Volumes;
use csi::events::{Notice, Teller};
use csi::mounter::Mounter;
use csi::mounter::pod::{self, PodMounter};
use csi::mounter::shared::{self, Leaving, SharedMounter};
use csi::mounter::systemd::{self, SystemdMounter};
use csi::node::NodeService;
use csi::server::{Health, Server};
use csi::taint;
use futures_util::FutureExt as _;
use kube::Client;
use mountpoint::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tracing::{error, info, warn};
use tracing_subscriber::EnvFilter;

/// Longest wait for the API server's version at the start; after it the driver goes on without: the API server may be down.
const VERSION_WITHIN: Duration = Duration::from_secs(5);
/// Longest time from the signal to the end of the process; after it running calls are cut off. They have [`csi::server::GRACE`] of it.
const STOP_WITHIN: Duration = Duration::from_millis(4500);
/// Most Events that wait to be written; further ones only go to the log.
const NOTICES: usize = 64;

fn main() -> ExitCode {
    if command_line::asks_version() {
        let said = writeln!(io::stdout(), "{}", version());
        return if said.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let args: Args = command_line::read();
    start_logging(&args);
    match start(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("the driver ends: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(args: &Args) -> anyhow::Result<()> {
    let config = Start::new(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(run(config));
    // A thread may still wait for a mounter for minutes; no caller would get its result.
    runtime.shutdown_background();
    ended
}

/// Runs until SIGTERM or SIGINT, and at most [`STOP_WITHIN`] longer.
async fn run(config: Start) -> anyhow::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (stop, stopped) = watch::channel(false);
    let too_late = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.send_replace(true);
        tokio::time::sleep(STOP_WITHIN).await;
    };
    let serving = async move {
        match config {
            Start::Node(config) => serve(*config, stopped).await,
            Start::Controller(config) => serve_controller(*config, stopped).await,
        }
    };
    tokio::select! {
        served = serving => served,
        () = too_late => {
            info!("some work was not done {STOP_WITHIN:?} after the signal; the driver ends without it");
            Ok(())
        }
    }
}

async fn serve(mut config: Config, stopped: watch::Receiver<bool>) -> anyhow::Result<()> {
    let mountpoint = config.mountpoint_version.as_deref().unwrap_or("not said");
    info!(version = VERSION, mountpoint, node = config.node.node_id, "starting");
    let client = api_server().await?;
    tokio::select! {
        version = kubernetes_version(&client) => config.node.kubernetes = version,
        () = on_stop(stopped.clone()) => return Ok(()),
    }
    let notices = tell(Teller::new(client.clone(), DRIVER, &config.node.node_id));
    let (of_taint, name) = (client.clone(), config.node.node_id.clone());
    let mounter = mounter(client, &config, &notices)?;
    let of_mounter = mounter.clone();
    let server = Server::bind(&config.endpoint).await?;
    let device = Path::new("/dev/fuse");
    let health = Health::new(server.endpoint(), device, Arc::new(move || of_mounter.fault()))?;
    let listener = listen(config.health_address).await?;
    let node = NodeService::new(config.node, mounter).with_notices(notices);
    tokio::spawn(taint::keep_off(of_taint, name, node.registers()));
    let of_node = node.clone();
    let health = health.with_page(Arc::new(move || {
        let node = of_node.clone();
        async move { node.page().await }.boxed()
    }));
    tokio::try_join!(
        server.serve(node, device, on_stop(stopped.clone())),
        health.serve(listener, on_stop(stopped)),
    )?;
    Ok(())
}

/// Serves calls that create and delete volumes. Calls fail and are repeated until the API server has returned the cluster's id.
async fn serve_controller(config: ControllerConfig, stopped: watch::Receiver<bool>) -> anyhow::Result<()> {
    info!(version = VERSION, store = config.stores.endpoint_url, "starting the controller service");
    let volumes = Volumes::follow(&api_server().await?, config.cluster_id.as_deref().map(Cluster::new));
    let controller = ControllerService::new(config.stores, volumes);
    let of_controller = controller.clone();
    let server = Server::bind(&config.endpoint).await?;
    let health = Health::of_controller(server.endpoint(), Arc::new(move || of_controller.fault()))?;
    let of_controller = controller.clone();
    let health = health.with_page(Arc::new(move || std::future::ready(of_controller.page()).boxed()));
    let listener = listen(config.health_address).await?;
    tokio::try_join!(
        server.serve_controller(controller, on_stop(stopped.clone())),
        health.serve(listener, on_stop(stopped)),
    )?;
    Ok(())
}

async fn api_server() -> anyhow::Result<Client> {
    Client::try_default()
        .await
        .context("finding the API server: a kubeconfig (KUBECONFIG) or a pod's account")
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("listening for /healthz at {address}"))
}

async fn on_stop(mut stopped: watch::Receiver<bool>) {
    // An error means that the task waiting for the signal is gone, and with it the process.
    drop(stopped.wait_for(|&stop| stop).await);
}

/// Starts a task that writes notices as Events, one after the other; returns its channel. No mount waits for them.
fn tell(teller: Teller) -> mpsc::Sender<Notice> {
    let (notices, mut sent) = mpsc::channel(NOTICES);
    tokio::spawn(async move {
        while let Some(notice) = sent.recv().await {
            teller.tell(&notice).await;
        }
    });
    notices
}

/// Creates the mounter that the chart chose; sends no request to the API server.
fn mounter(
    client: Client,
    config: &Config,
    notices: &mpsc::Sender<Notice>,
) -> anyhow::Result<Arc<dyn Mounter>> {
    let kubelet = config.node.kubelet.clone();
    Ok(match &config.mounting {
        Mounting::Pod { degraded } => {
            let usual = pod::Config::new(config.node.node_id.clone());
            let mounts = pod::Config {
                kubelet: kubelet.clone(),
                namespace: config.mountpoint_namespace.clone(),
                notices: Some(notices.clone()),
                kernel_reads: config.kernel_reads,
                stages: config.stages,
                stage_directory: config.stage_directory.clone(),
                release_namespace: config.release_namespace.clone().unwrap_or(usual.release_namespace),
                ..usual
            };
            let fallback = degraded.as_ref().map(|systemd| by_systemd(kubelet.clone(), systemd, notices));
            let pods = PodMounter::with_fallback(client, mounts, fallback.transpose()?)?;
            if shared::has_sources(&kubelet) {
                info!("this node has mounts of an engines pod: they stay until their workloads end");
                let usual = shared::Config::new(config.node.node_id.clone(), 0);
                Arc::new(Leaving::new(pods, shared::Config { kubelet, ..usual })?)
            } else {
                Arc::new(pods)
            }
        }
        Mounting::Shared { volumes_max, disk, revision } => {
            let usual = shared::Config::new(config.node.node_id.clone(), *volumes_max);
            let mounts = shared::Config {
                kubelet,
                notices: Some(notices.clone()),
                namespace: config.release_namespace.clone().unwrap_or(usual.namespace),
                disk: disk.clone(),
                revision: revision.clone(),
                kernel_reads: config.kernel_reads,
                ..usual
            };
            Arc::new(SharedMounter::new(&client, mounts)?)
        }
        Mounting::Systemd(systemd) => Arc::new(by_systemd(kubelet, systemd, notices)?),
    })
}

fn by_systemd(
    kubelet: PathBuf,
    given: &config::Systemd,
    notices: &mpsc::Sender<Notice>,
) -> anyhow::Result<SystemdMounter> {
    let usual = systemd::Config::new(kubelet);
    let mounts = systemd::Config {
        engine: given.engine.clone().unwrap_or_else(|| usual.engine.clone()),
        extra_ca_bundle: given.extra_ca_bundle.clone(),
        notices: Some(notices.clone()),
        ..usual
    };
    info!(engine = %mounts.engine.display(), "systemd can mount");
    Ok(SystemdMounter::new(mounts)?)
}

/// The version of Kubernetes, for the user agent. `None` if the API server does not return it in time: a node must start without the API
/// server.
async fn kubernetes_version(client: &Client) -> Option<String> {
    match timeout(VERSION_WITHIN, client.apiserver_version()).await {
        Ok(Ok(info)) => Some(info.git_version),
        Ok(Err(error)) => {
            warn!(%error, "the API server does not report its version; requests to the store do not name it");
            None
        }
        Err(_) => {
            warn!(
                "the API server did not report its version within {VERSION_WITHIN:?}; requests to the store do not name it"
            );
            None
        }
    }
}

fn version() -> serde_json::Value {
    serde_json::json!({
        "driverVersion": VERSION,
        "gitCommit": option_env!("GIT_COMMIT").unwrap_or_default(),
        "buildDate": option_env!("BUILD_DATE").unwrap_or_default(),
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

/// The log directives for `--v`. The chart's default is 4, as in release 2.2: a line for each mount, and none for each call.
fn level(verbosity: u8) -> &'static str {
    match verbosity {
        0..=4 => "info",
        5 => "info,csi=debug",
        _ => "debug",
    }
}

fn start_logging(args: &Args) {
    let filter = EnvFilter::new(args.log.as_deref().unwrap_or_else(|| level(args.verbosity)));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(|| OneLine(io::stderr()));
    match args.log_format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().init(),
    }
}

/// A writer that writes each record that it gets as one line: log collectors take each line for a record.
struct OneLine<W>(W);

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        let body = record.strip_suffix(b"\n").unwrap_or(record);
        let mut line = Vec::with_capacity(record.len() + 1);
        for &byte in body {
            match byte {
                b'\n' => line.extend(br"\n"),
                b'\r' => line.extend(br"\r"),
                _ => line.push(byte),
            }
        }
        line.push(b'\n');
        self.0.write_all(&line)?;
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_line_whatever_it_holds() {
        let mut out = Vec::new();
        OneLine(&mut out).write_all(b"stderr:\nfirst\r\nsecond\n").unwrap();
        OneLine(&mut out).write_all(b"next\n").unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "stderr:\\nfirst\\r\\nsecond\nnext\n");
    }

    #[test]
    fn the_charts_default_logs_no_call() {
        assert_eq!([4, 5, 6].map(level), ["info", "info,csi=debug", "debug"]);
    }

    #[test]
    fn the_version_is_said_in_json() {
        assert_eq!(version()["driverVersion"], VERSION);
    }
}
