//! The gate: counts requests, applies faults, and refuses requests that the server would otherwise misread.

use http::{HeaderMap, StatusCode};
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::Policy;
use super::error::{invalid, named, unknown};
use crate::fault::{Effect, FaultPlan};
use crate::requests::RequestLog;
use crate::wire::Exchange;

/// The gate. s3s calls it when the signature is checked and the operation is known.
pub(crate) struct Gate {
    faults: FaultPlan,
    log: RequestLog,
    policy: Policy,
    bucket_tagging: bool,
}

impl Gate {
    pub(crate) fn new(faults: FaultPlan, log: RequestLog, policy: Policy, bucket_tagging: bool) -> Self {
        Self { faults, log, policy, bucket_tagging }
    }
}

/// The only access key that may sign, and its secret.
pub(crate) struct OneKey {
    access_key: String,
    secret_key: SecretKey,
}

impl OneKey {
    pub(crate) fn new(access_key: &str, secret_key: &str) -> Self {
        Self { access_key: access_key.to_owned(), secret_key: secret_key.into() }
    }
}

#[async_trait::async_trait]
impl S3Auth for OneKey {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        if access_key == self.access_key {
            return Ok(self.secret_key.clone());
        }
        // The text is S3's: clients look for newer credentials when they read it.
        Err(S3Error::with_message(S3ErrorCode::InvalidAccessKeyId, "The access key is not known here."))
    }
}

#[async_trait::async_trait]
impl S3Access for Gate {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        if cx.credentials().is_none() {
            return Err(S3Error::with_message(S3ErrorCode::AccessDenied, "The request is not signed."));
        }
        let operation = cx.s3_op().name().to_owned();
        let operation = operation.as_str();
        self.log.asked(operation);
        let struck = self.faults.strike(operation, cx.s3_path().get_object_key());
        let effects = struck.effects.clone();
        if let Some(exchange) = cx.extensions_mut().get::<Exchange>() {
            exchange.strike(struck);
            if effects.contains(&Effect::Reset { after_bytes: None }) {
                exchange.hang_up();
                return Err(S3Error::new(S3ErrorCode::InternalError));
            }
        }
        let ignores_unknown = effects.contains(&Effect::IgnoreUnknown);
        for effect in effects {
            match effect {
                Effect::Redirect { region } => return Err(elsewhere(&region)),
                Effect::Error { status, code } => return Err(ordered(status, &code)),
                Effect::SlowDown { retry_after } => return Err(slow_down(retry_after.as_deref())),
                Effect::OkWithError { code } => return Err(ordered(200, &code)),
                Effect::DemandMd5 => demand_md5(operation, cx.headers())?,
                Effect::PartsMax { parts } => check_number(cx.uri().query().unwrap_or(""), parts)?,
                _ => {}
            }
        }
        if !self.bucket_tagging && operation.ends_with("BucketTagging") {
            return Err(unknown("tags of buckets (--no-bucket-tagging)"));
        }
        self.policy.allows_operation(operation, cx.s3_path().get_object_key())?;
        if ignores_unknown {
            return Ok(());
        }
        check_query(operation, cx.uri().query().unwrap_or(""))?;
        check_headers(cx.headers())
    }
}

/// The error of a fault.
fn ordered(status: u16, code: &str) -> S3Error {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    named(status, code, "A fault asked for this error.")
}

fn elsewhere(region: &str) -> S3Error {
    let mut error =
        named(StatusCode::MOVED_PERMANENTLY, "PermanentRedirect", "The bucket is in another region.");
    if let Ok(value) = http::HeaderValue::from_str(region) {
        let name = http::HeaderName::from_static("x-amz-bucket-region");
        error.set_headers([(name, value)].into_iter().collect());
    }
    error
}

fn slow_down(retry_after: Option<&str>) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::SlowDown, "Please reduce your request rate.");
    if let Some(value) = retry_after.and_then(|value| http::HeaderValue::from_str(value).ok()) {
        error.set_headers([(http::header::RETRY_AFTER, value)].into_iter().collect());
    }
    error
}

/// Refuses an upload without Content-MD5, with the text of a store that accepts no other checksum.
fn demand_md5(operation: &str, headers: &HeaderMap) -> S3Result<()> {
    let is_upload = matches!(operation, "PutObject" | "UploadPart");
    if !is_upload || headers.contains_key("content-md5") {
        return Ok(());
    }
    Err(invalid("Content-MD5 HTTP header is required for Put Object requests with Object Lock parameters"))
}

/// Refuses a part number above `parts`, with Scaleway's text.
fn check_number(query: &str, parts: u32) -> S3Result<()> {
    let number = query.split('&').find_map(|parameter| parameter.strip_prefix("partNumber="));
    if number.and_then(|number| number.parse::<u32>().ok()).is_none_or(|number| number <= parts) {
        return Ok(());
    }
    let message = format!("Part number must be an integer between 1 and {parts}, inclusive");
    Err(S3Error::with_message(S3ErrorCode::InvalidArgument, message))
}

/// Parameters that S3 or a client may add to any request: the operation's name, and signatures in the URL.
const ALWAYS: &[&str] = &["x-id", "awsaccesskeyid", "signature", "expires"];

/// Query parameters that each operation understands. Any other parameter may mean an operation that s3s does not know and would take
/// for a plain one (`?renameObject`, `?append`).
fn understood(operation: &str) -> &'static [&'static str] {
    match operation {
        "GetObject" | "HeadObject" => &[
            "partNumber",
            "versionId",
            "response-cache-control",
            "response-content-disposition",
            "response-content-encoding",
            "response-content-language",
            "response-content-type",
            "response-expires",
        ],
        "DeleteObject" => &["versionId"],
        "DeleteObjects" => &["delete"],
        "ListObjectsV2" => &[
            "list-type",
            "prefix",
            "delimiter",
            "max-keys",
            "start-after",
            "continuation-token",
            "encoding-type",
            "fetch-owner",
        ],
        "ListObjects" => &["prefix", "delimiter", "marker", "max-keys", "encoding-type"],
        "ListMultipartUploads" => &[
            "uploads",
            "prefix",
            "delimiter",
            "key-marker",
            "upload-id-marker",
            "max-uploads",
            "encoding-type",
        ],
        "ListObjectVersions" => &[
            "versions",
            "prefix",
            "delimiter",
            "key-marker",
            "version-id-marker",
            "max-keys",
            "encoding-type",
        ],
        "GetObjectTagging" => &["tagging", "versionId"],
        "GetBucketTagging" | "PutBucketTagging" | "DeleteBucketTagging" => &["tagging"],
        "CreateMultipartUpload" => &["uploads"],
        "UploadPart" | "UploadPartCopy" => &["partNumber", "uploadId"],
        "CompleteMultipartUpload" | "AbortMultipartUpload" => &["uploadId"],
        "ListParts" => &["uploadId", "max-parts", "part-number-marker"],
        "GetBucketLocation" => &["location"],
        "ListBuckets" => &["max-buckets", "prefix", "continuation-token", "bucket-region"],
        _ => &[],
    }
}

fn check_query(operation: &str, query: &str) -> S3Result<()> {
    for parameter in query.split('&').filter(|p| !p.is_empty()) {
        let name = parameter.split('=').next().unwrap_or(parameter);
        let lower = name.to_ascii_lowercase();
        let known = understood(operation).contains(&name)
            || ALWAYS.contains(&lower.as_str())
            || lower.starts_with("x-amz-");
        if !known {
            return Err(unknown(format_args!("the query parameter `{name}` of {operation}")));
        }
        if name == "versionId" && !matches!(parameter, "versionId=" | "versionId=null") {
            return Err(unknown("object versions"));
        }
    }
    Ok(())
}

/// Headers that this server refuses, because it would otherwise silently ignore what they request.
const REFUSED: &[&str] = &[
    "x-amz-write-offset-bytes",
    "x-amz-rename-source",
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-copy-source-server-side-encryption-customer-algorithm",
    "x-amz-object-lock-mode",
    "x-amz-object-lock-legal-hold",
    "x-amz-website-redirect-location",
];

fn check_headers(headers: &HeaderMap) -> S3Result<()> {
    REFUSED
        .iter()
        .find(|&&name| headers.contains_key(name))
        .map_or(Ok(()), |name| Err(unknown(format_args!("the header `{name}`"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_operations_that_are_not_known_are_refused() {
        for (operation, query) in [
            ("PutObject", "renameObject"),
            ("PutObject", "append&position=3"),
            ("GetObject", "versionId=abc"),
            ("ListObjects", "list-type=3"),
            ("CreateBucket", "object-lock-enabled=1"),
        ] {
            let error = check_query(operation, query).unwrap_err();
            assert_eq!(error.code(), &S3ErrorCode::NotImplemented, "{operation}?{query}");
        }
    }

    #[test]
    fn parameters_that_are_understood_pass() {
        for (operation, query) in [
            ("PutObject", "x-id=PutObject"),
            ("GetObject", "partNumber=1&response-content-type=a&versionId=null"),
            ("GetObject", "X-Amz-Algorithm=x&X-Amz-Signature=y"),
            ("ListObjectsV2", "list-type=2&prefix=&delimiter=%2F&encoding-type=url"),
            ("PutObject", ""),
        ] {
            assert!(check_query(operation, query).is_ok(), "{operation}?{query}");
        }
    }

    #[test]
    fn headers_that_would_be_left_out_are_refused() {
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-write-offset-bytes", "5".parse().unwrap());
        assert_eq!(check_headers(&headers).unwrap_err().code(), &S3ErrorCode::NotImplemented);
    }
}
