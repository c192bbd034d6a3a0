//! The state of the network before the store, as data: set by the test, read by every connection.

use std::borrow::Cow;
use std::time::Duration;

/// The weather between a mount and its store. It begins clear; each method adds one effect and replaces an earlier one of its kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weather {
    pub(super) passage: Passage,
    pub(super) half_open: bool,
    pub(super) unavailable: Option<Unavailable>,
    pub(super) latency: Duration,
    pub(super) rate: Option<u64>,
    pub(super) answers: Answers,
    pub(super) flips: Flips,
}

/// The offset of the byte in each direction whose lowest bit flips, on the first connection that reaches it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flips {
    pub(super) request: Option<u64>,
    pub(super) answer: Option<u64>,
}

/// The index of byte `at` in the next `len` bytes, if `passed` bytes came before on the connection.
pub(super) fn place(len: usize, passed: u64, at: Option<u64>) -> Option<usize> {
    usize::try_from(at?.checked_sub(passed)?).ok().filter(|place| *place < len)
}

/// These bytes, with the lowest bit of the byte at `place` flipped.
pub(super) fn flipped(bytes: &[u8], place: Option<usize>) -> Cow<'_, [u8]> {
    let Some(place) = place else { return Cow::Borrowed(bytes) };
    let mut bytes = bytes.to_vec();
    bytes[place] ^= 1;
    Cow::Owned(bytes)
}

/// Whether bytes and connections pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Passage {
    #[default]
    Open,
    Refused,
    BlackHole,
    SilentSyns,
}

/// The requests that are answered with 503.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Unavailable {
    pub(super) share: f64,
    pub(super) seed: u64,
    pub(super) retry_after: Option<String>,
}

impl Unavailable {
    /// Whether the request with this number, counted from the start of the proxy, is answered with 503.
    pub(super) fn strikes(&self, request: u64) -> bool {
        // Each request has its own generator: there is no pattern, and the same seed selects the same requests.
        let seed = self.seed.wrapping_add(request.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        fastrand::Rng::with_seed(seed).f64() < self.share
    }
}

/// The weather's effect on bytes from the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Answers {
    #[default]
    Pass,
    ResetAfter(u64),
    StallAfter(u64),
    Drip {
        bytes: u64,
        every: Duration,
    },
}

/// One step in passing an answer on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// The number of bytes that pass now.
    pub(super) bytes: usize,
    pub(super) then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    GoOn,
    Reset,
    /// Pause for this time, or until the weather changes.
    Pause(Duration),
    /// Stall until the weather changes.
    Stall,
}

impl Answers {
    /// The next step for `waiting` bytes, on a connection on which `passed` bytes of answers have passed in this weather.
    pub(super) fn step(self, passed: u64, waiting: usize) -> Step {
        let up_to = |limit: u64, then: Then| {
            let room = limit.saturating_sub(passed);
            let bytes = usize::try_from(room).unwrap_or(usize::MAX).min(waiting);
            let then = if bytes as u64 == room { then } else { Then::GoOn };
            Step { bytes, then }
        };
        match self {
            Self::Pass => Step { bytes: waiting, then: Then::GoOn },
            Self::ResetAfter(limit) => up_to(limit, Then::Reset),
            Self::StallAfter(limit) => up_to(limit, Then::Stall),
            Self::Drip { bytes, every } => {
                let bytes = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX).min(waiting);
                Step { bytes, then: Then::Pause(every) }
            }
        }
    }
}

impl Weather {
    /// Clear weather: everything passes at once, including bytes that earlier weather held back.
    pub fn clear() -> Self {
        Self::default()
    }

    /// Refuses connections, as if nothing listened: connects get RST, open connections are reset. The proxy keeps the port, so the same
    /// address can answer again later.
    #[must_use]
    pub fn refused(mut self) -> Self {
        self.passage = Passage::Refused;
        self
    }

    /// Accepts connections, but nothing passes in either direction and nothing is closed. Held bytes pass in later weather.
    #[must_use]
    pub fn black_hole(mut self) -> Self {
        self.passage = Passage::BlackHole;
        self
    }

    /// Like [`Weather::black_hole`], but connections are not even accepted: the kernel drops their SYN. In later weather a client's
    /// next SYN is answered; Linux repeats it after 1, 3 and 7 seconds.
    #[must_use]
    pub fn silent_syns(mut self) -> Self {
        self.passage = Passage::SilentSyns;
        self
    }

    /// Makes the open connections dead for ever, in later weather, too: nothing passes, nothing is closed, like after a firewall has
    /// forgotten them. New connections work.
    #[must_use]
    pub fn half_open(mut self) -> Self {
        self.half_open = true;
        self
    }

    /// Answers each HTTP request with `503 SlowDown`, with this `Retry-After` if any, after receiving and dropping its body; keeps the
    /// connection. A request whose head passed earlier goes on. This needs plain HTTP/1.1 and bodies with a Content-Length: TLS and chunked
    /// requests pass.
    #[must_use]
    pub fn unavailable(mut self, retry_after: Option<String>) -> Self {
        self.unavailable = Some(Unavailable { share: 1.0, seed: 0, retry_after });
        self
    }

    /// Like [`Weather::unavailable`], but for this share of the requests, from 0 to 1. The same seed selects the same requests, in
    /// their order of arrival.
    #[must_use]
    pub fn unavailable_share(mut self, share: f64, seed: u64) -> Self {
        self.unavailable = Some(Unavailable { share, seed, retry_after: None });
        self
    }

    /// Adds this time to each round trip, half of it in each direction. A connection's handshake is not delayed: the kernel answers it.
    #[must_use]
    pub fn latency(mut self, round_trip: Duration) -> Self {
        self.latency = round_trip;
        self
    }

    /// Limits the rate to this many bytes per second in each direction, for all connections together; connections with waiting bytes
    /// share it equally. At most 64 KiB of a connection's bytes wait here in each direction, besides the kernel's buffers (64 KiB each).
    ///
    /// # Panics
    /// The rate is 0: use a black hole.
    #[must_use]
    pub fn rate(mut self, bytes_per_second: u64) -> Self {
        assert!(bytes_per_second > 0, "a rate of 0 is a black hole");
        self.rate = Some(bytes_per_second);
        self
    }

    /// Resets (RST) each connection after this number of bytes of answers, including heads, counted from now. 0 resets at the first byte of
    /// an answer.
    #[must_use]
    pub fn reset_answers_after(mut self, bytes: u64) -> Self {
        self.answers = Answers::ResetAfter(bytes);
        self
    }

    /// Stops the answers of each connection after this number of bytes, counted from now. Nothing is closed; requests pass. Later weather
    /// lets the rest pass.
    #[must_use]
    pub fn stall_answers_after(mut self, bytes: u64) -> Self {
        self.answers = Answers::StallAfter(bytes);
        self
    }

    /// Passes requests to the store, but no byte of their answers. Later weather lets the answers pass.
    #[must_use]
    pub fn never_answered(self) -> Self {
        self.stall_answers_after(0)
    }

    /// Lets `bytes` of answers pass on each connection, then pauses, again and again.
    #[must_use]
    pub fn drip(mut self, bytes: u64, every: Duration) -> Self {
        self.answers = Answers::Drip { bytes, every };
        self
    }

    /// Flips the lowest bit of one byte of requests, including heads: the offset counts from 0 and from now, on the first connection
    /// that reaches it, and only there. In a head, a letter becomes its neighbour.
    #[must_use]
    pub fn flip_request_byte(mut self, at: u64) -> Self {
        self.flips.request = Some(at);
        self
    }

    /// Like [`Weather::flip_request_byte`], but in answers.
    #[must_use]
    pub fn flip_answer_byte(mut self, at: u64) -> Self {
        self.flips.answer = Some(at);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_cut_at_its_byte_wherever_the_pieces_end() {
        let answers = Answers::ResetAfter(10);
        assert_eq!(answers.step(0, 4), Step { bytes: 4, then: Then::GoOn });
        assert_eq!(answers.step(4, 6), Step { bytes: 6, then: Then::Reset });
        assert_eq!(answers.step(4, 60), Step { bytes: 6, then: Then::Reset });
        assert_eq!(answers.step(11, 5), Step { bytes: 0, then: Then::Reset });
        assert_eq!(Answers::StallAfter(0).step(0, 5), Step { bytes: 0, then: Then::Stall });
        assert_eq!(Answers::Pass.step(1 << 40, 5), Step { bytes: 5, then: Then::GoOn });
        let every = Duration::from_millis(1);
        let drip = Answers::Drip { bytes: 2, every };
        assert_eq!(drip.step(9, 5), Step { bytes: 2, then: Then::Pause(every) });
    }

    #[test]
    fn one_bit_flips_wherever_the_pieces_end() {
        let sent = |passed, at| flipped(b"abc", place(3, passed, at)).into_owned();
        assert_eq!([sent(10, None), sent(10, Some(9)), sent(10, Some(13))], [*b"abc"; 3]);
        assert_eq!([sent(10, Some(10)), sent(10, Some(12))], [*b"`bc", *b"abb"]);
    }

    #[test]
    fn a_share_strikes_its_share_and_a_seed_the_same_requests() {
        let some = |share, seed| {
            let unavailable = Unavailable { share, seed, retry_after: None };
            (0..10_000).map(|n| unavailable.strikes(n)).collect::<Vec<_>>()
        };
        let struck = some(0.3, 7).iter().filter(|struck| **struck).count();
        assert!((2_800..3_200).contains(&struck), "{struck}");
        assert_eq!(some(0.3, 7), some(0.3, 7));
        assert_ne!(some(0.3, 7), some(0.3, 8));
        assert!(some(1.0, 1).iter().all(|struck| *struck) && !some(0.0, 1).contains(&true));
    }
}
