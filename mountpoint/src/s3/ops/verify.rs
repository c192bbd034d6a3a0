//! Checks whether the object under a key is the one that was sent, after the answer to the request was lost.

use std::time::{Duration, Instant};

use crate::object::{ETag, ObjectKey, ObjectMeta};
use crate::s3::answer::stored_checksum;
use crate::s3::ops::encryption;
use crate::s3::ops::encryption::UNENCRYPTED;
use crate::s3::ops::head::head;
use crate::s3::retry::is_transient;
use crate::s3::wire::Wire;
use crate::s3::{Error, ErrorKind, Result, Stored};

/// Wait after the first check; doubled after each further check ...
const LOOK_FIRST: Duration = Duration::from_millis(250);
/// ... up to this wait.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The properties that identify the object that was sent.
#[derive(Debug)]
pub(crate) struct Ours {
    pub(crate) size: u64,
    /// Number of parts of a multipart object; `None` for other objects.
    pub(crate) parts: Option<usize>,
    /// The possible checksums, in the spellings of stores. A multipart object has the composite of its parts, or one of all its bytes.
    pub(crate) checksums: Vec<String>,
    /// The ETag of stores that use MD5, in hex: the MD5 of the bytes; for a multipart object, the MD5 of its parts' MD5s with their number.
    pub(crate) md5: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Yes,
    No,
    CantTell,
}

impl Ours {
    /// Compares the sent object with the answer to a HEAD. Pure. Sizes and part counts can only disprove: an earlier object may have the
    /// same. A checksum proves, or an ETag that equals the MD5; another ETag may not be an MD5 at all. A checksum of another kind proves
    /// nothing, because some stores choose the kind themselves.
    fn is(&self, meta: &ObjectMeta, checksum: Option<&str>) -> Verdict {
        let parts_of = |etag: &ETag| {
            let (_, n) = etag.as_str().trim_matches('"').rsplit_once('-')?;
            n.parse::<usize>().ok()
        };
        if meta.size != self.size {
            return Verdict::No;
        }
        // Some stores give multipart objects plain ETags: a different part count disproves, but a missing one does not.
        if let (Some(ours), Some(theirs)) = (self.parts, parts_of(&meta.etag))
            && ours != theirs
        {
            return Verdict::No;
        }
        let of_a_kind = |theirs| self.checksums.iter().filter(move |ours| is_of_a_kind(ours, theirs));
        match checksum {
            Some(theirs) if of_a_kind(theirs).any(|ours| without_count(ours) == without_count(theirs)) => {
                Verdict::Yes
            }
            Some(theirs) if of_a_kind(theirs).next().is_some() => Verdict::No,
            _ if self.md5.as_deref().is_some_and(|md5| meta.etag.matches(md5)) => Verdict::Yes,
            _ => Verdict::CantTell,
        }
    }
}

/// The checksum without `-N`, which some stores leave out behind a composite checksum.
fn without_count(checksum: &str) -> &str {
    checksum.split_once('-').map_or(checksum, |(value, _)| value)
}

/// Whether two checksums can be compared: their algorithms are the same, by the length, and both cover the parts or both all bytes, as far
/// as the store's checksum shows.
fn is_of_a_kind(ours: &str, theirs: &str) -> bool {
    let is_composite = |checksum: &str| checksum.contains('-');
    without_count(ours).len() == without_count(theirs).len() && (is_composite(ours) || !is_composite(theirs))
}

/// The result of checking the key.
#[derive(Debug)]
pub(crate) enum Found {
    /// The object that was sent.
    Ours(Stored),
    /// Another object, or none.
    NotOurs,
    /// The object that was sent, not encrypted as required.
    Unencrypted(String),
    /// An object of the right size; nothing shows which client stored it.
    CantTell,
    /// The check failed.
    Failed(Error),
}

/// Checks the key until the object is the sent one, or until the time `until`; at least once.
pub(crate) async fn look(wire: &Wire, key: &ObjectKey, ours: &Ours, until: Instant) -> Found {
    let mut wait = LOOK_FIRST;
    loop {
        let found = look_once(wire, key, ours).await;
        let left = until.saturating_duration_since(wire.clock.now());
        if found.is_final() || left.is_zero() {
            return found;
        }
        wire.clock.sleep(wait.min(left)).await;
        wait = (wait * 2).min(LOOK_EVERY);
    }
}

async fn look_once(wire: &Wire, key: &ObjectKey, ours: &Ours) -> Found {
    match head(wire, key).await {
        Ok((meta, headers)) => {
            let checksum = stored_checksum(&headers);
            match ours.is(&meta, checksum.as_deref()) {
                Verdict::Yes => match encryption::proven(&wire.config, &headers) {
                    Ok(()) => {
                        Found::Ours(Stored { etag: meta.etag, checksum, modified: Some(meta.last_modified) })
                    }
                    Err(why) => Found::Unencrypted(why),
                },
                Verdict::No => Found::NotOurs,
                Verdict::CantTell => Found::CantTell,
            }
        }
        Err(e) if *e.kind() == ErrorKind::NotFound => Found::NotOurs,
        Err(e) => Found::Failed(e),
    }
}

impl Found {
    /// Whether another check would have the same result.
    fn is_final(&self) -> bool {
        match self {
            Self::Ours(_) | Self::Unencrypted(_) | Self::CantTell => true,
            Self::NotOurs => false,
            Self::Failed(e) => !is_transient(e.kind()),
        }
    }

    /// The result of the upload: the sent object is a success, another object is `otherwise`, doubt is `Unknown`.
    pub(crate) fn or(
        self,
        operation: &'static str,
        key: &ObjectKey,
        otherwise: impl FnOnce() -> Error,
    ) -> Result<Stored> {
        let unknown = |why: &str| {
            Error::new(ErrorKind::Unknown, operation)
                .key(key)
                .message(format!("the answer was lost, and {why}; check the object before you rely on it"))
        };
        match self {
            Self::Ours(stored) => Ok(stored),
            Self::Unencrypted(why) => Err(unencrypted(operation, key, &why)),
            Self::NotOurs => Err(otherwise()),
            Self::CantTell => {
                Err(unknown("the object has the right size, but nothing shows whether this upload made it"))
            }
            Self::Failed(e) => Err(unknown("a look at the object failed").source(e)),
        }
    }
}

/// Checks that the stored object is encrypted as required, if the answer to its upload did not prove it.
pub(crate) async fn prove_encrypted(wire: &Wire, operation: &'static str, key: &ObjectKey) -> Result<()> {
    let why = match head(wire, key).await {
        Ok((_, headers)) => match encryption::proven(&wire.config, &headers) {
            Ok(()) => return Ok(()),
            Err(why) => why,
        },
        Err(e) => format!("the store did not say whether it encrypts, and a look at the object failed: {e}"),
    };
    Err(unencrypted(operation, key, &why))
}

fn unencrypted(operation: &'static str, key: &ObjectKey, why: &str) -> Error {
    Error::new(ErrorKind::NotEncrypted, operation).key(key).message(format!("{why}; {UNENCRYPTED}"))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn only_a_checksum_proves_that_an_object_is_ours() {
        let meta = |size, etag: &str| ObjectMeta {
            size,
            etag: ETag::new(etag),
            last_modified: SystemTime::UNIX_EPOCH,
            readable: true,
        };
        let ours =
            Ours { size: 10, parts: Some(2), checksums: vec!["abc===-2".into(), "all===".into()], md5: None };
        for (size, etag, checksum, verdict) in [
            (10, "\"x-2\"", Some("abc===-2"), Verdict::Yes),
            (10, "\"x\"", Some("abc==="), Verdict::Yes),
            (10, "\"x-2\"", Some("all==="), Verdict::Yes),
            (10, "\"x-2\"", Some("def===-2"), Verdict::No),
            (10, "\"x-2\"", Some("def==="), Verdict::No),
            (10, "\"x-2\"", Some("64 bits or more"), Verdict::CantTell),
            (10, "\"x-3\"", Some("abc===-2"), Verdict::No),
            (11, "\"x-2\"", Some("abc===-2"), Verdict::No),
            (10, "\"x-2\"", None, Verdict::CantTell),
        ] {
            assert_eq!(ours.is(&meta(size, etag), checksum), verdict, "{size} {etag} {checksum:?}");
        }
        // A copied part may have no checksum: the ETag of all parts proves the object where it is equal, and disproves nothing.
        let joined = Ours { checksums: Vec::new(), md5: Some("0cc1-2".into()), ..ours };
        for (etag, verdict) in [("\"0cc1-2\"", Verdict::Yes), ("\"e2a4-2\"", Verdict::CantTell)] {
            assert_eq!(joined.is(&meta(10, etag), None), verdict, "{etag}");
        }
        let ours = Ours { parts: None, checksums: vec!["abc===".into()], md5: Some("0cc1".into()), ..joined };
        for (etag, checksum, verdict) in [
            ("\"0cc1\"", None, Verdict::Yes),
            ("\"e2a4\"", None, Verdict::CantTell),
            ("\"0cc1\"", Some("def==="), Verdict::No),
            ("\"e2a4\"", Some("abc==="), Verdict::Yes),
            // A checksum of another algorithm, and of parts that only the store knows.
            ("\"0cc1\"", Some("64 bits or more"), Verdict::Yes),
            ("\"e2a4\"", Some("64 bits or more"), Verdict::CantTell),
            ("\"0cc1\"", Some("def===-3"), Verdict::Yes),
        ] {
            assert_eq!(ours.is(&meta(10, etag), checksum), verdict, "{etag} {checksum:?}");
        }
    }
}
