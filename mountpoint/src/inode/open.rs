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
    /// Read this version. One more reader is counted.
    Object {
        /// The object version to read.
        id: ObjectId,
        /// The object's size in bytes.
        size: u64,
        /// Whether the kernel's cached pages of the inode belong to this version.
        keep_cache: bool,
        /// First bytes that came with the attributes, of this open or the lookup just before it.
        first: Option<First>,
        /// Whether only a listing named this version: see [`InodeTable::is_proven`].
        is_listed: bool,
        /// Whether the kernel knows the right size.
        known: KnownSize,
    },
    /// The file has a writer: finish that handle and call again, or refuse.
    Busy {
        /// The writer's number, as given to `open_write`.
        writer: u64,
    },
}

/// The size of a file that the kernel knows, compared with the version's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KnownSize {
    /// The kernel knows the right size.
    Right,
    /// The kernel knows another size, and must ask again: see [`InodeTable::take_resized`].
    Other,
    /// The kernel knows a larger size, unless it has asked again since.
    More,
}

/// The answer to an open for writing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpenWrite {
    /// The caller may write. The inode is local until `commit_write` or `abandon_write`.
    Granted {
        /// The key of the new object.
        key: ObjectKey,
        /// The object in S3 before the write.
        before: Before,
    },
    /// The file has a writer already: finish that handle and call again, or refuse.
    Busy {
        /// The writer's number, as given to `open_write`.
        writer: u64,
    },
    /// The file has readers: wait for the release of their handles and call again, or refuse.
    HasReaders,
}

impl InodeTable {
    /// Opens for reading from memory; `None` if S3 must be asked whether the facts still hold.
    pub fn try_open_read(&self, ino: InodeNo) -> Option<Result<OpenRead>> {
        self.open_known(ino, false)
    }

    /// Opens for reading, and counts a reader until `close_read`, unless the answer is `Busy`.
    ///
    /// `revalidate` (O_DIRECT) asks S3 even within the TTL. The question costs one HEAD, or a GET that brings the first bytes, or nothing
    /// right after a lookup. Opens of one file at once share requests.
    ///
    /// # Errors
    /// `Stale`: S3 has another version or none, look the name up again (the kernel does so by itself, once); `Archived`;
    /// `IsADirectory`; `NotPermitted`: a local file that is not written yet; `Remote`.
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
        // Without a TTL from the user, facts that a stat may still show do not serve an open.
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
        let holds = match stored.map(|stored| (stored.teller(), stored.size(), stored.is_readable())) {
            Some((Teller::Object, ..)) => true,
            // The first read would reveal a wrong listing, but the kernel reads nothing from an empty file. A listing does not tell that
            // an object was restored from its archive tier.
            Some((Teller::Listing, 0, _) | (Teller::Listing, _, false)) => false,
            Some((Teller::Listing, ..)) => tree.agreement.holds(now),
            // The object must name the version for the reads.
            Some((Teller::Upload, ..)) | None => false,
        };
        let known = tree.fresh.take(ino, now) || holds;
        known.then(|| open_now(&mut tree, ino, first))
    }

    /// Notes that the kernel's cached pages of a file may differ from the object: the next open makes the kernel drop them.
    pub fn doubt_pages(&self, ino: InodeNo) {
        if let Ok(file) = self.0.tree.lock().file_mut(ino) {
            file.pages_stale = true;
        }
    }

    /// Whether the kernel must ask for the file's attributes again, because it knows another size. Answers true once.
    pub fn take_resized(&self, ino: InodeNo) -> bool {
        self.0.tree.lock().file_mut(ino).is_ok_and(|file| std::mem::take(&mut file.size_stale))
    }

    /// Whether the engine found the file shorter than the kernel knows, so that a request for the last bytes may be older than that
    /// discovery. Answers true once.
    pub fn take_old_end(&self, ino: InodeNo) -> bool {
        self.0.tree.lock().file_mut(ino).is_ok_and(|file| std::mem::take(&mut file.end_is_old))
    }

    /// Notes that a read met another version of the object, or none: the facts about the file expire whatever the TTL, and so do older
    /// listings.
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

    /// Detaches an inode from its name. The next lookup of the name makes another inode; programs that have the old one open keep it.
    pub fn set_apart(&self, ino: InodeNo) {
        self.0.tree.lock().detach(ino);
    }

    /// Whether a read handle of the inode is open.
    pub fn has_readers(&self, ino: InodeNo) -> bool {
        self.readers(ino) > 0
    }

    /// Number of open read handles.
    pub fn readers(&self, ino: InodeNo) -> u32 {
        self.0.tree.lock().file_mut(ino).map_or(0, |file| file.readers)
    }

    /// Notes that a read handle closed.
    pub fn close_read(&self, ino: InodeNo) {
        let mut tree = self.0.tree.lock();
        if let Ok(file) = tree.file_mut(ino) {
            file.close_read();
            tree.drop_if_idle(ino);
        }
    }

    /// The version that S3 has of a file without a writer, as far as the mount knows.
    pub fn stored(&self, ino: InodeNo) -> Option<ObjectId> {
        self.version(ino, |file| file.phase == Phase::Stored)
    }

    /// The version that S3 had of a file at the open of its writer, as far as the mount knew.
    pub fn before_writer(&self, ino: InodeNo) -> Option<ObjectId> {
        self.version(ino, |file| matches!(file.phase, Phase::Writing(_)))
    }

    fn version(&self, ino: InodeNo, counts: impl Fn(&File) -> bool) -> Option<ObjectId> {
        let mut tree = self.0.tree.lock();
        let key = tree.key(ino)?;
        let file = tree.file_mut(ino).ok().filter(|file| counts(file))?;
        let stored = file.stored.as_ref()?;
        Some(ObjectId { key, etag: stored.meta().etag, modified: stored.second() })
    }

    /// Opens for writing. `writer` names the handle to other operations on the file.
    ///
    /// # Errors
    /// `NotPermitted`: the file exists, and the mount may not replace it (the error names the flag); `IsADirectory`; `Stale`.
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

    /// Sets the size that stat shows during a write.
    pub fn written(&self, ino: InodeNo, size: u64) {
        let modified = self.0.clock.wall();
        if let Ok(file) = self.0.tree.lock().file_mut(ino) {
            file.written(size, modified);
        }
    }

    /// Sets the size of a file during its write, as a program asked.
    pub fn resized(&self, ino: InodeNo, size: u64) {
        if let Ok(file) = self.0.tree.lock().file_mut(ino)
            && let Phase::Writing(writing) = &mut file.phase
        {
            writing.size = size;
        }
    }

    /// Sets the times that stat shows until a file is stored. Other inodes keep their times.
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

    /// Notes that the object of a written file is stored: S3 has the file now, and the directories above it.
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

    /// Notes that an upload failed or was given up. A file without an object goes. A file that had one shows S3's version again, after
    /// the next open asks S3.
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

    /// Removes a file that was made here, unless a program opened it for writing since.
    pub fn remove_new(&self, ino: InodeNo) {
        let mut tree = self.0.tree.lock();
        if tree.file_mut(ino).is_ok_and(|file| matches!(file.phase, Phase::New { .. })) {
            tree.detach(ino);
            tree.drop_if_idle(ino);
        }
    }

    /// Makes a local file. Counts one kernel reference.
    ///
    /// # Errors
    /// `Exists` (asks S3, unless S3 just answered that the name is absent); those of `lookup`, `NotFound` excepted.
    pub async fn create(&self, parent: InodeNo, name: &std::ffi::OsStr) -> Result<super::Found> {
        let modified = self.0.clock.wall();
        self.make_local(parent, name, |now| Node::File(File::new(now, modified))).await
    }

    /// Makes a local entry for an absent name. `node` receives the time.
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
        let is_directory = matches!(node, Node::Directory(_));
        // The entry knows as much as the answer that its name is absent, which may be from memory.
        let since = tree.lacked_at(parent, name, now);
        let at = tree.changed(parent, name, false);
        let ino = tree.reserve(1);
        tree.make(ino, parent, name, at, node).ok_or_else(|| stale(parent))?;
        tree.place(ino, Place::Local);
        match is_directory {
            true => tree.is_bare(ino, since, now),
            false => tree.file_mut(ino)?.set_lacked(since),
        }
        tree.take(ino, None)?;
        tree.found(ino, now).ok_or_else(|| stale(ino))
    }

    /// Whether the kernel's own lookup just before a create or rename found nothing.
    pub(super) fn is_freshly_missing(&self, parent: InodeNo, name: &str) -> Result<bool> {
        let now = self.0.clock.now();
        let tree = self.0.tree.lock();
        let (_, directory) = tree.directory(parent)?;
        let taken = directory.locals.contains_key(name) || tree.child(parent, name).is_some();
        Ok(!taken && tree.facts.is_absent(parent, name, now, FRESH))
    }
}

/// Opens the known version. `first` serves only this version.
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

/// Places a file that S3 has again among the remote entries, unless a directory of the same name hides it.
pub(super) fn hang_stored(tree: &mut Tree, ino: InodeNo) {
    let Some(inode) = tree.inode(ino) else { return };
    debug_assert!(matches!(&inode.node, Node::File(file) if file.phase == Phase::Stored));
    let there = tree.child(inode.parent, &inode.name);
    let hidden = there.is_some_and(|there| tree.directory(there).is_ok());
    tree.place(ino, if hidden { Place::Nowhere } else { Place::Remote });
}
