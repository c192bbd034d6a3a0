//! Server-side encryption towards clients: the server checks, stores and returns the request's settings. It encrypts nothing.

use http::HeaderMap;
use s3s::dto::ServerSideEncryption;
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::store::meta::Sse;

const METHOD: &str = "x-amz-server-side-encryption";
const KEY: &str = "x-amz-server-side-encryption-aws-kms-key-id";

/// The key that the server returns if a request for KMS names none.
const DEFAULT_KEY: &str = "arn:aws:kms:us-east-1:111122223333:key/00000000-0000-0000-0000-000000000000";

/// The encryption that the headers of a PutObject, CopyObject or CreateMultipartUpload request.
pub(super) fn requested(headers: &HeaderMap) -> S3Result<Option<Sse>> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    match (text(METHOD).as_deref(), text(KEY)) {
        (None, None) => Ok(None),
        (Some("AES256"), None) => Ok(Some(Sse { method: "AES256".to_owned(), key: None })),
        (Some(method @ ("aws:kms" | "aws:kms:dsse")), key) => {
            let key = key.unwrap_or_else(|| DEFAULT_KEY.to_owned());
            Ok(Some(Sse { method: method.to_owned(), key: Some(key) }))
        }
        (Some("AES256") | None, Some(_)) => {
            Err(argument("A KMS key needs x-amz-server-side-encryption: aws:kms."))
        }
        (Some(_), _) => Err(argument("The encryption method specified is not supported.")),
    }
}

/// The two fields of an answer that name an object's encryption.
pub(super) fn echo(sse: Option<&Sse>) -> (Option<ServerSideEncryption>, Option<String>) {
    (sse.map(|sse| sse.method.clone().into()), sse.and_then(|sse| sse.key.clone()))
}

fn argument(message: &'static str) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(pairs: &[(&'static str, &str)]) -> S3Result<Option<Sse>> {
        let headers = pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        requested(&headers.collect())
    }

    #[test]
    fn what_s3_does_not_take_is_refused() {
        for pairs in [&[(METHOD, "rot13")][..], &[(METHOD, "AES256"), (KEY, "k")], &[(KEY, "k")]] {
            assert_eq!(asked(pairs).unwrap_err().code(), &S3ErrorCode::InvalidArgument, "{pairs:?}");
        }
        assert_eq!(asked(&[]).unwrap(), None);
    }

    #[test]
    fn kms_names_its_key() {
        let key = |pairs| asked(pairs).unwrap().unwrap().key;
        assert_eq!(key(&[(METHOD, "aws:kms"), (KEY, "mine")]).as_deref(), Some("mine"));
        assert_eq!(key(&[(METHOD, "aws:kms:dsse")]).as_deref(), Some(DEFAULT_KEY));
        assert_eq!(key(&[(METHOD, "AES256")]), None);
    }
}
