//! Guarded writes: change the object under a key only if it is the version that the caller knows. Stores honour, ignore or refuse
//! conditions; for the last two, a HEAD checks the object first.

use std::future::Future;

use crate::object::ObjectKey;
use crate::s3::abilities::Write;
use crate::s3::kind::Condition;
use crate::s3::oddities::Oddity;
use crate::s3::ops::head::head_object;
use crate::s3::wire::Wire;
use crate::s3::{Error, ErrorKind, Replaces, Result};

/// Stores an object under `key` with `store`, whose argument says whether to send the condition in `replaces`.
///
/// If a store answers 501 to the condition, a HEAD replaces the condition from then on. If a store ignores conditions, a HEAD comes first,
/// and the condition is sent all the same, because a newer release may honour it. A condition that no header can say is a HEAD alone.
/// Another client may store an object between the HEAD and the request, which then replaces it: such a store offers no protection.
pub(crate) async fn guarded<T, F>(
    wire: &Wire,
    write: Write,
    key: &ObjectKey,
    replaces: &Replaces,
    store: impl Fn(bool) -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    if *replaces == Replaces::Anything {
        return store(false).await;
    }
    let condition = match replaces.fits_header() {
        true => wire.abilities.condition(write, replaces),
        false => Condition::Refused,
    };
    if condition == Condition::Kept {
        match store(true).await {
            Err(error) if *error.kind() == ErrorKind::Unsupported => {}
            Err(error) if is_plain_refusal(&error, replaces) => {
                return where_nothing_is(wire, key, error, store).await;
            }
            outcome => return outcome,
        }
    }
    check(wire, write, key, replaces).await?;
    if condition == Condition::Ignored {
        match store(true).await {
            Err(error) if *error.kind() == ErrorKind::Unsupported => {}
            outcome => return outcome,
        }
    }
    let outcome = store(false).await;
    // The request succeeded without the condition: the store does not know it.
    if condition != Condition::Refused && outcome.is_ok() {
        wire.abilities.learn_refused_condition(write);
    }
    outcome
}

/// Whether the store refused to make a new object, and no earlier attempt may have made it.
fn is_plain_refusal(error: &Error, replaces: &Replaces) -> bool {
    let is_refused = *error.kind() == ErrorKind::Exists && error.http_status() == Some(412);
    *replaces == Replaces::Nothing && is_refused
}

/// Continues after a refusal, if a HEAD finds no object. Either the object was deleted meanwhile, and the condition now holds; or the store
/// counts a delete marker as an object (versitygw), and stores only without the condition.
async fn where_nothing_is<T, F>(
    wire: &Wire,
    key: &ObjectKey,
    refusal: Error,
    store: impl Fn(bool) -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    if !is_absent(wire, key).await {
        return Err(refusal);
    }
    match store(true).await {
        Err(again) if is_plain_refusal(&again, &Replaces::Nothing) && is_absent(wire, key).await => {
            wire.abilities.oddities.saw(Oddity::Markers, Some(key), "");
            store(false).await
        }
        outcome => outcome,
    }
}

/// Whether a HEAD finds no object.
async fn is_absent(wire: &Wire, key: &ObjectKey) -> bool {
    head_object(wire, key).await.is_err_and(|error| *error.kind() == ErrorKind::NotFound)
}

/// Checks with a HEAD that the object under the key is the one to replace.
async fn check(wire: &Wire, write: Write, key: &ObjectKey, replaces: &Replaces) -> Result<()> {
    let there = match head_object(wire, key).await {
        Ok(meta) => Some(meta.etag),
        Err(error) if *error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let holds = match (replaces, &there) {
        (Replaces::Anything, _) | (Replaces::Nothing, None) => true,
        (Replaces::Version(known), Some(there)) => known.matches(there.as_str()),
        (Replaces::Nothing, Some(_)) | (Replaces::Version(_), None) => false,
    };
    if holds { Ok(()) } else { Err(refused(write.name(), key, replaces)) }
}

/// The error for a key whose object is not the one to replace. `Exists` if no object was expected, and for a copy, whose `Changed` is about
/// its source; otherwise `Changed`.
pub(crate) fn refused(operation: &'static str, key: &ObjectKey, replaces: &Replaces) -> Error {
    let of = |kind, why| Error::new(kind, operation).key(key).message(why);
    match replaces {
        Replaces::Version(_) if operation == Write::Copy.name() => {
            of(ErrorKind::Exists, "the object that was to be replaced is another version by now, or gone")
        }
        Replaces::Version(_) => {
            of(ErrorKind::Changed, "the object that was to be replaced is another version by now, or gone")
        }
        Replaces::Anything | Replaces::Nothing => of(ErrorKind::Exists, "an object is there already"),
    }
}
