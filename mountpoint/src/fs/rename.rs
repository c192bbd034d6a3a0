//! rename, and the kinds of names that a bucket does not have.

use std::ffi::OsStr;

use rustix::io::Errno;

use super::{Entry, Error, FileSystem, Result};
use crate::inode::InodeNo;

impl FileSystem {
    /// Gives a file or directory another name. S3 has no such request: it is refused, and nothing is sent. (Most stores answer RenameObject
    /// with 200 and an empty object.)
    pub async fn rename(
        &self,
        _parent: InodeNo,
        name: &OsStr,
        _new_parent: InodeNo,
        _new_name: &OsStr,
        flags: u32,
    ) -> Result<()> {
        // With flags, programs take EINVAL for "not with these", and rename without them.
        let errno = if flags == 0 { Errno::NOSYS } else { Errno::INVAL };
        let why = format!("{:?}: S3 has no rename: copy the file, and remove it", name.display());
        Err(Error::new(errno, why).already_logged())
    }

    /// A symbolic link: refused.
    pub fn symlink(&self) -> Result<Entry> {
        Err(Error::new(Errno::PERM, "S3 has no symbolic links").already_logged())
    }
}
