//! `csi-provisioner` for the lab. Enters: those of upstream's flags that the chart sets (README of kubernetes-csi/external-provisioner,
//! 5.3). Leaves: volumes for claims.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::routing::get;
use clap::Parser;
use kube::Client;
use kube_leader_election::{LeaseLock, LeaseLockParams, LeaseLockResult};
use sidecars::provisioner::Provisioner;
use sidecars::{driver, flags, log};
use tokio::signal::unix::{SignalKind, signal};

/// Time after the last renewal at which another replica may lead.
const LEASE: Duration = Duration::from_secs(15);
const RENEW: Duration = Duration::from_secs(5);

/// Makes volumes for claims by a CSI driver.
#[derive(Debug, Parser)]
struct Args {
    /// The driver's socket
    #[arg(long, default_value = "/run/csi/socket", value_parser = flags::socket)]
    csi_address: PathBuf,
    /// How long the driver may take for a call
    #[arg(long, default_value = "10s", value_parser = flags::duration)]
    timeout: Duration,
    /// Says names of claim and volume in the parameters of CreateVolume
    #[arg(long)]
    extra_create_metadata: bool,
    /// One of several replicas works
    #[arg(long)]
    leader_election: bool,
    /// Address at which /healthz/leader-election is answered
    #[arg(long, value_parser = flags::address)]
    http_endpoint: Option<SocketAddr>,
    /// How much is logged: accepted, everything is
    #[arg(long = "v", default_value_t = 0)]
    verbosity: u8,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    log(format_args!("stand-in for csi-provisioner, verbosity {}", args.verbosity));
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let working = async {
        let client = Client::try_default().await.context("finding the API server")?;
        let name = driver::wait_for(&args.csi_address, args.timeout).await;
        log(format_args!("{name} is there"));
        if let Some(address) = args.http_endpoint {
            let listener = tokio::net::TcpListener::bind(address).await.context("listening for /healthz")?;
            let routes = Router::new().route("/healthz/leader-election", get(async || "ok"));
            tokio::spawn(async move { axum::serve(listener, routes).await });
        }
        let leads = Arc::new(AtomicBool::new(!args.leader_election));
        if args.leader_election {
            tokio::spawn(lead(client.clone(), name.replace('.', "-"), leads.clone()));
        }
        let mut provisioner = Provisioner::new(
            client,
            args.csi_address.clone(),
            name,
            args.timeout,
            args.extra_create_metadata,
        );
        provisioner.run(|| leads.load(Ordering::Relaxed)).await;
        anyhow::Ok(())
    };
    tokio::select! {
        ended = working => ended,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

/// Acquires and renews the Lease, in the namespace of this pod.
async fn lead(client: Client, lease_name: String, leads: Arc<AtomicBool>) {
    let namespace = client.default_namespace().to_owned();
    let holder_id =
        std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    let parameters = LeaseLockParams { holder_id, lease_name, lease_ttl: LEASE };
    let lock = LeaseLock::new(client, &namespace, parameters);
    loop {
        match lock.try_acquire_or_renew().await {
            Ok(result) => leads.store(matches!(result, LeaseLockResult::Acquired(_)), Ordering::Relaxed),
            Err(error) => {
                leads.store(false, Ordering::Relaxed);
                log(format_args!("the Lease can't be taken: {error}"));
            }
        }
        tokio::time::sleep(RENEW).await;
    }
}
