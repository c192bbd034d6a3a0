//! Whether the object that is there is the one we sent, when the answer to sending it was lost.

use super::head::head;
use super::put::stored_checksum;
use super::wire::Wire;
use super::{Error, ErrorKind, Result, Stored};
use crate::object::{ETag, ObjectKey, ObjectMeta};

/// What our object looks like.
#[derive(Debug)]
pub(super) struct Ours {
    pub(super) size: u64,
    /// Of a multipart object.
    pub(super) parts: Option<usize>,
    /// As the store would spell it.
    pub(super) checksum: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Yes,
    No,
    CantTell,
}

impl Ours {
    /// Pure: compares with what a HEAD says. Sizes and part counts only ever disprove: the object that was there
    /// before may be as large and of as many parts. Only a checksum proves.
    fn is(&self, meta: &ObjectMeta, checksum: Option<&str>) -> Verdict {
        let parts_of = |etag: &ETag| {
            let (_, n) = etag.as_str().trim_matches('"').rsplit_once('-')?;
            n.parse::<usize>().ok()
        };
        if meta.size != self.size {
            return Verdict::No;
        }
        // Some stores give multipart objects plain ETags; a different count disproves, none does not.
        if let (Some(ours), Some(theirs)) = (self.parts, parts_of(&meta.etag))
            && ours != theirs
        {
            return Verdict::No;
        }
        match (&self.checksum, checksum) {
            (Some(ours), Some(theirs)) if without_count(ours) == without_count(theirs) => Verdict::Yes,
            (Some(_), Some(_)) => Verdict::No,
            _ => Verdict::CantTell,
        }
    }
}

/// Some stores leave out the `-N` behind a composite checksum.
fn without_count(checksum: &str) -> &str {
    checksum.split_once('-').map_or(checksum, |(value, _)| value)
}

/// Looks at the key: ours is a success, another one is `otherwise`, doubt is `Unknown`.
pub(super) async fn look(
    wire: &Wire,
    operation: &'static str,
    key: &ObjectKey,
    ours: &Ours,
    otherwise: Error,
) -> Result<Stored> {
    let unknown = |why: &str| {
        Error::new(ErrorKind::Unknown, operation)
            .key(key)
            .message(format!("the answer was lost, and {why}; look at the object before relying on it"))
    };
    match head(wire, key, true).await {
        Ok((meta, headers)) => {
            let checksum = stored_checksum(&headers);
            match ours.is(&meta, checksum.as_deref()) {
                Verdict::Yes => Ok(Stored { etag: meta.etag, checksum }),
                Verdict::No => Err(otherwise),
                Verdict::CantTell => {
                    Err(unknown("the object has the right size, but nothing tells whether it is ours"))
                }
            }
        }
        Err(e) if *e.kind() == ErrorKind::NotFound => Err(otherwise),
        Err(e) => Err(unknown("a look at the object failed").source(e)),
    }
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
        let ours = Ours { size: 10, parts: Some(2), checksum: Some("abc=-2".into()) };
        for (size, etag, checksum, verdict) in [
            (10, "\"x-2\"", Some("abc=-2"), Verdict::Yes),
            (10, "\"x\"", Some("abc="), Verdict::Yes),
            (10, "\"x-2\"", Some("def=-2"), Verdict::No),
            (10, "\"x-3\"", Some("abc=-2"), Verdict::No),
            (11, "\"x-2\"", Some("abc=-2"), Verdict::No),
            (10, "\"x-2\"", None, Verdict::CantTell),
        ] {
            assert_eq!(ours.is(&meta(size, etag), checksum), verdict, "{size} {etag} {checksum:?}");
        }
    }
}
