//! The XML documents of S3: errors here, listings in `listing.rs`, uploads in `uploads.rs`, whole buckets in `buckets.rs`. The parser does
//! not trust the documents.
//!
//! Limits: depth, entries, and the caller's limit on bytes. A document type is an error, and so is an entity other than XML's own five. The
//! parser refuses text that is not UTF-8 and never guesses its meaning; a listing leaves out the entry with such text.

mod buckets;
mod listing;
mod uploads;

use quick_xml::Reader;
use quick_xml::events::Event;

pub use buckets::{Tags, Version, VersionMarkers, VersionPage};
pub(super) use buckets::{location_document, tags, tags_document, version_page};
pub(in crate::s3) use listing::list_page;
pub(super) use uploads::{
    Copied, UploadMarkers, complete_document, completed, copied, upload_id, upload_page,
};

/// Most bytes of a document. A longer document is an error.
pub(crate) const BODY_MAX: usize = 16 << 20;
const DEPTH_MAX: usize = 16;
/// Most characters of a root element's name in a report.
const NAME_MAX: usize = 40;
/// Most entries of a page: more than any store sends (1000), for stores that ignore `max-keys`. A longer page is an error.
const ENTRIES_MAX: usize = 10_000;

/// Whether a document ends with the end tag of its root element. Otherwise it may be cut off.
pub(super) fn is_whole(document: &[u8]) -> bool {
    let closed = document.trim_ascii_end().ends_with(b">");
    match (root_at(document), document.windows(2).rposition(|it| it == b"</")) {
        (Some(begins), Some(ends)) => closed && name(&document[begins..]) == name(&document[ends + 2..]),
        _ => false,
    }
}

/// Name of the root element.
pub(super) fn root(document: &[u8]) -> Option<String> {
    Some(String::from_utf8_lossy(name(&document[root_at(document)?..])).chars().take(NAME_MAX).collect())
}

/// Offset of the root element's name.
fn root_at(document: &[u8]) -> Option<usize> {
    let opened = document.windows(2).position(|it| it[0] == b'<' && it[1].is_ascii_alphabetic());
    opened.map(|at| at + 1)
}

/// Name of an element, from the text behind its `<`.
fn name(open: &[u8]) -> &[u8] {
    let is_end = |b: &u8| b.is_ascii_whitespace() || matches!(b, b'>' | b'/');
    &open[..open.iter().position(is_end).unwrap_or(open.len())]
}

/// The element names that the parser uses; all others are one variant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Name {
    Listing,
    IsTruncated,
    /// The number of keys of the page, or its limit.
    PageSize,
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
            "KeyCount" | "MaxKeys" => Self::PageSize,
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

/// Parses a document, and calls `leaf` at the end of each element with the path of its names and its own text.
fn walk(document: &[u8], mut leaf: impl FnMut(&[Name], &str) -> Result<(), String>) -> Result<(), String> {
    let text = std::str::from_utf8(document).map_err(|e| format!("the XML is not UTF-8: {e}"))?;
    walk_text(text, &mut leaf)
}

fn walk_text(text: &str, mut leaf: impl FnMut(&[Name], &str) -> Result<(), String>) -> Result<(), String> {
    let mut reader = Reader::from_str(text);
    reader.config_mut().expand_empty_elements = true;
    let mut path: Vec<Name> = Vec::with_capacity(DEPTH_MAX);
    // One text per level, reused by all elements of that level: a page of a thousand keys allocates few texts.
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

/// Parses an `xsd:boolean` in any case; `None` for an empty text. Another word is an error, because it could hide the rest of a listing.
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

/// The elements that end a listing's page.
#[derive(Default)]
struct PageEnd {
    /// The page's `IsTruncated`; some pages lack it.
    truncated: Option<bool>,
    encoded: bool,
    /// The key marker or continuation token of the next page.
    next: Option<String>,
}

impl PageEnd {
    /// Reads an element about the page itself.
    fn read(&mut self, name: Name, text: &str) -> Result<(), String> {
        match name {
            Name::IsTruncated => self.truncated = boolean(text)?,
            Name::EncodingType => self.encoded = text.trim() == "url",
            Name::NextKeyMarker | Name::NextToken if !text.is_empty() => self.next = Some(text.to_owned()),
            _ => {}
        }
        Ok(())
    }

    /// Decodes a key. Called once the page was read, because the encoding may come last.
    fn key(&self, text: String) -> Result<String, String> {
        if self.encoded { url_decode(text) } else { Ok(text) }
    }

    /// The marker or token of the next page, in the store's encoding; `None` on the last page.
    fn next(&mut self) -> Result<Option<String>, String> {
        match (self.next.take(), self.truncated) {
            (None, Some(true)) => {
                Err("the page is truncated, but does not say where the next one begins".into())
            }
            (_, Some(false)) => Ok(None),
            (next, _) => Ok(next),
        }
    }

    /// The decoded key marker of the next page; `None` on the last page.
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

/// Parses an error document. All fields are empty for another document.
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

/// Decodes a name in the form of `encoding-type=url`: `%41+b` is `A b`. A broken escape is an error; the library's decoder would keep it,
/// which would make a wrong name.
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

    #[test]
    fn an_error_document_is_read_and_anything_else_says_nothing() {
        let body =
            error_body(b"<Error><Code>SlowDown</Code><Message>Reduce</Message><Region>r</Region></Error>");
        assert_eq!((body.code.as_deref(), body.message.as_deref()), (Some("SlowDown"), Some("Reduce")));
        assert_eq!(body.region.as_deref(), Some("r"));
        assert_eq!(error_body(b"<html>503"), ErrorBody::default());
        assert_eq!(error_body(b""), ErrorBody::default());
    }

    #[test]
    fn a_document_that_was_cut_anywhere_is_not_whole() {
        let whole = b"<?xml version=\"1.0\"?>\n<List xmlns=\"x\"><A><List2/></A><B/></List>\n";
        assert!(is_whole(whole));
        for end in 0..whole.len() - 1 {
            assert!(!is_whole(&whole[..end]), "{:?}", String::from_utf8_lossy(&whole[..end]));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = error_body(&bytes);
        }
    }
}
