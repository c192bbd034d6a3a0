//! Requests for pieces: plans the requests for a range, splits them into pieces, and carries out one request.

use std::ops::Range;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::oneshot;

use super::Shared;
use super::object::Object;
use super::pieces::{FetchNo, Pieces};
use crate::buffer::{BLOCK, Block, BlockMut, Fill, Reservation, Use, charge};
use crate::cache::{BlockCache, CACHE_BLOCK, Given, Later, SECTOR};
use crate::checksum::{Checksum, Hasher};
use crate::s3::{Error, ErrorKind, GetObject};
use crate::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use crate::sync::{Arc, Mutex};

/// The purpose of a fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// A read waits for the bytes.
    Demand,
    /// A read waits for the bytes, and the disk of the cache was late.
    DemandOfStore,
    /// The bytes are fetched ahead of reads.
    Ahead,
    /// No read has asked for the bytes yet. Bytes in the cache are not fetched before a read asks: they are as near as memory.
    AheadOfStore,
}

/// The source of pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Store,
    Cache,
}

/// One request, to be run.
#[derive(Debug)]
pub(super) struct Fetch {
    no: FetchNo,
    source: Source,
    range: Range<u64>,
    cuts: Vec<Range<u64>>,
    /// Memory for the bytes; `None`: the request has to wait for memory.
    reservation: Option<Reservation>,
}

/// The unit of requests, in bytes, if a cache keeps the received bytes. Doubling it doubles the bytes that a random read fetches, and the
/// cached bytes for reads beside it.
pub(super) const KEPT: u64 = 64 << 10;
const _: () = assert!(KEPT.is_multiple_of(SECTOR) && CACHE_BLOCK.is_multiple_of(KEPT));
/// The time after which a request reads no further block from the cache. Doubling it waits longer for a slow disk, and for a hanging one.
const CACHED_WITHIN: Duration = Duration::from_secs(1);
/// Length of a request's first pieces, which are small so that the first read gets its bytes early.
const FIRST_PIECE: u64 = 128 << 10;

impl Object {
    /// Plans requests for the missing parts of `range`, the last part first if `from_end`. The caller holds the pieces' lock, so that no
    /// other read requests the same bytes. The requests start after the caller has released the lock.
    pub(super) fn plan_fetches(
        &self,
        pieces: &mut Pieces,
        range: &Range<u64>,
        cause: Cause,
        request: u64,
        keep: bool,
        from_end: bool,
    ) -> Vec<Fetch> {
        let purpose = match cause {
            Cause::Demand | Cause::DemandOfStore => Use::Demand,
            Cause::Ahead | Cause::AheadOfStore => Use::Ahead,
        };
        let cache = self.shared.cache.as_deref();
        let keeps = cache.is_some_and(BlockCache::keeps);
        // A fetch covers whole sectors, which the cache can keep; if the cache keeps nothing now, only the requested range.
        let range = match keeps {
            true => range.start / KEPT * KEPT..range.end.next_multiple_of(KEPT).min(self.size),
            false => range.clone(),
        };
        let is_cached = |part| cause != Cause::DemandOfStore && self.is_cached(&part);
        let mut runs: Vec<_> = pieces
            .missing(&range)
            .iter()
            .flat_map(|missing| split(missing, request, is_cached))
            .filter(|(source, _)| !(*source == Source::Cache && cause == Cause::AheadOfStore))
            .collect();
        if from_end {
            runs.reverse();
        }
        let mut fetches = Vec::with_capacity(runs.len());
        for (source, run) in runs {
            let cuts = cut(&run, keeps);
            // Read-ahead takes memory that is free now, or does not happen.
            let reservation = match purpose {
                Use::Ahead => {
                    let bytes = cuts.iter().map(|c| charge((c.end - c.start) as usize)).sum();
                    match self.shared.pool.try_reserve(Use::Ahead, bytes) {
                        Some(reservation) => Some(reservation),
                        None => return fetches,
                    }
                }
                _ => None,
            };
            let no = self.next_fetch();
            for cut in &cuts {
                pieces.expect(cut.clone(), no, keep);
            }
            fetches.push(Fetch { no, source, range: run, cuts, reservation });
        }
        fetches
    }

    /// Starts requests that were planned.
    pub(super) fn start(self: &Arc<Self>, fetches: Vec<Fetch>) {
        for fetch in fetches {
            // The read may have begun long ago, if it waited for a lock or a disk.
            self.shared.read.ring();
            self.spawn(fetch.no, run(Arc::clone(self), fetch));
        }
    }
}

/// Splits a range into requests: runs of blocks of which the cache has all wanted bytes, and runs of other blocks, cut at multiples of
/// `request`. A block of which the cache has a part comes from the store as a whole: one request is cheaper than one for each gap.
fn split(range: &Range<u64>, request: u64, cached: impl Fn(Range<u64>) -> bool) -> Vec<(Source, Range<u64>)> {
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
fn cut(range: &Range<u64>, whole_blocks: bool) -> Vec<Range<u64>> {
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

/// Runs one request to its end. If it is aborted, it leaves only pieces that were forgotten already.
async fn run(object: Arc<Object>, fetch: Fetch) {
    let no = fetch.no;
    let mut ending = Ending { object: &object, no, done: false };
    let error = attempt(&object, fetch).await.err().map(Arc::new);
    ending.done = true;
    object.ended(no, error.as_ref());
}

/// A guard of a request: if it panics, the reads that wait for it get an error. (No read waits for an aborted request.)
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

/// Memory for a waiting read, in its turn. `None`: no read got memory for the longest wait, and no request is under way. (A request under
/// way ends by its own clocks, however slow the line, and then frees its memory.)
async fn memory(shared: &Shared, bytes: u64) -> Option<Reservation> {
    let mut waiting = pin!(shared.pool.reserve(Use::Demand, bytes));
    loop {
        let granted = shared.pool.granted(Use::Demand);
        if let Some(reservation) = shared.clock.timeout(shared.config.wait_max, &mut waiting).await {
            return Some(reservation);
        }
        // The order matters: memory of a request that ends in between is granted by then.
        if shared.under_way.load(SeqCst) == 0 && shared.pool.granted(Use::Demand) == granted {
            return None;
        }
    }
}

/// A request that has its memory, until this is dropped.
struct UnderWay<'a>(&'a AtomicUsize);

impl<'a> UnderWay<'a> {
    fn count(of: &'a AtomicUsize) -> Self {
        of.fetch_add(1, SeqCst);
        Self(of)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Memory for pieces: the reserved memory if there is enough, otherwise more after a wait.
async fn take_memory(
    object: &Object,
    cuts: &[Range<u64>],
    reservation: Option<Reservation>,
) -> Result<Vec<BlockMut>, Error> {
    let mut reservation = match reservation {
        Some(reservation) => reservation,
        None => {
            let bytes = cuts.iter().map(|c| charge((c.end - c.start) as usize)).sum();
            memory(&object.shared, bytes).await.ok_or_else(|| {
                Error::new(ErrorKind::Timeout, "GetObject")
                    .key(&object.id.key)
                    .message("no memory became free in time; raise --memory-target")
            })?
        }
    };
    let no_memory = || {
        Error::new(ErrorKind::Timeout, "GetObject").key(&object.id.key).message("the kernel gave no memory")
    };
    cuts.iter().map(|cut| reservation.block((cut.end - cut.start) as usize).ok_or_else(no_memory)).collect()
}

async fn attempt(object: &Arc<Object>, mut fetch: Fetch) -> Result<(), Error> {
    let shared = &object.shared;
    let mut blocks = take_memory(object, &fetch.cuts, fetch.reservation.take()).await?;
    let mut under_way = UnderWay::count(&shared.under_way);

    let mut from = fetch.range.start;
    if fetch.source == Source::Cache
        && let Some(cache) = &shared.cache
    {
        let (reached, left) = read_cached(object, cache, &fetch, blocks).await;
        if reached == fetch.range.end {
            return Ok(());
        }
        // The blocks were evicted or unsound since we asked, or the disk is late: the rest comes from the store.
        from = reached;
        blocks = match left {
            Some(left) => left,
            None => {
                let rest: Vec<_> = fetch.cuts.iter().filter(|cut| cut.start >= from).cloned().collect();
                // A wait for memory moves no byte, for which the waits of others would go on.
                drop(under_way);
                let rest = take_memory(object, &rest, None).await?;
                under_way = UnderWay::count(&shared.under_way);
                rest
            }
        };
    }

    let no = fetch.no;
    if from == 0 && fetch.range.end == object.size() {
        let Some(Wrong { ours, expected }) = receive_whole(object, no, blocks).await? else { return Ok(()) };
        drop(under_way);
        let key = &object.id.key;
        Error::corrupt(key, ours, expected, "it is asked for again").said();
        let blocks = take_memory(object, &fetch.cuts, None).await?;
        let _under_way = UnderWay::count(&shared.under_way);
        return match receive_whole(object, no, blocks).await? {
            None => Ok(()),
            Some(Wrong { ours, expected }) => {
                Err(Error::corrupt(key, ours, expected, "it was asked for twice").said())
            }
        };
    }
    let target = Arc::clone(object);
    receive(object, from..fetch.range.end, blocks, move |start, block| target.came(start, no, block)).await
}

/// Reads blocks of a request from the cache. Returns the offset that the reading reached, and the blocks for the rest. `None`: the disk
/// was late, and still has one of the blocks. The call returns the other blocks to the pool: no request waits for memory while it holds
/// some.
async fn read_cached(
    object: &Arc<Object>,
    cache: &Arc<dyn BlockCache>,
    fetch: &Fetch,
    blocks: Vec<BlockMut>,
) -> (u64, Option<Vec<BlockMut>>) {
    let (clock, mut from) = (&object.shared.clock, fetch.range.start);
    let until = clock.now() + CACHED_WITHIN;
    let mut blocks = blocks.into_iter();
    while let Some(block) = blocks.next() {
        let part = from..(from + block.limit() as u64).min(fetch.range.end);
        let given = if clock.now() < until {
            let (give, given) = oneshot::channel();
            let done: Later = Box::new(move |block| _ = give.send(block));
            cache.read_later(&object.id, object.size(), part.clone(), block, done);
            given.await.unwrap_or(Given::Late)
        } else {
            Given::Absent(block)
        };
        match given {
            Given::Here(mut block) => {
                block.advance(block.limit());
                object.ready(part.start, fetch.no, block.freeze());
                from = part.end;
            }
            Given::Absent(block) => return (from, Some(std::iter::once(block).chain(blocks).collect())),
            Given::Late => return (from, None),
        }
    }
    (from, Some(Vec::new()))
}

/// Receives a range of the object into blocks, and passes each on as soon as it is full.
async fn receive(
    object: &Arc<Object>,
    range: Range<u64>,
    blocks: Vec<BlockMut>,
    mut on_block: impl FnMut(u64, Block) + Send + 'static,
) -> Result<(), Error> {
    let shared = Arc::clone(&object.shared);
    let Range { start: from, end } = range;
    let (mut start, mut first) = (from, None);
    let asked = shared.clock.now();
    let mut fill = Fill::new(blocks, move |block| {
        let (len, now) = (block.len() as u64, shared.clock.now());
        {
            let mut link = shared.link.lock();
            link.count(now, len);
            match first {
                None => first = Some((len, now)),
                Some((first, first_at)) if start + len == end => {
                    link.learn(first, first_at - asked, end - from - first, now - first_at);
                }
                Some(_) => {}
            }
        }
        on_block(start, block);
        start += len;
    });
    loop {
        let id = object.shared.where_is(&object.id);
        let range = from + fill.filled()..end;
        let request = GetObject { id, range, object_size: object.size() };
        match object.shared.client.get_object(&request, &mut fill).await {
            // The object got another key since the request.
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Changed)
                    && object.shared.where_is(&object.id) != request.id => {}
            outcome => return outcome,
        }
    }
}

/// Receives the whole object in one answer. If the store gives a checksum, no byte is handed on before the comparison; an answer with other
/// bytes is dropped.
async fn receive_whole(
    object: &Arc<Object>,
    no: FetchNo,
    blocks: Vec<BlockMut>,
) -> Result<Option<Wrong>, Error> {
    let held = Arc::new(Mutex::new(Vec::with_capacity(blocks.len())));
    let (target, holding) = (Arc::clone(object), Arc::clone(&held));
    // The head of the answer, which may have the checksum, comes before the first block.
    receive(object, 0..object.size(), blocks, move |start, block| match target.expected() {
        Some(_) => holding.lock().push((start, block)),
        None => target.came(start, no, block),
    })
    .await?;
    let held = std::mem::take(&mut *held.lock());
    let came: u64 = held.iter().map(|(_, block)| block.len() as u64).sum();
    let Some(expected) = object.expected().filter(|_| came == object.size()) else {
        held.into_iter().for_each(|(start, block)| object.came(start, no, block));
        return Ok(None);
    };
    let ours = sum_of(expected, &held);
    if ours != expected {
        object.shared.metrics.read_corrupt.inc();
        return Ok(Some(Wrong { ours, expected }));
    }
    for (start, block) in held {
        object.keep(start, &block);
        object.ready(start, no, block);
    }
    Ok(None)
}

/// The checksum of an answer, and that of the store.
struct Wrong {
    ours: Checksum,
    expected: Checksum,
}

/// The checksum of all these blocks, by the algorithm of `like`.
fn sum_of(like: Checksum, blocks: &[(u64, Block)]) -> Checksum {
    let mut hasher = Hasher::new(like.algorithm);
    blocks.iter().for_each(|(_, block)| hasher.update(block));
    hasher.finish()
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
