//! Requests pages ahead of the names that need them: for a directory whose names are looked up one after another, and for a tree that is
//! walked. A failed page fails no operation: each lookup then asks for its own name, and each directory is listed by itself.

use std::time::{Duration, Instant};

use super::board::{OfName, PageSeat};
use super::remote::Ask;
use super::tree::Tree;
use super::{InodeNo, InodeTable};
use crate::listing::batch::Batch;
use crate::listing::expiry::PAGE;
use crate::listing::listed::Listed;
use crate::listing::merge::{Merge, What};
use crate::listing::page::{Asked, readable};
use crate::listing::recent::{Advice, Page, Recent};
use crate::listing::together::{After, Beside};
use crate::listing::walk::{self, Course};
use crate::object::ObjectKey;
use crate::s3::{self, BoxFuture, ListObjects, ListPage};
use crate::sync::Arc;

/// Pages of a walk for which a listing waits, one after another, before it makes its own request.
const WAITS_MAX: usize = 4;

/// Longest time from the request for a page of a walk until listings stop waiting for it; then they make their own requests. With the
/// double, a listing on a silent store fails that much later.
const WALK_WAIT: Duration = Duration::from_secs(5);

/// A requested page.
struct AskedPage {
    directory: InodeNo,
    key: ObjectKey,
    after: After,
    asked: u64,
    since: Instant,
}

impl InodeTable {
    /// The page for which a lookup should wait, if that is better than a request for its own name.
    pub(super) fn page(&self, tree: &mut Tree, parent: InodeNo, name: &str, ask: Ask) -> Option<PageSeat> {
        // A local entry has the name, so a single LIST answers. A TTL below a second is an explicit wish for requests.
        if ask == Ask::DirectoryOnly || tree.ttl.directory() < PAGE {
            return None;
        }
        let now = self.0.clock.now();
        let known = tree.child(parent, name).is_some();
        let (key, directory) = tree.directory(parent).ok()?;
        let (key, length) = (key.clone(), directory.length.map(|length| length as usize));
        let terms = tree.prices.terms(length, self.0.config.list_page);
        // A lookup that costs only a HEAD is cheaper than a page.
        let other = (ask == Ask::Both).then(|| tree.board.first_beside(parent, name)).flatten();
        let is_long = length.is_some_and(|length| length > usize::from(self.0.config.list_page));
        let beside = other.as_deref().map(|name| Beside { name, is_long });
        let begins = directory.recent.as_ref().is_none_or(|recent| recent.begins(now));
        let is_one = ask == Ask::Both && !is_long;
        let for_one = is_one && (tree.renews_bare(parent, now) || begins && tree.sisters_buy(parent));
        let recent = tree.directory_mut(parent)?.recent.get_or_insert_with(|| Box::new(Recent::new()));
        let after = match recent.miss(name, known, terms, beside, for_one, now) {
            Advice::Wait(asked) => {
                let wait = tree.prices.wait(self.0.config.list_page);
                let is_awaited = |since: &Instant| now.saturating_duration_since(*since) < wait;
                return tree.board.pages.join(&asked, is_awaited);
            }
            Advice::Nothing => return None,
            Advice::Ask(after) => {
                after.filter(|after| key.as_str().len() + after.len() <= ObjectKey::LEN_MAX)
            }
        };
        if after.is_some() && !tree.pages_begin_anywhere {
            return None;
        }
        let asked = tree.event();
        tree.recent_mut(parent)?.asks(after.clone(), asked);
        Some(self.ask_page(tree, AskedPage { directory: parent, key, after, asked, since: now }))
    }

    /// The page for which a lookup should wait that began at the event `began`, after the request for a page that lacks its name. That page
    /// proves nothing to this lookup; the next one answers all such lookups, which each cost a HEAD and a LIST without it.
    pub(super) fn page_again(
        &self,
        tree: &mut Tree,
        parent: InodeNo,
        name: &str,
        ask: Ask,
        began: u64,
    ) -> Option<PageSeat> {
        if ask != Ask::Both || tree.ttl.directory() < PAGE || tree.child(parent, name).is_some() {
            return None;
        }
        let now = self.0.clock.now();
        let (key, directory) = tree.directory(parent).ok()?;
        match directory.recent.as_deref()?.again(name, now) {
            Advice::Wait(asked) if asked > began => {
                let wait = tree.prices.wait(self.0.config.list_page);
                let is_awaited = |since: &Instant| now.saturating_duration_since(*since) < wait;
                tree.board.pages.join(&asked, is_awaited)
            }
            Advice::Wait(_) | Advice::Nothing => None,
            Advice::Ask(after) => {
                let (key, asked) = (key.clone(), tree.event());
                tree.recent_mut(parent)?.asks(after.clone(), asked);
                Some(self.ask_page(tree, AskedPage { directory: parent, key, after, asked, since: now }))
            }
        }
    }

    fn ask_page(&self, tree: &mut Tree, question: AskedPage) -> PageSeat {
        let (asked, since) = (question.asked, question.since);
        let request = ListObjects {
            prefix: question.key.as_str().to_string(),
            delimited: true,
            max_keys: self.0.config.list_page,
            start_after: question.after.as_deref().map(|after| format!("{}{after}", question.key.as_str())),
            continuation_token: None,
        };
        let (client, table, clock) =
            (Arc::clone(&self.0.client), Arc::downgrade(&self.0), self.0.clock.clone());
        let page: BoxFuture<'static, ()> = Box::pin(async move {
            let answer = client.list_objects(&request).await;
            let Some(shared) = table.upgrade() else { return };
            let directory = question.directory;
            if !Self(shared).take_page_in(question, answer) {
                return;
            }
            tokio::spawn(async move {
                clock.sleep(PAGE).await;
                if let Some(shared) = table.upgrade() {
                    shared.tree.lock().expire_pages(directory, clock.now());
                }
            });
        });
        self.put_up(tree, asked, since, page)
    }

    /// Puts a page on the board. The tree takes the page in even if the waiting operations end early. Drop the seat outside the tree's
    /// lock.
    fn put_up(&self, tree: &mut Tree, asked: u64, since: Instant, page: BoxFuture<'static, ()>) -> PageSeat {
        let seat = tree.board.pages.start(asked, since, |_| page, self.landed(|board| &mut board.pages));
        tokio::spawn(seat.answer.clone());
        seat
    }

    /// The whole listing of a directory out of the pages of a walk.
    pub(super) async fn walked(&self, directory: InodeNo, key: &ObjectKey) -> Option<(ListPage, Asked)> {
        {
            let mut tree = self.0.tree.lock();
            if tree.ttl.directory() < PAGE {
                return None;
            }
            tree.walking(|walk| walk.opens(key, self.0.clock.now()));
        }
        for _ in 0..WAITS_MAX {
            // Dropped after the tree's lock.
            let _ahead: Option<PageSeat>;
            let coming = {
                let mut tree = self.0.tree.lock();
                match tree.walking(|walk| walk.course(key, self.0.clock.now())) {
                    Course::Alone => return None,
                    Course::Wait(asked) => tree.board.pages.join(&asked, |_| true)?,
                    Course::Ask(question) => self.ask_walk(&mut tree, question),
                    Course::Take { page, exists, asked, .. }
                        if tree.knows_more(directory, &page, exists, asked) =>
                    {
                        return None;
                    }
                    Course::Take { page, asked, since, ahead, .. } => {
                        _ahead = ahead.map(|question| self.ask_walk(&mut tree, question));
                        return Some((page, Asked { event: asked, since, arrived: since }));
                    }
                }
            };
            let aged = self.0.clock.now().saturating_duration_since(*coming.question);
            // The walk takes in a page that arrives later, too.
            self.0.clock.timeout(WALK_WAIT.saturating_sub(aged), coming.answer).await?;
        }
        None
    }

    fn ask_walk(&self, tree: &mut Tree, question: walk::PageRequest) -> PageSeat {
        let request = ListObjects {
            prefix: question.prefix.clone(),
            delimited: false,
            max_keys: self.0.config.list_page,
            start_after: question.start_after.clone(),
            continuation_token: question.token.clone(),
        };
        let (asked, since) = (tree.event(), self.0.clock.now());
        let (client, table, clock) =
            (Arc::clone(&self.0.client), Arc::downgrade(&self.0), self.0.clock.clone());
        let asks = question.clone();
        let page: BoxFuture<'static, ()> = Box::pin(async move {
            let answer = client.list_objects(&request).await;
            let Some(shared) = table.upgrade() else { return };
            shared.tree.lock().walk_arrives(&asks, answer.ok(), asked, since);
            tokio::spawn(async move {
                clock.sleep(PAGE).await;
                if let Some(shared) = table.upgrade() {
                    shared.tree.lock().walking(|walk| walk.expire(clock.now()));
                }
            });
        });
        tree.walking(|walk| walk.asks(&question, asked));
        self.put_up(tree, asked, since, page)
    }

    /// Takes in the answer to a page's request. Returns whether the page is there now.
    fn take_page_in(&self, question: AskedPage, answer: s3::Result<ListPage>) -> bool {
        let AskedPage { directory, key, after, asked, since } = question;
        let mut tree = self.0.tree.lock();
        // A rename of the directory ends the wait: the names of this page are below another key.
        if !tree.recent_mut(directory).is_some_and(|recent| recent.awaits(asked)) {
            return false;
        }
        let page = match answer {
            Ok(page) if is_in_order(&key, after.as_deref(), &page) => page,
            other => {
                if let Ok(page) = other {
                    tracing::debug!(
                        "listing \"{key}\" after {after:?}: {} names out of order; no more pages from the middle of a listing",
                        page.objects.len() + page.common_prefixes.len(),
                    );
                    tree.pages_begin_anywhere = false;
                }
                tree.arrives(directory, asked, None);
                return false;
            }
        };
        let names = page.objects.len() + page.common_prefixes.len();
        let now = self.0.clock.now();
        tree.prices.listed(now.saturating_duration_since(since), names);
        let page = self.packed(&mut tree, &key, after, page, asked, [since; 2]);
        is_listed(&mut tree, directory, &page, since);
        tree.arrives(directory, asked, Some(page));
        true
    }

    /// Takes in the listing that came with the first lookup of a directory. A name in it counts as long as S3's answer to a lookup of that
    /// name would.
    pub(super) fn take_along(
        &self,
        tree: &mut Tree,
        directory: InodeNo,
        page: ListPage,
        question: &OfName,
        now: Instant,
    ) {
        let (asked, holds) = (question.asked, tree.ttl.file().min(PAGE));
        let Ok(key) = tree.directory(directory).map(|(key, _)| key.clone()) else { return };
        let counts_from = (now + holds).checked_sub(PAGE);
        // Nothing noted the changes that this mount made below a directory that it did not know.
        let Some(counts_from) = counts_from.filter(|_| tree.facts.changed_at < asked) else { return };
        if !is_in_order(&key, None, &page) {
            return;
        }
        let mut page = self.packed(tree, &key, None, page, asked, [counts_from, now]);
        page.came_along = true;
        is_listed(tree, directory, &page, question.since);
        let Some(directory_of) = tree.directory_mut(directory) else { return };
        directory_of.recent.get_or_insert_with(|| Box::new(Recent::new())).asks(None, asked);
        tree.arrives(directory, asked, Some(page));
        let (table, clock) = (Arc::downgrade(&self.0), self.0.clock.clone());
        tokio::spawn(async move {
            clock.sleep(holds).await;
            if let Some(shared) = table.upgrade() {
                shared.tree.lock().expire_pages(directory, clock.now());
            }
        });
    }

    /// Packs a page, requested at event `asked`. `times`: that from which its second counts, and that of the answer.
    fn packed(
        &self,
        tree: &mut Tree,
        key: &ObjectKey,
        after: After,
        page: ListPage,
        asked: u64,
        times: [Instant; 2],
    ) -> Page {
        let is_last = page.next_token.is_none();
        let (mut merge, mut entries, has_left_out) = (Merge::new([]), Vec::new(), page.has_left_out);
        let mut named = readable(key, page, self.0.config.folder_marks, |_, _| {});
        let readable = named.len();
        // A file of the marked name may lie before the page: lookups ask S3 about it.
        named.retain(|entry| entry.what != What::Marked);
        let is_complete = !has_left_out && named.len() == readable;
        merge.page(named, &mut entries, |_| {});
        if is_last {
            merge.finish(&mut entries);
        }
        let first = tree.reserve(entries.len());
        let batch = Batch::new(first.into(), asked, times, &entries).into();
        Page { after, is_last, is_complete, came_along: false, batch }
    }
}

/// Notes the length of a directory whose page is all of it. Such a page answers lookups of its names for the user's TTL.
fn is_listed(tree: &mut Tree, directory: InodeNo, page: &Page, since: Instant) {
    if !page.is_whole() {
        return;
    }
    let asked = page.batch.asked;
    let listed = Listed { batches: page.batches(), since, asked, with_locals: false, for_lookups: true };
    let Some(known) = tree.directory_mut(directory) else { return };
    known.length = u32::try_from(listed.entries()).ok();
    // A listing that a program asked for answers more.
    let is_better = known.listed.as_ref().is_none_or(|known| known.for_lookups && known.asked < asked);
    if page.is_complete && is_better && !tree.ttl.listing().is_zero() {
        tree.remember_listing(directory, listed);
    }
}

/// Whether a page has only names after its beginning, in order. Any other page proves nothing about the names between.
fn is_in_order(key: &ObjectKey, after: Option<&str>, page: &ListPage) -> bool {
    let begin = after.map(|after| format!("{}{after}", key.as_str()));
    let behind = |listed: &str| begin.as_deref().is_none_or(|begin| begin < listed);
    page.objects.iter().all(|object| behind(object.key.as_str()))
        && page.common_prefixes.iter().all(|prefix| behind(prefix))
        && page.objects.is_sorted_by(|a, b| a.key.as_str() < b.key.as_str())
        && page.common_prefixes.is_sorted_by(|a, b| a < b)
}
