//! Reads a staged file: present bytes from the local disk, others from the object.

use std::ops::Range;

use tokio::sync::oneshot;

use super::disk::read_at_most;
use super::staged::Elsewhere;
use super::{Error, Staged};
use crate::buffer::{Use, charge};
use crate::prefetch::{Bytes, Reader};
use crate::sync::Arc;

impl Staged {
    /// Reads up to `len` bytes at `offset`; fewer at the end of the file, none behind it. Calls `done` with the bytes: at once if the
    /// local disk has them, otherwise on the thread that receives them.
    pub fn read<F>(self: &Arc<Self>, offset: u64, len: usize, done: F)
    where
        F: FnOnce(Result<Bytes, Error>) + Send + 'static,
    {
        let (range, elsewhere, reader) = {
            let state = self.look();
            let range = offset..offset.saturating_add(len as u64).min(state.image.size());
            let elsewhere = state.elsewhere(&range);
            (range, elsewhere, state.reader.clone())
        };
        if range.is_empty() {
            return done(Ok(Bytes::default()));
        }
        if let (Some(reader), true) = (&reader, elsewhere.runs.as_slice() == std::slice::from_ref(&range)) {
            let length = (range.end - range.start) as usize;
            let this = Arc::clone(self);
            return reader.read(range.start, length, move |result| match result {
                Ok(bytes) => done(Ok(bytes)),
                Err(error) => {
                    let runtime = this.shared.runtime.clone();
                    runtime.spawn(async move {
                        done(match this.has_moved(&range, &elsewhere).await {
                            true => this.read_mixed(range).await,
                            false => Err(error.into()),
                        });
                    });
                }
            });
        }
        if elsewhere.runs.is_empty()
            && let Some(block) = self.shared.pool.try_take(Use::Demand, (range.end - range.start) as usize)
        {
            return done(self.read_here(range, block));
        }
        let this = Arc::clone(self);
        self.shared.runtime.spawn(async move { done(this.read_mixed(range).await) });
    }

    /// Reads a range that the local disk has, into this block.
    fn read_here(&self, range: Range<u64>, mut block: crate::buffer::BlockMut) -> Result<Bytes, Error> {
        let length = (range.end - range.start) as usize;
        let got = read_at_most(&*self.file()?, &mut block.spare()[..length], range.start)?;
        // The file became shorter after the size was read.
        block.spare()[got..length].fill(0);
        block.advance(length);
        let mut bytes = Bytes::default();
        bytes.push(block.freeze(), 0..length);
        Ok(bytes)
    }

    /// Reads a range of which only the object has some bytes.
    async fn read_mixed(&self, range: Range<u64>) -> Result<Bytes, Error> {
        let mut fetched = Vec::new();
        let mut elsewhere = self.state.lock().elsewhere(&range);
        while let Some(run) = elsewhere.runs.get(fetched.len()).cloned() {
            match self.fetch(run.clone()).await {
                Ok(bytes) => fetched.push((run.start, bytes)),
                Err(error) => {
                    if !self.has_moved(&range, &elsewhere).await {
                        return Err(error);
                    }
                    (elsewhere, fetched) = (self.state.lock().elsewhere(&range), Vec::new());
                }
            }
        }
        let length = (range.end - range.start) as usize;
        let mut memory = self.shared.pool.reserve(Use::Demand, charge(length)).await;
        let out_of_memory = || std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        let mut block = memory.block(length).ok_or_else(out_of_memory)?;
        let got = read_at_most(&*self.file()?, &mut block.spare()[..length], range.start)?;
        // The file became shorter after the size was read.
        block.spare()[got..length].fill(0);
        for (start, bytes) in fetched {
            let at = (start - range.start) as usize;
            // copy: a read of bytes that lie on the local disk and in the bucket
            block.spare()[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        block.advance(length);
        let mut bytes = Bytes::default();
        bytes.push(block.freeze(), 0..length);
        Ok(bytes)
    }

    /// Whether bytes that the object did not give have moved meanwhile: to the local disk, or into the object by which this mount
    /// replaced the old one.
    async fn has_moved(&self, range: &Range<u64>, before: &Elsewhere) -> bool {
        drop(self.replacing.lock().await);
        self.state.lock().elsewhere(range) != *before
    }

    /// Reads all bytes of a range from the object.
    async fn fetch(&self, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let reader = self.state.lock().reader.clone();
        fetch_from(reader.as_deref(), range).await
    }

    /// Fetches all bytes that only the object has.
    pub(super) async fn hydrate(self: &Arc<Self>) -> Result<(), Error> {
        loop {
            let next = {
                let state = self.state.lock();
                state.image.missing(0..u64::MAX).into_iter().next()
            };
            let Some(run) = next else { return Ok(()) };
            let piece = run.start..run.end.min(run.start + crate::buffer::BLOCK as u64);
            let bytes = self.fetch(piece.clone()).await?;
            let this = Arc::clone(self);
            let filled = self.shared.runtime.spawn_blocking(move || this.fill(piece.start, &bytes));
            filled.await.map_err(std::io::Error::other)??;
        }
    }
}

/// Reads all bytes of a range from the object by this reader.
pub(super) async fn fetch_from(reader: Option<&Reader>, range: Range<u64>) -> Result<Vec<u8>, Error> {
    let gone = || Error::from(std::io::Error::other("a staged file without its object"));
    let (give, given) = oneshot::channel();
    let length = (range.end - range.start) as usize;
    reader.ok_or_else(gone)?.read(range.start, length, move |result| drop(give.send(result)));
    let bytes = given.await.map_err(|_| gone())??.to_vec();
    if bytes.len() != length {
        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
    }
    Ok(bytes)
}
