//! lookup, getattr, setattr, readdir, mkdir, rmdir, unlink, statfs.

use std::ffi::OsStr;

use rustix::io::Errno;

use super::handle::DirHandle;
use super::{Attr, Attributes, Entry, Error, FileSystem, HandleNo, Maker, Result};
use crate::inode::{DirEntry, ErrorKind, Found, InodeNo, TimeWish, Unlinked};
use crate::sync::Mutex;

/// Number of entries of a listing whose attributes the mount requests at once, ahead of the kernel's requests. Doubling it helps a long
/// listing on a distant store, and wastes requests if a program reads no further.
const AHEAD: usize = 512;
/// The changes that a setattr requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permission bits from chmod, perhaps with the bits of the kind.
    pub mode: Option<u32>,
    /// New owner, from chown.
    pub uid: Option<u32>,
    /// New group, from chown.
    pub gid: Option<u32>,
    /// New size in bytes, from truncate.
    pub size: Option<u64>,
    /// The descriptor of ftruncate; truncate has none.
    pub handle: Option<HandleNo>,
    /// New access time, from utimens.
    pub accessed: Option<TimeWish>,
    /// New modification time, from utimens.
    pub modified: Option<TimeWish>,
}

impl SetAttr {
    /// Whether the file shows the wanted mode and owner already.
    fn keeps_mode_and_owner(&self, attr: &Attr) -> bool {
        let keeps = |wish: Option<u32>, shown| wish.is_none_or(|wish| wish == shown);
        let bits = self.mode.map(|mode| mode & 0o7777);
        keeps(bits, attr.mode.into()) && keeps(self.uid, attr.uid) && keeps(self.gid, attr.gid)
    }

    /// Whether the file shows the wanted times already.
    fn keeps_times(&self, attr: &Attr) -> bool {
        let keeps = |wish: Option<TimeWish>, shown| wish.is_none_or(|wish| wish == TimeWish::At(shown));
        keeps(self.accessed, attr.accessed) && keeps(self.modified, attr.modified)
    }
}

/// One name of a directory.
#[derive(Clone, Debug)]
pub struct DirItem {
    /// The attributes of the file or directory.
    pub attr: Attr,
    /// The offset at which a listing continues behind this name.
    pub offset: u64,
    entry: DirEntry,
}

/// The answer to statfs. A bucket has no size, so the figures are large enough that no program refuses to write. Scripts compare them:
/// they equal those of AWS's mount-s3.
#[derive(Clone, Copy, Debug)]
pub struct StatFs {
    /// Number of blocks, all of them free.
    pub blocks: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Number of files, all of them free.
    pub files: u64,
    /// Bytes of the longest name.
    pub name_max: u32,
}

impl FileSystem {
    /// Looks a name up, if memory has the answer.
    pub fn try_lookup(&self, parent: InodeNo, name: &OsStr) -> Option<Result<Entry>> {
        if self.keeps().is_some() {
            return None;
        }
        Some(self.inodes.try_lookup(parent, name)?.map(|f| self.entry(&f)).map_err(Error::from))
    }

    /// Looks a name up. The kernel holds one more reference to the inode that is found.
    pub async fn lookup(&self, parent: InodeNo, name: &OsStr) -> Result<Entry> {
        let found = self.inodes.lookup(parent, name).await?;
        match self.learn(found.ino).await {
            Ok(()) => Ok(self.entry(&found)),
            Err(error) => {
                self.inodes.forget(found.ino, 1);
                Err(error)
            }
        }
    }

    /// Releases `count` of the kernel's references to an inode.
    pub fn forget(&self, ino: InodeNo, count: u64) {
        self.inodes.forget(ino, count);
        self.forgotten(ino);
        if let Some(keeping) = self.keeps()
            && self.inodes.key_of(ino).is_none()
        {
            keeping.forget(ino);
        }
    }

    /// The entry of a found name, with the known attributes.
    pub(super) fn entry(&self, found: &Found) -> Entry {
        Entry { attr: self.attr(found.ino, &found.stat), valid_for: found.entry_valid_for }
    }

    /// The attributes of an inode, if memory has them.
    pub fn try_getattr(&self, ino: InodeNo) -> Option<Result<Attr>> {
        if self.keeps().is_some() {
            return None;
        }
        Some(self.inodes.try_getattr(ino)?.map(|s| self.attr(ino, &s)).map_err(Error::from))
    }

    /// The attributes of an inode.
    pub async fn getattr(&self, ino: InodeNo) -> Result<Attr> {
        let stat = self.inodes.getattr(ino).await?;
        self.learn(ino).await?;
        Ok(self.attr(ino, &stat))
    }

    /// Changes attributes, as far as a bucket can: S3 stores none of them. Changes to unstored entries (a file being written, a new
    /// directory) are accepted, because `cp` and `tar` make them: a file shows its new times until it is stored, and other changes have no
    /// effect. Changes to stored entries are refused, unless the entry shows the requested attributes already, or `--ignore-attributes`
    /// demands a pretended success.
    pub async fn setattr(&self, ino: InodeNo, wish: SetAttr) -> Result<Attr> {
        self.may_change()?;
        if self.full.is_some() {
            return self.setattr_in_full(ino, wish).await;
        }
        let attr = self.getattr(ino).await?;
        let local = self.inodes.is_local(ino);
        // Any program may truncate by path. The program gets the error, and the writer goes on.
        let is_set = match (wish.size, wish.handle) {
            (Some(size), Some(handle)) => self.set_size(handle, size)?,
            _ => false,
        };
        let attr = if is_set { self.getattr(ino).await? } else { attr };
        if let Some(size) = wish.size
            && !is_set
            && size != attr.size
        {
            let why = format!(
                "inode {}: truncate to {size}: files can only be written from the start; open with O_TRUNC under --allow-overwrite",
                ino.0
            );
            return Err(Error::new(Errno::PERM, why));
        }
        let changes_nothing = wish.keeps_mode_and_owner(&attr) && wish.keeps_times(&attr);
        if let Some(keeping) = self.keeps().filter(|_| !changes_nothing) {
            return self.set_kept(keeping, ino, wish, attr).await;
        }
        if !local && !changes_nothing && self.config.attributes == Attributes::Refused {
            let why = format!(
                "inode {}: S3 stores no owners, modes or times; the mount's --uid, --gid, --file-mode, --dir-mode set them for all, \
                 --keep-metadata keeps them in the objects' metadata, and with --ignore-attributes such changes succeed without effect",
                ino.0
            );
            return Err(Error::new(Errno::PERM, why));
        }
        if !local || wish.accessed.is_none() && wish.modified.is_none() {
            return Ok(attr);
        }
        self.inodes.set_times(ino, wish.accessed, wish.modified);
        self.getattr(ino).await
    }

    pub(super) fn may_change(&self) -> Result<()> {
        if self.config.read_only {
            return Err(Error::new(Errno::ROFS, "the mount is read-only"));
        }
        Ok(())
    }

    /// Makes a new, empty file. The bucket has it after an open for writing and a close.
    pub async fn make_file(&self, parent: InodeNo, name: &OsStr, maker: Maker) -> Result<Entry> {
        self.may_change()?;
        let made = self.inodes.create(parent, name).await?;
        self.made_by(made.ino, maker);
        self.names_changed(parent);
        Ok(self.entry(&made))
    }

    /// Makes a new file for mknod(2), which neither opens nor closes it: in the stage the file is stored like any other.
    ///
    /// # Errors
    /// The errors of [`FileSystem::make_file`], and those of a file that is stored by its close.
    pub async fn mknod(&self, parent: InodeNo, name: &OsStr, maker: Maker) -> Result<Entry> {
        let entry = self.make_file(parent, name, maker).await?;
        if self.full.is_some()
            && let Err(error) = self.set_size_in_full(entry.attr.ino, SetAttr::default(), 0).await
        {
            self.inodes.remove_new(entry.attr.ino);
            self.forget(entry.attr.ino, 1);
            return Err(error);
        }
        Ok(entry)
    }

    /// Makes a new directory. The bucket has it after a file below is stored, or at once with `--directory-markers`.
    pub async fn mkdir(&self, parent: InodeNo, name: &OsStr, maker: Maker) -> Result<Entry> {
        self.may_change()?;
        let _change = self.change_names(&[(parent, name)]).await;
        let made = self.inodes.mkdir(parent, name).await?;
        if let Err(error) = self.store_marker(made.ino, maker).await {
            // The directory is empty, and the bucket has none or another client's: the next lookup asks.
            self.inodes.set_apart(made.ino);
            self.forget(made.ino, 1);
            return Err(error);
        }
        self.directory_made_in_full(made.ino, maker);
        self.names_changed(parent);
        Ok(self.entry(&made))
    }

    /// Removes a directory that has nothing but a marker in the bucket.
    pub async fn rmdir(&self, parent: InodeNo, name: &OsStr) -> Result<()> {
        self.may_change()?;
        let _change = self.change_names(&[(parent, name)]).await;
        match self.full.is_some() {
            true => self.rmdir_in_full(parent, name).await?,
            false => self.inodes.rmdir(parent, name, self.config.allow_delete).await?,
        }
        self.names_changed(parent);
        Ok(())
    }

    /// Deletes a file, where that is allowed. Cancels an upload that goes on after the last close.
    pub async fn unlink(&self, parent: InodeNo, name: &OsStr) -> Result<()> {
        self.may_change()?;
        let _change = self.change_names(&[(parent, name)]).await;
        if self.full.is_some() {
            self.unlink_in_full(parent, name).await?;
            self.names_changed(parent);
            return Ok(());
        }
        let mut was_written = false;
        loop {
            match self.inodes.unlink(parent, name, self.config.allow_delete).await {
                Ok(Unlinked::Gone) => return Ok(()),
                Ok(Unlinked::Busy { writer }) => self.cancel_writer(HandleNo(writer)).await?,
                // The name disappeared with its writer.
                Err(error) if was_written && matches!(error.kind(), ErrorKind::NotFound) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            was_written = true;
        }
    }

    /// Opens a directory.
    pub async fn opendir(&self, ino: InodeNo) -> Result<HandleNo> {
        let listing = self.inodes.opendir(ino).await?;
        let no = self.dirs.reserve();
        self.dirs.insert(no, DirHandle { ino, listing, places: Mutex::default() });
        Ok(no)
    }

    /// The names of a directory from `offset` on, `.` and `..` first; no name at the end.
    pub async fn readdir(&self, handle: HandleNo, offset: u64, max: usize) -> Result<Vec<DirItem>> {
        let dir = self.dirs.get(handle)?;
        let entries = dir.listing.entries(&self.inodes, offset, max).await?;
        if !self.knows_all(dir.ino, &entries) {
            let ahead = dir.listing.entries(&self.inodes, offset, max.max(AHEAD)).await;
            self.learn_all(dir.ino, ahead.as_ref().unwrap_or(&entries)).await;
        }
        Ok(self.items(dir.ino, entries))
    }

    /// The names of a directory from `offset` on, from memory; `None` if a page is still to come.
    pub fn try_readdir(&self, handle: HandleNo, offset: u64, max: usize) -> Option<Result<Vec<DirItem>>> {
        let dir = self.dirs.find(handle)?;
        let entries = dir.listing.try_entries(&self.inodes, offset, max)?;
        if entries.as_ref().is_ok_and(|entries| !self.knows_all(dir.ino, entries)) {
            return None;
        }
        Some(entries.map(|entries| self.items(dir.ino, entries)).map_err(Into::into))
    }

    fn items(&self, directory: InodeNo, entries: Vec<DirEntry>) -> Vec<DirItem> {
        let item = |entry: DirEntry| DirItem {
            attr: self.entry_attr(directory, &entry),
            offset: entry.offset,
            entry,
        };
        entries.into_iter().map(item).collect()
    }

    /// Creates entries of these items of a listing, and counts one more reference of the kernel to each. `None` for `.` and `..`.
    pub fn remember(&self, handle: HandleNo, items: &[DirItem]) -> Vec<Option<Entry>> {
        let Some(dir) = self.dirs.find(handle) else { return vec![None; items.len()] };
        let is_name = |item: &&DirItem| item.name() != "." && item.name() != "..";
        let dots = items.iter().take_while(|item| !is_name(item)).count();
        let found = self.inodes.remember_all(dir.ino, items[dots..].iter().map(|item| &item.entry));
        let found = found.iter().map(|found| Some(self.entry(found)));
        std::iter::repeat_n(None, dots).chain(found).collect()
    }

    /// Closes a directory.
    pub fn releasedir(&self, handle: HandleNo) {
        self.dirs.remove(handle);
        self.forget_listing(handle);
    }

    /// Size and limits of the file system.
    pub fn statfs(&self) -> StatFs {
        StatFs { blocks: u64::MAX / 1024, block_size: 512, files: u64::MAX / 1024, name_max: 255 }
    }
}

impl DirItem {
    /// The name.
    pub fn name(&self) -> &OsStr {
        OsStr::new(self.entry.name())
    }
}
