//! Objects that are stored only if none is there, on stores with and without If-None-Match. A store without it is asked first.

use std::future::Future;

use super::head::head_object;
use super::wire::Wire;
use super::{Error, ErrorKind, Result};
use crate::object::ObjectKey;
use crate::sync::atomic::Ordering::Relaxed;

/// Stores an object under `key` by `store`, which is told whether to send the condition.
///
/// A store that answers 501 to the condition is asked by HEAD instead, then and from then on. Between that answer and the upload another
/// client may store the object, which is then replaced: such a store can't tell.
pub(super) async fn if_absent<T, F>(
    wire: &Wire,
    operation: &'static str,
    key: &ObjectKey,
    store: impl Fn(bool) -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let knows = !wire.no_if_none_match.load(Relaxed);
    if knows {
        match store(true).await {
            Err(error) if *error.kind() == ErrorKind::Unsupported => {}
            outcome => return outcome,
        }
    }
    match head_object(wire, key).await {
        Ok(_) => return Err(exists(operation, key)),
        Err(error) if *error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let outcome = store(false).await;
    // Without the condition it works: so that was what the store does not know.
    if knows && outcome.is_ok() && !wire.no_if_none_match.swap(true, Relaxed) {
        tracing::info!(
            "the store does not know If-None-Match on {operation}: new names are asked for before they are stored"
        );
    }
    outcome
}

/// The object was to be stored only if none is there, and one is.
pub(super) fn exists(operation: &'static str, key: &ObjectKey) -> Error {
    Error::new(ErrorKind::Exists, operation).key(key).message("an object is there already")
}
