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

impl Replaces {
    /// Whether a header can say this condition: If-Match can't name a version whose ETag is missing or weak.
    pub(crate) fn fits_header(&self) -> bool {
        match self {
            Self::Anything | Self::Nothing => true,
            Self::Version(etag) => etag.if_match().is_some(),
        }
    }
}
