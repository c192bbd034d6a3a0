//! Parses a page of a listing. An entry that can't be shown is left out and counted; the page is still valid.
//!
//! The parser checks the names of all elements but the root, which some stores name differently.

use std::borrow::Cow;
use std::time::SystemTime;

use crate::object::{ETag, ObjectKey, ObjectMeta};
use crate::s3::answer::{etag, is_readable};
use crate::s3::date::xml_date;
use crate::s3::xml::{ENTRIES_MAX, Name, PageEnd, url_decode, walk_text};
use crate::s3::{ListObjects, ListPage, ListedObject};

/// Entries of a page that were left out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct LeftOut {
    pub(crate) count: u64,
    /// One of these entries, and what is wrong with it.
    pub(crate) example: Option<String>,
}

impl LeftOut {
    fn add(&mut self, why: String) {
        /// Most characters of the example in the log.
        const EXAMPLE_MAX: usize = 300;
        self.count += 1;
        self.example.get_or_insert_with(|| why.chars().take(EXAMPLE_MAX).collect());
    }
}

#[derive(Default)]
struct Entry {
    key: Option<String>,
    size: Option<u64>,
    etag: Option<ETag>,
    last_modified: Option<SystemTime>,
    archived: bool,
    restored: bool,
    class: Option<String>,
}

/// Whether a document with this root element can be a listing.
fn may_list(root: Name) -> bool {
    matches!(root, Name::Listing | Name::Other)
}

/// Parses a page of the listing `request`. The error says what is wrong.
pub(crate) fn list_page(document: &[u8], request: &ListObjects) -> Result<(ListPage, LeftOut), String> {
    use Name::{CommonPrefixes, Contents, RestoreStatus};
    let mut entries: Vec<Entry> = Vec::new();
    let mut prefixes: Vec<String> = Vec::new();
    let mut entry = Entry::default();
    let mut end = PageEnd::default();
    let mut is_listing = false;
    let text = String::from_utf8_lossy(document);
    walk_text(&text, |path, text| {
        let (root, path) = path.split_first().ok_or("the answer is not a listing")?;
        if !may_list(*root) {
            return Err("the answer is not a listing".into());
        }
        match path {
            [CommonPrefixes, Name::Prefix] => prefixes.push(text.to_owned()),
            [Contents] => entries.push(std::mem::take(&mut entry)),
            [Contents, Name::Key] => entry.key = Some(text.to_owned()),
            [Contents, Name::Size] => entry.size = text.trim().parse().ok(),
            [Contents, Name::ETag] => entry.etag = Some(etag(text)),
            [Contents, Name::LastModified] => entry.last_modified = xml_date(text),
            [Contents, Name::StorageClass] => {
                let class = text.trim();
                entry.archived = !is_readable(Some(class), None);
                entry.class = (!matches!(class, "" | "STANDARD")).then(|| class.to_owned());
            }
            [Contents, RestoreStatus, Name::IsRestoreInProgress] => entry.restored = text.trim() == "false",
            [name] => end.read(*name, text)?,
            [] if *root != Name::Listing && !is_listing => return Err("the answer is not a listing".into()),
            _ => {}
        }
        is_listing |= matches!(path, [Contents | CommonPrefixes | Name::IsTruncated | Name::PageSize]);
        if entries.len() + prefixes.len() > ENTRIES_MAX {
            return Err(format!("the page has more than {ENTRIES_MAX} entries"));
        }
        Ok(())
    })?;
    let is_lossy = matches!(text, Cow::Owned(_));
    let next_token = end.next()?;
    if next_token.is_some() && next_token == request.continuation_token {
        return Err(REPEATED.into());
    }
    if is_lossy && next_token.as_deref().is_some_and(is_guessed) {
        return Err("the continuation token is not UTF-8".into());
    }
    let (mut left_out, mut foreign) = (LeftOut::default(), None);
    let mut name = |text: String| -> Result<String, String> {
        if is_lossy && is_guessed(&text) {
            return Err(format!("{text:?} is not UTF-8"));
        }
        let name = end.key(text)?;
        if !name.starts_with(&request.prefix) {
            let why = format!("{name:?} does not begin with the prefix that was asked for");
            foreign.get_or_insert_with(|| why.clone());
            return Err(why);
        }
        Ok(name)
    };
    let mut objects = Vec::with_capacity(entries.len());
    for entry in entries {
        match object(entry, &mut name) {
            Ok(object) => objects.push(object),
            Err(why) => left_out.add(why),
        }
    }
    let mut common_prefixes = Vec::with_capacity(prefixes.len());
    for prefix in prefixes {
        match name(prefix) {
            Ok(prefix) => common_prefixes.push(prefix),
            Err(why) => left_out.add(why),
        }
    }
    let names = objects.iter().map(|object| object.key.as_str());
    let last = names.chain(common_prefixes.iter().map(String::as_str)).max();
    let next_token = next_token.map(|token| plain(token, last));
    if next_token.is_some() && next_token == request.continuation_token {
        return Err(REPEATED.into());
    }
    match foreign {
        // All entries lack the prefix: the store ignores it, and an empty directory would be wrong.
        Some(why) if objects.is_empty() && common_prefixes.is_empty() => Err(why),
        _ => {
            let has_left_out = left_out.count > 0;
            Ok((ListPage { objects, common_prefixes, next_token, has_left_out }, left_out))
        }
    }
}

const REPEATED: &str = "the store repeats a continuation token: the listing would never end";

/// Decodes a token that is the page's last name in the form of `encoding-type=url`; other tokens stay. A store with such tokens (S3Proxy)
/// compares names with the token without decoding it: `a%20b` sorts behind `a c`, which the next page would leave out.
fn plain(token: String, last: Option<&str>) -> String {
    match url_decode(token.clone()) {
        Ok(decoded) if Some(&*decoded) == last => decoded,
        _ => token,
    }
}

/// Whether the text may have contained bytes that are not UTF-8.
fn is_guessed(text: &str) -> bool {
    text.contains(char::REPLACEMENT_CHARACTER)
}

fn object(entry: Entry, name: impl FnOnce(String) -> Result<String, String>) -> Result<ListedObject, String> {
    let key = name(entry.key.ok_or("an entry has no key")?)?;
    let meta = ObjectMeta {
        size: entry.size.ok_or_else(|| format!("{key:?} has no size"))?,
        etag: entry.etag.unwrap_or_else(|| ETag::new("")),
        last_modified: entry.last_modified.unwrap_or(SystemTime::UNIX_EPOCH),
        readable: !entry.archived || entry.restored,
    };
    Ok(ListedObject { key: ObjectKey::new(key), meta, storage_class: entry.class })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn page(inner: &str) -> String {
        format!(
            "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{inner}</ListBucketResult>"
        )
    }

    fn contents(key: &str) -> String {
        format!(
            "<Contents><Key>{key}</Key><LastModified>2009-10-12T17:50:30.000Z</LastModified>\
             <ETag>&quot;e1&quot;</ETag><Size>5</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )
    }

    fn keys(document: &str, prefix: &str) -> Result<Vec<String>, String> {
        let request = ListObjects { prefix: prefix.into(), max_keys: 1000, ..Default::default() };
        list_page(document.as_bytes(), &request)
            .map(|(p, _)| p.objects.iter().map(|o| o.key.as_str().to_owned()).collect())
    }

    #[test]
    fn a_page_is_read_with_its_names_decoded() {
        let document = page(&format!(
            "<IsTruncated>true</IsTruncated><NextContinuationToken>t&amp;2</NextContinuationToken>{}{}\
             <CommonPrefixes><Prefix>d%2F</Prefix></CommonPrefixes><EncodingType>url</EncodingType>",
            contents("d+e%2Bf%C3%BC%01"),
            contents("&#100;"),
        ));
        let request = ListObjects { prefix: "d".into(), delimited: true, ..Default::default() };
        let page = list_page(document.as_bytes(), &request).unwrap().0;
        assert_eq!(page.objects[0].key.as_str(), "d e+fü\u{1}");
        assert_eq!(page.objects[1].key.as_str(), "d");
        assert_eq!(page.objects[0].meta.size, 5);
        assert_eq!(page.objects[0].meta.etag.as_str(), "\"e1\"");
        assert_eq!(page.common_prefixes, ["d/"]);
        assert_eq!(page.next_token.as_deref(), Some("t&2"));
    }

    #[test]
    fn names_stand_as_they_are_where_the_store_did_not_encode_them() {
        assert_eq!(keys(&page(&contents("a+b%41&lt;&#13;")), "").unwrap(), ["a+b%41<\r"]);
    }

    #[test]
    fn an_archived_object_is_listed_as_unreadable() {
        let document = page(&contents("k").replace("STANDARD", "DEEP_ARCHIVE"));
        let page = list_page(document.as_bytes(), &ListObjects::default()).unwrap().0;
        assert!(!page.objects[0].meta.readable);
    }

    #[test]
    fn hostile_documents_are_refused() {
        let deep = format!("{}{}", "<a>".repeat(1000), "</a>".repeat(1000));
        let many = contents("k").repeat(ENTRIES_MAX + 1);
        for (what, document) in [
            ("nothing", String::new()),
            ("text", "hello".into()),
            ("another document", "<Error><Code>x</Code></Error>".into()),
            ("cut off", page(&contents("k"))[..150].into()),
            ("deep", page(&deep)),
            ("many", page(&many)),
            ("bomb", format!("<!DOCTYPE x [<!ENTITY lol \"lol\">]>{}", page("&lol;"))),
            ("entity", page(&contents("&lol;"))),
            ("two roots", page("") + &page("")),
            ("no token", page("<IsTruncated>true</IsTruncated>")),
            ("no token", page("<IsTruncated>1</IsTruncated>")),
            (
                "no boolean",
                page("<IsTruncated>yes</IsTruncated><NextContinuationToken>t</NextContinuationToken>"),
            ),
        ] {
            assert!(keys(&document, "").is_err(), "{what}");
        }
        assert!(keys(&page(&contents("b")), "a").is_err(), "outside of the prefix");
    }

    #[test]
    fn a_repeated_token_ends_the_listing_with_an_error() {
        let document =
            page("<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>");
        let request = ListObjects { continuation_token: Some("t".into()), ..Default::default() };
        assert!(list_page(document.as_bytes(), &request).unwrap_err().contains("never end"));
    }

    #[test]
    fn a_token_that_is_the_last_name_in_its_spelling_is_sent_as_that_name() {
        let token = |names: &str, token: &str| {
            let end = format!(
                "<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>"
            );
            let page = page(&format!("<EncodingType>url</EncodingType>{names}{end}"));
            list_page(page.as_bytes(), &ListObjects::default()).unwrap().0.next_token.unwrap()
        };
        let names = format!("{}{}", contents("d/a%20b"), contents("d/a%20c"));
        assert_eq!(token(&names, "d/a%20c"), "d/a c", "S3Proxy");
        assert_eq!(token(&names, "d/a%20b"), "d/a%20b", "another name");
        assert_eq!(token(&names, "opaque%20of+its+own=="), "opaque%20of+its+own==");
        assert_eq!(token(&contents("a%2Bb"), "a+b"), "a+b", "as it is");
        let rolled = "<CommonPrefixes><Prefix>e%20f/</Prefix></CommonPrefixes>";
        assert_eq!(token(&format!("{names}{rolled}"), "e%20f/"), "e f/");
    }

    #[test]
    fn an_entry_that_can_not_be_shown_is_left_out_and_fails_no_page() {
        let url = "<EncodingType>url</EncodingType>";
        for (what, odd) in [
            ("not UTF-8 once decoded", contents("%FF")),
            ("not encoded", contents("%G1")),
            ("a sign in place of a digit", contents("%+1")),
            ("an escape cut off", contents("%4")),
            ("no size", contents("k").replace("<Size>5</Size>", "")),
            ("a negative size", contents("k").replace(">5<", ">-5<")),
            ("no key", contents("k").replace("<Key>k</Key>", "")),
            ("a prefix that is not UTF-8", "<CommonPrefixes><Prefix>%FF%2F</Prefix></CommonPrefixes>".into()),
        ] {
            let document = page(&(contents("a") + &odd + &contents("z") + url));
            let (page, left_out) = list_page(document.as_bytes(), &ListObjects::default()).unwrap();
            let keys: Vec<_> = page.objects.iter().map(|object| object.key.as_str()).collect();
            assert_eq!((keys, left_out.count), (vec!["a", "z"], 1), "{what}");
            assert!(page.has_left_out, "{what}");
            assert!(left_out.example.is_some_and(|example| example.len() < 400), "{what}");
        }
        let foreign = ListObjects { prefix: "a".into(), ..ListObjects::default() };
        let (found, left_out) =
            list_page(page(&(contents("a1") + &contents("b"))).as_bytes(), &foreign).unwrap();
        assert_eq!((found.objects.len(), left_out.count), (1, 1), "never another prefix's key");
        let raw = page(&(contents("a") + &contents("RAW"))).replace("RAW", "\u{1}\u{1}");
        let raw: Vec<u8> = raw.bytes().map(|byte| if byte == 1 { 0xff } else { byte }).collect();
        let (found, left_out) = list_page(&raw, &ListObjects::default()).unwrap();
        assert_eq!((found.objects.len(), left_out.count), (1, 1), "bytes that are not UTF-8");
        let token = b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>\xff</NextContinuationToken></ListBucketResult>";
        assert!(list_page(token, &ListObjects::default()).is_err(), "a token is never guessed at");
    }

    #[test]
    fn an_entry_without_etag_or_date_is_shown_with_what_there_is() {
        let etag = "<ETag>&quot;e1&quot;</ETag>";
        let date = "<LastModified>2009-10-12T17:50:30.000Z</LastModified>";
        for (what, entry) in [
            ("no ETag", contents("k").replace(etag, "")),
            ("an empty element", contents("k").replace(etag, "<ETag></ETag>")),
            ("two quotes", contents("k").replace("e1", "")),
        ] {
            let (page, left_out) = list_page(page(&entry).as_bytes(), &ListObjects::default()).unwrap();
            assert!(page.objects[0].meta.etag.is_none() && left_out.count == 0, "{what}");
        }
        let at = |entry: String| {
            let (page, _) = list_page(page(&entry).as_bytes(), &ListObjects::default()).unwrap();
            page.objects[0].meta.last_modified.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()
        };
        assert_eq!(at(contents("k").replace("30.000Z", "30.987Z")), 1_255_369_830_000, "whole seconds");
        assert_eq!(at(contents("k").replace("30.000Z", "30")), 1_255_369_830_000, "without a zone");
        assert_eq!(at(contents("k").replace(date, "")), 0);
        assert_eq!(at(contents("k").replace(date, "<LastModified>soon</LastModified>")), 0);
    }

    #[test]
    fn a_listing_is_known_by_its_children_whatever_its_root_is_called() {
        let renamed = |inner: &str| page(inner).replace("ListBucketResult", "ListBucketV2Result");
        assert_eq!(keys(&renamed(&contents("k")), "").unwrap(), ["k"]);
        assert_eq!(keys(&renamed("<IsTruncated>false</IsTruncated>"), "").unwrap(), [""; 0]);
        for other in [
            renamed("<Name>b</Name>"),
            "<html><body>It works!</body></html>".to_owned(),
            page(&contents("k")).replace("ListBucketResult", "Error"),
            page(&contents("k")).replace("ListBucketResult", "ListVersionsResult"),
        ] {
            assert!(keys(&other, "").is_err(), "{other}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_page_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = list_page(&bytes, &ListObjects::default());
        }

        #[test]
        fn any_name_survives_encoding(name in "\\PC{0,40}|[\\x00-\\x1f +%&<]{0,10}") {
            let mut encoded = String::new();
            crate::s3::url::encode_query(&mut encoded, &name);
            let document = page(&(contents(&encoded) + "<EncodingType>url</EncodingType>"));
            prop_assert_eq!(keys(&document, "").unwrap(), [name]);
        }
    }
}
