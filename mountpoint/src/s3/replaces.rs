//! The object that a request may replace at its key. Pure.

use crate::object::ETag;

/// The object that a request may replace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Replaces {
    /// Any object, or none.
    #[default]
    Anything,
    /// No object (If-None-Match: *); `Exists` if the key has one.
    Nothing,
    /// The object of this version (If-Match); `Changed` if the key has another version, or no object.
    Version(ETag),
}

/// An ETag with quotes, as conditions need it. Listings of some stores leave the quotes out.
pub(crate) fn quoted(etag: &ETag) -> String {
    format!("\"{}\"", etag.as_str().trim_matches('"'))
}
