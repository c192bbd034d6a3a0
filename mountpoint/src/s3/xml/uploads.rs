//! The XML documents of multipart uploads: the answers to Create, Complete, copies and the listing of uploads, and the body of Complete.

use std::fmt::Write as _;

use quick_xml::escape::escape;

use crate::checksum::ChecksumAlgorithm;
use crate::object::{ETag, ObjectKey};
use crate::s3::date::xml_date;
use crate::s3::xml::{ENTRIES_MAX, Name, PageEnd, walk};
use crate::s3::{PendingUpload, Stored, UploadId, UploadedPart};

/// The body of CompleteMultipartUpload, with the parts in order.
pub(in crate::s3) fn complete_document(parts: &[UploadedPart]) -> String {
    const PART: usize = 160;
    let mut document = String::with_capacity(128 + PART * parts.len());
    document.push_str("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for part in parts {
        let _ = write!(document, "<Part><ETag>{}</ETag>", escape(part.etag.as_str()));
        if let Some(sum) = part.checksum {
            let name = match sum.algorithm {
                ChecksumAlgorithm::Crc32c => "ChecksumCRC32C",
                ChecksumAlgorithm::Crc64Nvme => "ChecksumCRC64NVME",
                ChecksumAlgorithm::Crc32 => "ChecksumCRC32",
            };
            let _ = write!(document, "<{name}>{}</{name}>", sum.to_base64());
        }
        let _ = write!(document, "<PartNumber>{}</PartNumber></Part>", part.part_number);
    }
    document.push_str("</CompleteMultipartUpload>");
    document
}

/// Parses the answer to CreateMultipartUpload: the id of the upload.
pub(in crate::s3) fn upload_id(document: &[u8]) -> Result<String, String> {
    let mut id = None;
    walk(document, |path, text| {
        match path {
            [Name::InitiateResult, Name::UploadId] => id = Some(text.to_owned()),
            [Name::InitiateResult, ..] => {}
            _ => return Err("the answer begins no upload".into()),
        }
        Ok(())
    })?;
    id.filter(|id| !id.is_empty()).ok_or_else(|| "the answer names no upload".into())
}

/// Parses the answer to CompleteMultipartUpload: the new object; `None` for an error document. The ETag may be empty (Ceph 16), and must
/// then be requested from the object.
pub(in crate::s3) fn completed(document: &[u8]) -> Result<Option<Stored>, String> {
    let (mut etag, mut crc32c, mut crc64nvme, mut refused) = (None, None, None, false);
    walk(document, |path, text| {
        let text = || Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        match path {
            [Name::CompleteResult, Name::ETag] => etag = Some(text().unwrap_or_default()),
            [Name::CompleteResult, Name::ChecksumCrc32c] => crc32c = text(),
            [Name::CompleteResult, Name::ChecksumCrc64Nvme] => crc64nvme = text(),
            [Name::CompleteResult, ..] => {}
            [Name::Error | Name::ErrorResponse, ..] => refused = true,
            _ => return Err("the answer completes no upload".into()),
        }
        Ok(())
    })?;
    match etag {
        _ if refused => Ok(None),
        Some(etag) => {
            Ok(Some(Stored { etag: ETag::new(etag), checksum: crc32c.or(crc64nvme), modified: None }))
        }
        None => Err("the answer has no ETag".into()),
    }
}

/// The result of a copy into an object or a part.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) struct Copied {
    pub(in super::super) etag: ETag,
    pub(in super::super) checksum: Option<(ChecksumAlgorithm, String)>,
    pub(in super::super) modified: Option<std::time::SystemTime>,
}

/// Parses the answer to CopyObject or UploadPartCopy; `None` for an error document: nothing was copied.
pub(in super::super) fn copied(document: &[u8]) -> Result<Option<Copied>, String> {
    let (mut etag, mut checksum, mut modified, mut refused) = (None, None, None, false);
    walk(document, |path, text| {
        let own = || Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        match path {
            [Name::CopyResult, Name::ETag] => etag = own(),
            [Name::CopyResult, Name::LastModified] => modified = xml_date(text),
            [Name::CopyResult, Name::ChecksumCrc32c] => {
                checksum = own().map(|value| (ChecksumAlgorithm::Crc32c, value));
            }
            [Name::CopyResult, Name::ChecksumCrc64Nvme] => {
                checksum = own().map(|value| (ChecksumAlgorithm::Crc64Nvme, value));
            }
            [Name::CopyResult, ..] => {}
            [Name::Error | Name::ErrorResponse, ..] => refused = true,
            _ => return Err("the answer is about no copy".into()),
        }
        Ok(())
    })?;
    match etag {
        _ if refused => Ok(None),
        Some(etag) => Ok(Some(Copied { etag: ETag::new(etag), checksum, modified })),
        None => Err("the answer has no ETag".into()),
    }
}

/// A page of a listing of uploads.
#[derive(Debug)]
pub(in crate::s3) struct UploadPage {
    pub(in crate::s3) uploads: Vec<PendingUpload>,
    /// The markers for the next page; `None` on the last one.
    pub(in crate::s3) next: Option<UploadMarkers>,
}

/// The position at the end of a page of uploads. The default is the beginning of the listing.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(in crate::s3) struct UploadMarkers {
    pub(in crate::s3) key: Option<String>,
    pub(in crate::s3) id: Option<String>,
}

/// Parses a page of ListMultipartUploads. An entry without key, id or date is useless, and left out.
pub(in crate::s3) fn upload_page(document: &[u8]) -> Result<UploadPage, String> {
    use Name::{Upload, Uploads};
    let mut uploads = Vec::new();
    let (mut end, mut next_id) = (PageEnd::default(), None);
    let (mut key, mut id, mut initiated) = (None, None, None);
    walk(document, |path, text| {
        let some = || Some(text.to_owned()).filter(|text| !text.is_empty());
        match path {
            [Uploads, Name::NextUploadIdMarker] => next_id = some(),
            [Uploads, Upload, Name::Key] => key = some(),
            [Uploads, Upload, Name::UploadId] => id = some(),
            [Uploads, Upload, Name::Initiated] => initiated = xml_date(text),
            [Uploads, Upload] => {
                if let (Some(key), Some(id), Some(at)) = (key.take(), id.take(), initiated.take()) {
                    uploads.push((key, id, at));
                }
            }
            [Uploads, name] => end.read(*name, text)?,
            [Uploads, ..] => {}
            _ => return Err("the answer is not a listing of uploads".into()),
        }
        if uploads.len() > ENTRIES_MAX {
            return Err(format!("the page has more than {ENTRIES_MAX} entries"));
        }
        Ok(())
    })?;
    let next = end.next_key()?.map(|key| UploadMarkers { key: Some(key), id: next_id });
    let uploads = uploads
        .into_iter()
        .map(|(key, id, initiated)| {
            let upload = UploadId { key: ObjectKey::new(end.key(key)?), id };
            Ok(PendingUpload { upload, initiated })
        })
        .collect::<Result<_, String>>()?;
    Ok(UploadPage { uploads, next })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_copy_is_told_with_its_etag_or_as_an_error_behind_white_space() {
        let made = b" \n <CopyObjectResult><LastModified>2009-10-12T17:50:30.000Z</LastModified>\
            <ETag>&quot;e&quot;</ETag><ChecksumCRC32C>AAAAAQ==</ChecksumCRC32C></CopyObjectResult>";
        let made = copied(made).unwrap().unwrap();
        assert_eq!(made.etag, ETag::new("\"e\""));
        assert_eq!(made.checksum, Some((ChecksumAlgorithm::Crc32c, "AAAAAQ==".into())));
        assert!(made.modified.is_some());
        let part = copied(b"<CopyPartResult><ETag>e</ETag></CopyPartResult>").unwrap().unwrap();
        assert_eq!((part.etag, part.checksum), (ETag::new("e"), None));
        let refused = b"\n\n<Error><Code>InternalError</Code></Error>";
        assert_eq!(copied(refused), Ok(None));
        for wrong in [&b"<CopyObjectResult/>"[..], b"", b"<a/>", b"<CompleteMultipartUploadResult/>"] {
            assert!(copied(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }
    use crate::checksum::Checksum;

    fn parts(etag: &str, checksum: Option<Checksum>) -> Vec<UploadedPart> {
        vec![UploadedPart { part_number: 7, etag: ETag::new(etag), size: 1, checksum }]
    }

    fn upload(key: &str, id: &str) -> String {
        let at = "2015-10-21T07:28:00.000Z";
        format!("<Upload><Key>{key}</Key><UploadId>{id}</UploadId><Initiated>{at}</Initiated></Upload>")
    }

    fn listing(inner: &str) -> String {
        format!("<ListMultipartUploadsResult>{inner}</ListMultipartUploadsResult>")
    }

    #[test]
    fn the_parts_are_named_with_number_etag_and_checksum() {
        let begin = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Part>";
        let end = "<PartNumber>7</PartNumber></Part></CompleteMultipartUpload>";
        for (algorithm, name) in [
            (ChecksumAlgorithm::Crc32c, "ChecksumCRC32C"),
            (ChecksumAlgorithm::Crc64Nvme, "ChecksumCRC64NVME"),
        ] {
            let sum = Checksum::of(algorithm, b"1");
            let said = format!("<{name}>{}</{name}>", sum.to_base64());
            assert_eq!(
                complete_document(&parts("\"a<&\"", Some(sum))),
                format!("{begin}<ETag>&quot;a&lt;&amp;&quot;</ETag>{said}{end}")
            );
        }
        assert_eq!(complete_document(&parts("e", None)), format!("{begin}<ETag>e</ETag>{end}"));
    }

    #[test]
    fn a_completed_upload_is_read_behind_any_white_space() {
        for before in ["", "  \n \n", "<?xml version=\"1.0\"?>\n   \n", " \n<?xml version=\"1.0\"?> "] {
            let document = format!(
                "{before}<CompleteMultipartUploadResult><Key> </Key><ETag>&quot;e-2&quot;</ETag>\
                 <ChecksumCRC64NVME>c</ChecksumCRC64NVME></CompleteMultipartUploadResult>"
            );
            let stored = completed(document.as_bytes()).unwrap().unwrap();
            assert_eq!(
                (stored.etag.as_str(), stored.checksum.as_deref()),
                ("\"e-2\"", Some("c")),
                "{before:?}"
            );
            let nameless = document.replace("&quot;e-2&quot;", " ");
            assert!(completed(nameless.as_bytes()).unwrap().unwrap().etag.is_none(), "as Ceph 16 says it");
            let refused = format!("{before}<Error><Code>InternalError</Code></Error>");
            assert_eq!(completed(refused.as_bytes()).unwrap(), None, "{before:?}");
        }
    }

    #[test]
    fn uploads_are_listed_with_their_names_as_they_are() {
        let document = listing(&format!(
            "<IsTruncated>true</IsTruncated><NextKeyMarker>b</NextKeyMarker>\
             <NextUploadIdMarker>2</NextUploadIdMarker>{}{}<Upload><Key>no date</Key></Upload>",
            upload(" ", "1"),
            upload("a&amp;%41", "2"),
        ));
        let page = upload_page(document.as_bytes()).unwrap();
        let names: Vec<_> =
            page.uploads.iter().map(|u| (u.upload.key.as_str(), u.upload.id.as_str())).collect();
        assert_eq!(names, [(" ", "1"), ("a&%41", "2")]);
        assert_eq!(page.next, Some(UploadMarkers { key: Some("b".into()), id: Some("2".into()) }));
        let encoded = listing(&format!("<EncodingType>url</EncodingType>{}", upload("a%01+%41", "1")));
        let page = upload_page(encoded.as_bytes()).unwrap();
        assert_eq!((page.uploads[0].upload.key.as_str(), page.next), ("a\u{1} A", None));
    }

    #[test]
    fn hostile_documents_are_refused() {
        let begun =
            |inner: &str| format!("<InitiateMultipartUploadResult>{inner}</InitiateMultipartUploadResult>");
        let made =
            |inner: &str| format!("<CompleteMultipartUploadResult>{inner}</CompleteMultipartUploadResult>");
        for (what, document) in [
            ("nothing", String::new()),
            ("text", "hello".into()),
            ("HTML", "<html><body>502</body></html>".into()),
            ("cut off", made("<ETag>e</ETag>")[..50].into()),
            ("deep", made(&format!("{}{}", "<a>".repeat(1000), "</a>".repeat(1000)))),
            ("bomb", format!("<!DOCTYPE x [<!ENTITY lol \"lol\">]>{}", made("<ETag>&lol;</ETag>"))),
            ("entity", made("<ETag>&lol;</ETag>")),
            ("two roots", made("<ETag>e</ETag>") + &made("<ETag>e</ETag>")),
            ("no values", begun("<Key>k</Key>")),
            ("an empty name", begun("<UploadId></UploadId>")),
            ("no ETag", made("<Key>k</Key>")),
            ("a name too deep", begun("<x><UploadId>u</UploadId></x>")),
        ] {
            assert!(upload_id(document.as_bytes()).is_err(), "{what}");
            assert!(completed(document.as_bytes()).is_err(), "{what}");
            assert!(upload_page(document.as_bytes()).is_err(), "{what}");
        }
        for (what, document) in [
            ("many", listing(&upload("k", "u").repeat(ENTRIES_MAX + 1))),
            ("no marker", listing("<IsTruncated>true</IsTruncated>")),
            ("not encoded", listing(&format!("<EncodingType>url</EncodingType>{}", upload("%G1", "1")))),
        ] {
            assert!(upload_page(document.as_bytes()).is_err(), "{what}");
        }
        assert!(completed(b"<CompleteMultipartUploadResult>\xff</CompleteMultipartUploadResult>").is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (upload_id(&bytes), completed(&bytes), upload_page(&bytes));
        }

        #[test]
        fn any_etag_stands_in_a_document_that_is_xml(etag in "[ -~äß]{1,40}") {
            let document = complete_document(&parts(&etag, None));
            let mut read = None;
            walk(document.as_bytes(), |path, text| {
                if path.last() == Some(&Name::ETag) { read = Some(text.to_owned()) }
                Ok(())
            }).unwrap();
            prop_assert_eq!(read, Some(etag));
        }
    }
}
