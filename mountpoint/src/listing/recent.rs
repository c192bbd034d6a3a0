//! Decides when lookups in a directory justify a page of its listing, and how long such a page answers them. Pure.
//!
//! A lookup costs a HEAD and a LIST; a page is one LIST and answers for a thousand names. So if a program looks up name after name of a
//! directory (`ls -l`, `du`, `rsync`), the engine lists the directory again, from the place of the lookups. After a page that did not
//! pay, the next page needs more lookups first: see [`Spell`]. Two lookups at once are worth a page already ([`together`]), and the first
//! one where pages of sister directories paid ([`super::sisters`]).

use std::fmt;
use std::time::{Duration, Instant};

use super::batch::Batch;
use super::expiry::PAGE;
use super::merge::order;
use super::price::Terms;
use super::sisters::Sisters;
use super::together::{self, After, Beside, before};
use crate::sync::Arc;

/// A series of lookups in one directory.
#[derive(Debug)]
pub(crate) struct Spell {
    /// The credit for pages; each lookup adds to it.
    credit: u32,
    /// Lookups in a row, each further in the listing's order.
    run: u32,
    last: Option<(Box<str>, Instant)>,
    /// Lookups that pages answered since the last page's request; `None` before the first page.
    hits: Option<u32>,
    /// Pages in a row that answered too few lookups. Each doubles the price.
    vain: u32,
}

impl Spell {
    /// Most doublings of the price.
    const VAIN_MAX: u32 = 3;
    /// The credit from a lookup that goes through known names in order: a listing came before it.
    const KNOWN: u32 = 8;
    /// Names in order that count as going through the directory.
    const RUN: u32 = 3;
    /// A pause that ends a spell: longer than a lookup on a slow store.
    const PAUSE: Duration = Duration::from_secs(2);

    fn new() -> Self {
        Self { credit: 0, run: 0, last: None, hits: None, vain: 0 }
    }

    /// Counts one more lookup. `known`: an inode for the name lives.
    fn count(&mut self, name: &str, known: bool, now: Instant) {
        let last = self.last.replace((name.into(), now));
        let Some((last, _)) = last.filter(|(_, at)| now.saturating_duration_since(*at) < Self::PAUSE) else {
            (self.credit, self.run) = (1, 1);
            self.vain = self.vain.saturating_sub(1);
            return;
        };
        match order(&last, name) {
            // A program that repeats one name gains nothing from a page.
            std::cmp::Ordering::Equal => return,
            std::cmp::Ordering::Less => self.run += 1,
            std::cmp::Ordering::Greater => self.run = 1,
        }
        let pays = if known && self.run >= Self::RUN { Self::KNOWN } else { 1 };
        self.credit = self.credit.saturating_add(pays);
    }

    /// Whether the lookups so far justify a page. Pays half the price, so that the next page of a spell comes sooner.
    fn buys(&mut self, terms: Terms) -> bool {
        let terms = if self.is_in_order() { terms.in_order } else { terms.any_order };
        let enough = terms << self.vain;
        if self.credit < enough {
            return false;
        }
        self.vain = match self.hits {
            Some(hits) if 2 * hits < terms => (self.vain + 1).min(Self::VAIN_MAX),
            _ => 0,
        };
        self.hits = Some(0);
        // The rest of a long spell's credit stays after the purchase.
        self.credit = (self.credit - enough / 2).min(2 * enough);
        true
    }

    /// Whether two lookups at once justify a page: yes, until such a page answers no lookup. Counts as a requested page.
    fn gets_for_two(&mut self) -> bool {
        let is_worth = self.hits != Some(0);
        if is_worth {
            self.hits = Some(0);
        }
        is_worth
    }

    fn is_in_order(&self) -> bool {
        self.run >= Self::RUN
    }
}

/// One page of a listing.
#[derive(Debug)]
pub(crate) struct Page {
    /// The name behind which the page begins; `None`: the beginning.
    pub(crate) after: Option<Box<str>>,
    /// Whether the listing ends with this page.
    pub(crate) is_last: bool,
    /// Whether the page shows every name that it covers: each entry could be read, and none is only a mark of a directory.
    pub(crate) is_complete: bool,
    /// Whether the page came with the lookup of its directory, and answers no longer than that.
    pub(crate) came_along: bool,
    pub(crate) batch: Arc<Batch>,
}

impl Page {
    /// Most names of a directory that is listed once more for lookups of absent names. Doubling it spares the requests of such lookups in
    /// directories of twice the size, and doubles what the page for two of them may bring.
    const SHORT: usize = 64;

    /// Whether the page is the whole directory.
    pub(crate) fn is_whole(&self) -> bool {
        self.after.is_none() && self.is_last
    }

    /// The entries, as a listing has them: no batch is empty.
    pub(crate) fn batches(&self) -> Vec<Arc<Batch>> {
        if self.batch.len() == 0 { Vec::new() } else { vec![Arc::clone(&self.batch)] }
    }

    fn is_behind_start(&self, name: &str) -> bool {
        self.after.as_deref().is_none_or(|after| after < name)
    }

    /// Whether the page shows that the whole directory has no such name.
    fn proves_absent(&self, name: &str) -> bool {
        self.is_whole() && self.is_complete && self.batch.find(name).is_none()
    }

    fn covers(&self, name: &str) -> bool {
        let end = self.batch.last_name();
        self.is_behind_start(name) && (self.is_last || end.is_some_and(|end| order(name, end).is_le()))
    }
}

/// The request that a lookup should make or join.
pub(crate) enum Advice {
    /// Wait for a page that may contain the name, requested at this event.
    Wait(u64),
    /// Request the page from this name on.
    Ask(After),
    /// Request the name alone.
    Nothing,
}

/// The recent pages of one directory, and the lookups that may lead to more.
pub(crate) struct Recent {
    pages: Vec<Page>,
    /// The page in flight, and the event of its request.
    coming: Option<(After, u64)>,
    spell: Spell,
    /// The pages of the directories below this one.
    pub(crate) sisters: Sisters,
}

impl Recent {
    pub(crate) fn new() -> Self {
        Self { pages: Vec::new(), coming: None, spell: Spell::new(), sisters: Sisters::new() }
    }

    /// Whether a page is in memory or in flight.
    pub(crate) fn is_in_use(&self) -> bool {
        !self.pages.is_empty() || self.coming.is_some()
    }

    /// The entry of a name in a page requested less than [`PAGE`] ago, the newest page first. `is_absent`: whether the name is known as
    /// absent since an event.
    pub(crate) fn find(
        &self,
        name: &str,
        now: Instant,
        is_absent: impl Fn(u64) -> bool,
    ) -> Option<(Arc<Batch>, usize)> {
        let pages = self.pages.iter().rev().filter(|page| is_young(page.batch.since, now));
        let mut pages = pages.filter(|page| !is_absent(page.batch.asked));
        pages.find_map(|page| Some((page.batch.clone(), page.batch.find(name)?)))
    }

    /// Whether the lookups of the directory begin: none has led to a page so far, or a page answered and they rested since.
    pub(crate) fn begins(&self, now: Instant) -> bool {
        let rested = |(_, at): &(Box<str>, Instant)| now.saturating_duration_since(*at) >= Spell::PAUSE;
        match self.spell.hits {
            _ if self.coming.is_some() => false,
            None => true,
            Some(hits) => hits > 0 && self.spell.last.as_ref().is_none_or(rested),
        }
    }

    /// Notes that a page answered a lookup. Returns whether this was the second one for a page that is the whole directory.
    pub(crate) fn hit(&mut self, name: &str, now: Instant) -> bool {
        self.spell.hits = Some(self.spell.hits.unwrap_or_default().saturating_add(1));
        self.spell.count(name, true, now);
        self.spell.hits == Some(2) && self.pages.iter().any(Page::is_whole)
    }

    /// Time and event of the newest recent page in whose range the name would be, and which lacks it.
    pub(crate) fn lacks(&self, name: &str, now: Instant) -> Option<(Instant, u64)> {
        let mut pages = self.pages.iter().rev().filter(|page| is_young(page.batch.since, now));
        let page = pages.find(|page| page.covers(name) && page.is_complete)?;
        page.batch.find(name).is_none().then_some((page.batch.since, page.batch.asked))
    }

    /// The event of the latest page requested after the event `began` that shows the whole directory without this name.
    pub(crate) fn lacks_since(&self, name: &str, began: u64) -> Option<u64> {
        let page = self.pages.iter().rev().find(|page| page.batch.asked > began && page.is_whole())?;
        page.proves_absent(name).then_some(page.batch.asked)
    }

    /// Decides whether a lookup waits for another page of the whole directory, after one that shows that the directory is short and lacks
    /// the name.
    pub(crate) fn again(&self, name: &str, now: Instant) -> Advice {
        let mut pages = self.pages.iter().rev();
        let page = pages.find(|page| is_young(page.batch.since, now) && page.is_whole());
        let is_worth = |page: &Page| page.proves_absent(name) && page.batch.len() <= Page::SHORT;
        match &self.coming {
            _ if !page.is_some_and(is_worth) => Advice::Nothing,
            None => Advice::Ask(None),
            Some((None, asked)) => Advice::Wait(*asked),
            Some((Some(_), _)) => Advice::Nothing,
        }
    }

    /// Notes that a page answered that a name is absent. Returns the same as [`Recent::hit`].
    pub(crate) fn hit_absent(&mut self, name: &str, now: Instant) -> bool {
        self.spell.hits = self.spell.hits.map(|hits| hits.saturating_add(1));
        self.spell.count(name, false, now);
        self.spell.hits == Some(2) && self.pages.iter().any(Page::is_whole)
    }

    /// Whether a page is young enough to answer.
    pub(crate) fn has_young(&self, now: Instant) -> bool {
        self.pages.iter().any(|page| is_young(page.batch.since, now))
    }

    /// Notes that no page answers a lookup. `known`: an inode for the name lives. `terms`: the price of a page. `beside`: another lookup
    /// of a new name is in flight in the directory. `for_one`: this lookup alone is worth a page.
    pub(crate) fn miss(
        &mut self,
        name: &str,
        known: bool,
        terms: Terms,
        beside: Option<Beside<'_>>,
        for_one: bool,
        now: Instant,
    ) -> Advice {
        self.spell.count(name, known, now);
        if let Some((after, asked)) = &self.coming {
            return match after.as_deref().is_none_or(|after| after < name) {
                true => Advice::Wait(*asked),
                false => Advice::Nothing,
            };
        }
        let young = || self.pages.iter().filter(|page| is_young(page.batch.since, now));
        if young().any(|page| page.covers(name)) {
            let came_without = |page: &Page| page.came_along && page.proves_absent(name);
            if known || !young().all(came_without) {
                return Advice::Nothing;
            }
            // A short directory lacks the name: a page says so by one request, and to other lookups, too.
            self.spell.hits = Some(0);
            return Advice::Ask(None);
        }
        let after = match self.spell.is_in_order() {
            true => before(name),
            // Lookups in any order: the page begins at the first place that no page covers.
            false => {
                let mut end = None;
                while let Some(further) = young()
                    .filter(|page| page.after.as_deref() <= end)
                    .filter_map(|p| p.batch.last_name())
                    .max()
                    && Some(further) > end
                {
                    end = Some(further);
                }
                end.map(Into::into)
            }
        };
        let has_pages = young().next().is_some();
        if self.spell.buys(terms) {
            return Advice::Ask(after);
        }
        if for_one {
            self.spell.hits = Some(0);
            return Advice::Ask(None);
        }
        match beside {
            Some(beside) if self.spell.gets_for_two() => {
                Advice::Ask(together::begin(name, beside, has_pages))
            }
            _ => Advice::Nothing,
        }
    }

    /// Notes that a page was requested at event `asked`.
    pub(crate) fn asks(&mut self, after: After, asked: u64) {
        self.coming = Some((after, asked));
    }

    /// Whether the page requested at this event is the one in flight. After a rename of the directory no earlier page is.
    pub(crate) fn awaits(&self, asked: u64) -> bool {
        self.coming.as_ref().is_some_and(|(_, coming)| *coming == asked)
    }

    /// Takes in the page requested at the event `asked`; `None`: the request failed. A page that is not awaited changes nothing.
    pub(crate) fn arrives(&mut self, asked: u64, page: Option<Page>) {
        if self.awaits(asked) {
            self.coming = None;
            self.pages.extend(page);
        }
    }

    /// Whether a page requested before an event has the name, or may have it after its arrival.
    pub(crate) fn may_have(&self, name: &str, event: u64) -> bool {
        let said = self.pages.iter().any(|page| page.batch.asked < event && page.batch.find(name).is_some());
        said || self.coming.as_ref().is_some_and(|(_, asked)| *asked < event)
    }

    /// Drops the pages that are too old to answer. Returns their number.
    pub(crate) fn expire(&mut self, now: Instant) -> usize {
        let before = self.pages.len();
        self.pages.retain(|page| is_young(page.batch.since, now));
        before - self.pages.len()
    }

    pub(crate) fn drop_oldest(&mut self) {
        if !self.pages.is_empty() {
            self.pages.remove(0);
        }
    }
}

fn is_young(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) < PAGE
}

impl fmt::Debug for Recent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recent")
            .field("pages", &self.pages.len())
            .field("spell", &self.spell)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::EntryNo;

    const USUAL: Terms = Terms { in_order: 32, any_order: 32 };

    fn ask(recent: &mut Recent, name: &str, now: Instant) -> Option<After> {
        match recent.miss(name, false, USUAL, None, false, now) {
            Advice::Ask(after) => Some(after),
            Advice::Nothing => None,
            Advice::Wait(_) => panic!("no page is on its way"),
        }
    }

    #[test]
    fn the_32nd_lookup_in_order_asks_for_a_page_that_begins_shortly_before_it() {
        let (mut recent, now) = (Recent::new(), Instant::now());
        for i in 1..32 {
            assert_eq!(ask(&mut recent, &format!("n{i:02}"), now), None);
        }
        assert_eq!(ask(&mut recent, "n32", now), Some(Some("n31~".into())));
        // The page had none of the names: the next page comes sixteen lookups later.
        let next = (33..).find(|i| ask(&mut recent, &format!("n{i:02}"), now).is_some());
        assert_eq!(next, Some(48));
    }

    #[test]
    fn names_that_a_listing_made_known_are_worth_a_page_sooner() {
        let (mut recent, now) = (Recent::new(), Instant::now());
        let asked = (1..).find(|i| {
            matches!(recent.miss(&format!("n{i:02}"), true, USUAL, None, false, now), Advice::Ask(_))
        });
        assert_eq!(asked, Some(6));
    }

    #[test]
    fn useless_pages_are_asked_for_less_and_less_until_one_answers() {
        let (mut recent, now) = (Recent::new(), Instant::now());
        let terms = Terms { in_order: 4, any_order: 4 };
        let mut asked = Vec::new();
        for i in 0..200 {
            if matches!(
                recent.miss(&format!("missing{i:03}"), false, terms, None, false, now),
                Advice::Ask(_)
            ) {
                asked.push(i);
            }
        }
        let gaps: Vec<_> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!((asked[0], &gaps[..4]), (3, &[2, 6, 12, 24][..]));
        assert!(gaps[4..].iter().all(|gap| *gap == 16), "{gaps:?}");
        recent.hit("there0", now);
        recent.hit("there1", now);
        let before = (0..).position(|i| {
            matches!(recent.miss(&format!("x{i:03}"), false, terms, None, false, now), Advice::Ask(_))
        });
        let after = (0..).position(|i| {
            matches!(recent.miss(&format!("y{i:03}"), false, terms, None, false, now), Advice::Ask(_))
        });
        assert!(before <= Some(15) && after <= Some(2), "{before:?} {after:?}");
    }

    #[test]
    fn lookups_in_any_order_ask_from_the_beginning() {
        let (mut recent, now) = (Recent::new(), Instant::now());
        let asked = (1..100).rev().find_map(|i| ask(&mut recent, &format!("n{i:02}"), now));
        assert_eq!(asked, Some(None));
    }

    #[test]
    fn repeated_lookups_of_one_name_and_slow_ones_are_never_worth_a_page() {
        let (mut recent, mut now) = (Recent::new(), Instant::now());
        for _ in 0..1000 {
            assert_eq!(ask(&mut recent, "same", now), None);
        }
        for i in 0..1000 {
            now += Spell::PAUSE;
            assert_eq!(ask(&mut recent, &format!("n{i:04}"), now), None);
        }
    }

    #[test]
    fn only_the_page_on_its_way_ends_the_wait_for_it() {
        let (mut recent, now) = (Recent::new(), Instant::now());
        let batch = Arc::new(Batch::new(EntryNo(1), 1, [now; 2], &[]));
        let mut page = Some(Page { after: None, is_last: true, is_complete: true, came_along: false, batch });
        recent.asks(None, 2);
        recent.arrives(1, page.take());
        assert!(recent.awaits(2) && recent.expire(now) == 0 && recent.pages.is_empty());
        assert!(matches!(recent.miss("a", false, USUAL, None, false, now), Advice::Wait(2)));
        recent.arrives(2, None);
        assert!(!recent.is_in_use());
    }

    #[test]
    fn two_lookups_at_once_are_worth_a_page_until_one_answers_nothing() {
        let (mut recent, now) = (Recent::new(), Instant::now());
        let beside = Some(Beside { name: "n01", is_long: false });
        let ask = |name: &str, beside, recent: &mut Recent| {
            matches!(recent.miss(name, false, USUAL, beside, false, now), Advice::Ask(_))
        };
        assert!(!ask("n01", None, &mut recent), "the first is alone");
        assert!(ask("n02", beside, &mut recent));
        assert!(!ask("n03", beside, &mut recent), "it answered nothing so far");
        recent.hit("n04", now);
        assert!(ask("n05", beside, &mut recent));
        assert!((6..20).all(|i| !ask(&format!("n{i:02}"), beside, &mut recent)), "the usual terms");
        assert!((20..200).any(|i| ask(&format!("n{i:03}"), beside, &mut recent)));
    }
}
