//! Calls of the driver's own socket. Enters: its path. Leaves: the driver's name, whether it is ready.
//!
//! Never here: a connection that stays open between calls.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use csi::proto::csi::identity_client::IdentityClient;
use csi::proto::csi::{GetPluginInfoRequest, ProbeRequest};
use tonic::transport::{Channel, Endpoint};

use crate::log;

/// Connects to a socket.
///
/// # Errors
/// No process listens there, or the connection takes longer than `within`.
pub async fn connect(socket: &Path, within: Duration) -> anyhow::Result<Channel> {
    let connecting = || format!("connecting to {}", socket.display());
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).with_context(connecting)?;
    tokio::time::timeout(within, endpoint.connect())
        .await
        .with_context(|| format!("{}: no answer within {within:?}", connecting()))?
        .with_context(connecting)
}

/// The driver's name.
///
/// # Errors
/// The driver did not answer within this time, or has no name.
pub async fn name(socket: &Path, within: Duration) -> anyhow::Result<String> {
    let mut identity = IdentityClient::new(connect(socket, within).await?);
    let asking = "asking the driver for its name";
    let info = tokio::time::timeout(within, identity.get_plugin_info(GetPluginInfoRequest {}))
        .await
        .with_context(|| format!("{asking}: no answer within {within:?}"))?
        .context(asking)?
        .into_inner();
    ensure!(!info.name.is_empty(), "the driver says no name");
    Ok(info.name)
}

/// The pause between two tries to reach the driver.
const AGAIN: Duration = Duration::from_secs(1);

/// Waits for the driver without a limit; `within` limits one try. Returns the driver's name.
pub async fn wait_for(socket: &Path, within: Duration) -> String {
    loop {
        match name(socket, within).await {
            Ok(name) => return name,
            Err(error) => log(format_args!("the driver is not there yet: {error:#}")),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Whether the driver is ready; an answer without that field counts as ready.
///
/// # Errors
/// The driver did not answer within this time, or with an error.
pub async fn ready(socket: &Path, within: Duration) -> anyhow::Result<bool> {
    let probing = "probing the driver";
    let mut identity = IdentityClient::new(connect(socket, within).await?);
    let answer = tokio::time::timeout(within, identity.probe(ProbeRequest {}))
        .await
        .with_context(|| format!("{probing}: no answer within {within:?}"))?
        .context(probing)?;
    Ok(answer.into_inner().ready.unwrap_or(true))
}

#[cfg(test)]
pub(crate) mod testing {
    //! A driver whose answers a test sets.

    use std::path::Path;

    use csi::proto::csi::identity_server::{Identity, IdentityServer};
    use csi::proto::csi::{GetPluginInfoRequest, GetPluginInfoResponse, ProbeRequest, ProbeResponse};
    use tokio::sync::watch;
    use tokio_stream::wrappers::UnixListenerStream;
    use tonic::{Request, Response, Status};

    /// The driver's answer to Probe.
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Says {
        Ready(Option<bool>),
        Error,
        Nothing,
    }

    struct Driver(watch::Receiver<Says>);

    #[tonic::async_trait]
    impl Identity for Driver {
        async fn get_plugin_info(
            &self,
            _: Request<GetPluginInfoRequest>,
        ) -> Result<Response<GetPluginInfoResponse>, Status> {
            Ok(Response::new(GetPluginInfoResponse { name: "driver.test".into(), ..Default::default() }))
        }

        async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
            let says = *self.0.borrow();
            match says {
                Says::Ready(ready) => Ok(Response::new(ProbeResponse { ready })),
                Says::Error => Err(Status::failed_precondition("no device")),
                Says::Nothing => std::future::pending().await,
            }
        }
    }

    /// Serves at this path until the test ends.
    pub(crate) fn serve(socket: &Path) -> watch::Sender<Says> {
        let (says, heard) = watch::channel(Says::Ready(None));
        let listener = UnixListenerStream::new(tokio::net::UnixListener::bind(socket).unwrap());
        let server = tonic::transport::Server::builder().add_service(IdentityServer::new(Driver(heard)));
        tokio::spawn(server.serve_with_incoming(listener));
        says
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{Says, serve};
    use super::*;

    const WITHIN: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_driver_is_asked_for_its_name_and_whether_it_is_ready() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("csi.sock");
        let says = serve(&socket);
        assert_eq!(name(&socket, WITHIN).await.unwrap(), "driver.test");
        for (answer, is) in [(None, true), (Some(true), true), (Some(false), false)] {
            says.send_replace(Says::Ready(answer));
            assert_eq!(ready(&socket, WITHIN).await.unwrap(), is, "{answer:?}");
        }
        says.send_replace(Says::Error);
        assert!(format!("{:#}", ready(&socket, WITHIN).await.unwrap_err()).contains("no device"));
        says.send_replace(Says::Nothing);
        let error = ready(&socket, Duration::from_millis(200)).await.unwrap_err();
        assert!(error.to_string().contains("no answer within 200ms"), "{error:#}");
    }

    #[tokio::test]
    async fn a_socket_that_is_not_there_is_named() {
        let error = name(Path::new("/nowhere/csi.sock"), WITHIN).await.unwrap_err();
        assert!(error.to_string().contains("/nowhere/csi.sock"), "{error:#}");
    }

    #[tokio::test]
    async fn a_driver_that_comes_later_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("csi.sock");
        let waiting = tokio::spawn({
            let socket = socket.clone();
            async move { wait_for(&socket, Duration::from_secs(30)).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        let _says = serve(&socket);
        assert_eq!(waiting.await.unwrap(), "driver.test");
    }
}
