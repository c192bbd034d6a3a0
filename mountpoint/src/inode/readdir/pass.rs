//! One pass over a directory: the pages so far, and the next request.

use std::collections::VecDeque;
use std::time::Instant;

use foldhash::HashSet;
use futures_util::future::Shared;
use tokio::sync::Notify;

use crate::inode::error::{Error, ErrorKind, Result};
use crate::inode::tree::Tree;
use crate::inode::{InodeNo, InodeTable};
use crate::listing::batch::Batch;
use crate::listing::behind::Behind;
use crate::listing::expiry::left;
use crate::listing::letters::Letters;
use crate::listing::listed::Listed;
use crate::listing::merge::Merge;
use crate::listing::page::{Asked, readable};
use crate::listing::path::BadName;
use crate::listing::ranges::{Ranges, last_in_order};
use crate::object::ObjectKey;
use crate::outlive::Place;
use crate::s3::{self, BoxFuture, ListPage};
use crate::sync::{Arc, Mutex};

/// Most entries that a listing keeps for going back (about 100 bytes each). Beyond it the earliest are dropped; the answer to an offset
/// among them is `Stale`, and the program must begin anew.
const ENTRIES_KEPT_MAX: usize = 500_000;

/// Pages requested one after another, before several at once.
const PLAIN: usize = 2;

/// Pages in a row without a new name, after which the listing counts as broken.
const EMPTY_PAGES_MAX: u32 = 1000;

/// One pass over the directory; a rewind begins another.
pub(super) struct Pass(pub(super) Mutex<Pages>);

pub(super) struct Pages {
    pub(super) batches: VecDeque<Arc<Batch>>,
    /// Number of entries dropped from the beginning, and of all entries so far.
    pub(super) dropped: usize,
    pub(super) total: usize,
    merge: Merge,
    pub(super) next: Next,
    empty_pages: u32,
    hidden: u64,
    hidden_example: Option<(String, BadName)>,
    /// Whether a page had entries that can't be read: the listing proves no name absent.
    has_left_out: bool,
    /// The instant and the event of the first page's request.
    begun: Option<(Instant, u64)>,
    with_locals: bool,
    /// Number of pages requested one after another; `letters` has the letters of their names.
    plain: usize,
    letters: Letters,
    /// Ranges for the rest of the directory, once the pass knows that it is long.
    pub(super) ranges: Option<Ranges>,
    /// The name after which the pass begins; `None`: at the first name.
    pub(super) after: Option<Behind>,
    pub(super) arrived: Arc<Notify>,
    /// The directory's key at the request of the first page.
    key: Option<ObjectKey>,
    /// The names given before a rename of the directory: the listing of the new key does not give them again.
    given: HashSet<Box<str>>,
}

/// The state of the next page of a pass.
pub(super) enum Next {
    /// The next page is not requested yet. The token requests it; the first page needs none.
    Ask(Option<String>),
    InFlight(Shared<BoxFuture<'static, Result<()>>>),
    End,
}

impl Pass {
    /// A pass at its beginning, with the entries of the remembered listing if that is still valid.
    pub(super) fn new(tree: &Tree, directory: InodeNo, now: Instant) -> Self {
        let locals = tree.locals(directory);
        let mut pages = Pages {
            batches: VecDeque::new(),
            dropped: 0,
            total: 0,
            with_locals: !locals.is_empty(),
            merge: Merge::new(locals.into_iter().map(|(name, ino)| (name, ino.into()))),
            next: Next::Ask(None),
            empty_pages: 0,
            hidden: 0,
            hidden_example: None,
            has_left_out: false,
            begun: None,
            plain: 0,
            letters: Letters::new(),
            ranges: None,
            after: None,
            arrived: Arc::default(),
            key: None,
            given: HashSet::default(),
        };
        let listed = tree.directory(directory).ok().and_then(|(_, known)| {
            let listed = known.listed.as_ref()?;
            let holds = !left(tree.ttl.listing(), listed.since, now).is_zero();
            let has = |name: &str| listed.find(name).is_some();
            let whole = !pages.with_locals
                && !listed.with_locals
                && !listed.for_lookups
                && !tree.facts.outdate(directory, listed.asked, has);
            (holds && whole).then(|| listed.clone())
        });
        if let Some(listed) = listed {
            pages.total = listed.entries();
            pages.batches = listed.batches.into();
            pages.next = Next::End;
        }
        Self(Mutex::new(pages))
    }

    /// A pass that goes on where another engine's pass ended. The earlier entries count as dropped.
    pub(super) fn behind(tree: &Tree, directory: InodeNo, place: &Place, now: Instant) -> Self {
        let behind = Behind::new(&place.name);
        let pass = Self::new(tree, directory, now);
        {
            let mut pages = pass.0.lock();
            let locals = tree.locals(directory).into_iter().filter(|(name, _)| behind.has(name));
            pages.merge = Merge::new(locals.map(|(name, ino)| (name, ino.into())));
            let before = place.offset.saturating_sub(2) as usize;
            (pages.dropped, pages.total, pages.batches) = (before, before, VecDeque::new());
            (pages.next, pages.after) = (Next::Ask(None), Some(behind));
        }
        pass
    }

    /// Takes in the answer to a page's request.
    pub(super) fn take_in(
        &self,
        table: &InodeTable,
        directory: InodeNo,
        key: &ObjectKey,
        token: Option<String>,
        asked: Asked,
        answer: s3::Result<ListPage>,
    ) -> Result<()> {
        let mut pages = self.0.lock();
        if table.key_of(directory).is_some_and(|now| now != *key) {
            // The directory was renamed meanwhile: see `Pages::is_of`.
            pages.next = Next::Ask(token);
            return Ok(());
        }
        let fail = |error: s3::Error| Err(Error::new(ErrorKind::Remote(Arc::new(error)), key.as_str()));
        let page = match answer {
            Ok(page) => page,
            Err(error) => {
                pages.next = Next::Ask(token);
                return fail(error);
            }
        };
        let next = page.next_token.clone();
        let last = pages.learn(key, &page);
        let took = asked.arrived.saturating_duration_since(asked.since);
        {
            let mut tree = table.0.tree.lock();
            tree.prices.listed(took, page.objects.len() + page.common_prefixes.len());
            tree.observe_all(directory, asked.event);
        }
        pages.has_left_out |= page.has_left_out;
        let entries = readable(key, page, table.0.config.folder_marks, |listed, why| {
            pages.hidden += 1;
            pages.hidden_example.get_or_insert_with(|| (listed.to_string(), why));
        });
        let mut out = Vec::with_capacity(entries.len());
        let Pages { merge, batches, .. } = &mut *pages;
        merge.page(entries, &mut out, |left| {
            for batch in batches {
                (0..batch.len()).for_each(|index| left(batch.name(index)));
            }
        });
        if next.is_none() {
            pages.merge.finish(&mut out);
        }
        if !pages.given.is_empty() {
            out.retain(|entry| !pages.given.contains(&entry.name));
        }
        if let Some(behind) = &pages.after {
            out.retain(|entry| behind.has(&entry.name));
            if !pages.merge.is_sorted() {
                pages.next = Next::Ask(token);
                return Err(Error::new(ErrorKind::Stale, key.as_str()));
            }
        }
        pages.empty_pages = if out.is_empty() { pages.empty_pages + 1 } else { 0 };
        if pages.empty_pages > EMPTY_PAGES_MAX {
            pages.next = Next::Ask(token);
            let error = s3::Error::new(s3::ErrorKind::BadAnswer, "ListObjectsV2").key(key);
            return fail(error.message("the store answers with page after page without a new name"));
        }
        pages.begun.get_or_insert((asked.since, asked.event));
        if !out.is_empty() {
            let first = table.0.tree.lock().reserve(out.len());
            pages.total += out.len();
            pages.batches.push_back(Arc::new(Batch::new(
                first.into(),
                asked.event,
                [asked.since, asked.arrived],
                &out,
            )));
            while pages.total - pages.dropped > ENTRIES_KEPT_MAX && pages.batches.len() > 2 {
                pages.dropped += pages.batches.pop_front().map_or(0, |batch| batch.len());
            }
        }
        pages.next = match next {
            Some(token) => Next::Ask(Some(token)),
            None => Next::End,
        };
        pages.widen(table, key, last);
        if matches!(pages.next, Next::End) {
            pages.ended(table, directory, key);
        }
        Ok(())
    }
}

impl Pages {
    /// Prepares for the next page of the directory, whose key is `key` now. If the directory was renamed, the listing begins anew below the new
    /// key, and gives the names that it has not given yet.
    pub(super) fn is_of(&mut self, table: &InodeTable, directory: InodeNo, key: &ObjectKey) {
        let before = self.key.replace(key.clone());
        if before.is_none_or(|before| before == *key) || matches!(self.next, Next::End) {
            return;
        }
        (self.next, self.ranges, self.plain, self.letters) = (Next::Ask(None), None, 0, Letters::new());
        for batch in &self.batches {
            self.given.extend((0..batch.len()).map(|index| Box::from(batch.name(index))));
        }
        let locals = table.0.tree.lock().locals(directory);
        self.merge = Merge::new(locals.into_iter().map(|(name, ino)| (name, ino.into())));
    }

    /// Learns the letters of names from a page that followed another. Returns the last name, unless the names are out of order.
    fn learn(&mut self, key: &ObjectKey, page: &ListPage) -> Option<String> {
        if self.ranges.is_some() || self.plain >= PLAIN {
            return None;
        }
        let names = page.objects.iter().map(|object| object.key.as_str());
        let names = names.chain(page.common_prefixes.iter().map(String::as_str));
        names.filter_map(|name| name.strip_prefix(key.as_str())).for_each(|name| self.letters.learn(name));
        last_in_order(key.as_str(), "", page).flatten()
    }

    /// Starts ranges when the directory is long enough for them.
    fn widen(&mut self, table: &InodeTable, key: &ObjectKey, last: Option<String>) {
        self.plain += 1;
        if self.plain != PLAIN || self.ranges.is_some() || !self.merge.is_sorted() {
            return;
        }
        let (Next::Ask(Some(token)), Some(last)) = (&self.next, last) else { return };
        if table.0.tree.lock().pages_begin_anywhere {
            let letters = std::mem::replace(&mut self.letters, Letters::new());
            self.ranges = Ranges::new(key.as_str(), letters, &last, token.clone(), table.0.config.list_page);
        }
    }

    /// Ends a complete listing: logs the keys that it hid, and remembers it for lookups.
    fn ended(&mut self, table: &InodeTable, directory: InodeNo, key: &ObjectKey) {
        if let Some((example, why)) = self.hidden_example.take() {
            table.0.metrics.names_hidden.add(self.hidden);
            tracing::warn!(
                "listing \"{key}\": {} names can't be shown as files, for example \"{}\" ({why})",
                self.hidden,
                example.escape_debug(),
            );
        }
        let mut tree = table.0.tree.lock();
        if let Some(directory) = tree.directory_mut(directory) {
            directory.length = u32::try_from(self.total).ok();
        }
        let is_whole =
            self.merge.is_sorted() && self.dropped == 0 && self.given.is_empty() && !self.has_left_out;
        let remembered = !tree.ttl.listing().is_zero() && is_whole;
        if let Some((since, asked)) = self.begun.filter(|_| remembered) {
            let batches = self.batches.iter().cloned().collect();
            let with_locals = self.with_locals;
            let listed = Listed { batches, since, asked, with_locals, for_lookups: false };
            tree.remember_listing(directory, listed);
        }
    }
}
