//! The cost of a page of a listing in comparison with lookups of single names, from the measured times of the store. Pure.
//!
//! The unit is the time of a lookup. A page costs a round trip too, and time for each of its names. A program whose lookups in one
//! directory took twice the time of a page will probably look up more names there, and then a page is cheaper.

use std::time::Duration;

/// The store's measured times.
#[derive(Debug, Default)]
pub(crate) struct Prices {
    /// Seconds of a lookup, and of each name of a page beyond a lookup's time.
    look: Mean,
    name: Mean,
}

/// The number of lookups in one directory that justify a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Lookups in the listing's order: the page has the names that follow.
    pub(crate) in_order: u32,
    /// Lookups in any order: pages from the beginning on.
    pub(crate) any_order: u32,
}

impl Prices {
    /// The price before any measurement, and the highest price where pages can answer.
    pub(crate) const USUAL: u32 = 32;
    /// The lowest price: fewer lookups do not show what a program does.
    const LEAST: u32 = 4;
    /// The highest price for a directory with more pages than the tree keeps: the tree may drop its pages before lookups use them.
    const MOST: u32 = 256;
    pub(crate) const PAGES_KEPT: usize = 64;
    /// How many times the price of a page the lookups must cost first.
    const MARGIN: f64 = 2.0;
    /// Seconds for each name of a page before a measurement: S3 takes about a tenth of a second for a thousand.
    const NAME: f64 = 50e-6;
    /// Least names of a page from which the price of a name is measured.
    const NAMES_MIN: usize = 50;
    /// Least and most seconds that a lookup waits for a page; then the lookup asks for its own name. With twice the most, a lookup on a
    /// silent store fails that much later.
    const WAIT: [f64; 2] = [0.2, 5.0];

    /// Notes the time of a lookup.
    pub(crate) fn looked(&mut self, took: Duration) {
        self.look.add(took.as_secs_f64());
    }

    /// Notes the time of a page.
    pub(crate) fn listed(&mut self, took: Duration, names: usize) {
        if names >= Self::NAMES_MIN && !took.is_zero() {
            let trip = self.look.0.unwrap_or_default();
            self.name.add((took.as_secs_f64() - trip).max(0.0) / names as f64);
        }
    }

    /// The time from a request for a page of at most `page` names until lookups stop waiting: twice what such a page takes.
    pub(crate) fn wait(&self, page: u16) -> Duration {
        let [least, most] = Self::WAIT;
        let trip = self.look.0.unwrap_or_default();
        let took = trip + self.name.0.unwrap_or(Self::NAME) * f64::from(page);
        Duration::from_secs_f64((2.0 * took).clamp(least, most))
    }

    /// The terms for a directory that had `length` names in its last listing, in pages of `page` names.
    pub(crate) fn terms(&self, length: Option<usize>, page: u16) -> Terms {
        let usual = Terms { in_order: Self::USUAL, any_order: Self::USUAL };
        let Some(look) = self.look.0.filter(|look| *look > 0.0) else { return usual };
        let page = usize::from(page.max(1));
        let price = look + self.name.0.unwrap_or(Self::NAME) * length.unwrap_or(page).min(page) as f64;
        let lookups = |pages: usize, most: u32| {
            // Rounding errors must not add a lookup.
            let lookups = (Self::MARGIN * pages as f64 * price / look - 1e-6).ceil();
            (lookups as u32).clamp(Self::LEAST, most)
        };
        let any_order = match length.map(|length| length.div_ceil(page).max(1)) {
            Some(pages) if pages > Self::PAGES_KEPT => lookups(pages, Self::MOST),
            Some(pages) => lookups(pages, Self::USUAL),
            None => Self::USUAL,
        };
        Terms { in_order: lookups(1, Self::USUAL), any_order }
    }
}

/// A mean in which the latest values count most.
#[derive(Debug, Default)]
struct Mean(Option<f64>);

impl Mean {
    /// The weight of a new value. `BEYOND` limits how far beyond the mean a value counts: an outage is not a price.
    const WEIGHT: f64 = 0.125;
    const BEYOND: f64 = 4.0;

    fn add(&mut self, value: f64) {
        self.0 = Some(match self.0 {
            Some(mean) if mean > 0.0 => mean + (value.min(mean * Self::BEYOND) - mean) * Self::WEIGHT,
            _ => value,
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn measured(look: Duration, page: Duration) -> Prices {
        let mut prices = Prices::default();
        (0..50).for_each(|_| prices.looked(look));
        (0..50).for_each(|_| prices.listed(page, 1000));
        prices
    }

    #[test]
    fn what_is_not_measured_is_worth_a_page_after_thirty_two_lookups() {
        let usual = Terms { in_order: 32, any_order: 32 };
        assert_eq!(Prices::default().terms(None, 1000), usual);
        assert_eq!(Prices::default().terms(Some(7), 1000), usual);
    }

    #[test]
    fn the_longer_a_round_trip_beside_a_page_the_sooner_the_page() {
        let terms = |look, page| measured(look * MS, page * MS).terms(None, 1000).in_order;
        assert_eq!(terms(20, 25), 4);
        assert_eq!(terms(20, 100), 10);
        assert_eq!(terms(2, 10), 10);
        assert_eq!(terms(1, 50), 32);
    }

    #[test]
    fn a_short_directory_is_worth_its_page_soon_and_an_unkeepable_one_late() {
        let prices = measured(20 * MS, 100 * MS);
        assert_eq!(prices.terms(Some(20), 1000), Terms { in_order: 4, any_order: 4 });
        assert_eq!(prices.terms(Some(2500), 1000), Terms { in_order: 10, any_order: 30 });
        assert_eq!(prices.terms(Some(1_000_000), 1000), Terms { in_order: 10, any_order: 256 });
        // The directory's length is unknown: the price stays.
        assert_eq!(prices.terms(None, 1000).any_order, 32);
    }

    #[test]
    fn an_outage_changes_little_and_a_store_that_got_slower_is_learned() {
        let mut prices = measured(20 * MS, 100 * MS);
        prices.looked(Duration::from_secs(60));
        assert!((8..=10).contains(&prices.terms(None, 1000).in_order));
        (0..50).for_each(|_| prices.listed(500 * MS, 1000));
        assert_eq!(prices.terms(None, 1000).in_order, 32);
    }

    #[test]
    fn a_page_is_waited_for_twice_its_time_and_never_long() {
        assert_eq!(Prices::default().wait(1000), 200 * MS);
        assert_eq!(measured(20 * MS, 25 * MS).wait(1000), 200 * MS);
        let wait = measured(100 * MS, 400 * MS).wait(1000);
        assert!((790 * MS..810 * MS).contains(&wait), "{wait:?}");
        assert_eq!(measured(9000 * MS, 9000 * MS).wait(1000), 5000 * MS);
    }

    proptest! {
        #[test]
        fn whatever_was_measured_the_terms_lie_within_their_limits(
            times in prop::collection::vec((0u64..100_000_000, 0u64..10_000_000_000, 0usize..2000), 0..20),
            length in prop::option::of(0usize..5_000_000),
            page in 0u16..=1000,
        ) {
            let mut prices = Prices::default();
            for (look, page, names) in times {
                prices.looked(Duration::from_nanos(look));
                prices.listed(Duration::from_nanos(page), names);
            }
            let Terms { in_order, any_order } = prices.terms(length, page);
            prop_assert!((4..=32).contains(&in_order) && (4..=256).contains(&any_order));
        }
    }
}
