//! Multipart uploads, except the parts themselves (`put.rs`) and the completion (`complete.rs`).

use http::{Method, StatusCode};

use crate::s3::attempts::Attempts;
use crate::s3::failure::Failure;
use crate::s3::ops::checksummed::{Proof, with_proof};
use crate::s3::ops::delete::is_gone;
use crate::s3::ops::encryption;
use crate::s3::ops::headers::{checksum_type, new_object_headers, push};
use crate::s3::ops::page::page;
use crate::s3::url::{encode_query, push_query};
use crate::s3::wire::{Collected, Draft, Wire};
use crate::s3::{Error, ErrorKind, NewObject, PendingUpload, Result, UploadId, xml};

/// Most pages of a listing of uploads. Beyond it, the listing fails: a broken store's listing may never end.
const PAGES_MAX: usize = 1000;

/// Path and query of an upload in progress.
pub(crate) fn upload_target(wire: &Wire, upload: &UploadId) -> String {
    let mut target = wire.endpoint.key_path(upload.key.as_str());
    target.push_str("?uploadId=");
    encode_query(&mut target, &upload.id);
    target
}

/// Begins an upload, see [`crate::s3::ObjectClient::create_multipart_upload`].
pub(crate) async fn create(wire: &Wire, request: &NewObject) -> Result<UploadId> {
    // There are no bytes yet, so there is no MD5.
    let begin = |proof: Proof| begin(wire, request, proof.checksum);
    with_proof(wire, request.checksum.is_some(), false, begin).await
}

async fn begin(wire: &Wire, request: &NewObject, named: bool) -> Result<UploadId> {
    const OPERATION: &str = "CreateMultipartUpload";
    let mut headers = new_object_headers(wire, OPERATION, request)?;
    let checksum = request.checksum.filter(|_| named);
    if let Some(algorithm) = checksum {
        push(&mut headers, OPERATION, "x-amz-checksum-algorithm", algorithm.name())?;
    }
    if let Some(kind) = checksum.and_then(checksum_type) {
        push(&mut headers, OPERATION, "x-amz-checksum-type", kind)?;
    }
    // A parameter without a value has an empty one, as signatures require.
    let target = wire.endpoint.key_path(request.key.as_str()) + "?uploads=";
    let mut attempts = Attempts::new(wire, OPERATION, Some(&request.key), 0);
    loop {
        let draft = Draft {
            headers: headers.clone(),
            body: Some(&[]),
            ..attempts.draft(Method::POST, target.clone())
        };
        match created(wire, draft).await {
            Ok((id, answer)) => {
                attempts.succeeded();
                let upload = UploadId { key: request.key.clone(), id };
                let Err(why) = encryption::proven(&wire.config, &answer.headers) else { return Ok(upload) };
                // Nothing else knows the upload's id, so it is aborted here.
                let _ = abort(wire, &upload).await.map_err(|error| error.log(&wire.metrics));
                let why = format!(
                    "{why}; no byte was sent: check whether the store, and any proxy before it, knows these headers"
                );
                return Err(answer.wrong(ErrorKind::NotEncrypted, why).error);
            }
            Err(failure) => attempts.again(failure).await?,
        }
    }
}

async fn created(wire: &Wire, draft: Draft<'_>) -> std::result::Result<(String, Collected), Failure> {
    let answer = wire.exchange(&draft).await?.collect(xml::BODY_MAX).await?;
    if answer.status != StatusCode::OK {
        return Err(answer.failed(wire.clock.wall()));
    }
    match xml::upload_id(&answer.body) {
        Ok(id) => Ok((id, answer)),
        Err(why) => Err(answer.unexpected(why, wire.clock.wall())),
    }
}

/// Aborts an upload, see [`crate::s3::ObjectClient::abort_multipart_upload`].
pub(crate) async fn abort(wire: &Wire, upload: &UploadId) -> Result<()> {
    const OPERATION: &str = "AbortMultipartUpload";
    let mut attempts = Attempts::new(wire, OPERATION, Some(&upload.key), 0);
    loop {
        match aborted(wire, attempts.draft(Method::DELETE, upload_target(wire, upload))).await {
            Ok(()) => {
                attempts.succeeded();
                return Ok(());
            }
            Err(failure) => attempts.again(failure).await?,
        }
    }
}

async fn aborted(wire: &Wire, draft: Draft<'_>) -> std::result::Result<(), Failure> {
    let answer = wire.exchange(&draft).await?.collect(xml::BODY_MAX).await?;
    is_gone(answer, wire.clock.wall())
}

/// Lists uploads, see [`crate::s3::ObjectClient::list_multipart_uploads`].
pub(crate) async fn list_uploads(wire: &Wire, prefix: &str) -> Result<Vec<PendingUpload>> {
    const OPERATION: &str = "ListMultipartUploads";
    let mut found = Vec::new();
    let mut markers = xml::UploadMarkers::default();
    for _ in 0..PAGES_MAX {
        let target = listing_target(wire.endpoint.bucket_path(), prefix, &markers);
        let attempts = Attempts::new(wire, OPERATION, None, 0);
        let mut page = page(wire, attempts, &target, |answer| xml::upload_page(&answer.body)).await?;
        // Some stores ignore the prefix.
        page.uploads.retain(|u| u.upload.key.as_str().starts_with(prefix));
        found.append(&mut page.uploads);
        match page.next {
            None => return Ok(found),
            Some(next) if next == markers => break,
            Some(next) => markers = next,
        }
    }
    Err(Error::new(ErrorKind::BadAnswer, OPERATION).message("the listing of uploads does not end"))
}

/// Path and query, with parameters in alphabetical order for the signature.
fn listing_target(bucket_path: &str, prefix: &str, after: &xml::UploadMarkers) -> String {
    let mut target = bucket_path.to_owned();
    let parameters = [
        ("key-marker", after.key.as_deref()),
        ("prefix", Some(prefix)),
        ("upload-id-marker", after.id.as_deref()),
        ("uploads", Some("")),
    ];
    push_query(&mut target, parameters);
    target
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_stands_in_canonical_order() {
        let first = listing_target("/bucket", "a b/", &xml::UploadMarkers::default());
        assert_eq!(first, "/bucket?prefix=a%20b%2F&uploads=");
        let after = xml::UploadMarkers { key: Some("a b/c".into()), id: Some("u+1".into()) };
        assert_eq!(
            listing_target("/", "", &after),
            "/?key-marker=a%20b%2Fc&prefix=&upload-id-marker=u%2B1&uploads="
        );
    }
}
