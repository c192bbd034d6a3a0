//! Properties of an object besides its bytes: standard headers, the user's metadata, the storage class. Converts them to headers and back.
//! Pure.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::object::ObjectMeta;
use crate::s3::answer::text;
use crate::s3::ops::headers::{Headers, push};
use crate::s3::url::push_pairs;
use crate::s3::{Error, ErrorKind, Result, Tags};

/// Prefix of the headers with the user's metadata.
const USER: &str = "x-amz-meta-";

/// The properties of an object, for a request or from the answer to a HEAD.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// MIME type; `None` for `binary/octet-stream`.
    pub content_type: Option<String>,
    /// `Cache-Control`.
    pub cache_control: Option<String>,
    /// `Content-Disposition`.
    pub content_disposition: Option<String>,
    /// `Content-Encoding`.
    pub content_encoding: Option<String>,
    /// `Content-Language`.
    pub content_language: Option<String>,
    /// `Expires`.
    pub expires: Option<String>,
    /// The storage class; `None` for that of the mount, or else the store's default.
    pub storage_class: Option<String>,
    /// The user's metadata, with names without `x-amz-meta-`, in lower case.
    pub user: BTreeMap<String, String>,
    /// The tags. A HEAD returns only their number: [`Described::tags`].
    pub tags: Tags,
}

impl Properties {
    /// The standard headers, with their values.
    fn standard(&self) -> [(&'static str, Option<&str>); 6] {
        [
            ("content-type", self.content_type.as_deref()),
            ("cache-control", self.cache_control.as_deref()),
            ("content-disposition", self.content_disposition.as_deref()),
            ("content-encoding", self.content_encoding.as_deref()),
            ("content-language", self.content_language.as_deref()),
            ("expires", self.expires.as_deref()),
        ]
    }

    /// Adds the headers of a request that makes an object with these properties, except the storage class.
    pub(crate) fn push_all(&self, headers: &mut Headers, operation: &'static str) -> Result<()> {
        for (name, value) in self.standard() {
            let value = value.or_else(|| (name == "content-type").then_some("binary/octet-stream"));
            if let Some(value) = value {
                push(headers, operation, name, value)?;
            }
        }
        for (name, value) in &self.user {
            let wrong = |why: String| {
                Error::new(ErrorKind::InvalidRequest, operation).message(format!("metadata {name:?}: {why}"))
            };
            let header = HeaderName::try_from(format!("{USER}{name}")).map_err(|e| wrong(e.to_string()))?;
            // Bytes outside ASCII are sent unchanged.
            let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|e| wrong(e.to_string()))?;
            headers.push((header, value));
        }
        if !self.tags.is_empty() {
            let mut query = String::new();
            push_pairs(&mut query, &self.tags);
            push(headers, operation, "x-amz-tagging", &query)?;
        }
        Ok(())
    }

    /// Reads the properties from the answer to a HEAD. The error names a property that can't be kept.
    pub(crate) fn of(headers: &HeaderMap) -> std::result::Result<Self, String> {
        let own = |name: &str| text(headers, name).filter(|value| !value.is_empty()).map(str::to_owned);
        let mut user = BTreeMap::new();
        for (name, value) in headers {
            let Some(name) = name.as_str().strip_prefix(USER) else { continue };
            let value = std::str::from_utf8(value.as_bytes())
                .map_err(|_| format!("the value of its metadata {name:?} is not UTF-8"))?;
            if user.insert(name.to_owned(), value.to_owned()).is_some() {
                return Err(format!("its metadata has {name:?} twice"));
            }
        }
        if let Some(count) = own("x-amz-missing-meta").filter(|count| count != "0") {
            return Err(format!("{count} of its metadata have names that no header can carry"));
        }
        Ok(Self {
            content_type: own("content-type"),
            cache_control: own("cache-control"),
            content_disposition: own("content-disposition"),
            content_encoding: own("content-encoding"),
            content_language: own("content-language"),
            expires: own("expires"),
            storage_class: own("x-amz-storage-class").filter(|class| class != "STANDARD"),
            user,
            tags: Tags::new(),
        })
    }
}

/// The facts about an object from a HEAD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Size, ETag and time.
    pub meta: ObjectMeta,
    /// The properties besides the bytes, without tags.
    pub properties: Properties,
    /// The store's id of this version, in a versioned bucket.
    pub version: Option<String>,
    /// Number of the object's tags, if the store reports it.
    pub tags: u32,
    /// The checksum in the store's spelling, if it has one: of all bytes, or of the parts (`value-N`).
    pub checksum: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_go_out_and_come_back_as_they_were() {
        let properties = Properties {
            content_type: Some("text/plain".into()),
            cache_control: Some("no-cache".into()),
            expires: Some("Wed, 21 Oct 2015 07:28:00 GMT".into()),
            user: [("mode".to_owned(), "33188".to_owned()), ("name".to_owned(), "ü".to_owned())].into(),
            tags: [("a b".to_owned(), "c&d".to_owned())].into(),
            ..Properties::default()
        };
        let mut headers = Headers::new();
        properties.push_all(&mut headers, "PutObject").unwrap();
        let headers: HeaderMap = headers.into_iter().collect();
        assert_eq!(headers["x-amz-tagging"], "a%20b=c%26d");
        let read = Properties::of(&headers).unwrap();
        assert_eq!(read, Properties { tags: Tags::new(), ..properties });
    }

    #[test]
    fn metadata_that_no_header_can_carry_is_an_error_and_not_lost() {
        let headers = |name: &'static str, value: &[u8]| {
            let pair = (HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap());
            HeaderMap::from_iter([pair])
        };
        assert!(Properties::of(&headers("x-amz-missing-meta", b"1")).is_err());
        assert!(Properties::of(&headers("x-amz-meta-a", b"\xff")).is_err());
        let twice = headers("x-amz-meta-a", b"1").into_iter().chain(headers("x-amz-meta-b", b"2"));
        assert_eq!(
            Properties::of(&twice.filter_map(|(n, v)| Some((n?, v))).collect()).unwrap().user.len(),
            2
        );
        let mut broken = Properties::default();
        broken.user.insert("no name".into(), "1".into());
        assert!(broken.push_all(&mut Headers::new(), "PutObject").is_err());
    }
}
