//! Recognises a walk through a tree, and lists it in the order of the walk: by pages without a delimiter, each with many directories.
//! Pure.
//!
//! A walk lists directories one after another in the order of their keys, as `find`, `du` and `rsync` do: siblings, and the directories
//! below them. From the third directory on, the engine requests a page of a thousand keys at the place of the walk, within the common
//! parent of the last two directories. A page that the walk does not use costs one request; after such a page, twice as many directories
//! in order must come before the next try.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use super::expiry::PAGE;
use crate::object::ObjectKey;
use crate::s3::{ListPage, ListedObject};

/// The state of the mount's walk.
pub(crate) struct Walk {
    /// The last listed directory.
    last: Option<(ObjectKey, Instant)>,
    /// The common parent of the last two directories.
    common: String,
    /// Number of directories listed in order, without long pauses.
    run: u32,
    /// Whether one of the directories was not below the one before.
    sideways: bool,
    /// Number of pages requested in vain.
    failures: u32,
    flat: Option<Flat>,
    flats: u64,
}

/// Pages of keys in a row, of a whole subtree.
struct Flat {
    number: u64,
    prefix: String,
    /// The pages contain the keys behind this key, and not the key itself.
    after: String,
    pages: VecDeque<Keys>,
    next: Next,
}

/// One page of keys.
struct Keys {
    objects: Vec<ListedObject>,
    asked: u64,
    since: Instant,
}

enum Next {
    /// The page is not requested yet; this token requests it.
    Token(String),
    /// The page was requested at this event, and is in flight.
    Coming(u64),
    End,
}

/// The request for a page of a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageRequest {
    /// The number of the run of pages that the request belongs to.
    flat: u64,
    pub(crate) prefix: String,
    pub(crate) start_after: Option<String>,
    pub(crate) token: Option<String>,
}

/// The way to list a directory.
pub(crate) enum Course {
    /// The pages answer. `exists`: whether they have the directory at all, if only by its marker. `asked` and `since`: event and time of
    /// their request. `ahead`: the page to request meanwhile.
    Take { page: ListPage, exists: bool, asked: u64, since: Instant, ahead: Option<PageRequest> },
    /// A page that may have the directory was requested at this event: wait for it.
    Wait(u64),
    /// A page is worth a request.
    Ask(PageRequest),
    /// The directory needs its own listing.
    Alone,
}

impl Walk {
    /// Directories in a row that make a walk. With fewer, a program that looks at two directories would cost a page.
    const RUN: u32 = 3;
    /// A pause that ends a walk.
    const PAUSE: Duration = Duration::from_secs(2);
    /// Most pages for one directory. A longer directory gets its own listing, which leaves out the keys of its subdirectories.
    const SPAN_MAX: usize = 2;
    /// Most doublings of the number of directories before a try, after pages in vain.
    const FAILURES_MAX: u32 = 8;

    pub(crate) fn new() -> Self {
        Self { last: None, common: String::new(), run: 0, sideways: false, failures: 0, flat: None, flats: 0 }
    }

    /// Notes that a listing of a directory begins.
    pub(crate) fn opens(&mut self, key: &ObjectKey, now: Instant) {
        let last = self.last.replace((key.clone(), now));
        let last =
            last.filter(|(_, at)| now.saturating_duration_since(*at) < Self::PAUSE).map(|(key, _)| key);
        match last {
            Some(last) if last == *key => {}
            Some(last) if last.as_str() < key.as_str() => {
                self.run += 1;
                self.sideways |= !key.as_str().starts_with(last.as_str());
                self.common = common(last.as_str(), key.as_str()).to_owned();
            }
            _ => {
                (self.run, self.sideways) = (1, false);
                self.give_up();
            }
        }
    }

    /// The way to list the directory that was opened last.
    pub(crate) fn course(&mut self, key: &ObjectKey, now: Instant) -> Course {
        let key = key.as_str();
        if let Some(flat) = &mut self.flat {
            flat.pass(key);
            match flat.reach(key, now) {
                Reach::Whole => {
                    let (page, asked, since) = flat.take(key, now);
                    self.failures = 0;
                    let (exists, ahead) = (flat.has(key), flat.ahead(key));
                    return Course::Take { page, exists, asked, since, ahead };
                }
                Reach::Perhaps(question) => {
                    return match &flat.next {
                        Next::Coming(asked) => Course::Wait(*asked),
                        _ => Course::Ask(question),
                    };
                }
                Reach::TooLong => {
                    self.failed();
                    return Course::Alone;
                }
                Reach::No => self.give_up(),
            }
        }
        // A descent alone is not a walk: the program looked at no siblings.
        if self.run < Self::RUN << self.failures || !self.sideways || !key.starts_with(&self.common) {
            return Course::Alone;
        }
        self.flats += 1;
        let question = PageRequest {
            flat: self.flats,
            prefix: self.common.clone(),
            start_after: (!key.is_empty()).then(|| key.to_owned()),
            token: None,
        };
        self.flat = Some(Flat {
            number: self.flats,
            prefix: self.common.clone(),
            after: key.to_owned(),
            pages: VecDeque::new(),
            next: Next::End,
        });
        Course::Ask(question)
    }

    /// The page that a course requested is in flight since event `asked`.
    pub(crate) fn asks(&mut self, question: &PageRequest, asked: u64) {
        if let Some(flat) = self.flat.as_mut().filter(|flat| flat.number == question.flat) {
            flat.next = Next::Coming(asked);
        }
    }

    /// Takes in a page; `None`: the request failed.
    pub(crate) fn arrives(
        &mut self,
        question: &PageRequest,
        page: Option<ListPage>,
        asked: u64,
        since: Instant,
    ) {
        let Some(flat) = self.flat.as_mut().filter(|flat| flat.number == question.flat) else { return };
        let last = flat.last_key().to_owned();
        match page {
            // A directory with an entry that can't be read is listed by itself, which notes that.
            Some(page) if !page.has_left_out && is_in_order(&flat.prefix, &last, &page) => {
                flat.next = page.next_token.map_or(Next::End, Next::Token);
                flat.pages.push_back(Keys { objects: page.objects, asked, since });
            }
            _ => self.failed(),
        }
    }

    /// Whether the pages may list a directory from a request before an event.
    pub(crate) fn may_list(&self, directory: &str, at: u64) -> bool {
        self.flat.as_ref().is_some_and(|flat| flat.may_list(directory, at))
    }

    /// Whether the pages may contradict S3's answer of event `at` about a name in a directory. A page in flight may, too.
    pub(crate) fn may_contradict(&self, directory: &str, name: &str, is_there: bool, at: u64) -> bool {
        let Some(flat) = self.flat.as_ref().filter(|flat| flat.may_list(directory, at)) else { return false };
        let path = format!("{directory}{name}");
        let below = format!("{path}/");
        let says = flat.has(&path) || flat.has(&below);
        // The keys of a directory come behind its name, and other keys may lie between: a page can end there.
        let end = if is_there { &path } else { &below };
        if says || end.as_str() <= flat.last_key() {
            return says != is_there;
        }
        match &flat.next {
            Next::Coming(asked) => at > *asked,
            Next::End => is_there,
            // A later request brings the key.
            Next::Token(_) => false,
        }
    }

    /// Drops what was listed before: many names have changed.
    pub(crate) fn restart(&mut self) {
        (self.run, self.last) = (0, None);
        self.give_up();
    }

    /// Whether pages are in memory or in flight.
    pub(crate) fn has_pages(&self) -> bool {
        self.flat.is_some()
    }

    /// Drops pages that are too old to answer.
    pub(crate) fn expire(&mut self, now: Instant) {
        let is_old = |keys: &Keys| now.saturating_duration_since(keys.since) >= PAGE;
        if self
            .flat
            .as_ref()
            .is_some_and(|flat| !matches!(flat.next, Next::Coming(..)) && flat.pages.iter().all(is_old))
        {
            self.give_up();
        }
    }

    fn failed(&mut self) {
        self.failures = (self.failures + 1).min(Self::FAILURES_MAX);
        self.run = 0;
        self.give_up();
    }

    /// Drops all pages.
    pub(crate) fn give_up(&mut self) {
        self.flat = None;
    }
}

enum Reach {
    Whole,
    /// The next page may have the directory, or the rest of it.
    Perhaps(PageRequest),
    TooLong,
    No,
}

impl Flat {
    fn last_key(&self) -> &str {
        self.pages
            .back()
            .and_then(|keys| keys.objects.last())
            .map_or(&self.after, |object| object.key.as_str())
    }

    /// The event of the oldest of these pages' requests.
    fn oldest(&self) -> u64 {
        let coming = match &self.next {
            Next::Coming(asked) => Some(*asked),
            Next::Token(_) | Next::End => None,
        };
        self.pages.iter().map(|keys| keys.asked).chain(coming).min().unwrap_or(u64::MAX)
    }

    /// Whether these pages may list a directory from a request before an event.
    fn may_list(&self, directory: &str, at: u64) -> bool {
        at > self.oldest() && directory >= self.after.as_str() && directory.starts_with(&self.prefix)
    }

    /// Whether the pages have a key, or, if it ends in `/`, a key below it.
    fn has(&self, key: &str) -> bool {
        let is_it = |object: &ListedObject| match key.ends_with('/') {
            true => object.key.as_str().starts_with(key),
            false => object.key.as_str() == key,
        };
        self.pages.iter().any(|keys| {
            let at = keys.objects.partition_point(|object| object.key.as_str() < key);
            keys.objects.get(at).is_some_and(is_it)
        })
    }

    /// Drops the pages before a directory.
    fn pass(&mut self, key: &str) {
        while let Some(last) = self.pages.front().and_then(|keys| keys.objects.last())
            && (self.pages.len() > 1 || !matches!(self.next, Next::End))
            && last.key.as_str() < key
        {
            self.after = last.key.as_str().to_owned();
            self.pages.pop_front();
        }
    }

    fn reach(&self, key: &str, now: Instant) -> Reach {
        let is_old = |keys: &Keys| now.saturating_duration_since(keys.since) >= PAGE;
        if self.after.as_str() > key || !key.starts_with(&self.prefix) || self.pages.iter().any(is_old) {
            return Reach::No;
        }
        let last = self.last_key();
        let is_passed = last > key && !last.starts_with(key);
        let next = |token: Option<&str>| {
            let token = token.map(str::to_owned);
            PageRequest { flat: self.number, prefix: self.prefix.clone(), start_after: None, token }
        };
        match &self.next {
            _ if is_passed => Reach::Whole,
            Next::End => Reach::Whole,
            // The pages lack a part of the directory: two pages of one directory are enough.
            _ if last > key && self.pages.len() >= Walk::SPAN_MAX => Reach::TooLong,
            Next::Coming(..) => Reach::Perhaps(next(None)),
            Next::Token(token) if last > key => Reach::Perhaps(next(Some(token.as_str()))),
            // The walk skipped the directories between: a new request at its place is better.
            Next::Token(_) => Reach::No,
        }
    }

    /// The objects below a directory, without its own marker.
    fn below<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a ListedObject> {
        self.pages.iter().flat_map(move |keys| {
            let begin = keys.objects.partition_point(|object| object.key.as_str() <= key);
            keys.objects[begin..].iter().take_while(move |object| object.key.as_str().starts_with(key))
        })
    }

    /// A directory's entries, as a listing with a delimiter has them.
    fn take(&self, key: &str, now: Instant) -> (ListPage, u64, Instant) {
        let mut page = ListPage::default();
        for object in self.below(key) {
            let name = object.key.as_str();
            match name[key.len()..].find('/') {
                Some(at) => {
                    let prefix = &name[..key.len() + at + 1];
                    if page.common_prefixes.last().is_none_or(|last| last != prefix) {
                        page.common_prefixes.push(prefix.to_owned());
                    }
                }
                None => page.objects.push(object.clone()),
            }
        }
        let asked = self.pages.iter().map(|keys| keys.asked).min().unwrap_or_default();
        let since = self.pages.iter().map(|keys| keys.since).min();
        (page, asked, since.unwrap_or(now))
    }

    /// The request for the next page, if a directory reaches into the second half of the last page.
    fn ahead(&self, key: &str) -> Option<PageRequest> {
        let Next::Token(token) = &self.next else { return None };
        let last = &self.pages.back()?.objects;
        let middle = last.get(last.len() / 2)?;
        let question = || PageRequest {
            flat: self.number,
            prefix: self.prefix.clone(),
            start_after: None,
            token: Some(token.clone()),
        };
        (middle.key.as_str() < key || middle.key.as_str().starts_with(key)).then(question)
    }
}

/// Whether all keys of a page belong to the subtree, lie behind the last key and are in order.
fn is_in_order(prefix: &str, last: &str, page: &ListPage) -> bool {
    page.common_prefixes.is_empty()
        && page
            .objects
            .iter()
            .all(|object| object.key.as_str().starts_with(prefix) && object.key.as_str() > last)
        && page.objects.is_sorted_by(|a, b| a.key.as_str() < b.key.as_str())
}

/// The common parent of two directories, by their keys.
fn common<'a>(a: &'a str, b: &str) -> &'a str {
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let end = a.as_bytes()[..same].iter().rposition(|&byte| byte == b'/');
    &a[..end.map_or(0, |at| at + 1)]
}

impl fmt::Debug for Walk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Walk").field("last", &self.last).field("run", &self.run).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
