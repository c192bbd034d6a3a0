//! The small HTTP server of `--metrics-listen` and of the control socket: `/metrics` and `/healthz`, and on the latter also `/status`,
//! `/upgrade` and `/sync`.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path as FilePath, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;

use super::{Telemetry, prometheus};
use crate::supervise::Supervisor;
use crate::sync::Arc;

/// Most connections that are served at once; further ones wait in a queue. Doubling it lets twice as many scrapers keep one open.
const CONNECTIONS_MAX: usize = 16;
/// Time without a request after which a connection is closed, to make room for others.
const REQUEST_WITHIN: Duration = Duration::from_secs(60);
/// The request to hand the mount over to another program.
pub const UPGRADE: &str = "/upgrade";
/// The request to store pending files.
pub const SYNC: &str = "/sync";
const TEXT: &str = "text/plain; charset=utf-8";
/// Pause after a failed accept(2), mostly for lack of file descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The address of `--metrics-listen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// An address of this machine.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// A bound listener. Connections wait in the kernel's queue until it is served.
#[derive(Debug)]
pub(super) enum Bound {
    Tcp(TcpListener),
    Unix(UnixListener, Path),
}

/// The path of a socket, removed when this is dropped at the end of the mount.
#[derive(Debug)]
pub(super) struct Path(pub(super) PathBuf);

impl Drop for Path {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(PathBuf::from(path))),
            Some(_) => Err("the path of a socket begins with '/': unix:/run/mount-s3.sock".into()),
            None => text.parse().map(Self::Tcp).map_err(|_| {
                "give an address with a port, such as 127.0.0.1:9464 or [::1]:9464, or unix:PATH".into()
            }),
        }
    }
}

impl Listen {
    /// Binds the address. Replaces a socket that an earlier process left; a socket with a listener is an error.
    pub(super) fn bind(&self) -> anyhow::Result<Bound> {
        match self {
            Self::Tcp(address) => {
                let listener =
                    TcpListener::bind(address).with_context(|| format!("listening on {address}"))?;
                listener.set_nonblocking(true)?;
                tracing::info!("metrics are at http://{}/metrics", listener.local_addr()?);
                Ok(Bound::Tcp(listener))
            }
            Self::Unix(path) => {
                let listener = bind_unix(path)?;
                tracing::info!("metrics are at {self}");
                Ok(Bound::Unix(listener, Path(path.clone())))
            }
        }
    }
}

/// Binds a Unix socket at this path. An unused socket there is replaced; another file, or a socket with a listener, is an error.
pub(super) fn bind_unix(path: &FilePath) -> anyhow::Result<UnixListener> {
    let context = || format!("listening on the socket {}", path.display());
    if let Ok(there) = std::fs::symlink_metadata(path) {
        if !there.file_type().is_socket() {
            bail!("{} exists and is not a socket: choose another path", path.display());
        }
        if UnixStream::connect(path).is_ok() {
            bail!("another process listens on {}: each mount needs a path of its own", path.display());
        }
        std::fs::remove_file(path).with_context(context)?;
    }
    let listener = UnixListener::bind(path).with_context(context)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

impl Bound {
    /// Serves until the runtime ends. The result removes the path of a Unix socket when it is dropped.
    pub(super) fn serve(
        self,
        telemetry: &Arc<Telemetry>,
        supervisor: &Supervisor,
        runtime: &tokio::runtime::Handle,
    ) -> io::Result<Option<Path>> {
        let _inside = runtime.enter();
        let (telemetry, places) = (Arc::clone(telemetry), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
        match self {
            Self::Tcp(listener) => {
                let listener = Arc::new(tokio::net::TcpListener::from_std(listener)?);
                supervisor.task(runtime, "serving metrics", move || {
                    let (listener, telemetry) = (Arc::clone(&listener), Arc::clone(&telemetry));
                    let accept = move || {
                        let listener = Arc::clone(&listener);
                        async move { Ok(Some(listener.accept().await?.0)) }
                    };
                    accept_for_ever(accept, telemetry, Arc::clone(&places), Door::Metrics)
                });
                Ok(None)
            }
            Self::Unix(listener, path) => {
                serve_unix(listener, &telemetry, supervisor, runtime, Door::Metrics)?;
                Ok(Some(path))
            }
        }
    }
}

/// The pages that a socket serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    /// Numbers only, for the users that the socket's permissions admit.
    Metrics,
    /// Also names of objects and commands, for the mounting user and root.
    Control,
}

/// Serves a Unix socket until the runtime ends.
pub(super) fn serve_unix(
    listener: UnixListener,
    telemetry: &Arc<Telemetry>,
    supervisor: &Supervisor,
    runtime: &tokio::runtime::Handle,
    door: Door,
) -> io::Result<()> {
    let _inside = runtime.enter();
    let (telemetry, places) = (Arc::clone(telemetry), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
    let listener = Arc::new(tokio::net::UnixListener::from_std(listener)?);
    supervisor.task(runtime, "serving its socket", move || {
        let (listener, telemetry) = (Arc::clone(&listener), Arc::clone(&telemetry));
        let accept = move || {
            let listener = Arc::clone(&listener);
            async move {
                let stream = listener.accept().await?.0;
                let peer = stream.peer_cred()?.uid();
                let may = door == Door::Metrics || may_ask(peer, rustix::process::geteuid().as_raw());
                Ok(may.then_some(stream))
            }
        };
        accept_for_ever(accept, telemetry, Arc::clone(&places), door)
    });
    Ok(())
}

/// Whether the control socket answers this user: the mounting user and root, whatever the socket's mode is.
fn may_ask(peer: u32, owner: u32) -> bool {
    peer == owner || peer == 0
}

async fn accept_for_ever<S, F>(
    mut accept: impl FnMut() -> F,
    telemetry: Arc<Telemetry>,
    places: Arc<Semaphore>,
    door: Door,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = io::Result<Option<S>>>,
{
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = match accept().await {
            Ok(Some(stream)) => stream,
            Ok(None) => continue,
            Err(error) => {
                tracing::debug!("accepting a connection for metrics: {error}");
                telemetry.clock.sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let telemetry = Arc::clone(&telemetry);
        tokio::spawn(async move {
            let answer = service_fn(move |request: Request<Incoming>| {
                let telemetry = Arc::clone(&telemetry);
                async move {
                    let uri = request.uri();
                    Ok::<_, Infallible>(match (request.method(), uri.path(), door) {
                        (&Method::POST, UPGRADE, Door::Control) => upgrade(&telemetry, uri.query()).await,
                        (&Method::POST, SYNC, Door::Control) => sync(&telemetry, uri.query()).await,
                        (method, path, door) => answer(&telemetry, door, method, path),
                    })
                }
            });
            let mut connection = http1::Builder::new();
            connection.timer(TokioTimer::new()).header_read_timeout(REQUEST_WITHIN);
            let _ = connection.serve_connection(TokioIo::new(stream), answer).await;
            drop(place);
        });
    }
}

async fn upgrade(telemetry: &Telemetry, query: Option<&str>) -> Response<Full<Bytes>> {
    let refusal = match within(query) {
        Some(within) => telemetry.mount.hand_over(within).await,
        None => "the query is within=SECONDS".to_owned(),
    };
    response(StatusCode::CONFLICT, TEXT, refusal)
}

/// Stores pending files. The query is `within=SECONDS&below=PATH`, with the path in hexadecimal digits.
async fn sync(telemetry: &Telemetry, query: Option<&str>) -> Response<Full<Bytes>> {
    let (time, path) = query.and_then(|query| query.split_once("&below=")).unwrap_or_default();
    let path = base16ct::lower::decode_vec(path).map(|path| PathBuf::from(OsString::from_vec(path)));
    let synced = match (within(Some(time)), path) {
        (Some(within), Ok(path)) => telemetry.mount.sync(path, within).await,
        _ => Err("the query is within=SECONDS&below=PATH".to_owned()),
    };
    match synced {
        Ok(synced) => {
            let synced = serde_json::to_string(&synced).unwrap_or_default();
            response(StatusCode::OK, "application/json", synced)
        }
        Err(why) => response(StatusCode::CONFLICT, TEXT, why),
    }
}

/// Parses the time of the query `within=SECONDS`.
fn within(query: Option<&str>) -> Option<Duration> {
    let seconds: u32 = query?.strip_prefix("within=")?.parse().ok()?;
    Some(Duration::from_secs(seconds.into()))
}

fn answer(telemetry: &Telemetry, door: Door, method: &Method, path: &str) -> Response<Full<Bytes>> {
    let (status, kind, body) = match (method, path, door) {
        (&Method::GET | &Method::HEAD, "/metrics", _) => {
            (StatusCode::OK, prometheus::CONTENT_TYPE, telemetry.page())
        }
        (&Method::GET | &Method::HEAD, "/healthz", _) => (StatusCode::OK, TEXT, "ok\n".to_owned()),
        (&Method::GET | &Method::HEAD, "/status", Door::Control) => {
            let status = serde_json::to_string(&telemetry.status()).unwrap_or_default();
            (StatusCode::OK, "application/json", status)
        }
        (&Method::GET | &Method::HEAD, _, _) => {
            (StatusCode::NOT_FOUND, TEXT, "here are /metrics and /healthz\n".to_owned())
        }
        _ => (StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n".to_owned()),
    };
    response(status, kind, body)
}

fn response(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_or_a_path_of_a_socket_is_told_apart() {
        assert_eq!("127.0.0.1:9".parse(), Ok(Listen::Tcp(([127, 0, 0, 1], 9).into())));
        assert_eq!("unix:/run/x".parse(), Ok(Listen::Unix("/run/x".into())));
        for wrong in ["unix:x", "localhost:9", "9464", "127.0.0.1", ""] {
            assert!(wrong.parse::<Listen>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_mounting_user_and_root_are_answered_and_nobody_else() {
        assert!(may_ask(1000, 1000) && may_ask(0, 1000) && may_ask(0, 0));
        assert!(!may_ask(1001, 1000) && !may_ask(1000, 0));
    }

    #[test]
    fn a_socket_left_behind_is_replaced_and_one_in_use_or_another_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.sock");
        let ended = bind_unix(&path).unwrap();
        // Shut down explicitly: the child of another test inherits the socket until it calls exec.
        rustix::net::shutdown(&ended, rustix::net::Shutdown::Both).unwrap();
        drop(ended);
        assert!(path.exists(), "left behind");
        let held = bind_unix(&path).unwrap();
        assert!(bind_unix(&path).unwrap_err().to_string().contains("another process listens"));
        drop(held);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "a letter").unwrap();
        assert!(bind_unix(&path).unwrap_err().to_string().contains("is not a socket"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a letter");
    }
}
