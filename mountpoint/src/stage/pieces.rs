//! The pieces of a copy of one moment, and what changes save for it.

use std::fs::File;
use std::io;
use std::ops::Range;

use super::disk::{Disk, PIECE, read_at_most};
use super::image::Image;
use super::runs::Runs;
use crate::sync::Arc;

/// Most bytes that a change saves for a copy under way. Beyond it, as where a program cuts off the end of a long file, the copy begins
/// anew. Doubling it spares such copies, and lets programs wait twice as long for the local disk.
pub(super) const SAVED_MAX: u64 = 2 << 20;

/// A copy of one moment under way. Programs change the file meanwhile; each change first saves the bytes that it replaces.
#[derive(Debug)]
pub(super) struct Copying {
    to: Arc<File>,
    size: u64,
    /// Most bytes that one change saves.
    saved_max: u64,
    /// The bytes that the copy has, or that are not in the local file.
    done: Runs,
    /// The piece that is on its way. All bytes before it are done.
    piece: Range<u64>,
    /// Bytes of the piece as they were before a change.
    saved: Vec<(u64, Vec<u8>)>,
}

impl Copying {
    pub(super) fn new(to: Arc<File>, image: &Image, saved_max: u64) -> Self {
        let (size, mut done) = (image.size(), Runs::default());
        image.present().missing(0..size).into_iter().for_each(|hole| done.insert(hole));
        Self { to, size, saved_max, done, piece: 0..0, saved: Vec::new() }
    }

    /// Whether this is the copy to that file.
    pub(super) fn is_to(&self, to: &Arc<File>) -> bool {
        Arc::ptr_eq(&self.to, to)
    }

    /// Begins the next piece.
    pub(super) fn next(&mut self) -> Option<Range<u64>> {
        let gap = self.done.gap(self.piece.end);
        self.piece = gap.start..gap.end.min(self.size).min(gap.start + PIECE);
        (!self.piece.is_empty()).then(|| self.piece.clone())
    }

    /// Ends the piece. Returns bytes of it that must replace those that were read.
    pub(super) fn landed(&mut self) -> Vec<(u64, Vec<u8>)> {
        self.done.insert(self.piece.clone());
        std::mem::take(&mut self.saved)
    }

    /// Saves the bytes of a range that the copy still needs. False: they are too many.
    pub(super) fn save(&mut self, disk: &Disk, from: &File, range: Range<u64>) -> io::Result<bool> {
        let needed = self.done.missing(range.start..range.end.min(self.size));
        if needed.iter().map(|run| run.end - run.start).sum::<u64>() > self.saved_max {
            return Ok(false);
        }
        for run in needed {
            let Range { start, end } = self.piece;
            // Other threads write neither part: the piece comes alone, and later pieces leave out what is done.
            let parts = [
                run.start..run.end.min(start),
                run.start.max(start)..run.end.min(end),
                run.start.max(end)..run.end,
            ];
            for part in parts {
                let is_of_piece = part.start >= start && part.start < end;
                for at in part.clone().step_by(PIECE as usize) {
                    let mut bytes = vec![0; PIECE.min(part.end - at) as usize];
                    read_at_most(from, &mut bytes, at)?;
                    match is_of_piece {
                        true => self.saved.push((at, bytes)),
                        false => disk.write(&self.to, &bytes, at)?,
                    }
                }
            }
            self.done.insert(run);
        }
        Ok(true)
    }
}
