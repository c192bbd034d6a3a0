//! Entry points for fuzz targets: the parsers of the store's documents, and of the files of AWS's tools.

use std::time::SystemTime;

use aws_types::os_shim_internal::{Env, Fs};
use futures_util::FutureExt as _;

use crate::object::ObjectMeta;
use crate::s3::auth::profile;
use crate::s3::{Config, Error, ErrorKind, ListObjects, ListPage, PendingUpload, Stored, answer, date, xml};

/// Parses a document as a page of the listing `request`.
///
/// # Errors
/// The problem with the document.
pub fn list_page(document: &[u8], request: &ListObjects) -> Result<ListPage, String> {
    xml::list_page(document, request).map(|(page, _)| page)
}

/// Parses these headers as the answer to a HEAD.
pub fn head(headers: &http::HeaderMap) -> Option<ObjectMeta> {
    answer::object_meta(headers)
}

/// Parses a text as a date, in a header and in a document.
pub fn dates(text: &str) -> [Option<SystemTime>; 2] {
    [date::http_date(text), date::xml_date(text)]
}

/// Whether a document is complete: it ends with its root element.
pub fn is_whole(document: &[u8]) -> bool {
    xml::is_whole(document)
}

/// The name of the root element of a document.
pub fn root(document: &[u8]) -> Option<String> {
    xml::root(document)
}

/// Parses a document as the answer to CreateMultipartUpload: the id of the upload.
///
/// # Errors
/// The problem with the document.
pub fn upload_id(document: &[u8]) -> Result<String, String> {
    xml::upload_id(document)
}

/// Parses a document as the answer to CompleteMultipartUpload: the new object, or `None` for another document.
///
/// # Errors
/// The problem with the document.
pub fn completed(document: &[u8]) -> Result<Option<Stored>, String> {
    xml::completed(document)
}

/// Parses a document as a page of versions of keys with this prefix.
///
/// # Errors
/// The problem with the document.
pub fn versions(document: &[u8], prefix: &str) -> Result<crate::s3::VersionPage, String> {
    crate::s3::xml::version_page(document, prefix)
}

/// Parses a document as the tags of a bucket.
///
/// # Errors
/// The problem with the document.
pub fn tags(document: &[u8]) -> Result<crate::s3::Tags, String> {
    crate::s3::xml::tags(document)
}

/// Parses a document as a page of unfinished multipart uploads.
///
/// # Errors
/// The problem with the document.
pub fn uploads(document: &[u8]) -> Result<Vec<PendingUpload>, String> {
    xml::upload_page(document).map(|page| page.uploads)
}

/// Parses an error document, and returns the line for the log.
pub fn error_line(document: &[u8]) -> String {
    let body = xml::error_body(document);
    let error = Error::new(ErrorKind::ServerError, "GetObject").status(500).answer(body.code, body.message);
    error.request_id(body.request_id).to_string()
}

/// Parses these two files as `~/.aws/config` and `~/.aws/credentials`. Returns the endpoint for a mount with this profile, and whether the
/// mount then uses FIPS and dual stack.
pub fn settings(config: &[u8], credentials: &[u8], name: Option<&str>) -> (Option<String>, bool, bool) {
    let files = [("/config", config), ("/credentials", credentials)];
    let files = files.map(|(path, bytes)| (path.into(), bytes.to_vec()));
    let env =
        [("HOME", "/home"), ("AWS_CONFIG_FILE", "/config"), ("AWS_SHARED_CREDENTIALS_FILE", "/credentials")];
    let mut taken = Config { profile: name.map(str::to_owned), ..Config::default() };
    let (fs, env) = (Fs::from_raw_map(files.into()), Env::from_slice(&env));
    profile::complete_from(&mut taken, &fs, &env).now_or_never().expect("files in memory make nobody wait");
    (taken.endpoint_url, taken.fips, taken.dual_stack)
}
