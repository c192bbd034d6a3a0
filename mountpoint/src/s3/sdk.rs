//! The AWS SDK on our connections: an `HttpClient` for it, and its errors in our words.

use std::time::Duration;

use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::connection::{CaptureSmithyConnection, ConnectionMetadata};
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, StatusCode, Uri, header};
use http_body_util::BodyExt as _;

use super::body::Body;
use super::broken::Broken;
use super::endpoint::Authority;
use super::pool::Pool;
use super::watch::{Expired, Watch};
use super::wire::Failure;
use super::{Config, Error, ErrorKind, answer, xml};
use crate::object::ObjectKey;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering};

/// No exchange of the SDK's lasts longer; CompleteMultipartUpload of ten thousand parts may take minutes.
pub(super) const EXCHANGE_MAX: Duration = Duration::from_secs(300);

/// Travels with a request, and says behind it whether the request was sent once more after a whole one had no answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Resent(Arc<AtomicBool>);

impl Resent {
    pub(super) fn happened(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Carries the SDK's requests. The bucket's own go over the bucket's connections, those for credentials over a few others.
#[derive(Clone, Debug)]
pub(super) struct Http {
    pool: Arc<Pool>,
    bucket: Authority,
    quiet_max: Duration,
}

impl Http {
    pub(super) fn new(config: &Config, pool: &Arc<Pool>, bucket: &Authority) -> Self {
        Self { pool: Arc::clone(pool), bucket: bucket.clone(), quiet_max: config.timeouts.first_byte }
    }
}

impl HttpClient for Http {
    fn http_connector(&self, settings: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(Connector {
            http: self.clone(),
            connect: settings.connect_timeout(),
            quiet_max: settings.read_timeout().unwrap_or(self.quiet_max),
        })
    }
}

#[derive(Clone, Debug)]
struct Connector {
    http: Http,
    connect: Option<Duration>,
    quiet_max: Duration,
}

impl HttpConnector for Connector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let connector = self.clone();
        HttpConnectorFuture::new(async move { connector.exchange(request).await })
    }
}

fn user(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ConnectorError {
    ConnectorError::user(what.into())
}

impl Connector {
    async fn exchange(&self, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
        let request = request.try_into_http1x().map_err(user)?;
        let (mut head, body) = request.into_parts();
        // Behind each 500 the SDK asks for the connection, to have it closed, and logs an error if nobody shows it one. What is broken
        // the pool finds by itself, and an answer of 500 has broken nothing.
        if let Some(asked) = head.extensions.get::<CaptureSmithyConnection>() {
            asked.set_connection_retriever(|| {
                Some(ConnectionMetadata::builder().proxied(false).poison_fn(|| {}).build())
            });
        }
        let authority = Authority::of_uri(&head.uri).ok_or_else(|| user("no http(s) URL"))?;
        let body = whole(body).await?;
        if !head.headers.contains_key(header::HOST) {
            let host = HeaderValue::try_from(authority.host_header()).map_err(user)?;
            head.headers.insert(header::HOST, host);
        }
        // An empty POST or PUT says so; an empty GET, HEAD or DELETE must not (some stores refuse it).
        match head.method {
            Method::POST | Method::PUT => {
                head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
            }
            _ if body.is_empty() => drop(head.headers.remove(header::CONTENT_LENGTH)),
            _ => {}
        }
        let target = head.uri.path_and_query().map_or("/", |p| p.as_str());
        head.uri = target.parse::<Uri>().map_err(user)?;
        let is_bucket = authority == self.http.bucket;
        let host = if is_bucket {
            self.http.pool.bucket_host(&authority)
        } else {
            self.http.pool.side_host(&authority)
        };
        let deadline = self.http.pool.clock.now() + EXCHANGE_MAX;
        let mut fresh = false;
        loop {
            let mut lease = self.lease(&host, fresh).await?;
            let mut watch = Watch::new(&self.http.pool.clock, &lease.moved, self.quiet_max, deadline);
            let (received, sent) = (lease.moved.received(), lease.moved.sent());
            if is_bucket {
                self.http.pool.metrics.s3_requests.inc();
                self.http.pool.metrics.s3_bytes_sent.add(body.len() as u64);
            }
            let request = http::Request::from_parts(head.clone(), Body::new(std::slice::from_ref(&body)));
            let broken = match lease.send(request, &mut watch).await {
                Ok(response) => {
                    let (head, mut incoming) = response.into_parts();
                    let mut collected = BytesMut::new();
                    while let Some(piece) =
                        lease.receive(&mut incoming, &mut watch).await.map_err(connector_error)?
                    {
                        if collected.len() + piece.len() > xml::BODY_MAX {
                            return Err(user("the answer is too long"));
                        }
                        collected.extend_from_slice(&piece); // copy: the read buffer is needed again
                    }
                    lease.give_back();
                    let response = http::Response::from_parts(head, SdkBody::from(collected.freeze()));
                    return HttpResponse::try_from(response).map_err(user);
                }
                Err(broken) => broken,
            };
            let silent = lease.moved.received() == received;
            if silent && lease.is_reused() && !matches!(broken, Broken::Expired(_)) {
                if lease.moved.sent() - sent >= body.len() as u64
                    && let Some(Resent(happened)) = head.extensions.get()
                {
                    happened.store(true, Ordering::Relaxed);
                }
                fresh = true;
                continue;
            }
            lease.blame();
            return Err(connector_error(broken));
        }
    }

    async fn lease(
        &self,
        host: &Arc<super::pool::Host>,
        fresh: bool,
    ) -> Result<super::pool::Lease, ConnectorError> {
        let lease = self.http.pool.lease(host, fresh);
        let leased = match self.connect {
            None => lease.await,
            Some(limit) => tokio::select! {
                leased = lease => leased,
                () = self.http.pool.clock.sleep(limit) => {
                    return Err(ConnectorError::timeout("no connection in time".into()).never_connected());
                }
            },
        };
        leased.map_err(|e| ConnectorError::io(e.into()).never_connected())
    }
}

async fn whole(body: SdkBody) -> Result<Bytes, ConnectorError> {
    match body.bytes() {
        Some(bytes) => Ok(Bytes::copy_from_slice(bytes)), // copy: small documents; the SDK lends them only
        None => Ok(body.collect().await.map_err(ConnectorError::user)?.to_bytes()),
    }
}

fn connector_error(broken: Broken) -> ConnectorError {
    match broken {
        Broken::Expired(Expired::Quiet(_) | Expired::Deadline) => ConnectorError::timeout(broken.into()),
        Broken::Http(_) | Broken::Io(_) | Broken::Malformed(_) | Broken::Closed => {
            ConnectorError::io(broken.into())
        }
    }
}

/// What the SDK reports, as one of our failures; `generation` is of the credentials that were held when it was asked.
pub(super) fn failure<E>(
    operation: &'static str,
    key: Option<&ObjectKey>,
    generation: Option<u64>,
    error: SdkError<E, HttpResponse>,
) -> Failure
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    let with_key = |e: Error| match key {
        Some(key) => e.key(key),
        None => e,
    };
    match error {
        SdkError::ServiceError(refused) => {
            let code = refused.err().code().map(str::to_owned);
            let message = refused.err().message().map(str::to_owned);
            let raw = refused.raw();
            let status = StatusCode::from_u16(raw.status().as_u16()).unwrap_or(StatusCode::OK);
            let headers = raw.headers();
            let kind = answer::kind_of(status, code.as_deref(), headers.get("x-amz-bucket-region"));
            let error = Error::new(kind, operation)
                .status(status.as_u16())
                .answer(code, message)
                .request_id(headers.get("x-amz-request-id").map(str::to_owned));
            Failure {
                retry_after: headers
                    .get("retry-after")
                    .and_then(|s| s.trim().parse().ok())
                    .map(Duration::from_secs),
                date: headers.get("date").and_then(answer::http_date),
                // An error behind status 200 came after the store began.
                ambiguous: status.is_server_error() || status.is_success(),
                generation,
                ..Failure::from(with_key(error))
            }
        }
        SdkError::DispatchFailure(broken) => {
            let kind = if broken.is_timeout() {
                ErrorKind::Timeout
            } else if broken.is_io() {
                ErrorKind::Network
            } else if is_credentials(&broken) {
                ErrorKind::NoCredentials
            } else {
                ErrorKind::InvalidRequest
            };
            let never = format!("{broken:?}").contains("NeverConnected");
            let error = with_key(Error::new(kind, operation));
            let error = match broken.as_connector_error() {
                Some(e) => error.message(describe(e)),
                None => error,
            };
            Failure { ambiguous: !never, ..Failure::from(error) }
        }
        SdkError::TimeoutError(_) => Failure {
            ambiguous: true,
            ..Failure::from(with_key(Error::new(ErrorKind::Timeout, operation).message("no answer in time")))
        },
        SdkError::ResponseError(broken) => {
            let status = broken.raw().status().as_u16();
            let error = with_key(Error::new(ErrorKind::BadAnswer, operation).status(status));
            Failure { ambiguous: true, ..Failure::from(error.message("the answer can't be read")) }
        }
        other => {
            let error = with_key(Error::new(ErrorKind::InvalidRequest, operation));
            Failure::from(error.message(describe(&other)))
        }
    }
}

fn is_credentials(broken: &aws_smithy_runtime_api::client::result::DispatchFailure) -> bool {
    let mut below = broken.as_connector_error().map(|e| e as &dyn std::error::Error);
    while let Some(error) = below {
        if error.is::<aws_credential_types::provider::error::CredentialsError>() {
            return true;
        }
        below = error.source();
    }
    false
}

/// An error and what lies below it, in one line.
fn describe(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut below = error.source();
    while let Some(error) = below {
        line = format!("{line}: {error}");
        below = error.source();
    }
    line
}
