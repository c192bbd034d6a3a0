//! The metadata of an object and some of its bytes in one GET. If the answer lacks the metadata, a HEAD follows.

use std::time::Duration;

use http::{HeaderValue, Method, StatusCode, header};

use crate::buffer::{BlockMut, Fill};
use crate::checksum::Checksum;
use crate::net::flow::lanes::Lane;
use crate::object::{ObjectId, ObjectMeta};
use crate::s3::answer::{CLOCK_REFUSED, first_of, is_about_credentials, text};
use crate::s3::attempts::Attempts;
use crate::s3::failure::Failure;
use crate::s3::oddities::Oddity;
use crate::s3::ops::get::{if_match, is_refused_condition};
use crate::s3::ops::{head, hedged};
use crate::s3::retry::is_transient;
use crate::s3::sums::of_whole_object;
use crate::s3::wire::{Draft, Wire};
use crate::s3::{Begin, Error, ErrorKind, First, GetFirst, Result};
use crate::sync::{Arc, Mutex};

const OPERATION: &str = "GetObject";

/// Longest silence of a store after a lookup that requests bytes; then a HEAD follows. Doubling it makes a lookup on a silent store fail
/// that much later.
const TAIL_SILENCE: Duration = Duration::from_secs(10);

/// Gets metadata and bytes, see [`crate::s3::ObjectClient::get_first`].
pub(crate) async fn get_first(wire: &Wire, request: &GetFirst, room: BlockMut) -> Result<First> {
    let is_known_as_refused = request.begin == Begin::Tail && !wire.abilities.oddities.knows_suffix();
    let refusal = match is_known_as_refused {
        true => None,
        false => match by_get(wire, request, room).await? {
            Got::First(first) => return Ok(first),
            Got::Little(refusal) => refusal,
        },
    };
    let refusal = refusal.filter(|_| request.begin == Begin::Tail);
    if let Some(refusal) = refusal.as_ref().filter(|refusal| *refusal.kind() == ErrorKind::Denied) {
        wire.abilities.oddities.suffix_is_denied(&request.key);
        tracing::debug!(key = %request.key, error = %refusal, "a tail without a size is denied");
    }
    let meta = head::head_object(wire, &request.key).await?;
    if let Some(refusal) = refusal.filter(|refusal| meta.size > 0 && is_about_range(refusal)) {
        wire.abilities.oddities.suffix_is_refused(&request.key, &refusal.to_string());
    }
    match &request.etag {
        Some(known) if !known.may_be(meta.etag.as_str()) => {
            let error = Error::new(ErrorKind::Changed, "HeadObject").key(&request.key);
            Err(error.message(format!("it has ETag {}, not {}", meta.etag.as_str(), known.as_str())))
        }
        _ => Ok(First { meta, bytes: None }),
    }
}

/// The result of the GET.
enum Got {
    First(First),
    /// The answer lacks the metadata, so a HEAD must follow. The error is the store's refusal; `None` if it may be temporary.
    Little(Option<Error>),
}

/// Sends the GET, with retries.
async fn by_get(wire: &Wire, request: &GetFirst, room: BlockMut) -> Result<Got> {
    let bytes = room.limit() as u64;
    let mut attempts = Attempts::new(wire, OPERATION, Some(&request.key), bytes).in_lane(Lane::of(bytes));
    let mut room = Some(room);
    loop {
        match once(wire, &attempts, request, &mut room).await {
            Ok(got) => {
                attempts.succeeded();
                return Ok(got);
            }
            Err(failure) if says_too_little(&failure.error) => return Ok(Got::Little(Some(failure.error))),
            // The store may fail to read only the bytes of this object, which a lookup does not need. The HEAD is retried as long as any
            // request.
            Err(failure) if request.is_lookup && is_transient(failure.error.kind()) => {
                tracing::debug!(key = %request.key, error = %failure.error, "a HEAD asks in place of the tail");
                return Ok(Got::Little(None));
            }
            Err(failure)
                if is_refused_condition(&failure.error) && wire.abilities.oddities.knows_if_match() =>
            {
                let (key, known) = (&request.key, request.etag.as_ref());
                let meta = head::head_object(wire, key).await;
                if !meta.is_ok_and(|meta| known.is_some_and(|known| known.may_be(meta.etag.as_str()))) {
                    return Err(failure.error);
                }
                wire.abilities.oddities.if_match_is_refused(key);
            }
            Err(failure) => attempts.again(failure).await?,
        }
    }
}

/// Whether a HEAD may succeed although the GET was refused: the object has no bytes (416), is archived, or has separate permissions; or the
/// store does not know ranges.
fn says_too_little(error: &Error) -> bool {
    use ErrorKind::{Archived, BadAnswer, Denied, InvalidRequest, Unsupported};
    // The refusal has a cause that the retry loop can cure. It must see the GET's error, because the refusal of a HEAD has no code.
    let is_curable = error.code().is_some_and(|code| code == CLOCK_REFUSED || is_about_credentials(code));
    is_bad_range(error)
        || matches!(error.kind(), Archived | BadAnswer | InvalidRequest | Unsupported)
        || (*error.kind() == Denied && !is_curable)
}

fn is_bad_range(error: &Error) -> bool {
    error.http_status() == Some(StatusCode::RANGE_NOT_SATISFIABLE.as_u16())
        || error.code() == Some("InvalidRange")
}

/// Whether the store refuses the range, not the object.
fn is_about_range(error: &Error) -> bool {
    is_bad_range(error)
        || error.code() == Some("InvalidArgument")
        || matches!(error.kind(), ErrorKind::BadAnswer | ErrorKind::Unsupported)
}

/// Makes one GET. Takes the room once a body begins.
async fn once(
    wire: &Wire,
    attempts: &Attempts<'_>,
    request: &GetFirst,
    room: &mut Option<BlockMut>,
) -> std::result::Result<Got, Failure> {
    let limit = room.as_ref().map_or(0, BlockMut::limit) as u64;
    let value = |value: &str| {
        HeaderValue::from_str(value)
            .map_err(|e| Error::new(ErrorKind::InvalidRequest, OPERATION).key(&request.key).source(e))
    };
    let mut headers: Vec<_> = attempts.checksum_mode().into_iter().collect();
    // Without a length, an answer with a whole object says too little; one with a range names the object's size.
    if !request.is_whole || wire.abilities.oddities.has_seen(Oddity::NoLength) {
        let range = match request.begin {
            Begin::At(start) => format!("bytes={start}-{}", start.saturating_add(limit).saturating_sub(1)),
            Begin::Tail => format!("bytes=-{limit}"),
        };
        headers.push((header::RANGE, value(&range)?));
    }
    headers.extend(request.etag.as_ref().and_then(|etag| if_match(wire, etag)));
    let target = wire.endpoint.key_path(request.key.as_str());
    let mut draft = Draft { headers, ..attempts.draft(Method::GET, target) };
    if request.is_lookup {
        draft.clocks.silence = draft.clocks.silence.min(TAIL_SILENCE);
    }
    let answer = hedged::exchange(wire, draft).await?;
    if !matches!(answer.status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
        let is_empty = answer.status == StatusCode::RANGE_NOT_SATISFIABLE
            && text(&answer.headers, "content-range").is_some_and(|range| range.trim().ends_with("*/0"));
        let failure = answer.failed(wire.clock.wall()).await;
        // No error: the HEAD may see a newer version, with bytes.
        return if is_empty { Ok(Got::Little(None)) } else { Err(failure) };
    }
    let etag = request.etag.as_ref();
    let (meta, range) = match first_of(answer.status, &answer.headers, request.begin, limit, etag) {
        Ok(found) => found,
        Err((kind, why)) => {
            let has = |name| answer.headers.contains_key(name);
            if answer.status == StatusCode::OK && has(header::ETAG) && !has(header::CONTENT_LENGTH) {
                let why = "GetObject has no Content-Length";
                wire.abilities.oddities.saw(Oddity::NoLength, Some(&request.key), why);
            }
            return Err(answer.error(kind, why).into());
        }
    };
    let sum = (range == (0..meta.size))
        .then(|| of_whole_object(answer.status, &answer.headers, &meta.etag))
        .flatten();
    // The listing that may be asked for the date needs a connection, so this answer's must be free by then: else those of all programs
    // could wait for one more.
    let dated = async || {
        let meta = head::dated(wire, &request.key, meta.clone()).await;
        let id = ObjectId::of(request.key.clone(), &meta);
        if let Some(sum) = sum {
            wire.sums.put(&id, meta.size, sum);
        }
        (meta, id)
    };
    if range.is_empty() && meta.size > 0 && request.begin == Begin::Tail {
        // Dropping the body closes the connection.
        drop(answer);
        wire.abilities.oddities.suffix_is_refused(&request.key, "it sends the whole object");
        return Ok(Got::First(First { meta: dated().await.0, bytes: None }));
    }
    let Some(mut room) = room.take() else {
        drop(answer);
        return Ok(Got::First(First { meta: dated().await.0, bytes: None }));
    };
    room.shorten((range.end - range.start) as usize);
    let full = Arc::new(Mutex::new(None));
    let taken = Arc::clone(&full);
    let mut into = Fill::new([room], move |block| *taken.lock() = Some(block));
    // The metadata is valid even if the body fails: a read then requests the bytes again.
    if let Err(failure) = answer.fill(&mut into, wire).await {
        tracing::debug!(key = %request.key, error = %failure.error, "the first bytes broke off");
    }
    let (meta, id) = dated().await;
    let bytes = full.lock().take().filter(|block| is_right(wire, &id, &meta, block));
    Ok(Got::First(First { meta, bytes: bytes.map(|block| (range.start, block)) }))
}

/// Whether the bytes are right: false only if they are the whole object and differ from the store's checksum. Then a read fetches them
/// again.
fn is_right(wire: &Wire, id: &ObjectId, meta: &ObjectMeta, bytes: &[u8]) -> bool {
    let expected = wire.sums.get(id, meta.size).filter(|_| meta.size == bytes.len() as u64);
    let Some(expected) = expected else { return true };
    let ours = Checksum::of(expected.algorithm, bytes);
    if ours == expected {
        return true;
    }
    wire.metrics.read_corrupt.inc();
    Error::corrupt(&id.key, ours, expected, "it is asked for again").said();
    false
}
