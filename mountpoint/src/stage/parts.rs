//! The parts of a file that go out while programs still write it: those that went out, and which of them are as the file is now. Pure.
//!
//! A part counts as current from before its bytes are read, and a change of a byte of it ends that, so that what changes during the read
//! goes out again.

use std::ops::Range;

use super::runs::Runs;

/// The parts that went out, in order.
#[derive(Debug, Default)]
pub(super) struct Parts(Vec<Part>);

#[derive(Debug)]
struct Part {
    start: u64,
    end: u64,
    /// Whether the part is as long as its number wants it. Only the last part of a file may be shorter.
    is_full: bool,
    /// Whether the upload has, or gets, the bytes that the file has now.
    is_current: bool,
}

/// A part to send: its number and its bytes of the file.
pub(super) type Next = (u32, Range<u64>);

impl Parts {
    /// The end of the last part.
    pub(super) fn end(&self) -> u64 {
        self.0.last().map_or(0, |part| part.end)
    }

    /// Number of parts that went out.
    pub(super) fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// Notes a change of some bytes.
    pub(super) fn touched(&mut self, range: &Range<u64>) {
        let first = self.0.partition_point(|part| part.end <= range.start);
        let touched = self.0.iter_mut().skip(first).take_while(|part| part.start < range.end);
        touched.for_each(|part| part.is_current = false);
    }

    /// Takes the next part that no request had, once programs wrote all of it, and a byte behind it. Parts that changed since they went
    /// out wait for the end of the file: a program that goes on changing them would make them go out again and again. `len`: the bytes of
    /// a part by its number, if the store takes such a part.
    pub(super) fn take_new(
        &mut self,
        size: u64,
        written: &Runs,
        len: impl Fn(u32) -> Option<u64>,
    ) -> Option<Next> {
        if self.0.last().is_some_and(|part| !part.is_full) {
            return None;
        }
        let (number, start) = (self.0.len() as u32 + 1, self.end());
        let end = start.checked_add(len(number)?)?;
        if end >= size || !written.has(start..end) {
            return None;
        }
        self.0.push(Part { start, end, is_full: true, is_current: true });
        Some((number, start..end))
    }

    /// Takes the next part that the upload lacks of a file with this size, which is not below [`Parts::end`]. `None`: it has all of them.
    /// An empty part: the store takes no such part.
    pub(super) fn take_lacking(&mut self, size: u64, len: impl Fn(u32) -> Option<u64>) -> Option<Next> {
        // The file may have grown since its last part went out: that part goes again, longer, behind the others.
        let has_grown = self.0.last().is_some_and(|part| !part.is_full && part.end < size);
        let stay = self.0.len() - usize::from(has_grown);
        if let Some((number, part)) =
            (1..).zip(self.0.iter_mut().take(stay)).find(|(_, part)| !part.is_current)
        {
            part.is_current = true;
            return Some((number, part.start..part.end));
        }
        // The next bytes are taken at once: the upload has no part behind `end`.
        self.0.truncate(stay);
        let (number, start) = (self.0.len() as u32 + 1, self.end());
        if start >= size {
            return None;
        }
        let Some(len) = len(number) else { return Some((number, start..start)) };
        let end = start.saturating_add(len).min(size);
        self.0.push(Part { start, end, is_full: end - start == len, is_current: true });
        Some((number, start..end))
    }

    /// Whether the upload has a file of this size as it is now.
    pub(super) fn are_all(&self, size: u64) -> bool {
        self.end() == size && self.0.iter().all(|part| part.is_current)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn len(number: u32) -> Option<u64> {
        (number <= 30).then_some(if number < 4 { 5 } else { 8 })
    }

    /// A file that is written from its beginning on.
    fn till(end: u64) -> Runs {
        let mut runs = Runs::default();
        runs.insert(0..end);
        runs
    }

    fn written(ranges: &[Range<u64>]) -> Runs {
        let mut runs = Runs::default();
        ranges.iter().for_each(|range| runs.insert(range.clone()));
        runs
    }

    proptest! {
        #[test]
        fn the_upload_has_the_file_once_it_lacks_nothing(
            steps in prop::collection::vec((0u8..8, 0u64..90, 1u64..20), 0..60),
        ) {
            let (mut parts, mut runs, mut file) = (Parts::default(), Runs::default(), Vec::<u8>::new());
            // The bytes that the store has under each number.
            let mut store = vec![Vec::new(); 40];
            let mut send = |file: &[u8], (number, range): Next| {
                store[number as usize] = file[range.start as usize..range.end as usize].to_vec();
                store.clone()
            };
            for (byte, (step, at, more)) in (0u8..).zip(steps) {
                match step {
                    0 => {
                        // A larger size, without a write.
                        let size = file.len().max((at + more) as usize);
                        file.resize(size, 0);
                    }
                    1 => {
                        // The end of the file, as of a close that finds a change and tries again.
                        while let Some(next) = parts.take_lacking(file.len() as u64, len) {
                            send(&file, next);
                        }
                        prop_assert!(parts.are_all(file.len() as u64));
                    }
                    2 | 3 => if let Some(next) = parts.take_new(file.len() as u64, &runs, len) {
                        prop_assert!(runs.has(next.1.clone()) && next.1.end < file.len() as u64);
                        send(&file, next);
                    },
                    _ => {
                        let at = if step < 6 { file.len() as u64 } else { at };
                        let (start, end) = (at as usize, (at + more) as usize);
                        let size = file.len().max(end);
                        if size > 200 {
                            continue;
                        }
                        file.resize(size, 0);
                        file[start..end].fill(byte);
                        runs.insert(at..at + more);
                        parts.touched(&(at..at + more));
                    }
                }
            }
            let mut stored = store_of(&mut parts, &file, &mut send);
            stored.truncate(file.len());
            prop_assert_eq!(stored, file);
        }
    }

    /// The bytes of the object when the file is closed.
    fn store_of(
        parts: &mut Parts,
        file: &[u8],
        send: &mut impl FnMut(&[u8], Next) -> Vec<Vec<u8>>,
    ) -> Vec<u8> {
        let mut store = Vec::new();
        while let Some(next) = parts.take_lacking(file.len() as u64, len) {
            store = send(file, next);
        }
        if store.is_empty() {
            store = send(file, (39, 0..0));
        }
        assert!(parts.are_all(file.len() as u64));
        store[1..=parts.0.len()].concat()
    }

    #[test]
    fn a_part_goes_early_once_it_is_written_and_a_byte_behind_it() {
        let mut parts = Parts::default();
        assert_eq!(parts.take_new(5, &till(5), len), None, "the file may end here");
        assert_eq!(parts.take_new(60, &written(&[0..4, 5..60]), len), None, "a hole may be filled later");
        assert_eq!(parts.take_new(6, &till(6), len), Some((1, 0..5)));
        assert_eq!(parts.take_new(6, &till(6), len), None);
        assert_eq!(parts.take_new(11, &till(11), len), Some((2, 5..10)));
        // A changed part waits for the end.
        parts.touched(&(4..6));
        assert_eq!(parts.take_new(11, &till(11), len), None);
        assert!(!parts.are_all(11));
        assert_eq!(parts.take_lacking(11, len), Some((1, 0..5)));
        assert_eq!(parts.take_lacking(11, len), Some((2, 5..10)));
        assert_eq!(parts.take_lacking(11, len), Some((3, 10..11)));
        assert_eq!(parts.take_lacking(11, len), None);
        assert!(parts.are_all(11));
    }

    #[test]
    fn a_last_part_grows_under_its_number() {
        let mut parts = Parts::default();
        while parts.take_lacking(7, len).is_some() {}
        assert!(parts.are_all(7) && !parts.are_all(9));
        assert_eq!(parts.take_new(40, &till(40), len), None, "its last part is short");
        assert_eq!(parts.take_lacking(9, len), Some((2, 5..9)));
        assert_eq!(parts.take_lacking(9, len), None);
        assert!(parts.are_all(9));
        // Until it goes again, a cut below it is one below what the upload has.
        parts.touched(&(0..1));
        assert_eq!((parts.take_lacking(10, len), parts.end()), (Some((1, 0..5)), 9));
        assert_eq!(parts.take_lacking(10, len), Some((2, 5..10)));
    }

    #[test]
    fn a_part_that_no_store_takes_is_empty() {
        let (mut parts, mut last) = (Parts::default(), (0, 0..0));
        while let Some(next) = parts.take_lacking(1_000, len) {
            last = next;
            if last.1.is_empty() {
                break;
            }
        }
        assert_eq!((last.0, last.1.is_empty()), (31, true));
        assert_eq!(parts.take_new(1_000, &till(1_000), len), None);
    }
}
