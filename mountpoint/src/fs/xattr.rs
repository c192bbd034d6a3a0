//! Extended attributes: `user.*` of a file, with `--keep-metadata`; and `user.s3.*`, a HEAD's facts about an object, with `--xattrs`.

use std::ffi::OsStr;

use rustix::io::Errno;

use super::kept::{Keeping, refused};
use super::{Error, FileSystem, Result};
use crate::inode::InodeNo;
use crate::object::ObjectId;

/// Prefix of the names of facts of the store.
const OF_STORE: &str = "user.s3.";
/// Prefix of the names of attributes that programs may set.
const OF_USER: &str = "user.";
/// Flags of setxattr(2).
const CREATE: u32 = 1;
const REPLACE: u32 = 2;

impl FileSystem {
    /// The part of the mount that keeps or shows attributes.
    ///
    /// # Errors
    /// `NOSYS`: the mount has no extended attributes, and the kernel does not ask again.
    fn attributes(&self) -> Result<&Keeping> {
        self.kept.as_ref().ok_or_else(|| {
            let why = "this mount has no extended attributes: see --keep-metadata and --xattrs";
            Error::new(Errno::NOSYS, why)
        })
    }

    /// The value of an extended attribute, if memory has the answer. Before each write the kernel requests an attribute that no file has.
    pub fn try_getxattr(&self, ino: InodeNo, name: &OsStr) -> Option<Result<Vec<u8>>> {
        let keeping = match self.attributes() {
            Ok(keeping) => keeping,
            Err(error) => return Some(Err(error)),
        };
        let Some(name) = name.to_str().filter(|name| name.starts_with(OF_USER)) else {
            return Some(Err(unsupported()));
        };
        if keeping.shows && name.starts_with(OF_STORE) {
            return None;
        }
        if self.is_marker_due(ino) {
            return None;
        }
        let kept = self.kept_of(ino)?;
        Some(kept.xattrs.get(name).cloned().ok_or_else(|| absent(name)))
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `NODATA`: the file has no such attribute; `OPNOTSUPP`: no file can have an attribute of this name.
    pub async fn getxattr(&self, ino: InodeNo, name: &OsStr) -> Result<Vec<u8>> {
        let keeping = self.attributes()?;
        let name = name.to_str().filter(|name| name.starts_with(OF_USER)).ok_or_else(unsupported)?;
        if let Some(fact) = name.strip_prefix(OF_STORE).filter(|_| keeping.shows) {
            let Some(id) = self.inodes.stored(ino) else { return Err(absent(name)) };
            let facts = facts(keeping, &id).await?;
            let found = facts.into_iter().find(|(known, _)| *known == fact);
            return found.map(|(_, value)| value.into_bytes()).ok_or_else(|| absent(name));
        }
        self.learn(ino).await?;
        let kept = self.kept_of(ino).ok_or_else(|| absent(name))?;
        kept.xattrs.get(name).cloned().ok_or_else(|| absent(name))
    }

    /// The names of all extended attributes, each followed by a NUL.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn listxattr(&self, ino: InodeNo) -> Result<Vec<u8>> {
        let keeping = self.attributes()?;
        self.learn(ino).await?;
        let mut names: Vec<String> =
            self.kept_of(ino).map(|kept| kept.xattrs.keys().cloned().collect()).unwrap_or_default();
        if let Some(id) = self.inodes.stored(ino).filter(|_| keeping.shows) {
            let facts = facts(keeping, &id).await?;
            names.extend(facts.into_iter().map(|(name, _)| format!("{OF_STORE}{name}")));
        }
        Ok(names.into_iter().flat_map(|name| (name + "\0").into_bytes()).collect())
    }

    /// Sets an extended attribute. `flags`: those of setxattr(2).
    ///
    /// # Errors
    /// `EXIST`, `NODATA`: according to the flags; `OPNOTSUPP`: a directory without a marker, or a name other than `user.*`; `PERM`: a fact
    /// of the store; `NOSPC`: more than the 2 KiB of metadata that S3 keeps.
    pub async fn setxattr(&self, ino: InodeNo, name: &OsStr, value: &[u8], flags: u32) -> Result<()> {
        self.change_xattr(ino, name, Some(value), flags).await
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// The errors of [`FileSystem::setxattr`].
    pub async fn removexattr(&self, ino: InodeNo, name: &OsStr) -> Result<()> {
        self.change_xattr(ino, name, None, REPLACE).await
    }

    async fn change_xattr(&self, ino: InodeNo, name: &OsStr, value: Option<&[u8]>, flags: u32) -> Result<()> {
        let keeping = self.attributes()?;
        self.may_change()?;
        let name = name.to_str().filter(|name| name.starts_with(OF_USER)).ok_or_else(unsupported)?;
        if keeping.shows && name.starts_with(OF_STORE) {
            return Err(Error::new(Errno::PERM, format!("{name}: the store says this, and nobody sets it")));
        }
        let has_object = self.inodes.is_file(ino) || self.marker_of(ino).is_some();
        if !keeping.keeps || !has_object {
            return Err(unsupported());
        }
        self.learn(ino).await?;
        let is_there = self.kept_of(ino).is_some_and(|kept| kept.xattrs.contains_key(name));
        if is_there && flags & CREATE != 0 {
            return Err(Error::new(Errno::EXIST, format!("{name} is there already")));
        }
        if !is_there && flags & REPLACE != 0 {
            return Err(absent(name));
        }
        let change = |kept: &mut crate::kept::Kept| match value {
            Some(value) => drop(kept.xattrs.insert(name.to_owned(), value.to_vec())),
            None => drop(kept.xattrs.remove(name)),
        };
        if let Some(kept) = self.kept_of(ino) {
            let mut after = (*kept).clone();
            change(&mut after);
            if !after.fits(&crate::kept::Words::new()) {
                let why = format!("{name}: S3 keeps 2 KiB of metadata of an object");
                return Err(Error::new(Errno::NOSPC, why).already_logged());
            }
        }
        self.change_kept(keeping, ino, change).await
    }
}

/// Facts about an object, from a HEAD.
async fn facts(keeping: &Keeping, id: &ObjectId) -> Result<Vec<(&'static str, String)>> {
    let described = keeping.keeper.describe(id).await;
    let told = described.map_err(|error| refused(&error, &id.key, "reading what the store says of it"))?;
    let class = told.properties.storage_class.unwrap_or_else(|| "STANDARD".to_owned());
    let facts = [
        ("etag", Some(told.meta.etag.as_str().to_owned()).filter(|_| !told.meta.etag.is_none())),
        ("version", told.version),
        ("storage-class", Some(class)),
        ("checksum", told.checksum),
    ];
    Ok(facts.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
}

fn absent(name: &str) -> Error {
    Error::new(Errno::NODATA, format!("{name} is not set")).already_logged()
}

fn unsupported() -> Error {
    let why = "only files have extended attributes here, and only user.*";
    Error::new(Errno::OPNOTSUPP, why).already_logged()
}
