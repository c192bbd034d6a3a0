//! Pages for the first lookup in a directory, where those of its sisters paid; see [`Sisters`].

use super::Tree;
use crate::inode::{InodeNo, ROOT};
use crate::listing::recent::Recent;
use crate::listing::sisters::Sisters;

impl Tree {
    /// Whether the first lookup in a directory is worth a page, for which this pays.
    pub(in crate::inode) fn sisters_buy(&mut self, ino: InodeNo) -> bool {
        let Some(parent) = self.above(ino) else { return false };
        let is_sister = |other: InodeNo| other != ino && self.above(other) == Some(parent);
        let is_beside = self.board.directories().any(is_sister);
        self.sisters_below(parent).is_some_and(|sisters| sisters.buys(is_beside))
    }

    /// Notes that a page, which is a whole directory, answered a second lookup there.
    pub(super) fn page_paid(&mut self, ino: InodeNo) {
        if let Some(sisters) = self.above(ino).and_then(|parent| self.sisters_below(parent)) {
            sisters.paid();
        }
        if let Some(sisters) = self.sisters_below(ino) {
            sisters.paid_above();
        }
    }

    /// The directory that has this one and its sisters.
    fn above(&self, ino: InodeNo) -> Option<InodeNo> {
        self.inode(ino).map(|inode| inode.parent).filter(|_| ino != ROOT)
    }

    fn sisters_below(&mut self, ino: InodeNo) -> Option<&mut Sisters> {
        let recent = &mut self.directory_mut(ino)?.recent;
        Some(&mut recent.get_or_insert_with(|| Box::new(Recent::new())).sisters)
    }
}
