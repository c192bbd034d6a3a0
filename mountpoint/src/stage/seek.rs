//! The next data or hole of a staged file (SEEK_DATA and SEEK_HOLE of lseek(2)).
//!
//! A byte that only the object has is data. About all others the local file knows: it has holes where nothing was written or fetched.

use std::fs::File;
use std::io;
use std::ops::Range;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::{Error, Staged};

/// The kind of place that lseek(2) finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// A byte that is data.
    Data,
    /// A byte in a hole, or the end of the file.
    Hole,
}

impl Staged {
    /// The first data, or the first hole, from `offset` on. `None`: the file has none there.
    ///
    /// # Errors
    /// `Disk`.
    pub fn seek(&self, offset: u64, seek: Seek) -> Result<Option<u64>, Error> {
        let (size, file) = (self.size(), self.file_for_now()?);
        let lacks = |at| self.state.lock().image.next_missing(at);
        let found = match seek {
            Seek::Data => next_data(offset..size, lacks, |at| next_here(&file, SeekFrom::Data(at))),
            Seek::Hole => next_hole(offset..size, lacks, |at| next_here(&file, SeekFrom::Hole(at))),
        };
        Ok(found?)
    }
}

/// The first data in a range that ends with the file. `lacks`: the first bytes from an offset on that only the object has; it is asked
/// before `here`, the next data of the local file, so that bytes which are fetched in between are data all the same.
fn next_data(
    range: Range<u64>,
    lacks: impl Fn(u64) -> Option<Range<u64>>,
    here: impl Fn(u64) -> io::Result<Option<u64>>,
) -> io::Result<Option<u64>> {
    if range.is_empty() {
        return Ok(None);
    }
    let elsewhere = lacks(range.start).map(|run| run.start);
    let first = [elsewhere, here(range.start)?].into_iter().flatten().min();
    Ok(first.filter(|first| *first < range.end))
}

/// The first hole in a range that ends with the file; each file has one at its end. `lacks` as in [`next_data`]; `here`: the next hole of
/// the local file.
fn next_hole(
    range: Range<u64>,
    lacks: impl Fn(u64) -> Option<Range<u64>>,
    here: impl Fn(u64) -> io::Result<Option<u64>>,
) -> io::Result<Option<u64>> {
    let mut at = range.start;
    if range.is_empty() {
        return Ok(None);
    }
    while at < range.end {
        at = match lacks(at).filter(|run| run.start <= at) {
            Some(run) => run.end,
            None => match here(at)? {
                Some(hole) if hole > at => hole,
                _ => return Ok(Some(at)),
            },
        };
    }
    Ok(Some(range.end))
}

/// The next data or hole of the local file; `None` at its end.
fn next_here(file: &File, from: SeekFrom) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, from) {
        Ok(place) => Ok(Some(place)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The first byte from an offset on with this property.
    fn first(bytes: &[char], at: u64, is_it: impl Fn(char) -> bool) -> Option<u64> {
        (at..bytes.len() as u64).find(|at| is_it(bytes[*at as usize]))
    }

    proptest! {
        /// Bytes of the object, of the local disk, and of neither.
        #[test]
        fn bytes_of_the_object_and_of_the_disk_are_data_and_all_else_is_a_hole(
            bytes in prop::collection::vec(prop::sample::select(vec!['o', 'd', '0']), 0..40),
            offset in 0u64..50,
        ) {
            let size = bytes.len() as u64;
            let lacks = |at: u64| {
                let start = first(&bytes, at, |byte| byte == 'o')?;
                Some(start..first(&bytes, start, |byte| byte != 'o').unwrap_or(size))
            };
            let data = next_data(offset..size, lacks, |at| Ok(first(&bytes, at, |byte| byte == 'd')));
            prop_assert_eq!(data.unwrap(), first(&bytes, offset, |byte| byte != '0'));
            // The local file ends with a hole, as each file does.
            let here = |at: u64| Ok((at < size).then(|| first(&bytes, at, |byte| byte != 'd').unwrap_or(size)));
            let hole = next_hole(offset..size, lacks, here);
            let expected = (offset < size).then(|| first(&bytes, offset, |byte| byte == '0').unwrap_or(size));
            prop_assert_eq!(hole.unwrap(), expected);
        }
    }
}
