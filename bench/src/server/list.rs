//! Listing: the keys and common prefixes of one page, and the page as XML.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Bound;

use percent_encoding::utf8_percent_encode;

use super::http::KEY_ESCAPES;
use super::store::{LAST_MODIFIED_ISO, Object};

/// Most keys of one page, as in S3.
pub(crate) const MAX_KEYS: usize = 1000;

/// The arguments of a listing.
#[derive(Debug, Default)]
pub(crate) struct ListArgs {
    pub(crate) prefix: String,
    pub(crate) delimiter: Option<String>,
    pub(crate) max_keys: usize,
    /// The name after which the page begins; empty for the first page.
    pub(crate) after: String,
    /// Whether `after` is from an earlier page. A common prefix in it was then listed already, with all its keys.
    pub(crate) resumed: bool,
}

/// One page of a listing.
#[derive(Debug)]
pub(crate) struct Page<'a> {
    pub(crate) contents: Vec<(&'a str, &'a Object)>,
    pub(crate) prefixes: Vec<String>,
    /// The last name of the page, if more follow.
    pub(crate) next: Option<String>,
}

/// The page of `objects` for these arguments.
pub(crate) fn page<'a>(objects: &'a BTreeMap<String, Object>, args: &ListArgs) -> Page<'a> {
    let mut page = Page { contents: Vec::new(), prefixes: Vec::new(), next: None };
    let mut last = String::new();
    let mut from = start(args);
    while let Some(bound) = from.take() {
        for (key, object) in objects.range::<str, _>((as_str(&bound), Bound::Unbounded)) {
            if !key.starts_with(&args.prefix) {
                break;
            }
            if page.contents.len() + page.prefixes.len() >= args.max_keys {
                page.next = (args.max_keys > 0).then_some(last);
                return page;
            }
            if let Some(common) = common_prefix(key, args) {
                page.prefixes.push(common.to_owned());
                common.clone_into(&mut last);
                // The loop jumps over the whole folder: a listing costs as much as it shows, not as it hides.
                from = past(common).map(Bound::Included);
                break;
            }
            page.contents.push((key, object));
            last.clone_from(key);
        }
    }
    page
}

/// The first name of a page; `None` if no name can follow.
fn start(args: &ListArgs) -> Option<Bound<String>> {
    if args.after.is_empty() || args.after < args.prefix {
        return Some(Bound::Included(args.prefix.clone()));
    }
    match common_prefix(&args.after, args) {
        Some(common) if args.resumed => past(common).map(Bound::Included),
        _ => Some(Bound::Excluded(args.after.clone())),
    }
}

fn common_prefix<'k>(key: &'k str, args: &ListArgs) -> Option<&'k str> {
    let delimiter = args.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty())?;
    let rest = key.strip_prefix(args.prefix.as_str())?;
    Some(&key[..args.prefix.len() + rest.find(delimiter)? + delimiter.len()])
}

/// The first string after all strings that begin with `prefix`; `None` if there is none.
fn past(prefix: &str) -> Option<String> {
    let mut next = prefix.to_owned();
    while let Some(last) = next.pop() {
        if let Some(bumped) =
            (u32::from(last) + 1..=0xE000).chain(u32::from(last) + 1..).find_map(char::from_u32)
        {
            next.push(bumped);
            return Some(next);
        }
    }
    None
}

fn as_str(bound: &Bound<String>) -> Bound<&str> {
    match bound {
        Bound::Included(text) => Bound::Included(text),
        Bound::Excluded(text) => Bound::Excluded(text),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// The version of ListObjects that the client uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    V1,
    V2,
}

/// The page as S3's XML.
pub(crate) fn xml(
    bucket: &str,
    args: &ListArgs,
    page: &Page<'_>,
    version: Version,
    url_encoded: bool,
) -> String {
    let name = |key: &str| {
        if url_encoded { utf8_percent_encode(key, KEY_ESCAPES).to_string() } else { escape(key) }
    };
    let mut out = String::with_capacity(512 + page.contents.len() * 224 + page.prefixes.len() * 80);
    out.push_str(r#"<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">"#);
    let count = page.contents.len() + page.prefixes.len();
    let _ = write!(
        out,
        "<Name>{bucket}</Name><Prefix>{}</Prefix><MaxKeys>{}</MaxKeys><IsTruncated>{}</IsTruncated>",
        name(&args.prefix),
        args.max_keys,
        page.next.is_some(),
    );
    if let Some(delimiter) = &args.delimiter {
        let _ = write!(out, "<Delimiter>{}</Delimiter>", name(delimiter));
    }
    if url_encoded {
        out.push_str("<EncodingType>url</EncodingType>");
    }
    match version {
        Version::V1 => {
            let _ = write!(out, "<Marker>{}</Marker>", name(&args.after));
            if let Some(next) = &page.next {
                let _ = write!(out, "<NextMarker>{}</NextMarker>", name(next));
            }
        }
        Version::V2 => {
            let _ = write!(out, "<KeyCount>{count}</KeyCount>");
            if let Some(next) = &page.next {
                // A token is opaque. It is escaped with every encoding type, so any key fits.
                let token = utf8_percent_encode(next, KEY_ESCAPES);
                let _ = write!(out, "<NextContinuationToken>{token}</NextContinuationToken>");
            }
        }
    }
    for (key, object) in &page.contents {
        let _ = write!(
            out,
            "<Contents><Key>{}</Key><LastModified>{LAST_MODIFIED_ISO}</LastModified><ETag>&quot;{}&quot;</ETag>\
             <Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>",
            name(key),
            object.etag(),
            object.size,
        );
    }
    for prefix in &page.prefixes {
        let _ = write!(out, "<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", name(prefix));
    }
    out.push_str("</ListBucketResult>");
    out
}

/// Text escaped for XML.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "&#x{:x};", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(keys: &[&str]) -> BTreeMap<String, Object> {
        keys.iter().map(|key| ((*key).to_owned(), Object::new(key, 1, 0))).collect()
    }

    /// All pages, with two names each: plain keys, and prefixes with `>` before them.
    fn walk(objects: &BTreeMap<String, Object>, prefix: &str, delimiter: Option<&str>) -> Vec<String> {
        let mut args = ListArgs {
            prefix: prefix.to_owned(),
            delimiter: delimiter.map(str::to_owned),
            max_keys: 2,
            ..ListArgs::default()
        };
        let mut seen = Vec::new();
        loop {
            let page = page(objects, &args);
            let mut names: Vec<_> =
                page.contents.iter().map(|(key, _)| ((*key).to_owned(), (*key).to_owned())).collect();
            names.extend(page.prefixes.iter().map(|prefix| (prefix.clone(), format!(">{prefix}"))));
            names.sort();
            seen.extend(names.into_iter().map(|(_, shown)| shown));
            let Some(next) = page.next else { return seen };
            args.after = next;
            args.resumed = true;
        }
    }

    #[test]
    fn pages_with_a_delimiter_give_each_folder_once() {
        let objects = objects(&["a", "b/", "b/1", "b/2", "b0", "c/x/1", "c/x/2", "d"]);
        assert_eq!(walk(&objects, "", Some("/")), ["a", ">b/", "b0", ">c/", "d"]);
        assert_eq!(walk(&objects, "b/", Some("/")), ["b/", "b/1", "b/2"]);
        assert_eq!(walk(&objects, "c/", Some("/")), [">c/x/"]);
        assert_eq!(walk(&objects, "", None).len(), 8);
        assert_eq!(walk(&objects, "e", None), [""; 0]);
    }

    #[test]
    fn start_after_inside_a_folder_still_shows_the_rest_of_it() {
        let objects = objects(&["b/1", "b/2", "c"]);
        let args = ListArgs {
            delimiter: Some("/".to_owned()),
            max_keys: 10,
            after: "b/1".to_owned(),
            ..ListArgs::default()
        };
        let page = page(&objects, &args);
        assert_eq!((page.prefixes.as_slice(), page.contents.len()), (["b/".to_owned()].as_slice(), 1));
    }
}
