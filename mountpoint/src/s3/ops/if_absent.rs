//! Stores an object only if its key has none, on stores that obey If-None-Match, ignore it or refuse it. On stores that ignore or refuse
//! it, a request first asks whether the key has an object.

use std::future::Future;

use crate::object::ObjectKey;
use crate::s3::abilities::Write;
use crate::s3::kind::Condition;
use crate::s3::ops::head::head_object;
use crate::s3::wire::Wire;
use crate::s3::{Error, ErrorKind, Result};

/// Stores an object under `key` by `store`, which is told whether to send the condition.
///
/// A store that answers 501 to the condition is asked by HEAD instead, then and from then on. A store that ignores it is asked, too, and
/// sent the condition all the same, because a newer release may keep it. Between that answer and the upload another client may store the
/// object, which is then replaced: such a store can't tell.
pub(crate) async fn if_absent<T, F>(
    wire: &Wire,
    write: Write,
    key: &ObjectKey,
    store: impl Fn(bool) -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let condition = wire.abilities.condition(write);
    if condition == Condition::Kept {
        match store(true).await {
            Err(error) if *error.kind() == ErrorKind::Unsupported => {}
            outcome => return outcome,
        }
    }
    match head_object(wire, key).await {
        Ok(_) => return Err(exists(write.name(), key)),
        Err(error) if *error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if condition == Condition::Ignored {
        match store(true).await {
            Err(error) if *error.kind() == ErrorKind::Unsupported => {}
            outcome => return outcome,
        }
    }
    let outcome = store(false).await;
    // Without the condition it works: so that was what the store does not know.
    if condition != Condition::Refused && outcome.is_ok() {
        wire.abilities.learn_refused_condition(write);
    }
    outcome
}

/// The object was to be stored only if none is there, and one is.
pub(crate) fn exists(operation: &'static str, key: &ObjectKey) -> Error {
    Error::new(ErrorKind::Exists, operation).key(key).message("an object is there already")
}
