//! A remembered complete listing of a directory.

use std::time::Instant;

use super::batch::Batch;
use super::merge::order;
use crate::sync::Arc;

/// A complete listing, kept to answer lookups and other listings.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    /// Pages in order, each name once.
    pub(crate) batches: Vec<Arc<Batch>>,
    /// The instant and the event of the first page's request.
    pub(crate) since: Instant,
    pub(crate) asked: u64,
    /// Whether the listing includes local entries.
    pub(crate) with_locals: bool,
    /// Whether lookups brought it, and no program asked for it: then it answers lookups of its names, and nothing else.
    pub(crate) for_lookups: bool,
}

impl Listed {
    pub(crate) fn entries(&self) -> usize {
        self.batches.iter().map(|batch| batch.len()).sum()
    }

    /// The entry of a name in the listing.
    pub(crate) fn find(&self, name: &str) -> Option<(&Batch, usize)> {
        let after = self.batches.partition_point(|batch| order(batch.name(0), name).is_le());
        let batch = &self.batches[after.checked_sub(1)?];
        let index = batch.find(name)?;
        batch.local(index).is_none().then_some((&**batch, index))
    }
}
