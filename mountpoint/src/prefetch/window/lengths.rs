//! How long the runs of a handle are.

/// Runs whose lengths are remembered. Doubling it lets one long run among short ones count for longer.
pub(super) const ENDED: usize = 4;

/// How long the last runs were that ended in a jump: those to come are mostly like them.
#[derive(Clone, Debug, Default)]
pub(super) struct Lengths {
    last: [u64; ENDED],
    ended: usize,
}

impl Lengths {
    /// A run of this length ended.
    pub(super) fn ended(&mut self, length: u64) {
        self.last[self.ended % ENDED] = length;
        self.ended += 1;
    }

    /// How far a run of `length` so far is worth fetching: as far as the longest of the last ones, and twice as far each time that it goes on
    /// beyond.
    pub(super) fn horizon(&self, length: u64, least: u64) -> u64 {
        if self.ended < ENDED {
            return u64::MAX;
        }
        let mut horizon = self.last.iter().copied().fold(least.max(1), u64::max);
        while horizon < length {
            horizon = horizon.saturating_mul(2);
        }
        horizon
    }
}
