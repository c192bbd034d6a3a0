//! Carries cached blocks of a version to its new key: reads them from the disk cache, compares them with their checksums, and keeps them
//! under the new version.

use tokio::sync::oneshot;

use super::{Prefetcher, Shared};
use crate::buffer::{Block, Use};
use crate::cache::{BlockCache, CACHE_BLOCK, Given, Sectors};
use crate::object::ObjectId;
use crate::sync::Arc;

impl Prefetcher {
    /// Makes the disk cache keep its whole blocks of `from`, of an object of `size` bytes, as blocks of `to`, which has the same bytes.
    /// Runs beside reads, one version after the other. Blocks for which the cache has no room, or that come too late, are fetched again
    /// when a program reads them.
    pub fn carry(&self, from: &ObjectId, to: &ObjectId, size: u64) {
        let Some(cache) = self.0.cache.clone().filter(|_| size > 0) else { return };
        let (shared, from, to) = (Arc::clone(&self.0), from.clone(), to.clone());
        self.0.runtime.spawn(async move {
            let Ok(_turn) = shared.carries.acquire().await else { return };
            for index in 0..size.div_ceil(CACHE_BLOCK) {
                let start = index * CACHE_BLOCK;
                let range = start..size.min(start + CACHE_BLOCK);
                let whole = Sectors::touching(&(0..range.end - start));
                if !cache.keeps() {
                    return;
                }
                if cache.present(&from, index).contains(whole)
                    && let Some(block) = read(&shared, &*cache, &from, size, range).await
                {
                    cache.put(&to, size, start, block);
                }
            }
            cache.drop_version(&from);
        });
    }
}

async fn read(
    shared: &Shared,
    cache: &dyn BlockCache,
    id: &ObjectId,
    size: u64,
    range: std::ops::Range<u64>,
) -> Option<Block> {
    let len = (range.end - range.start) as usize;
    let into = shared.pool.try_take(Use::Ahead, len)?;
    let (give, given) = oneshot::channel();
    cache.read_later(id, size, range, into, Box::new(move |answer| _ = give.send(answer)));
    match given.await {
        Ok(Given::Here(mut block)) => {
            block.advance(len);
            Some(block.freeze())
        }
        _ => None,
    }
}
