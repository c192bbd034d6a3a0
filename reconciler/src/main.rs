//! The program `scality-csi-controller`: flags, log, signals.

use std::time::Duration;

use anyhow::Context as _;
use csi::command_line;
use csi::contract::log::LogFormat;
use csi::events::Teller;
use kube::Client;
use reconciler::apply::Applier;
use reconciler::config::{Cli, Command, Run};
use reconciler::leader::Elector;
use reconciler::main_loop::MainLoop;
use reconciler::{crd, server, uninstall};
use tokio::signal::unix::{SignalKind, signal};

/// An API group that every version of OpenShift has, and no other cluster.
const OPENSHIFT: &str = "config.openshift.io";
/// The pause before the next call to an API server that does not answer.
const ASK_AGAIN: Duration = Duration::from_secs(5);

// One thread suffices, since there is little to compute. Each further thread has its own arena of the allocator: 20 MiB at 5,000 pods.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let cli: Cli = command_line::read();
    // The library logs the leader every three seconds; this filter drops that line.
    let filter = tracing_subscriber::EnvFilter::try_new(format!("kube_leader_election=warn,{}", cli.log))
        .with_context(|| format!("--log (LOG_LEVEL) is {:?}", cli.log))?;
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    match cli.log_format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().init(),
    }
    match &cli.command {
        None => run(&cli.run, cli.log_format).await,
        Some(Command::InstallCrd) => crd::install(client().await?).await,
        Some(Command::CheckUnused { keep_by }) => {
            uninstall::check_unused(client().await?, keep_by.as_deref()).await
        }
        Some(Command::UninstallCrd) => crd::uninstall(client().await?).await,
    }
}

async fn client() -> anyhow::Result<Client> {
    let mut config = kube::Config::infer().await.context(
        "finding the API server: neither a kubeconfig (KUBECONFIG) nor a pod's service account was found",
    )?;
    // The reconciler itself retries with fresh facts. A retry by the library would end later than `plan.rs` allows.
    config.default_retry = false;
    Client::try_from(config).context("connecting to the API server")
}

/// Whether the cluster is OpenShift. Waits until the API server answers, because it would refuse a Mountpoint Pod of the wrong kind.
async fn is_openshift(client: &Client) -> bool {
    loop {
        match client.list_api_groups().await {
            Ok(found) => return found.groups.iter().any(|group| group.name == OPENSHIFT),
            Err(error) => {
                tracing::warn!(%error, "the API server does not say which API groups it has; asking again")
            }
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

async fn run(run: &Run, log_format: LogFormat) -> anyhow::Result<()> {
    let mut config = run.pod_config()?;
    let holder = run.holder()?;
    config.log_format = log_format;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let client = client().await?;
    tracing::info!(version = csi::contract::VERSION, namespace = config.namespace, "starts");

    config.openshift = tokio::select! {
        found = is_openshift(&client) => found,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let mut elector = Elector::new(client.clone(), &run.namespace, holder);
    let teller = Teller::new(client.clone(), crd::FIELD_MANAGER, holder);
    let namespace = config.namespace.clone();
    let applier = Applier::new(client.clone(), config, teller);
    let main_loop = MainLoop::new(&client, &namespace, applier, elector.leadership())
        .with_inline_volumes(run.inline_volumes)
        .with_agent(run.pod_identity_agent)
        .with_stages(run.mountpoint_stages, run.mountpoint_stages_on_nodes)
        .with_workload_share(run.mountpoint_workload_share_percent)
        .with_upgrades(run.mountpoint_upgrade_in_place.then(|| run.namespace.clone()));
    let served = server::serve(run.health_address, main_loop.health(), main_loop.page());

    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let mut main_loop = tokio::spawn(main_loop.run(async {
        let _ = stopped.await;
    }));
    let result = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        failed = served => failed,
        ended = &mut main_loop => return ended.context("the main loop panicked"),
        () = elector.run() => Ok(()),
    };
    tracing::info!("stopping: no new effect begins");
    elector.stop();
    drop(stop);
    main_loop.await.context("the main loop panicked")?;
    elector.step_down().await;
    result
}
