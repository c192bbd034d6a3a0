//! The socket that the kubelet calls, and `/healthz`. Enters: the address to listen on, the services. Leaves: a server that runs until
//! it is stopped, and then lets calls in progress end.
//!
//! Never here: the meaning of a call.

use std::fmt;
use std::fs;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use futures_util::future::BoxFuture;
use mountpoint::sync::Arc;
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::transport::{Channel, server::Router as Services};
use tracing::{debug, info};

use crate::controller::ControllerService;
use crate::error::{Error, Result};
use crate::identity::{self, IdentityService, NodesController};
use crate::node::NodeService;
use crate::proto::csi::ProbeRequest;
use crate::proto::csi::controller_server::ControllerServer;
use crate::proto::csi::identity_client::IdentityClient;
use crate::proto::csi::identity_server::IdentityServer;
use crate::proto::csi::node_server::NodeServer;

/// The longest call, in bytes; a longer one is refused. Usual calls have a few kilobytes.
pub const MESSAGE_MAX: usize = 2 << 20;
/// Longest time for calls in progress after the signal to stop; then they are cut off. A mount in the making ends with the process, while
/// it is still detached. A longer time delays the next driver on this node, to which the kubelet repeats the call.
pub const GRACE: Duration = Duration::from_secs(4);
/// The content type of the page of metrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Longest wait of `/healthz` for our own answer; after it the check fails.
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// The address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `unix:///csi/csi.sock`; the path is absolute, with any number of slashes.
    Unix(PathBuf),
    /// `tcp://127.0.0.1:10000`.
    Tcp(SocketAddr),
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.trim_start_matches('/');
            if !path.is_empty() {
                return Ok(Self::Unix(Path::new("/").join(path)));
            }
        } else if let Some(address) = text.strip_prefix("tcp://")
            && let Ok(address) = address.parse()
        {
            return Ok(Self::Tcp(address));
        }
        Err(Error::invalid(format!("{text:?} is neither unix:///path/to.sock nor tcp://address:port")))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp://{address}"),
        }
    }
}

/// A server that listens and does not serve yet.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    endpoint: Endpoint,
}

#[derive(Debug)]
enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Server {
    /// Listens. Removes the socket of an earlier process; any other file at the path is an error.
    ///
    /// # Errors
    /// The address can't be listened on.
    pub async fn bind(endpoint: &Endpoint) -> Result<Self> {
        let listener = match endpoint {
            Endpoint::Unix(path) => bind_unix(path).map(Listener::Unix),
            Endpoint::Tcp(address) => TcpListener::bind(address).await.map(Listener::Tcp),
        };
        let listener =
            listener.map_err(|error| Error::internal(format!("listening at {endpoint}: {error}")))?;
        let endpoint = match &listener {
            Listener::Tcp(tcp) => tcp.local_addr().map_or_else(|_| endpoint.clone(), Endpoint::Tcp),
            Listener::Unix(_) => endpoint.clone(),
        };
        Ok(Self { listener, endpoint })
    }

    /// The address at which the server listens, with the real port if it was 0.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Serves a node with the FUSE device `device` until `stop`, then waits for calls in progress, at most [`GRACE`].
    ///
    /// # Errors
    /// Serving failed.
    pub async fn serve(
        self,
        node: NodeService,
        device: &Path,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        let identity = IdentityService::new(Some(device.to_owned()));
        let controller = ControllerServer::new(NodesController).max_decoding_message_size(MESSAGE_MAX);
        let node = NodeServer::new(node).max_decoding_message_size(MESSAGE_MAX);
        self.serve_all(with_identity(identity).add_service(controller).add_service(node), stop).await
    }

    /// Serves the controller service until `stop`, then waits for calls in progress, at most [`GRACE`].
    ///
    /// # Errors
    /// Serving failed.
    pub async fn serve_controller(
        self,
        controller: ControllerService,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        let controller = ControllerServer::new(controller).max_decoding_message_size(MESSAGE_MAX);
        self.serve_all(with_identity(IdentityService::new(None)).add_service(controller), stop).await
    }

    async fn serve_all(self, services: Services, stop: impl Future<Output = ()> + Send) -> Result<()> {
        info!(endpoint = %self.endpoint, "serving");
        let (asked, grace) = tokio::sync::oneshot::channel::<()>();
        let stop = async move {
            stop.await;
            info!("stopping");
            asked.send(()).ok();
        };
        let serving = async {
            match self.listener {
                Listener::Unix(it) => {
                    services.serve_with_incoming_shutdown(UnixListenerStream::new(it), stop).await
                }
                Listener::Tcp(it) => {
                    services.serve_with_incoming_shutdown(TcpListenerStream::new(it), stop).await
                }
            }
        };
        let cut_off = async {
            if grace.await.is_ok() {
                tokio::time::sleep(GRACE).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            served = serving => {
                served.map_err(|error| Error::internal(format!("serving at {}: {error}", self.endpoint)))
            }
            () = cut_off => {
                info!("calls that had begun were cut off after {GRACE:?}");
                Ok(())
            }
        }
    }
}

fn with_identity(identity: IdentityService) -> Services {
    let identity = IdentityServer::new(identity).max_decoding_message_size(MESSAGE_MAX);
    tonic::transport::Server::builder().add_service(identity)
}

fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "a file that is not a socket has its path",
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    Ok(listener)
}

/// A function that returns the reason why no new mount can be made; `None` if mounts can be made.
pub type Fault = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// A function that renders the page of metrics.
pub type Page = Arc<dyn Fn() -> BoxFuture<'static, String> + Send + Sync>;

/// The state behind `/healthz`, `/readyz` and `/metrics`.
#[derive(Clone)]
pub struct Health {
    channel: Channel,
    device: Option<PathBuf>,
    fault: Fault,
    page: Option<Page>,
}

impl Health {
    /// The health of the server at this endpoint, on a node with the FUSE device `device`. `fault` reports the mounter's fault.
    ///
    /// # Errors
    /// No channel to the endpoint can be made.
    pub fn new(endpoint: &Endpoint, device: &Path, fault: Fault) -> Result<Self> {
        Self::of(endpoint, Some(device.to_owned()), fault)
    }

    /// The health of the controller service at this endpoint. `fault` reports the service's fault.
    ///
    /// # Errors
    /// No channel to the endpoint can be made.
    pub fn of_controller(endpoint: &Endpoint, fault: Fault) -> Result<Self> {
        Self::of(endpoint, None, fault)
    }

    fn of(endpoint: &Endpoint, device: Option<PathBuf>, fault: Fault) -> Result<Self> {
        let uri = match endpoint {
            Endpoint::Unix(_) => endpoint.to_string(),
            Endpoint::Tcp(address) => format!("http://{address}"),
        };
        let channel = tonic::transport::Endpoint::from_shared(uri)
            .map_err(|error| Error::internal(format!("{endpoint} can't be called: {error}")))?
            .connect_lazy();
        Ok(Self { channel, device, fault, page: None })
    }

    /// Adds this page of metrics.
    #[must_use]
    pub fn with_page(self, page: Page) -> Self {
        Self { page: Some(page), ..self }
    }

    /// Serves until `stop`. `GET /healthz` is 200 if our own socket answers a probe; the kubelet's liveness probe uses it, since a restart
    /// mends nothing else. `GET /readyz` is 200 if new mounts can be made: the device opens, the API server answers, the CRD exists; for
    /// the controller service, if volumes can be created. Otherwise the answer is 503 with the fault.
    ///
    /// # Errors
    /// Serving failed.
    pub async fn serve(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<()> {
        let page = self.page.clone();
        let mut router = Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz));
        if let Some(page) = page {
            router =
                router.route("/metrics", get(async move || ([(CONTENT_TYPE, OPEN_METRICS)], page().await)));
        }
        let router = router.with_state(self);
        axum::serve(listener, router)
            .with_graceful_shutdown(stop)
            .await
            .map_err(|error| Error::internal(format!("serving /healthz: {error}")))
    }

    async fn socket(&self) -> std::result::Result<(), String> {
        let mut identity = IdentityClient::new(self.channel.clone());
        match tokio::time::timeout(PROBE_LIMIT, identity.probe(ProbeRequest {})).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(status)) => Err(format!("the driver's socket does not serve: {}", status.message())),
            Err(_) => Err(format!("the driver's socket did not answer within {PROBE_LIMIT:?}")),
        }
    }
}

async fn healthz(State(health): State<Health>) -> (StatusCode, String) {
    said("/healthz", health.socket().await)
}

async fn readyz(State(health): State<Health>) -> (StatusCode, String) {
    let fault = || health.device.as_deref().and_then(identity::fault_of).or_else(|| (health.fault)());
    said("/readyz", health.socket().await.and_then(|()| fault().map_or(Ok(()), Err)))
}

fn said(page: &str, found: std::result::Result<(), String>) -> (StatusCode, String) {
    match found {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(wrong) => {
            debug!(page, wrong, "not well");
            (StatusCode::SERVICE_UNAVAILABLE, format!("{wrong}\n"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn an_endpoint_is_a_path_or_an_address() {
        for text in ["unix:///csi/csi.sock", "unix://csi/csi.sock", "unix:/csi/csi.sock", "unix:csi/csi.sock"]
        {
            assert_eq!(text.parse::<Endpoint>().unwrap(), Endpoint::Unix("/csi/csi.sock".into()), "{text}");
        }
        let address: Endpoint = "tcp://127.0.0.1:10000".parse().unwrap();
        assert_eq!(address.to_string(), "tcp://127.0.0.1:10000");
        for text in ["", "unix:", "unix:///", "tcp://nowhere", "http://127.0.0.1:1", "/csi/csi.sock"] {
            let error = text.parse::<Endpoint>().unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument, "{text}");
        }
    }

    #[tokio::test]
    async fn a_socket_left_behind_is_replaced_and_a_file_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("csi.sock");
        let endpoint = Endpoint::Unix(socket.clone());
        drop(Server::bind(&endpoint).await.unwrap());
        assert!(socket.exists(), "a listener that ends leaves its socket");
        let _server = Server::bind(&endpoint).await.unwrap();
        assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o700);
        let file = directory.path().join("file");
        fs::write(&file, "precious").unwrap();
        let error = Server::bind(&Endpoint::Unix(file.clone())).await.unwrap_err();
        assert!(error.to_string().contains("not a socket"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    }
}
