//! Buffers of a TLS connection: received bytes, content not read yet, and bytes to be sent.

use std::ops::Range;

use tokio::io::ReadBuf;

/// Least room for one receive, in bytes. Doubling it saves every second receive and moves the buffer out of the processor's nearest cache.
pub(super) const RECEIVE: usize = 64 << 10;
/// Most bytes of a record: a header, content, and the overhead of encryption in TLS 1.2.
pub(super) const RECORD_MAX: usize = 5 + (16 << 10) + (2 << 10);

/// Received bytes. rustls decrypts records in place here, and keeps the parts of a handshake message at the front.
pub(super) struct Received {
    bytes: Vec<u8>,
    /// Range of the bytes that rustls has not discarded yet.
    range: Range<usize>,
}

impl Received {
    pub(super) fn new() -> Self {
        // Zeroed memory straight from the allocator: unlike with `resize`, the pages of a connection that receives little stay untouched.
        Self { bytes: vec![0; RECEIVE + RECORD_MAX], range: 0..0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The received bytes that are not discarded yet.
    pub(super) fn filled(&mut self) -> &mut [u8] {
        &mut self.bytes[self.range.clone()]
    }

    /// Discards this number of bytes at the front.
    pub(super) fn discard(&mut self, bytes: usize) {
        self.range.start += bytes;
    }

    /// The memory behind the received bytes. It is empty only if rustls keeps [`RECEIVE`] bytes or more, for a handshake message that is
    /// too long.
    pub(super) fn spare(&mut self) -> &mut [u8] {
        if self.range.start > 0 {
            self.bytes.copy_within(self.range.clone(), 0); // copy: the front of a record, to join its rest
            self.range = 0..self.range.len();
        }
        &mut self.bytes[self.range.end..]
    }

    /// Notes that `bytes` bytes were received into the front of [`Received::spare`].
    pub(super) fn fill(&mut self, bytes: usize) {
        self.range.end += bytes;
    }

    #[cfg(feature = "testing")]
    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity()
    }
}

/// Decrypted content for which the reader had no room: the rest of a record, or content that came before a write. The content never exceeds
/// the size of [`Received`], because the connection receives nothing while content is left here.
#[derive(Default)]
pub(super) struct Kept {
    bytes: Vec<u8>,
    start: usize,
}

impl Kept {
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    pub(super) fn keep(&mut self, content: &[u8]) {
        if !content.is_empty() {
            self.bytes.drain(..std::mem::take(&mut self.start));
            self.bytes.extend_from_slice(content); // copy: the reader's memory is shorter than the record
        }
    }

    /// Moves as much content into `buf` as it has room for.
    pub(super) fn give(&mut self, buf: &mut ReadBuf<'_>) {
        let rest = &self.bytes[self.start..];
        let n = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..n]); // copy: to the reader
        self.start += n;
        if self.is_empty() {
            (self.bytes, self.start) = (Vec::new(), 0);
        }
    }

    #[cfg(feature = "testing")]
    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity()
    }
}

/// Encrypted records that the kernel has not taken yet.
#[derive(Default)]
pub(super) struct ToSend {
    bytes: Vec<u8>,
    range: Range<usize>,
}

impl ToSend {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }

    /// Drops this number of bytes at the front: the kernel took them.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.range.start += bytes;
        if self.range.is_empty() {
            self.range = 0..0;
        }
    }

    /// Offset of the end of the waiting bytes.
    pub(super) fn end(&self) -> usize {
        self.range.end
    }

    /// Memory of at least `room` bytes, behind the waiting bytes.
    pub(super) fn spare(&mut self, room: usize) -> &mut [u8] {
        if self.bytes.len() - self.range.end < room {
            // Otherwise the memory would grow for as long as a byte is left. The copy is never longer than the bytes sent before.
            if self.range.start > self.range.len() {
                self.bytes.copy_within(self.range.clone(), 0); // copy: records that the kernel does not take
                self.range = 0..self.range.len();
            }
            self.bytes.resize(self.bytes.len().max(self.range.end + room), 0);
        }
        &mut self.bytes[self.range.end..]
    }

    /// Notes that `bytes` bytes were written into the front of [`ToSend::spare`].
    pub(super) fn fill(&mut self, bytes: usize) {
        self.range.end += bytes;
    }

    #[cfg(feature = "testing")]
    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity()
    }
}
