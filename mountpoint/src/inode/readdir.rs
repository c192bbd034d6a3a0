//! Lists a directory: fetches pages one ahead, merges them with local entries, and keeps them so that every offset stays valid.
//!
//! Today each page is requested by the token of the page before. A parallel listing by key range would put its pages into `Run` in the
//! same order; no other code here depends on their source.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::sync::Arc as StdArc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::Shared;

use super::batch::Batch;
use super::error::{Error, ErrorKind, Result};
use super::expiry::left;
use super::lookup::take;
use super::merge::{Entry, Merge, What, order};
use super::path::{self, BadName, Shown};
use super::state::{Node, Place};
use super::tree::{Adopted, Tree};
use super::{Found, InodeNo, InodeTable, Kind, ROOT, Stat};
use crate::object::ObjectKey;
use crate::s3::{self, BoxFuture, ListObjects, ListPage};
use crate::sync::{Arc, Mutex, Weak};

/// Most entries a listing keeps for going back (about 100 bytes each). The earliest are dropped beyond it; an offset among
/// those is answered `Stale`, and one goes back to the start instead.
const ENTRIES_KEPT_MAX: usize = 500_000;

/// Pages in a row without one new name that are followed before the listing counts as broken.
const EMPTY_PAGES_MAX: u32 = 1000;

/// One line of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    /// What it is called.
    pub name: OsString,
    /// The number a lookup of it answers, unless it changes.
    pub ino: InodeNo,
    /// Where to continue after it.
    pub offset: u64,
    /// What stat shows of it.
    pub stat: Stat,
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    /// Of an inode that lives.
    Inode,
    /// Of a page.
    Page { batch: StdArc<Batch>, index: usize },
}

/// A whole listing, remembered to answer lookups and other listings.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    /// In order, each name once.
    batches: Vec<StdArc<Batch>>,
    /// When and at which event its first page was asked for.
    pub(super) since: Instant,
    pub(super) asked: u64,
    /// Whether local entries were merged into it.
    with_locals: bool,
}

impl Listed {
    pub(super) fn entries(&self) -> usize {
        self.batches.iter().map(|batch| batch.len()).sum()
    }

    /// What S3 had under a name.
    pub(super) fn find(&self, name: &str) -> Option<(&Batch, usize)> {
        let after = self.batches.partition_point(|batch| order(batch.name(0), name).is_le());
        let batch = &self.batches[after.checked_sub(1)?];
        let index = batch.find(name)?;
        batch.local(index).is_none().then_some((&**batch, index))
    }
}

/// An open directory.
pub struct Listing {
    directory: InodeNo,
    parent: InodeNo,
    key: ObjectKey,
    table: InodeTable,
    runtime: tokio::runtime::Handle,
    run: Mutex<Arc<Run>>,
}

/// One pass over the directory; a rewind begins another.
struct Run(Mutex<Pages>);

struct Pages {
    batches: VecDeque<StdArc<Batch>>,
    /// Entries before the first batch that were dropped, and all there are so far.
    dropped: usize,
    total: usize,
    merge: Merge,
    next: Next,
    /// Whether entries were handed out: the next offset 0 is a rewind.
    used: bool,
    empty_pages: u32,
    hidden: u64,
    hidden_example: Option<(String, BadName)>,
    /// Of the first page: when it was asked for.
    begun: Option<(Instant, u64)>,
    with_locals: bool,
}

/// When a page was asked for, and when what it says was so at the latest.
pub(super) struct Asked {
    pub(super) event: u64,
    pub(super) since: Instant,
    pub(super) arrived: Instant,
}

enum Next {
    /// This token asks for the next page; none for the first.
    Ask(Option<String>),
    InFlight(Shared<BoxFuture<'static, Result<()>>>),
    End,
}

impl InodeTable {
    /// Opens a directory. Nothing is asked before the first entries are.
    ///
    /// # Errors
    /// `NotADirectory`, `Stale`.
    pub async fn opendir(&self, ino: InodeNo) -> Result<Listing> {
        let runtime = tokio::runtime::Handle::current();
        let mut tree = self.0.tree.lock();
        let key = tree.directory(ino)?.0.clone();
        let parent = tree.inode(ino).map_or(ROOT, |inode| inode.parent);
        if let Some(directory) = tree.directory_mut(ino) {
            directory.listings += 1;
        }
        let run = Mutex::new(Arc::new(Run::new(&tree, ino, self.0.clock.now())));
        Ok(Listing { directory: ino, parent, key, table: self.clone(), runtime, run })
    }

    /// Counts one kernel reference for an entry that goes into a readdirplus reply (not for `.` and `..`).
    pub fn remember(&self, parent: InodeNo, entry: &DirEntry) -> Found {
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        let ino = remember(&mut tree, parent, entry).unwrap_or(entry.ino);
        let gone = Found {
            ino,
            stat: Stat { valid_for: Duration::ZERO, ..entry.stat },
            entry_valid_for: Duration::ZERO,
        };
        match take(&mut tree, ino, None) {
            Ok(()) => tree.found(ino, now).unwrap_or(gone),
            Err(_) => gone,
        }
    }
}

/// The inode for an entry; one that hangs nowhere when the entry is outdated, so that the kernel looks up again.
fn remember(tree: &mut Tree, parent: InodeNo, entry: &DirEntry) -> Option<InodeNo> {
    let Source::Page { batch, index } = &entry.source else {
        return tree.inode(entry.ino).map(|_| entry.ino);
    };
    match tree.adopt(parent, batch, *index) {
        Adopted::As(ino) | Adopted::Newer(ino) => Some(ino),
        Adopted::Outdated => {
            let name = batch.name(*index);
            let local = tree.directory(parent).ok()?.1.locals.get(name).copied();
            if local.is_none() {
                tree.make(entry.ino, parent, name, batch.asked, tree.node_of(batch, *index));
            }
            Some(local.unwrap_or(entry.ino))
        }
    }
}

impl Listing {
    /// Entries from `offset` on: at least one unless the directory is at its end, at most `max`.
    ///
    /// 0 is the start, of a fresh listing when entries were handed out before; any [`DirEntry::offset`] of the present
    /// listing may be continued from, again and in any order. `.` and `..` come first.
    ///
    /// # Errors
    /// `Remote`: S3 did not answer (ask again: it goes on there); `Stale`: the offset lies further back than is kept.
    pub async fn entries(&self, table: &InodeTable, offset: u64, max: usize) -> Result<Vec<DirEntry>> {
        debug_assert!(Arc::ptr_eq(&table.0, &self.table.0), "a listing belongs to one table");
        let run = self.run_for(offset);
        loop {
            match self.kept(&run, offset, max)? {
                Some(entries) => return Ok(entries),
                None => self.advance(&run).await?,
            }
        }
    }

    /// The same from memory; `None` when a page must be waited for.
    pub fn try_entries(&self, table: &InodeTable, offset: u64, max: usize) -> Option<Result<Vec<DirEntry>>> {
        debug_assert!(Arc::ptr_eq(&table.0, &self.table.0), "a listing belongs to one table");
        let run = self.run_for(offset);
        self.kept(&run, offset, max).transpose()
    }

    /// The run that an offset is about.
    fn run_for(&self, offset: u64) -> Arc<Run> {
        let mut run = self.run.lock();
        if offset == 0 && run.0.lock().used {
            let tree = self.table.0.tree.lock();
            *run = Arc::new(Run::new(&tree, self.directory, self.table.0.clock.now()));
        }
        run.clone()
    }

    /// Entries that are here already; `None` when more must come first. Sets the next page off when the last one that
    /// is here begins to be read.
    fn kept(&self, run: &Arc<Run>, offset: u64, max: usize) -> Result<Option<Vec<DirEntry>>> {
        let now = self.table.0.clock.now();
        let mut pages = run.0.lock();
        let tree = self.table.0.tree.lock();
        let mut entries = Vec::new();
        let dots = [(".", self.directory), ("..", self.parent)];
        for (name, ino) in dots.into_iter().skip(offset.min(2) as usize).take(max) {
            let offset = if name == "." { 1 } else { 2 };
            entries.push(DirEntry {
                name: name.into(),
                ino,
                offset,
                stat: tree.directory_stat(),
                source: Source::Inode,
            });
        }
        let mut at = offset.saturating_sub(2) as usize;
        if at < pages.dropped {
            return Err(Error::new(ErrorKind::Stale, self.key.as_str()));
        }
        let mut first = pages.dropped;
        let mut reached_last = pages.batches.is_empty();
        for (i, batch) in pages.batches.iter().enumerate() {
            while entries.len() < max && at < first + batch.len() {
                reached_last = i + 1 == pages.batches.len();
                let (index, offset) = (at - first, at as u64 + 3);
                at += 1;
                entries.extend(shown(&tree, self.directory, batch, index, offset, now));
            }
            first += batch.len();
        }
        drop(tree);
        let more = !matches!(pages.next, Next::End);
        if !entries.is_empty() || !more {
            pages.used |= !entries.is_empty();
            // Only once entries are consumed: `.` and `..` alone say nothing about whether they will be.
            if reached_last && more && pages.total > 0 {
                self.fetch(run, &mut pages);
            }
            return Ok(Some(entries));
        }
        Ok(None)
    }

    /// Waits for one more page.
    async fn advance(&self, run: &Arc<Run>) -> Result<()> {
        let page = self.fetch(run, &mut run.0.lock());
        match page {
            Some(page) => page.await,
            None => Ok(()),
        }
    }

    /// The page on its way; sets it off if there is none. `None` at the end.
    fn fetch(&self, run: &Arc<Run>, pages: &mut Pages) -> Option<Shared<BoxFuture<'static, Result<()>>>> {
        let token = match &mut pages.next {
            Next::End => return None,
            Next::InFlight(page) => return Some(page.clone()),
            Next::Ask(token) => token.clone(),
        };
        let request = ListObjects {
            prefix: self.key.as_str().to_string(),
            delimited: true,
            max_keys: self.table.0.config.list_page,
            start_after: None,
            continuation_token: token.clone(),
        };
        let asked = self.table.0.tree.lock().event();
        let since = self.table.0.clock.now();
        let (table, directory, key) = (self.table.clone(), self.directory, self.key.clone());
        let run = Arc::downgrade(run);
        let page: BoxFuture<'static, Result<()>> = Box::pin(async move {
            let walked = if token.is_none() { table.walked(&key).await } else { None };
            let (answer, asked) = match walked {
                Some((page, asked)) => (Ok(page), asked),
                None => {
                    let answer = table.0.client.list_objects(&request).await;
                    (answer, Asked { event: asked, since, arrived: table.0.clock.now() })
                }
            };
            // Without a run the directory was closed, or rewound.
            match Weak::upgrade(&run) {
                Some(run) => run.take_in(&table, directory, &key, token, asked, answer),
                None => Ok(()),
            }
        });
        let page = page.shared();
        pages.next = Next::InFlight(page.clone());
        self.runtime.spawn(page.clone());
        Some(page)
    }
}

/// An entry as it is now; `None` when it is gone since the page was asked for.
fn shown(
    tree: &Tree,
    parent: InodeNo,
    batch: &StdArc<Batch>,
    index: usize,
    offset: u64,
    now: Instant,
) -> Option<DirEntry> {
    let name = batch.name(index);
    let (_, directory) = tree.directory(parent).ok()?;
    let of_inode = |ino: InodeNo| {
        let inode = tree.inode(ino).filter(|inode| inode.place != Place::Nowhere)?;
        let stat = tree.stat(inode, now);
        Some(DirEntry { name: name.into(), ino, offset, stat, source: Source::Inode })
    };
    if let Some(ino) = batch.local(index) {
        return of_inode(ino);
    }
    let child = tree.child(parent, name);
    if let Some(ino) = child
        && tree.inode(ino).is_some_and(|inode| inode.learned > batch.asked)
    {
        return of_inode(ino);
    }
    let mut valid = true;
    if let Some(change) = directory.changes.since(name, batch.asked) {
        if let Some(ino) = directory.locals.get(name) {
            return of_inode(*ino);
        }
        if change.removed {
            return None;
        }
        valid = false;
    }
    let (stat, is_same) = if batch.is_file(index) {
        let (size, modified, readable) = batch.file(index);
        let valid_for = batch.said(tree.ttl).until.saturating_duration_since(now);
        let stat = Stat { kind: Kind::File, size, modified, readable, valid_for };
        let is_same = child.is_some_and(|ino| match tree.inode(ino).map(|inode| &inode.node) {
            Some(Node::File(file)) => {
                file.stored.as_ref().is_some_and(|stored| stored.is_version(size, batch.etag(index)))
            }
            _ => false,
        });
        (stat, is_same)
    } else {
        (tree.directory_stat(), child.is_some_and(|ino| tree.directory(ino).is_ok()))
    };
    let ino = child.filter(|_| is_same).unwrap_or_else(|| batch.ino(index));
    let stat = if valid { stat } else { Stat { valid_for: Duration::ZERO, ..stat } };
    let source = Source::Page { batch: batch.clone(), index };
    Some(DirEntry { name: name.into(), ino, offset, stat, source })
}

impl Run {
    /// A pass that begins: with the remembered listing where it still holds, else with nothing.
    fn new(tree: &Tree, directory: InodeNo, now: Instant) -> Self {
        let locals = tree.locals(directory);
        let mut pages = Pages {
            batches: VecDeque::new(),
            dropped: 0,
            total: 0,
            with_locals: !locals.is_empty(),
            merge: Merge::new(locals),
            next: Next::Ask(None),
            used: false,
            empty_pages: 0,
            hidden: 0,
            hidden_example: None,
            begun: None,
        };
        let listed = tree.directory(directory).ok().and_then(|(_, directory)| {
            let listed = directory.listed.as_ref()?;
            let holds = !left(tree.ttl.listing(), listed.since, now).is_zero();
            let whole =
                !pages.with_locals && !listed.with_locals && directory.changes.none_since(listed.asked);
            (holds && whole).then(|| listed.clone())
        });
        if let Some(listed) = listed {
            pages.total = listed.entries();
            pages.batches = listed.batches.into();
            pages.next = Next::End;
        }
        Self(Mutex::new(pages))
    }

    /// A page has come, or failed.
    fn take_in(
        &self,
        table: &InodeTable,
        directory: InodeNo,
        key: &ObjectKey,
        token: Option<String>,
        asked: Asked,
        answer: s3::Result<ListPage>,
    ) -> Result<()> {
        let mut pages = self.0.lock();
        let fail = |error: s3::Error| Err(Error::new(ErrorKind::Remote(StdArc::new(error)), key.as_str()));
        let page = match answer {
            Ok(page) => page,
            Err(error) => {
                pages.next = Next::Ask(token);
                return fail(error);
            }
        };
        let next = page.next_token.clone();
        let entries = readable(key, page, |listed, why| {
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
        pages.empty_pages = if out.is_empty() { pages.empty_pages + 1 } else { 0 };
        if pages.empty_pages > EMPTY_PAGES_MAX {
            pages.next = Next::Ask(token);
            let error = s3::Error::new(s3::ErrorKind::BadAnswer, "ListObjectsV2").key(key);
            return fail(error.message("the store kept answering with pages without a new name"));
        }
        pages.begun.get_or_insert((asked.since, asked.event));
        if !out.is_empty() {
            let first = table.0.tree.lock().reserve(out.len());
            pages.total += out.len();
            pages.batches.push_back(StdArc::new(Batch::new(
                first,
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
        if matches!(pages.next, Next::End) {
            pages.ended(table, directory, key);
        }
        Ok(())
    }
}

/// What of a page can be shown; `hide` hears of the rest.
pub(super) fn readable(key: &ObjectKey, page: ListPage, mut hide: impl FnMut(&str, BadName)) -> Vec<Entry> {
    let mut entries = Vec::with_capacity(page.objects.len() + page.common_prefixes.len());
    for object in page.objects {
        let what = match path::show(key.as_str(), object.key.as_str()) {
            Shown::File(name) => Entry { name: name.into(), what: What::File(object.meta) },
            Shown::Directory(name) => Entry { name: name.into(), what: What::Directory },
            Shown::Own => continue,
            Shown::Hidden(why) => {
                hide(object.key.as_str(), why);
                continue;
            }
        };
        entries.push(what);
    }
    for prefix in &page.common_prefixes {
        match path::show(key.as_str(), prefix) {
            Shown::File(name) | Shown::Directory(name) => {
                entries.push(Entry { name: name.into(), what: What::Directory });
            }
            Shown::Own => {}
            Shown::Hidden(why) => hide(prefix, why),
        }
    }
    entries
}

impl Pages {
    /// The listing is whole: say what it hid, and remember it for lookups.
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
        let remembered = !tree.ttl.listing().is_zero() && self.merge.is_sorted() && self.dropped == 0;
        if let Some((since, asked)) = self.begun.filter(|_| remembered) {
            let batches = self.batches.iter().cloned().collect();
            tree.remember_listed(directory, Listed { batches, since, asked, with_locals: self.with_locals });
        }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        let mut tree = self.table.0.tree.lock();
        if let Some(directory) = tree.directory_mut(self.directory) {
            directory.listings -= 1;
            directory.drop_changes();
            tree.drop_if_idle(self.directory);
        }
    }
}

impl fmt::Debug for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listing").field("key", &self.key).finish_non_exhaustive()
    }
}
