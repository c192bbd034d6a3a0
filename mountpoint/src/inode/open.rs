//! Opens files, and tracks the state of an inode while it is written.

use super::board::Wish;
use super::compact::{Stored, Teller};
use super::error::{Error, ErrorKind, Result};
use super::state::{Before, File, Node, Phase, Place, Refusal, WriteWish};
use super::tree::{Tree, stale};
use super::{FRESH, InodeNo, InodeTable, TimeWish};
use crate::first::First;
use crate::listing::path;
use crate::object::{ObjectId, ObjectKey, ObjectMeta};

/// The answer to an open for reading.
#[derive(Debug)]
pub enum OpenRead {
    /// Read this version. One reader was counted.
    Object {
        /// The object version to read.
        id: ObjectId,
        /// The object's size in bytes.
        size: u64,
        /// Whether what the kernel has cached for the inode is of this version.
        keep_cache: bool,
        /// First bytes that came with the attributes, for this open or for the lookup just before it.
        first: Option<First>,
        /// Whether only a listing said so: see [`InodeTable::is_proven`].
        is_listed: bool,
        /// The size that the kernel knows.
        known: KnownSize,
    },
    /// The file is being written: finish that handle and ask again, or refuse.
    Busy {
        /// The writer's number, as given to `open_write`.
        writer: u64,
    },
}

/// The size of a file that the kernel knows, beside the one that it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KnownSize {
    /// The same.
    Right,
    /// Another one, and the kernel must ask again: see [`InodeTable::take_resized`].
    Other,
    /// More bytes, unless it has asked again since.
    More,
}

/// The answer to an open for writing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpenWrite {
    /// Write there. The inode is local until `commit_write` or `abandon_write`.
    Granted {
        /// The key of the new object.
        key: ObjectKey,
        /// The object in S3 before the write.
        before: Before,
    },
    /// The file is being written already: finish that handle and ask again, or refuse.
    Busy {
        /// The writer's number, as given to `open_write`.
        writer: u64,
    },
    /// Open for reading: wait for the release of those handles and ask again, or refuse.
    HasReaders,
}

impl InodeTable {
    /// Opens for reading on what is known; `None` when S3 must be asked whether that is still so.
    pub fn try_open_read(&self, ino: InodeNo) -> Option<Result<OpenRead>> {
        self.open_known(ino, false)
    }

    /// Opens for reading: counts a reader until `close_read` unless it answers `Busy`.
    ///
    /// `revalidate` (O_DIRECT) asks S3 even within the TTL. It costs one HEAD, or a GET that brings the first bytes, or nothing right after a
    /// lookup. Opens of one file at once share requests.
    ///
    /// # Errors
    /// `Stale`: S3 has another version or none, look the name up again (the kernel does so by itself, once); `Archived`;
    /// `IsADirectory`; `NotPermitted`: made here and not written yet; `Remote`.
    pub async fn open_read(&self, ino: InodeNo, revalidate: bool) -> Result<OpenRead> {
        if let Some(answer) = self.open_known(ino, revalidate) {
            return answer;
        }
        let trusts = !revalidate && !self.0.config.ttl.open().is_zero();
        let wish = if trusts { Wish::Open } else { Wish::OpenNow };
        let first = self.revalidate(ino, wish).await?;
        open_now(&mut self.0.tree.lock(), ino, first)
    }

    fn open_known(&self, ino: InodeNo, revalidate: bool) -> Option<Result<OpenRead>> {
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        let first = tree.firsts.take(ino, now);
        // Without a TTL of the user's, what a stat may still show says nothing to an open.
        let trusts = !revalidate && !tree.ttl.open().is_zero();
        let place = match tree.inode(ino) {
            Some(inode) => inode.place,
            None => return Some(Err(stale(ino))),
        };
        let file = match tree.file_mut(ino) {
            Ok(file) => file,
            Err(error) => return Some(Err(error)),
        };
        if file.is_local() {
            return Some(open_now(&mut tree, ino, None));
        }
        if place == Place::Nowhere {
            return Some(Err(Error::new(ErrorKind::Stale, tree.name_for_errors(ino))));
        }
        let stored = file.stored.as_ref().filter(|stored| trusts && stored.holds(now));
        let holds = match stored.map(|stored| (stored.teller(), stored.size())) {
            Some((Teller::Object, _)) => true,
            // Where a listing is wrong, the first read shows it; of an empty file the kernel reads nothing.
            Some((Teller::Listing, 0)) => false,
            Some((Teller::Listing, _)) => tree.agreement.holds(now),
            // The object says which version reads are pinned to.
            Some((Teller::Upload, _)) | None => false,
        };
        let known = tree.fresh.take(ino, now) || holds;
        known.then(|| open_now(&mut tree, ino, first))
    }

    /// The kernel's cached pages of this file differ from the object: the next open makes the kernel drop them.
    pub fn doubt_pages(&self, ino: InodeNo) {
        if let Ok(file) = self.0.tree.lock().file_mut(ino) {
            file.pages_stale = true;
        }
    }

    /// Whether the kernel must ask for the file's attributes again, because it knows another size. True once.
    pub fn take_resized(&self, ino: InodeNo) -> bool {
        self.0.tree.lock().file_mut(ino).is_ok_and(|file| std::mem::take(&mut file.size_stale))
    }

    /// Whether a request for the last bytes may be older than the discovery that the file is shorter than the kernel knows. True once.
    pub fn take_old_end(&self, ino: InodeNo) -> bool {
        self.0.tree.lock().file_mut(ino).is_ok_and(|file| std::mem::take(&mut file.end_is_old))
    }

    /// A read met another version of the object, or none: what S3 said of it holds no longer, whatever the TTL. Nor does what a listing of
    /// before says.
    pub fn doubt(&self, ino: InodeNo) {
        let mut tree = self.0.tree.lock();
        tree.fresh.forget(ino);
        if let Ok(file) = tree.file_mut(ino)
            && let Some(stored) = &mut file.stored
        {
            stored.doubt();
            tree.touched(ino, false);
        }
    }

    /// The name is looked up anew from now on, and gets another inode: this one stays with those that have it open.
    pub fn set_apart(&self, ino: InodeNo) {
        self.0.tree.lock().detach(ino);
    }

    /// Whether a handle for reading is open.
    pub fn has_readers(&self, ino: InodeNo) -> bool {
        self.readers(ino) > 0
    }

    /// Handles for reading that are open.
    pub fn readers(&self, ino: InodeNo) -> u32 {
        self.0.tree.lock().file_mut(ino).map_or(0, |file| file.readers)
    }

    /// A read handle is closed.
    pub fn close_read(&self, ino: InodeNo) {
        let mut tree = self.0.tree.lock();
        if let Ok(file) = tree.file_mut(ino) {
            file.close_read();
            tree.drop_if_idle(ino);
        }
    }

    /// The version that S3 has of a file that is not being written, as far as is known.
    pub fn stored(&self, ino: InodeNo) -> Option<ObjectId> {
        let mut tree = self.0.tree.lock();
        let key = tree.key(ino)?;
        let file = tree.file_mut(ino).ok().filter(|file| file.phase == Phase::Stored)?;
        let stored = file.stored.as_ref()?;
        Some(ObjectId { key, etag: stored.meta().etag, modified: stored.second() })
    }

    /// Opens for writing. `writer` names the handle to others that want the file.
    ///
    /// # Errors
    /// `NotPermitted`: it exists and may not be replaced, and which flag would allow it;
    /// `IsADirectory`; `Stale`.
    pub async fn open_write(&self, ino: InodeNo, writer: u64, wish: WriteWish) -> Result<OpenWrite> {
        let modified = self.0.clock.wall();
        let mut tree = self.0.tree.lock();
        let place = tree.inode(ino).ok_or_else(|| stale(ino))?.place;
        tree.file_mut(ino)?;
        let Some(key) = tree.key(ino).filter(|_| place != Place::Nowhere) else {
            return Err(Error::new(ErrorKind::Stale, tree.name_for_errors(ino)));
        };
        match tree.file_mut(ino)?.open_write(writer, wish, modified) {
            Err(Refusal::Busy { writer }) => Ok(OpenWrite::Busy { writer }),
            Err(Refusal::HasReaders) => Ok(OpenWrite::HasReaders),
            Err(Refusal::Error(kind)) => Err(Error::new(kind, key.as_str())),
            Ok(before) => {
                tree.fresh.forget(ino);
                tree.touched(ino, false);
                tree.place(ino, Place::Local);
                Ok(OpenWrite::Granted { key, before })
            }
        }
    }

    /// Sets the size that stat shows during the writing: `size` bytes so far.
    pub fn written(&self, ino: InodeNo, size: u64) {
        let modified = self.0.clock.wall();
        if let Ok(file) = self.0.tree.lock().file_mut(ino) {
            file.written(size, modified);
        }
    }

    /// A program set the size of a file that it writes.
    pub fn resized(&self, ino: InodeNo, size: u64) {
        if let Ok(file) = self.0.tree.lock().file_mut(ino)
            && let Phase::Writing(writing) = &mut file.phase
        {
            writing.size = size;
        }
    }

    /// Sets the times that stat shows of a file until it is stored. Of anything else they stay as they are.
    pub fn set_times(&self, ino: InodeNo, accessed: Option<TimeWish>, modified: Option<TimeWish>) {
        let now = self.0.clock.wall();
        let time = |wish| match wish {
            TimeWish::Now => now,
            TimeWish::At(time) => time,
        };
        if let Ok(file) = self.0.tree.lock().file_mut(ino) {
            file.set_times(accessed.map(time), modified.map(time));
        }
    }

    /// The object is stored: the inode is remote now, and so are the directories above it.
    pub fn commit_write(&self, ino: InodeNo, meta: ObjectMeta) {
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        let until = now + tree.ttl.file();
        let Ok(file) = tree.file_mut(ino) else { return };
        file.commit(&meta, until);
        tree.touched(ino, false);
        hang_stored(&mut tree, ino);
        if let Some(parent) = tree.inode(ino).map(|inode| inode.parent) {
            tree.stored_above(parent, now);
        }
        tree.drop_if_idle(ino);
    }

    /// The upload failed or was given up: a file that was only here goes, one that was being replaced is again what S3
    /// has, which the next open asks.
    pub fn abandon_write(&self, ino: InodeNo) {
        let mut tree = self.0.tree.lock();
        let Ok(file) = tree.file_mut(ino) else { return };
        if file.abandon() {
            tree.touched(ino, false);
            hang_stored(&mut tree, ino);
        } else {
            tree.detach(ino);
        }
        tree.drop_if_idle(ino);
    }

    /// Removes a file that was made here, unless it was opened for writing since.
    pub fn remove_new(&self, ino: InodeNo) {
        let mut tree = self.0.tree.lock();
        if tree.file_mut(ino).is_ok_and(|file| matches!(file.phase, Phase::New { .. })) {
            tree.detach(ino);
            tree.drop_if_idle(ino);
        }
    }

    /// Makes a file that is not in S3 yet. Counts one kernel reference.
    ///
    /// # Errors
    /// `Exists` (S3 is asked, unless it just said that there is nothing); those of `lookup`, `NotFound` excepted.
    pub async fn create(&self, parent: InodeNo, name: &std::ffi::OsStr) -> Result<super::Found> {
        let modified = self.0.clock.wall();
        self.make_local(parent, name, |now| Node::File(File::new(now, modified))).await
    }

    /// Makes a local entry where there is nothing. `node` gets the time.
    pub(super) async fn make_local(
        &self,
        parent: InodeNo,
        name: &std::ffi::OsStr,
        node: impl FnOnce(std::time::Instant) -> Node + Send,
    ) -> Result<super::Found> {
        let name = super::lookup::parse(name)?;
        let exists = || Error::new(ErrorKind::Exists, name);
        if !self.is_freshly_missing(parent, name)? {
            match self.hold(parent, name).await {
                Ok(_) => return Err(exists()),
                Err(error) if matches!(error.kind(), ErrorKind::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        if tree.inode(parent).is_some_and(|inode| inode.place == Place::Nowhere) {
            return Err(Error::new(ErrorKind::Stale, name));
        }
        let (key, directory) = tree.directory(parent)?;
        if directory.locals.contains_key(name) || tree.child(parent, name).is_some() {
            return Err(exists());
        }
        let node = node(now);
        let fits = match &node {
            Node::Directory(_) => path::directory_key(key, name).is_some(),
            Node::File(_) => path::file_key_fits(key, name),
        };
        if !fits {
            return Err(Error::new(ErrorKind::NameTooLong, name));
        }
        let at = tree.changed(parent, name, false);
        let ino = tree.reserve(1);
        tree.make(ino, parent, name, at, node).ok_or_else(|| stale(parent))?;
        tree.place(ino, Place::Local);
        tree.take(ino, None)?;
        tree.found(ino, now).ok_or_else(|| stale(ino))
    }

    /// Whether a lookup that just went by, the kernel's own before its create, found nothing.
    fn is_freshly_missing(&self, parent: InodeNo, name: &str) -> Result<bool> {
        let now = self.0.clock.now();
        let tree = self.0.tree.lock();
        let (_, directory) = tree.directory(parent)?;
        let taken = directory.locals.contains_key(name) || tree.child(parent, name).is_some();
        Ok(!taken && tree.facts.is_absent(parent, name, now, FRESH))
    }
}

/// Opens the version that is known. `first` serves only that one.
fn open_now(tree: &mut Tree, ino: InodeNo, first: Option<First>) -> Result<OpenRead> {
    tree.file_mut(ino)?;
    let Some(key) = tree.key(ino) else { return Err(stale(ino)) };
    let file = tree.file_mut(ino)?;
    let modified = file.stored.as_ref().and_then(Stored::second);
    let is_listed = file.stored.as_ref().is_some_and(|stored| stored.teller() == Teller::Listing);
    match file.open_read() {
        Ok((meta, keep_cache)) => {
            let known = match (file.size_stale, file.was_larger) {
                (true, _) => KnownSize::Other,
                (false, true) => KnownSize::More,
                (false, false) => KnownSize::Right,
            };
            let (id, size) = (ObjectId { key, etag: meta.etag, modified }, meta.size);
            let first = first.filter(|first| first.is_of(&id, size));
            Ok(OpenRead::Object { id, size, keep_cache, first, is_listed, known })
        }
        Err(Refusal::Busy { writer }) => Ok(OpenRead::Busy { writer }),
        Err(Refusal::HasReaders) => unreachable!("readers don't keep readers out"),
        Err(Refusal::Error(kind)) => Err(Error::new(kind, key.as_str())),
    }
}

/// A file that S3 has again takes its place among the remote ones, unless a directory is there, which hides it.
pub(super) fn hang_stored(tree: &mut Tree, ino: InodeNo) {
    let Some(inode) = tree.inode(ino) else { return };
    debug_assert!(matches!(&inode.node, Node::File(file) if file.phase == Phase::Stored));
    let there = tree.child(inode.parent, &inode.name);
    let hidden = there.is_some_and(|there| tree.directory(there).is_ok());
    tree.place(ino, if hidden { Place::Nowhere } else { Place::Remote });
}
