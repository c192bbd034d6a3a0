//! The answer to a request, which owns its bytes: another thread may send it to the kernel later.

use crate::prefetch::Bytes;

/// The body of a reply, behind its header.
#[derive(Debug)]
pub(super) enum Answer {
    /// No body: the errno in the header is the whole answer.
    Nothing,
    /// `struct fuse_write_out`.
    Short([u8; 8]),
    /// `struct fuse_open_out`.
    Open([u8; 16]),
    /// Any other encoded structure.
    Encoded(Vec<u8>),
    /// Bytes of a file, in their blocks.
    Bytes(Bytes),
}

impl Answer {
    /// The bytes of the answer, in order.
    pub(super) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let (whole, bytes): (&[u8], _) = match self {
            Self::Nothing => (&[], None),
            Self::Short(whole) => (&whole[..], None),
            Self::Open(whole) => (&whole[..], None),
            Self::Encoded(whole) => (&whole[..], None),
            Self::Bytes(bytes) => (&[], Some(bytes)),
        };
        let whole = (!whole.is_empty()).then_some(whole);
        whole.into_iter().chain(bytes.into_iter().flat_map(|bytes| bytes.slices()))
    }
}

impl From<()> for Answer {
    fn from((): ()) -> Self {
        Self::Nothing
    }
}

impl From<[u8; 8]> for Answer {
    fn from(whole: [u8; 8]) -> Self {
        Self::Short(whole)
    }
}

impl From<[u8; 16]> for Answer {
    fn from(whole: [u8; 16]) -> Self {
        Self::Open(whole)
    }
}

impl From<Vec<u8>> for Answer {
    fn from(whole: Vec<u8>) -> Self {
        Self::Encoded(whole)
    }
}

impl From<Bytes> for Answer {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}
