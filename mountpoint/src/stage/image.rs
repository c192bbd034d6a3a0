//! The state of one staged file: its size, the bytes that the local file has, and whether the bucket has all of them. Pure.
//!
//! A byte is present (written here, or fetched), or equals the base object's byte at the same offset, or is zero. Each change begins a
//! generation, and a send is about one generation as a whole.

use std::ops::Range;

use super::runs::Runs;

/// The size and bytes of a staged file.
#[derive(Clone, Debug)]
pub(super) struct Image {
    size: u64,
    /// Bytes of the base object that show where no byte is present.
    base: u64,
    present: Runs,
    /// Bytes from the file's start that may equal those of the object that the next upload replaces, where nothing is `changed`.
    same: u64,
    changed: Runs,
    /// Number of the last change.
    generation: u64,
    fate: Fate,
}

/// The relation of the file's content to the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The bucket has the file as of this change; `None`: nothing of the file.
    Stored(Option<u64>),
    /// The file has no name any more, and ends with its last handle.
    Unlinked,
    /// The bytes lie in `kept/`, and the file refuses changes.
    Kept,
}

impl Image {
    /// A file that the bucket does not have.
    pub(super) fn new() -> Self {
        let (present, changed, fate) = (Runs::default(), Runs::default(), Fate::Stored(None));
        Self { size: 0, base: 0, present, same: 0, changed, generation: 1, fate }
    }

    /// A file whose bytes are all an object's.
    pub(super) fn of_object(size: u64) -> Self {
        let (present, changed, fate) = (Runs::default(), Runs::default(), Fate::Stored(Some(0)));
        Self { size, base: size, present, same: size, changed, generation: 0, fate }
    }

    /// A file with changes from an earlier mount. `written`: the ranges that differ from the object, if the object's first `base` bytes
    /// show elsewhere.
    pub(super) fn pending(size: u64, base: u64, written: Option<Runs>) -> Self {
        let base = if written.is_some() { base.min(size) } else { 0 };
        let mut present = written.unwrap_or_default();
        present.truncate(size);
        if base == 0 {
            present = Runs::default();
            present.insert(0..size);
        }
        let (same, changed) = (base, present.clone());
        Self { size, base, present, same, changed, generation: 1, fate: Fate::Stored(None) }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) fn fate(&self) -> Fate {
        self.fate
    }

    pub(super) fn present(&self) -> &Runs {
        &self.present
    }

    /// Bytes of disk that the present runs take.
    pub(super) fn held(&self) -> u64 {
        self.present.bytes()
    }

    /// Whether the bucket lacks a change of the file.
    pub(super) fn is_dirty(&self) -> bool {
        matches!(self.fate, Fate::Stored(stored) if stored != Some(self.generation))
    }

    /// Whether the bytes lie in `kept/`, so that the file refuses changes.
    pub(super) fn is_kept(&self) -> bool {
        self.fate == Fate::Kept
    }

    /// Whether a part of the base object still shows.
    pub(super) fn needs_base(&self) -> bool {
        !self.present.has(0..self.base)
    }

    /// Bytes of the base object that show where no byte is present, counted from its start.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// The parts of a range that only the base object has.
    pub(super) fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let end = range.end.min(self.base);
        if range.start >= end { Vec::new() } else { self.present.missing(range.start..end) }
    }

    /// The first bytes from `at` on that only the base object has.
    pub(super) fn next_missing(&self, at: u64) -> Option<Range<u64>> {
        let gap = self.present.gap(at);
        let run = gap.start..gap.end.min(self.base);
        (!run.is_empty()).then_some(run)
    }

    /// The parts of a range, within the file, that may have other bytes than zeros: those written, and those of the base object.
    pub(super) fn not_zero(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let end = range.end.min(self.size);
        let mut zeros = Runs::default();
        for run in self.present.missing(range.start.max(self.base)..end.max(self.base)) {
            zeros.insert(run);
        }
        if range.start < end { zeros.missing(range.start..end) } else { Vec::new() }
    }

    /// The ranges, in order, that the file has in common with the object that the next upload replaces.
    pub(super) fn unchanged(&self) -> Vec<Range<u64>> {
        self.changed.missing(0..self.same.min(self.size))
    }

    /// Notes that the next upload replaces another object, with no known byte in common.
    pub(super) fn shares_nothing(&mut self) {
        self.same = 0;
    }

    /// Notes that the next upload replaces an earlier state of this file with this many bytes.
    pub(super) fn shares_at_most(&mut self, size: u64) {
        (self.base, self.same) = (self.base.min(size), self.same.min(size));
    }

    /// Number of bytes that only the base object has.
    pub(super) fn lacks(&self) -> u64 {
        self.missing(0..u64::MAX).iter().map(|run| run.end - run.start).sum()
    }

    /// Bytes of the range for which the local file has no room yet.
    pub(super) fn added_by(&self, range: Range<u64>) -> u64 {
        self.present.missing(range).iter().map(|run| run.end - run.start).sum()
    }

    /// Notes a write of a range.
    pub(super) fn wrote(&mut self, range: Range<u64>) {
        self.size = self.size.max(range.end);
        self.changed.insert(range.clone());
        self.present.insert(range);
        self.generation += 1;
    }

    /// Notes that the base object's bytes of a range are in the local file.
    pub(super) fn filled(&mut self, range: Range<u64>) {
        self.present.insert(range);
    }

    /// Notes that any byte may be new, and that the local file has all of them.
    pub(super) fn rewritten(&mut self, size: u64) {
        (self.size, self.base, self.same) = (size, 0, 0);
        (self.present, self.changed) = Default::default();
        self.present.insert(0..size);
        self.changed.insert(0..size);
        self.generation += 1;
    }

    /// Sets the size. Bytes behind it are gone, also if the file becomes longer again.
    pub(super) fn resized(&mut self, size: u64) {
        if size < self.size {
            self.present.truncate(size);
            self.changed.truncate(size);
            (self.base, self.same) = (self.base.min(size), self.same.min(size));
        }
        self.size = size;
        self.generation += 1;
    }

    /// Notes that the bucket has the file as of `generation`. Bytes missing in the local file are in the object, at the same place.
    pub(super) fn stored(&mut self, generation: u64, size: u64) {
        if generation == self.generation {
            (self.same, self.changed) = (size, Runs::default());
        }
        // Otherwise the later changes are a part of the changes already noted.
        self.same = self.same.min(size);
        if !self.needs_base() {
            self.base = 0;
        }
        if let Fate::Stored(stored) = &mut self.fate {
            *stored = Some(generation);
        }
    }

    /// Whether the bucket has the file as of this change.
    pub(super) fn has_stored(&self, generation: u64) -> bool {
        matches!(self.fate, Fate::Stored(Some(stored)) if stored >= generation)
    }

    /// Notes that the file has no name any more.
    pub(super) fn unlinked(&mut self) {
        if self.fate != Fate::Kept {
            self.fate = Fate::Unlinked;
        }
    }

    /// Notes that the bytes moved to `kept/`, where nothing changes them.
    pub(super) fn kept(&mut self) {
        self.fate = Fate::Kept;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEN: usize = 64;

    /// The source of each byte: a write, the base, or neither.
    fn sources(image: &Image) -> Vec<char> {
        let missing = image.missing(0..image.size());
        let source = |at: u64| match () {
            () if missing.iter().any(|run| run.contains(&at)) => 'b',
            () if image.present.missing(at..at + 1).is_empty() => 'w',
            () => '0',
        };
        (0..image.size()).map(source).collect()
    }

    proptest! {
        #[test]
        fn every_byte_is_written_or_of_the_base_or_zero(
            base in 0u64..40,
            steps in prop::collection::vec((0u8..4, 0u64..40, 1u64..20), 0..40),
        ) {
            let mut image = Image::of_object(base);
            let mut model = vec!['b'; base as usize];
            prop_assert!(!image.is_dirty());
            // The present object and file. Each written byte has a new value.
            let (mut object, mut content) = (vec![1; base as usize], vec![1; base as usize]);
            for (step, at, len) in steps {
                let before = image.generation();
                if step == 0 {
                    image.resized(at);
                    model.resize(at as usize, '0');
                    content.resize(at as usize, 0);
                } else if step == 3 {
                    image.stored(before, image.size());
                    object.clone_from(&content);
                    model = sources(&image);
                    continue;
                } else {
                    image.wrote(at..at + len);
                    let end = (at + len) as usize;
                    model.resize(model.len().max(end), '0');
                    model[at as usize..end].fill('w');
                    content.resize(content.len().max(end), 0);
                    content[at as usize..end].fill(before + 2);
                }
                for at in image.unchanged().into_iter().flatten().map(|at| at as usize) {
                    prop_assert_eq!(object[at], content[at]);
                }
                prop_assert!(image.is_dirty() && image.generation() > before);
                prop_assert_eq!(image.next_missing(at), image.missing(at..u64::MAX).into_iter().next());
                let not_zero: Vec<_> = image.not_zero(at..at + len).into_iter().flatten().collect();
                let model_says = |at: &u64| model[*at as usize] != '0';
                let expected: Vec<_> = (at..(at + len).min(image.size())).filter(model_says).collect();
                prop_assert_eq!(not_zero, expected);
                prop_assert_eq!(sources(&image), model.clone());
                prop_assert!(image.size() <= LEN as u64);
            }
            // A fetch for a send changes no read, and a file that was sent no longer needs the base.
            for run in image.missing(0..image.size()) {
                image.filled(run);
            }
            prop_assert!(!image.needs_base());
            let sent = image.generation();
            let size = image.size();
            image.stored(sent, size);
            prop_assert!(!image.is_dirty());
            prop_assert_eq!(image.unchanged().iter().map(|run| run.end - run.start).sum::<u64>(), size);
            image.wrote(0..1);
            prop_assert!(image.is_dirty(), "a write after a send begins a generation");
        }
    }

    #[test]
    fn a_pending_file_has_the_bytes_that_were_written_and_those_of_its_object() {
        let mut written = Runs::default();
        written.insert(2..4);
        written.insert(8..20);
        let image = Image::pending(10, 6, Some(written.clone()));
        assert_eq!(sources(&image).iter().collect::<String>(), "bbwwbb00ww");
        assert!(image.is_dirty() && image.needs_base());
        let image = Image::pending(4, 100, Some(written));
        assert_eq!(sources(&image).iter().collect::<String>(), "bbww", "the file was cut since");
        let image = Image::pending(3, 100, None);
        assert_eq!(sources(&image).iter().collect::<String>(), "www");
        assert!(!image.needs_base());
    }

    #[test]
    fn a_file_that_was_changed_unseen_shares_nothing_and_has_all_its_bytes() {
        let mut image = Image::of_object(10);
        image.filled(0..10);
        image.rewritten(4);
        assert_eq!(sources(&image).iter().collect::<String>(), "wwww");
        assert!(image.is_dirty() && image.unchanged().is_empty() && image.held() == 4);
        let sent = image.generation();
        image.stored(sent, 4);
        assert!(!image.is_dirty());
        image.rewritten(4);
        assert!(image.is_dirty(), "an equal size proves nothing");
    }

    #[test]
    fn what_was_cut_off_does_not_come_back() {
        let mut image = Image::of_object(10);
        image.resized(4);
        image.resized(8);
        assert_eq!(sources(&image).iter().collect::<String>(), "bbbb0000");
    }

    #[test]
    fn an_adopted_state_shows_nothing_of_the_object_behind_its_end() {
        let mut image = Image::of_object(10);
        image.wrote(0..2);
        image.shares_at_most(4);
        assert_eq!(sources(&image).iter().collect::<String>(), "wwbb000000");
        assert_eq!(image.lacks(), 2);
    }

    #[test]
    fn a_change_during_a_send_stays_dirty() {
        let mut image = Image::new();
        assert!(image.is_dirty(), "an empty file is not in the bucket either");
        image.wrote(0..4);
        let sent = image.generation();
        image.wrote(4..8);
        image.stored(sent, 4);
        assert!(image.is_dirty());
    }

    #[test]
    fn a_file_that_was_sent_in_part_shows_the_new_object_where_it_has_nothing() {
        let mut image = Image::of_object(10);
        image.wrote(2..4);
        let sent = image.generation();
        image.resized(8);
        image.stored(sent, 10);
        assert_eq!(sources(&image).iter().collect::<String>(), "bbwwbbbb");
        assert_eq!(image.unchanged(), [0..2, 4..8]);
        assert!(image.is_dirty() && image.lacks() == 6);
    }

    #[test]
    fn what_has_no_name_or_is_kept_is_not_sent() {
        let mut image = Image::new();
        image.unlinked();
        assert!(!image.is_dirty());
        image.wrote(0..4);
        assert!(!image.is_dirty());
        image.kept();
        image.unlinked();
        assert!(image.is_kept() && !image.is_dirty());
    }
}
