//! Lengths of a handle's runs.

/// Number of runs whose lengths are kept. Doubling it lets one long run among short ones count for longer.
pub(super) const ENDED: usize = 4;

/// Bytes by which two runs of one length may seem to differ: the kernel reads up to a MiB more at either end. Doubling it doubles the
/// bytes fetched in vain behind the second and third run.
const SPREAD: u64 = 2 << 20;

/// The lengths, in bytes, of the last runs that ended in a jump. The next runs are mostly like them.
#[derive(Clone, Debug, Default)]
pub(super) struct Lengths {
    last: [u64; ENDED],
    ended: usize,
}

impl Lengths {
    /// Notes the length of a run that ended.
    pub(super) fn ended(&mut self, length: u64) {
        self.last[self.ended % ENDED] = length;
        self.ended += 1;
    }

    /// The distance from its start up to which a run of `length` bytes so far is worth fetching: the length of the longest of the last
    /// runs, doubled each time that the run goes on beyond. While few runs have ended: the length of the longest run that was left before
    /// this one began, if any is known.
    pub(super) fn horizon(&self, length: u64, least: u64, left_before: Option<u64>) -> u64 {
        let told = left_before.map(|length| length + SPREAD);
        let longest = if self.ended < ENDED { told } else { self.last.iter().copied().max() };
        let Some(longest) = longest else { return u64::MAX };
        let mut horizon = longest.max(least).max(1);
        while horizon < length {
            horizon = horizon.saturating_mul(2);
        }
        horizon
    }
}
