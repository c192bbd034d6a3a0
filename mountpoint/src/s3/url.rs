//! Encoding of paths and queries for S3, and URLs without secrets for errors and the log. Pure.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// A URL without password and query, for errors and the log.
pub(crate) fn shown(url: &str) -> String {
    let (begin, query) = url.split_once('?').unwrap_or((url, ""));
    // The `?` may be an unencoded character of a password. Then only the scheme certainly does not belong to the password.
    let sure = if query.contains('@') { begin.split(':').next().unwrap_or_default() } else { begin };
    without_password(sure)
}

/// A URL without user and password, which are between `://` and `@`. Other text is returned unchanged.
pub fn without_password(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once("://") else { return word.to_owned() };
    let end = rest.find('/').unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://{}", &rest[at + 1..]),
        None => word.to_owned(),
    }
}

/// The bytes that are encoded in a query value: all but the unreserved characters.
const IN_QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// The bytes that are encoded in a path: all but the unreserved characters and `/`.
const IN_PATH: &AsciiSet = &IN_QUERY.remove(b'/');

/// Appends `text`, encoded for a path.
pub(crate) fn encode_path(into: &mut String, text: &str) {
    into.extend(utf8_percent_encode(text, IN_PATH));
}

/// Appends `text`, encoded for a query value.
pub(crate) fn encode_query(into: &mut String, text: &str) {
    into.extend(utf8_percent_encode(text, IN_QUERY));
}

/// Appends the parameters that have a value. The caller gives them in alphabetical order, as signatures require.
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

/// Appends pairs in the form of a query.
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
