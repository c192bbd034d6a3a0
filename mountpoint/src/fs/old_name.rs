//! Old names of files that were renamed during their upload: nothing else gets such a name before the upload has ended.

use rustix::io::Errno;

use super::{Error, Result};
use crate::object::ObjectKey;
use crate::sync::{Arc, Mutex};

/// Keys whose upload goes on though its file was renamed. A file of another program under such a name would be replaced when that upload
/// completes, and would then move with it.
#[derive(Clone, Debug, Default)]
pub(super) struct OldNames(Arc<Mutex<Vec<Entry>>>);

/// An old name, and the number of the handle whose upload has it.
type Entry = (ObjectKey, u64);

/// The old name of a file that is being written; its drop frees the name.
#[derive(Debug)]
pub(super) struct OldName {
    names: OldNames,
    entry: Entry,
}

impl OldNames {
    /// Takes an old name for the file of the handle with this number.
    pub(super) fn enter(&self, key: ObjectKey, no: u64) -> OldName {
        self.0.lock().push((key.clone(), no));
        OldName { names: self.clone(), entry: (key, no) }
    }

    /// Whether a file may get this name, or a directory. `is_own`: whether the file of the handle with this number would get its old name
    /// back.
    ///
    /// # Errors
    /// `BUSY`: the upload of a renamed file still has the name.
    pub(super) fn may_be_taken(
        &self,
        key: &ObjectKey,
        is_own: impl Fn(&ObjectKey, u64) -> bool,
    ) -> Result<()> {
        let mut taken = self.0.lock().clone();
        taken.retain(|(old, _)| {
            old == key || key.as_str().ends_with('/') && old.as_str().starts_with(key.as_str())
        });
        let Some((old, _)) = taken.into_iter().find(|(old, no)| !is_own(old, *no)) else { return Ok(()) };
        let why = format!(
            "\"{old}\" is free once the file is closed that had this name: it was renamed while it was uploaded"
        );
        Err(Error::new(Errno::BUSY, why))
    }
}

impl OldName {
    /// The name.
    pub(super) fn key(&self) -> &ObjectKey {
        &self.entry.0
    }
}

impl Drop for OldName {
    fn drop(&mut self) {
        let mut names = self.names.0.lock();
        if let Some(at) = names.iter().position(|entry| *entry == self.entry) {
            names.swap_remove(at);
        }
    }
}
