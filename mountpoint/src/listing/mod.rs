//! Pages of listings, in the order of their names.
//!
//! Enters: pages as S3 sends them, the names that a program looks up or lists, the times that requests took. Leaves: entries in order,
//! each name once; the pages that are worth a request, and whether a page answers a name. The room makes no request and knows no inode:
//! it carries an `EntryNo`, a number, for the tree of names. A page describes the time of its request; `inode/` knows the newer facts
//! about names.

pub(crate) mod batch;
pub(crate) mod behind;
pub(crate) mod expiry;
pub(crate) mod letters;
pub(crate) mod listed;
pub(crate) mod merge;
pub(crate) mod page;
pub(crate) mod path;
pub(crate) mod price;
pub(crate) mod ranges;
pub(crate) mod recent;
pub(crate) mod sisters;
pub(crate) mod together;
pub(crate) mod walk;

/// The number that the tree of names gives an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntryNo(pub(crate) u64);

/// The parts of this room that fuzz targets reach.
#[cfg(feature = "testing")]
pub mod fuzzing {
    use super::path::{Shown, show};

    /// The name under which a directory's listing shows a key, and whether the name is a directory. `None`: the key is hidden, or is the
    /// directory itself.
    pub fn shown<'a>(directory: &str, listed: &'a str) -> Option<(&'a str, bool)> {
        match show(directory, listed) {
            Shown::File(name) => Some((name, false)),
            Shown::Directory(name) => Some((name, true)),
            Shown::Own | Shown::Hidden(_) => None,
        }
    }
}
