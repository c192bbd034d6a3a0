//! A request body of known length: pieces of shared memory, sent without copying.

use std::io::IoSlice;

use bytes::{Buf, Bytes};

/// The body of one request.
#[derive(Debug, Default)]
pub(crate) struct Body {
    /// The pieces that are not sent yet, in reverse order.
    pieces: Vec<Bytes>,
    left: usize,
}

impl Body {
    /// Shares the memory of `pieces`.
    pub(crate) fn new(pieces: &[Bytes]) -> Self {
        let pieces: Vec<_> = pieces.iter().rev().filter(|piece| !piece.is_empty()).cloned().collect();
        Self { left: pieces.iter().map(Bytes::len).sum(), pieces }
    }

    /// Bytes that are not sent yet.
    pub(crate) fn len(&self) -> u64 {
        self.left as u64
    }
}

impl Buf for Body {
    fn remaining(&self) -> usize {
        self.left
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.last().map_or(&[], |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let pieces = into.iter_mut().zip(self.pieces.iter().rev());
        pieces.map(|(slice, piece)| *slice = IoSlice::new(piece)).count()
    }

    fn advance(&mut self, mut sent: usize) {
        assert!(sent <= self.left, "{sent} of {} bytes", self.left);
        self.left -= sent;
        while let Some(piece) = self.pieces.last_mut().filter(|_| sent > 0) {
            let n = sent.min(piece.len());
            piece.advance(n);
            sent -= n;
            if piece.is_empty() {
                self.pieces.pop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_arrive_in_order_however_much_is_sent_at_once(
            lengths in proptest::collection::vec(0usize..20, 0..6),
            steps in proptest::collection::vec((1usize..4, 1usize..30), 1..20),
        ) {
            let whole: Vec<u8> = (0..lengths.iter().sum::<usize>() as u8).collect();
            let mut rest = Bytes::from(whole.clone());
            let pieces: Vec<_> = lengths.iter().map(|&n| rest.split_to(n)).collect();
            let (mut body, mut sent) = (Body::new(&pieces), Vec::new());
            for (slices, most) in steps.into_iter().cycle() {
                prop_assert_eq!(body.len() as usize, whole.len() - sent.len());
                if !body.has_remaining() {
                    break;
                }
                let mut into = [IoSlice::new(&[]); 4];
                let count = body.chunks_vectored(&mut into[..slices]);
                prop_assert!(count > 0 && into[..count].iter().all(|slice| !slice.is_empty()));
                prop_assert_eq!(&into[0][..], body.chunk());
                let offered: Vec<u8> = into[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
                let n = most.min(offered.len());
                sent.extend_from_slice(&offered[..n]);
                body.advance(n);
            }
            prop_assert_eq!(sent, whole);
        }
    }
}
