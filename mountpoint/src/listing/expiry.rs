//! How long S3's answers are valid.

use std::time::{Duration, Instant};

/// The time for which S3's answer about a name is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// AWS's default freshness: files 100 ms, directories 1 s, absent names not at all. Every open asks S3.
    Minimal,
    /// The user's choice, which opens trust, too. Doubling `found` halves the lookups of a steady reader, and doubles the time that a
    /// change by another client may go unseen; `missing` does the same for absent names.
    For {
        /// The TTL of names that exist, and of complete listings.
        found: Duration,
        /// The TTL of names that do not exist.
        missing: Duration,
    },
    /// The bucket does not change while it is mounted.
    Indefinite,
}

/// Event and times of S3's answer about a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    /// The event of the request.
    pub(crate) asked: u64,
    /// The moment of the answer.
    pub(crate) at: Instant,
    /// The moment until which a stat may repeat the answer.
    pub(crate) until: Instant,
}

/// TTL of files under [`Ttl::Minimal`].
const MINIMAL_FILE: Duration = Duration::from_millis(100);
/// TTL of directories under [`Ttl::Minimal`].
pub(crate) const MINIMAL_DIRECTORY: Duration = Duration::from_secs(1);
/// TTL of a page of a listing, counted from its request. Doubling it halves the listings of a program that looks through a directory, and
/// doubles the time for which stat may miss a change by another client.
pub(crate) const PAGE: Duration = Duration::from_secs(1);
/// A century in place of "for ever": clocks and the kernel can still add it.
const INDEFINITE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl Ttl {
    /// TTL of a file's attributes and entry.
    pub(crate) fn file(self) -> Duration {
        match self {
            Self::Minimal => MINIMAL_FILE,
            Self::For { found, .. } => found,
            Self::Indefinite => INDEFINITE,
        }
    }

    /// TTL of a directory entry, and of "this name is not a directory".
    pub(crate) fn directory(self) -> Duration {
        match self {
            Self::Minimal => MINIMAL_DIRECTORY,
            Self::For { found, .. } => found,
            Self::Indefinite => INDEFINITE,
        }
    }

    /// TTL of an absent name; zero if absent names are not remembered.
    pub(crate) fn missing(self) -> Duration {
        match self {
            Self::Minimal => Duration::ZERO,
            Self::For { missing, .. } => missing,
            Self::Indefinite => INDEFINITE,
        }
    }

    /// The time for which an open may rely on earlier answers.
    pub(crate) fn open(self) -> Duration {
        match self {
            Self::Minimal => Duration::ZERO,
            other => other.file(),
        }
    }

    /// The instant until which a stat may repeat a page's facts about a file: a second after the page's request, or a file's TTL after
    /// its answer.
    pub(crate) fn of_page(self, since: Instant, arrived: Instant) -> Instant {
        (since + self.directory().min(PAGE)).max(arrived + self.file())
    }

    /// The validity of S3's answer about one file, to the request of event `asked`.
    pub(crate) fn said(self, asked: u64, at: Instant) -> Said {
        Said { asked, at, until: at + self.file() }
    }

    /// TTL of a complete listing, for lookups and listings.
    pub(crate) fn listing(self) -> Duration {
        self.open()
    }
}

/// The rest of `ttl` for an answer of `since`; zero after its end.
pub(crate) fn left(ttl: Duration, since: Instant, now: Instant) -> Duration {
    ttl.saturating_sub(now.saturating_duration_since(since))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_ttl_shrinks_with_age_and_never_below_nothing() {
        let now = Instant::now();
        assert_eq!(left(Duration::from_secs(3), now, now + Duration::from_secs(1)), Duration::from_secs(2));
        assert_eq!(left(Duration::from_secs(3), now, now + Duration::from_secs(9)), Duration::ZERO);
        assert_eq!(left(Duration::from_secs(3), now + Duration::from_secs(9), now), Duration::from_secs(3));
    }
}
