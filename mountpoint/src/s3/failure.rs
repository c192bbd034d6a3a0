//! The failure of one exchange, and the facts about the exchange that its failures, metrics and log lines name.

use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::net::broken::Broken;
use crate::net::flow::watch::Expired;
use crate::object::ObjectKey;
use crate::s3::{Error, ErrorKind};
use crate::sync::Arc;

/// A failed attempt: its error, in case it is final, and facts for the next attempt.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    pub(crate) retry_after: Option<Duration>,
    /// The time of the store's clock in the answer.
    pub(crate) date: Option<std::time::SystemTime>,
    /// Whether the store may have executed the request.
    pub(crate) ambiguous: bool,
    /// Generation of the credentials that signed the request.
    pub(crate) generation: Option<u64>,
    /// Time since the last byte from the store.
    pub(crate) silent: Duration,
    /// Time that the attempt waited in the queue for a connection.
    pub(crate) queued: Duration,
    /// Whether more time would not help: the attempt used all of it.
    pub(crate) hopeless: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            error,
            retry_after: None,
            date: None,
            ambiguous: false,
            generation: None,
            silent: Duration::ZERO,
            queued: Duration::ZERO,
            hopeless: false,
        }
    }
}

/// The facts about an exchange for its errors, metrics and log lines.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) operation: &'static str,
    pub(crate) key: Option<ObjectKey>,
    pub(crate) generation: Option<u64>,
    pub(crate) started: Instant,
    pub(crate) attempt: u32,
    /// Whether the whole request was sent twice, because the first connection broke without an answer.
    pub(crate) resent: bool,
    pub(crate) queued: Duration,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Clock,
}

impl Context {
    /// Counts an answer that was received completely.
    pub(crate) fn ended(&self) {
        let took = self.clock.now().saturating_duration_since(self.started);
        self.metrics.s3_total.of(self.operation).took(took);
        self.metrics.work.ring();
    }

    /// An error of this exchange, without a message yet.
    pub(crate) fn error(&self, kind: ErrorKind) -> Error {
        let error = Error::new(kind, self.operation);
        match &self.key {
            Some(key) => error.key(key),
            None => error,
        }
    }

    /// The failure of this exchange with this error.
    pub(crate) fn failure(&self, error: Error, ambiguous: bool) -> Failure {
        let error = match &self.key {
            Some(key) => error.key(key),
            None => error,
        };
        Failure {
            ambiguous: ambiguous || self.resent,
            generation: self.generation,
            queued: self.queued,
            ..error.into()
        }
    }

    /// The failure of an exchange whose connection broke.
    pub(crate) fn broken(&self, broken: Broken) -> Failure {
        let kind = match &broken {
            Broken::Expired(_) => ErrorKind::Timeout,
            _ if broken.is_no_http() => ErrorKind::BadAnswer,
            _ => ErrorKind::Network,
        };
        let (silent, hopeless) = match &broken {
            Broken::Expired(Expired::Quiet(silent)) => (*silent, false),
            // The exchange used all its time although bytes moved, so another attempt would not help. An exchange that was slower than
            // others may be faster on another connection.
            Broken::Expired(Expired::Deadline) => (Duration::ZERO, true),
            _ => (Duration::ZERO, false),
        };
        Failure { silent, hopeless, ..self.failure(self.error(kind).source(broken), true) }
    }
}
