//! Checks that the store encrypts new objects as the user requires: compares its answers with the configuration. Pure.
//!
//! A store that does not know the headers, or a proxy that drops them, would store plain text and answer 200.

use http::HeaderMap;

use crate::s3::Config;
use crate::s3::answer::text;

pub(crate) const SSE: &str = "x-amz-server-side-encryption";
pub(crate) const SSE_KEY: &str = "x-amz-server-side-encryption-aws-kms-key-id";

/// Advice for an object that was stored without the requested encryption.
pub(crate) const UNENCRYPTED: &str = "the object is in the bucket, in plain text or under another key: remove it, and check whether the store, and any proxy before it, knows these headers";

/// Checks that an answer proves the required encryption. The error quotes the answer.
pub(crate) fn proven(config: &Config, headers: &HeaderMap) -> Result<(), String> {
    not_denied(config, headers)?;
    let Some(wanted) = &config.sse else { return Ok(()) };
    if text(headers, SSE).is_none() {
        return Err(format!("the store reports no encryption, but --sse asks for {wanted}"));
    }
    match &config.sse_kms_key_id {
        Some(key) if text(headers, SSE_KEY).is_none() => {
            Err(format!("the store does not report its encryption key, but --sse-kms-key-id names {key}"))
        }
        _ => Ok(()),
    }
}

/// Checks that an answer does not contradict the required encryption. The answer to a part may say nothing about encryption.
pub(crate) fn not_denied(config: &Config, headers: &HeaderMap) -> Result<(), String> {
    let Some(wanted) = &config.sse else { return Ok(()) };
    if let Some(theirs) = text(headers, SSE)
        && theirs != wanted
    {
        return Err(format!("the store encrypts with {theirs:?}, but --sse asks for {wanted}"));
    }
    match (&config.sse_kms_key_id, text(headers, SSE_KEY)) {
        (Some(key), Some(theirs)) if !is_key(theirs, key) => {
            Err(format!("the store encrypts with the key {theirs:?}, but --sse-kms-key-id names {key}"))
        }
        _ => Ok(()),
    }
}

/// Whether `theirs` names the key of this ARN: in full, or by the id at the end, as some stores report it.
fn is_key(theirs: &str, arn: &str) -> bool {
    let id = arn.rsplit('/').next().unwrap_or(arn);
    theirs == arn || (!id.is_empty() && theirs == id)
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    const ARN: &str = "arn:aws:kms:eu-west-3:111122223333:key/1234-abcd";

    #[test]
    fn only_the_stores_word_for_type_and_key_proves_that_it_encrypts() {
        let headers = |sse: Option<&str>, key: Option<&str>| -> HeaderMap {
            [(SSE, sse), (SSE_KEY, key)]
                .into_iter()
                .filter_map(|(n, v)| Some((HeaderName::from_static(n), HeaderValue::from_str(v?).unwrap())))
                .collect()
        };
        let (kms, other) = (Some("aws:kms"), Some("arn:aws:kms:eu-west-3:111122223333:key/5678"));
        for (wanted, key, answer, holds) in [
            (None, None, headers(None, None), true),
            (None, None, headers(Some("AES256"), None), true),
            (Some("AES256"), None, headers(Some("AES256"), None), true),
            (Some("AES256"), None, headers(None, None), false),
            (Some("AES256"), None, headers(kms, None), false),
            (kms, None, headers(kms, other), true),
            (kms, None, headers(Some("AES256"), None), false),
            (Some("aws:kms:dsse"), None, headers(kms, None), false),
            (kms, Some(ARN), headers(kms, Some(ARN)), true),
            (kms, Some(ARN), headers(kms, Some("1234-abcd")), true),
            (kms, Some(ARN), headers(kms, Some("abcd")), false),
            (kms, Some(ARN), headers(kms, other), false),
            (kms, Some(ARN), headers(kms, None), false),
            (kms, Some(ARN), headers(None, Some(ARN)), false),
        ] {
            let config = Config {
                sse: wanted.map(str::to_owned),
                sse_kms_key_id: key.map(str::to_owned),
                ..Config::default()
            };
            let said = proven(&config, &answer);
            let silent =
                said.as_ref().is_err_and(|why| why.contains("reports no") || why.contains("does not report"));
            assert_eq!(said.is_ok(), holds, "{wanted:?} {key:?} {answer:?}: {said:?}");
            // Silence proves nothing, and denies nothing.
            assert_eq!(not_denied(&config, &answer).is_ok(), holds || silent, "{answer:?}");
        }
    }
}
