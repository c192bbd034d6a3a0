//! The text of URLs: S3's encoding in paths and queries, and the parts that errors and the log may show. Pure.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// A URL without its password and its query, for errors and the log.
pub(crate) fn shown(url: &str) -> String {
    let (begin, query) = url.split_once('?').unwrap_or((url, ""));
    // The `?` may be part of a password, where it should be encoded: then only the scheme is sure not to belong to the password.
    let sure = if query.contains('@') { begin.split(':').next().unwrap_or_default() } else { begin };
    without_password(sure)
}

/// The word without user and password, which stand between `://` and `@`.
pub fn without_password(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once("://") else { return word.to_owned() };
    let end = rest.find('/').unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://{}", &rest[at + 1..]),
        None => word.to_owned(),
    }
}

/// The bytes that S3 encodes in a query value: everything but unreserved characters.
const IN_QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// The bytes that S3 encodes in a path.
const IN_PATH: &AsciiSet = &IN_QUERY.remove(b'/');

/// Appends `text` as S3 encodes paths: everything but unreserved characters and `/`.
pub(crate) fn encode_path(into: &mut String, text: &str) {
    into.extend(utf8_percent_encode(text, IN_PATH));
}

/// Appends `text` as S3 encodes query values: everything but unreserved characters.
pub(crate) fn encode_query(into: &mut String, text: &str) {
    into.extend(utf8_percent_encode(text, IN_QUERY));
}

/// Appends the parameters that have a value. The caller names them in alphabetical order, as signatures want them.
pub(crate) fn push_query<'a>(
    target: &mut String,
    parameters: impl IntoIterator<Item = (&'static str, Option<&'a str>)>,
) {
    let mut sign = '?';
    for (name, value) in parameters {
        let Some(value) = value else { continue };
        target.push(sign);
        sign = '&';
        target.push_str(name);
        target.push('=');
        encode_query(target, value);
    }
}

/// Appends pairs in the spelling of a query.
pub(crate) fn push_pairs(into: &mut String, pairs: &std::collections::BTreeMap<String, String>) {
    for (i, (name, value)) in pairs.iter().enumerate() {
        if i > 0 {
            into.push('&');
        }
        encode_query(into, name);
        into.push('=');
        encode_query(into, value);
    }
}
