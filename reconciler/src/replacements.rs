//! Limits the replacements of Mountpoint Pods that end before they serve. A node under disk pressure, or one that shuts down, rejects
//! each new pod at once; without a limit each rejection would create the next pod. Enters: the time of the last replacement, and the number
//! in a row. Leaves: the wait for the next one.
//!
//! The count is in an annotation of the attachment, so a new leader continues it.
//!
//! Never here: a clock; the first pod of a new workload, which never waits.

use std::fmt;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// The pause between the first replacement and the second; it doubles with each further one. With [`PAUSE_LAST`] it allows 6 within
/// [`IN_A_ROW`]: after 0, 10, 30, 70, 150 and 310 s.
const PAUSE_FIRST: Duration = Duration::from_secs(10);
/// The longest pause: after a node has recovered, its volumes wait at most this long.
const PAUSE_LAST: Duration = Duration::from_secs(300);
/// A replacement this long after the last one starts a new row.
const IN_A_ROW: Duration = Duration::from_secs(600);

/// Replacements in a row, for one share key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replacements(Option<(u32, Timestamp)>);

impl Replacements {
    /// Parses the annotation of an attachment. An invalid text counts as no replacement, and delays no pod.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let parsed = text.split_once(' ').and_then(|(count, last)| {
            let count: u32 = count.parse().ok()?;
            Some((count, last.parse().ok()?))
        });
        Self(parsed.filter(|(count, _)| *count > 0))
    }

    /// The wait until the next replacement; zero if it may be created now.
    #[must_use]
    pub fn wait(self, now: Timestamp) -> Duration {
        let Some((count, last)) = self.row(now) else { return Duration::ZERO };
        let pause = PAUSE_FIRST.saturating_mul(1 << (count - 1).min(16)).min(PAUSE_LAST);
        // Another leader's clock may be ahead: the wait is never longer than a whole pause.
        pause.saturating_sub(Duration::try_from(now.duration_since(last)).unwrap_or(Duration::ZERO))
    }

    /// The row with one more replacement, created now.
    #[must_use]
    pub fn another(self, now: Timestamp) -> Self {
        let count = self.row(now).map_or(0, |(count, _)| count);
        Self(Some((count.saturating_add(1), now)))
    }

    fn row(self, now: Timestamp) -> Option<(u32, Timestamp)> {
        let in_a_row = SignedDuration::try_from(IN_A_ROW).ok()?;
        self.0.filter(|(_, last)| now.duration_since(*last) < in_a_row)
    }
}

impl fmt::Display for Replacements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some((count, last)) => write!(f, "{count} {last}"),
            None => f.write_str("0"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
    }

    #[test]
    fn six_in_ten_minutes_and_then_one_in_five() {
        let (mut all, mut made) = (Replacements::default(), Vec::new());
        for second in 0..3600 {
            if all.wait(at(second)).is_zero() {
                made.push(second);
                // By way of the attachment, as another leader would see it.
                all = Replacements::parse(&all.another(at(second)).to_string());
            }
        }
        assert_eq!(made[..8], [0, 10, 30, 70, 150, 310, 610, 910]);
        for from in 0..3600 {
            let within = made.iter().filter(|second| (from..from + 600).contains(*second)).count();
            assert!(within <= 6, "{within} from {from} s on");
        }
    }

    #[test]
    fn a_row_ends_after_ten_quiet_minutes_and_a_fast_clock_costs_one_pause() {
        let all = Replacements::parse(&format!("9 {}", at(1000)));
        assert_eq!(all.wait(at(1000)), PAUSE_LAST);
        assert_eq!(all.wait(at(1100)), PAUSE_LAST - Duration::from_secs(100));
        assert_eq!(all.wait(at(0)), PAUSE_LAST);
        assert_eq!(all.wait(at(1600)), Duration::ZERO);
        assert_eq!(all.another(at(1600)), Replacements::default().another(at(1600)));
        for text in ["", "x", "0 1970-01-01T00:00:00Z", "3", "3 yesterday", "-1 1970-01-01T00:00:00Z"] {
            assert_eq!(Replacements::parse(text), Replacements::default(), "{text}");
        }
    }
}
