//! An object as the index of a bucket knows it: its file, where that lies, and its metadata.

use std::sync::Arc;
use std::time::SystemTime;

use super::journal::Remembered;
use super::meta::{Identity, Meta};

/// An object as the index knows it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) identity: Identity,
    pub(crate) place: Place,
    pub(crate) meta: Arc<Meta>,
}

/// The one of a key's two paths that holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Plain,
    Escaped,
}

impl Entry {
    /// The entry of a file that was found: the remembered metadata of this very file, else those that any file has.
    pub(super) fn of_file(key: &str, identity: Identity, place: Place, remembered: &Remembered) -> Arc<Self> {
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
