//! Decides whether to ask for first bytes, from the use of earlier ones. Pure.

/// The operation that asks for attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// A lookup of a name, perhaps before a stat, perhaps before an open.
    Lookup,
    /// An open for reading.
    Open,
    /// A lookup of an unknown name, perhaps before a stat, perhaps before an open. The size is unknown, too. The request is for the tail
    /// if such files are read from there, otherwise the same as for `Lookup`.
    Cold,
    /// An open of a file whose tail the kernel has, so that the program reads something else.
    Next,
}

impl Cause {
    /// Number of causes.
    pub(super) const COUNT: usize = 4;
}

/// The score of one cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Guess {
    score: u8,
}

impl Guess {
    /// The score from which the engine requests bytes: as many lookups in a row, each followed by a read.
    const ENOUGH: u8 = 16;
    /// Highest score: the fifth wrong guess in a row stops the guesses.
    const MOST: u8 = 32;
    /// The cost of a wrong guess. Guesses continue while at most one in five is wrong.
    const WRONG: u8 = 4;

    /// The first score of a cause. Opens nearly always lead to reads, and so does the first lookup of a table; other lookups must show it
    /// first.
    pub(super) fn new(cause: Cause) -> Self {
        match cause {
            Cause::Lookup => Self { score: 0 },
            Cause::Open | Cause::Cold | Cause::Next => Self { score: Self::MOST },
        }
    }

    pub(super) fn is_worth(self) -> bool {
        self.score >= Self::ENOUGH
    }

    /// Counts a right guess: a read of the requested bytes came next.
    pub(super) fn right(&mut self) {
        self.score = (self.score + 1).min(Self::MOST);
    }

    /// Counts a wrong guess: no read came, or the read did not need the store.
    pub(super) fn wrong(&mut self) {
        self.score = self.score.saturating_sub(Self::WRONG);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(mut guess: Guess, rights: usize, wrongs: usize) -> Guess {
        (0..rights).for_each(|_| guess.right());
        (0..wrongs).for_each(|_| guess.wrong());
        guess
    }

    #[test]
    fn a_look_up_is_worth_bytes_after_sixteen_that_led_to_reads() {
        let cold = Guess::new(Cause::Lookup);
        assert!(!after(cold, 15, 0).is_worth());
        assert!(after(cold, 16, 0).is_worth());
    }

    #[test]
    fn an_open_and_a_cold_table_are_worth_bytes_from_the_start() {
        assert!(Guess::new(Cause::Open).is_worth() && Guess::new(Cause::Cold).is_worth());
    }

    #[test]
    fn five_wrong_guesses_in_a_row_end_it_however_long_it_went_well() {
        let sure = after(Guess::new(Cause::Lookup), 10_000, 0);
        assert!(after(sure, 0, 4).is_worth());
        assert!(!after(sure, 0, 5).is_worth());
    }

    #[test]
    fn a_mount_that_is_wrong_once_in_four_stops_and_once_in_eight_goes_on() {
        let mut often = Guess::new(Cause::Open);
        let mut seldom = often;
        for _ in 0..100 {
            often = after(often, 3, 1);
            seldom = after(seldom, 7, 1);
        }
        assert!(!often.is_worth());
        assert!(seldom.is_worth());
    }

    #[test]
    fn look_ups_without_reads_leave_nothing_to_work_off() {
        let mut guess = after(Guess::new(Cause::Lookup), 0, 1000);
        guess = after(guess, 16, 0);
        assert!(guess.is_worth());
    }
}
