//! One request and its answer: signed, sent on a connection of the pool, the head received.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::body::Body;
use super::broken::Broken;
use super::connection::Answered;
use super::credentials::{Held, Source};
use super::endpoint::Endpoint;
use super::pool::{Host, Lease, NoConnection, Pool};
use super::retry::{Budget, Dice};
use super::sign::{EMPTY_SHA256, Signer, Skew, UNSIGNED_PAYLOAD, payload_sha256};
use super::watch::Watch;
use super::{Config, Error, ErrorKind, Result, answer, xml};
use crate::buffer::Fill;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::object::ObjectKey;
use crate::sync::Arc;

/// Bytes of an error document that are read.
const ERROR_MAX: usize = 64 << 10;
/// How often more is read of a body that brought what was asked for, to find its end and let the connection serve on.
const DRAINS_MAX: usize = 4;

/// What all requests to the bucket share.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) config: Config,
    pub(super) endpoint: Endpoint,
    pub(super) pool: Arc<Pool>,
    pub(super) signer: Signer,
    pub(super) credentials: Option<Arc<Source>>,
    pub(super) skew: Arc<Skew>,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
    pub(super) budget: Budget,
    pub(super) dice: Dice,
    /// Stands in every request: Host, User-Agent, who pays, who must own.
    pub(super) common: HeaderMap,
    pub(super) host: Arc<Host>,
}

/// A request that is yet to be signed.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    pub(super) operation: &'static str,
    pub(super) key: Option<&'a ObjectKey>,
    pub(super) attempt: u32,
    pub(super) method: Method,
    /// Path and query in canonical form.
    pub(super) target: String,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    /// `None`: a request without a body, not even an empty one.
    pub(super) body: Option<&'a [Bytes]>,
    pub(super) deadline: Instant,
}

/// A failed try: the error if it is to be the last, and what the next one should know.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: Error,
    pub(super) retry_after: Option<Duration>,
    /// The store's clock.
    pub(super) date: Option<std::time::SystemTime>,
    /// The store may have done what was asked.
    pub(super) ambiguous: bool,
    /// Which credentials were used.
    pub(super) generation: Option<u64>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, retry_after: None, date: None, ambiguous: false, generation: None }
    }
}

/// The head of an answer, and the connection on which its body comes.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    body: Answered,
    lease: Lease,
    watch: Watch,
    context: Context,
}

/// What an error of this exchange should name.
#[derive(Clone, Debug)]
struct Context {
    operation: &'static str,
    key: Option<ObjectKey>,
    generation: Option<u64>,
    started: Instant,
    attempt: u32,
    /// It was sent whole before, on a connection that broke without a word, and once more at once.
    resent: bool,
}

impl Wire {
    /// Of the credentials that are held now.
    pub(super) fn generation(&self) -> Option<u64> {
        self.credentials.as_ref()?.generation()
    }

    /// Sends `draft` and returns the head of the answer, whatever its status.
    ///
    /// A connection that had been idle and breaks before it said anything was closed by the store meanwhile: the
    /// request goes out again at once on a new one.
    pub(super) async fn exchange(&self, draft: Draft<'_>) -> std::result::Result<Answer, Failure> {
        let held = match &self.credentials {
            Some(source) => Some(source.get().await?),
            None => None,
        };
        let mut context = Context {
            operation: draft.operation,
            key: draft.key.cloned(),
            generation: held.as_ref().map(|h| h.generation),
            started: self.clock.now(),
            attempt: draft.attempt,
            resent: false,
        };
        let mut fresh = false;
        loop {
            let request = self.request(&draft, held.as_ref()).map_err(|e| context.failure(e, false))?;
            let mut lease = self.lease(&draft, fresh).await.map_err(|e| context.failure(e, false))?;
            let timeouts = &self.config.timeouts;
            let mut watch = Watch::new(&self.clock, &lease.moved, timeouts.first_byte, draft.deadline);
            let (received, sent) = (lease.moved.received(), lease.moved.sent());
            let body_len = request.body().len();
            self.metrics.s3_requests.inc();
            match lease.send(request, &mut watch).await {
                Ok(response) => {
                    if let Some(body) = draft.body {
                        self.metrics.s3_bytes_sent.add(body.iter().map(|b| b.len() as u64).sum());
                    }
                    watch.quiet_max(timeouts.stall);
                    let (head, body) = response.into_parts();
                    let answer =
                        Answer { status: head.status, headers: head.headers, body, lease, watch, context };
                    answer.log(&draft, self.clock.now());
                    return Ok(answer);
                }
                Err(broken) => {
                    // A store that did not get the whole body can't have stored it.
                    let whole = lease.moved.sent() - sent >= body_len;
                    let silent = lease.moved.received() == received;
                    if silent && lease.is_reused() && !matches!(broken, Broken::Expired(_)) {
                        tracing::trace!(
                            operation = draft.operation,
                            "idle connection was closed, sending again"
                        );
                        context.resent |= whole;
                        fresh = true;
                        continue;
                    }
                    lease.blame();
                    tracing::debug!(operation = draft.operation, attempt = draft.attempt, error = %broken, "no answer");
                    let mut failure = context.broken(broken);
                    let host = self.endpoint.authority.host_header();
                    failure.error = failure.error.message(format!("{host} gave no answer"));
                    failure.ambiguous = whole || context.resent;
                    return Err(failure);
                }
            }
        }
    }

    async fn lease(&self, draft: &Draft<'_>, fresh: bool) -> Result<Lease> {
        let left = draft.deadline.saturating_duration_since(self.clock.now());
        tokio::select! {
            biased;
            lease = self.pool.lease(&self.host, fresh) => lease.map_err(|e| {
                let kind = match &e {
                    NoConnection::Connect(_, e) if e.kind() == std::io::ErrorKind::TimedOut => ErrorKind::Timeout,
                    _ => ErrorKind::Network,
                };
                let host = self.endpoint.authority.host_header();
                Error::new(kind, draft.operation).message(format!("{host} can't be reached")).source(e)
            }),
            () = self.clock.sleep(left) => Err(Error::new(ErrorKind::Timeout, draft.operation).message(
                format!("no connection became free: all {} are in use", self.config.connections()),
            )),
        }
    }

    fn request(&self, draft: &Draft<'_>, held: Option<&Held>) -> Result<http::Request<Body>> {
        let wrong = |e: http::Error| Error::new(ErrorKind::InvalidRequest, draft.operation).source(e);
        let mut headers = self.common.clone();
        headers.extend(draft.headers.iter().cloned());
        if let Some(held) = held {
            let hash = match draft.body {
                None | Some([]) => EMPTY_SHA256,
                Some(pieces) if self.config.sign_payload => &payload_sha256(pieces),
                Some(_) => UNSIGNED_PAYLOAD,
            };
            let at = self.skew.apply(self.clock.wall());
            self.signer
                .sign(&draft.method, &draft.target, &mut headers, hash, &held.credentials, at)
                .map_err(|e| wrong(e.into()))?;
        }
        let body = Body::new(draft.body.unwrap_or_default());
        if draft.body.is_some() {
            headers.insert(http::header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        }
        let mut request = http::Request::builder()
            .method(draft.method.clone())
            .uri(draft.target.as_str())
            .body(body)
            .map_err(wrong)?;
        *request.headers_mut() = headers;
        Ok(request)
    }
}

impl Context {
    fn error(&self, kind: ErrorKind) -> Error {
        let error = Error::new(kind, self.operation);
        match &self.key {
            Some(key) => error.key(key),
            None => error,
        }
    }

    fn failure(&self, error: Error, ambiguous: bool) -> Failure {
        let error = match &self.key {
            Some(key) => error.key(key),
            None => error,
        };
        Failure { ambiguous: ambiguous || self.resent, generation: self.generation, ..error.into() }
    }

    fn broken(&self, broken: Broken) -> Failure {
        let kind = match &broken {
            Broken::Expired(_) => ErrorKind::Timeout,
            Broken::Http(e) if e.is_parse() => ErrorKind::BadAnswer,
            Broken::Malformed(_) => ErrorKind::BadAnswer,
            Broken::Http(_) | Broken::Io(_) | Broken::Closed => ErrorKind::Network,
        };
        self.failure(self.error(kind).source(broken), true)
    }
}

impl Answer {
    /// An error of this exchange, of our own making: the answer is not what it should be.
    pub(super) fn error(&self, kind: ErrorKind, message: impl Into<String>) -> Error {
        self.context
            .error(kind)
            .status(self.status.as_u16())
            .message(message)
            .request_id(answer::request_id(&self.headers))
    }

    /// The whole body, and the connection back to the pool.
    pub(super) async fn collect(mut self, limit: usize) -> std::result::Result<Collected, Failure> {
        let mut whole = BytesMut::new();
        let mut first = Bytes::new();
        loop {
            match self.lease.receive(&mut self.body, &mut self.watch).await {
                Ok(None) => break,
                Ok(Some(piece)) => {
                    if first.len() + whole.len() + piece.len() > limit {
                        let e = self
                            .error(ErrorKind::BadAnswer, format!("the answer is longer than {limit} bytes"));
                        return Err(self.context.failure(e, true));
                    }
                    // copy: the read buffer must be free again for the next piece
                    match (first.is_empty(), whole.is_empty()) {
                        (true, true) => first = piece,
                        (false, true) => {
                            whole.extend_from_slice(&first);
                            first = Bytes::new();
                            whole.extend_from_slice(&piece);
                        }
                        _ => whole.extend_from_slice(&piece),
                    }
                }
                Err(broken) => {
                    self.lease.blame();
                    return Err(self.context.broken(broken));
                }
            }
        }
        let body = if whole.is_empty() { first } else { whole.freeze() };
        self.lease.give_back();
        Ok(Collected { status: self.status, headers: self.headers, body, context: self.context })
    }

    /// Receives a body of exactly `into.remaining()` bytes, straight into it.
    pub(super) async fn fill(
        mut self,
        into: &mut Fill,
        metrics: &Metrics,
    ) -> std::result::Result<(), Failure> {
        while into.remaining() > 0 {
            match self.lease.receive_into(into.spare(), &mut self.watch).await {
                Ok(0) => {
                    let e = self.error(ErrorKind::Network, "the body broke off");
                    return Err(self.context.failure(e, true));
                }
                Ok(n) => {
                    into.advance(n);
                    metrics.s3_bytes_received.add(n as u64);
                }
                Err(broken) => {
                    self.lease.blame();
                    return Err(self.context.broken(broken));
                }
            }
        }
        self.finish().await;
        Ok(())
    }

    /// Reads what little may be left, so that the connection can serve on; else it is closed.
    async fn finish(mut self) {
        let mut rest = [0; 256];
        for _ in 0..DRAINS_MAX {
            match self.lease.receive_into(&mut rest, &mut self.watch).await {
                Ok(0) => return self.lease.give_back(),
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    /// Reads the error document behind a status that is no success.
    pub(super) async fn failed(self, wall: std::time::SystemTime) -> Failure {
        match self.collect(ERROR_MAX).await {
            Ok(collected) => collected.failed(wall),
            Err(failure) => failure,
        }
    }

    fn log(&self, draft: &Draft<'_>, now: Instant) {
        tracing::debug!(
            operation = draft.operation,
            key = draft.key.map(tracing::field::display),
            range = draft
                .headers
                .iter()
                .find(|(n, _)| n == http::header::RANGE)
                .map(|(_, v)| tracing::field::debug(v)),
            status = self.status.as_u16(),
            ms = now.saturating_duration_since(self.context.started).as_secs_f64() * 1e3,
            request_id = answer::text(&self.headers, "x-amz-request-id"),
            attempt = self.context.attempt,
            "request"
        );
    }
}

/// An answer with its whole body.
#[derive(Debug)]
pub(super) struct Collected {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    context: Context,
}

impl Collected {
    /// The answer makes no sense.
    pub(super) fn bad(&self, message: impl Into<String>) -> Failure {
        self.wrong(ErrorKind::BadAnswer, message)
    }

    /// The answer is a success by its status, and none by what it says.
    pub(super) fn wrong(&self, kind: ErrorKind, message: impl Into<String>) -> Failure {
        let error = self
            .context
            .error(kind)
            .status(self.status.as_u16())
            .message(message)
            .request_id(answer::request_id(&self.headers));
        self.context.failure(error, true)
    }

    /// The error that this answer is.
    pub(super) fn failed(self, wall: std::time::SystemTime) -> Failure {
        let document = xml::error_body(&self.body);
        let region = answer::text(&self.headers, "x-amz-bucket-region").or(document.region.as_deref());
        let kind = answer::kind_of(self.status, document.code.as_deref(), region);
        let ambiguous = self.status.is_server_error() || self.context.resent;
        let request_id = answer::request_id(&self.headers).or(document.request_id);
        let error = self
            .context
            .error(kind)
            .status(self.status.as_u16())
            .answer(document.code, document.message)
            .request_id(request_id);
        Failure {
            error,
            retry_after: answer::retry_after(&self.headers, wall),
            date: answer::text(&self.headers, "date").and_then(answer::http_date),
            ambiguous,
            generation: self.context.generation,
        }
    }
}
