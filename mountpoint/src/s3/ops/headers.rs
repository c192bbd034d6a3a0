//! Headers of requests that make an object.

use http::{HeaderName, HeaderValue};

use crate::checksum::{Checksum, ChecksumAlgorithm};
use crate::s3::ops::encryption;
use crate::s3::wire::Wire;
use crate::s3::{Error, ErrorKind, NewObject, Replaces, Result};

/// Names and values, in the order of sending.
pub(crate) type Headers = Vec<(HeaderName, HeaderValue)>;

/// Headers with the properties of a new object, and the user's settings for every new object.
pub(crate) fn new_object_headers(
    wire: &Wire,
    operation: &'static str,
    object: &NewObject,
) -> Result<Headers> {
    let config = &wire.config;
    let mut headers = Headers::with_capacity(8);
    object.properties.push_all(&mut headers, operation)?;
    let class = object.properties.storage_class.as_deref();
    for (name, value) in [
        ("x-amz-storage-class", class.or(config.storage_class.as_deref())),
        (encryption::SSE, config.sse.as_deref()),
        (encryption::SSE_KEY, config.sse_kms_key_id.as_deref()),
    ] {
        if let Some(value) = value {
            push(&mut headers, operation, name, value)?;
        }
    }
    Ok(headers)
}

/// The type of a multipart object's checksum. `None` for the default, because stores that do not know the header refuse it.
pub(crate) fn checksum_type(algorithm: ChecksumAlgorithm) -> Option<&'static str> {
    match algorithm {
        ChecksumAlgorithm::Crc32c | ChecksumAlgorithm::Crc32 => None,
        ChecksumAlgorithm::Crc64Nvme => Some("FULL_OBJECT"),
    }
}

/// Adds the condition on the object that is replaced, if a header can say it; otherwise `guarded` has compared the object.
pub(crate) fn push_condition(
    headers: &mut Headers,
    operation: &'static str,
    replaces: &Replaces,
) -> Result<()> {
    match replaces {
        Replaces::Anything => Ok(()),
        Replaces::Nothing => push(headers, operation, "if-none-match", "*"),
        Replaces::Version(etag) => match etag.if_match() {
            Some(value) => push(headers, operation, "if-match", &value),
            None => Ok(()),
        },
    }
}

/// Adds a header. An invalid value comes from the user or the object, and is refused.
pub(crate) fn push(
    headers: &mut Headers,
    operation: &'static str,
    name: &'static str,
    value: &str,
) -> Result<()> {
    let value = HeaderValue::from_str(value).map_err(|e| {
        Error::new(ErrorKind::InvalidRequest, operation).message(format!("{name}: {value:?}")).source(e)
    })?;
    headers.push((HeaderName::from_static(name), value));
    Ok(())
}

/// The headers with the checksum of a body.
pub(crate) fn checksum_headers(checksum: Option<Checksum>) -> Headers {
    let mut headers = Headers::with_capacity(8);
    if let Some(checksum) = checksum {
        let name = HeaderName::from_static(checksum.algorithm.header());
        // Base64 and the names of algorithms are valid header text.
        if let Ok(value) = HeaderValue::try_from(checksum.to_base64()) {
            headers.push((name, value));
        }
        let algorithm = HeaderValue::from_static(checksum.algorithm.name());
        headers.push((HeaderName::from_static("x-amz-sdk-checksum-algorithm"), algorithm));
    }
    headers
}
