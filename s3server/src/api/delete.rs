//! DeleteObject and DeleteObjects.

use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Response};

use super::error::{to_s3, unknown};
use super::object::condition;
use super::{Answer, Folder};

/// Most keys of one DeleteObjects, as in S3; more are refused.
const KEYS_MAX: usize = 1000;

impl Folder {
    pub(super) async fn delete_object_(&self, input: DeleteObjectInput) -> Answer<DeleteObjectOutput> {
        if input.if_match_last_modified_time.is_some() || input.if_match_size.is_some() {
            return Err(unknown("conditions on time and size of a delete"));
        }
        let if_ = condition(input.if_match, None)?;
        self.blocking(move |store| store.bucket(&input.bucket)?.delete(&input.key, &if_)).await?;
        Ok(S3Response::with_status(DeleteObjectOutput::default(), http::StatusCode::NO_CONTENT))
    }

    pub(super) async fn delete_objects_(&self, input: DeleteObjectsInput) -> Answer<DeleteObjectsOutput> {
        let Delete { objects, quiet, .. } = input.delete;
        if objects.len() > KEYS_MAX {
            return Err(S3Error::with_message(S3ErrorCode::MalformedXML, "More than 1000 keys."));
        }
        let policy = self.policy.clone();
        let outcomes = self
            .blocking(move |store| {
                let bucket = store.bucket(&input.bucket)?;
                let delete = |object: ObjectIdentifier| {
                    let outcome = if object.version_id.as_ref().is_some_and(|id| id != "null") {
                        Err(unknown("object versions"))
                    } else {
                        policy
                            .allows(&object.key)
                            .and_then(|()| condition(object.e_tag.map(ETagCondition::ETag), None))
                            .and_then(|if_| bucket.delete(&object.key, &if_).map_err(to_s3))
                    };
                    (object.key, outcome)
                };
                Ok(objects.into_iter().map(delete).collect::<Vec<_>>())
            })
            .await?;
        let mut output = DeleteObjectsOutput::default();
        for (key, outcome) in outcomes {
            match outcome {
                Ok(()) if quiet == Some(true) => {}
                Ok(()) => {
                    let deleted = DeletedObject { key: Some(key), ..DeletedObject::default() };
                    output.deleted.get_or_insert_default().push(deleted);
                }
                Err(error) => output.errors.get_or_insert_default().push(Error {
                    code: Some(error.code().as_str().to_owned()),
                    key: Some(key),
                    message: error.message().map(str::to_owned),
                    version_id: None,
                }),
            }
        }
        Ok(S3Response::new(output))
    }
}
