//! The bytes of a file that are read first, asked for together with its attributes where that is likely to save a round trip: those of its
//! head, or those of its tail for names whose ending is known to be read from there.
//!
//! Enters: the key of a file, and the operation that needs its attributes. Leaves: the attributes, and a [`First`] that may hold the
//! first bytes of that version. The use of each `First` decides about later requests: it paid if a read used it, and did not if it was
//! dropped. This room never decides whether bytes may be served to a read: `inode` does, because it knows which lookup brought them.

mod endings;
mod guess;

use std::fmt;
use std::ops::Range;

pub use guess::Cause;

use crate::buffer::{Block, BlockMut, Pool, Use};
use crate::cache::{BlockCache, CACHE_BLOCK, SECTOR, Sectors};
use crate::metrics::Metrics;
use crate::object::{ObjectId, ObjectKey, ObjectMeta};
use crate::s3::{self, GetFirst, ObjectClient};
use crate::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};
use endings::{Endings, Side};
use guess::Guess;

/// Bytes asked for: what the kernel reads first of a file without read-ahead of its own choice. Doubling it makes files of up to
/// twice the size one request, and doubles what a wrong guess costs.
pub const LEN: usize = 128 << 10;

/// Most that are asked for or held at once; beyond it attributes are asked for alone. Doubling it doubles the memory (8 MiB, counted in
/// the budget as read-ahead), and lets more threads open cold files at once.
const OUT_MAX: usize = 64;

/// Bytes of the last block of the cache for which a tail of that block alone is enough. Doubling it has more tails in two blocks, which the cache does
/// not keep.
const TAIL_MIN: u64 = 16 << 10;

/// The part of an object of `size` bytes that is asked for on one side. Bytes that both sides have are the head's.
fn part(side: Side, size: u64) -> Range<u64> {
    let len = LEN as u64;
    match side {
        Side::Head => 0..size.min(len),
        Side::Tail => {
            // Whole sectors, of one block if it has enough: the cache keeps nothing else.
            let block = size / CACHE_BLOCK * CACHE_BLOCK;
            let start = size.saturating_sub(len).next_multiple_of(SECTOR).min(size);
            if size - block >= TAIL_MIN { start.max(block)..size } else { start..size }
        }
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
    guesses: Mutex<[Guess; 2]>,
    endings: Mutex<Endings>,
    out: AtomicUsize,
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
        let guesses = Mutex::new([Guess::new(Cause::Lookup), Guess::new(Cause::Open)]);
        let endings = Mutex::default();
        Self(Arc::new(Shared { client, pool, cache, metrics, guesses, endings, out: AtomicUsize::new(0) }))
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
        let side = self.0.endings.lock().side(key.as_str());
        let wanted = known.map(|known| {
            let side = if known.size <= LEN as u64 { Side::Head } else { side };
            part(side, known.size)
        });
        if let (Some(known), Some(wanted)) = (known, &wanted)
            && self.is_cached(known, wanted)
        {
            // Nothing to guess, so nothing to learn.
            let meta = self.0.client.head_object(key).await?;
            let id = ObjectId::of(key.clone(), &meta);
            let first = First { id, size: meta.size, from: 0, came: false, bytes: None, ticket: None };
            return Ok((meta, first));
        }
        // Without a size it is not known where the tail begins: the read asks for it.
        let is_blind = wanted.is_none() && side == Side::Tail;
        let wanted = wanted.unwrap_or(0..LEN as u64);
        let mut ticket = Ticket { shared: Arc::clone(&self.0), cause, is_out: false, is_blind };
        // On an error nothing was found that a read could have used: that was neither right nor wrong.
        let (meta, bytes) = match self.room(cause, &wanted, &mut ticket) {
            Some(room) => {
                self.0.metrics.first_asked.inc();
                let is_whole = known.is_some_and(|known| wanted == (0..known.size));
                let etag = known.filter(|known| known.is_pinned).map(|known| known.id.etag.clone());
                let etag = etag.filter(|etag| !etag.is_none());
                let request = GetFirst { key: key.clone(), etag, from: wanted.start, is_whole };
                let first = self.0.client.get_first(&request, room).await?;
                (first.meta, first.bytes)
            }
            None => (self.0.client.head_object(key).await?, None),
        };
        let id = ObjectId::of(key.clone(), &meta);
        let (size, from, came) = (meta.size, wanted.start, bytes.is_some());
        Ok((meta, First { id, size, from, came, bytes, ticket: Some(ticket) }))
    }

    /// Whether this part of this version is thought to be in the disk cache.
    fn is_cached(&self, known: &Known, part: &Range<u64>) -> bool {
        let Some(cache) = self.0.cache.as_deref() else { return false };
        let is_here = |index: u64| {
            let start = index * CACHE_BLOCK;
            let within = part.start.max(start) - start..part.end.min(start + CACHE_BLOCK) - start;
            cache.present(&known.id, index).contains(Sectors::touching(&within))
        };
        !part.is_empty() && (part.start / CACHE_BLOCK..part.end.div_ceil(CACHE_BLOCK)).all(is_here)
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
        let room = pool.try_take(Use::Ahead, LEN.min((wanted.end - wanted.start) as usize));
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
#[derive(Debug)]
pub struct First {
    id: ObjectId,
    size: u64,
    /// The offset of the bytes.
    from: u64,
    bytes: Option<Block>,
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
        self.from..self.size.min(self.from + LEN as u64).max(self.from)
    }

    /// The first read of the file, for which the store was the place to get bytes from, was of this range. Teaches where files with such a
    /// name are read, and whether the bytes were right.
    pub fn began(self, range: &Range<u64>) {
        if let Some(ticket) = &self.ticket {
            // What lies on both sides tells nothing.
            let [head, tail] =
                [Side::Head, Side::Tail].map(|side| part(side, self.size).contains(&range.start));
            if head != tail {
                let side = if head { Side::Head } else { Side::Tail };
                ticket.shared.endings.lock().began(self.id.key.as_str(), side);
            }
        }
        if self.part().contains(&range.start) {
            self.was_read();
        }
    }

    /// The bytes. They are the reader's from here on.
    pub fn take_bytes(&mut self) -> Option<Block> {
        if let Some(ticket) = &mut self.ticket {
            ticket.give_back();
        }
        self.bytes.take()
    }

    /// A read wanted the first bytes, and the store was the place to get them from.
    pub fn was_read(mut self) {
        if let Some(ticket) = self.ticket.take().filter(|ticket| !ticket.is_blind) {
            ticket.shared.guesses.lock()[ticket.cause as usize].right();
        }
    }
}

impl Drop for First {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take().filter(|ticket| !ticket.is_blind) else { return };
        let shared = &ticket.shared;
        shared.guesses.lock()[ticket.cause as usize].wrong();
        shared.metrics.first_wasted.add(u64::from(self.came));
        // A reader counts the bytes that it took.
        shared.metrics.prefetch_wasted.add(self.bytes.as_deref().map_or(0, |bytes| bytes.len() as u64));
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
