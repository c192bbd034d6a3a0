//! The operations, one per file: a request to the store, and its answer with every field checked.

pub(in crate::s3) mod bucket;
pub(in crate::s3) mod checksummed;
pub(in crate::s3) mod complete;
pub(in crate::s3) mod copy;
pub(in crate::s3) mod delete;
pub(in crate::s3) mod encryption;
pub(in crate::s3) mod first;
pub(in crate::s3) mod get;
pub(in crate::s3) mod head;
pub(in crate::s3) mod headers;
pub(in crate::s3) mod hedged;
pub(in crate::s3) mod if_absent;
pub(in crate::s3) mod list;
pub(in crate::s3) mod multipart;
pub(in crate::s3) mod page;
pub(in crate::s3) mod properties;
pub(in crate::s3) mod put;
pub(in crate::s3) mod tagging;
pub(in crate::s3) mod verify;
pub(in crate::s3) mod versions;
