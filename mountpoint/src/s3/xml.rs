//! The XML documents of S3: listings and errors here, those of uploads in `uploads.rs`, those
//! about a bucket as a whole in `buckets.rs`. The parser does not trust them.
//!
//! Limits: depth, entries, and the caller's limit on bytes. No document type, no entity but XML's own five; text that is not
//! UTF-8 is refused, never guessed at.

mod buckets;
mod uploads;

use std::time::SystemTime;

use quick_xml::Reader;
use quick_xml::events::Event;

use crate::object::{ETag, ObjectKey, ObjectMeta};
use crate::s3::answer::{is_readable, xml_date};
use crate::s3::{ListObjects, ListPage, ListedObject};

pub use buckets::{Tags, Version, VersionMarkers, VersionPage};
pub(super) use buckets::{location_document, tags, tags_document, version_page};
pub(super) use uploads::{
    Copied, UploadMarkers, UploadPage, complete_document, completed, copied, upload_id, upload_page,
};

/// Bytes of a document that are read at all.
pub(crate) const BODY_MAX: usize = 16 << 20;
const DEPTH_MAX: usize = 16;
/// More than any store puts on a page (1000), for those that ignore `max-keys`.
const ENTRIES_MAX: usize = 10_000;

/// Names that mean something to us; all others are one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Name {
    Listing,
    IsTruncated,
    NextToken,
    EncodingType,
    CommonPrefixes,
    Prefix,
    Contents,
    Key,
    Size,
    ETag,
    LastModified,
    StorageClass,
    RestoreStatus,
    IsRestoreInProgress,
    Initiated,
    InitiateResult,
    CompleteResult,
    CopyResult,
    Uploads,
    Upload,
    UploadId,
    NextKeyMarker,
    NextUploadIdMarker,
    Versions,
    Version,
    DeleteMarker,
    VersionId,
    NextVersionIdMarker,
    Tagging,
    TagSet,
    Tag,
    Value,
    ChecksumCrc32c,
    ChecksumCrc64Nvme,
    Error,
    ErrorResponse,
    Code,
    Message,
    Region,
    RequestId,
    Other,
}

impl Name {
    fn of(name: &str) -> Self {
        match name {
            "ListBucketResult" => Self::Listing,
            "IsTruncated" => Self::IsTruncated,
            "NextContinuationToken" => Self::NextToken,
            "EncodingType" => Self::EncodingType,
            "CommonPrefixes" => Self::CommonPrefixes,
            "Prefix" => Self::Prefix,
            "Contents" => Self::Contents,
            "Key" => Self::Key,
            "Size" => Self::Size,
            "ETag" => Self::ETag,
            "LastModified" => Self::LastModified,
            "StorageClass" => Self::StorageClass,
            "RestoreStatus" => Self::RestoreStatus,
            "IsRestoreInProgress" => Self::IsRestoreInProgress,
            "Initiated" => Self::Initiated,
            "InitiateMultipartUploadResult" => Self::InitiateResult,
            "CompleteMultipartUploadResult" => Self::CompleteResult,
            "CopyObjectResult" | "CopyPartResult" => Self::CopyResult,
            "ListMultipartUploadsResult" => Self::Uploads,
            "Upload" => Self::Upload,
            "UploadId" => Self::UploadId,
            "NextKeyMarker" => Self::NextKeyMarker,
            "NextUploadIdMarker" => Self::NextUploadIdMarker,
            "ListVersionsResult" => Self::Versions,
            "Version" => Self::Version,
            "DeleteMarker" => Self::DeleteMarker,
            "VersionId" => Self::VersionId,
            "NextVersionIdMarker" => Self::NextVersionIdMarker,
            "Tagging" => Self::Tagging,
            "TagSet" => Self::TagSet,
            "Tag" => Self::Tag,
            "Value" => Self::Value,
            "ChecksumCRC32C" => Self::ChecksumCrc32c,
            "ChecksumCRC64NVME" => Self::ChecksumCrc64Nvme,
            "Error" => Self::Error,
            "ErrorResponse" => Self::ErrorResponse,
            "Code" => Self::Code,
            "Message" => Self::Message,
            "Region" => Self::Region,
            "RequestId" => Self::RequestId,
            _ => Self::Other,
        }
    }
}

/// Walks a document and calls `leaf` at the end of each element with the path of its names and its own text.
fn walk(document: &[u8], mut leaf: impl FnMut(&[Name], &str) -> Result<(), String>) -> Result<(), String> {
    let text = std::str::from_utf8(document).map_err(|e| format!("the XML is not UTF-8: {e}"))?;
    let mut reader = Reader::from_str(text);
    reader.config_mut().expand_empty_elements = true;
    let mut path: Vec<Name> = Vec::with_capacity(DEPTH_MAX);
    // One text per level, kept when its element ends: a page of a thousand keys allocates none of them twice.
    let mut texts: [String; DEPTH_MAX] = Default::default();
    let mut seen_root = false;
    loop {
        match reader.read_event().map_err(|e| format!("broken XML: {e}"))? {
            Event::Start(start) => {
                if path.len() == DEPTH_MAX || (path.is_empty() && seen_root) {
                    return Err("the XML is nested too deeply or has two roots".into());
                }
                seen_root = true;
                texts[path.len()].clear();
                path.push(Name::of(start.local_name().into_inner()));
            }
            Event::End(_) => {
                let level = path.len().checked_sub(1).ok_or("broken XML: an end without a start")?;
                leaf(&path, &texts[level])?;
                path.pop();
            }
            Event::Text(piece) => {
                if let Some(level) = path.len().checked_sub(1) {
                    texts[level].push_str(&piece.xml10_content());
                }
            }
            Event::CData(piece) => {
                if let Some(level) = path.len().checked_sub(1) {
                    texts[level].push_str(&piece.xml10_content());
                }
            }
            Event::GeneralRef(reference) => {
                let level =
                    path.len().checked_sub(1).ok_or("broken XML: a reference outside of an element")?;
                match reference.resolve_char_ref().map_err(|e| format!("broken XML: {e}"))? {
                    Some(character) => texts[level].push(character),
                    None => texts[level].push_str(match &*reference.xml10_content() {
                        "lt" => "<",
                        "gt" => ">",
                        "amp" => "&",
                        "apos" => "'",
                        "quot" => "\"",
                        _ => return Err("the XML uses an entity that XML does not have".into()),
                    }),
                }
            }
            Event::DocType(_) => return Err("the XML declares a document type".into()),
            Event::Decl(_) | Event::PI(_) | Event::Comment(_) | Event::Empty(_) => {}
            Event::Eof if path.is_empty() && seen_root => return Ok(()),
            Event::Eof => return Err("the XML breaks off".into()),
        }
    }
}

/// An `xsd:boolean`, whatever its case; `None` if it says nothing. Any other word could hide the rest of a listing.
fn boolean(text: &str) -> Result<Option<bool>, String> {
    match text.trim() {
        "" => Ok(None),
        "1" => Ok(Some(true)),
        "0" => Ok(Some(false)),
        word if word.eq_ignore_ascii_case("true") => Ok(Some(true)),
        word if word.eq_ignore_ascii_case("false") => Ok(Some(false)),
        word => Err(format!("{word:?} is neither true nor false")),
    }
}

/// How a page of a listing ends.
#[derive(Default)]
struct PageEnd {
    /// The page's `IsTruncated`; a page may lack it.
    truncated: Option<bool>,
    encoded: bool,
    /// A key marker or a continuation token.
    next: Option<String>,
}

impl PageEnd {
    /// Reads an element of the listing that is about the page itself.
    fn read(&mut self, name: Name, text: &str) -> Result<(), String> {
        match name {
            Name::IsTruncated => self.truncated = boolean(text)?,
            Name::EncodingType => self.encoded = text.trim() == "url",
            Name::NextKeyMarker | Name::NextToken if !text.is_empty() => self.next = Some(text.to_owned()),
            _ => {}
        }
        Ok(())
    }

    /// A key as it is, once the page has been read.
    fn key(&self, text: String) -> Result<String, String> {
        if self.encoded { url_decode(text) } else { Ok(text) }
    }

    /// The marker or token of the next page, as the store spells it; `None` on the last page.
    fn next(&mut self) -> Result<Option<String>, String> {
        match (self.next.take(), self.truncated) {
            (None, Some(true)) => {
                Err("the page is truncated, but does not say where the next one begins".into())
            }
            (_, Some(false)) => Ok(None),
            (next, _) => Ok(next),
        }
    }

    /// The key at which the next page begins; `None` on the last page.
    fn next_key(&mut self) -> Result<Option<String>, String> {
        self.next()?.map(|text| self.key(text)).transpose()
    }
}

/// The fields of an error document.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ErrorBody {
    pub(crate) code: Option<String>,
    pub(crate) message: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) request_id: Option<String>,
}

/// Reads an error document; one that is none says nothing.
pub(crate) fn error_body(document: &[u8]) -> ErrorBody {
    const TEXT_MAX: usize = 1024;
    let mut found = ErrorBody::default();
    let _ = walk(document, |path, text| {
        let ([Name::Error, field] | [Name::ErrorResponse, Name::Error, field]) = path else {
            return Ok(());
        };
        let text = || Some(text.chars().take(TEXT_MAX).collect::<String>());
        match field {
            Name::Code => found.code = text(),
            Name::Message => found.message = text(),
            Name::Region => found.region = text(),
            Name::RequestId => found.request_id = text(),
            _ => {}
        }
        Ok(())
    });
    found
}

#[derive(Default)]
struct Entry {
    key: Option<String>,
    size: Option<u64>,
    etag: Option<ETag>,
    last_modified: Option<SystemTime>,
    archived: bool,
    restored: bool,
}

/// Reads a page of a listing that answers `request`; the error says what is wrong with it.
pub(crate) fn list_page(document: &[u8], request: &ListObjects) -> Result<ListPage, String> {
    use Name::{CommonPrefixes, Contents, Listing, RestoreStatus};
    let mut entries: Vec<Entry> = Vec::new();
    let mut prefixes: Vec<String> = Vec::new();
    let mut entry = Entry::default();
    let mut end = PageEnd::default();
    walk(document, |path, text| {
        match path {
            [Listing, CommonPrefixes, Name::Prefix] => prefixes.push(text.to_owned()),
            [Listing, Contents] => entries.push(std::mem::take(&mut entry)),
            [Listing, Contents, Name::Key] => entry.key = Some(text.to_owned()),
            [Listing, Contents, Name::Size] => {
                entry.size = Some(text.trim().parse().map_err(|_| format!("{text:?} is not a size"))?);
            }
            [Listing, Contents, Name::ETag] if !text.is_empty() => entry.etag = Some(ETag::new(text)),
            [Listing, Contents, Name::LastModified] => entry.last_modified = xml_date(text),
            [Listing, Contents, Name::StorageClass] => entry.archived = !is_readable(Some(text.trim()), None),
            [Listing, Contents, RestoreStatus, Name::IsRestoreInProgress] => {
                entry.restored = text.trim() == "false";
            }
            [Listing, name] => end.read(*name, text)?,
            [Listing, ..] => {}
            _ => return Err("the answer is not a listing".into()),
        }
        if entries.len() + prefixes.len() > ENTRIES_MAX {
            return Err(format!("the page has more than {ENTRIES_MAX} entries"));
        }
        Ok(())
    })?;
    let next_token = end.next()?;
    if next_token.is_some() && next_token == request.continuation_token {
        return Err("the store repeats a continuation token: the listing would never end".into());
    }
    let name = |text: String| -> Result<String, String> {
        let name = end.key(text)?;
        if !name.starts_with(&request.prefix) {
            return Err(format!("{name:?} does not begin with the prefix that was asked for"));
        }
        Ok(name)
    };
    let objects = entries.into_iter().map(|e| object(e, name)).collect::<Result<_, _>>()?;
    let common_prefixes = prefixes.into_iter().map(name).collect::<Result<_, _>>()?;
    Ok(ListPage { objects, common_prefixes, next_token })
}

fn object(entry: Entry, name: impl Fn(String) -> Result<String, String>) -> Result<ListedObject, String> {
    let key = name(entry.key.ok_or("an entry has no key")?)?;
    let missing = |what: &str| format!("{key:?} has no {what}");
    let meta = ObjectMeta {
        size: entry.size.ok_or_else(|| missing("size"))?,
        etag: entry.etag.ok_or_else(|| missing("ETag"))?,
        last_modified: entry.last_modified.ok_or_else(|| missing("date"))?,
        readable: !entry.archived || entry.restored,
    };
    Ok(ListedObject { key: ObjectKey::new(key), meta })
}

/// `%41+b` is `A b`: how `encoding-type=url` spells names. Not the library's decoder: it leaves a broken escape as it is, and a wrong name
/// must be refused.
fn url_decode(text: String) -> Result<String, String> {
    if !text.contains(['%', '+']) {
        return Ok(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match first {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digit = |at: usize| char::from(*tail.get(at)?).to_digit(16);
                let byte = digit(0).zip(digit(1)).map(|(high, low)| (high << 4 | low) as u8);
                bytes.push(byte.ok_or_else(|| format!("{text:?} is not URL-encoded"))?);
                rest = &tail[2..];
            }
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).map_err(|_| format!("{text:?} is not UTF-8 once decoded"))
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
            .map(|p| p.objects.iter().map(|o| o.key.as_str().to_owned()).collect())
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
        let page = list_page(document.as_bytes(), &request).unwrap();
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
        let page = list_page(document.as_bytes(), &ListObjects::default()).unwrap();
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
            ("not UTF-8 once decoded", page(&(contents("%FF") + "<EncodingType>url</EncodingType>"))),
            ("not encoded", page(&(contents("%G1") + "<EncodingType>url</EncodingType>"))),
            ("a sign in place of a digit", page(&(contents("%+1") + "<EncodingType>url</EncodingType>"))),
            ("an escape cut off", page(&(contents("%4") + "<EncodingType>url</EncodingType>"))),
            ("no token", page("<IsTruncated>true</IsTruncated>")),
            ("no token", page("<IsTruncated>1</IsTruncated>")),
            (
                "no boolean",
                page("<IsTruncated>yes</IsTruncated><NextContinuationToken>t</NextContinuationToken>"),
            ),
            ("size", page(&contents("k").replace(">5<", ">-5<"))),
        ] {
            assert!(keys(&document, "").is_err(), "{what}");
        }
        assert!(keys(&page(&contents("b")), "a").is_err(), "outside of the prefix");
        assert!(list_page(b"<ListBucketResult>\xff</ListBucketResult>", &ListObjects::default()).is_err());
    }

    #[test]
    fn a_repeated_token_ends_the_listing_with_an_error() {
        let document =
            page("<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>");
        let request = ListObjects { continuation_token: Some("t".into()), ..Default::default() };
        assert!(list_page(document.as_bytes(), &request).unwrap_err().contains("never end"));
    }

    #[test]
    fn an_error_document_is_read_and_anything_else_says_nothing() {
        let body =
            error_body(b"<Error><Code>SlowDown</Code><Message>Reduce</Message><Region>r</Region></Error>");
        assert_eq!((body.code.as_deref(), body.message.as_deref()), (Some("SlowDown"), Some("Reduce")));
        assert_eq!(body.region.as_deref(), Some("r"));
        assert_eq!(error_body(b"<html>503"), ErrorBody::default());
        assert_eq!(error_body(b""), ErrorBody::default());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = list_page(&bytes, &ListObjects::default());
            let _ = error_body(&bytes);
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
