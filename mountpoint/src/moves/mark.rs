//! The mark of a directory as Hadoop and EMR write it: an empty object beside it, `dir_$folder$`. It is renamed together with the
//! directory.

use super::{Copied, Error, Mover, Replaces, Result};
use crate::object::{ObjectId, ObjectKey, ObjectMeta};
use crate::s3::ErrorKind;

/// A directory's mark that exists under the old and the new name.
#[derive(Debug)]
pub(super) struct Mark {
    copied: Copied,
    /// Whether this rename made the mark under the new name.
    is_new: bool,
}

impl Mover {
    /// Copies the mark of a directory, if the mount honours marks and the directory has one.
    ///
    /// # Errors
    /// `Taken`: another object has the mark's new name; `NameTooLong`; the errors of a copy.
    pub(super) async fn copy_mark(&self, from: &ObjectKey, to: &ObjectKey) -> Result<Option<Mark>> {
        if !self.config.folder_marks {
            return Ok(None);
        }
        let Some((key, meta)) = self.mark_of(from).await? else { return Ok(None) };
        let Some(new) = to.folder_mark() else { return Err(Error::NameTooLong(to.as_str().to_owned())) };
        match self.copy(&key, &new, &Replaces::Nothing).await {
            Ok(copied) => Ok(Some(Mark { copied, is_new: true })),
            Err(Error::Gone) => Ok(None),
            Err(Error::Taken) => {
                // A mark that already has the new name is as good as a copy.
                let Some((new, there)) = self.mark_of(to).await? else { return Err(Error::Taken) };
                let (source, id) = (ObjectId::of(key, &meta), ObjectId::of(new, &there));
                Ok(Some(Mark { copied: Copied { source, id, meta: there }, is_new: false }))
            }
            Err(error) => Err(error),
        }
    }

    /// Deletes the mark under the old name. `others`: the number of the directory's objects, which now have only the new name.
    ///
    /// # Errors
    /// `Partial`; without other objects an error of the store, and the copy is removed again.
    pub(super) async fn delete_mark(&self, mark: Option<Mark>, others: usize) -> Result<()> {
        let Some(mark) = mark else { return Ok(()) };
        match self.delete_source(&mark.copied).await {
            Ok(_) => Ok(()),
            Err(error) if others > 0 => {
                Err(Error::Partial { left: 1, of: others + 1, error: error.to_string() })
            }
            Err(error @ Error::Undecided(_)) => Err(error),
            Err(error) => {
                self.take_mark_back(Some(mark)).await;
                Err(error)
            }
        }
    }

    /// Deletes the copy of a mark, as far as the store allows, if this rename made it.
    pub(super) async fn take_mark_back(&self, mark: Option<Mark>) {
        if let Some(mark) = mark.filter(|mark| mark.is_new) {
            self.take_back(&mark.copied).await;
        }
    }

    async fn mark_of(&self, directory: &ObjectKey) -> Result<Option<(ObjectKey, ObjectMeta)>> {
        let Some(key) = directory.folder_mark() else { return Ok(None) };
        match self.client.head_object(&key).await {
            Ok(meta) => Ok(Some((key, meta)).filter(|(_, meta)| meta.size == 0)),
            Err(error) if *error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
