//! Files in the stage (`--mode full`): inodes that programs read and write at once, with or without an object.

use std::ffi::OsStr;
use std::time::{Instant, SystemTime};

use super::compact::{Stored, Teller};
use super::error::{Error, ErrorKind, Result};
use super::lookup::parse;
use super::state::{Before, Directory, File, Node, Phase, Place, Refusal};
use super::tree::{Tree, stale};
use super::{InodeNo, InodeTable, ROOT};
use crate::object::{ETag, ObjectId, ObjectKey, ObjectMeta};
use crate::sync::Arc;

/// A file that an earlier mount left in the stage.
#[derive(Clone, Debug)]
pub struct Pending {
    /// The file's number in the stage.
    pub number: u64,
    /// The file's size in bytes.
    pub size: u64,
    /// Time of the file's last change.
    pub modified: SystemTime,
    /// ETag and size of the object that it replaces.
    pub replaces: Option<(ETag, u64)>,
}

impl Tree {
    /// Makes an inode for an entry that exists only here.
    fn hang_here(&mut self, parent: InodeNo, name: &str, node: Node) -> Option<InodeNo> {
        let (ino, at) = (self.reserve(1), self.event());
        self.make(ino, parent, name, at, node)?;
        self.place(ino, Place::Local);
        Some(ino)
    }

    /// The directory of these names below the root. Those that are not known are made here: the first lookup asks whether S3 has them.
    fn plant_above(&mut self, names: &[&str], key: &ObjectKey, now: Instant) -> Result<InodeNo> {
        let refuse = |why: &str| Error::new(ErrorKind::InvalidName(why.to_owned()), key.as_str());
        let mut parent = ROOT;
        for above in names {
            parent = match self.local(parent, above) {
                Some(ino) if self.directory(ino).is_ok() => ino,
                Some(_) => return Err(refuse("is below a file")),
                None => {
                    let directory = Directory { checked: None, ..Directory::new(now) };
                    let made = self.hang_here(parent, above, Node::Directory(Box::new(directory)));
                    made.ok_or_else(|| refuse("has no place"))?
                }
            };
        }
        Ok(parent)
    }
}

impl InodeTable {
    /// Puts a file into the stage, where `number` names it. `expected`: the version that the caller opened, if S3 has one. Returns the
    /// key; `None` if the file is another version by now, or is already in the stage: look at the file again.
    ///
    /// # Errors
    /// `Stale`: the name is gone; `IsADirectory`.
    pub fn stage(&self, ino: InodeNo, number: u64, expected: Option<&ObjectId>) -> Result<Option<ObjectKey>> {
        let mut tree = self.0.tree.lock();
        let place = tree.inode(ino).ok_or_else(|| stale(ino))?.place;
        tree.file_mut(ino)?;
        let Some(key) = tree.key(ino).filter(|_| place != Place::Nowhere) else {
            return Err(Error::new(ErrorKind::Stale, tree.name_for_errors(ino)));
        };
        let file = tree.file_mut(ino)?;
        let stored = file.stored.as_ref().map(|stored| stored.meta().etag);
        if stored.as_ref() != expected.map(|id| &id.etag) {
            return Ok(None);
        }
        match file.stage(number) {
            Ok(Before::Exists | Before::Absent) => {
                tree.fresh.forget(ino);
                tree.touched(ino, false);
                tree.place(ino, Place::Local);
                Ok(Some(key))
            }
            Err(Refusal::Busy { .. } | Refusal::HasReaders) => Ok(None),
            Err(Refusal::Error(kind)) => Err(Error::new(kind, key.as_str())),
        }
    }

    /// Gives a file that an earlier mount left in the stage its name and the directories above it. Call this before the kernel's first
    /// request.
    ///
    /// # Errors
    /// `InvalidName`: the key is outside the mounted prefix, or a file is where a directory should be; `Exists`.
    pub fn plant(&self, key: &ObjectKey, pending: Pending) -> Result<InodeNo> {
        let refuse = |why: &str| Error::new(ErrorKind::InvalidName(why.to_owned()), key.as_str());
        let now = self.0.clock.now();
        let mut names = self.names_of(key, key.as_str())?;
        let name = names.pop().unwrap_or_default();
        let mut tree = self.0.tree.lock();
        let parent = tree.plant_above(&names, key, now)?;
        if tree.local(parent, name).is_some() {
            return Err(Error::new(ErrorKind::Exists, key.as_str()));
        }
        let Pending { number, size, modified, replaces } = pending;
        let stored = replaces.map(|(etag, size)| {
            let meta = ObjectMeta { size, etag, last_modified: modified, readable: true };
            Stored::new(&meta, Teller::Upload, None)
        });
        let file = Node::File(File::pending(number, size, modified, stored, now));
        tree.hang_here(parent, name, file).ok_or_else(|| refuse("has no place"))
    }

    /// Gives a directory that an earlier mount made and whose marker it did not store its name, and the directories above. Call this before
    /// the first [`InodeTable::plant`].
    ///
    /// # Errors
    /// `InvalidName`: the key is outside the mounted prefix.
    pub fn plant_directory(&self, key: &ObjectKey) -> Result<InodeNo> {
        let now = self.0.clock.now();
        let names = self.names_of(key, key.as_str().trim_end_matches('/'))?;
        let ino = self.0.tree.lock().plant_above(&names, key, now)?;
        self.owes_marker(ino, true);
        Ok(ino)
    }

    /// The names in the path of a key, from the root on.
    fn names_of<'a>(&self, key: &ObjectKey, path: &'a str) -> Result<Vec<&'a str>> {
        let outside = || ErrorKind::InvalidName("is not below the prefix".to_owned());
        let path = path.strip_prefix(self.0.config.prefix.key().as_str());
        let path = path.ok_or_else(|| Error::new(outside(), key.as_str()))?;
        let names: Vec<_> = path.split('/').collect();
        for name in &names {
            parse(OsStr::new(name))?;
        }
        Ok(names)
    }

    /// Notes whether the stage has yet to store the marker of a directory that was made here. As long as it has, the directory shows
    /// without a question to S3, and so it lacks names that no program made in it.
    pub fn owes_marker(&self, ino: InodeNo, owes: bool) {
        let now = self.0.clock.now();
        self.0.tree.lock().owes_marker(ino, owes, now);
    }

    /// Whether a directory has names that only this mount knows.
    pub fn has_locals(&self, ino: InodeNo) -> bool {
        self.0.tree.lock().directory(ino).is_ok_and(|(_, directory)| !directory.locals.is_empty())
    }

    /// Notes that a file of the stage has an object now, and stays in the stage.
    pub fn stored_from_stage(&self, ino: InodeNo, meta: &ObjectMeta) {
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        let until = now + tree.ttl.file();
        let Ok(file) = tree.file_mut(ino) else { return };
        file.stored_from_stage(meta, until);
        tree.touched(ino, false);
        if let Some(parent) = tree.inode(ino).map(|inode| inode.parent) {
            tree.stored_above(parent, now);
        }
    }

    /// Takes a file out of the stage: its known object counts from then on. Returns the access and modification times that the file
    /// showed.
    pub fn leave_stage(&self, ino: InodeNo) -> Option<(SystemTime, SystemTime)> {
        let mut tree = self.0.tree.lock();
        let file = tree.file_mut(ino).ok().filter(|file| file.stored.is_some())?;
        let times = file.leave_stage();
        tree.touched(ino, false);
        super::open::hang_stored(&mut tree, ino);
        tree.drop_if_idle(ino);
        times.map(|times| (times.accessed, times.modified))
    }

    /// The object of a file, in the stage or not, as far as the mount knows.
    pub fn object_of(&self, ino: InodeNo) -> Option<(ObjectId, u64)> {
        let mut tree = self.0.tree.lock();
        let key = tree.key(ino)?;
        let stored = tree.file_mut(ino).ok()?.stored.as_ref()?;
        Some((ObjectId { key, etag: stored.meta().etag, modified: Stored::second(stored) }, stored.size()))
    }

    /// The inode of a name, and whether the inode is a file that was made here and never opened.
    ///
    /// # Errors
    /// The errors of `lookup`.
    pub async fn peek(&self, parent: InodeNo, name: &OsStr) -> Result<(InodeNo, bool)> {
        let held = self.hold(parent, parse(name)?).await?;
        let mut tree = self.0.tree.lock();
        let is_new = tree.file_mut(held.ino).is_ok_and(|file| matches!(file.phase, Phase::New { .. }));
        Ok((held.ino, is_new))
    }

    /// Whether a name leads to this inode, as far as this mount knows.
    pub fn is_at(&self, ino: InodeNo, parent: InodeNo, name: &OsStr) -> bool {
        self.0.tree.lock().inode(ino).is_some_and(|inode| {
            inode.place != Place::Nowhere && inode.parent == parent && OsStr::new(&*inode.name) == name
        })
    }

    /// Removes the name of a file in the stage, and deletes the object if `exists` says that there is one. Programs with an open handle
    /// go on.
    ///
    /// # Errors
    /// `Remote`: S3 did not delete the object.
    pub async fn unlink_staged(&self, ino: InodeNo, exists: bool) -> Result<()> {
        let key = self.key_of(ino).ok_or_else(|| stale(ino))?;
        if exists {
            let deleted = self.0.client.delete_object(&key).await;
            deleted.map_err(|error| Error::new(ErrorKind::Remote(Arc::new(error)), key.as_str()))?;
        }
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        // A file that was never sent tells nothing new about S3.
        let mut since = exists.then_some(now);
        if let Ok(file) = tree.file_mut(ino) {
            file.stored = None;
            since = since.or_else(|| file.lacked());
        }
        let Some(inode) = tree.inode(ino).filter(|inode| inode.place != Place::Nowhere) else {
            return Ok(());
        };
        let (parent, name) = (inode.parent, inode.name.clone());
        tree.detach(ino);
        tree.is_gone(parent, &name, since, now);
        Ok(())
    }

    /// Takes the name from a file in the stage, because another client has an object there. The next lookup asks for that object; programs
    /// with an open handle go on with their file.
    pub fn lost_to_another(&self, ino: InodeNo) {
        let mut tree = self.0.tree.lock();
        let Some(inode) = tree.inode(ino).filter(|inode| inode.place != Place::Nowhere) else { return };
        let (parent, name) = (inode.parent, inode.name.clone());
        if let Ok(file) = tree.file_mut(ino) {
            file.stored = None;
        }
        tree.detach(ino);
        tree.changed(parent, &name, false);
    }

    /// Notes that a file in the stage lost its name to another file by a rename.
    pub fn replaced_by_rename(&self, ino: InodeNo) {
        if let Ok(file) = self.0.tree.lock().file_mut(ino) {
            file.stored = None;
        }
    }
}
