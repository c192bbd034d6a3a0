//! First bytes: the head of a file, or the tail if its ending is known for reads from there, or all of a file of up to 1 MiB unless its
//! ending is known for other reads, in one request with the file's attributes where that probably saves a round trip. For a new name, whose size is
//! unknown, a suffix range brings the tail in place of the HEAD. Where the kernel has the tail, an open brings the bytes that were read
//! next of the files before (`next.rs`).
//!
//! Enters: the key of a file, and the operation that needs its attributes. Leaves: the attributes, and a [`First`] that may hold the
//! first bytes of that version. The use of each `First` decides about later requests: a read that used it makes them more likely, and a
//! drop less likely. This room never decides whether a read may get the bytes: `inode` does, because it knows which lookup brought them.

mod endings;
mod guess;
mod next;
mod recent;
mod whole;

use std::fmt;
use std::ops::Range;

pub use guess::Cause;
pub use next::Nexts;

use crate::buffer::{BLOCK, Block, BlockMut, Pool, Use};
use crate::cache::{BlockCache, CACHE_BLOCK, SECTOR, Sectors};
use crate::metrics::Metrics;
use crate::object::{ObjectId, ObjectKey, ObjectMeta};
use crate::s3::{self, Begin, GetFirst, ObjectClient};
use crate::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};
use endings::{Began, Endings};
use guess::Guess;
use recent::Recent;
use whole::Wholes;

/// Bytes to request: the kernel's first read of a file, with its default read-ahead. Doubling it serves files of up to twice the size by
/// one request, and doubles the cost of a wrong guess.
pub const LEN: usize = 128 << 10;

/// Largest file to request whole, unless its ending says that programs read it otherwise: one block of memory, and the kernel's longest read.
/// Doubling it saves a request per file of that size, and doubles the cost of a wrong guess.
const WHOLE: u64 = BLOCK as u64;
const _: () = assert!(WHOLE <= CACHE_BLOCK, "the first bytes of a head lie in one block of the cache");

/// Most requests and unread results at once, in units of [`LEN`]. Beyond it, requests are for attributes alone. Doubling it doubles the
/// memory (8 MiB, counted as read-ahead in the budget), and lets more threads open cold files at once.
const OUT_MAX: usize = 64;
/// Most whole files that readers have unread. Beyond it an open brings a head. Doubling it doubles the memory that a program costs which
/// opens many files before it reads any.
const UNREAD_MAX: usize = 8;

/// Longest first read of a file's end that counts as a read of a trailer, which says where the table of contents begins. With the double,
/// more reads of whole tables of contents count as trailers.
pub const TRAILER: u64 = 8 << 10;

/// The kernel reads whole pages.
const PAGE: u64 = 4096;

/// The part of an object of `size` bytes to request: its head, or its last `tail` bytes, from a multiple of `unit` on.
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

/// The side of a file of `size` bytes at which its first read lies. `None` if the read lies at both sides, or at neither.
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

/// Whether a read lies in the tail of a file of `size` bytes, and not in its head.
pub fn is_tail(size: u64, range: &Range<u64>) -> bool {
    matches!(began(size, range), Some(Began::Tail(_)))
}

/// Whether a first read of a file of `size` bytes is for all of it. `None` for a file that teaches nothing: its head is all of it, or it is
/// too long to be requested whole.
fn is_of_all(size: u64, range: &Range<u64>) -> Option<bool> {
    let counts = size > LEN as u64 && size <= WHOLE;
    counts.then_some(range.start == 0 && range.end >= size)
}

/// The version of a file that the caller knows before the request.
#[derive(Clone, Debug)]
pub struct Known {
    /// The object version.
    pub id: ObjectId,
    /// The object's size in bytes.
    pub size: u64,
    /// Whether the ETag comes from the object itself, so that the request may refuse other versions. A listing may spell the ETag
    /// differently.
    pub is_pinned: bool,
}

/// Asks for attributes. Clones share what they learn.
#[derive(Clone)]
pub struct Asker(Arc<Shared>);

struct Shared {
    client: Arc<dyn ObjectClient>,
    /// Memory for first bytes. `None`: requests are for attributes alone.
    pool: Option<Pool>,
    /// The disk cache. First bytes that it has are not requested.
    cache: Option<Arc<dyn BlockCache>>,
    metrics: Arc<Metrics>,
    guesses: Mutex<[Guess; Cause::COUNT]>,
    tails: Mutex<Tails>,
    out: AtomicUsize,
    /// Whole files that readers have, and of which nothing was read yet.
    unread: AtomicUsize,
}

/// Facts learned from the first reads of files.
#[derive(Debug, Default)]
struct Tails {
    endings: Endings,
    nexts: Nexts,
    recent: Recent,
    wholes: Wholes,
}

impl Asker {
    /// An asker that takes memory for first bytes from `pool`, and requests no bytes that `cache` has.
    pub fn new(
        client: Arc<dyn ObjectClient>,
        pool: Pool,
        cache: Option<Arc<dyn BlockCache>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self::with(client, Some(pool), cache, metrics)
    }

    /// An asker that never requests bytes.
    pub fn of_attributes(client: Arc<dyn ObjectClient>) -> Self {
        Self::with(client, None, None, Arc::default())
    }

    fn with(
        client: Arc<dyn ObjectClient>,
        pool: Option<Pool>,
        cache: Option<Arc<dyn BlockCache>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let guesses = Mutex::new([Cause::Lookup, Cause::Open, Cause::Cold, Cause::Next].map(Guess::new));
        let (tails, out) = (Mutex::default(), AtomicUsize::new(0));
        let unread = AtomicUsize::new(0);
        Self(Arc::new(Shared { client, pool, cache, metrics, guesses, tails, out, unread }))
    }

    /// The client of this asker.
    pub fn client(&self) -> &Arc<dyn ObjectClient> {
        &self.0.client
    }

    /// The attributes of a file, for a lookup or an open. `known`: the expected version and size; the error for another version is
    /// `Changed`, or the attributes are of the other version.
    pub async fn ask(
        &self,
        key: &ObjectKey,
        cause: Cause,
        known: Option<&Known>,
    ) -> s3::Result<(ObjectMeta, First)> {
        let (tail, is_whole, is_with_kernel, next) = {
            let tails = self.0.tails.lock();
            let tail = tails.endings.tail(key.as_str());
            let is_whole = tail.is_none() && tails.wholes.is_likely(key.as_str());
            let is_with_kernel = || match known {
                Some(known) => tails.recent.has(&known.id, known.size),
                None => tails.recent.has_key(key),
            };
            let is_with_kernel = tail.is_some() && is_with_kernel();
            let next = known.filter(|_| is_with_kernel).and_then(|_| tails.nexts.likely(key.as_str()));
            (tail, is_whole, is_with_kernel, next)
        };
        let cause = match cause {
            Cause::Cold if tail.is_none() || is_with_kernel => Cause::Lookup,
            cause => cause,
        };
        let is_whole = is_whole && self.0.unread.load(Relaxed) < UNREAD_MAX;
        let wanted = known.map(|known| match is_whole && known.size <= WHOLE {
            true => 0..known.size,
            false => part(known.size, tail, self.unit()),
        });
        let is_next = is_with_kernel && wanted.as_ref().is_some_and(|wanted| wanted.start > 0);
        let next = known.zip(next).and_then(|(known, next)| self.wants_next(known, next));
        let (cause, wanted) = match next.filter(|_| is_next) {
            Some(next) => (Cause::Next, Some(next)),
            None => (cause, wanted),
        };
        if let (Some(known), Some(wanted)) = (known, &wanted)
            && cause != Cause::Next
            && (is_next || self.is_cached(known, wanted))
        {
            // Without a guess there is nothing to learn.
            let meta = self.0.client.head_object(key).await?;
            let id = ObjectId::of(key.clone(), &meta);
            let (size, shared) = (meta.size, Arc::clone(&self.0));
            let first = First {
                shared,
                id,
                size,
                part: wanted.clone(),
                is_next,
                came: false,
                bytes: None,
                ticket: None,
            };
            return Ok((meta, first));
        }
        // Without a size, the beginning of the tail is unknown. Only for a new name a suffix range pays: otherwise the read requests the
        // tail.
        let is_new = wanted.is_none() && cause == Cause::Cold;
        let is_blind = wanted.is_none() && tail.is_some() && !is_new;
        let wanted = wanted.unwrap_or(0..LEN as u64);
        let mut ticket =
            Ticket { shared: Arc::clone(&self.0), cause, out: 0, is_unread_whole: false, is_blind };
        // After an error no read could have used the bytes: the guess was neither right nor wrong.
        let (meta, bytes) = match self.room(cause, &wanted, &mut ticket) {
            Some(room) => {
                self.0.metrics.first_asked.inc();
                let is_whole = known.is_some_and(|known| wanted == (0..known.size));
                let etag = known.filter(|known| known.is_pinned).map(|known| known.id.etag.clone());
                let etag = etag.filter(|etag| !etag.is_none());
                let begin = if is_new { Begin::Tail } else { Begin::At(wanted.start) };
                let request =
                    GetFirst { key: key.clone(), etag, begin, is_whole, is_lookup: cause == Cause::Cold };
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
        Ok((meta, First { shared, id, size, part, is_next, came, bytes, ticket: Some(ticket) }))
    }

    /// The bytes to request in place of a tail that the kernel has: those that were read next of files before this one, in whole units.
    fn wants_next(&self, known: &Known, next: Range<u64>) -> Option<Range<u64>> {
        let unit = self.unit();
        let wanted = next.start / unit * unit..next.end.next_multiple_of(unit).min(known.size);
        let fits = next.end <= known.size && wanted.end - wanted.start <= LEN as u64;
        (fits && !self.is_cached(known, &wanted)).then_some(wanted)
    }

    /// The unit of a tail's beginning: the cache keeps whole sectors, and the kernel requests whole pages.
    fn unit(&self) -> u64 {
        let keeps = self.0.cache.as_deref().is_some_and(BlockCache::keeps);
        if keeps { SECTOR } else { PAGE }
    }

    /// Whether the disk cache probably has this part of this version. The last bytes decide about a tail: if they are cached, the rest of
    /// the tail was read, too.
    fn is_cached(&self, known: &Known, part: &Range<u64>) -> bool {
        let Some(cache) = self.0.cache.as_deref().filter(|_| !part.is_empty()) else { return false };
        let block = (part.end - 1) / CACHE_BLOCK * CACHE_BLOCK;
        let start = if part.start > 0 { (part.end - 1) / SECTOR * SECTOR } else { 0 };
        cache
            .present(&known.id, block / CACHE_BLOCK)
            .contains(Sectors::touching(&(start - block..part.end - block)))
    }

    /// Memory for the first bytes, if they are worth a request and the budget has room.
    fn room(&self, cause: Cause, wanted: &Range<u64>, ticket: &mut Ticket) -> Option<BlockMut> {
        let pool = self.0.pool.as_ref()?;
        if ticket.is_blind || wanted.is_empty() || !self.0.guesses.lock()[cause as usize].is_worth() {
            return None;
        }
        let len = (wanted.end - wanted.start) as usize;
        ticket.out = len.div_ceil(LEN);
        if self.0.out.fetch_add(ticket.out, Relaxed) + ticket.out > OUT_MAX {
            ticket.give_back();
            return None;
        }
        let room = pool.try_take(Use::Ahead, len);
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

/// The attributes of a file's object, perhaps with its first bytes. A drop without [`First::was_read`] counts as a wrong guess.
pub struct First {
    shared: Arc<Shared>,
    id: ObjectId,
    size: u64,
    /// The part of the object that the guess is about, whether bytes came or not.
    part: Range<u64>,
    /// Whether the kernel has the tail, so that the first read is the one after that.
    is_next: bool,
    /// The bytes, and the offset of the first one. They cover at least the part.
    bytes: Option<(u64, Block)>,
    /// Whether the answer had bytes.
    came: bool,
    ticket: Option<Ticket>,
}

impl First {
    /// Whether the attributes are of this version and size.
    pub fn is_of(&self, id: &ObjectId, size: u64) -> bool {
        self.id.key == id.key && self.id.may_be(id.etag.as_str(), id.modified) && self.size == size
    }

    /// Whether bytes are here.
    pub fn has_bytes(&self) -> bool {
        self.bytes.is_some()
    }

    /// The part of the object that the guess is about, whether bytes came or not.
    pub fn part(&self) -> Range<u64> {
        self.part.clone()
    }

    /// Notes the range of the file's first read that needed the store. Teaches where reads of such names begin, and whether the bytes
    /// were right.
    pub fn began(self, range: &Range<u64>) {
        if self.is_next {
            self.shared.tails.lock().nexts.began(self.id.key.as_str(), range);
        }
        let teaches = self.ticket.is_some() && !self.is_next;
        let is_of_all = is_of_all(self.size, range).filter(|_| teaches);
        if let Some(is_of_all) = is_of_all {
            self.shared.tails.lock().wholes.began(self.id.key.as_str(), is_of_all);
        }
        if let Some(began) = began(self.size, range) {
            let mut tails = self.shared.tails.lock();
            if let Began::Tail(_) = began {
                tails.recent.was_read(&self.id, self.size);
            }
            // Only a result of a request teaches: a second open of a table reads its columns, because the kernel has the tail.
            if teaches {
                tails.endings.began(self.id.key.as_str(), began);
            }
        }
        if self.part.contains(&range.start) {
            self.was_read();
        }
    }

    /// Takes the bytes, and the offset of the first one, over to a reader.
    pub fn take_bytes(&mut self) -> Option<(u64, Block)> {
        if let Some(ticket) = &mut self.ticket {
            ticket.is_unread_whole = ticket.out > 1;
            self.shared.unread.fetch_add(ticket.is_unread_whole.into(), Relaxed);
            ticket.give_back();
        }
        self.bytes.take()
    }

    /// Notes that a read wanted the first bytes from the store.
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
        // The reader counts the bytes that it took.
        self.shared
            .metrics
            .prefetch_wasted
            .add(self.bytes.as_ref().map_or(0, |(_, bytes)| bytes.len() as u64));
    }
}

/// A guess, and the lessons from it.
struct Ticket {
    shared: Arc<Shared>,
    cause: Cause,
    /// Units that `out` counts for this ticket.
    out: usize,
    /// Whether `unread` counts the file of this ticket.
    is_unread_whole: bool,
    /// Whether the request was for attributes alone: then the read teaches only the ending.
    is_blind: bool,
}

impl Ticket {
    fn give_back(&mut self) {
        self.shared.out.fetch_sub(std::mem::take(&mut self.out), Relaxed);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.give_back();
        self.shared.unread.fetch_sub(self.is_unread_whole.into(), Relaxed);
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("cause", &self.cause).field("out", &self.out).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MOST: u64 = LEN as u64;

    #[test]
    fn a_read_of_all_counts_for_files_that_the_head_does_not_cover() {
        assert_eq!(is_of_all(MIB, &(0..MIB)), Some(true));
        assert_eq!(is_of_all(MIB, &(0..MOST)), Some(false));
        assert_eq!(is_of_all(MIB, &(MIB - 8..MIB)), Some(false));
        for size in [0, MOST, MIB + 1] {
            assert_eq!(is_of_all(size, &(0..size)), None, "{size}");
        }
    }

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
        assert!(is_tail(MIB, &(MIB - 20_000..MIB)) && !is_tail(MIB, &(0..10)) && !is_tail(MOST, &(8..MOST)));
    }
}
