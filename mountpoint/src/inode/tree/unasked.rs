//! Names that are absent without a question of their own.
//!
//! A page of the whole directory that was requested after a lookup began answers it as well as a question about the name. With
//! `--mode full` there is more: a program that makes files looks for each name first, and a database for its journal before each
//! transaction. A directory that this mount made lacks all names but those made here since; a page of a listing lacks the names that are not in it.
//! Both hold for a moment ([`Unasked`](crate::inode::Unasked)), a directory also until the stage has stored its marker, since no other
//! client can know it before. Neither holds behind a listing that a program began since: that may show names of other clients, which the
//! program then finds.

use std::time::{Duration, Instant};

use super::Tree;
use crate::inode::InodeNo;
use crate::inode::facts::What;
use crate::inode::state::{Bare, Directory};
use crate::listing::expiry::left;
use crate::listing::listed::Listed;

impl Tree {
    /// Most directories made here that lack names without a question. Beyond it the oldest is asked about as others are. Doubling it
    /// takes 2.4 MB more of memory.
    const BARE_MAX: usize = 100_000;

    /// The moment at which S3 lacked a name that no inode has, if it need not be asked again yet.
    pub(in crate::inode) fn absent_since(
        &mut self,
        parent: InodeNo,
        name: &str,
        now: Instant,
    ) -> Option<Instant> {
        let by_name = self.ttl.missing().max(self.unasked.by_name);
        let answered = self.facts.absent_at(parent, name).filter(|since| is_young(by_name, *since, now));
        answered.or_else(|| self.lacked_since(parent, name, now))
    }

    /// The event of the page's request which shows to a lookup that began at an earlier event that a name is absent.
    pub(in crate::inode) fn lacked_after(
        &mut self,
        parent: InodeNo,
        name: &str,
        began: u64,
        now: Instant,
    ) -> Option<u64> {
        if self.child(parent, name).is_some() {
            return None;
        }
        let asked = self.recent_mut(parent)?.lacks_since(name, began)?;
        if self.facts.since(parent, name, asked).is_some() {
            return None;
        }
        if self.recent_mut(parent)?.hit_absent(name, now) {
            self.page_paid(parent);
        }
        Some(asked)
    }

    /// The last moment at which S3 lacked a name that no inode has, as far as the tree knows.
    pub(in crate::inode) fn lacked_at(
        &mut self,
        parent: InodeNo,
        name: &str,
        now: Instant,
    ) -> Option<Instant> {
        let answered = self.facts.absent_at(parent, name);
        let listed = self.directory(parent).ok().and_then(|(_, directory)| directory.listed.as_ref());
        let lacks = |asked| self.facts.since(parent, name, asked).is_none();
        let lacks =
            |listed: &&Listed| !listed.for_lookups && lacks(listed.asked) && listed.find(name).is_none();
        let listed = listed.filter(lacks);
        let listed = listed.map(|listed| listed.since);
        answered.max(listed).max(self.lacked_since(parent, name, now))
    }

    /// The moment at which the directory lacked the name.
    fn lacked_since(&mut self, parent: InodeNo, name: &str, now: Instant) -> Option<Instant> {
        if self.unasked.in_directory.is_zero() {
            return None;
        }
        self.expire_bare(now);
        let within = self.bare_within();
        let Self { inodes, facts, .. } = self;
        let directory = inodes.get_mut(parent)?.directory_mut()?;
        let listing_at = directory.listing_at;
        let counts = |asked: u64| asked > listing_at && facts.since(parent, name, asked).is_none();
        if let Some(Bare { since, asked }) = directory.bare {
            if directory.owes_marker {
                let was_removed = facts.since(parent, name, asked) == Some(What::Absent);
                return (asked > listing_at && was_removed || counts(asked)).then_some(since);
            }
            if is_young(within, since, now) {
                return counts(asked).then_some(since);
            }
            directory.bare = None;
            self.release(parent);
            return None;
        }
        // A page hides a directory of a folder mark. Without a rest for single names, only directories made here rest.
        if self.folder_marks || self.unasked.by_name.is_zero() && !directory.is_made_here {
            return None;
        }
        let recent = directory.recent.as_deref_mut()?;
        let (since, asked) = recent.lacks(name, now)?;
        if !counts(asked) || !is_young(within, since, now) {
            return None;
        }
        if recent.hit_absent(name, now) {
            self.page_paid(parent);
        }
        Some(since)
    }

    /// Notes that this mount made a directory, of which S3 had nothing at `since`.
    pub(in crate::inode) fn is_bare(&mut self, ino: InodeNo, since: Option<Instant>, now: Instant) {
        let (is_on, asked) = (!self.unasked.in_directory.is_zero(), self.event());
        if let Some(directory) = self.directory_mut(ino).filter(|_| is_on) {
            directory.bare = since.map(|since| Bare { since, asked });
            directory.is_made_here = true;
            self.bare.extend(since.map(|since| (since, ino)));
        }
        self.expire_bare(now);
    }

    /// Notes whether the stage has yet to store the marker of a directory that was made here.
    pub(in crate::inode) fn owes_marker(&mut self, ino: InodeNo, owes: bool, now: Instant) {
        let within = self.bare_within();
        let Some(directory) = self.directory_mut(ino) else { return };
        directory.owes_marker = owes;
        if !owes && directory.bare.is_some_and(|bare| !is_young(within, bare.since, now)) {
            directory.bare = None;
            self.release(ino);
        }
        self.drop_if_idle(ino);
    }

    fn bare_within(&self) -> Duration {
        self.ttl.missing().max(self.unasked.in_directory)
    }

    /// Drops what directories made here lacked too long ago, and the oldest where they are many: as long as a directory lacks names
    /// without a question, each name that comes to it stays in memory.
    fn expire_bare(&mut self, now: Instant) {
        let within = self.bare_within();
        while let Some(&(since, ino)) = self.bare.front() {
            let are_many = self.bare.len() > Self::BARE_MAX || self.facts.are_many();
            if !are_many && is_young(within, since, now) {
                return;
            }
            self.bare.pop_front();
            // It is looked at again after as long.
            if !are_many && self.directory(ino).is_ok_and(|(_, directory)| directory.owes_marker) {
                self.bare.push_back((now, ino));
                continue;
            }
            if let Some(directory) = self.directory_mut(ino) {
                directory.bare = None;
            }
            self.release(ino);
        }
    }

    /// Number of directories that lack names without a question.
    #[cfg(test)]
    pub(in crate::inode) fn bare_directories(&self) -> usize {
        self.bare.len()
    }

    /// Notes that a program requests a page of a directory's listing.
    pub(in crate::inode) fn is_being_listed(&mut self, ino: InodeNo) {
        let at = self.event();
        if let Some(directory) = self.directory_mut(ino) {
            directory.listing_at = at;
        }
    }

    /// Whether a lookup in a directory made here is worth a page at once: more files are likely to be made there.
    pub(in crate::inode) fn renews_bare(&self, ino: InodeNo, now: Instant) -> bool {
        let has_page =
            |directory: &Directory| directory.recent.as_ref().is_some_and(|recent| recent.has_young(now));
        let renews =
            |directory: &Directory| !self.folder_marks && directory.is_made_here && !has_page(directory);
        self.directory(ino).is_ok_and(|(_, directory)| renews(directory))
    }
}

fn is_young(within: Duration, since: Instant, now: Instant) -> bool {
    !left(within, since, now).is_zero()
}
