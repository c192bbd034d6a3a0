//! Directories that the bucket has while they are empty, with `--directory-markers`: an object of the directory's name and a `/`. With
//! `--keep-metadata` the marker keeps the attributes of its directory. The mount shows those of the last HEAD while the facts about the
//! directory are valid.

use rustix::io::Errno;

use super::kept::{Keeping, refused};
use super::{Attr, Error, FileSystem, Maker, Result};
use crate::inode::InodeNo;
use crate::kept::{self, Kept, Words};
use crate::moves;
use crate::object::ObjectKey;
use crate::sync::Arc;

/// The MIME type of a marker, as s3fs and the console of AWS give it.
const CONTENT_TYPE: &str = "application/x-directory";
/// Most attempts at a marker that another client stores or removes between two requests; then the change fails (ESTALE). Doubling it
/// follows a busier client.
const ATTEMPTS_MAX: usize = 3;

/// A marker that the store did not confirm.
#[derive(Debug)]
pub(super) struct Unconfirmed {
    pub(super) error: Error,
    /// Whether the bucket may have the marker all the same.
    pub(super) may_be_there: bool,
}

impl From<Unconfirmed> for Error {
    fn from(unconfirmed: Unconfirmed) -> Self {
        unconfirmed.error
    }
}

impl FileSystem {
    /// Stores the marker of a directory that was made here, with `--directory-markers`. A marker that another client stored meanwhile
    /// stays. With `--commit fsync` and `disk` the marker is stored later.
    ///
    /// # Errors
    /// `EXIST`: another client's marker was first (`--mode full`); the errors of the store. The directory exists in this mount only.
    pub(super) async fn store_marker(&self, ino: InodeNo, maker: Maker) -> Result<()> {
        if !self.config.directory_markers {
            return Ok(());
        }
        let Some(key) = self.inodes.key_of(ino) else { return Ok(()) };
        if self.owes_marker(ino, &key).await? {
            return Ok(());
        }
        let kept = match self.keeps() {
            Some(_) => Kept {
                mode: Some(maker.mode & 0o7777),
                uid: Some(maker.uid),
                gid: Some(maker.gid),
                ..Kept::default()
            },
            None => Kept::default(),
        };
        let is_ours = self.put_marker(key.clone(), &kept).await?;
        // The name may be absent from memory only. A directory may be a lock, which one host gets.
        if !is_ours && self.full.is_some() {
            return Err(Error::new(Errno::EXIST, format!("\"{key}\": another client made this directory")));
        }
        self.inodes.stored_directory(ino);
        if let Some(keeping) = self.keeps().filter(|_| is_ours) {
            keeping.directories.set(ino, kept, self.clock.now());
        }
        Ok(())
    }

    /// Stores a marker with these attributes, unless the bucket has one; false in that case.
    pub(super) async fn put_marker(
        &self,
        key: ObjectKey,
        kept: &Kept,
    ) -> std::result::Result<bool, Unconfirmed> {
        let upload = self.uploader.create(key, true);
        let mut words = Words::new();
        kept.say_of_directory(&mut words);
        upload.described_by(move |properties, _| {
            properties.content_type = Some(CONTENT_TYPE.to_owned());
            properties.user.clone_from(&words);
        });
        let Err(error) = upload.finish().await else { return Ok(true) };
        let may_be_there = Error::leaves_doubt(&error);
        match Error::from(error) {
            error if error.errno() == Errno::EXIST => Ok(false),
            error => Err(Unconfirmed { error, may_be_there }),
        }
    }

    /// The key of the marker that keeps a directory's attributes. `None` for a file, for a bucket's root, and if markers keep none.
    pub(super) fn marker_of(&self, ino: InodeNo) -> Option<ObjectKey> {
        // In full mode, modes are shown as long as the mount lasts.
        if !self.config.directory_markers || self.full.is_some() || self.keeps().is_none() {
            return None;
        }
        self.inodes.key_of(ino).filter(|key| key.as_str().ends_with('/'))
    }

    /// The last known attributes of a directory, however old.
    pub(super) fn kept_of_directory(&self, keeping: &Keeping, ino: InodeNo) -> Option<Arc<Kept>> {
        keeping.directories.get(ino)
    }

    /// Whether a directory's attributes need a HEAD of its marker first.
    pub(super) fn is_marker_due(&self, ino: InodeNo) -> bool {
        let Some(keeping) = self.keeps() else { return false };
        let left = keeping.directories.left(ino, self.inodes.directory_ttl(), self.clock.now());
        left.is_zero() && self.marker_of(ino).is_some()
    }

    /// Limits the time for which the kernel may keep a directory's attributes to the validity of those from its marker.
    pub(super) fn while_marker_holds(&self, attr: Attr) -> Attr {
        let Some(keeping) = self.keeps() else { return attr };
        if self.marker_of(attr.ino).is_none() {
            return attr;
        }
        let left = keeping.directories.left(attr.ino, self.inodes.directory_ttl(), self.clock.now());
        Attr { valid_for: attr.valid_for.min(left), ..attr }
    }

    /// Asks the store for the attributes of a directory, unless they are known.
    ///
    /// # Errors
    /// The errors of the store.
    pub(super) async fn learn_directory(
        &self,
        keeping: &Keeping,
        ino: InodeNo,
        key: &ObjectKey,
    ) -> Result<()> {
        if !self.is_marker_due(ino) {
            return Ok(());
        }
        let asked = self.clock.now();
        let kept = match keeping.keeper.ask_marker(key).await {
            Ok(kept) => kept,
            // The keys of this mount may list names and not read the marker: the directory shows the attributes of the flags.
            Err(error) if error.is_denied() => Kept::default(),
            Err(error) => return Err(refused(&error, key, "reading the attributes of a directory")),
        };
        keeping.directories.set(ino, kept, asked);
        Ok(())
    }

    /// Changes attributes of a directory: the store copies its marker onto itself, or the call stores a new marker.
    ///
    /// # Errors
    /// `STALE`: another client changes the marker again and again; `NOSPC`: more than S3 keeps; those of the store.
    pub(super) async fn change_kept_of_directory(
        &self,
        keeping: &Keeping,
        ino: InodeNo,
        key: &ObjectKey,
        change: impl Fn(&mut Kept) + Send + Sync,
    ) -> Result<()> {
        let _turn = keeping.turn(ino).await;
        let doing = "changing the attributes of a directory";
        for _ in 0..ATTEMPTS_MAX {
            let after = match keeping.keeper.change_marker(key, &change).await {
                Ok(Some(after)) => Some(after),
                Ok(None) => {
                    let mut kept = Kept::default();
                    change(&mut kept);
                    if !kept.fits(&Words::new()) {
                        return Err(refused(&kept::Error::TooMuch, key, doing));
                    }
                    let is_ours = self.put_marker(key.clone(), &kept).await?;
                    is_ours.then_some(kept)
                }
                Err(kept::Error::Changed | kept::Error::Copy(moves::Error::Changing)) => None,
                Err(error) => return Err(refused(&error, key, doing)),
            };
            if let Some(after) = after {
                self.inodes.stored_directory(ino);
                keeping.directories.set(ino, after, self.clock.now());
                return Ok(());
            }
        }
        Err(Error::new(Errno::STALE, format!("\"{key}\": {doing}: another client changes its marker")))
    }
}
