//! The parts of this room for fuzz targets: the readers of the store's documents, and of the files of AWS's tools.

use std::time::SystemTime;

use aws_types::os_shim_internal::{Env, Fs};
use futures_util::FutureExt as _;

use crate::object::ObjectMeta;
use crate::s3::auth::profile;
use crate::s3::{Config, Error, ErrorKind, ListObjects, ListPage, PendingUpload, Stored, answer, date, xml};

/// Reads a page of a listing that answers `request`.
///
/// # Errors
/// The problem with the document.
pub fn list_page(document: &[u8], request: &ListObjects) -> Result<ListPage, String> {
    xml::list_page(document, request).map(|(page, _)| page)
}

/// Reads these headers as the answer to a HEAD.
pub fn head(headers: &http::HeaderMap) -> Option<ObjectMeta> {
    answer::object_meta(headers)
}

/// Reads a text as a date, of a header and of a document.
pub fn dates(text: &str) -> [Option<SystemTime>; 2] {
    [date::http_date(text), date::xml_date(text)]
}

/// Whether a document ends with the end of its first element.
pub fn is_whole(document: &[u8]) -> bool {
    xml::is_whole(document)
}

/// The name of the root element of a document.
pub fn root(document: &[u8]) -> Option<String> {
    xml::root(document)
}

/// Reads a document as the name of an upload that CreateMultipartUpload began.
///
/// # Errors
/// The problem with the document.
pub fn upload_id(document: &[u8]) -> Result<String, String> {
    xml::upload_id(document)
}

/// Reads a document as the object that CompleteMultipartUpload made; `None` if the document says that it made none.
///
/// # Errors The problem with the document.
pub fn completed(document: &[u8]) -> Result<Option<Stored>, String> {
    xml::completed(document)
}

/// Reads a document as a page of versions of keys with this prefix.
///
/// # Errors
/// The problem with the document.
pub fn versions(document: &[u8], prefix: &str) -> Result<crate::s3::VersionPage, String> {
    crate::s3::xml::version_page(document, prefix)
}

/// Reads a document as the tags of a bucket.
///
/// # Errors
/// The problem with the document.
pub fn tags(document: &[u8]) -> Result<crate::s3::Tags, String> {
    crate::s3::xml::tags(document)
}

/// Reads a document as a page of uploads in progress.
///
/// # Errors
/// The problem with the document.
pub fn uploads(document: &[u8]) -> Result<Vec<PendingUpload>, String> {
    xml::upload_page(document).map(|page| page.uploads)
}

/// Reads an error document, and returns the line for the log.
pub fn error_line(document: &[u8]) -> String {
    let body = xml::error_body(document);
    let error = Error::new(ErrorKind::ServerError, "GetObject").status(500).answer(body.code, body.message);
    error.request_id(body.request_id).to_string()
}

/// Reads these two files as `~/.aws/config` and `~/.aws/credentials`. Returns the endpoint for a mount with this profile, and whether the
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
