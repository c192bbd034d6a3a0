//! Moves inodes to other names: earlier requests neither bring the old name back nor hide the new one.

use std::collections::BTreeMap;
use std::time::Instant;

use foldhash::{HashSet, HashSetExt as _};

use super::Tree;
use crate::inode::InodeNo;
use crate::inode::compact::{Moment, Stored, Teller};
use crate::inode::state::{Node, Phase, Place};
use crate::listing::path;
use crate::listing::walk::Walk;
use crate::object::{ETag, ObjectKey, ObjectMeta};

/// Objects below a directory's key, by the rest of their keys.
pub type Below = BTreeMap<String, ObjectMeta>;

/// A file with a writer, in a directory that was renamed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Follower {
    /// The writer, as `open_write` got it.
    pub writer: u64,
    /// The key for the file's object.
    pub to: ObjectKey,
    /// The object that the file replaces under this key.
    pub over: Option<ETag>,
}

impl Tree {
    /// Moves an inode to another name, in the same map of its directory. The inode that had the name loses its place. The caller has
    /// checked that the new name has a key.
    pub(in crate::inode) fn moves(
        &mut self,
        ino: InodeNo,
        new_parent: InodeNo,
        new_name: &str,
        now: Instant,
    ) {
        let Some(inode) = self.inodes.get(ino) else { return };
        let (parent, name, place) = (inode.parent, inode.name.clone(), inode.place);
        let there = [self.child(new_parent, new_name), self.local(new_parent, new_name)];
        let is_free = there.iter().all(Option::is_none);
        let lacked = if is_free { self.lacked_at(new_parent, new_name, now) } else { None };
        // The store moved an object or looked below a directory just now. A file without an object tells nothing new about the old name.
        let mut since = Some(now);
        if let Ok(file) = self.file_mut(ino)
            && file.stored.is_none()
        {
            since = file.lacked();
            file.set_lacked(lacked);
        }
        for other in there.into_iter().flatten().filter(|&other| other != ino) {
            self.detach(other);
        }
        self.place(ino, Place::Nowhere);
        self.changed(parent, &name, true);
        let at = self.changed(new_parent, new_name, false);
        if let Some(inode) = self.inodes.get_mut(ino) {
            (inode.parent, inode.name, inode.learned) = (new_parent, new_name.into(), at);
        }
        self.fresh.forget(ino);
        self.firsts.forget(ino);
        self.place(ino, place);
        self.is_gone(parent, &name, since, now);
    }

    /// Notes that this mount removed a name, which S3 lacked at `since`: for a moment or a TTL from then on it is absent without a
    /// question.
    pub(in crate::inode) fn is_gone(
        &mut self,
        parent: InodeNo,
        name: &str,
        since: Option<Instant>,
        now: Instant,
    ) {
        self.removed_below(parent, now);
        let taken = self.child(parent, name).is_some() || self.local(parent, name).is_some();
        if let Some(since) = since.filter(|_| !taken && self.directory(parent).is_ok()) {
            self.observe_absent(parent, name, self.events, since);
        }
    }

    /// Moves a directory to another name, with all its facts. The store has these objects below the new key. Returns the files below that
    /// have a writer.
    pub(in crate::inode) fn moves_directory(
        &mut self,
        top: InodeNo,
        new_parent: InodeNo,
        new_name: &str,
        below: &Below,
        now: Instant,
    ) -> Vec<Follower> {
        self.moves(top, new_parent, new_name, now);
        let above = self.directory(new_parent).map(|(key, _)| key.clone());
        let Some(key) = above.ok().and_then(|above| path::directory_key(&above, new_name)) else {
            return Vec::new();
        };
        let at = self.event();
        self.walking(Walk::restart);
        let (mut followers, mut gone, mut moved) = (Vec::new(), Vec::new(), HashSet::new());
        let mut next = vec![(top, key, String::new())];
        while let Some((ino, key, path)) = next.pop() {
            self.has_another_key(ino, &key, at);
            moved.insert(ino);
            let locals = self.directory(ino).map(|(_, directory)| directory.locals.values().copied());
            let inside: Vec<_> = locals.into_iter().flatten().chain(self.children(ino)).collect();
            for child in inside {
                self.fresh.forget(child);
                self.firsts.forget(child);
                let until = now + self.ttl.file();
                let Some(inode) = self.inodes.get_mut(child) else { continue };
                inode.learned = at;
                let name = format!("{path}{}", inode.name);
                let file = match &mut inode.node {
                    Node::Directory(directory) => {
                        let below_it = format!("{name}/");
                        let first = below.range(below_it.clone()..).next();
                        if inode.place == Place::Remote {
                            let has_keys = first.is_some_and(|(path, _)| path.starts_with(&below_it));
                            directory.checked = has_keys.then_some(now);
                        }
                        match path::directory_key(&key, &inode.name) {
                            Some(key) => next.push((child, key, below_it)),
                            None => gone.push(child),
                        }
                        continue;
                    }
                    Node::File(file) => file,
                };
                let there = below.get(&name);
                if let Some(meta) = there {
                    file.stored = Some(Stored::new(meta, Teller::Upload, Some(until)));
                    file.checked = Moment::of(now);
                }
                match (&file.phase, path::file_key(&key, &inode.name)) {
                    (_, None) => gone.push(child),
                    (Phase::Writing(writing), Some(to)) => {
                        let over = there.map(|meta| meta.etag.clone());
                        followers.push(Follower { writer: writing.writer, to, over });
                    }
                    // Another client stored or removed this object during the rename: the next lookup asks.
                    (Phase::Stored, Some(_)) if there.is_none() => gone.push(child),
                    (Phase::Stored | Phase::New { .. }, Some(_)) => {}
                }
            }
        }
        self.board.overtake_in(&moved);
        gone.into_iter().for_each(|ino| self.detach(ino));
        self.place(top, if below.is_empty() { Place::Local } else { Place::Remote });
        if let Some(directory) = self.directory_mut(top).filter(|_| !below.is_empty()) {
            directory.checked = Some(now);
        }
        followers
    }

    /// Gives a directory another key, and forgets pages and facts that used the old one.
    fn has_another_key(&mut self, ino: InodeNo, key: &ObjectKey, at: u64) {
        self.forget_listed(ino);
        self.recent.retain(|&other| other != ino);
        let Some(directory) = self.directory_mut(ino) else { return };
        directory.key = key.clone();
        (directory.recent, directory.bare, directory.is_made_here) = (None, None, false);
        let needed = directory.has_pages();
        self.facts.moved(ino, at, needed);
    }
}
