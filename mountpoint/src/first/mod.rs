//! The bytes of a file that are read first, asked for together with its attributes where that is likely to save a round trip: those of its
//! head, or those of its tail for names whose ending is known to be read from there. Where the size is not known, because the name is new, the
//! tail comes by a suffix range, in place of the HEAD.
//!
//! Enters: the key of a file, and the operation that needs its attributes. Leaves: the attributes, and a [`First`] that may hold the
//! first bytes of that version. The use of each `First` decides about later requests: it paid if a read used it, and did not if it was
//! dropped. This room never decides whether bytes may be served to a read: `inode` does, because it knows which lookup brought them.

mod endings;
mod guess;
mod recent;

use std::fmt;
use std::ops::Range;

pub use guess::Cause;

use crate::buffer::{Block, BlockMut, Pool, Use};
use crate::cache::{BlockCache, CACHE_BLOCK, SECTOR, Sectors};
use crate::metrics::Metrics;
use crate::object::{ObjectId, ObjectKey, ObjectMeta};
use crate::s3::{self, Begin, GetFirst, ObjectClient};
use crate::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};
use endings::{Began, Endings};
use guess::Guess;
use recent::Recent;

/// Bytes asked for: what the kernel reads first of a file without read-ahead of its own choice. Doubling it makes files of up to
/// twice the size one request, and doubles what a wrong guess costs.
pub const LEN: usize = 128 << 10;

/// Most that are asked for or held at once; beyond it attributes are asked for alone. Doubling it doubles the memory (8 MiB, counted in
/// the budget as read-ahead), and lets more threads open cold files at once.
const OUT_MAX: usize = 64;

/// Longest first read of a file's last bytes that is taken for one of a trailer, which says where the table of contents begins. Doubling it has more
/// reads of whole tables of contents taken for it.
pub const TRAILER: u64 = 8 << 10;

/// The kernel reads whole pages.
const PAGE: u64 = 4096;

/// The part of an object of `size` bytes that is asked for: its head, or the last `tail` bytes, from a multiple of `unit` on.
fn part(size: u64, tail: Option<u64>, unit: u64) -> Range<u64> {
    let len = LEN as u64;
    match tail.filter(|_| size > len) {
        None => 0..size.min(len),
        Some(tail) => {
            let start = size.saturating_sub(tail) / unit * unit;
            start.max((size - len).next_multiple_of(unit)).min(size)..size
        }
    }
}

/// The side at which a file of `size` bytes began to be read, by its first read. `None` if that lies on both sides, or on neither.
fn began(size: u64, range: &Range<u64>) -> Option<Began> {
    let len = LEN as u64;
    match (range.start < len, range.start >= size.saturating_sub(len)) {
        (true, false) => Some(Began::Head),
        (false, true) => {
            let is_trailer = range.end == size && range.end - range.start <= TRAILER;
            Some(Began::Tail(if is_trailer { len } else { size - range.start }))
        }
        _ => None,
    }
}

/// The version of a file that is known before it is asked about.
#[derive(Clone, Debug)]
pub struct Known {
    /// The object version.
    pub id: ObjectId,
    /// The object's size in bytes.
    pub size: u64,
    /// Whether the ETag is the object's own word: another version is refused. A listing may spell it otherwise.
    pub is_pinned: bool,
}

/// Asks for attributes. Clones learn together.
#[derive(Clone)]
pub struct Asker(Arc<Shared>);

struct Shared {
    client: Arc<dyn ObjectClient>,
    /// `None`: attributes alone, always.
    pool: Option<Pool>,
    /// Files whose first bytes it has are not asked for them.
    cache: Option<Arc<dyn BlockCache>>,
    metrics: Arc<Metrics>,
    guesses: Mutex<[Guess; Cause::COUNT]>,
    tails: Mutex<Tails>,
    out: AtomicUsize,
}

/// Lessons of reads of tails.
#[derive(Debug, Default)]
struct Tails {
    endings: Endings,
    recent: Recent,
}

impl Asker {
    /// An asker that takes memory for first bytes from `pool`. It does not ask for bytes that `cache` has.
    pub fn new(
        client: Arc<dyn ObjectClient>,
        pool: Pool,
        cache: Option<Arc<dyn BlockCache>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self::with(client, Some(pool), cache, metrics)
    }

    /// An asker that never asks for bytes.
    pub fn of_attributes(client: Arc<dyn ObjectClient>) -> Self {
        Self::with(client, None, None, Arc::default())
    }

    fn with(
        client: Arc<dyn ObjectClient>,
        pool: Option<Pool>,
        cache: Option<Arc<dyn BlockCache>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let guesses = Mutex::new([Cause::Lookup, Cause::Open, Cause::Cold].map(Guess::new));
        let (tails, out) = (Mutex::default(), AtomicUsize::new(0));
        Self(Arc::new(Shared { client, pool, cache, metrics, guesses, tails, out }))
    }

    /// The client that it asks.
    pub fn client(&self) -> &Arc<dyn ObjectClient> {
        &self.0.client
    }

    /// The attributes of a file that is looked up or opened. `known`: only of this version, of this many bytes; else the error is
    /// `Changed`, or the attributes are of another one.
    pub async fn ask(
        &self,
        key: &ObjectKey,
        cause: Cause,
        known: Option<&Known>,
    ) -> s3::Result<(ObjectMeta, First)> {
        let (tail, is_with_kernel) = {
            let tails = self.0.tails.lock();
            let tail = tails.endings.tail(key.as_str());
            let is_with_kernel = || match known {
                Some(known) => tails.recent.has(&known.id, known.size),
                None => tails.recent.has_key(key),
            };
            (tail, tail.is_some() && is_with_kernel())
        };
        let cause = match cause {
            Cause::Cold if tail.is_none() || is_with_kernel => Cause::Lookup,
            cause => cause,
        };
        let wanted = known.map(|known| part(known.size, tail, self.unit()));
        if let (Some(known), Some(wanted)) = (known, &wanted)
            && (is_with_kernel && wanted.start > 0 || self.is_cached(known, wanted))
        {
            // Nothing to guess, so nothing to learn.
            let meta = self.0.client.head_object(key).await?;
            let id = ObjectId::of(key.clone(), &meta);
            let (size, shared) = (meta.size, Arc::clone(&self.0));
            let first =
                First { shared, id, size, part: wanted.clone(), came: false, bytes: None, ticket: None };
            return Ok((meta, first));
        }
        // Without a size it is not known where the tail begins. Of a name that is not new the read asks for it.
        let is_new = wanted.is_none() && cause == Cause::Cold;
        let is_blind = wanted.is_none() && tail.is_some() && !is_new;
        let wanted = wanted.unwrap_or(0..LEN as u64);
        let mut ticket = Ticket { shared: Arc::clone(&self.0), cause, is_out: false, is_blind };
        // On an error nothing was found that a read could have used: that was neither right nor wrong.
        let (meta, bytes) = match self.room(cause, &wanted, &mut ticket) {
            Some(room) => {
                self.0.metrics.first_asked.inc();
                let is_whole = known.is_some_and(|known| wanted == (0..known.size));
                let etag = known.filter(|known| known.is_pinned).map(|known| known.id.etag.clone());
                let etag = etag.filter(|etag| !etag.is_none());
                let begin = if is_new { Begin::Tail } else { Begin::At(wanted.start) };
                let request = GetFirst { key: key.clone(), etag, begin, is_whole };
                let first = self.0.client.get_first(&request, room).await?;
                (first.meta, first.bytes)
            }
            None => (self.0.client.head_object(key).await?, None),
        };
        let id = ObjectId::of(key.clone(), &meta);
        let (size, came, shared) = (meta.size, bytes.is_some(), Arc::clone(&self.0));
        let part = match is_new {
            true => part(size, tail, self.unit()),
            false => wanted.start.min(size)..wanted.end.min(size),
        };
        Ok((meta, First { shared, id, size, part, came, bytes, ticket: Some(ticket) }))
    }

    /// The unit of what is asked for of a tail: the cache keeps whole sectors, and the kernel asks for whole pages.
    fn unit(&self) -> u64 {
        let keeps = self.0.cache.as_deref().is_some_and(BlockCache::keeps);
        if keeps { SECTOR } else { PAGE }
    }

    /// Whether this part of this version is thought to be in the disk cache. Of a tail its last bytes tell: they were read before, and so was
    /// what their reader wanted beside them.
    fn is_cached(&self, known: &Known, part: &Range<u64>) -> bool {
        let Some(cache) = self.0.cache.as_deref().filter(|_| !part.is_empty()) else { return false };
        let block = (part.end - 1) / CACHE_BLOCK * CACHE_BLOCK;
        let start = if part.start > 0 { (part.end - 1) / SECTOR * SECTOR } else { 0 };
        cache
            .present(&known.id, block / CACHE_BLOCK)
            .contains(Sectors::touching(&(start - block..part.end - block)))
    }

    /// Memory for the first bytes, if they are worth asking for and there is room.
    fn room(&self, cause: Cause, wanted: &Range<u64>, ticket: &mut Ticket) -> Option<BlockMut> {
        let pool = self.0.pool.as_ref()?;
        if ticket.is_blind || wanted.is_empty() || !self.0.guesses.lock()[cause as usize].is_worth() {
            return None;
        }
        if self.0.out.fetch_add(1, Relaxed) >= OUT_MAX {
            self.0.out.fetch_sub(1, Relaxed);
            return None;
        }
        ticket.is_out = true;
        let room = pool.try_take(Use::Ahead, (wanted.end - wanted.start) as usize);
        if room.is_none() {
            ticket.give_back();
        }
        room
    }
}

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asker").field("guesses", &*self.0.guesses.lock()).finish_non_exhaustive()
    }
}

/// The attributes of a file's object, perhaps with the bytes that are read first. Dropped without [`First::was_read`], it counts as a wrong
/// guess.
pub struct First {
    shared: Arc<Shared>,
    id: ObjectId,
    size: u64,
    /// The part of the object that it is about: where its bytes lie, or would.
    part: Range<u64>,
    /// The bytes, and the offset of the first of them: at least the part.
    bytes: Option<(u64, Block)>,
    /// Whether bytes came.
    came: bool,
    ticket: Option<Ticket>,
}

impl First {
    /// Whether it is of this version, with this size.
    pub fn is_of(&self, id: &ObjectId, size: u64) -> bool {
        self.id.key == id.key && self.id.may_be(id.etag.as_str(), id.modified) && self.size == size
    }

    /// Whether it has bytes.
    pub fn has_bytes(&self) -> bool {
        self.bytes.is_some()
    }

    /// The part of the object that it is about: where its bytes lie, or would.
    pub fn part(&self) -> Range<u64> {
        self.part.clone()
    }

    /// The first read of the file, for which the store was the place to get bytes from, was of this range. Teaches where files with such a
    /// name are read, and whether the bytes were right.
    pub fn began(self, range: &Range<u64>) {
        if let Some(began) = began(self.size, range) {
            let mut tails = self.shared.tails.lock();
            if let Began::Tail(_) = began {
                tails.recent.was_read(&self.id, self.size);
            }
            // Only a question teaches: a second open of a table reads its columns, and the kernel has its tail.
            if self.ticket.is_some() {
                tails.endings.began(self.id.key.as_str(), began);
            }
        }
        if self.part.contains(&range.start) {
            self.was_read();
        }
    }

    /// The bytes, and the offset of the first of them. They are the reader's from here on.
    pub fn take_bytes(&mut self) -> Option<(u64, Block)> {
        if let Some(ticket) = &mut self.ticket {
            ticket.give_back();
        }
        self.bytes.take()
    }

    /// A read wanted the first bytes, and the store was the place to get them from.
    pub fn was_read(mut self) {
        if let Some(ticket) = self.ticket.take().filter(|ticket| !ticket.is_blind) {
            self.shared.guesses.lock()[ticket.cause as usize].right();
        }
    }
}

impl fmt::Debug for First {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("First")
            .field("id", &self.id)
            .field("size", &self.size)
            .field("part", &self.part)
            .field("came", &self.came)
            .finish_non_exhaustive()
    }
}

impl Drop for First {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take().filter(|ticket| !ticket.is_blind) else { return };
        self.shared.guesses.lock()[ticket.cause as usize].wrong();
        self.shared.metrics.first_wasted.add(u64::from(self.came));
        // A reader counts the bytes that it took.
        self.shared
            .metrics
            .prefetch_wasted
            .add(self.bytes.as_ref().map_or(0, |(_, bytes)| bytes.len() as u64));
    }
}

/// A question, and what it teaches.
struct Ticket {
    shared: Arc<Shared>,
    cause: Cause,
    /// Counted in `out`.
    is_out: bool,
    /// Nothing was guessed: it teaches the ending alone.
    is_blind: bool,
}

impl Ticket {
    fn give_back(&mut self) {
        if std::mem::take(&mut self.is_out) {
            self.shared.out.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("cause", &self.cause)
            .field("is_out", &self.is_out)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MOST: u64 = LEN as u64;

    #[test]
    fn the_part_that_is_asked_for_is_the_head_or_the_tail_in_whole_units() {
        assert_eq!(part(MIB, None, PAGE), 0..MOST);
        assert_eq!(part(10, None, PAGE), 0..10);
        assert_eq!(part(0, None, PAGE), 0..0);
        assert_eq!(part(MOST, Some(20_000), PAGE), 0..MOST, "all of a small file, whatever is read of it");
        assert_eq!(part(MIB + 5, Some(20_000), PAGE), MIB - 20480..MIB + 5);
        assert_eq!(part(MIB + 5, Some(20_000), SECTOR), MIB - 2 * SECTOR..MIB + 5);
        for size in [MOST + 1, MIB, MIB + 1, MIB + SECTOR - 1, 5 * MIB + 777] {
            for tail in [1, PAGE, 100_000, MOST] {
                let Range { start, end } = part(size, Some(tail), SECTOR);
                assert!(start % SECTOR == 0 && start <= end && end == size && end - start <= MOST);
                assert!(end - start >= tail.min(MOST - SECTOR), "{size} {tail}");
            }
        }
    }

    #[test]
    fn a_first_read_tells_where_files_begin_to_be_read_and_how_much() {
        assert_eq!(began(MIB, &(0..10)), Some(Began::Head));
        assert_eq!(began(MIB, &(MIB - 20_000..MIB)), Some(Began::Tail(20_000)));
        assert_eq!(
            began(MIB, &(MIB - 8..MIB)),
            Some(Began::Tail(MOST)),
            "a trailer: what it speaks of comes next"
        );
        assert_eq!(began(MIB, &(MIB / 2..MIB / 2 + 10)), None);
        assert_eq!(began(MOST, &(MOST - 8..MOST)), None, "it lies on both sides");
    }
}
