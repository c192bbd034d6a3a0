//! GetObject: a range of one version, received straight into blocks.

use std::ops::Range;

use http::{HeaderName, HeaderValue, Method, StatusCode, header};

use crate::buffer::Fill;
use crate::net::flow::lanes::Lane;
use crate::object::{ETag, ObjectMeta, Second};
use crate::s3::answer::check_get;
use crate::s3::attempts::Attempts;
use crate::s3::failure::Failure;
use crate::s3::ops::{head, hedged};
use crate::s3::wire::{Draft, Filled, Wire};
use crate::s3::{Error, ErrorKind, GetObject, Result};

const OPERATION: &str = "GetObject";
/// Least bytes of a body after which a failed attempt counts as progress. Without this limit, a store that sends a few bytes per attempt
/// could hold a read forever.
const PROGRESS: u64 = 64 << 10;
/// Most bytes of a range that is a small request wherever it begins.
const SMALL_ANYWHERE: u64 = 64 << 10;

/// The lane of a range. The first bytes of a file never wait behind bulk. Later ranges are bulk, unless they are as small as those of a
/// random reader.
fn lane(range: &Range<u64>) -> Lane {
    let bytes = range.end - range.start;
    if range.start == 0 || bytes <= SMALL_ANYWHERE { Lane::of(bytes) } else { Lane::Bulk }
}

/// Whether a failed attempt made progress: it received at least [`PROGRESS`] bytes, or any byte when fewer were missing.
fn is_progress(received: u64, missing: u64) -> bool {
    received >= PROGRESS || (missing < PROGRESS && received > 0)
}

/// Gets a range, see [`crate::s3::ObjectClient::get_object`].
pub(crate) async fn get_object(wire: &Wire, request: &GetObject, into: &mut Fill) -> Result<()> {
    let range = &request.range;
    let fits = range.start < range.end
        && range.end <= request.object_size
        && into.remaining() == range.end - range.start;
    if !fits {
        return Err(Error::new(ErrorKind::InvalidRequest, OPERATION).key(&request.id.key).message(format!(
            "{range:?} of {} bytes into room for {}",
            request.object_size,
            into.remaining()
        )));
    }
    let base = into.filled();
    let mut attempts =
        Attempts::new(wire, OPERATION, Some(&request.id.key), into.remaining()).in_lane(lane(range));
    loop {
        let before = into.filled();
        let start = range.start + (before - base);
        match once(wire, &attempts, request, start, into).await {
            Ok(Filled::Whole) => {
                attempts.succeeded();
                return Ok(());
            }
            Ok(Filled::Stalls(_)) if is_progress(into.filled() - before, into.remaining()) => {
                attempts.progressed();
            }
            // Other reads pay for the hedges of this one, and may do so for ever: so this read has a limit of its own.
            Ok(Filled::Stalls(silent)) => attempts.silent(silent)?,
            Err(failure)
                if is_refused_condition(&failure.error) && wire.abilities.oddities.knows_if_match() =>
            {
                let key = &request.id.key;
                if !head::head_object(wire, key).await.is_ok_and(|meta| is_unchanged(request, &meta)) {
                    return Err(failure.error);
                }
                wire.abilities.oddities.if_match_is_refused(key);
            }
            Err(failure) => {
                if is_progress(into.filled() - before, into.remaining()) {
                    attempts.progressed();
                }
                attempts.again(failure).await?;
            }
        }
    }
}

/// Whether the store refused a condition (412).
pub(crate) fn is_refused_condition(error: &Error) -> bool {
    error.http_status() == Some(StatusCode::PRECONDITION_FAILED.as_u16())
}

/// Whether the object is still the requested version, by the metadata of a HEAD.
fn is_unchanged(request: &GetObject, meta: &ObjectMeta) -> bool {
    meta.size == request.object_size && request.id.may_be(meta.etag.as_str(), Second::of(meta.last_modified))
}

/// The If-Match header for this version; `None` if the ETag can't be a condition or the store refuses If-Match.
pub(crate) fn if_match(wire: &Wire, etag: &ETag) -> Option<(HeaderName, HeaderValue)> {
    let value = etag.if_match().filter(|_| wire.abilities.oddities.knows_if_match())?;
    Some((header::IF_MATCH, HeaderValue::try_from(value).ok()?))
}

/// Requests the missing bytes, from `start` on.
async fn once(
    wire: &Wire,
    attempts: &Attempts<'_>,
    request: &GetObject,
    start: u64,
    into: &mut Fill,
) -> std::result::Result<Filled, Failure> {
    let key = &request.id.key;
    let range = start..request.range.end;
    let value = |text: &str| {
        HeaderValue::from_str(text)
            .map_err(|e| Error::new(ErrorKind::InvalidRequest, OPERATION).key(key).source(e))
    };
    let mut headers: Vec<_> = attempts.checksum_mode().into_iter().collect();
    headers.extend(if_match(wire, &request.id.etag));
    // A request for the whole object has no range: most stores give no checksum in the answer to a range.
    if range != (0..request.object_size) {
        headers.push((header::RANGE, value(&format!("bytes={}-{}", range.start, range.end - 1))?));
    }
    let draft = Draft { headers, ..attempts.draft(Method::GET, wire.endpoint.key_path(key.as_str())) };
    let answer = hedged::exchange(wire, draft).await?;
    if !matches!(answer.status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
        return Err(answer.failed(wire.clock.wall()).await);
    }
    if let Err((kind, why)) =
        check_get(answer.status, &answer.headers, &request.id, &range, request.object_size)
    {
        return Err(answer.error(kind, why).into());
    }
    if range == (0..request.object_size) {
        wire.sums.learn(&request.id, request.object_size, answer.status, &answer.headers);
    }
    answer.fill(into, wire).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_progress_if_it_brought_much_or_part_of_the_last_bytes() {
        assert!(is_progress(PROGRESS, 10 * PROGRESS), "much");
        assert!(!is_progress(PROGRESS - 1, 10 * PROGRESS), "a dribble, and much is missing");
        assert!(is_progress(1, PROGRESS - 1), "of little, any byte counts");
        assert!(!is_progress(1, PROGRESS));
        assert!(!is_progress(0, 1), "nothing came: a store that is silent ends the patience");
        assert!(!is_progress(0, 10 * PROGRESS));
    }
}
