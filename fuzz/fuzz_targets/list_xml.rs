//! A listing, or a document about uploads, versions or tags, from a hostile or broken store: no panic, no more entries than were sent, no
//! entry outside the request, and of a sound document each entry.
//!
//! Documents are built from a grammar, so that most of them get past the first tag; raw bytes are tried too.
#![no_main]

use std::fmt::Write as _;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use mountpoint::s3::ListObjects;
use mountpoint::s3::fuzzing::{completed, is_whole, list_page, root, tags, upload_id, uploads, versions};

#[derive(Arbitrary, Debug)]
struct Input {
    prefix: String,
    delimited: bool,
    document: Document,
    raw: Vec<u8>,
}

#[derive(Arbitrary, Debug)]
struct Document {
    root: Root,
    encoded: bool,
    items: Vec<Item>,
}

#[derive(Arbitrary, Debug)]
enum Root {
    Listing,
    /// A root element of another name.
    Odd,
    Uploads,
    Created,
    Completed,
    Error,
}

#[derive(Arbitrary, Debug)]
enum Item {
    /// An entry of a sound store.
    Object {
        key: String,
        size: u64,
        second: u8,
    },
    /// An entry that another store may send.
    Contents(Vec<Leaf>),
    CommonPrefix(String),
    Upload(Vec<Leaf>),
    Leaf(Leaf),
    /// Text that may not even be XML.
    Junk(String),
}

#[derive(Arbitrary, Debug)]
enum Leaf {
    Key(String),
    Size(u64),
    SizeText(String),
    ETag(String),
    LastModified(String),
    StorageClass(String),
    IsTruncated(bool),
    NextContinuationToken(String),
    UploadId(String),
    Unknown(String),
}

/// Text with `&`, `<` and `>` by their names in XML. Other characters that XML can't hold stay, as stores send them.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Leaf {
    fn write(&self, out: &mut String) {
        let (name, text) = match self {
            Self::Key(text) => ("Key", escaped(text)),
            Self::Size(size) => ("Size", size.to_string()),
            Self::SizeText(text) => ("Size", escaped(text)),
            Self::ETag(text) => ("ETag", escaped(text)),
            Self::LastModified(text) => ("LastModified", escaped(text)),
            Self::StorageClass(text) => ("StorageClass", escaped(text)),
            Self::IsTruncated(is) => ("IsTruncated", is.to_string()),
            Self::NextContinuationToken(text) => ("NextContinuationToken", escaped(text)),
            Self::UploadId(text) => ("UploadId", escaped(text)),
            Self::Unknown(text) => ("Unknown", escaped(text)),
        };
        let _ = write!(out, "<{name}>{text}</{name}>");
    }
}

impl Document {
    fn text(&self, prefix: &str) -> String {
        let root = match self.root {
            Root::Listing => "ListBucketResult",
            Root::Odd => "ListBucketV2Result",
            Root::Uploads => "ListMultipartUploadsResult",
            Root::Created => "InitiateMultipartUploadResult",
            Root::Completed => "CompleteMultipartUploadResult",
            Root::Error => "Error",
        };
        let mut out = format!("<?xml version=\"1.0\"?><{root}>");
        if self.encoded {
            out.push_str("<EncodingType>url</EncodingType>");
        }
        let name = |key: &str| self.name(&format!("{prefix}{key}"));
        for item in &self.items {
            let (tag, leaves) = match item {
                Item::Object { key, size, second } => {
                    let _ = write!(
                        out,
                        "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:{:02}.000Z</LastModified>\
                         <ETag>&quot;e&quot;</ETag><Size>{size}</Size></Contents>",
                        name(key),
                        second % 60
                    );
                    continue;
                }
                Item::CommonPrefix(key) => {
                    let _ = write!(out, "<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", name(key));
                    continue;
                }
                Item::Leaf(leaf) => {
                    leaf.write(&mut out);
                    continue;
                }
                Item::Junk(text) => {
                    out.push_str(text);
                    continue;
                }
                Item::Contents(leaves) => ("Contents", leaves),
                Item::Upload(leaves) => ("Upload", leaves),
            };
            let _ = write!(out, "<{tag}>");
            leaves.iter().for_each(|leaf| leaf.write(&mut out));
            let _ = write!(out, "</{tag}>");
        }
        let _ = write!(out, "</{root}>");
        out
    }

    /// A name in the spelling of `encoding-type=url`, or unchanged.
    fn name(&self, name: &str) -> String {
        if !self.encoded {
            return escaped(name);
        }
        name.bytes().fold(String::new(), |mut out, byte| {
            let _ = write!(out, "%{byte:02X}");
            out
        })
    }

    /// The objects and prefixes of a document in which nothing is odd.
    fn entries(&self) -> Option<usize> {
        let is_sound = |item: &Item| match item {
            Item::Object { key, .. } | Item::CommonPrefix(key) => !key.is_empty(),
            _ => false,
        };
        let is_listing = match self.root {
            Root::Listing => true,
            Root::Odd => !self.items.is_empty(),
            _ => false,
        };
        let sound = is_listing && self.encoded && self.items.iter().all(is_sound);
        (sound && self.items.len() <= 1000).then_some(self.items.len())
    }
}

fuzz_target!(|input: Input| {
    let Input { prefix, delimited, document, raw } = input;
    let text = document.text(&prefix);
    let request = ListObjects { prefix, delimited, max_keys: 1000, ..ListObjects::default() };
    look_at(&raw, &request);
    let found = look_at(text.as_bytes(), &request);
    if let Some(entries) = document.entries() {
        assert_eq!(found, Some(entries), "a sound listing is read whole: {text}");
    }
    // A document that was cut is known to be, whatever it is.
    assert!(!is_whole(&text.as_bytes()[..text.len() - 1]), "{text}");
    let _ = (is_whole(&raw), root(&raw));
});

/// Number of entries of the document, read as a listing.
fn look_at(document: &[u8], request: &ListObjects) -> Option<usize> {
    about_uploads(document);
    about_buckets(document, &request.prefix);
    let page = list_page(document, request).ok()?;
    let entries = page.objects.len() + page.common_prefixes.len();
    assert!(entries <= document.len(), "more entries than bytes");
    for object in &page.objects {
        assert!(object.key.as_str().starts_with(&request.prefix), "a key outside of the prefix");
    }
    for prefix in &page.common_prefixes {
        assert!(prefix.starts_with(&request.prefix), "a common prefix outside of the prefix");
    }
    assert_ne!(page.next_token.as_deref(), Some(""), "a token that leads back to the first page");
    // The same document says the same again.
    assert_eq!(list_page(document, request).as_ref(), Ok(&page));
    Some(entries)
}

fn about_uploads(document: &[u8]) {
    assert_ne!(upload_id(document).as_deref(), Ok(""), "an upload without a name");
    let _ = completed(document);
    if let Ok(uploads) = uploads(document) {
        assert!(uploads.len() <= document.len(), "more uploads than bytes");
        assert!(uploads.iter().all(|u| !u.upload.id.is_empty()), "an upload without a name");
    }
}

fn about_buckets(document: &[u8], prefix: &str) {
    if let Ok(page) = versions(document, prefix) {
        assert!(page.versions.len() <= document.len(), "more versions than bytes");
        assert!(
            page.versions.iter().all(|v| v.key.as_str().starts_with(prefix)),
            "a key outside of the prefix"
        );
    }
    if let Ok(tags) = tags(document) {
        assert!(tags.len() <= document.len(), "more tags than bytes");
    }
}
