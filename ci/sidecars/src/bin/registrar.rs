//! `csi-node-driver-registrar` for the lab. Enters: upstream's flags (README of kubernetes-csi/node-driver-registrar, 2.14).
//! Leaves: a driver that the kubelet knows; an end with an error when the kubelet does not take it.
//!
//! Never here: a driver of our own in mind; the name is asked for.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use sidecars::registration::{self, Plugin};
use sidecars::{driver, flags, log};
use tokio::signal::unix::{SignalKind, signal};

/// Tells the kubelet of a CSI driver.
#[derive(Debug, Parser)]
struct Args {
    /// The driver's socket, as this container has it
    #[arg(long, default_value = "/run/csi/socket", value_parser = flags::socket)]
    csi_address: PathBuf,
    /// The driver's socket, as the kubelet has it
    #[arg(long)]
    kubelet_registration_path: String,
    /// The kubelet's registry, as this container has it
    #[arg(long, default_value = "/registration")]
    plugin_registration_path: PathBuf,
    /// Where /healthz is answered; nowhere if not given
    #[arg(long, value_parser = flags::address)]
    http_endpoint: Option<SocketAddr>,
    /// The same by a port; 0 is nowhere
    #[arg(long)]
    health_port: Option<u16>,
    /// How long the driver may take for an answer
    #[arg(long, default_value = "1s", value_parser = flags::duration)]
    timeout: Duration,
    /// With kubelet-registration-probe it ends at once and well, as upstream's does
    #[arg(long, default_value = "")]
    mode: String,
    /// How much is logged: accepted, everything is
    #[arg(long = "v", default_value_t = 0)]
    verbosity: u8,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if args.mode == "kubelet-registration-probe" {
        return Ok(());
    }
    log(format_args!("stand-in for csi-node-driver-registrar, verbosity {}", args.verbosity));
    let health = flags::health_address(args.http_endpoint, args.health_port)?;
    // A driver that is not there yet ends us; whoever restarts us waits longer each time.
    let name = driver::name(&args.csi_address, args.timeout).await?;
    let socket = registration::socket(&args.plugin_registration_path, &name);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let routes = registration::router(socket.clone(), name.clone(), args.timeout);
    let serving = registration::serve(&socket, Plugin { name, endpoint: args.kubelet_registration_path });
    let answering = async {
        let Some(address) = health else { return std::future::pending().await };
        let listener = tokio::net::TcpListener::bind(address).await.context("listening for /healthz")?;
        axum::serve(listener, routes).await.context("serving /healthz")
    };
    let ended = tokio::select! {
        ended = serving => ended,
        ended = answering => ended,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    // The kubelet forgets the driver when the socket goes.
    let _ = std::fs::remove_file(&socket);
    ended
}
