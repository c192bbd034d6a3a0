//! The live inodes by their numbers. Numbers are consecutive, so eight neighbours share a shelf, which is one entry of the table.

use std::ops::Index;

use foldhash::HashMap;

use super::InodeNo;
use super::state::Inode;

/// Inodes of a shelf. With the double, the table takes half as much for each inode (5 bytes), and twice as much for an inode without
/// neighbours (1 KiB).
const SHELF: usize = 8;

/// All living inodes.
#[derive(Debug, Default)]
pub(super) struct Inodes {
    /// Shelves by number. Each is boxed, because a hash table has room for up to twice the entries that it holds.
    shelves: HashMap<u64, Box<[Option<Inode>; SHELF]>>,
    count: usize,
}

fn place(ino: InodeNo) -> (u64, usize) {
    (ino.0 / SHELF as u64, (ino.0 % SHELF as u64) as usize)
}

impl Inodes {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn get(&self, ino: InodeNo) -> Option<&Inode> {
        let (shelf, at) = place(ino);
        self.shelves.get(&shelf)?[at].as_ref()
    }

    pub(super) fn get_mut(&mut self, ino: InodeNo) -> Option<&mut Inode> {
        let (shelf, at) = place(ino);
        self.shelves.get_mut(&shelf)?[at].as_mut()
    }

    /// Adds an inode under a free number.
    pub(super) fn insert(&mut self, ino: InodeNo, inode: Inode) {
        let (shelf, at) = place(ino);
        let empty = || Box::new([const { None }; SHELF]);
        let before = self.shelves.entry(shelf).or_insert_with(empty)[at].replace(inode);
        debug_assert!(before.is_none(), "numbers are never reused");
        self.count += usize::from(before.is_none());
    }

    /// Removes an inode. An empty shelf is dropped, and a table that became sparse shrinks.
    pub(super) fn remove(&mut self, ino: InodeNo) {
        let (number, at) = place(ino);
        let Some(shelf) = self.shelves.get_mut(&number) else { return };
        self.count -= usize::from(shelf[at].take().is_some());
        if shelf.iter().all(Option::is_none) {
            self.shelves.remove(&number);
            if is_sparse(self.shelves.len(), self.shelves.capacity()) {
                self.shelves.shrink_to(2 * self.shelves.len());
            }
        }
    }
}

impl Index<InodeNo> for Inodes {
    type Output = Inode;

    fn index(&self, ino: InodeNo) -> &Inode {
        self.get(ino).expect("the caller holds a number that lives")
    }
}

/// Whether a table takes much more room than it needs. After it shrank, it must double or halve before it counts as sparse again.
pub(super) fn is_sparse(len: usize, capacity: usize) -> bool {
    capacity > 1024 && len < capacity / 8
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use proptest::prelude::*;

    use super::*;
    use crate::inode::state::{Directory, Node, Place};

    fn inode(i: u64) -> Inode {
        let node = Node::Directory(Box::new(Directory::new(Instant::now())));
        let name = i.to_string().into();
        Inode { name, parent: InodeNo(1), place: Place::Nowhere, lookups: 0, learned: i, node }
    }

    #[test]
    fn a_shelf_is_as_long_as_its_inodes() {
        assert_eq!(size_of::<[Option<Inode>; SHELF]>(), SHELF * size_of::<Inode>());
    }

    #[test]
    fn a_million_that_went_leave_no_room_behind() {
        let mut inodes = Inodes::default();
        (0..1_000_000).for_each(|i| inodes.insert(InodeNo(i), inode(i)));
        // Every hundredth inode stays for now.
        (0..1_000_000).filter(|i| i % 100 > 0).for_each(|i| inodes.remove(InodeNo(i)));
        assert_eq!((inodes.len(), inodes.shelves.len()), (10_000, 10_000));
        (0..1_000_000).for_each(|i| inodes.remove(InodeNo(i)));
        assert!(inodes.len() == 0 && inodes.shelves.is_empty() && inodes.shelves.capacity() <= 2048);
    }

    proptest! {
        #[test]
        fn what_is_found_is_what_was_put_there_and_not_taken(steps in prop::collection::vec((any::<bool>(), 0u64..40), 0..200)) {
            let mut inodes = Inodes::default();
            let mut model = std::collections::BTreeSet::new();
            for (puts, i) in steps {
                if puts && model.insert(i) {
                    inodes.insert(InodeNo(i), inode(i));
                } else if !puts {
                    model.remove(&i);
                    inodes.remove(InodeNo(i));
                }
                prop_assert_eq!(inodes.len(), model.len());
                for i in 0..40 {
                    prop_assert_eq!(inodes.get(InodeNo(i)).map(|inode| inode.learned), model.contains(&i).then_some(i));
                    prop_assert_eq!(inodes.get_mut(InodeNo(i)).is_some(), model.contains(&i));
                }
            }
        }
    }
}
