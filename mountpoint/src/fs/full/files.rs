//! The files in the stage, found by inode and by number.

use std::collections::HashMap;

use crate::inode::InodeNo;
use crate::stage::Staged;
use crate::sync::Arc;

/// One file in the stage.
#[derive(Debug)]
pub(super) struct InStage {
    pub(super) staged: Arc<Staged>,
    /// Handles and operations that hold the file.
    pub(super) users: usize,
    /// Handles for writing.
    pub(super) writers: usize,
    /// Handles whose mappings change pages of the mount.
    pub(super) mappers: usize,
}

impl InStage {
    /// A file without users.
    pub(super) fn new(staged: Arc<Staged>) -> Self {
        Self { staged, users: 0, writers: 0, mappers: 0 }
    }
}

/// The files in the stage. An inode has at most one.
#[derive(Debug, Default)]
pub(super) struct Files {
    by_ino: HashMap<InodeNo, InStage>,
    by_number: HashMap<u64, InodeNo>,
}

impl Files {
    pub(super) fn len(&self) -> usize {
        self.by_ino.len()
    }

    pub(super) fn get(&self, ino: InodeNo) -> Option<&InStage> {
        self.by_ino.get(&ino)
    }

    pub(super) fn get_mut(&mut self, ino: InodeNo) -> Option<&mut InStage> {
        self.by_ino.get_mut(&ino)
    }

    /// The file with this number, and its inode.
    pub(super) fn by_number(&self, number: u64) -> Option<(InodeNo, &InStage)> {
        let ino = *self.by_number.get(&number)?;
        Some((ino, self.by_ino.get(&ino)?))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (InodeNo, &InStage)> {
        self.by_ino.iter().map(|(ino, file)| (*ino, file))
    }

    pub(super) fn insert(&mut self, ino: InodeNo, file: InStage) {
        self.by_number.insert(file.staged.number(), ino);
        if let Some(before) = self.by_ino.insert(ino, file) {
            self.by_number.remove(&before.staged.number());
        }
    }

    pub(super) fn remove(&mut self, ino: InodeNo) {
        if let Some(file) = self.by_ino.remove(&ino) {
            self.by_number.remove(&file.staged.number());
        }
    }
}
