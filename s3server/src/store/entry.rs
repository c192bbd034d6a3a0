//! An object in the index of a bucket: its file, the file's place, and its metadata.

use std::sync::Arc;
use std::time::SystemTime;

use super::journal::Remembered;
use super::meta::{Identity, Meta};

/// An object in the index.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) identity: Identity,
    pub(crate) place: KeyPath,
    pub(crate) meta: Arc<Meta>,
}

/// The object's place: which of its key's two possible paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeyPath {
    Plain,
    Escaped,
}

impl Entry {
    /// The entry of a file: with its remembered metadata if the identity is equal, otherwise with derived metadata.
    pub(super) fn of_file(
        key: &str,
        identity: Identity,
        place: KeyPath,
        remembered: &Remembered,
    ) -> Arc<Self> {
        let meta = remembered
            .get(key)
            .and_then(|versions| versions.iter().rev().find(|(file, _)| *file == identity))
            .map_or_else(|| Arc::new(Meta::derived(&identity)), |(_, meta)| meta.clone());
        Arc::new(Self { identity, place, meta })
    }

    pub(crate) fn size(&self) -> u64 {
        self.identity.size
    }

    pub(crate) fn modified(&self) -> SystemTime {
        self.identity.modified()
    }
}
