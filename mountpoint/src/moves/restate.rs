//! Replaces the user metadata of an object: the store copies the object onto itself, and a HEAD proves the new metadata.

use std::collections::BTreeMap;

use super::{Error, Mover, Result};
use crate::object::{ObjectId, ObjectKey, ObjectMeta};
use crate::s3::{CopyObject, Described, ErrorKind, Properties, Replaces};

/// A version of an object that has the bytes of an earlier one, and other metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restated {
    /// The version that was copied onto itself.
    pub source: ObjectId,
    /// The new version.
    pub id: ObjectId,
    /// The metadata of the new version.
    pub meta: ObjectMeta,
}

impl Mover {
    /// Replaces the user metadata of the `described` version with `words`. Bytes, headers, tags and storage class stay unchanged.
    ///
    /// # Errors
    /// `Changing`: the object has another version by now, or is gone; `Different`: the store did not accept the metadata; `Remote`.
    pub async fn restate(
        &self,
        key: &ObjectKey,
        described: Described,
        words: BTreeMap<String, String>,
    ) -> Result<Restated> {
        let id = ObjectId::of(key.clone(), &described.meta);
        let replaces = match id.etag.if_match() {
            Some(_) => Replaces::Version(id.etag.clone()),
            None => Replaces::Anything,
        };
        let properties = Properties { user: words, ..described.properties.clone() };
        let stored = if described.meta.size > self.config.copy_max {
            let source = Described { properties: properties.clone(), ..described.clone() };
            self.copy_in_parts(&id, &source, key, &replaces, None).await
        } else {
            let request = CopyObject {
                source: id.clone(),
                size: described.meta.size,
                checksum: described.checksum.clone(),
                to: key.clone(),
                replaces,
                properties: Some(properties.clone()),
                storage_class: properties.storage_class.clone(),
            };
            self.client.copy_object(&request).await
        };
        if let Err(error) = stored {
            return Err(match error.kind() {
                ErrorKind::Exists | ErrorKind::Changed | ErrorKind::NotFound => Error::Changing,
                _ => error.into(),
            });
        }
        // A copy whose answer was lost counts as made if the object has the old size and the new metadata.
        let there = match self.client.describe_object(key).await {
            Ok(there) => there,
            Err(error) if *error.kind() == ErrorKind::NotFound => return Err(Error::Changing),
            Err(error) => return Err(error.into()),
        };
        if there.meta.size != described.meta.size {
            return Err(Error::Changing);
        }
        if there.properties.user != properties.user {
            return Err(Error::Different("the store has not the metadata that it was given".into()));
        }
        let now = ObjectId::of(key.clone(), &there.meta);
        Ok(Restated { source: id, id: now, meta: there.meta })
    }
}
