//! `livenessprobe` for the lab. Enters: upstream's flags (README of kubernetes-csi/livenessprobe, 2.16). Leaves: `/healthz`, which
//! reports the driver's answer to a Probe.
//!
//! Never here: a restart. The caller of `/healthz` decides about restarts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use sidecars::{driver, flags, liveness, log};
use tokio::signal::unix::{SignalKind, signal};

/// Answers for a CSI driver whether it is well.
#[derive(Debug, Parser)]
struct Args {
    /// The driver's socket
    #[arg(long, default_value = "/run/csi/socket", value_parser = flags::socket)]
    csi_address: PathBuf,
    /// Address at which /healthz is answered [default: port 9808 of every address]
    #[arg(long, value_parser = flags::address)]
    http_endpoint: Option<SocketAddr>,
    /// Port at which /healthz is answered, on every address
    #[arg(long)]
    health_port: Option<u16>,
    /// Time in which the driver has to answer
    #[arg(long, default_value = "3s", value_parser = flags::duration)]
    probe_timeout: Duration,
    /// Log level: accepted and ignored, everything is logged
    #[arg(long = "v", default_value_t = 0)]
    verbosity: u8,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    log(format_args!("stand-in for livenessprobe, verbosity {}", args.verbosity));
    let address = flags::health_address(args.http_endpoint, args.health_port)?;
    let address = address.unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 9808)));
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let answering = async {
        let name = driver::wait_for(&args.csi_address, args.probe_timeout).await;
        log(format_args!("{name} is there; /healthz at {address}"));
        let listener = tokio::net::TcpListener::bind(address).await.context("listening for /healthz")?;
        let routes = liveness::router(args.csi_address.clone(), args.probe_timeout);
        axum::serve(listener, routes).await.context("serving /healthz")
    };
    tokio::select! {
        ended = answering => ended,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}
