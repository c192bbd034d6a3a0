//! The errors of requests. The kind of an error tells the caller what to do next.

use std::error::Error as StdError;
use std::fmt::{self, Write as _};

use crate::checksum::Checksum;
use crate::metrics::Metrics;
use crate::net;
use crate::object::ObjectKey;

/// The kind of an error: it tells the caller what to do next. Only `fs/error.rs` maps kinds to errno.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The object (or upload) does not exist.
    NotFound,
    /// The bucket does not exist.
    NoSuchBucket,
    /// The store denies the request (403), even after one refresh of the credentials.
    Denied,
    /// No source of credentials gave any.
    NoCredentials,
    /// The object has another version than the requested one (412, or an answer with another ETag or size).
    Changed,
    /// An object exists, and the request must not replace it. Also for a copy: the version to replace does not exist.
    Exists,
    /// The object is in an archive tier and must be restored first.
    Archived,
    /// The bucket is in another region: this one, if the store named it.
    WrongRegion(Option<String>),
    /// The store limited the rate of requests, until the retries were used up.
    Throttled,
    /// No answer within the time limit.
    Timeout,
    /// The connection could not be made or broke: DNS, TCP, TLS.
    Network,
    /// The store answered 5xx, until the retries were used up.
    ServerError,
    /// The stored or received bytes differ from the bytes that were sent.
    Corrupt,
    /// The answer is not valid: broken XML, missing headers, a range that was not requested.
    BadAnswer,
    /// The store did not encrypt as the user requires: the object is stored unencrypted, or the upload was aborted.
    NotEncrypted,
    /// The outcome is unknown: the request may have been executed.
    Unknown,
    /// The store does not know the operation or the option (501, NotImplemented).
    Unsupported,
    /// The store refuses the request: it, or the user's configuration, is wrong (other 4xx).
    InvalidRequest,
    /// The object or part is too large for the store.
    TooLarge,
}

/// An error of a request: kind, operation, key, and the store's answer.
// Boxed, so that a Result that contains it stays small.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    operation: &'static str,
    key: Option<ObjectKey>,
    status: Option<u16>,
    code: Option<String>,
    message: Option<String>,
    request_id: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
    /// Whether an attempt's outcome is unknown, see [`Error::unsettled`].
    unsettled: bool,
    /// Number of attempts, see [`Error::attempts`].
    attempts: u32,
    /// Whether the error was logged, see [`Error::is_logged`].
    logged: bool,
}

impl Error {
    /// An error of an operation, by its S3 name (`GetObject`).
    pub fn new(kind: ErrorKind, operation: &'static str) -> Self {
        Self(Box::new(Inner {
            kind,
            operation,
            key: None,
            status: None,
            code: None,
            message: None,
            request_id: None,
            source: None,
            unsettled: false,
            attempts: 0,
            logged: false,
        }))
    }

    /// Adds the key of the request.
    pub fn key(mut self, key: &ObjectKey) -> Self {
        self.0.key = Some(key.clone());
        self
    }

    /// Sets the HTTP status.
    pub fn status(mut self, status: u16) -> Self {
        self.0.status = Some(status);
        self
    }

    /// Sets the S3 error code and the message of the answer's body.
    pub fn answer(mut self, code: Option<String>, message: Option<String>) -> Self {
        self.0.code = code;
        self.0.message = message;
        self
    }

    /// Sets the message to one of the engine. It replaces the store's message, if there is one.
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.0.message = Some(message.into());
        self
    }

    /// Whether the store's code or message contains this word in any case. `word` is given in lower case.
    pub fn mentions(&self, word: &str) -> bool {
        let texts = [&self.0.code, &self.0.message];
        texts.into_iter().flatten().any(|text| text.to_ascii_lowercase().contains(word))
    }

    /// The whole numbers in the message, in order.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        let message = self.0.message.as_deref().unwrap_or_default();
        message.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok())
    }

    /// Sets the store's identifier of the request, which the store's support asks for first.
    pub fn request_id(mut self, id: Option<String>) -> Self {
        self.0.request_id = id;
        self
    }

    /// Sets the underlying error.
    pub fn source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The underlying error, if it is of this type.
    pub(crate) fn cause<T: StdError + 'static>(&self) -> Option<&T> {
        self.0.source.as_ref()?.downcast_ref()
    }

    /// Marks that an attempt may have been executed, whatever the answer to the last one was.
    pub fn unsettled(mut self) -> Self {
        self.0.unsettled = true;
        self
    }

    /// Sets the number of attempts, of which this is the last one's error.
    pub(crate) fn attempts(mut self, attempts: u32) -> Self {
        self.0.attempts = attempts;
        self
    }

    /// Whether the error was logged. Then the caller does not log it again.
    pub fn is_logged(&self) -> bool {
        self.0.logged
    }

    /// Logs the error: operation, key, the store's answer, the request's id, and advice. Common answers are not logged: the key is missing,
    /// taken, or changed.
    pub(crate) fn log(mut self, metrics: &Metrics) -> Self {
        if !matches!(self.0.kind, ErrorKind::NotFound | ErrorKind::Changed | ErrorKind::Exists) {
            let status = self.0.status.map_or_else(|| "none".to_owned(), |status| status.to_string());
            metrics.s3_errors.of(self.0.operation).of(&status).inc();
            tracing::warn!(attempts = self.0.attempts.max(1), "{self}; {}", self.advice());
            self.0.logged = true;
        }
        self
    }

    /// The error of a GET whose bytes have checksum `ours`, not the store's `theirs`. `then`: the next step, in words.
    pub(crate) fn corrupt(key: &ObjectKey, ours: Checksum, theirs: Checksum, then: &str) -> Self {
        let (name, ours, theirs) = (theirs.algorithm.name(), ours.to_base64(), theirs.to_base64());
        Self::new(ErrorKind::Corrupt, "GetObject").key(key).message(format!(
            "the bytes that came have {name} {ours}, not {theirs} as the store says: {then}"
        ))
    }

    /// Whether the received bytes differ from the store's.
    pub fn is_corrupt(&self) -> bool {
        self.0.kind == ErrorKind::Corrupt
    }

    /// Logs an error that no failed request caused.
    pub(crate) fn said(mut self) -> Self {
        tracing::warn!("{self}; {}", self.advice());
        self.0.logged = true;
        self
    }

    /// Advice for the log: what to check next.
    pub fn advice(&self) -> &'static str {
        if self.0.operation == "AbortMultipartUpload" {
            return "the parts of the upload stay in the bucket, and are paid for, until it is aborted: \
                    by hand, or by a lifecycle rule";
        }
        if self.wants_equal_parts() {
            return "the store takes parts of one size only: give --store r2, or as --write-part-size a ten-thousandth of the largest file";
        }
        if self.0.operation == "UploadPart" && self.mentions("part number") {
            return "the store takes fewer parts of an object than S3: give a larger --write-part-size, or --store scaleway for its 1,000";
        }
        match self.0.kind {
            ErrorKind::Denied => {
                "look at the key's permissions, the bucket's policy, and this machine's clock"
            }
            ErrorKind::NoCredentials => {
                "look at the source of the credentials: the line before says which failed"
            }
            ErrorKind::NoSuchBucket => "check whether the bucket still exists, and --endpoint-url",
            ErrorKind::WrongRegion(_) => "find the bucket's region, and set --region",
            ErrorKind::Throttled => {
                "look at the store's limits of requests, and at what else uses the bucket"
            }
            ErrorKind::Timeout | ErrorKind::Network => {
                "look at the network between here and the endpoint; --operation-timeout says how long a request waits"
            }
            ErrorKind::ServerError => "look at the store itself, by the request id if there is one",
            ErrorKind::Corrupt => "look at the proxies between here and the store: bytes changed on the way",
            ErrorKind::BadAnswer => {
                "check whether a proxy answers instead of the store, and the store's version"
            }
            ErrorKind::NotEncrypted => "look at --sse, and at the proxies before the store",
            ErrorKind::Unsupported => "check which operations and options the store supports",
            ErrorKind::InvalidRequest | ErrorKind::TooLarge => {
                "look at the options of this mount, and the store's limits"
            }
            ErrorKind::Archived => "restore the object first",
            ErrorKind::Unknown => "check whether the object exists, and is complete",
            ErrorKind::NotFound | ErrorKind::Changed | ErrorKind::Exists => "look at the object",
        }
    }

    /// Whether the store refused to complete an upload because its parts differ in size.
    pub(crate) fn wants_equal_parts(&self) -> bool {
        let says = ["same length", "same size"].into_iter().any(|words| self.mentions(words));
        self.0.operation == "CompleteMultipartUpload" && self.0.kind == ErrorKind::InvalidRequest && says
    }

    /// Whether the object may exist despite the error: a request that makes an object was sent, and its outcome is unknown. The kind
    /// describes only the last attempt.
    pub fn may_have_stored(&self) -> bool {
        let makes_object = matches!(self.0.operation, "PutObject" | "CompleteMultipartUpload" | "CopyObject");
        makes_object && self.may_have_run()
    }

    /// Whether the store may have carried a request out, or may still do so, despite the error.
    pub fn may_have_run(&self) -> bool {
        self.0.unsettled || self.leaves_doubt()
    }

    /// Whether the outcome of a request with an error of this kind is unknown.
    fn leaves_doubt(&self) -> bool {
        matches!(
            self.0.kind,
            ErrorKind::Unknown
                | ErrorKind::NotEncrypted
                | ErrorKind::Corrupt
                | ErrorKind::BadAnswer
                | ErrorKind::Timeout
                | ErrorKind::Network
                | ErrorKind::ServerError
                | ErrorKind::Throttled
        )
    }

    /// The S3 name of the operation.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// The kind of the error.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The S3 error code, if the store sent one.
    pub fn code(&self) -> Option<&str> {
        self.0.code.as_deref()
    }

    /// The HTTP status, if there was an answer.
    pub fn http_status(&self) -> Option<u16> {
        self.0.status
    }
}

/// An unusable network setting, as the error of an invalid request.
impl From<net::Error> for Error {
    fn from(error: net::Error) -> Self {
        Self::new(ErrorKind::InvalidRequest, error.setting).message(error.message)
    }
}

/// The error in one line: `GetObject "a/b": 503 SlowDown: Please reduce your request rate (request id 42)`.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.operation)?;
        if let Some(key) = &self.0.key {
            write!(f, " \"{key}\"")?;
        }
        f.write_str(":")?;
        match (self.0.status, &self.0.code) {
            (Some(status), Some(code)) => write!(f, " {status} {}", code.escape_debug())?,
            (Some(status), None) => write!(f, " HTTP {status}")?,
            (None, _) => write!(f, " {:?}", self.0.kind)?,
        }
        if let Some(message) = &self.0.message {
            f.write_str(": ")?;
            escape_but_quotes(message, f)?;
        }
        let mut below: Option<&dyn StdError> = self.0.source.as_ref().map(|s| &**s as &dyn StdError);
        while let Some(error) = below {
            write!(f, ": {error}")?;
            below = error.source();
        }
        if let Some(id) = &self.0.request_id {
            write!(f, " (request id {})", id.escape_debug())?;
        }
        if self.may_have_stored() && !self.leaves_doubt() {
            f.write_str("; an earlier attempt had no clear answer: check whether the object exists")?;
        }
        Ok(())
    }
}

/// Escapes control characters, which would break the log line. Quotes and apostrophes stay.
fn escape_but_quotes(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for c in text.chars() {
        match c {
            '\'' | '"' => f.write_char(c)?,
            c => write!(f, "{}", c.escape_debug())?,
        }
    }
    Ok(())
}

/// There is no `source`: the message contains the underlying errors already, and they would be printed twice.
impl StdError for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_stays_on_its_line_and_keeps_its_quotes() {
        let error = Error::new(ErrorKind::Network, "GetObject").message("\"h\" can't\nbe\x1b reached");
        assert_eq!(error.to_string(), r#"GetObject: Network: "h" can't\nbe\u{1b} reached"#);
    }
}
