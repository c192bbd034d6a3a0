//! Lists a long directory by several ranges of keys at once, and returns the pages in the order of the keys. Pure.
//!
//! The listing follows each range page by page up to the beginning of the next range. It guesses the beginnings of ranges from the names
//! so far ([`Letters`]), because later keys are unknown. A wrong guess costs requests, never names: a range contains all keys between its
//! neighbours. Names of a page beyond the end of its range were received in vain; if there are many, no new ranges begin for a while.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use super::letters::Letters;
use crate::s3::ListPage;

/// A listing of one directory by ranges, from its third page on.
pub(crate) struct Ranges {
    /// The key of the directory.
    prefix: String,
    /// Ranges in order. The first is the one being returned.
    ranges: VecDeque<Range>,
    letters: Letters,
    /// Most keys of a page.
    page: u16,
    numbers: u64,
    /// Number of returned pages.
    given: usize,
    /// Number of received keys, and of those that belong to another range.
    received: u64,
    wasted: u64,
    /// Limit of requests at once, and the shortest time of a request.
    width: usize,
    fastest: Duration,
    /// Whether the store accepts ranges, as far as the listing has tried.
    splits: bool,
    /// Whether too many keys came in vain: then the listing begins no new ranges until enough useful keys have come.
    wastes: bool,
    /// The character up to which names were compared in the search for the directory's end, and the end that was found.
    level: usize,
    top: usize,
}

/// One range of names, without the directory's key.
#[derive(Debug)]
struct Range {
    number: u64,
    /// The name behind which the range begins. The range ends with `until`, included.
    from: String,
    until: Option<String>,
    /// The request for the next page; `None` while it is in flight, and at the end.
    next: Option<Next>,
    flying: bool,
    /// Received pages that were not returned yet.
    pages: VecDeque<Page>,
    /// Number of requested pages and received keys, and the last name.
    asked: usize,
    got: u64,
    last: Option<String>,
    failed: Option<crate::s3::Error>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Next {
    After(String),
    Token(String),
}

/// One page in order.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) page: ListPage,
    pub(crate) event: u64,
    pub(crate) since: Instant,
    pub(crate) arrived: Instant,
}

/// A request to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangeRequest {
    range: u64,
    pub(crate) start_after: Option<String>,
    pub(crate) token: Option<String>,
    pub(crate) max_keys: u16,
}

/// The next page in order, or the reason why there is none.
#[derive(Debug)]
pub(crate) enum Turn {
    Page(Page),
    /// The page is in flight.
    Wait,
    /// The request failed; the next one asks for the page again.
    Failed(crate::s3::Error),
    End,
}

/// Error of a store that sends names out of order, or pages that begin at another name: the caller lists the directory from the
/// beginning, one page after another.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Disorder;

impl Ranges {
    /// Most requests at once. Doubling it halves the time of a listing of millions of names, and doubles one program's share of the
    /// store's requests.
    const WIDTH: usize = 16;
    /// Pages in flight or in memory for each returned page. Until the first range ends, only its pages are returned: with 2, the other
    /// ranges waited for the first most of the time, and 100,000 names took 520 ms of simulated time instead of 440. Doubling it doubles
    /// the cost of a reader that stops early.
    const AHEAD: usize = 6;
    /// Most pages in flight or in memory that were not returned yet (about 200 KB each). Doubling it lets more ranges continue while the
    /// first one is read.
    const AHEAD_MAX: usize = 160;
    /// Pages that a new range should have, by the estimate. Doubling it halves the keys received in vain, and the requests at once.
    const WORTH: f64 = 5.0;
    /// Number of keys of which one may come in vain.
    const WASTE: u64 = 14;
    /// Number of ranges, from the first one on, that a reader needs soon.
    const NEAR: usize = 8;
    /// Most ranges of one split. With 16, the listing split names of dates before it could see that they are uneven: 238 requests instead
    /// of 139.
    const SPLIT_MAX: usize = 8;
    /// Characters beyond the first varying one that the search for a directory's end uses.
    const LEVELS: usize = 8;

    /// A page that takes this many times the fastest page's time, and this much longer, shows a busy store: half as many requests go out.
    const SLOW: u32 = 4;
    const SLOWER: Duration = Duration::from_millis(100);

    /// Ranges for a directory after at least two pages; `token` requests the next page. `None`: the names teach nothing.
    pub(crate) fn new(prefix: &str, letters: Letters, last: &str, token: String, page: u16) -> Option<Self> {
        let level = letters.first_varying()?;
        let mut ranges = Self {
            prefix: prefix.to_owned(),
            ranges: VecDeque::new(),
            letters,
            page,
            numbers: 0,
            given: 2,
            received: 0,
            wasted: 0,
            width: Self::WIDTH,
            fastest: Duration::MAX,
            splits: true,
            wastes: false,
            level,
            top: level.saturating_sub(Self::LEVELS),
        };
        let first = ranges.range(last.to_owned(), None, Next::Token(token));
        ranges.ranges.push_back(Range { last: Some(last.to_owned()), ..first });
        Some(ranges)
    }

    fn range(&mut self, from: String, until: Option<String>, next: Next) -> Range {
        self.numbers += 1;
        Range {
            number: self.numbers,
            from,
            until,
            next: Some(next),
            flying: false,
            pages: VecDeque::new(),
            asked: 0,
            got: 0,
            last: None,
            failed: None,
        }
    }

    /// The requests to make now. They count as made.
    pub(crate) fn questions(&mut self) -> Vec<RangeRequest> {
        let flying = self.ranges.iter().filter(|range| range.flying).count();
        let here: usize = self.ranges.iter().map(|range| range.pages.len()).sum();
        let ahead = (Self::AHEAD * self.given + 1).min(Self::AHEAD_MAX).saturating_sub(flying + here);
        let mut free = self.width.saturating_sub(flying).min(ahead);
        // The first range continues however many pages lie ready behind it: only its pages make room.
        let front = self.ranges.iter().find(|range| !range.is_given_out());
        if front.is_some_and(|range| !range.flying && range.pages.is_empty() && range.failed.is_none()) {
            free = free.max(1);
        }
        let idle = self.ranges.iter().filter(|range| range.next.is_some()).count();
        if free > idle || flying + here >= Self::AHEAD_MAX / 2 {
            self.split(free.saturating_sub(idle).max(Self::NEAR));
        }
        // Ranges that a reader needs much later leave room for those that it needs soon.
        let room = Self::AHEAD_MAX - 2 * Self::WIDTH;
        let far = room.saturating_sub(flying + here);
        let (prefix, page, letters) = (&self.prefix, self.page, &self.letters);
        let mut questions = Vec::new();
        for (at, range) in self.ranges.iter_mut().enumerate() {
            if questions.len() >= free || at > Self::NEAR && questions.len() >= far {
                break;
            }
            if range.failed.is_some() {
                continue;
            }
            let Some(next) = range.next.take() else { continue };
            range.flying = true;
            range.asked += 1;
            let (start_after, token) = match next {
                Next::After(name) => (Some(format!("{prefix}{name}")), None),
                Next::Token(token) => (None, Some(token)),
            };
            let max_keys = range.max_keys(letters, page);
            questions.push(RangeRequest { range: range.number, start_after, token, max_keys });
        }
        questions
    }

    /// Takes in the answer to a request. An error says that the store's order can't be relied on.
    pub(crate) fn arrives(
        &mut self,
        question: &RangeRequest,
        answer: crate::s3::Result<ListPage>,
        event: u64,
        times: [Instant; 2],
    ) -> Result<(), Disorder> {
        let Some(at) = self.ranges.iter().position(|range| range.number == question.range) else {
            return Ok(());
        };
        let range = &mut self.ranges[at];
        range.flying = false;
        let mut page = match answer {
            Ok(page) => page,
            Err(error) => {
                // Perhaps the store has too many requests at once. The range repeats this one after it becomes the first.
                range.next = Some(question.again(&self.prefix));
                range.failed = Some(error);
                self.splits = false;
                self.width = 1;
                return Ok(());
            }
        };
        let behind = range.last.as_deref().unwrap_or(&range.from);
        let Some(last) = last_in_order(&self.prefix, behind, &page) else { return Err(Disorder) };
        let keys = (page.objects.len() + page.common_prefixes.len()) as u64;
        self.received += keys;
        let took = times[1].saturating_duration_since(times[0]);
        self.fastest = self.fastest.min(took);
        self.width = match took > self.fastest * Self::SLOW + Self::SLOWER {
            true => (self.width / 2).max(1),
            false => (self.width + 1).min(Self::WIDTH),
        };
        let is_over = match (&range.until, &last) {
            (Some(until), Some(last)) => last > until,
            _ => false,
        };
        let mut mine = keys;
        if let Some(until) = range.until.as_ref().filter(|_| is_over) {
            let until = format!("{}{until}", self.prefix);
            page.objects.retain(|object| object.key.as_str() <= until.as_str());
            page.common_prefixes.retain(|prefix| *prefix <= until);
            mine = (page.objects.len() + page.common_prefixes.len()) as u64;
            self.wasted += keys - mine;
        }
        let names = page.objects.iter().map(|object| object.key.as_str());
        let names = names.chain(page.common_prefixes.iter().map(String::as_str));
        names.step_by(8).for_each(|name| self.letters.learn(&name[self.prefix.len()..]));
        range.got += mine;
        range.next = page.next_token.take().filter(|_| !is_over).map(Next::Token);
        range.last = last.or_else(|| range.last.take());
        range.pages.push_back(Page { page, event, since: times[0], arrived: times[1] });
        if self.wasted * Self::WASTE > self.received + Self::WASTE * u64::from(self.page) {
            self.wastes = true;
        } else if 2 * self.wasted * Self::WASTE <= self.received {
            self.wastes = false;
        }
        Ok(())
    }

    /// Whether all pages were returned.
    pub(crate) fn is_over(&self) -> bool {
        self.ranges.iter().all(Range::is_given_out)
    }

    /// The next page in order.
    pub(crate) fn turn(&mut self) -> Turn {
        loop {
            let Some(first) = self.ranges.front_mut() else { return Turn::End };
            if let Some(page) = first.pages.pop_front() {
                self.given += 1;
                return Turn::Page(page);
            }
            if let Some(error) = first.failed.take() {
                return Turn::Failed(error);
            }
            if first.flying || first.next.is_some() {
                return Turn::Wait;
            }
            self.ranges.pop_front();
        }
    }

    /// Makes about this many new ranges, the earliest first.
    fn split(&mut self, wanted: usize) {
        if !self.splits || self.wastes {
            return;
        }
        let mut made = 0;
        let mut at = 0;
        while at < self.ranges.len() && made < wanted {
            let begins = match &self.ranges[at].until {
                None => self.open_end(at, wanted - made),
                Some(until) => self.ranges[at].begins(until, &self.letters, self.page, wanted - made),
            };
            made += begins.len();
            let until = self.ranges[at].until.take();
            let mut froms = begins.into_iter().peekable();
            self.ranges[at].until = froms.peek().cloned().or_else(|| until.clone());
            while let Some(from) = froms.next() {
                let end = froms.peek().cloned().or_else(|| until.clone());
                let range = self.range(from.clone(), end, Next::After(from));
                at += 1;
                self.ranges.insert(at, range);
            }
            at += 1;
        }
    }

    /// Beginnings of new ranges in the last range, whose end is unknown. Each is a name behind all names that share a beginning with the
    /// last one, and this beginning is shorter each time: so the search finds the directory's end in as many steps as names have varying
    /// characters. After that, the letters give the beginnings.
    fn open_end(&mut self, at: usize, wanted: usize) -> Vec<String> {
        let range = &self.ranges[at];
        let Some(last) = &range.last else { return Vec::new() };
        if range.next.is_none() && !range.flying {
            return Vec::new();
        }
        if self.level <= self.top {
            let Some(until) = self.letters.behind(last, self.top) else { return Vec::new() };
            return range.begins(&until, &self.letters, self.page, wanted);
        }
        self.level -= 1;
        behind_all(last, self.level).filter(|begin| begin > last).into_iter().collect()
    }
}

impl Range {
    fn is_given_out(&self) -> bool {
        self.pages.is_empty() && !self.flying && self.next.is_none()
    }

    /// An estimate of the names that will still come, by the names so far and the distance that they cover. `None`: no name came yet.
    fn left(&self, until: &str, letters: &Letters) -> Option<f64> {
        let last = self.last.as_deref()?;
        let (done, all) = letters.way(&self.from, last, until)?;
        (self.got > 0 && done > 0.0).then(|| self.got as f64 * (all - done).max(0.0) / done)
    }

    /// The number of keys to request, so that the page ends about where the range does.
    fn max_keys(&self, letters: &Letters, page: u16) -> u16 {
        match self.until.as_deref().and_then(|until| self.left(until, letters)) {
            Some(left) if self.asked > 1 => {
                // Each repetition asks for more, because the last request was too short.
                let wish = left * 1.1 + 16.0 * self.asked as f64;
                if wish >= f64::from(page) { page } else { (wish as u16).max(1) }
            }
            _ => page,
        }
    }

    /// Names at which new ranges within this range could begin: few enough that every range has several pages.
    fn begins(&self, until: &str, letters: &Letters, page: u16, wanted: usize) -> Vec<String> {
        let Some(last) = &self.last else { return Vec::new() };
        let end = letters.end(last, until);
        let Some(left) = self.left(&end, letters) else { return Vec::new() };
        if self.next.is_none() && !self.flying {
            return Vec::new();
        }
        let pages = left / f64::from(page);
        let most = ((pages / Ranges::WORTH) as usize).min(wanted).min(Ranges::SPLIT_MAX);
        if most == 0 {
            return Vec::new();
        }
        // The first new range begins behind the page in flight.
        letters.between(last, &end, most + 1).into_iter().skip(1).collect()
    }
}

impl RangeRequest {
    /// The request for the same page again.
    fn again(&self, prefix: &str) -> Next {
        match (&self.token, &self.start_after) {
            (Some(token), _) => Next::Token(token.clone()),
            (None, Some(key)) => Next::After(key[prefix.len()..].to_owned()),
            (None, None) => Next::After(String::new()),
        }
    }
}

/// A name behind all names that share the first `level + 1` characters of this name, if a short one exists.
fn behind_all(name: &str, level: usize) -> Option<String> {
    let byte = *name.as_bytes().get(level)?;
    let mut next = byte.checked_add(1)?;
    // A beginning must not lie inside a directory.
    if next == b'/' {
        next += 1;
    }
    (byte.is_ascii_graphic() && next.is_ascii_graphic() && name.is_char_boundary(level))
        .then(|| format!("{}{}", &name[..level], char::from(next)))
}

/// The last name of a page, if all its names belong to the directory, lie behind `behind` and are in order; otherwise `None`.
pub(crate) fn last_in_order(prefix: &str, behind: &str, page: &ListPage) -> Option<Option<String>> {
    let begin = format!("{prefix}{behind}");
    let is_mine = |key: &str| key.starts_with(prefix) && key > begin.as_str();
    let sound = page.objects.iter().all(|object| is_mine(object.key.as_str()))
        && page.common_prefixes.iter().all(|prefix| is_mine(prefix))
        && page.objects.is_sorted_by(|a, b| a.key.as_str() < b.key.as_str())
        && page.common_prefixes.is_sorted_by(|a, b| a < b);
    let object = page.objects.last().map(|object| object.key.as_str());
    let last = object.max(page.common_prefixes.last().map(String::as_str));
    sound.then(|| last.map(|last| last[prefix.len()..].to_owned()))
}

impl fmt::Debug for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ranges")
            .field("ranges", &self.ranges.len())
            .field("given", &self.given)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
