//! Directories that the bucket has while nothing is in them, with `--directory-markers`: an object of the directory's name and a `/`.

use rustix::io::Errno;

use super::{Error, FileSystem, Maker, Result};
use crate::inode::InodeNo;
use crate::kept::{Words, words_of_directory};

/// The MIME type of a marker, as s3fs and the console of AWS give it.
const CONTENT_TYPE: &str = "application/x-directory";

impl FileSystem {
    /// Stores the marker of a directory that was made here, if the mount does so. Another client's marker is as good.
    ///
    /// # Errors
    /// The errors of the store; the directory is here only.
    pub(super) async fn store_marker(&self, ino: InodeNo, maker: Maker) -> Result<()> {
        if !self.config.directory_markers {
            return Ok(());
        }
        let Some(key) = self.inodes.key_of(ino) else { return Ok(()) };
        let upload = self.uploader.create(key, true);
        let words = match self.keeps() {
            Some(_) => words_of_directory(maker.mode, maker.uid, maker.gid),
            None => Words::new(),
        };
        upload.described_by(move |properties, _| {
            properties.content_type = Some(CONTENT_TYPE.to_owned());
            properties.user.clone_from(&words);
        });
        if let Err(error) = upload.finish().await.map_err(Error::from)
            && error.errno() != Errno::EXIST
        {
            return Err(error);
        }
        self.inodes.stored_directory(ino);
        Ok(())
    }
}
