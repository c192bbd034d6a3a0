//! The HTTP client of `aws-config`: its requests for credentials and for the region go over connections of the engine's pool.

use std::time::Duration;

use aws_smithy_runtime_api::client::connection::{CaptureSmithyConnection, ConnectionMetadata};
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, Uri, header};
use http_body_util::BodyExt as _;

use crate::net::authority::Authority;
use crate::net::body::Body;
use crate::net::broken::Broken;
use crate::net::flow::lanes::Lane;
use crate::net::flow::watch::{Expired, Watch};
use crate::net::pool::{ConnectionPool, Host, Lease, NoConnection};
use crate::s3::auth::tolerant::readable;
use crate::s3::{Config, xml};
use crate::sync::Arc;

/// Longest time of one exchange. Beyond it, the request fails.
const EXCHANGE_MAX: Duration = Duration::from_secs(60);

/// Sends requests to the services that issue credentials.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    pool: Arc<ConnectionPool>,
    quiet_max: Duration,
}

impl Http {
    pub(crate) fn new(config: &Config, pool: &Arc<ConnectionPool>) -> Self {
        Self { pool: Arc::clone(pool), quiet_max: config.timeouts.first_byte }
    }

    /// Sends one request of the engine itself.
    pub(crate) async fn exchange(self, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
        let quiet_max = self.quiet_max;
        Connector { http: self, connect: None, quiet_max }.exchange(request).await
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
        HttpConnectorFuture::new(async move {
            let mut answer = connector.exchange(request).await?;
            if let Some(readable) = answer.body().bytes().and_then(readable) {
                // The SDK compares the header with the body's length.
                answer.headers_mut().insert("content-length", readable.len().to_string());
                *answer.body_mut() = SdkBody::from(readable);
            }
            Ok(answer)
        })
    }
}

fn user(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ConnectorError {
    ConnectorError::user(what.into())
}

impl Connector {
    async fn exchange(&self, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
        let request = request.try_into_http1x().map_err(user)?;
        let (mut head, body) = request.into_parts();
        // The SDK asks for the connection of each answer with status 500, to close it, and logs an error without one. It gets a handle that
        // does nothing: the pool finds broken connections itself, and status 500 breaks none.
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
        // An empty POST or PUT has Content-Length: 0. An empty GET, HEAD or DELETE must not have the header: some servers refuse it.
        match head.method {
            Method::POST | Method::PUT => {
                head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
            }
            _ if body.is_empty() => drop(head.headers.remove(header::CONTENT_LENGTH)),
            _ => {}
        }
        let target = head.uri.path_and_query().map_or("/", |p| p.as_str());
        head.uri = target.parse::<Uri>().map_err(user)?;
        let host = self.http.pool.side_host(&authority);
        let deadline = self.http.pool.clock.now() + EXCHANGE_MAX;
        let mut fresh = false;
        loop {
            let mut lease = self.lease(&host, fresh).await?;
            let mut watch = Watch::new(&self.http.pool.clock, &lease.moved, self.quiet_max, deadline);
            let received = lease.moved.content_received();
            let request = http::Request::from_parts(head.clone(), Body::new(std::slice::from_ref(&body)));
            let broken = match lease.send(request, &mut watch).await {
                Ok(response) => {
                    let (head, ()) = response.into_parts();
                    let mut collected = BytesMut::new();
                    while let Some(piece) = lease.receive(&mut watch).await.map_err(connector_error)? {
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
            let silent = lease.moved.content_received() <= received;
            if silent && lease.is_reused() && !matches!(broken, Broken::Expired(_)) {
                fresh = true;
                continue;
            }
            lease.blame();
            return Err(connector_error(broken));
        }
    }

    async fn lease(&self, host: &Arc<Host>, fresh: bool) -> Result<Lease, ConnectorError> {
        let pool = &self.http.pool;
        // The wait for a permit comes first, and lasts while bytes move on other connections. The limit is for connecting alone.
        let place = pool.place(host, Lane::Small).await.map_err(unconnected)?;
        let lease = pool.connect(host, place, fresh);
        let leased = match self.connect {
            None => lease.await,
            Some(limit) => tokio::select! {
                leased = lease => leased,
                () = self.http.pool.clock.sleep(limit) => {
                    return Err(ConnectorError::timeout("no connection in time".into()).never_connected());
                }
            },
        };
        leased.map_err(unconnected)
    }
}

fn unconnected(why: NoConnection) -> ConnectorError {
    ConnectorError::io(why.into()).never_connected()
}

async fn whole(body: SdkBody) -> Result<Bytes, ConnectorError> {
    match body.bytes() {
        Some(bytes) => Ok(Bytes::copy_from_slice(bytes)), // copy: small documents; they are lent only
        None => Ok(body.collect().await.map_err(ConnectorError::user)?.to_bytes()),
    }
}

fn connector_error(broken: Broken) -> ConnectorError {
    match broken {
        Broken::Expired(Expired::Quiet(_) | Expired::Deadline | Expired::Behind) => {
            ConnectorError::timeout(broken.into())
        }
        Broken::Io(_) | Broken::Malformed(_) | Broken::OutOfStep(_) | Broken::Closed => {
            ConnectorError::io(broken.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::sync::Notify;

    use super::*;
    use crate::clock::Clock;
    use crate::net::pool::SIDE_CONNECTIONS;

    /// Most connections for small requests; the other half is kept for bulk.
    const BUSY: usize = SIDE_CONNECTIONS / 2;

    #[tokio::test]
    async fn waiting_in_the_queue_does_not_count_as_connecting() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap());
        let (asked, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (asked_there, go_on_there) = (Arc::clone(&asked), Arc::clone(&go_on));
        tokio::spawn(async move {
            let mut busy = Vec::new();
            for _ in 0..BUSY {
                let mut stream = listener.accept().await.unwrap().0;
                let _ = stream.read(&mut [0; 4096]).await.unwrap();
                busy.push(stream);
            }
            asked_there.notify_one();
            go_on_there.notified().await;
            for mut stream in busy {
                tokio::spawn(async move {
                    // The waiting one gets one of them.
                    let answer = b"HTTP/1.1 200 X\r\ncontent-length: 2\r\n\r\nok";
                    while stream.write_all(answer).await.is_ok()
                        && stream.read(&mut [0; 4096]).await.is_ok_and(|n| n > 0)
                    {}
                });
            }
        });
        let (clock, config) = (Clock::manual(), Config::default());
        let pool = ConnectionPool::new(&config.net(), &clock, &Arc::default()).unwrap();
        let limit = Duration::from_secs(1);
        let http = Http::new(&config, &pool);
        let connector = Connector { http, connect: Some(limit), quiet_max: 10 * limit };
        let get = || {
            let (connector, request) =
                (connector.clone(), http::Request::get(&url).body(SdkBody::empty()).unwrap());
            tokio::spawn(async move { connector.exchange(HttpRequest::try_from(request).unwrap()).await })
        };
        let mut answers: Vec<_> = (0..BUSY).map(|_| get()).collect();
        asked.notified().await;
        answers.push(get());
        // On this one thread the last one enters the queue now; then its time to connect is over, twice.
        tokio::task::yield_now().await;
        clock.advance(2 * limit);
        tokio::task::yield_now().await;
        go_on.notify_one();
        for answer in answers {
            answer.await.unwrap().unwrap();
        }
    }
}
