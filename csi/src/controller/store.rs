//! The stores of the volumes, and their errors in the terms of a provisioner. Enters: an endpoint, a bucket, credentials. Leaves: the
//! bucket's operations; errors of calls.
//!
//! Never here: the decision to make or to delete, a secret in an error.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mountpoint::clock::Clock;
use mountpoint::metrics::Metrics;
use mountpoint::s3::{self, Bucket, ListObjects, ListPage, Tagging, Timeouts};
use mountpoint::sync::Arc;

use super::secrets::Keys;
use crate::contract::VERSION;
use crate::error::{Error, ErrorKind, Result};
use crate::mounter::Credentials;
use crate::node::driver_keys::DriverKeys;

/// Time limit of requests to a store that does not answer. Then the call fails, and the provisioner repeats it with pauses.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most connections to one store. More would only make deletions of many objects faster.
const CONNECTIONS: usize = 32;
/// Region of requests if neither the class nor the driver's configuration names one.
const REGION: &str = "us-east-1";

/// The configuration of the stores.
#[derive(Clone, Debug)]
pub struct Config {
    /// URL of the driver's store.
    pub endpoint_url: String,
    /// Other stores that a StorageClass may name.
    pub allowed_endpoints: Vec<String>,
    /// Region of requests, and of buckets whose class names none.
    pub region: Option<String>,
    /// Credentials for calls without a Secret. If these are missing, too, the process finds credentials as AWS tools do.
    pub credentials: DriverKeys,
    /// Certificates to trust beside the system's.
    pub extra_ca_bundles: Vec<PathBuf>,
}

/// The stores, each connected at its first use.
#[derive(Debug)]
pub struct Stores {
    /// The configuration.
    pub config: Config,
    metrics: Arc<Metrics>,
    known: Mutex<HashMap<String, Arc<s3::Store>>>,
}

/// A bucket, and the store's answers about it.
#[derive(Debug)]
pub struct Looked {
    /// The bucket, in its own region.
    pub bucket: Bucket,
    /// The bucket's region, if it differs from the request's.
    pub region: Option<String>,
    /// The bucket's tags; `None` if there is no such bucket.
    pub tagging: Option<Tagging>,
}

/// A bucket, and one page of its keys.
#[derive(Debug)]
pub struct Listed {
    /// The bucket, in its own region.
    pub bucket: Bucket,
    /// The bucket's region, if it differs from the request's.
    pub region: Option<String>,
    /// The page of keys.
    pub page: ListPage,
}

impl Stores {
    /// Sends no request yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config, metrics: Arc::default(), known: Mutex::default() }
    }

    /// Checks the store that a class or a volume names.
    ///
    /// # Errors
    /// `InvalidArgument`: the store is neither the driver's nor an allowed one.
    pub fn allowed(&self, endpoint_url: Option<&str>) -> Result<String> {
        let plain = |url: &str| url.trim_end_matches('/').to_owned();
        let own = plain(&self.config.endpoint_url);
        let Some(asked) = endpoint_url.map(plain) else { return Ok(own) };
        if asked == own || self.config.allowed_endpoints.iter().any(|it| plain(it) == asked) {
            return Ok(asked);
        }
        Err(Error::invalid(format!(
            "parameter endpointUrl {asked:?} is neither s3.endpointUrl of the chart nor in s3.allowedEndpoints: an administrator \
             may add it there"
        )))
    }

    /// A bucket of a store; sends no request.
    ///
    /// # Errors
    /// `InvalidArgument`: the endpoint is not a URL. `Internal`: this machine's certificates can't be read.
    pub fn bucket(
        &self,
        endpoint_url: &str,
        region: Option<&str>,
        name: &str,
        keys: &Keys,
    ) -> Result<Bucket> {
        let wrong =
            |error: s3::Error| error_of(&format!("preparing requests to {endpoint_url}"), &error, keys);
        let store = self.store(endpoint_url).map_err(wrong)?;
        let region = region.or(keys.region.as_deref()).or(self.config.region.as_deref()).unwrap_or(REGION);
        let credentials = keys.credentials.clone().map(|it| {
            let Credentials { access_key_id, secret_access_key, session_token } = it;
            s3::Credentials::new(access_key_id, secret_access_key, session_token, None, "csi")
        });
        store.bucket(name, region, credentials).map_err(wrong)
    }

    fn store(&self, endpoint_url: &str) -> s3::Result<Arc<s3::Store>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = known.get(endpoint_url) {
            return Ok(store.clone());
        }
        let config = s3::Config {
            endpoint_url: Some(endpoint_url.to_owned()),
            force_path_style: true,
            extra_ca_bundles: self.config.extra_ca_bundles.clone(),
            user_agent_prefix: Some(format!("s3-csi-driver/{VERSION}")),
            connections_max: CONNECTIONS,
            timeouts: Timeouts {
                connect: Duration::from_secs(2),
                first_byte: PATIENCE,
                operation: PATIENCE,
                ..Timeouts::default()
            },
            ..s3::Config::default()
        };
        let store = Arc::new(s3::Store::new(config, &Clock::machine(), &self.metrics)?);
        known.insert(endpoint_url.to_owned(), store.clone());
        Ok(store)
    }
}

/// Reads a bucket's tags, and so whether it exists. If the store names another region for it, the request is repeated there.
///
/// # Errors
/// Any error of the store but `NoSuchBucket`.
pub async fn look(bucket: Bucket) -> s3::Result<Looked> {
    let (mut bucket, mut region) = (bucket, None);
    let mut asked = bucket.tags().await;
    if let Some(named) = elsewhere(&asked) {
        bucket = bucket.in_region(&named)?;
        region = Some(named);
        asked = bucket.tags().await;
    }
    let tagging = match asked {
        Ok(Tagging::Unsupported) => match bucket.head().await {
            Ok(()) => Some(Tagging::Unsupported),
            Err(error) if *error.kind() == s3::ErrorKind::NoSuchBucket => None,
            Err(error) => return Err(error),
        },
        Ok(tagging) => Some(tagging),
        Err(error) if *error.kind() == s3::ErrorKind::NoSuchBucket => None,
        Err(error) => return Err(error),
    };
    Ok(Looked { bucket, region, tagging })
}

/// Lists one page of a bucket. If the store names another region for it, the request is repeated there.
///
/// # Errors
/// The store's errors.
pub async fn listed(bucket: Bucket, request: &ListObjects) -> s3::Result<Listed> {
    let asked = bucket.list(request).await;
    let Some(region) = elsewhere(&asked) else {
        return asked.map(|page| Listed { bucket, region: None, page });
    };
    let bucket = bucket.in_region(&region)?;
    let page = bucket.list(request).await?;
    Ok(Listed { bucket, region: Some(region), page })
}

/// The bucket's region, if the store named it in place of an answer.
fn elsewhere<T>(asked: &s3::Result<T>) -> Option<String> {
    match asked.as_ref().err()?.kind() {
        s3::ErrorKind::WrongRegion(region) => region.clone(),
        _ => None,
    }
}

/// The error for the caller, made from an error of a store; `trying` names the operation and its object.
#[must_use]
pub fn error_of(trying: &str, error: &s3::Error, keys: &Keys) -> Error {
    let (kind, advice) = meaning(error, keys.of_secret);
    Error::new(kind, without(&format!("{trying}: {error}: {advice}"), keys))
}

/// Maps an error of a store to the kind of the driver's error, and to advice for the administrator.
fn meaning(error: &s3::Error, of_secret: bool) -> (ErrorKind, &'static str) {
    use s3::ErrorKind as S3;
    let which = if of_secret {
        "look at the Secret of the provisioner that the StorageClass names"
    } else {
        "look at the driver's Secret (s3CredentialSecret.name of the chart)"
    };
    match (error.kind(), error.code().unwrap_or_default()) {
        (
            _,
            "InvalidAccessKeyId"
            | "SignatureDoesNotMatch"
            | "ExpiredToken"
            | "InvalidToken"
            | "InvalidClientTokenId",
        )
        | (S3::NoCredentials, _) => (ErrorKind::Unauthenticated, which),
        (_, "TooManyBuckets") => (
            ErrorKind::ResourceExhausted,
            "the account may have no more buckets: delete some, raise its limit, or use bucketName with prefixTemplate",
        ),
        (S3::Denied, _) => (ErrorKind::PermissionDenied, which),
        (S3::NoSuchBucket | S3::NotFound, _) => (ErrorKind::NotFound, "check whether the bucket exists"),
        (S3::WrongRegion(_), _) => {
            (ErrorKind::InvalidArgument, "look at parameter region of the StorageClass")
        }
        (
            S3::Throttled
            | S3::Timeout
            | S3::Network
            | S3::ServerError
            | S3::Corrupt
            | S3::Unknown
            | S3::BadAnswer,
            _,
        ) => (
            ErrorKind::Unavailable,
            "the provisioner will try again; look at the store and the network to it",
        ),
        (S3::InvalidRequest, _) => (ErrorKind::InvalidArgument, "look at the parameters of the StorageClass"),
        _ => (ErrorKind::Internal, "look at the store"),
    }
}

/// Replaces credentials in a text by `***`: a store's message may repeat parts of a request.
fn without(text: &str, keys: &Keys) -> String {
    let Some(keys) = &keys.credentials else { return text.to_owned() };
    let secrets = [Some(&keys.access_key_id), Some(&keys.secret_access_key), keys.session_token.as_ref()];
    secrets
        .into_iter()
        .flatten()
        .filter(|it| it.len() > 3)
        .fold(text.to_owned(), |text, it| text.replace(it.as_str(), "***"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        let credentials = Credentials {
            access_key_id: "AKIAHUSH".into(),
            secret_access_key: "hushhush".into(),
            session_token: Some("tokenhush".into()),
        };
        Keys { credentials: Some(credentials), region: None, of_secret: true }
    }

    #[test]
    fn each_answer_of_a_store_has_its_code() {
        use s3::ErrorKind as S3;
        for (kind, code, wanted) in [
            (S3::Denied, "AccessDenied", ErrorKind::PermissionDenied),
            (S3::Denied, "InvalidAccessKeyId", ErrorKind::Unauthenticated),
            (S3::Denied, "SignatureDoesNotMatch", ErrorKind::Unauthenticated),
            (S3::NoCredentials, "", ErrorKind::Unauthenticated),
            (S3::Throttled, "SlowDown", ErrorKind::Unavailable),
            (S3::Network, "", ErrorKind::Unavailable),
            (S3::Timeout, "", ErrorKind::Unavailable),
            (S3::ServerError, "InternalError", ErrorKind::Unavailable),
            (S3::NoSuchBucket, "NoSuchBucket", ErrorKind::NotFound),
            (S3::InvalidRequest, "TooManyBuckets", ErrorKind::ResourceExhausted),
            (S3::InvalidRequest, "InvalidBucketName", ErrorKind::InvalidArgument),
            (S3::WrongRegion(None), "", ErrorKind::InvalidArgument),
            (S3::Unsupported, "NotImplemented", ErrorKind::Internal),
        ] {
            let error = s3::Error::new(kind, "CreateBucket").answer(Some(code.into()), None);
            assert_eq!(error_of("making", &error, &keys()).kind, wanted, "{error}");
        }
    }

    #[test]
    fn keys_that_a_store_repeats_are_not_shown() {
        let said = "AKIAHUSH with hushhush and tokenhush is not known".to_owned();
        let error = s3::Error::new(s3::ErrorKind::Denied, "CreateBucket").answer(None, Some(said));
        let shown = error_of("making the bucket b", &error, &keys()).to_string();
        assert!(
            shown.contains("*** with *** and *** is not known") && shown.contains("the bucket b"),
            "{shown}"
        );
        assert!(!shown.to_lowercase().contains("hush"), "{shown}");
    }

    #[test]
    fn only_stores_that_an_administrator_allows_are_used() {
        let stores = Stores::new(Config {
            endpoint_url: "http://a.test/".into(),
            allowed_endpoints: vec!["https://b.test".into()],
            region: None,
            credentials: DriverKeys::Fixed(None),
            extra_ca_bundles: Vec::new(),
        });
        assert_eq!(stores.allowed(None).unwrap(), "http://a.test");
        assert_eq!(stores.allowed(Some("http://a.test")).unwrap(), "http://a.test");
        assert_eq!(stores.allowed(Some("https://b.test/")).unwrap(), "https://b.test");
        let error = stores.allowed(Some("https://c.test")).unwrap_err();
        assert!(error.to_string().contains("s3.allowedEndpoints"), "{error}");
    }
}
