//! Single requests to a bucket, for a diagnosis. They show details that the checks of answers, the retries and the choice of the URL style
//! hide from a mount. Enters: a request to send. Leaves: the answer as received, also a refusal.
//!
//! Such a request is signed and sent like every other one. It is retried only after failures that a mount would retry too, and only for a
//! short time.

use std::time::{Duration, SystemTime};

use aws_credential_types::credential_feature::AwsCredentialFeature as Feature;
use bytes::Bytes;
use http::{HeaderMap, Method};

use crate::net::Handshake;
use crate::object::{ObjectKey, ObjectMeta};
use crate::s3::answer;
use crate::s3::answer::CLOCK_REFUSED;
use crate::s3::attempts::Attempts;
use crate::s3::client::S3Client;
use crate::s3::ops::headers::{Headers, push};
use crate::s3::ops::{complete, put};
use crate::s3::retry::is_transient;
use crate::s3::url::push_query;
use crate::s3::wire::Draft;
use crate::s3::{
    Bucket, CompleteUpload, Config, Error, ErrorKind, NewObject, PutObject, Replaces, Result, Stored, client,
    xml,
};
use crate::sync::Arc;

/// Most attempts at a request while the store is too busy to answer ...
const ATTEMPTS: u32 = 3;
/// ... and the time for them.
const WITHIN: Duration = Duration::from_secs(15);

/// A request to the bucket, or to one of its keys.
#[derive(Clone, Debug)]
pub struct ProbeRequest<'a> {
    /// The S3 name of the request.
    pub operation: &'static str,
    /// The HTTP method.
    pub method: Method,
    /// The key of the request; `None` for the bucket.
    pub key: Option<&'a ObjectKey>,
    /// Parameters of the query, in alphabetical order for the signature.
    pub query: &'a [(&'static str, &'a str)],
    /// Headers besides the common ones, in lower case.
    pub headers: &'a [(&'static str, &'a str)],
    /// A body, for requests that have one.
    pub body: Option<Bytes>,
}

impl ProbeRequest<'_> {
    /// A request to the bucket, without parameters, headers and body.
    #[must_use]
    pub fn of(operation: &'static str, method: Method) -> Self {
        Self { operation, method, key: None, query: &[], headers: &[], body: None }
    }
}

/// The answer to a [`ProbeRequest`].
#[derive(Debug)]
pub struct ProbeAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// The refusal as an error of the engine; `None` for a success and for 304 Not Modified.
    pub refusal: Option<Error>,
    /// Seconds by which the store's clock is ahead of this machine's, if the answer has a date.
    pub ahead_s: Option<i64>,
}

impl ProbeAnswer {
    /// A header's value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        answer::text(&self.headers, name)
    }

    /// The object's metadata in the headers, and whether the headers contain its length.
    #[must_use]
    pub fn object(&self) -> (ObjectMeta, bool) {
        let meta = answer::object_meta(&self.headers);
        let says_length = meta.is_some();
        (meta.unwrap_or_else(|| answer::meta_of(&self.headers, 0)), says_length)
    }

    /// Whether `Last-Modified` has the preferred form of HTTP; `None` without that header.
    #[must_use]
    pub fn has_plain_date(&self) -> Option<bool> {
        let date = self.header("last-modified")?;
        Some(date.len() == 29 && date.as_bytes()[3] == b',' && date.ends_with(" GMT"))
    }

    /// Name of the document's root element.
    #[must_use]
    pub fn root(&self) -> Option<String> {
        xml::root(&self.body)
    }

    /// The status, with the S3 code of a refusal.
    #[must_use]
    pub fn word(&self) -> String {
        match self.refusal.as_ref().and_then(Error::code) {
            Some(code) => format!("{} {}", self.status, code.escape_debug()),
            None => self.status.to_string(),
        }
    }
}

/// The credentials that sign requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// Name of the provider of the credentials.
    pub source: &'static str,
    /// The expiry of the credentials, if they have one.
    pub expires: Option<SystemTime>,
}

impl S3Client {
    /// Sends a request, and returns the answer, also a refusal.
    ///
    /// # Errors
    /// `NoCredentials`; `Network`, `Timeout`, `Throttled`, `ServerError` after some attempts; `BadAnswer` (not HTTP).
    pub async fn ask(&self, question: &ProbeRequest<'_>) -> Result<ProbeAnswer> {
        let (wire, operation) = (&self.wire, question.operation);
        let mut target = match question.key {
            Some(key) => wire.endpoint.key_path(key.as_str()),
            None => wire.endpoint.bucket_path().to_owned(),
        };
        push_query(&mut target, question.query.iter().map(|(name, value)| (*name, Some(*value))));
        let mut extra = Headers::new();
        for (name, value) in question.headers {
            push(&mut extra, operation, name, value)?;
        }
        let sent: Option<Vec<Bytes>> = question.body.clone().map(|body| vec![body]);
        let mut attempts = Attempts::new(wire, operation, question.key, 0).at_most(ATTEMPTS, WITHIN);
        loop {
            let draft = Draft {
                headers: extra.clone(),
                body: sent.as_deref(),
                ..attempts.draft(question.method.clone(), target.clone())
            };
            let answered = match wire.exchange(&draft).await {
                Ok(answer) => answer.collect(xml::BODY_MAX).await,
                Err(failure) => Err(failure),
            };
            let answer = match answered {
                Ok(answer) => answer,
                Err(failure) => {
                    attempts.again(failure).await?;
                    continue;
                }
            };
            let wall = wire.clock.wall();
            wire.abilities.see(&answer.headers);
            let (status, headers, body) = (answer.status, answer.headers.clone(), answer.body.clone());
            let is_fine = status.is_success() || status.as_u16() == 304;
            let failure = (!is_fine).then(|| answer.failed(wall));
            let refusal = match failure {
                Some(failure) if is_worth_another(&failure.error) => {
                    attempts.again(failure).await?;
                    continue;
                }
                other => other.map(|failure| failure.error),
            };
            let ahead_s = answer::date(&headers).map(|theirs| seconds_ahead(theirs, wall));
            return Ok(ProbeAnswer { status: status.as_u16(), headers, body, refusal, ahead_s });
        }
    }

    /// Opens a connection and returns the result of its TLS handshake; `None` over plain HTTP.
    ///
    /// # Errors
    /// `Network`.
    pub async fn handshake(&self) -> Result<Option<Handshake>> {
        let shaken = self.wire.pool.handshake(&self.wire.host).await;
        shaken.map_err(|why| Error::new(ErrorKind::Network, "TLS").source(why))
    }

    /// The credentials that sign requests; `None` if requests are not signed.
    ///
    /// # Errors
    /// `NoCredentials`.
    pub async fn signed(&self) -> Result<Option<Signed>> {
        let Some(source) = &self.wire.credentials else { return Ok(None) };
        let held = source.get().await?;
        let features = held.credentials.get_property::<Vec<Feature>>();
        let source = features.into_iter().flatten().rev().find_map(source_name);
        Ok(Some(Signed { source: source.unwrap_or("a provider"), expires: held.credentials.expiry() }))
    }

    /// Scheme, host and port of requests; the host may include the bucket.
    pub fn origin(&self) -> String {
        let authority = &self.wire.endpoint.authority;
        format!("{}://{}", if authority.tls { "https" } else { "http" }, authority.host_header())
    }

    /// Whether the bucket is in the host name.
    pub fn has_bucket_in_host(&self) -> bool {
        self.wire.endpoint.has_bucket_in_host()
    }

    /// A client of this bucket with a changed configuration, on the same connections. Makes no request.
    ///
    /// # Errors
    /// `InvalidRequest`: the endpoint.
    pub fn changed(&self, change: impl FnOnce(&mut Config)) -> Result<Arc<Self>> {
        let mut config = self.wire.config.clone();
        change(&mut config);
        Ok(Arc::new(Self::new(config, self.region(), &self.wire.pool)?))
    }

    /// The bucket as a whole, for requests about its versions and uploads.
    ///
    /// # Errors
    /// `InvalidRequest`: the endpoint.
    pub fn bucket(&self) -> Result<Bucket> {
        let wire = client::wire(self.wire.config.clone(), self.region(), &self.wire.pool)?;
        Ok(Bucket { pool: Arc::clone(&self.wire.pool), wire })
    }

    /// Sends PutObject with If-None-Match, whatever the store is known to do with it.
    ///
    /// # Errors
    /// `Exists`: the store honours the condition; `Unsupported`: the store refuses it. Also the errors of every request.
    pub async fn put_if_absent(&self, request: &PutObject) -> Result<Stored> {
        let object = NewObject { replaces: Replaces::Nothing, ..request.object.clone() };
        put::put_object(&self.wire, &PutObject { object, ..request.clone() }, true).await
    }

    /// Sends CompleteMultipartUpload with If-None-Match, whatever the store is known to do with it.
    ///
    /// # Errors
    /// The same as [`Self::put_if_absent`].
    pub async fn complete_if_absent(&self, request: &CompleteUpload) -> Result<Stored> {
        complete::complete(
            &self.wire,
            &CompleteUpload { replaces: Replaces::Nothing, ..request.clone() },
            true,
        )
        .await
    }
}

/// Whether a mount would send the request again: the store is busy, or refuses a wrong clock, which the mount would correct.
fn is_worth_another(refusal: &Error) -> bool {
    let is_busy = is_transient(refusal.kind()) && *refusal.kind() != ErrorKind::Corrupt;
    is_busy || refusal.code() == Some(CLOCK_REFUSED)
}

fn seconds_ahead(theirs: SystemTime, ours: SystemTime) -> i64 {
    let seconds = |span: Duration| i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
    match theirs.duration_since(ours) {
        Ok(ahead) => seconds(ahead),
        Err(behind) => -seconds(behind.duration()),
    }
}

/// The name of a source of credentials, for people; `None` for intermediate steps.
fn source_name(feature: &Feature) -> Option<&'static str> {
    Some(match feature {
        Feature::CredentialsCode => "this program",
        Feature::CredentialsEnvVars => "the environment",
        Feature::CredentialsEnvVarsStsWebIdToken
        | Feature::CredentialsStsAssumeRoleWebId
        | Feature::CredentialsProfileStsWebIdToken => "a web identity token",
        Feature::CredentialsStsAssumeRole | Feature::CredentialsProfileSourceProfile => "an assumed role",
        Feature::CredentialsProfile | Feature::CredentialsProfileNamedProvider => "a profile of ~/.aws",
        Feature::CredentialsProfileSso | Feature::CredentialsSso => "an SSO session",
        Feature::CredentialsProfileProcess | Feature::CredentialsProcess => "a credential process",
        Feature::CredentialsHttp => "the container",
        Feature::CredentialsImds => "the instance",
        Feature::CredentialsProfileLogin | Feature::CredentialsLogin => "a login session",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_behind_has_a_minus() {
        let at = |s| SystemTime::UNIX_EPOCH + Duration::from_secs(s);
        assert_eq!((seconds_ahead(at(100), at(40)), seconds_ahead(at(40), at(100))), (60, -60));
    }

    #[test]
    fn the_last_step_to_credentials_that_has_a_name_is_their_source() {
        let steps = [Feature::CredentialsProfileSourceProfile, Feature::CredentialsStsAssumeRole];
        assert_eq!(steps.iter().rev().find_map(source_name), Some("an assumed role"));
        let steps = [Feature::CredentialsEnvVars, Feature::ResolvedAccountId];
        assert_eq!(steps.iter().rev().find_map(source_name), Some("the environment"));
    }
}
