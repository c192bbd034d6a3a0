//! Share of one connection in a line. It decides whether a long transfer is slow because its line is slow. Pure: counts in, a decision out.
//!
//! A slow line and a trickling store look the same on one connection. All connections together show the difference: if only one transfer is
//! slow, the others move its share of the bytes. Each direction is a line of its own: uploads are not compared with downloads.

use std::time::Duration;

/// A transfer is behind if an average transfer on the same line moved more than this many times as many bytes meanwhile. Doubling it
/// tolerates twice as uneven shares, as TCP makes them on a full line, and lets a store trickle on one connection at half the rate.
const BEHIND: f64 = 4.0;

/// The traffic of a line so far, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Carried {
    /// Total bytes of all connections.
    all: u64,
    /// Bytes that each exchange in flight would have moved with equal shares.
    each: f64,
}

impl Carried {
    /// Updates the total of all connections, with the number of exchanges in flight since the last look. More looks make the shares more
    /// exact.
    pub(crate) fn look(&mut self, all: u64, under_way: usize) {
        self.each += all.saturating_sub(self.all) as f64 / under_way.max(1) as f64;
        self.all = all;
    }

    fn since(self, before: Self) -> Self {
        Self { all: self.all.saturating_sub(before.all), each: self.each - before.each }
    }
}

/// Least throughput of the line on which a transfer may run longer than its own time limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    /// The average bytes per second that all connections together must carry ...
    pub(crate) rate: u64,
    /// ... after a transfer has lasted this long.
    pub(crate) after: Duration,
}

/// The verdict on a transfer that has used up its own time limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The transfer has a fair share of a slow or busy line: it goes on.
    GoesOn,
    /// Other transfers move far more bytes: another connection may be faster.
    Behind,
    /// The line as a whole is below the floor: another connection would not help.
    Below,
}

impl Floor {
    /// Judges a transfer that moved `own` bytes during `took`, while the traffic of its line went from `before` to `now`.
    pub(crate) fn judge(self, own: u64, before: Carried, now: Carried, took: Duration) -> Verdict {
        let line = now.since(before);
        if line.each > own as f64 * BEHIND {
            return Verdict::Behind;
        }
        let least = took.saturating_sub(self.after).as_secs_f64() * self.rate as f64;
        if line.all as f64 > least { Verdict::GoesOn } else { Verdict::Below }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FLOOR: Floor = Floor { rate: 64 << 10, after: Duration::from_secs(60) };
    const PART: u64 = 8 << 20;

    /// The time in seconds at which each connection is stopped, and the verdict; `None` if it finishes its part. The connections move this
    /// many bytes per second, and are judged each second after their own time limit.
    fn ends(rates: &[u64]) -> Vec<Option<(u64, Verdict)>> {
        let alone = 60 + PART / FLOOR.rate;
        let mut ends = vec![None; rates.len()];
        let (mut line, mut all) = (Carried::default(), 0);
        for second in 1..20_000 {
            all += rates.iter().sum::<u64>();
            line.look(all, rates.len());
            for (rate, end) in rates.iter().zip(&mut ends) {
                let own = rate * second;
                if second < alone || own >= PART || end.is_some() {
                    continue;
                }
                let verdict = FLOOR.judge(own, Carried::default(), line, Duration::from_secs(second));
                *end = (verdict != Verdict::GoesOn).then_some((second, verdict));
            }
        }
        ends
    }

    #[test]
    fn transfers_that_share_a_slow_line_go_on_until_they_are_whole() {
        // 4, 2 and 0.6 Mbit/s: alone, each has time for 44 kB/s.
        for (line, sharers) in [(500_000, 16), (250_000, 55), (75_000, 64)] {
            assert!(ends(&vec![line / sharers; sharers as usize]).iter().all(Option::is_none), "{line}");
        }
        // TCP shares it so: one has a third of what the others have.
        let uneven: Vec<_> = (0..16).map(|i| if i == 0 { 10_000 } else { 30_000 }).collect();
        assert!(ends(&uneven).iter().all(Option::is_none));
    }

    #[test]
    fn a_transfer_that_trickles_while_others_move_ends_at_its_time() {
        let mut rates = vec![200_000; 16];
        rates[3] = 500;
        for (i, end) in ends(&rates).into_iter().enumerate() {
            assert_eq!(end, (i == 3).then_some((188, Verdict::Behind)), "{i}");
        }
    }

    #[test]
    fn a_transfer_alone_and_a_line_as_a_whole_have_a_least_rate() {
        for rates in [vec![1], vec![40_000], vec![1_000; 16]] {
            let ended = ends(&rates);
            let in_time = |end: &Option<(u64, Verdict)>| {
                end.is_some_and(|(second, verdict)| verdict == Verdict::Below && second < 250)
            };
            assert!(ended.iter().all(in_time), "{rates:?}: {ended:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn no_transfer_outlasts_four_times_the_time_of_its_share_of_the_line(
            rates in proptest::collection::vec(1u64..100_000, 1..16),
        ) {
            let mean = rates.iter().sum::<u64>() / rates.len() as u64;
            let most = (4 * PART / mean.max(1) + 2).max(250);
            for (rate, end) in rates.iter().zip(ends(&rates)) {
                let ended = end.map_or(PART / rate, |(second, _)| second);
                prop_assert!(ended <= most, "{rate}: {end:?}, {most} s at most");
            }
        }
    }

    #[test]
    fn a_line_that_changes_its_speed_changes_the_share_of_all() {
        let (mut line, mut all) = (Carried::default(), 0);
        let mut own = 0;
        for second in 1..=400u64 {
            let share = if (100..300).contains(&second) { 2_000 } else { 40_000 };
            // Others come and go: 10, then 40.
            let sharers = if second < 200 { 10 } else { 40 };
            (own, all) = (own + share, all + share * sharers);
            line.look(all, sharers as usize);
            let verdict = FLOOR.judge(own, Carried::default(), line, Duration::from_secs(second));
            assert_eq!(verdict, Verdict::GoesOn, "{second}");
        }
    }
}
