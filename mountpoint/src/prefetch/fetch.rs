//! Requests for pieces: splits a range into pieces, and carries out one request.

use std::ops::Range;

use super::object::Object;
use super::pieces::FetchNo;
use crate::buffer::{BLOCK, Fill, Reservation, Use, charge};
use crate::cache::CACHE_BLOCK;
use crate::s3::{Error, ErrorKind, GetObject};
use crate::sync::Arc;

/// Where pieces come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    Store,
    Cache,
}

/// One request, to be run.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) no: FetchNo,
    pub(super) source: Source,
    pub(super) range: Range<u64>,
    pub(super) cuts: Vec<Range<u64>>,
    /// Memory for it; `None`: to be waited for.
    pub(super) reservation: Option<Reservation>,
}

/// A request's first pieces are small, so that the first of them can be answered early.
const FIRST_PIECE: u64 = 128 << 10;

/// Splits a range into requests: runs of blocks of which the cache has all that is asked for, and runs of others, cut at multiples of
/// `request`. A block of which it has a part comes from the store as a whole: one request is cheaper than the gaps between.
pub(super) fn split(
    range: &Range<u64>,
    request: u64,
    cached: impl Fn(Range<u64>) -> bool,
) -> Vec<(Source, Range<u64>)> {
    let mut requests: Vec<(Source, Range<u64>)> = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let block = at / CACHE_BLOCK;
        let end = ((block + 1) * CACHE_BLOCK).min(range.end);
        let source = if cached(at..end) { Source::Cache } else { Source::Store };
        match requests.last_mut() {
            Some((s, r)) if *s == source && r.start / request == (end - 1) / request => r.end = end,
            _ => requests.push((source, at..end)),
        }
        at = end;
    }
    requests
}

/// Cuts a request into pieces, none across a block border.
pub(super) fn cut(range: &Range<u64>, whole_blocks: bool) -> Vec<Range<u64>> {
    let block = BLOCK as u64;
    let small = !whole_blocks && range.end - range.start <= block / 2;
    let step = if small { FIRST_PIECE } else { block };
    let mut cuts = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let end = ((at / step + 1) * step).min(range.end);
        cuts.push(at..end);
        at = end;
    }
    cuts
}

/// Runs one request to its end. Aborted, it leaves nothing behind but pieces that were forgotten already.
pub(super) async fn run(object: Arc<Object>, fetch: Fetch) {
    let no = fetch.no;
    let mut ending = Ending { object: &object, no, done: false };
    let error = attempt(&object, fetch).await.err().map(Arc::new);
    ending.done = true;
    object.ended(no, error.as_ref());
}

/// If the request panics, the reads that wait for it get an error. (No read waits for an aborted request.)
struct Ending<'a> {
    object: &'a Object,
    no: FetchNo,
    done: bool,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if !self.done {
            let error =
                Error::new(ErrorKind::Unknown, "GetObject").key(&self.object.id.key).message("given up");
            self.object.ended(self.no, Some(&Arc::new(error)));
        }
    }
}

async fn attempt(object: &Arc<Object>, fetch: Fetch) -> Result<(), Error> {
    let shared = &object.shared;
    let mut reservation = match fetch.reservation {
        Some(reservation) => reservation,
        None => {
            let bytes = fetch.cuts.iter().map(|c| charge((c.end - c.start) as usize)).sum();
            let waiting = shared.pool.reserve(Use::Demand, bytes);
            shared.clock.timeout(shared.config.wait_max, waiting).await.ok_or_else(|| {
                Error::new(ErrorKind::Timeout, "GetObject")
                    .key(&object.id.key)
                    .message("no memory became free in time; raise --memory-target")
            })?
        }
    };
    let no_memory = || {
        Error::new(ErrorKind::Timeout, "GetObject").key(&object.id.key).message("the kernel gave no memory")
    };
    let mut blocks = Vec::with_capacity(fetch.cuts.len());
    for cut in &fetch.cuts {
        blocks.push(reservation.block((cut.end - cut.start) as usize).ok_or_else(no_memory)?);
    }
    drop(reservation);

    let mut from = fetch.range.start;
    if fetch.source == Source::Cache
        && let Some(cache) = &shared.cache
    {
        let (cache, id, size) = (Arc::clone(cache), object.id.clone(), object.size());
        let (target, no) = (Arc::clone(object), fetch.no);
        let end = fetch.range.end;
        // Disks wait: not on a thread that serves the network.
        let left = tokio::task::spawn_blocking(move || {
            let mut blocks = blocks.into_iter();
            for mut block in blocks.by_ref() {
                let part = from..(from + block.limit() as u64).min(end);
                if !cache.read(&id, size, part.clone(), block.spare()) {
                    return (from, std::iter::once(block).chain(blocks).collect());
                }
                block.advance(block.limit());
                target.ready(part.start, no, block.freeze());
                from = part.end;
            }
            (from, Vec::new())
        })
        .await;
        let Ok((reached, left)) = left else {
            return Err(Error::new(ErrorKind::Unknown, "GetObject").message("reading the cache panicked"));
        };
        if left.is_empty() {
            return Ok(());
        }
        // Evicted or unsound since we asked: the rest comes from the store.
        (from, blocks) = (reached, left);
    }

    let request =
        GetObject { id: object.id.clone(), range: from..fetch.range.end, object_size: object.size() };
    let (target, no, mut start) = (Arc::clone(object), fetch.no, from);
    let asked = shared.clock.now();
    let mut first = None;
    let end = fetch.range.end;
    let mut fill = Fill::new(blocks, move |block| {
        let (len, now) = (block.len() as u64, target.shared.clock.now());
        {
            let mut link = target.shared.link.lock();
            link.count(now, len);
            match first {
                None => first = Some((len, now)),
                Some((first, first_at)) if start + len == end => {
                    link.learn(first, first_at - asked, end - from - first, now - first_at);
                }
                Some(_) => {}
            }
        }
        if let Some(cache) = &target.shared.cache {
            target.shared.metrics.cache_misses.inc();
            cache.put(&target.id, target.size(), start, block.clone());
        }
        target.ready(start, no, block);
        start += len;
    });
    shared.client.get_object(&request, &mut fill).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn requests_are_whole_parts_and_only_for_what_the_cache_lacks() {
        let parts = split(&(0..20 * MIB), 8 * MIB, |_| false);
        let store = |r: Range<u64>| (Source::Store, r);
        assert_eq!(parts, [store(0..8 * MIB), store(8 * MIB..16 * MIB), store(16 * MIB..20 * MIB)]);
        let mixed = split(&(0..4 * MIB), 8 * MIB, |r| r.start >= MIB && r.end <= 3 * MIB);
        assert_eq!(mixed, [store(0..MIB), (Source::Cache, MIB..3 * MIB), store(3 * MIB..4 * MIB)]);
    }

    proptest! {
        #[test]
        fn splitting_and_cutting_loses_nothing(
            start in 0u64..64 * MIB,
            len in 1u64..64 * MIB,
            cached in any::<u64>(),
            whole in any::<bool>(),
        ) {
            let range = start..start + len;
            let mut at = range.start;
            for (_, request) in split(&range, 8 * MIB, |r| cached >> (r.start / MIB % 64) & 1 == 1) {
                prop_assert!(request.end - request.start <= 8 * MIB);
                for cut in cut(&request, whole) {
                    prop_assert_eq!(cut.start, at);
                    prop_assert!(cut.end > cut.start && cut.end - cut.start <= MIB);
                    prop_assert_eq!(cut.start / MIB, (cut.end - 1) / MIB);
                    at = cut.end;
                }
            }
            prop_assert_eq!(at, range.end);
        }
    }
}
