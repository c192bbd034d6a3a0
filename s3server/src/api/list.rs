//! ListObjectsV2 and ListObjects.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Response, S3Result};
use std::sync::Arc;

use super::object::etag;
use super::{Answer, Folder};
use crate::store::Entry;
use crate::store::list::{From, Item, Page, Query};

/// Most entries of one page, as in S3, and the default if the request names no number.
const PAGE_MAX: usize = 1000;
/// Characters that S3 does not encode with `encoding-type=url`.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'/').remove(b'*');

impl Folder {
    pub(super) async fn list_objects_v2_(&self, input: ListObjectsV2Input) -> Answer<ListObjectsV2Output> {
        let names = Names::new(input.encoding_type)?;
        let prefix = input.prefix.unwrap_or_default();
        self.policy.allows(&prefix)?;
        let from = match (&input.continuation_token, &input.start_after) {
            (Some(token), _) => {
                decode(token).ok_or_else(|| argument("The continuation token is not from this server."))?
            }
            (None, Some(key)) if !key.is_empty() => From::After(key.clone()),
            _ => From::Start,
        };
        let query = Query {
            prefix: prefix.clone(),
            delimiter: input.delimiter.clone().unwrap_or_default(),
            from,
            max: page_size(input.max_keys)?,
        };
        let max_keys = query.max;
        let bucket = input.bucket.clone();
        let page = self.blocking(move |store| store.bucket(&bucket)?.list(&query)).await?;
        let token = page.next.as_ref().map(encode);
        let count = page.items.len();
        let (contents, common_prefixes) = names.split(page);
        Ok(S3Response::new(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(names.write(&prefix)),
            max_keys: Some(max_keys as i32),
            key_count: Some(count as i32),
            continuation_token: input.continuation_token,
            is_truncated: Some(token.is_some()),
            next_continuation_token: token,
            contents: Some(contents),
            common_prefixes: Some(common_prefixes),
            delimiter: input.delimiter.filter(|d| !d.is_empty()).map(|d| names.write(&d)),
            encoding_type: names.encoding_type(),
            start_after: input.start_after.map(|key| names.write(&key)),
            ..ListObjectsV2Output::default()
        }))
    }

    pub(super) async fn list_objects_(&self, input: ListObjectsInput) -> Answer<ListObjectsOutput> {
        let names = Names::new(input.encoding_type)?;
        let prefix = input.prefix.unwrap_or_default();
        self.policy.allows(&prefix)?;
        let delimiter = input.delimiter.clone().unwrap_or_default();
        let marker = input.marker.unwrap_or_default();
        let query = Query {
            from: from_marker(&marker, &prefix, &delimiter),
            prefix: prefix.clone(),
            delimiter,
            max: page_size(input.max_keys)?,
        };
        let max_keys = query.max;
        let bucket = input.bucket.clone();
        let page = self.blocking(move |store| store.bucket(&bucket)?.list(&query)).await?;
        // S3 returns the next marker only with a delimiter; without one clients use the last key. It is allowed to return it always.
        let next = page.next.as_ref().map(|from| match from {
            From::Start => String::new(),
            From::After(key) | From::Behind(key) => names.write(key),
        });
        let (contents, common_prefixes) = names.split(page);
        Ok(S3Response::new(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: Some(names.write(&prefix)),
            marker: Some(names.write(&marker)),
            max_keys: Some(max_keys as i32),
            is_truncated: Some(next.is_some()),
            next_marker: next,
            contents: Some(contents),
            common_prefixes: Some(common_prefixes),
            delimiter: input.delimiter.filter(|d| !d.is_empty()).map(|d| names.write(&d)),
            encoding_type: names.encoding_type(),
            ..ListObjectsOutput::default()
        }))
    }
}

/// The beginning of a page after a marker. A marker that is a common prefix of an earlier page is after all keys with that prefix.
fn from_marker(marker: &str, prefix: &str, delimiter: &str) -> From {
    let rolled = !delimiter.is_empty()
        && marker
            .strip_prefix(prefix)
            .and_then(|rest| rest.find(delimiter))
            .is_some_and(|at| prefix.len() + at + delimiter.len() == marker.len());
    match marker {
        "" => From::Start,
        _ if rolled => From::Behind(marker.to_owned()),
        _ => From::After(marker.to_owned()),
    }
}

pub(super) fn page_size(max_keys: Option<i32>) -> S3Result<usize> {
    match max_keys {
        None => Ok(PAGE_MAX),
        Some(max) => match usize::try_from(max) {
            Ok(max) => Ok(max.min(PAGE_MAX)),
            Err(_) => Err(argument("max-keys is negative.")),
        },
    }
}

fn argument(message: &'static str) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidArgument, message)
}

/// The encoding of keys in an answer.
pub(super) struct Names {
    encoded: bool,
}

impl Names {
    pub(super) fn new(encoding_type: Option<EncodingType>) -> S3Result<Self> {
        match encoding_type.as_ref().map(EncodingType::as_str) {
            None => Ok(Self { encoded: false }),
            Some("url") => Ok(Self { encoded: true }),
            Some(_) => Err(argument("The encoding type is not known.")),
        }
    }

    pub(super) fn write(&self, name: &str) -> String {
        if self.encoded {
            // S3 writes a space as `+`, and a plus sign as `%2B`.
            utf8_percent_encode(name, PLAIN).to_string().replace("%20", "+")
        } else {
            name.to_owned()
        }
    }

    pub(super) fn encoding_type(&self) -> Option<EncodingType> {
        self.encoded.then(|| EncodingType::from_static(EncodingType::URL))
    }

    fn split(&self, page: Page<Arc<Entry>>) -> (Vec<Object>, Vec<CommonPrefix>) {
        let (mut contents, mut prefixes) = (Vec::new(), Vec::new());
        for item in page.items {
            match item {
                Item::Key(key, entry) => contents.push(self.object(&key, &entry)),
                Item::Prefix(prefix) => prefixes.push(CommonPrefix { prefix: Some(self.write(&prefix)) }),
            }
        }
        (contents, prefixes)
    }

    fn object(&self, key: &str, entry: &Entry) -> Object {
        let class = entry.meta.storage_class.clone().unwrap_or_else(|| "STANDARD".to_owned());
        let sum = entry.meta.sum.as_ref();
        Object {
            key: Some(self.write(key)),
            size: Some(entry.size() as i64),
            e_tag: Some(etag(&entry.meta.etag)),
            last_modified: Some(entry.modified().into()),
            storage_class: Some(class.into()),
            checksum_algorithm: sum.map(|sum| vec![sum.algorithm.name().to_owned().into()]),
            ..Object::default()
        }
    }
}

/// A continuation token: the beginning of the next page, and no state that can expire.
fn encode(from: &From) -> String {
    let (kind, key) = match from {
        From::Start => ('s', ""),
        From::After(key) => ('k', key.as_str()),
        From::Behind(prefix) => ('p', prefix.as_str()),
    };
    URL_SAFE_NO_PAD.encode(format!("{kind}{key}"))
}

fn decode(token: &str) -> Option<From> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
    match text.split_at_checked(1)? {
        ("k", key) => Some(From::After(key.to_owned())),
        ("p", prefix) if !prefix.is_empty() => Some(From::Behind(prefix.to_owned())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_where_the_page_begins() {
        for from in [From::After("a\0b".into()), From::Behind("é/".into()), From::After(String::new())] {
            assert_eq!(decode(&encode(&from)), Some(from));
        }
        for token in ["", "!", "eA", &URL_SAFE_NO_PAD.encode("é")] {
            assert_eq!(decode(token), None, "{token}");
        }
    }

    #[test]
    fn a_marker_that_is_a_common_prefix_skips_it_and_a_key_does_not() {
        assert_eq!(from_marker("a/", "", "/"), From::Behind("a/".into()));
        assert_eq!(from_marker("a/b", "", "/"), From::After("a/b".into()));
        assert_eq!(from_marker("p/a/", "p/", "/"), From::Behind("p/a/".into()));
        assert_eq!(from_marker("p/", "p/", "/"), From::After("p/".into()));
        assert_eq!(from_marker("a/", "", ""), From::After("a/".into()));
    }

    #[test]
    fn encoded_names_are_plain_ascii() {
        let names = Names { encoded: true };
        assert_eq!(names.write("a b/é\0\n+%"), "a+b/%C3%A9%00%0A%2B%25");
    }
}
