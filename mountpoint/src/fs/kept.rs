//! Attributes that objects keep, with `--keep-metadata`: shown, changed, and stored with a file; and, with `--xattrs`, a HEAD's facts
//! about an object.
//!
//! An attribute that is set before the file is stored goes with the request that stores it. Later, the store copies the object onto
//! itself.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::time::SystemTime;

use futures_util::stream::{self, StreamExt as _};
use rustix::io::Errno;
use tokio::sync::OnceCell;

use super::directories::Directories;
use super::{Attr, Entry, Error, FileSystem, Maker, OpenFlags, Result, SetAttr};
use crate::inode::{DirEntry, InodeNo, InodeTable, Kind, Stat, TimeWish};
use crate::kept::{self, Keeper, Kept};
use crate::moves;
use crate::object::{ObjectId, ObjectKey, ObjectMeta};
use crate::sync::{Arc, Mutex};
use crate::upload::{self, Upload};

/// Most changes of stored files in progress at once; further ones wait. Doubling it lets more programs change files at once.
const CHANGES_MAX: usize = 64;

/// The part of a mount that keeps attributes.
#[derive(Debug)]
pub struct Keeping {
    pub(super) keeper: Keeper,
    /// Whether attributes are kept (`--keep-metadata`). If not, only facts of the store are shown (`--xattrs`).
    pub(super) keeps: bool,
    pub(super) shows: bool,
    /// The attributes of files that are not stored yet.
    pending: Mutex<HashMap<InodeNo, Arc<Pending>>>,
    /// Locks that serialize the changes of one file: the second change begins with the result of the first.
    changes: [tokio::sync::Mutex<()>; CHANGES_MAX],
    pub(super) directories: Directories,
}

/// The attributes of a file that is not stored yet.
#[derive(Debug, Default)]
struct Pending {
    wanted: Mutex<Wanted>,
    /// The outcome of the file's upload, and of storing the attributes that came too late for the upload.
    stored: OnceCell<std::result::Result<ObjectMeta, upload::Error>>,
}

#[derive(Debug, Default)]
struct Wanted {
    kept: Kept,
    /// The attributes in the request that makes the object, once it is sent.
    sent: Option<Kept>,
    /// Whether a program has set attributes.
    is_set: bool,
    /// Whether the object has all attributes: a later change is one of a stored file.
    is_settled: bool,
}

impl Keeping {
    /// Creates the part from a keeper and the flags `--keep-metadata` (`keeps`) and `--xattrs` (`shows`).
    pub fn new(keeper: Keeper, keeps: bool, shows: bool) -> Self {
        let changes = std::array::from_fn(|_| tokio::sync::Mutex::default());
        Self { keeper, keeps, shows, pending: Mutex::default(), changes, directories: Directories::default() }
    }

    fn pending(&self, ino: InodeNo) -> Option<Arc<Pending>> {
        self.pending.lock().get(&ino).cloned()
    }

    fn pending_or_new(&self, ino: InodeNo) -> Arc<Pending> {
        Arc::clone(self.pending.lock().entry(ino).or_default())
    }

    /// The attributes of a file whose writing begins. Attributes of an earlier writing that has ended are dropped.
    fn begin(&self, ino: InodeNo) -> Arc<Pending> {
        let mut pending = self.pending.lock();
        if pending.get(&ino).is_some_and(|pending| pending.is_settled()) {
            pending.remove(&ino);
        }
        Arc::clone(pending.entry(ino).or_default())
    }

    /// Notes that the inode table shows the file as stored. Another writing of the file may have begun.
    pub(super) fn ended(&self, ino: InodeNo) {
        let mut pending = self.pending.lock();
        if pending.get(&ino).is_some_and(|pending| pending.is_settled()) {
            pending.remove(&ino);
        }
    }

    /// Drops the attributes of a file or directory that is gone, or was not stored.
    pub(super) fn forget(&self, ino: InodeNo) {
        self.pending.lock().remove(&ino);
        self.directories.forget(ino);
    }

    /// Waits for the right to change a file's attributes: one change at a time.
    pub(super) async fn turn(&self, ino: InodeNo) -> tokio::sync::MutexGuard<'_, ()> {
        self.changes[ino.0 as usize % CHANGES_MAX].lock().await
    }
}

impl Pending {
    /// Changes the attributes to store with the file. False if the object has them all: then a change is one of a stored file.
    fn set(&self, change: impl Fn(&mut Kept)) -> bool {
        let mut wanted = self.wanted.lock();
        if !wanted.is_settled {
            change(&mut wanted.kept);
            wanted.is_set = true;
        }
        !wanted.is_settled
    }

    fn is_settled(&self) -> bool {
        self.wanted.lock().is_settled
    }
}

impl FileSystem {
    /// The file system with a part that keeps or shows attributes.
    pub fn keeping(self, keeping: Keeping) -> Self {
        Self { kept: Some(keeping), ..self }
    }

    /// The part that keeps attributes; `None` without `--keep-metadata`.
    pub(super) fn keeps(&self) -> Option<&Keeping> {
        self.kept.as_ref().filter(|keeping| keeping.keeps)
    }

    /// The known attributes of an inode.
    pub(super) fn kept_of(&self, ino: InodeNo) -> Option<Arc<Kept>> {
        let keeping = self.keeps()?;
        if self.marker_of(ino).is_some() {
            return self.kept_of_directory(keeping, ino);
        }
        if self.inodes.is_local(ino) {
            let pending = keeping.pending(ino)?;
            let kept = pending.wanted.lock().kept.clone();
            return Some(Arc::new(kept));
        }
        keeping.keeper.known(&self.inodes.stored(ino)?)
    }

    /// The attributes that stat shows, as far as memory has them.
    pub(super) fn attr(&self, ino: InodeNo, stat: &Stat) -> Attr {
        let plain = self.attr_in_full(self.config.ownership.attr(ino, stat));
        let attr = match self.kept_of(ino) {
            Some(kept) => kept_attr(plain, stat, &kept),
            None => plain,
        };
        match stat.kind {
            Kind::Directory => self.while_marker_holds(attr),
            Kind::File | Kind::Link => attr,
        }
    }

    /// Asks the store for the attributes of an inode, unless they are known.
    ///
    /// # Errors
    /// `STALE`: the object is another version by now; those of the store.
    pub(super) async fn learn(&self, ino: InodeNo) -> Result<()> {
        let Some(keeping) = self.keeps() else { return Ok(()) };
        if let Some(marker) = self.marker_of(ino) {
            return self.learn_directory(keeping, ino, &marker).await;
        }
        if self.inodes.is_local(ino) {
            return Ok(());
        }
        let Some(id) = self.inodes.stored(ino) else { return Ok(()) };
        match keeping.keeper.ask(&id).await {
            Ok(_) => Ok(()),
            // The keys of this mount may list names and not read the object: the file shows the attributes of the flags.
            Err(error) if error.is_denied() => Ok(()),
            Err(error) => {
                self.inodes.doubt(ino);
                Err(refused(&error, &id.key, "reading its attributes"))
            }
        }
    }

    /// Asks the store for the attributes of these entries, side by side. If the store has none, a file shows those of the flags until its
    /// next lookup.
    pub(super) async fn learn_all(&self, directory: InodeNo, entries: &[DirEntry]) {
        let Some(keeping) = self.keeps() else { return };
        let files = entries.iter().filter(|entry| entry.stat.kind == Kind::File);
        let unknown: Vec<ObjectId> = files
            .filter_map(|entry| self.inodes.version_of(directory, entry))
            .filter(|id| keeping.keeper.known(id).is_none())
            .collect();
        let ask = |id: ObjectId| async move {
            if let Err(error) = keeping.keeper.ask(&id).await {
                tracing::debug!(key = %id.key, %error, "its attributes are not known");
            }
        };
        stream::iter(unknown).for_each_concurrent(None, ask).await;
    }

    /// Whether the attributes of all these entries are known.
    pub(super) fn knows_all(&self, directory: InodeNo, entries: &[DirEntry]) -> bool {
        let Some(keeping) = self.keeps() else { return true };
        entries.iter().filter(|entry| entry.stat.kind == Kind::File).all(|entry| {
            let id = self.inodes.version_of(directory, entry);
            id.is_none_or(|id| keeping.keeper.known(&id).is_some())
        })
    }

    /// The attributes of an entry of a listing.
    pub(super) fn entry_attr(&self, directory: InodeNo, entry: &DirEntry) -> Attr {
        let plain = self.attr_in_full(self.config.ownership.attr(entry.ino, &entry.stat));
        let Some(keeping) = self.keeps().filter(|_| entry.stat.kind == Kind::File) else { return plain };
        let kept = match self.inodes.is_local(entry.ino) {
            true => self.kept_of(entry.ino),
            false => self.inodes.version_of(directory, entry).and_then(|id| keeping.keeper.known(&id)),
        };
        match kept {
            Some(kept) => kept_attr(plain, &entry.stat, &kept),
            None => plain,
        }
    }

    /// Gives a new file or directory its maker's mode and owner.
    pub(super) fn made_by(&self, ino: InodeNo, maker: Maker) {
        self.made_in_full(ino, maker);
        if let Some(keeping) = self.keeps() {
            keeping.pending_or_new(ino).set(|kept| {
                kept.mode = Some(maker.mode & 0o7777);
                (kept.uid, kept.gid) = (Some(maker.uid), Some(maker.gid));
            });
        }
    }

    /// The attributes of a file before its replacement or an append: the file keeps them.
    ///
    /// # Errors
    /// The errors of the store.
    pub(super) async fn kept_before(&self, ino: InodeNo) -> Result<Option<Arc<Kept>>> {
        self.learn(ino).await?;
        Ok(self.kept_of(ino).filter(|_| !self.inodes.is_local(ino)))
    }

    /// Collects the attributes of a file that is opened for writing: the upload carries those that programs set before its last request.
    pub(super) fn keep_with(&self, ino: InodeNo, before: Option<Arc<Kept>>, upload: &Upload) {
        let Some(keeping) = self.keeps() else { return };
        let pending = keeping.begin(ino);
        if let Some(before) = before {
            pending.wanted.lock().kept = Kept { modified: None, ..(*before).clone() };
        }
        let inodes = self.inodes.clone();
        upload.described_by(move |properties, is_whole| {
            // Before the lock: a change of a name holds both.
            let written = written_at(&inodes, ino);
            let mut wanted = pending.wanted.lock();
            let mut kept = wanted.kept.clone();
            // An upload of several requests sends its attributes long before the last byte. So it sends no time of the last write.
            kept.modified = kept.modified.or_else(|| written.filter(|_| is_whole));
            kept.say(&mut properties.user);
            wanted.sent = Some(kept);
        });
    }

    /// Stores the attributes that programs set too late for the upload of a file. Later changes are changes of a stored file.
    pub(super) async fn keep_rest(
        &self,
        ino: InodeNo,
        key: ObjectKey,
        meta: ObjectMeta,
    ) -> std::result::Result<ObjectMeta, upload::Error> {
        let pending = self.keeps().and_then(|keeping| Some((keeping, keeping.pending(ino)?)));
        let Some((keeping, pending)) = pending else { return Ok(meta) };
        let rest = || async {
            let mut meta = meta;
            loop {
                let last = {
                    let mut wanted = pending.wanted.lock();
                    let sent = wanted.sent.clone();
                    let mut last = wanted.kept.clone();
                    last.modified = last.modified.or_else(|| sent.as_ref().and_then(|sent| sent.modified));
                    // An append that added no bytes sent nothing.
                    if sent.as_ref() == Some(&last) || sent.is_none() && !wanted.is_set {
                        wanted.is_settled = true;
                        if let Some(sent) = sent {
                            keeping.keeper.stored(&key, &meta, sent);
                        }
                        return Ok(meta);
                    }
                    wanted.sent = Some(last.clone());
                    last
                };
                let id = ObjectId::by_etag(key.clone(), meta.etag.clone());
                let all = |kept: &mut Kept| {
                    let modified = last.modified.or(kept.modified);
                    *kept = Kept { modified, ..last.clone() };
                };
                match keeping.keeper.change(&id, all).await {
                    Ok(Some(restated)) => meta = restated.meta,
                    Ok(None) => {}
                    Err(error) => {
                        tracing::error!("\"{key}\" is stored, and its attributes can't be kept: {error}");
                        pending.wanted.lock().is_settled = true;
                        return Err(upload::Error::Remote(error.into_remote(&key)));
                    }
                }
            }
        };
        pending.stored.get_or_init(rest).await.clone()
    }

    /// Changes attributes of a file, or of a directory that has a marker for them, as `change` says.
    pub(super) async fn change_kept(
        &self,
        keeping: &Keeping,
        ino: InodeNo,
        change: impl Fn(&mut Kept) + Send + Sync,
    ) -> Result<()> {
        if let Some(marker) = self.marker_of(ino) {
            return self.change_kept_of_directory(keeping, ino, &marker, change).await;
        }
        loop {
            if self.inodes.is_local(ino) {
                if keeping.pending_or_new(ino).set(&change) {
                    return Ok(());
                }
                // The file was stored just now, and the inode table will show that soon.
                tokio::task::yield_now().await;
                continue;
            }
            // The new version would stay under a name that is being renamed.
            let _open = self.begin_open(ino).await;
            let _turn = keeping.turn(ino).await;
            let Some(id) = self.inodes.stored(ino) else {
                if self.inodes.is_local(ino) {
                    continue;
                }
                return Err(Error::new(Errno::STALE, format!("inode {}: the file is gone", ino.0)));
            };
            let changed = keeping.keeper.change(&id, &change).await;
            return match changed {
                Ok(None) => Ok(()),
                Ok(Some(restated)) => {
                    // The order matters: a read that misses its version looks in the prefetcher for the new one.
                    self.prefetcher.moved(&restated.source, &restated.id);
                    self.prefetcher.carry(&restated.source, &restated.id, restated.meta.size);
                    self.inodes.restated(ino, &restated.meta);
                    self.record_files_of(ino);
                    Ok(())
                }
                Err(error) => {
                    self.inodes.doubt(ino);
                    Err(refused(&error, &id.key, "changing its attributes"))
                }
            };
        }
    }

    /// Carries out chmod, chown and utimens.
    pub(super) async fn set_kept(
        &self,
        keeping: &Keeping,
        ino: InodeNo,
        wish: SetAttr,
        shown: Attr,
    ) -> Result<Attr> {
        if shown.kind == Kind::Directory && self.marker_of(ino).is_none() {
            return Ok(shown);
        }
        let now = self.clock.wall();
        let modified = wish.modified.map(|wish| match wish {
            TimeWish::Now => now,
            TimeWish::At(time) => time,
        });
        let nothing = wish.mode.is_none() && wish.uid.is_none() && wish.gid.is_none() && modified.is_none();
        if !nothing {
            self.change_kept(keeping, ino, |kept| {
                kept.mode = wish.mode.map(|mode| mode & 0o7777).or(kept.mode);
                kept.uid = wish.uid.or(kept.uid);
                kept.gid = wish.gid.or(kept.gid);
                kept.modified = modified.or(kept.modified);
            })
            .await?;
        }
        if shown.kind == Kind::Directory {
            return self.getattr(ino).await;
        }
        // The times show until the file is stored; no object keeps an access time.
        self.inodes.set_times(ino, wish.accessed, wish.modified);
        self.getattr(ino).await
    }

    /// Copies the known attributes of a version to its copy.
    pub(super) fn kept_moved(&self, copied: &moves::Copied) {
        if let Some(keeping) = self.keeps() {
            keeping.keeper.moved(&copied.source, &copied.id);
        }
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `INVAL`: the inode is not a symbolic link. Also the errors of a read.
    pub async fn readlink(&self, ino: InodeNo) -> Result<OsString> {
        let attr = self.getattr(ino).await?;
        let id = self.inodes.stored(ino).filter(|_| attr.kind == Kind::Link);
        let Some(id) = id else {
            return Err(Error::new(Errno::INVAL, format!("inode {} is not a symbolic link", ino.0)));
        };
        if attr.size == 0 || attr.size > TARGET_MAX {
            let why = format!("\"{}\": a symbolic link of {} bytes", id.key, attr.size);
            return Err(Error::new(Errno::IO, why));
        }
        Ok(OsString::from_vec(self.whole(&id, attr.size).await?))
    }

    /// Stores a symbolic link: an object that contains its target.
    ///
    /// # Errors
    /// `PERM` without `--keep-metadata`; those of a create and a write.
    pub async fn symlink(
        self: &Arc<Self>,
        parent: InodeNo,
        name: &OsStr,
        target: &OsStr,
        maker: Maker,
    ) -> Result<Entry> {
        self.may_change()?;
        let Some(keeping) = self.keeps() else {
            let why = "S3 has no symbolic links; --keep-metadata stores them as s3fs does";
            return Err(Error::new(Errno::PERM, why).already_logged());
        };
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        let (entry, opened) = self.create(parent, name, flags, maker, std::process::id()).await?;
        let ino = entry.attr.ino;
        keeping.pending_or_new(ino).set(|kept| (kept.mode, kept.is_link) = (Some(0o777), true));
        let (send, receive) = tokio::sync::oneshot::channel();
        self.write(opened.handle, 0, target.as_encoded_bytes(), 0, |result| drop(send.send(result)));
        let written = receive.await.unwrap_or_else(|_| Err(upload::Error::Aborted.into()));
        let stored = match written {
            Ok(()) => self.fsync(opened.handle).await,
            Err(error) => Err(error),
        };
        if let Some(due) = self.release(opened.handle)? {
            self.finish_released(opened.handle, due).await;
        }
        let found = match stored {
            Ok(()) => self.inodes.getattr(ino).await.map_err(Error::from),
            Err(error) => Err(error),
        };
        match found {
            Ok(stat) => Ok(Entry { attr: self.attr(ino, &stat), ..entry }),
            Err(error) => {
                self.forget(ino, 1);
                Err(error)
            }
        }
    }
}

/// Longest target of a symbolic link, in bytes (PATH_MAX). Reading a longer one fails with EIO.
const TARGET_MAX: u64 = 4096;

/// Time of the last write to a file that is not stored yet.
fn written_at(inodes: &InodeTable, ino: InodeNo) -> Option<SystemTime> {
    inodes.try_getattr(ino)?.ok().map(|stat| stat.modified)
}

/// The attributes to show: those that the object keeps, else those of the flags and of the object itself.
fn kept_attr(plain: Attr, stat: &Stat, kept: &Kept) -> Attr {
    let modified = kept.modified.unwrap_or(plain.modified);
    // A program set an access time on a file that is not stored yet.
    let accessed = if stat.accessed == stat.modified { modified } else { plain.accessed };
    let mode = kept.mode.map_or(plain.mode, |mode| mode as u16);
    Attr {
        kind: if kept.is_link && plain.kind == Kind::File { Kind::Link } else { plain.kind },
        // An object in an archive tier shows that it can't be opened.
        mode: if stat.readable { mode } else { plain.mode },
        uid: kept.uid.unwrap_or(plain.uid),
        gid: kept.gid.unwrap_or(plain.gid),
        modified,
        accessed,
        ..plain
    }
}

/// The error that a program gets from an operation on attributes.
pub(super) fn refused(error: &kept::Error, key: &ObjectKey, doing: &str) -> Error {
    let why = format!("\"{key}\": {doing}: {error}");
    match error {
        kept::Error::Changed | kept::Error::Copy(moves::Error::Changing | moves::Error::Gone) => {
            Error::new(Errno::STALE, why)
        }
        kept::Error::TooMuch => Error::new(Errno::NOSPC, why),
        error => match error.remote() {
            Some(remote) => Error::of_rename(remote, why),
            None => Error::new(Errno::IO, why),
        },
    }
}
