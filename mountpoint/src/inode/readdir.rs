//! Lists a directory: requests pages one ahead, merges them with local entries, and keeps them so that every offset stays valid.
//!
//! The token of each of the first pages requests the next. A long directory goes on by several ranges of keys at once (`ranges.rs`),
//! whose pages arrive here in the same order; no other code here depends on their source.

mod pass;
mod stream;

use std::fmt;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::Shared;

use super::dir_entry::{DirEntry, remember, shown};
use super::error::{Error, ErrorKind, Result};
use super::{Found, InodeNo, InodeTable, ROOT, Stat};
use crate::listing::page::Asked;
use crate::object::ObjectKey;
use crate::outlive::Place;
use crate::s3::{BoxFuture, ListObjects};
use crate::sync::{Arc, Mutex, Weak};
use pass::{Next, Pages, Pass};
use stream::Stream;

/// An open directory.
pub struct Listing {
    directory: InodeNo,
    parent: InodeNo,
    /// The directory's key when it was opened.
    key: ObjectKey,
    table: InodeTable,
    runtime: tokio::runtime::Handle,
    /// The pass that the last call for entries from the beginning began. `None`: no call came yet.
    pass: Mutex<Option<Arc<Pass>>>,
    /// Places from which this listing can go on, if an earlier engine had it open.
    places: Mutex<Option<[Place; 2]>>,
}

impl InodeTable {
    /// Opens a directory, without a request: the first call for entries makes one.
    ///
    /// # Errors
    /// `NotADirectory`, `Stale`.
    pub async fn opendir(&self, ino: InodeNo) -> Result<Listing> {
        self.open_listing(ino, tokio::runtime::Handle::current())
    }

    pub(super) fn open_listing(&self, ino: InodeNo, runtime: tokio::runtime::Handle) -> Result<Listing> {
        let mut tree = self.0.tree.lock();
        let key = tree.directory(ino)?.0.clone();
        let parent = tree.inode(ino).map_or(ROOT, |inode| inode.parent);
        if let Some(directory) = tree.directory_mut(ino) {
            directory.listings += 1;
        }
        let (pass, places) = (Mutex::default(), Mutex::default());
        Ok(Listing { directory: ino, parent, key, table: self.clone(), runtime, pass, places })
    }

    /// Counts one kernel reference for an entry that goes into a readdirplus reply (not for `.` and `..`).
    pub fn remember(&self, parent: InodeNo, entry: &DirEntry) -> Found {
        self.remember_all(parent, std::iter::once(entry)).remove(0)
    }

    /// Counts one kernel reference for each of these entries.
    pub fn remember_all<'a>(
        &self,
        parent: InodeNo,
        entries: impl Iterator<Item = &'a DirEntry>,
    ) -> Vec<Found> {
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        let found = |entry: &DirEntry| {
            let ino = remember(&mut tree, parent, entry).unwrap_or(entry.ino);
            let stat = Stat { valid_for: Duration::ZERO, ..entry.stat };
            let gone = Found { ino, stat, entry_valid_for: Duration::ZERO };
            match tree.take(ino, None) {
                Ok(()) => tree.found(ino, now).unwrap_or(gone),
                Err(_) => gone,
            }
        };
        entries.map(found).collect()
    }
}

impl Listing {
    /// The listing, set to go on from one of these places.
    pub(super) fn going_on(self, places: [Place; 2]) -> Self {
        *self.places.lock() = Some(places);
        self
    }

    /// Entries from `offset` on: at least one unless the directory is at its end, at most `max`.
    ///
    /// Offset 0 begins a fresh listing. Any [`DirEntry::offset`] of the present
    /// listing is valid, again and in any order. `.` and `..` come first.
    ///
    /// # Errors
    /// `Remote`: S3 did not answer (a repeated call continues there); `Stale`: the listing no longer keeps entries so far back.
    pub async fn entries(&self, table: &InodeTable, offset: u64, max: usize) -> Result<Vec<DirEntry>> {
        debug_assert!(Arc::ptr_eq(&table.0, &self.table.0), "a listing belongs to one table");
        let pass = self.pass_for(offset);
        loop {
            match self.kept(&pass, offset, max)? {
                Some(entries) => return Ok(entries),
                None => self.advance(&pass).await?,
            }
        }
    }

    /// Entries from memory; `None` if a page must arrive first.
    pub fn try_entries(&self, table: &InodeTable, offset: u64, max: usize) -> Option<Result<Vec<DirEntry>>> {
        debug_assert!(Arc::ptr_eq(&table.0, &self.table.0), "a listing belongs to one table");
        let pass = self.pass_for(offset);
        self.kept(&pass, offset, max).transpose()
    }

    /// The pass to which an offset belongs.
    fn pass_for(&self, offset: u64) -> Arc<Pass> {
        let mut pass = self.pass.lock();
        if let Some([earlier, later]) = self.places.lock().take()
            && offset > 2
        {
            // The listing keeps no entries for any other offset: [`Self::kept`] refuses it.
            let place = if earlier.offset == offset { earlier } else { later };
            let tree = self.table.0.tree.lock();
            *pass = Some(Arc::new(Pass::behind(&tree, self.directory, &place, self.table.0.clock.now())));
        }
        match &*pass {
            Some(pass) if offset > 0 => Arc::clone(pass),
            // Names that were made since the directory was opened belong to the first listing, too.
            _ => {
                let tree = self.table.0.tree.lock();
                let begun = Arc::new(Pass::new(&tree, self.directory, self.table.0.clock.now()));
                Arc::clone(pass.insert(begun))
            }
        }
    }

    /// Entries from memory; `None` if more must arrive first. Requests the next page when a program begins to read the last page in
    /// memory.
    fn kept(&self, pass: &Arc<Pass>, offset: u64, max: usize) -> Result<Option<Vec<DirEntry>>> {
        let now = self.table.0.clock.now();
        let mut pages = pass.0.lock();
        let tree = self.table.0.tree.lock();
        let mut entries = Vec::new();
        let dots = [(".", self.directory), ("..", self.parent)];
        for (name, ino) in dots.into_iter().skip(offset.min(2) as usize).take(max) {
            let offset = if name == "." { 1 } else { 2 };
            entries.push(DirEntry::of_inode(name, ino, offset, tree.directory_stat()));
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
            // A program that took only `.` and `..` may stop there, so the next page waits for the first real entry.
            if reached_last && more && pages.total > 0 {
                self.fetch(pass, &mut pages);
            }
            return Ok(Some(entries));
        }
        Ok(None)
    }

    /// Waits for one more page.
    async fn advance(&self, pass: &Arc<Pass>) -> Result<()> {
        let page = self.fetch(pass, &mut pass.0.lock());
        match page {
            Some(page) => page.await,
            None => Ok(()),
        }
    }

    /// The page in flight, or a new request if there is none. `None` at the end.
    fn fetch(&self, pass: &Arc<Pass>, pages: &mut Pages) -> Option<Shared<BoxFuture<'static, Result<()>>>> {
        if let Next::InFlight(page) = &pages.next {
            return Some(page.clone());
        }
        self.table.0.tree.lock().is_being_listed(self.directory);
        let key = self.table.key_of(self.directory).unwrap_or_else(|| self.key.clone());
        pages.is_of(&self.table, self.directory, &key);
        let token = match &mut pages.next {
            Next::End | Next::InFlight(_) => return None,
            Next::Ask(_) if pages.ranges.is_some() => return Some(self.fetch_in_order(pass, pages, key)),
            // An empty token belongs to ranges that were dropped because names came out of order: the listing begins anew.
            Next::Ask(token) => token.clone().filter(|token| !token.is_empty()),
        };
        let request = ListObjects {
            prefix: key.as_str().to_string(),
            delimited: true,
            max_keys: self.table.0.config.list_page,
            start_after: pages
                .after
                .as_ref()
                .filter(|_| token.is_none())
                .and_then(|after| after.start_after(&key)),
            continuation_token: token.clone(),
        };
        let is_whole = pages.after.is_none();
        let (table, directory) = (self.table.clone(), self.directory);
        let pass = Arc::downgrade(pass);
        let page: BoxFuture<'static, Result<()>> = Box::pin(async move {
            let walked = if token.is_none() && is_whole { table.walked(directory, &key).await } else { None };
            let (answer, asked) = match walked {
                Some((page, asked)) => (Ok(page), asked),
                None => {
                    let (event, since) = (table.0.tree.lock().event(), table.0.clock.now());
                    let answer = table.0.client.list_objects(&request).await;
                    (answer, Asked { event, since, arrived: table.0.clock.now() })
                }
            };
            // The pass is gone if the directory was closed or rewound.
            match Weak::upgrade(&pass) {
                Some(pass) => pass.take_in(&table, directory, &key, token, asked, answer),
                None => Ok(()),
            }
        });
        let page = page.shared();
        pages.next = Next::InFlight(page.clone());
        self.runtime.spawn(page.clone());
        Some(page)
    }
}

impl Listing {
    /// The next page of a directory that is listed by ranges.
    fn fetch_in_order(
        &self,
        pass: &Arc<Pass>,
        pages: &mut Pages,
        key: ObjectKey,
    ) -> Shared<BoxFuture<'static, Result<()>>> {
        let stream = Stream {
            table: self.table.clone(),
            directory: self.directory,
            key,
            runtime: self.runtime.clone(),
            pass: Arc::downgrade(pass),
            arrived: Arc::clone(&pages.arrived),
        };
        let page: BoxFuture<'static, Result<()>> = Box::pin(stream.advance());
        let page = page.shared();
        pages.next = Next::InFlight(page.clone());
        self.runtime.spawn(page.clone());
        page
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        let mut tree = self.table.0.tree.lock();
        if let Some(directory) = tree.directory_mut(self.directory) {
            directory.listings -= 1;
            tree.release(self.directory);
            tree.drop_if_idle(self.directory);
        }
    }
}

impl fmt::Debug for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listing").field("key", &self.key).finish_non_exhaustive()
    }
}
