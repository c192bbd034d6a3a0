//! One request and its answer: signs the request, sends it on a connection of the pool, and receives the head and the body of the answer.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use crate::buffer::Fill;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::net::body::Body;
use crate::net::broken::Broken;
use crate::net::flow::lanes::Lane;
use crate::net::flow::share::Floor;
use crate::net::flow::watch::Watch;
use crate::net::pool::{ConnectionPool, Host, Lease, NoConnection};
use crate::net::tcp::Direction;
use crate::object::ObjectKey;
use crate::s3::abilities::Abilities;
use crate::s3::auth::credentials::{Held, Source};
use crate::s3::auth::sign::{EMPTY_SHA256, Signer, Skew, UNSIGNED_PAYLOAD, payload_sha256};
use crate::s3::endpoint::Endpoint;
use crate::s3::failure::{Context, Failure};
use crate::s3::hedge::Hedge;
use crate::s3::outage::Outage;
use crate::s3::retry::{Dice, Slots};
use crate::s3::sums::Sums;
use crate::s3::{Config, Error, ErrorKind, Result, answer, xml};
use crate::sync::{Arc, Mutex};

/// Most bytes of an error document. A longer one is not parsed.
const ERROR_MAX: usize = 64 << 10;
/// Most reads behind the requested bytes of a body, to find its end and reuse the connection. Beyond it, the connection is closed.
const DRAINS_MAX: usize = 4;

/// Wait in the queue for a connection after which a request takes the credentials of now: those of before may have been replaced. Doubling
/// it spares a look at the source, and signs with older ones.
const QUEUED_LONG: Duration = Duration::from_secs(1);

/// The state shared by all requests to the bucket.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) config: Config,
    pub(crate) endpoint: Endpoint,
    pub(crate) pool: Arc<ConnectionPool>,
    pub(crate) signer: Signer,
    pub(crate) credentials: Option<Arc<Source>>,
    pub(crate) skew: Arc<Skew>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) slots: Slots,
    pub(crate) outage: Mutex<Outage>,
    pub(crate) hedge: Hedge,
    pub(crate) dice: Dice,
    /// Headers of every request: Host, User-Agent, the payer, the expected owner.
    pub(crate) common: HeaderMap,
    pub(crate) host: Arc<Host>,
    pub(crate) sums: Sums,
    pub(crate) abilities: Abilities,
}

/// A request that is not signed yet.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    pub(crate) operation: &'static str,
    pub(crate) key: Option<&'a ObjectKey>,
    pub(crate) attempt: u32,
    pub(crate) method: Method,
    /// Path and query in canonical form.
    pub(crate) target: String,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// The body; `None`: no body, not even an empty one with a length.
    pub(crate) body: Option<&'a [Bytes]>,
    /// Whether the body's hash is signed in any case, because no checksum header covers the document.
    pub(crate) hashed: bool,
    /// Whether to use a new connection: for a request that must not be sent twice. On a reused connection, the end of an idle connection
    /// looks like a lost answer.
    pub(crate) fresh: bool,
    /// Set to the time at which the request was sent.
    pub(crate) sent: Option<&'a OnceLock<Instant>>,
    pub(crate) clocks: Clocks,
}

impl Draft<'_> {
    /// A copy of the draft, to send the request once more.
    pub(crate) fn again(&self) -> Self {
        let (method, target, headers) = (self.method.clone(), self.target.clone(), self.headers.clone());
        Self { method, target, headers, sent: None, ..*self }
    }
}

/// Time limits of one exchange. The wait in the queue for a connection is not limited here: it lasts while others move bytes. Connecting
/// has a further limit per address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    pub(crate) lane: Lane,
    /// Longest time from the permit for a connection to the first byte of the answer: connecting and silence together.
    pub(crate) unheard: Duration,
    /// Longest silence until the answer begins.
    pub(crate) silence: Duration,
    /// Longest silence from the beginning of the answer to its end.
    pub(crate) stall: Duration,
    /// Longest time from the connection to the end of the body ...
    pub(crate) whole: Duration,
    /// ... which may be longer if many transfers share a line that carries this much.
    pub(crate) floor: Option<Floor>,
}

/// The head of an answer, and the connection that carries its body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// Time from sending the request to the head of its answer.
    pub(crate) waited: Duration,
    lease: Lease,
    watch: Watch,
    context: Context,
}

impl Wire {
    /// Bytes sent to the store and received from it so far.
    pub(crate) fn moved(&self) -> u64 {
        self.host.lanes.moved()
    }

    /// Sends `draft` and returns the head of the answer, whatever its status.
    ///
    /// If a reused connection breaks before the answer, the store closed it while it was idle; if it brings bytes that are not HTTP, it is
    /// out of step. In both cases the request is sent again at once, on a new connection.
    pub(crate) async fn exchange(&self, draft: &Draft<'_>) -> std::result::Result<Answer, Failure> {
        let mut held = match &self.credentials {
            Some(source) => Some(self.held(source, draft).await?),
            None => None,
        };
        let hash = held.as_ref().map(|_| self.payload_hash(draft));
        let mut context = Context {
            operation: draft.operation,
            key: draft.key.cloned(),
            generation: held.as_ref().map(|h| h.generation),
            started: self.clock.now(),
            attempt: draft.attempt,
            resent: false,
            queued: Duration::ZERO,
            metrics: Arc::clone(&self.metrics),
            clock: self.clock.clone(),
        };
        let mut fresh = draft.fresh;
        let mut kept = None;
        loop {
            let place = match kept.take() {
                Some(place) => place,
                None => {
                    let asked = self.clock.now();
                    let place = self.pool.place(&self.host, draft.clocks.lane).await;
                    context.queued = self.clock.now().saturating_duration_since(asked);
                    place.map_err(|e| self.unconnected(&context, e))?
                }
            };
            let begun = self.clock.now();
            if let Some(source) = self.credentials.as_ref().filter(|_| context.queued > QUEUED_LONG) {
                let now = self.held(source, draft).await.map_err(|e| context.failure(e, false))?;
                context.generation = Some(now.generation);
                held = Some(now);
            }
            // The signature has the time of now: the store refuses one that is old.
            let signing = held.as_ref().zip(hash.as_deref());
            let request = self.request(draft, signing).map_err(|e| context.failure(e, false))?;
            let lease = tokio::select! {
                biased;
                lease = self.pool.connect(&self.host, place, fresh) => lease,
                () = self.clock.sleep(draft.clocks.unheard) => Err(NoConnection::Late(draft.clocks.unheard)),
            };
            let mut lease = lease.map_err(|e| self.unconnected(&context, e))?;
            let now = self.clock.now();
            let unheard = draft.clocks.unheard.saturating_sub(now.saturating_duration_since(begun));
            let (silence, deadline) = (draft.clocks.silence.min(unheard), now + draft.clocks.whole);
            let sends = request.body().len();
            let mut watch =
                Watch::new(&self.clock, &lease.moved, silence, deadline).draining(&self.host.lanes, sends);
            if let Some(floor) = draft.clocks.floor {
                let direction = if sends > 0 { Direction::Sent } else { Direction::Received };
                watch = watch.sharing(&self.host.lanes, floor, direction);
            }
            let received = lease.moved.content_received();
            self.metrics.s3_requests.of(draft.operation).inc();
            self.metrics.work.ring();
            let sent_at = self.clock.now();
            draft.sent.map(|sent| sent.set(sent_at));
            match lease.send(request, &mut watch).await {
                Ok(response) if response.status().is_success() && !lease.has_sent_all() => {
                    let failure = context.error(ErrorKind::Network).status(response.status().as_u16());
                    let why = "the answer says that it is done, and came before the whole body was sent";
                    return Err(context.failure(failure.message(why), true));
                }
                Ok(response) => {
                    if let Some(body) = draft.body {
                        self.metrics.s3_bytes_sent.add(body.iter().map(|b| b.len() as u64).sum());
                    }
                    watch.quiet_max(draft.clocks.stall);
                    let (head, ()) = response.into_parts();
                    let now = self.clock.now();
                    let (status, headers) = (head.status, head.headers);
                    let waited = now.saturating_duration_since(sent_at);
                    let answer = Answer { status, headers, waited, lease, watch, context };
                    let took = now.saturating_duration_since(answer.context.started);
                    self.metrics.s3_first_byte.of(draft.operation).took(took);
                    answer.log(draft, now);
                    return Ok(answer);
                }
                Err(broken) => {
                    // A store that did not get the whole request can't have executed it.
                    let whole = lease.has_sent_all();
                    // TLS messages without content, such as close_notify, are not an answer.
                    let silent = lease.moved.content_received() <= received;
                    // Bytes that do not begin an answer are left over from an earlier one.
                    let is_unfit = broken.is_out_of_step() || silent && !matches!(broken, Broken::Expired(_));
                    if is_unfit && lease.is_reused() {
                        tracing::trace!(
                            operation = draft.operation,
                            "idle connection was closed or out of step, sending again"
                        );
                        context.resent |= whole;
                        fresh = true;
                        kept = lease.into_place();
                        continue;
                    }
                    lease.suspect(&broken);
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

    /// The credentials, if they come within the time limits of the request.
    async fn held(&self, source: &Arc<Source>, draft: &Draft<'_>) -> Result<Held> {
        tokio::select! {
            biased;
            held = source.get() => held,
            () = self.clock.sleep(draft.clocks.whole.min(draft.clocks.unheard)) => Err(Error::new(ErrorKind::NoCredentials, draft.operation)
                .message("the source of credentials did not answer while there was time for the request")),
        }
    }

    fn unconnected(&self, context: &Context, why: NoConnection) -> Failure {
        let timed_out = match &why {
            NoConnection::Connect(_, e) => e.kind() == std::io::ErrorKind::TimedOut,
            NoConnection::Late(_) => true,
            NoConnection::Dns(_) | NoConnection::AllBusy(..) => false,
        };
        let all_busy = matches!(why, NoConnection::AllBusy(..));
        let kind = if timed_out || all_busy { ErrorKind::Timeout } else { ErrorKind::Network };
        let host = self.endpoint.authority.host_header();
        let error = Error::new(kind, context.operation);
        let error = match all_busy {
            true => error.message(format!("no connection to {host} became free")),
            false => error.message(format!("{host} can't be reached")),
        };
        // Several addresses or a name server may have used up the time.
        let silent =
            self.clock.now().saturating_duration_since(context.started).saturating_sub(context.queued);
        Failure { silent, hopeless: all_busy, ..context.failure(error.source(why), false) }
    }

    /// The hash of the draft's body for its signature. A request computes it before it queues, because a part takes long.
    fn payload_hash(&self, draft: &Draft<'_>) -> Cow<'static, str> {
        match draft.body {
            None | Some([]) => EMPTY_SHA256.into(),
            Some(pieces) if self.config.sign_payload || draft.hashed => payload_sha256(pieces).into(),
            Some(_) => UNSIGNED_PAYLOAD.into(),
        }
    }

    /// The request on the wire, signed now with these credentials and this hash of its body.
    fn request(&self, draft: &Draft<'_>, signing: Option<(&Held, &str)>) -> Result<http::Request<Body>> {
        let wrong = |e: http::Error| Error::new(ErrorKind::InvalidRequest, draft.operation).source(e);
        let mut headers = self.common.clone();
        headers.extend(draft.headers.iter().cloned());
        if let Some((held, hash)) = signing {
            let at = self.skew.apply(self.clock.wall());
            self.signer
                .sign(&draft.method, &draft.target, &mut headers, hash, &held.credentials, at)
                .map_err(|e| wrong(e.into()))?;
        }
        // The header is not signed, because proxies of the store change it.
        if draft.key.is_some() && draft.body.is_none() && self.abilities.decompresses() {
            headers.insert(http::header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
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

impl Answer {
    /// An error of this exchange with a message of the engine, for an invalid answer.
    pub(crate) fn error(&self, kind: ErrorKind, message: impl Into<String>) -> Error {
        self.context
            .error(kind)
            .status(self.status.as_u16())
            .message(message)
            .request_id(answer::request_id(&self.headers))
    }

    /// Receives the whole body, and gives the connection back to the pool. A body longer than `limit` bytes is an error.
    pub(crate) async fn collect(mut self, limit: usize) -> std::result::Result<Collected, Failure> {
        let mut whole = BytesMut::new();
        let mut first = Bytes::new();
        loop {
            match self.lease.receive(&mut self.watch).await {
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
                Err(broken) => return Err(self.broke(broken)),
            }
        }
        let body = if whole.is_empty() { first } else { whole.freeze() };
        self.lease.give_back();
        self.context.ended();
        Ok(Collected { status: self.status, headers: self.headers, body, context: self.context })
    }

    /// Receives a body of exactly `into.remaining()` bytes straight into `into`. Ends early if the body stalls. If the head of the answer
    /// does not say the body's length, the last bytes are handed on only once the body has ended behind them.
    pub(crate) async fn fill(mut self, into: &mut Fill, wire: &Wire) -> std::result::Result<Filled, Failure> {
        let patience = wire.hedge.body_patience();
        let has_length = self.has_length();
        while into.remaining() > 0 {
            let received = tokio::select! {
                biased;
                received = self.lease.receive_into(into.spare(), &mut self.watch) => received,
                silent = wire.hedge.stalled(&wire.clock, patience) => {
                    wire.metrics.s3_hedges.inc();
                    tracing::debug!(operation = self.context.operation, "the body stalls: its rest is asked for anew");
                    return Ok(Filled::Stalls(silent));
                }
            };
            match received {
                Ok(0) => {
                    let e = self.error(ErrorKind::Network, "the body broke off");
                    return Err(self.context.failure(e, true));
                }
                Ok(n) => {
                    if !has_length && n as u64 == into.remaining() {
                        self.end().await?;
                    }
                    // Counted first: after `advance` a reader may have its bytes, and read the metrics.
                    wire.metrics.s3_bytes_received.add(n as u64);
                    wire.metrics.work.ring();
                    into.advance(n);
                }
                Err(broken) => return Err(self.broke(broken)),
            }
        }
        self.context.ended();
        self.finish().await;
        Ok(Filled::Whole)
    }

    /// Whether the head of the answer says how long the body is.
    fn has_length(&self) -> bool {
        let has = |name| self.headers.contains_key(name);
        has(http::header::CONTENT_LENGTH) && !has(http::header::TRANSFER_ENCODING)
    }

    /// Receives the end of the body. Another byte is an error: the body is longer than the object or its range.
    async fn end(&mut self) -> std::result::Result<(), Failure> {
        match self.lease.receive_into(&mut [0], &mut self.watch).await {
            Ok(0) => Ok(()),
            Ok(_) => {
                let kind =
                    if self.status == StatusCode::OK { ErrorKind::Changed } else { ErrorKind::BadAnswer };
                let why = "its body is longer than expected: the object changed, or a proxy changes bodies on the way";
                Err(self.context.failure(self.error(kind, why), true))
            }
            Err(broken) => Err(self.broke(broken)),
        }
    }

    /// The failure of a body that broke off.
    fn broke(&self, broken: Broken) -> Failure {
        self.lease.suspect(&broken);
        self.context.broken(broken)
    }

    /// Reads the few bytes that may be left, so the connection can serve another request. If more are left, the connection is closed.
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

    /// Reads the error document of an answer that is not a success.
    pub(crate) async fn failed(self, wall: std::time::SystemTime) -> Failure {
        let (status, headers, context) = (self.status, self.headers.clone(), self.context.clone());
        match self.collect(ERROR_MAX).await {
            Ok(collected) => collected.failed(wall),
            // The body is too long for an error document, such as a web page of a proxy: only the status counts.
            Err(failure) if *failure.error.kind() == ErrorKind::BadAnswer => {
                Collected { status, headers, body: Bytes::new(), context }.failed(wall)
            }
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

/// The result of receiving a body without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// All bytes arrived.
    Whole,
    /// The body stalled: no byte came for this time, and the missing bytes need another request.
    Stalls(Duration),
}

/// An answer with its whole body.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    context: Context,
}

impl Collected {
    /// The failure of an invalid answer.
    pub(crate) fn bad(&self, message: impl Into<String>) -> Failure {
        self.wrong(ErrorKind::BadAnswer, message)
    }

    /// The failure of an answer with a successful status and wrong content.
    pub(crate) fn wrong(&self, kind: ErrorKind, message: impl Into<String>) -> Failure {
        let error = self
            .context
            .error(kind)
            .status(self.status.as_u16())
            .message(message)
            .request_id(answer::request_id(&self.headers));
        self.context.failure(error, true)
    }

    /// Whether only the end of the connection ends the body: then a body that breaks off looks complete.
    pub(crate) fn ends_with_connection(&self) -> bool {
        let has = |name| self.headers.contains_key(name);
        !has(http::header::CONTENT_LENGTH) && !has(http::header::TRANSFER_ENCODING)
    }

    /// The failure of an answer with status 200 and another document than expected: an error that the store found after it sent the head,
    /// or an invalid document.
    pub(crate) fn unexpected(self, why: impl Into<String>, wall: std::time::SystemTime) -> Failure {
        match xml::error_body(&self.body).code {
            Some(_) => self.failed(wall),
            None => self.bad(why),
        }
    }

    /// The failure that this answer reports.
    pub(crate) fn failed(self, wall: std::time::SystemTime) -> Failure {
        let document = xml::error_body(&self.body);
        let region = answer::text(&self.headers, "x-amz-bucket-region").or(document.region.as_deref());
        let kind = answer::kind_of(self.status, document.code.as_deref(), region);
        // An error with status 200 came after the store began to work. With 501 it did not begin.
        let began = self.status.is_server_error() || self.status.is_success();
        let ambiguous = (began && kind != ErrorKind::Unsupported) || self.context.resent;
        let request_id = answer::request_id(&self.headers).or(document.request_id);
        let error = self
            .context
            .error(kind)
            .status(self.status.as_u16())
            .answer(document.code, document.message)
            .request_id(request_id);
        let date = answer::date(&self.headers);
        Failure {
            // The pause may be given as a date by the store's clock, which may differ from this machine's.
            retry_after: answer::retry_after(&self.headers, date.unwrap_or(wall)),
            date,
            ..self.context.failure(error, ambiguous)
        }
    }
}
