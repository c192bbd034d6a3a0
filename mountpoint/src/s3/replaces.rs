//! The object that a request may replace at its key. Pure.

use crate::object::ETag;

/// The object that a request may replace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Replaces {
    /// Any object, or none.
    #[default]
    Anything,
    /// No object (If-None-Match: *); `Exists` if one is there.
    Nothing,
    /// The object of this version (If-Match); `Changed` if the key has another one, or none.
    Version(ETag),
}

/// An ETag in the spelling of conditions: listings of some stores leave the quotes out.
pub(crate) fn quoted(etag: &ETag) -> String {
    format!("\"{}\"", etag.as_str().trim_matches('"'))
}
