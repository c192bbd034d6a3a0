//! A thread's buffer for requests: address space for the largest request, but no more memory than the requests need.

use std::io;
use std::time::{Duration, Instant};

use super::TRANSFER_MAX;
use super::request::HEADER_LEN;
use crate::buffer::Scratch;

/// Largest request of the kernel, in bytes: a WRITE of the largest size and its headers.
const LEN: usize = TRANSFER_MAX as usize + 4096 + HEADER_LEN;
/// Size in bytes above which a request is large; only WRITEs are. Doubling it keeps twice the memory in an idle thread, and gives memory
/// back after fewer writes.
const LARGE: usize = 64 << 10;
/// Time for which memory for large requests is kept after the last one. Doubling it halves the times that writes with pauses fill new
/// pages, which costs a tenth of a millisecond for each MiB, and keeps the memory longer if fewer requests follow.
const KEPT: Duration = Duration::from_millis(100);

/// Bytes of the buffer that are in memory before a request comes: enough for all but large requests. The kernel fills no new page for a
/// process that is being killed, and answers EIO to a request that it has begun to hand over: the next engine would never see that request.
const FILLED: usize = 8 << 10;

/// Memory for one request at a time.
#[derive(Debug)]
pub(super) struct RequestBuffer {
    pub(super) bytes: Scratch,
    large: Large,
}

/// The time of the last large request, while its memory is kept.
#[derive(Debug, Default)]
struct Large(Option<Instant>);

impl RequestBuffer {
    /// Bytes of the largest request.
    pub(super) const LEN: usize = LEN;

    pub(super) fn new() -> io::Result<Self> {
        let mut bytes = Scratch::new(LEN)?;
        bytes[..FILLED].fill(0);
        Ok(Self { bytes, large: Large::default() })
    }

    /// Notes that a request of `len` bytes is done. The memory of an earlier large request may return to the kernel.
    pub(super) fn done(&mut self, len: usize, now: impl FnOnce() -> Instant) {
        if self.large.lets_go(len, now) {
            self.bytes.let_go();
            self.bytes[..FILLED].fill(0);
        }
    }
}

impl Large {
    /// Whether to return the memory of large requests. A thread that waits for its next request can't do so, so the first small requests
    /// after the last large one do it.
    fn lets_go(&mut self, len: usize, now: impl FnOnce() -> Instant) -> bool {
        if len > LARGE {
            self.0 = Some(now());
            return false;
        }
        self.0.is_some() && self.0.take_if(|last| now().saturating_duration_since(*last) >= KEPT).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_for_large_writes_is_let_go_once_when_small_requests_follow() {
        let (mut large, start) = (Large::default(), Instant::now());
        let mut at = |len, ms| large.lets_go(len, || start + Duration::from_millis(ms));
        assert!(!at(80, 0), "nothing large came");
        assert!(!at(LARGE + 1, 10));
        assert!(!at(80, 10 + 99), "more may come");
        assert!(!at(LARGE + 1, 100));
        assert!(!at(80, 199));
        assert!(at(80, 200));
        assert!(!at(80, 1000), "it is gone");
        assert!(!at(LARGE + 1, 5000), "however long ago the last one came");
    }

    #[test]
    fn a_request_of_any_size_finds_room_before_and_after() {
        let (mut buffer, start) = (RequestBuffer::new().unwrap(), Instant::now());
        for _ in 0..2 {
            buffer.bytes.fill(7);
            buffer.done(LEN, || start);
            assert_eq!((buffer.bytes.len(), buffer.bytes[LEN - 1]), (LEN, 7));
            buffer.done(80, || start + KEPT);
            assert_eq!((buffer.bytes.len(), buffer.bytes[LEN - 1]), (LEN, 0));
        }
    }
}
