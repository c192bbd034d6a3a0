//! Findings about odd answers, and the effect of each on a mount. Pure. Enters: entries of a listing, the answer about an object. Leaves:
//! one note for each oddity.

use mountpoint::object::{ObjectMeta, Second};
use mountpoint::s3::{ListedObject, ProbeAnswer};

use super::report::{Finding, Verdict};

/// Number of headers of an answer beyond which some clients fail.
const HEADERS_MANY: usize = 100;

fn note(probe: &'static str, found: impl Into<String>, means: &str) -> Finding {
    Finding::new(probe, Verdict::Note, found).meaning(means)
}

/// Notes on odd entries of a page.
pub(super) fn entries(listed: &[ListedObject]) -> Vec<Finding> {
    let named = || listed.iter().filter(|it| !it.meta.etag.is_none() && it.meta.size > 0);
    let shares = |it: &&ListedObject| {
        named().any(|other| other.meta.size != it.meta.size && other.meta.etag.matches(it.meta.etag.as_str()))
    };
    match named().find(shares) {
        Some(one) => vec![note(
            "listing",
            format!("objects of different sizes have one ETag, {:?}", one.meta.etag.as_str()),
            "versions differ only by size and whole second: a file replaced by one of equal size within a second is not noticed",
        )],
        None => Vec::new(),
    }
}

/// Notes on odd pages. `root`: the name of the root element; `has_left_out`: whether the page has entries that can't be shown.
pub(super) fn page(root: Option<&str>, has_left_out: bool) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(root) = root.filter(|root| *root != "ListBucketResult") {
        let words = format!("the root element of a listing is {root:?}, not \"ListBucketResult\"");
        found.push(note("listing", words, "it is read all the same"));
    }
    if has_left_out {
        found.push(note(
            "listing",
            "a listing has entries without a key or a size that can be read",
            "they are left out, counted (inode.names_hidden) and logged once; a file is found by its name all the same",
        ));
    }
    found
}

/// Notes on facts that the answer about an object lacks, or that differ from the listing.
pub(super) fn answer(listed: &ObjectMeta, reply: &ProbeAnswer) -> Vec<Finding> {
    let (own, says_length) = reply.object();
    let has_date = Second::of(own.last_modified).is_some();
    let headers = reply.headers.len();
    [
        (
            own.etag.is_none(),
            "an object has no ETag",
            "versions differ only by size and whole second: a file replaced by one of equal size within a second is not noticed",
        ),
        (
            own.etag.as_str().starts_with("W/"),
            "an object has a weak ETag",
            "reads go without If-Match, and compare the ETag of each answer",
        ),
        (
            !says_length,
            "HeadObject does not say how long an object is",
            "each look at a file takes a request more",
        ),
        (
            !has_date,
            "HeadObject has no date that can be read",
            "files show the date of a listing, and each look takes a request more",
        ),
        (
            has_date && reply.has_plain_date() == Some(false),
            "HeadObject spells its date otherwise than HTTP does",
            "it is read all the same, to the second",
        ),
        (
            headers > HEADERS_MANY,
            "an object has more than 100 headers",
            "up to 1,024 are read, within 64 KiB",
        ),
        (
            listed.etag.is_none(),
            "a listing has no ETag for an object",
            "each open asks for the object once more",
        ),
        (
            Second::of(listed.last_modified).is_none(),
            "a listing has no date for an object",
            "files show 1970 until the object is asked",
        ),
        (
            says_length && own.size != listed.size,
            "the size of an object in a listing differs from its own",
            "its own counts from the first open on; until then stat shows that of the listing",
        ),
    ]
    .into_iter()
    .filter(|(is, ..)| *is)
    .map(|(_, found, means)| note("metadata", found, means))
    .collect()
}
