//! Connections, and the effects of faults on them.
//!
//! Enters: HTTP requests on TCP connections. Leaves: the answers of [`crate::api`], changed by the fault plan.
//! Never here: keys, objects.

mod body;
mod line;
mod odd;

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use s3s::service::S3Service;
use time::OffsetDateTime;
use time::macros::format_description;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use self::body::{Inbound, Outbound};
use self::line::{Connection, Line};
use crate::fault::{Effect, Struck};
use crate::requests::RequestLog;

/// Size of hyper's buffer for a connection, in bytes: a read takes up to this much, and so much of an answer waits in memory.
const BUFFER: usize = 1 << 20;
/// Longest time for a request's head; a slower connection is closed.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause after a failed accept, mostly for lack of descriptors: connections may end meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// One request and the faults that strike it; an extension of the request.
#[derive(Clone, Debug)]
pub(crate) struct Exchange(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    struck: OnceLock<Struck>,
    line: Arc<Line>,
}

impl Exchange {
    /// Sets the faults that strike this request. Later calls have no effect.
    pub(crate) fn strike(&self, struck: Struck) {
        let _ = self.0.struck.set(struck);
    }

    /// The effects on this request; empty before its operation is known.
    pub(crate) fn effects(&self) -> &[Effect] {
        self.0.struck.get().map_or(&[], |struck| &struck.effects)
    }

    /// Whether this effect strikes the request.
    pub(crate) fn has(&self, effect: &Effect) -> bool {
        self.effects().contains(effect)
    }

    /// Resets the connection instead of an answer.
    pub(crate) fn hang_up(&self) {
        self.0.line.cut(line::Cut::Reset);
    }
}

/// The error of a connection that a fault closes without an answer.
#[derive(Debug)]
struct HungUp;

impl std::fmt::Display for HungUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a fault ended the connection")
    }
}

impl std::error::Error for HungUp {}

/// Accepts connections until the future is dropped; the connections end with the future.
pub(crate) async fn accept(listener: TcpListener, service: S3Service, log: RequestLog) -> Infallible {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.spawn(connection(stream, service.clone(), log.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "can't accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, service: S3Service, log: RequestLog) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "can't set TCP_NODELAY");
    }
    let line = Arc::new(Line::default());
    let io = TokioIo::new(Connection::new(stream, line.clone(), log));
    let answering = hyper::service::service_fn(move |request| {
        // The future is boxed: it has the whole request and the state of every operation.
        Box::pin(answer(service.clone(), line.clone(), request))
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(BUFFER)
        .half_close(false)
        .serve_connection(io, answering)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended");
    }
}

async fn answer(
    service: S3Service,
    line: Arc<Line>,
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<s3s::Body>, HungUp> {
    let exchange = Exchange(Arc::new(Inner { struck: OnceLock::new(), line: line.clone() }));
    let (mut parts, body) = request.into_parts();
    parts.extensions.insert(exchange.clone());
    let body = s3s::Body::http_body(Inbound::new(body, exchange.clone()));
    let answered = service.call(hyper::Request::from_parts(parts, body)).await;

    if let Some(struck) = exchange.0.struck.get() {
        struck.wait().await;
    }
    let effects = exchange.effects();
    if exchange.has(&Effect::DropAnswer) {
        exchange.hang_up();
    }
    if line.is_cut() {
        return Err(HungUp);
    }
    let Ok(mut response) = answered else { return Err(HungUp) };
    if exchange.has(&Effect::WrongEtag)
        && let Some(etag) = response.headers_mut().get_mut(http::header::ETAG)
    {
        *etag = http::HeaderValue::from_static("\"00000000000000000000000000000000\"");
    }
    let ahead_s = |effect: &Effect| match effect {
        Effect::Date { ahead_s } => Some(*ahead_s),
        _ => None,
    };
    if let Some(date) = effects.iter().find_map(ahead_s).and_then(date_header) {
        response.headers_mut().insert(http::header::DATE, date);
    }
    if response.status().is_success() {
        odd::change_headers(response.headers_mut(), effects);
        if effects.iter().any(odd::concerns_document) {
            let (mut head, body) = response.into_parts();
            let document = body.collect().await.map_err(|_| HungUp)?.to_bytes();
            let changed = odd::change_document(&mut head.headers, &document, effects);
            response = hyper::Response::from_parts(head, s3s::Body::from(changed));
        }
    }
    if effects.iter().any(body::concerns) {
        let (head, body) = response.into_parts();
        let body = s3s::Body::http_body(Outbound::new(body, effects.to_vec(), line));
        response = hyper::Response::from_parts(head, body);
    }
    Ok(response)
}

/// The value of a Date header, this many seconds from now.
fn date_header(ahead_s: i64) -> Option<http::HeaderValue> {
    let form = format_description!(
        "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
    );
    let at = OffsetDateTime::now_utc().checked_add(time::Duration::seconds(ahead_s))?;
    http::HeaderValue::from_str(&at.format(form).ok()?).ok()
}
