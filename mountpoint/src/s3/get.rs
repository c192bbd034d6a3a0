//! GetObject: a range of one version, straight into blocks.

use http::{HeaderValue, Method, StatusCode, header};

use super::answer::check_get;
use super::tries::Tries;
use super::wire::{Draft, Failure, Wire};
use super::{Error, ErrorKind, GetObject, Result};
use crate::buffer::Fill;

const OPERATION: &str = "GetObject";

/// See [`super::ObjectClient::get_object`].
pub(super) async fn get_object(wire: &Wire, request: &GetObject, into: &mut Fill) -> Result<()> {
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
    let mut tries = Tries::new(wire, OPERATION, Some(&request.id.key), into.remaining());
    loop {
        let before = into.filled();
        let start = range.start + (before - base);
        match once(wire, &tries, request, start, into).await {
            Ok(()) => {
                tries.succeeded();
                return Ok(());
            }
            Err(failure) => {
                if into.filled() > before {
                    tries.progressed();
                }
                tries.again(failure).await?;
            }
        }
    }
}

/// Asks for what is missing, from `start` on.
async fn once(
    wire: &Wire,
    tries: &Tries<'_>,
    request: &GetObject,
    start: u64,
    into: &mut Fill,
) -> std::result::Result<(), Failure> {
    let (key, etag) = (&request.id.key, &request.id.etag);
    let range = start..request.range.end;
    let value = |text: &str| {
        HeaderValue::from_str(text)
            .map_err(|e| Error::new(ErrorKind::InvalidRequest, OPERATION).key(key).source(e))
    };
    let headers = vec![
        (header::RANGE, value(&format!("bytes={}-{}", range.start, range.end - 1))?),
        (header::IF_MATCH, value(etag.as_str())?),
    ];
    let answer = wire
        .exchange(Draft {
            operation: OPERATION,
            key: Some(key),
            attempt: tries.attempt,
            method: Method::GET,
            target: wire.endpoint.key_path(key.as_str()),
            headers,
            body: None,
            deadline: tries.deadline,
        })
        .await?;
    if !matches!(answer.status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
        return Err(answer.failed(wire.clock.wall()).await);
    }
    if let Err((kind, why)) = check_get(answer.status, &answer.headers, etag, &range, request.object_size) {
        return Err(answer.error(kind, why).into());
    }
    answer.fill(into, &wire.metrics).await
}
