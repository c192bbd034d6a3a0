//! The first bytes of a file, asked for together with its attributes where that is likely to save a round trip.
//!
//! Enters: the key of a file, and the operation that needs its attributes. Leaves: the attributes, and a [`First`] that may hold the
//! first bytes of that version. The use of each `First` decides about later requests: it paid if a read used it, and did not if it was
//! dropped. This room never decides whether bytes may be served to a read: `inode` does, because it knows which lookup brought them.

mod guess;

use std::fmt;

pub use guess::Cause;

use crate::buffer::{Block, BlockMut, Pool, Use};
use crate::cache::{BlockCache, Sectors};
use crate::metrics::Metrics;
use crate::object::{ObjectId, ObjectKey, ObjectMeta};
use crate::s3::{self, GetFirst, ObjectClient};
use crate::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};
use guess::Guess;

/// Bytes asked for: what the kernel reads first of a file without read-ahead of its own choice. Doubling it makes files of up to
/// twice the size one request, and doubles what a wrong guess costs.
pub const LEN: usize = 128 << 10;

/// Most that are asked for or held at once; beyond it attributes are asked for alone. Doubling it doubles the memory (8 MiB, counted in
/// the budget as read-ahead), and lets more threads open cold files at once.
const OUT_MAX: usize = 64;

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
        Self(Arc::new(Shared { client, pool, cache, metrics, guesses, out: AtomicUsize::new(0) }))
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
        if let Some(known) = known
            && self.is_cached(known)
        {
            // Nothing to guess, so nothing to learn.
            let meta = self.0.client.head_object(key).await?;
            let id = ObjectId::of(key.clone(), &meta);
            let first = First { id, size: meta.size, came: false, bytes: None, ticket: None };
            return Ok((meta, first));
        }
        let mut ticket = Ticket { shared: Arc::clone(&self.0), cause, is_out: false };
        let size = known.map_or(LEN as u64, |known| known.size);
        // On an error nothing was found that a read could have used: that was neither right nor wrong.
        let (meta, bytes) = match self.room(cause, size, &mut ticket) {
            Some(room) => {
                self.0.metrics.first_asked.inc();
                let is_whole = known.is_some() && size <= LEN as u64;
                let etag = known.filter(|known| known.is_pinned).map(|known| known.id.etag.clone());
                let etag = etag.filter(|etag| !etag.is_none());
                let request = GetFirst { key: key.clone(), etag, is_whole };
                let first = self.0.client.get_first(&request, room).await?;
                (first.meta, first.bytes)
            }
            None => (self.0.client.head_object(key).await?, None),
        };
        let id = ObjectId::of(key.clone(), &meta);
        let first = First { id, size: meta.size, came: bytes.is_some(), bytes, ticket: Some(ticket) };
        Ok((meta, first))
    }

    /// Whether the first bytes of this version are thought to be in the disk cache.
    fn is_cached(&self, known: &Known) -> bool {
        let Some(cache) = self.0.cache.as_deref() else { return false };
        let wanted = Sectors::touching(&(0..known.size.min(LEN as u64)));
        known.size > 0 && cache.present(&known.id, 0).contains(wanted)
    }

    /// Memory for the first bytes, if they are worth asking for and there is room.
    fn room(&self, cause: Cause, size: u64, ticket: &mut Ticket) -> Option<BlockMut> {
        let pool = self.0.pool.as_ref()?;
        if size == 0 || !self.0.guesses.lock()[cause as usize].is_worth() {
            return None;
        }
        if self.0.out.fetch_add(1, Relaxed) >= OUT_MAX {
            self.0.out.fetch_sub(1, Relaxed);
            return None;
        }
        ticket.is_out = true;
        let room = pool.try_take(Use::Ahead, LEN.min(usize::try_from(size).unwrap_or(LEN)));
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

/// The attributes of a file's object, perhaps with its first bytes. Dropped without [`First::was_read`], it counts as a wrong guess.
#[derive(Debug)]
pub struct First {
    id: ObjectId,
    size: u64,
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

    /// The bytes. They are the reader's from here on.
    pub fn take_bytes(&mut self) -> Option<Block> {
        if let Some(ticket) = &mut self.ticket {
            ticket.give_back();
        }
        self.bytes.take()
    }

    /// A read wanted the first bytes, and the store was the place to get them from.
    pub fn was_read(mut self) {
        if let Some(ticket) = self.ticket.take() {
            ticket.shared.guesses.lock()[ticket.cause as usize].right();
        }
    }
}

impl Drop for First {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
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
