//! Directories that were made here and whose markers the bucket lacks. An empty file in `files/` stands for each, so that a look at the
//! directory of the stage shows that something waits.

use super::log::Record;
use super::{Area, Error};
use crate::object::ObjectKey;

impl Area {
    /// Notes that the bucket lacks the marker of a directory. Returns the number of the directory in the stage.
    ///
    /// # Errors
    /// `Disk`: nothing is noted.
    pub fn owe_marker(&self, key: &ObjectKey) -> Result<u64, Error> {
        let folder = &self.0.folder;
        let note = || {
            let (number, _empty) = folder.create()?;
            let noted = folder.append(&[Record::Directory { file: number, key: key.as_str().to_owned() }]);
            if noted.is_err() {
                // The next mount would find a file without a record, which it deletes.
                let _ = folder.disk().remove(&folder.path(number));
            }
            noted.map(|()| number)
        };
        Ok(self.on_disk(note)?)
    }

    /// Notes that a directory owes no marker any more: the bucket has it, or the directory was removed.
    ///
    /// # Errors
    /// `Disk`: the directory still owes its marker.
    pub fn owes_no_marker(&self, number: u64) -> Result<(), Error> {
        Ok(self.on_disk(|| self.0.folder.owes_no_more(number))?)
    }

    /// The directories that an earlier mount left: number and key of each. Call this before the first directory is made.
    pub fn left_directories(&self) -> Vec<(u64, ObjectKey)> {
        self.0.folder.owing().into_iter().map(|(number, key)| (number, ObjectKey::new(key))).collect()
    }

    /// Number of records that a loss of power would destroy.
    #[cfg(test)]
    pub(crate) fn undurable(&self) -> u64 {
        self.0.folder.undurable()
    }

    /// Makes all earlier records of the log durable.
    ///
    /// # Errors
    /// `Disk`.
    pub async fn sync_log(&self) -> Result<(), Error> {
        Ok(self.0.sync_log().await?)
    }
}
