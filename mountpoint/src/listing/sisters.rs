//! Decides whether the first lookup in a directory is worth a page, from the pages of its sisters: the other directories of one parent.
//! Pure.
//!
//! A lookup of a new name costs a HEAD and a LIST, 13 units in the price list of S3; a page costs 12. Programs treat sisters alike: where
//! a page of one answered further lookups, a page of the next probably does, too. Lookups in two sisters at once are worth a few pages before
//! that. Pages that answer no second lookup use the credit up.

/// The credit of the directories below one directory for pages at their first lookup.
#[derive(Debug)]
pub(crate) struct Sisters {
    credit: u8,
    /// Whether a page of a sister, or of the directory above, answered a second lookup.
    proven: bool,
}

impl Sisters {
    /// Pages before any has paid. Doubling it saves requests of a program with more threads than this, each in a folder of its own, and
    /// doubles the pages in vain of a program that wants one name of each folder.
    const TRIAL: u8 = 16;
    /// The most pages in vain, in a row.
    const MOST: u8 = 16;
    /// Pages that one page pays for that answers a second lookup: itself, and one more.
    const GAIN: u8 = 2;

    pub(crate) fn new() -> Self {
        Self { credit: Self::TRIAL, proven: false }
    }

    /// Whether the first lookup in a directory should request a page, which this pays for. `is_beside`: whether a lookup in a sister is in
    /// flight.
    pub(crate) fn buys(&mut self, is_beside: bool) -> bool {
        let buys = self.credit > 0 && (self.proven || is_beside);
        self.credit -= u8::from(buys);
        buys
    }

    /// Notes that the page of the directory above answered a second lookup: a program that goes through names there does so below, too.
    pub(crate) fn paid_above(&mut self) {
        self.proven = true;
    }

    /// Notes that the page of a directory below answered a second lookup.
    pub(crate) fn paid(&mut self) {
        self.credit = (self.credit + Self::GAIN).min(Self::MOST);
        self.proven = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pages that first lookups in a hundred sisters request, none of which pays.
    fn in_vain(sisters: &mut Sisters, is_beside: bool) -> usize {
        (0..100).filter(|_| sisters.buys(is_beside)).count()
    }

    #[test]
    fn a_lookup_alone_is_worth_a_page_once_a_page_of_a_sister_paid() {
        let mut sisters = Sisters::new();
        assert_eq!(in_vain(&mut sisters, false), 0);
        sisters.paid();
        assert!(sisters.buys(false));
    }

    #[test]
    fn lookups_in_two_sisters_at_once_are_worth_sixteen_pages_before_one_pays() {
        let mut sisters = Sisters::new();
        assert_eq!(in_vain(&mut sisters, true), 16);
        sisters.paid();
        assert_eq!(in_vain(&mut sisters, false), 2);
    }

    #[test]
    fn pages_that_pay_go_on_for_ever_and_sixteen_in_vain_end_it() {
        let mut sisters = Sisters::new();
        sisters.paid();
        for _ in 0..1000 {
            assert!(sisters.buys(false));
            sisters.paid();
        }
        assert_eq!(in_vain(&mut sisters, false), 16);
    }
}
