//! A request body of known length: pieces of memory with another owner, sent without copying.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};

/// Bytes handed to hyper at once: small enough that its queue stays bounded, large enough for one writev.
const FRAME: usize = 256 << 10;

/// The bytes of one request.
#[derive(Debug, Default)]
pub(crate) struct Body {
    pieces: Vec<Bytes>,
    next: usize,
    current: Bytes,
    left: u64,
}

impl Body {
    /// Shares the memory of `pieces`.
    pub(crate) fn new(pieces: &[Bytes]) -> Self {
        let left = pieces.iter().map(|p| p.len() as u64).sum();
        Self { pieces: pieces.to_vec(), next: 0, current: Bytes::new(), left }
    }

    pub(crate) fn len(&self) -> u64 {
        self.left
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        while !self.current.has_remaining() {
            let next = self.next;
            let Some(piece) = self.pieces.get_mut(next) else { return Poll::Ready(None) };
            self.current = std::mem::take(piece);
            self.next += 1;
        }
        let n = self.current.len().min(FRAME);
        let frame = self.current.split_to(n);
        self.left -= n as u64;
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
