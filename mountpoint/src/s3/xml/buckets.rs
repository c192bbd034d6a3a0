//! The XML documents about a bucket as a whole: its location, its tags, a page of its versions.

use std::collections::BTreeMap;

use quick_xml::escape::escape;

use crate::object::ObjectKey;
use crate::s3::xml::{ENTRIES_MAX, Name, PageEnd, walk};

const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

/// The tags of a bucket or object: keys and values.
pub type Tags = BTreeMap<String, String>;

/// A version of an object, or a delete marker; deleting works the same for both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The key.
    pub key: ObjectKey,
    /// The id of the version; `null` for a version from before versioning.
    pub id: String,
}

/// One page of versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionPage {
    /// Versions and delete markers.
    pub versions: Vec<Version>,
    /// The markers for the next page; `None` on the last one.
    pub next: Option<VersionMarkers>,
}

/// The position at the end of a page of versions. The default is the beginning of the listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionMarkers {
    pub(in crate::s3) key: Option<String>,
    pub(in crate::s3) version: Option<String>,
}

/// The body of CreateBucket, with the region.
pub(in crate::s3) fn location_document(region: &str) -> String {
    format!(
        "<CreateBucketConfiguration xmlns=\"{NAMESPACE}\"><LocationConstraint>{}</LocationConstraint>\
         </CreateBucketConfiguration>",
        escape(region)
    )
}

/// The body of PutBucketTagging, with the tags.
pub(in crate::s3) fn tags_document(tags: &Tags) -> String {
    let mut document = format!("<Tagging xmlns=\"{NAMESPACE}\"><TagSet>");
    for (key, value) in tags {
        let (key, value) = (escape(key.as_str()), escape(value.as_str()));
        document.push_str(&format!("<Tag><Key>{key}</Key><Value>{value}</Value></Tag>"));
    }
    document.push_str("</TagSet></Tagging>");
    document
}

/// Parses the answer to GetBucketTagging or GetObjectTagging.
pub(in crate::s3) fn tags(document: &[u8]) -> Result<Tags, String> {
    let mut tags = Tags::new();
    let (mut key, mut value) = (None, None);
    walk(document, |path, text| {
        match path {
            [Name::Tagging, Name::TagSet, Name::Tag, Name::Key] => key = Some(text.to_owned()),
            [Name::Tagging, Name::TagSet, Name::Tag, Name::Value] => value = Some(text.to_owned()),
            [Name::Tagging, Name::TagSet, Name::Tag] => {
                let key = key.take().ok_or("a tag has no key")?;
                tags.insert(key, value.take().unwrap_or_default());
            }
            [Name::Tagging, ..] => {}
            _ => return Err("the answer is not a set of tags".into()),
        }
        if tags.len() > ENTRIES_MAX {
            return Err(format!("there are more than {ENTRIES_MAX} tags"));
        }
        Ok(())
    })?;
    Ok(tags)
}

/// Parses a page of ListObjectVersions. Keys without `prefix` are an error, because the caller deletes the listed versions.
pub(in crate::s3) fn version_page(document: &[u8], prefix: &str) -> Result<VersionPage, String> {
    use Name::{DeleteMarker, Version as Entry, Versions};
    let mut found = Vec::new();
    let (mut end, mut next_id) = (PageEnd::default(), None);
    let (mut key, mut id) = (None, None);
    walk(document, |path, text| {
        let some = || Some(text.to_owned()).filter(|text| !text.is_empty());
        match path {
            [Versions, Name::NextVersionIdMarker] => next_id = some(),
            [Versions, Entry | DeleteMarker, Name::Key] => key = some(),
            [Versions, Entry | DeleteMarker, Name::VersionId] => id = some(),
            [Versions, Entry | DeleteMarker] => {
                let key = key.take().ok_or("a version has no key")?;
                found.push((key, id.take().unwrap_or_else(|| "null".to_owned())));
            }
            [Versions, name] => end.read(*name, text)?,
            [Versions, ..] => {}
            _ => return Err("the answer is not a listing of versions".into()),
        }
        if found.len() > ENTRIES_MAX {
            return Err(format!("the page has more than {ENTRIES_MAX} entries"));
        }
        Ok(())
    })?;
    let next = end.next_key()?.map(|key| VersionMarkers { key: Some(key), version: next_id });
    let versions = found
        .into_iter()
        .map(|(key, id)| {
            let key = end.key(key)?;
            if !key.starts_with(prefix) {
                return Err(format!("{key:?} does not begin with the prefix that was asked for"));
            }
            Ok(Version { key: ObjectKey::new(key), id })
        })
        .collect::<Result<_, String>>()?;
    Ok(VersionPage { versions, next })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read_as_they_were_written() {
        let written: Tags =
            [("a&b".to_owned(), "<c> \"d\"".to_owned()), ("e".to_owned(), String::new())].into();
        assert_eq!(tags(tags_document(&written).as_bytes()).unwrap(), written);
        assert_eq!(tags(b"<Tagging><TagSet/></Tagging>").unwrap(), Tags::new());
        for wrong in [&b"<Tagging><TagSet><Tag><Value>v</Value></Tag></TagSet></Tagging>"[..], b"<a/>", b""] {
            assert!(tags(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }

    #[test]
    fn a_page_of_versions_has_versions_and_markers_of_this_prefix_alone() {
        let document = "<ListVersionsResult><IsTruncated>true</IsTruncated><EncodingType>url</EncodingType>\
            <NextKeyMarker>p%2Fb+c</NextKeyMarker><NextVersionIdMarker>v2</NextVersionIdMarker>\
            <Version><Key>p%2Fa</Key><VersionId>v1</VersionId></Version><Version><Key>p%2Fb+c</Key></Version>\
            <DeleteMarker><Key>p%2Fa</Key><VersionId>v2</VersionId></DeleteMarker></ListVersionsResult>";
        let page = version_page(document.as_bytes(), "p/").unwrap();
        let version = |key: &str, id: &str| Version { key: ObjectKey::new(key), id: id.into() };
        assert_eq!(page.versions, [version("p/a", "v1"), version("p/b c", "null"), version("p/a", "v2")]);
        let next = VersionMarkers { key: Some("p/b c".into()), version: Some("v2".into()) };
        assert_eq!(page.next, Some(next));
        assert!(version_page(document.as_bytes(), "p/b").unwrap_err().contains("prefix"));
        assert!(version_page(b"<ListBucketResult/>", "").is_err());
        let endless = "<ListVersionsResult><IsTruncated>true</IsTruncated></ListVersionsResult>";
        assert!(version_page(endless.as_bytes(), "").is_err());
    }
}
