//! One entry of a listing: as a program sees it now, and the inode that the entry becomes.

use std::time::{Duration, Instant};

use super::compact::{Judgement, Teller};
use super::facts::What;
use super::state::{Node, Place};
use super::tree::{Adopted, Tree};
use super::{InodeNo, Kind, Stat};
use crate::listing::batch::Batch;
use crate::object::ObjectMeta;
use crate::sync::Arc;

/// One entry of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    /// The number that a lookup of the name answers, unless the name changes.
    pub ino: InodeNo,
    /// The offset at which a listing continues after this entry.
    pub offset: u64,
    /// The attributes of the entry.
    pub stat: Stat,
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    /// A living inode.
    Inode { name: Box<str> },
    /// An entry of a page.
    Page { batch: Arc<Batch>, index: usize },
}

impl DirEntry {
    /// An entry for a living inode.
    pub(super) fn of_inode(name: &str, ino: InodeNo, offset: u64, stat: Stat) -> Self {
        Self { ino, offset, stat, source: Source::Inode { name: name.into() } }
    }

    /// The metadata of a file in the page that the entry comes from.
    pub(super) fn listed(&self) -> Option<ObjectMeta> {
        match &self.source {
            Source::Inode { .. } => None,
            Source::Page { batch, index } => batch.meta(*index),
        }
    }

    /// The entry's name.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.source {
            Source::Inode { name } => name,
            Source::Page { batch, index } => batch.name(*index),
        }
    }
}

/// The entry as it is now; `None` if its name disappeared after the page was requested.
pub(super) fn shown(
    tree: &Tree,
    parent: InodeNo,
    batch: &Arc<Batch>,
    index: usize,
    offset: u64,
    now: Instant,
) -> Option<DirEntry> {
    let name = batch.name(index);
    let (_, directory) = tree.directory(parent).ok()?;
    let of_inode = |ino: InodeNo| {
        let inode = tree.inode(ino).filter(|inode| inode.place != Place::Nowhere)?;
        let stat = tree.stat(inode, now);
        Some(DirEntry::of_inode(name, ino, offset, stat))
    };
    if let Some(ino) = batch.local(index) {
        return of_inode(ino.into());
    }
    let child = tree.child(parent, name);
    if let Some(ino) = child
        && tree.inode(ino).is_some_and(|inode| inode.learned > batch.asked)
    {
        return of_inode(ino);
    }
    let mut valid = true;
    if let Some(what) = tree.facts.since(parent, name, batch.asked) {
        if let Some(ino) = directory.locals.get(name) {
            return of_inode(*ino);
        }
        if what == What::Absent {
            return None;
        }
        valid = false;
    }
    // A local directory becomes the listed directory of the same name.
    let there = child.or_else(|| directory.locals.get(name).copied());
    let (stat, is_same) = if batch.is_file(index) {
        let (size, modified, readable) = batch.file(index);
        let valid_for = batch.said(tree.ttl).until.saturating_duration_since(now);
        let stat = Stat { kind: Kind::File, size, accessed: modified, modified, readable, valid_for };
        let judged = child.and_then(|ino| match tree.inode(ino).map(|inode| &inode.node) {
            Some(Node::File(file)) => {
                let stored = file.stored.as_ref()?;
                Some(stored.judge(size, batch.etag(index), modified, Teller::Listing))
            }
            _ => None,
        });
        // The object's own answer counts more than the listing.
        if let Some(ino) = child.filter(|_| judged == Some(Judgement::Doubtful)) {
            return of_inode(ino);
        }
        (stat, judged == Some(Judgement::Same))
    } else {
        (tree.directory_stat(), there.is_some_and(|ino| tree.directory(ino).is_ok()))
    };
    let ino = there.filter(|_| is_same).unwrap_or_else(|| batch.ino(index).into());
    let stat = if valid { stat } else { Stat { valid_for: Duration::ZERO, ..stat } };
    let source = Source::Page { batch: batch.clone(), index };
    Some(DirEntry { ino, offset, stat, source })
}

/// The inode for an entry. An outdated entry gets an inode without a place, so that the kernel looks the name up again.
pub(super) fn remember(tree: &mut Tree, parent: InodeNo, entry: &DirEntry) -> Option<InodeNo> {
    let Source::Page { batch, index } = &entry.source else {
        return tree.inode(entry.ino).map(|_| entry.ino);
    };
    match tree.adopt(parent, batch, *index) {
        Adopted::As(ino) | Adopted::Newer(ino) => Some(ino),
        Adopted::Outdated => {
            let name = batch.name(*index);
            let local = tree.directory(parent).ok()?.1.locals.get(name).copied();
            if local.is_none() {
                tree.make(entry.ino, parent, name, batch.asked, tree.node_of(batch, *index));
            }
            Some(local.unwrap_or(entry.ino))
        }
    }
}
