//! Interprets the head of an answer: maps status and code to an error's kind, parses headers, and compares them with the request. Pure.

use std::ops::Range;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};
use sha2::{Digest as _, Sha256};

use crate::object::{ETag, ObjectId, ObjectKey, ObjectMeta, Second};
use crate::s3::date::http_date;
use crate::s3::{Begin, ErrorKind};

/// Longest ETag kept in full, in bytes. A longer one is replaced by its digest: no store needs it, and each file in memory has an ETag.
const ETAG_MAX: usize = 1024;

/// The kind of the error for an answer that is not a success.
pub(crate) fn kind_of(status: StatusCode, code: Option<&str>, region: Option<&str>) -> ErrorKind {
    let region = || region.map(str::to_owned);
    match code.unwrap_or("") {
        "NoSuchBucket" => return ErrorKind::NoSuchBucket,
        "NoSuchKey" | "NoSuchUpload" | "NoSuchVersion" => return ErrorKind::NotFound,
        "SlowDown"
        | "Throttling"
        | "ThrottlingException"
        | "TooManyRequests"
        | "RequestLimitExceeded"
        | "BandwidthLimitExceeded"
        | "ReduceRequestRate" => return ErrorKind::Throttled,
        "RequestTimeout" => return ErrorKind::Timeout,
        "InternalError" | "ServiceUnavailable" => return ErrorKind::ServerError,
        "InvalidObjectState" => return ErrorKind::Archived,
        "PreconditionFailed" => return ErrorKind::Changed,
        // The range begins behind the object's end, so the object has become shorter meanwhile.
        "InvalidRange" => return ErrorKind::Changed,
        "BadDigest" | "InvalidDigest" | "XAmzContentSHA256Mismatch" | "XAmzContentChecksumMismatch" => {
            return ErrorKind::Corrupt;
        }
        "AuthorizationHeaderMalformed" | "PermanentRedirect" | "IllegalLocationConstraintException" => {
            return ErrorKind::WrongRegion(region());
        }
        "EntityTooLarge" => return ErrorKind::TooLarge,
        "NotImplemented" => return ErrorKind::Unsupported,
        // The code may also come with status 200, if the store sent the head before the error.
        "AccessDenied" => return ErrorKind::Denied,
        code if is_about_credentials(code) => return ErrorKind::Denied,
        // Two uploads to one key overlapped, or followed each other closely: AWS advises to try again.
        "OperationAborted" | "ConditionalRequestConflict" => return ErrorKind::ServerError,
        _ => {}
    }
    match status.as_u16() {
        301 | 302 | 307 | 308 => ErrorKind::WrongRegion(region()),
        // A HEAD has no body that could name the code.
        400 if region().is_some() && code.is_none() => ErrorKind::WrongRegion(region()),
        401 | 403 => ErrorKind::Denied,
        404 => ErrorKind::NotFound,
        408 => ErrorKind::Timeout,
        412 | 416 => ErrorKind::Changed,
        413 => ErrorKind::TooLarge,
        429 | 503 => ErrorKind::Throttled,
        501 => ErrorKind::Unsupported,
        500..=599 => ErrorKind::ServerError,
        400..=499 => ErrorKind::InvalidRequest,
        _ => ErrorKind::BadAnswer,
    }
}

/// The error code for a request whose date differs too much from the store's clock.
pub(crate) const CLOCK_REFUSED: &str = "RequestTimeTooSkewed";

/// Whether an error with this code may disappear with fresh credentials.
pub(crate) fn is_about_credentials(code: &str) -> bool {
    matches!(
        code,
        "ExpiredToken"
            | "ExpiredTokenException"
            | "InvalidToken"
            | "TokenRefreshRequired"
            | "InvalidAccessKeyId"
            | "SignatureDoesNotMatch"
    )
}

pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The store's identifier of the request.
pub(crate) fn request_id(headers: &HeaderMap) -> Option<String> {
    text(headers, "x-amz-request-id").map(str::to_owned)
}

/// The pause before the next attempt that the store requests with Retry-After.
pub(crate) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = text(headers, "retry-after")?.trim();
    match value.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => Some(http_date(value)?.duration_since(now).unwrap_or_default()),
    }
}

/// The time of the store's clock, from the Date header.
pub(crate) fn date(headers: &HeaderMap) -> Option<SystemTime> {
    text(headers, "date").and_then(http_date)
}

/// Parses an ETag. One longer than [`ETAG_MAX`] becomes its digest, as a weak ETag, which is compared and never sent.
pub(crate) fn etag(text: &str) -> ETag {
    match text.len() {
        0..=ETAG_MAX => ETag::new(text),
        _ => ETag::new(format!("W/\"{}\"", base16ct::lower::encode_string(&Sha256::digest(text)))),
    }
}

/// Whether an object of this storage class can be read now: it is not archived, or is restored. `restore` is the `x-amz-restore` header.
pub(crate) fn is_readable(storage_class: Option<&str>, restore: Option<&str>) -> bool {
    match storage_class {
        Some("GLACIER" | "DEEP_ARCHIVE") => restore.is_some_and(|r| r.contains("ongoing-request=\"false\"")),
        _ => true,
    }
}

/// The metadata from the answer to a HEAD; `None` if it lacks the object's length.
pub(crate) fn object_meta(headers: &HeaderMap) -> Option<ObjectMeta> {
    Some(meta_of(headers, content_length(headers)?))
}

/// The metadata from the answer to a GET of one byte; `None` if it lacks the object's length.
pub(crate) fn meta_of_byte(status: StatusCode, headers: &HeaderMap) -> Option<ObjectMeta> {
    let size = match status {
        StatusCode::OK => content_length(headers)?,
        StatusCode::PARTIAL_CONTENT => content_range(text(headers, "content-range")?)?.1,
        _ => return None,
    };
    Some(meta_of(headers, size))
}

/// Whether this refusal of a range shows that the object is empty.
pub(crate) fn says_empty(headers: &HeaderMap) -> bool {
    text(headers, "content-range")
        .is_some_and(|range| range.trim().trim_start_matches("bytes").trim() == "*/0")
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    u64::from_str(text(headers, "content-length")?).ok()
}

/// The metadata of an object of `size` bytes.
pub(crate) fn meta_of(headers: &HeaderMap, size: u64) -> ObjectMeta {
    let readable = is_readable(text(headers, "x-amz-storage-class"), text(headers, "x-amz-restore"));
    let last_modified = last_modified(headers).unwrap_or(SystemTime::UNIX_EPOCH);
    ObjectMeta { size, etag: etag(text(headers, "etag").unwrap_or("")), last_modified, readable }
}

fn last_modified(headers: &HeaderMap) -> Option<SystemTime> {
    text(headers, "last-modified").and_then(http_date)
}

/// The object's checksum from the store's answer, CRC-32C or CRC-64/NVME.
pub(crate) fn stored_checksum(headers: &HeaderMap) -> Option<String> {
    ["x-amz-checksum-crc32c", "x-amz-checksum-crc64nvme"]
        .iter()
        .find_map(|name| text(headers, name))
        .map(str::to_owned)
}

/// Parses `bytes first-last/total` into a half-open range and the total.
fn content_range(value: &str) -> Option<(Range<u64>, u64)> {
    let (range, total) = value.trim().strip_prefix("bytes")?.trim_start().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (u64::from_str(first.trim()).ok()?, u64::from_str(last.trim()).ok()?);
    let range = first..last.checked_add(1)?;
    (!range.is_empty()).then_some((range, u64::from_str(total.trim()).ok()?))
}

/// The message for an object that the store or a proxy decompresses.
const DECOMPRESSED: &str = "the store, or a proxy before it, decompresses the object (Content-Encoding: gzip), so its bytes can't be read in ranges: \
     turn that off (with --store gcs on Google Cloud Storage behind another name, else by Cache-Control: no-transform on the object), \
     or store the object without that header";

/// Whether the body was decompressed on the way: it comes whole and unencoded, with Google's header for the stored encoding, or with HTTP's
/// warning 214.
fn is_decompressed(status: StatusCode, headers: &HeaderMap) -> bool {
    let is_transformed = text(headers, "warning").is_some_and(|it| it.trim_start().starts_with("214"));
    let was_stored_so = text(headers, "x-goog-stored-content-encoding").is_some_and(|it| it == "gzip");
    let is_plain = !headers.contains_key(http::header::CONTENT_ENCODING);
    status == StatusCode::OK && is_plain && (is_transformed || was_stored_so)
}

/// Whether the answer has the version's ETag with the mark of a weak one, which a proxy adds when it changes the body.
fn is_weakened(ours: &ETag, theirs: &ETag) -> bool {
    theirs.as_str().starts_with("W/") && !ours.is_none() && !ours.as_str().starts_with("W/")
}

/// Checks that the head of a GET's answer belongs to the requested version and bytes. On success the body is exactly `range`, unless the
/// head does not say its length (it comes in chunks): then the receiver must count. Otherwise the result has the error's kind and reason.
pub(crate) fn check_get(
    status: StatusCode,
    headers: &HeaderMap,
    id: &ObjectId,
    range: &Range<u64>,
    object_size: u64,
) -> Result<(), (ErrorKind, String)> {
    let bad = |why: String| Err((ErrorKind::BadAnswer, why));
    if is_decompressed(status, headers) {
        return bad(DECOMPRESSED.to_owned());
    }
    let theirs = etag(text(headers, "etag").unwrap_or(""));
    let modified = last_modified(headers).and_then(Second::of);
    let is_comparable =
        !theirs.is_none() && !id.etag.is_none() || modified.is_some() && id.modified.is_some();
    if !(is_comparable || id.etag.is_none() && id.modified.is_none()) {
        return bad(
            "the answer has neither the ETag nor the date to compare, so its version is unknown".into()
        );
    }
    if !id.etag.may_be(theirs.as_str()) {
        let why = format!("it has ETag {}, not {}", theirs.as_str(), id.etag.as_str());
        return Err((ErrorKind::Changed, why));
    }
    if !id.may_be(theirs.as_str(), modified) {
        return Err((ErrorKind::Changed, "it was stored at another time".into()));
    }
    let length = content_length(headers);
    if headers.contains_key(http::header::CONTENT_ENCODING)
        && headers.contains_key(http::header::TRANSFER_ENCODING)
    {
        return bad("the answer's body was encoded on the way (Content-Encoding)".into());
    }
    match status {
        StatusCode::PARTIAL_CONTENT => {
            let Some((answered, total)) = text(headers, "content-range").and_then(content_range) else {
                return bad("the answer is 206 without a Content-Range".into());
            };
            if total != object_size {
                return Err((ErrorKind::Changed, format!("it has {total} bytes, not {object_size}")));
            }
            if answered != *range {
                return bad(format!("the answer holds bytes {answered:?}, not {range:?}"));
            }
        }
        StatusCode::OK if *range != (0..object_size) => {
            return bad("the store ignored the Range header".into());
        }
        StatusCode::OK => match length {
            Some(n) if n != object_size => {
                return Err((ErrorKind::Changed, format!("it has {n} bytes, not {object_size}")));
            }
            None if is_weakened(&id.etag, &theirs) => return bad(DECOMPRESSED.to_owned()),
            _ => {}
        },
        status => return bad(format!("status {status} is not valid for a GET")),
    }
    match length {
        Some(n) if n != range.end - range.start => {
            bad(format!("the answer announces {n} bytes for the range {range:?}"))
        }
        _ => Ok(()),
    }
}

/// Interprets the head of the answer to a GET of `most` bytes at the beginning, the middle or the end of an object, of version `known` or
/// of any. Returns the object's metadata, and the range of the body to use. A whole object does not answer a request for bytes from its
/// middle. A store without suffix ranges answers with the whole object: its metadata are used, and a body longer than `most` is not (an
/// empty range).
pub(crate) fn first_of(
    status: StatusCode,
    headers: &HeaderMap,
    begin: Begin,
    most: u64,
    known: Option<&ETag>,
) -> Result<(ObjectMeta, Range<u64>), (ErrorKind, String)> {
    let size = match status {
        StatusCode::PARTIAL_CONTENT => {
            text(headers, "content-range").and_then(content_range).map(|(_, size)| size)
        }
        _ => content_length(headers),
    };
    let size =
        size.ok_or_else(|| (ErrorKind::BadAnswer, "the answer does not say how long the object is".into()))?;
    let meta = meta_of(headers, size);
    let is_whole = status == StatusCode::OK;
    let there = match begin {
        Begin::At(start) if is_whole && start > 0 => {
            return Err((ErrorKind::BadAnswer, "the answer is the whole object, and not its tail".into()));
        }
        Begin::At(start) => start..size.min(start.saturating_add(most)).max(start),
        Begin::Tail if is_whole => 0..size,
        Begin::Tail => size.saturating_sub(most)..size,
    };
    let etag = known.unwrap_or(&meta.etag).clone();
    let id = ObjectId { key: ObjectKey::new(""), etag, modified: None };
    check_get(status, headers, &id, &there, size)?;
    let fits = there.end - there.start <= most;
    Ok((meta, if fits { there } else { size..size }))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    const CHUNKED: (&str, &str) = ("transfer-encoding", "chunked");

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(n, v)| (http::HeaderName::from_static(n), HeaderValue::from_str(v).unwrap()))
            .collect()
    }

    #[test]
    fn each_answer_has_its_kind() {
        use ErrorKind::*;
        for (status, code, kind) in [
            (404, None, NotFound),
            (404, Some("NoSuchBucket"), NoSuchBucket),
            (404, Some("NoSuchUpload"), NotFound),
            (403, Some("AccessDenied"), Denied),
            (403, None, Denied),
            (400, Some("ExpiredToken"), Denied),
            (403, Some("InvalidObjectState"), Archived),
            (412, None, Changed),
            (416, Some("InvalidRange"), Changed),
            (503, Some("SlowDown"), Throttled),
            (503, None, Throttled),
            (429, None, Throttled),
            (500, Some("InternalError"), ServerError),
            (502, None, ServerError),
            (400, Some("RequestTimeout"), Timeout),
            (400, Some("BadDigest"), Corrupt),
            (501, Some("NotImplemented"), Unsupported),
            (400, Some("EntityTooLarge"), TooLarge),
            (400, Some("InvalidArgument"), InvalidRequest),
            (301, None, WrongRegion(Some("eu-west-1".into()))),
            (400, None, WrongRegion(Some("eu-west-1".into()))),
            (200, Some("InternalError"), ServerError),
            (204, None, BadAnswer),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(kind_of(status, code, Some("eu-west-1")), kind, "{status} {code:?}");
        }
        assert_eq!(kind_of(StatusCode::BAD_REQUEST, None, None), InvalidRequest);
    }

    #[test]
    fn a_head_answer_becomes_what_is_known_of_the_object() {
        let meta = object_meta(&headers(&[
            ("content-length", "42"),
            ("etag", "\"abc\""),
            ("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT"),
        ]))
        .unwrap();
        assert_eq!((meta.size, meta.etag.as_str(), meta.readable), (42, "\"abc\"", true));
        assert_eq!(meta.last_modified, SystemTime::UNIX_EPOCH + Duration::from_secs(1_445_412_480));
        // Another answer says what is missing, or it stays unknown.
        assert_eq!(object_meta(&headers(&[("etag", "\"abc\"")])), None);
        let bare =
            object_meta(&headers(&[("content-length", "42"), ("etag", "\"\""), ("last-modified", "soon")]));
        let bare = bare.unwrap();
        assert!(bare.etag.is_none() && bare.last_modified == SystemTime::UNIX_EPOCH);
        let long = "x".repeat(60 << 10);
        let kept = |tail: &str| etag(&format!("\"{long}{tail}\""));
        assert!(kept("a").as_str().len() < 100 && kept("a").if_match().is_none());
        assert!(kept("a") == kept("a") && !kept("a").matches(kept("b").as_str()));
    }

    #[test]
    fn a_time_to_wait_is_understood_in_seconds_and_as_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_445_412_480); // 21 Oct 2015, 07:28:00
        let wait = |value: &str| retry_after(&headers(&[("retry-after", value)]), now);
        let seconds = |n| Some(Duration::from_secs(n));
        assert_eq!(wait("7"), seconds(7));
        assert_eq!(wait(" 0 "), seconds(0));
        assert_eq!(wait("18446744073709551615"), seconds(u64::MAX));
        assert_eq!(wait("Wed, 21 Oct 2015 07:28:30 GMT"), seconds(30));
        assert_eq!(wait("Wed, 21 Oct 2015 07:27:30 GMT"), seconds(0), "past");
        assert_eq!(wait("Fri, 31 Dec 9999 23:59:59 GMT"), seconds(251_956_888_319), "far");
        for neither in ["", "soon", "-1", "1.5", "18446744073709551616", "Wed, 41 Oct 2015 07:28:30 GMT"] {
            assert_eq!(wait(neither), None, "{neither:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }

    #[test]
    fn the_first_bytes_come_with_metadata_that_they_belong_to() {
        let date = ("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT");
        let (v1, v2) = (("etag", "\"v1\""), ETag::new("\"v2\""));
        let first = |status: u16, h: &[(&'static str, &str)], known: Option<&ETag>| {
            let headers = headers(&[h, &[date]].concat());
            first_of(StatusCode::from_u16(status).unwrap(), &headers, Begin::At(0), 100, known)
                .map(|(meta, range)| (meta.size, range.end - range.start))
                .map_err(|(kind, _)| kind)
        };
        assert_eq!(first(206, &[v1, ("content-range", "bytes 0-99/1000")], None), Ok((1000, 100)));
        assert_eq!(first(206, &[v1, ("content-range", "bytes 0-6/7")], None), Ok((7, 7)));
        assert_eq!(first(200, &[v1, ("content-length", "7")], None), Ok((7, 7)));
        assert_eq!(first(200, &[v1, ("content-length", "0")], None), Ok((0, 0)));
        use ErrorKind::{BadAnswer, Changed};
        for (status, h, kind) in [
            (206, vec![v1], BadAnswer),
            (206, vec![v1, ("content-range", "bytes 1-100/1000")], BadAnswer),
            (206, vec![v1, ("content-range", "bytes 0-98/1000")], BadAnswer),
            (206, vec![v1, ("content-range", "bytes 0-99/*")], BadAnswer),
            (206, vec![v1, ("content-range", "bytes 0-99/1000"), ("content-length", "99")], BadAnswer),
            (200, vec![v1, ("content-length", "1000")], BadAnswer),
            (200, vec![v1], BadAnswer),
        ] {
            assert_eq!(first(status, &h, None), Err(kind.clone()), "{status} {h:?}");
        }
        assert_eq!(first(206, &[v1, ("content-range", "bytes 0-6/7")], Some(&v2)), Err(Changed));
    }

    #[test]
    fn a_tail_of_an_unknown_size_ends_where_the_object_ends() {
        let v1 = ("etag", "\"v1\"");
        let tail = |status: u16, h: &[(&'static str, &str)]| {
            let headers = headers(&[h, &[v1]].concat());
            first_of(StatusCode::from_u16(status).unwrap(), &headers, Begin::Tail, 100, None)
                .map(|(meta, range)| (meta.size, range))
                .map_err(|(kind, _)| kind)
        };
        assert_eq!(tail(206, &[("content-range", "bytes 900-999/1000")]), Ok((1000, 900..1000)));
        assert_eq!(tail(206, &[("content-range", "bytes 0-6/7")]), Ok((7, 0..7)), "shorter than the tail");
        assert_eq!(tail(200, &[("content-length", "100")]), Ok((100, 0..100)));
        assert_eq!(tail(200, &[("content-length", "101")]), Ok((101, 101..101)), "nothing of it is taken");
        for wrong in ["bytes 0-99/1000", "bytes 899-999/1000", "bytes 900-998/1000", "bytes 900-999/*", ""] {
            assert_eq!(tail(206, &[("content-range", wrong)]), Err(ErrorKind::BadAnswer), "{wrong}");
        }
        let far = format!("bytes {}-{}/{}", u64::MAX - 100, u64::MAX - 1, u64::MAX);
        assert_eq!(tail(206, &[("content-range", &far)]), Ok((u64::MAX, u64::MAX - 100..u64::MAX)));
    }

    #[test]
    fn an_archived_object_is_readable_once_restored() {
        assert!(!is_readable(Some("GLACIER"), None));
        assert!(!is_readable(Some("DEEP_ARCHIVE"), Some("ongoing-request=\"true\"")));
        assert!(is_readable(Some("GLACIER"), Some("ongoing-request=\"false\", expiry-date=\"x\"")));
        assert!(is_readable(Some("GLACIER_IR"), None));
        assert!(is_readable(None, None));
    }

    #[test]
    fn bytes_of_another_version_or_range_are_never_taken() {
        let modified = http_date("Wed, 21 Oct 2015 07:28:00 GMT").and_then(Second::of);
        let id = ObjectId { key: ObjectKey::new("k"), etag: ETag::new("\"v1\""), modified };
        let check = |status: u16, h: &[(&'static str, &str)], range: Range<u64>| {
            check_get(StatusCode::from_u16(status).unwrap(), &headers(h), &id, &range, 100)
                .map_err(|(kind, _)| kind)
        };
        let v1 = ("etag", "\"v1\"");
        assert_eq!(
            check(206, &[v1, ("content-range", "bytes 10-19/100"), ("content-length", "10")], 10..20),
            Ok(())
        );
        assert_eq!(check(206, &[("etag", "v1"), ("content-range", "bytes 10-19/100")], 10..20), Ok(()));
        assert_eq!(check(200, &[v1, ("content-length", "100")], 0..100), Ok(()));
        assert_eq!(check(200, &[v1, CHUNKED], 0..100), Ok(()), "its receiver counts");
        assert_eq!(check(206, &[v1, CHUNKED, ("content-range", "bytes 10-19/100")], 10..20), Ok(()));
        let (then, later) = ("Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2015 07:28:01 GMT");
        let of_ten = ("content-range", "bytes 10-19/100");
        for etag in ["\"v1\"", "W/\"v1\"", "\"\"", ""] {
            assert_eq!(check(206, &[("etag", etag), ("last-modified", then), of_ten], 10..20), Ok(()));
        }
        use ErrorKind::{BadAnswer, Changed};
        for etag in ["\"v1\"", "\"\""] {
            let answer = check(206, &[("etag", etag), ("last-modified", later), of_ten], 10..20);
            assert_eq!(answer, Err(Changed), "the same mark on other bytes");
        }
        for (status, h, range, kind) in [
            (206, vec![("etag", "\"v2\""), ("content-range", "bytes 10-19/100")], 10..20, Changed),
            (206, vec![v1, ("content-range", "bytes 10-19/101")], 10..20, Changed),
            (206, vec![v1, ("content-range", "bytes 0-9/100")], 10..20, BadAnswer),
            (206, vec![v1, ("content-range", "bytes 10-18/100")], 10..20, BadAnswer),
            (206, vec![v1, ("content-range", "bytes 10-19/*")], 10..20, BadAnswer),
            (206, vec![v1, ("content-range", "bytes 10-19/100"), ("content-length", "9")], 10..20, BadAnswer),
            (206, vec![v1], 10..20, BadAnswer),
            (200, vec![v1, ("content-length", "10")], 10..20, BadAnswer),
            (200, vec![v1, ("content-length", "99")], 0..100, Changed),
            (200, vec![v1, CHUNKED], 10..20, BadAnswer),
            (200, vec![("etag", "W/\"v1\""), CHUNKED], 0..100, BadAnswer),
            (200, vec![v1, CHUNKED, ("content-encoding", "gzip")], 0..100, BadAnswer),
            (206, vec![("content-range", "bytes 10-19/100")], 10..20, BadAnswer),
            (204, vec![v1], 10..20, BadAnswer),
        ] {
            assert_eq!(check(status, &h, range), Err(kind), "{status} {h:?}");
        }
    }

    proptest! {
        #[test]
        fn no_content_range_panics_and_sound_ones_are_understood(junk in "[bytes 0-9/*-]{0,40}", a in 0u64..1000, n in 1u64..1000) {
            let _ = content_range(&junk);
            let end = a + n;
            prop_assert_eq!(content_range(&format!("bytes {a}-{}/5000", end - 1)), Some((a..end, 5000)));
        }
    }
}
