//! How the kubelet learns of a driver: it finds `NAME-reg.sock` in its registry and asks what is there. Enters: the driver's name
//! and its socket as the kubelet has it. Leaves: the answer; an error when the kubelet says that it did not register the driver.
//!
//! Never here: a call to the driver.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use csi::proto::registration::registration_client::RegistrationClient;
use csi::proto::registration::registration_server::{Registration, RegistrationServer};
use csi::proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use crate::{driver, log};

/// What the kubelet is told.
#[derive(Clone, Debug)]
pub struct Plugin {
    /// The driver's name.
    pub name: String,
    /// Its socket, by the path that the kubelet has.
    pub endpoint: String,
}

struct Service {
    plugin: Plugin,
    refused: mpsc::Sender<String>,
}

#[tonic::async_trait]
impl Registration for Service {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".into(),
            name: self.plugin.name.clone(),
            endpoint: self.plugin.endpoint.clone(),
            supported_versions: vec!["1.0.0".into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        log(format_args!("the kubelet says: registered={} {}", status.plugin_registered, status.error));
        if !status.plugin_registered {
            // One refusal ends us; a second has nothing to add.
            let _ = self.refused.try_send(status.error);
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// The socket in the registry.
#[must_use]
pub fn socket(registry: &Path, driver: &str) -> PathBuf {
    registry.join(format!("{driver}-reg.sock"))
}

/// Serves the kubelet at this socket. One that an earlier process left is replaced.
///
/// # Errors
/// It can't listen there; the kubelet did not register the driver, and whoever restarts us makes it ask again.
pub async fn serve(socket: &Path, plugin: Plugin) -> anyhow::Result<()> {
    let at = || format!("listening at {}", socket.display());
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).with_context(at),
        _ => {}
    }
    let listener = UnixListener::bind(socket).with_context(at)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600)).with_context(at)?;
    log(format_args!("registration of {} is served at {}", plugin.name, socket.display()));
    let (refused, mut refusals) = mpsc::channel(1);
    let name = plugin.name.clone();
    let server = tonic::transport::Server::builder()
        .add_service(RegistrationServer::new(Service { plugin, refused }))
        .serve_with_incoming(UnixListenerStream::new(listener));
    tokio::select! {
        ended = server => ended.context("serving the kubelet"),
        why = refusals.recv() => bail!("the kubelet did not register {name}: {}", why.unwrap_or_default()),
    }
}

/// `/healthz`: 200 if the socket answers with the driver's name, 404 if it is gone, 500 if something else answers or nothing.
pub fn router(socket: PathBuf, name: String, within: Duration) -> Router {
    Router::new().route(
        "/healthz",
        get(async move || {
            if !socket.exists() {
                return (StatusCode::NOT_FOUND, "the registration socket does not exist".to_owned());
            }
            match answers(&socket, within).await {
                Ok(found) if found == name => (StatusCode::OK, "ok".to_owned()),
                Ok(found) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{found} answers")),
                Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")),
            }
        }),
    )
}

async fn answers(socket: &Path, within: Duration) -> anyhow::Result<String> {
    let mut client = RegistrationClient::new(driver::connect(socket, within).await?);
    let info = tokio::time::timeout(within, client.get_info(InfoRequest {})).await??;
    Ok(info.into_inner().name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::liveness::testing::healthz;

    const WITHIN: Duration = Duration::from_secs(30);

    fn plugin() -> Plugin {
        Plugin { name: "driver.test".into(), endpoint: "/kubelet/plugins/driver.test/csi.sock".into() }
    }

    /// Serves, once it listens.
    async fn serving(socket: &Path) -> tokio::task::JoinHandle<anyhow::Result<()>> {
        let at = socket.to_owned();
        let server = tokio::spawn(async move { serve(&at, plugin()).await });
        while tokio::net::UnixStream::connect(socket).await.is_err() {
            assert!(!server.is_finished(), "it listens");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server
    }

    #[tokio::test]
    async fn the_kubelet_learns_name_and_socket_and_a_refusal_ends_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let at = socket(directory.path(), "driver.test");
        assert!(at.ends_with("driver.test-reg.sock"));
        std::fs::write(&at, "left behind").unwrap();
        let server = serving(&at).await;
        assert_eq!(std::fs::metadata(&at).unwrap().permissions().mode() & 0o777, 0o600);
        let mut kubelet = RegistrationClient::new(driver::connect(&at, WITHIN).await.unwrap());
        let info = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();
        assert_eq!(
            (info.r#type.as_str(), info.name, info.endpoint),
            ("CSIPlugin", plugin().name, plugin().endpoint)
        );
        assert_eq!(info.supported_versions, ["1.0.0"]);
        let status =
            |plugin_registered, error: &str| RegistrationStatus { plugin_registered, error: error.into() };
        kubelet.notify_registration_status(status(true, "")).await.unwrap();
        assert!(!server.is_finished(), "registered: it goes on");
        // The answer may be lost with the process, as it is upstream.
        let _ = kubelet.notify_registration_status(status(false, "no such version")).await;
        let error = server.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("no such version"), "{error:#}");
    }

    #[tokio::test]
    async fn health_is_that_the_socket_answers_with_our_name() {
        let directory = tempfile::tempdir().unwrap();
        let at = socket(directory.path(), "driver.test");
        let ask = |name: &str| healthz(router(at.clone(), name.to_owned(), WITHIN));
        assert!(ask("driver.test").await.contains(" 404 "));
        let server = serving(&at).await;
        let well = ask("driver.test").await;
        assert!(well.contains(" 200 ") && well.ends_with("ok"), "{well}");
        assert!(ask("other.test").await.contains("driver.test answers"));
        server.abort();
        let _ = server.await;
        assert!(ask("driver.test").await.contains(" 500 "), "the socket is there and nobody behind it");
    }
}
