//! The state of each file by the log: its records, folded in their order. Pure.

use std::collections::HashMap;

use super::log::{Digest, Dirty, Record};
use super::runs::Runs;

/// Ranges in one record. Doubling it halves the records of a file that was changed in many places, and doubles the longest record.
const RUNS_MAX: usize = 256;

/// The files of a log by their numbers.
#[derive(Debug, Default)]
pub(super) struct Files {
    files: HashMap<u64, Option<Live>>,
    /// Names that were given.
    named: u64,
}

/// A file that is to be stored, or has no name any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Live {
    pub(super) dirty: Dirty,
    /// Number of its name, in the order in which names were given: of two files with one name, the later one has it.
    pub(super) named: u64,
    /// The ranges that were written here, if others are only in the object.
    pub(super) runs: Runs,
    /// All bytes were in the file once, if the machine has not stopped since.
    pub(super) is_sealed: bool,
    /// The image that is on its way to the bucket, or may be there.
    pub(super) sending: Option<Digest>,
    /// All that was written before some moment since the last open is on the disk.
    pub(super) is_synced: bool,
}

impl Files {
    /// These files alone.
    pub(super) fn of(files: impl IntoIterator<Item = Live>) -> Self {
        let files: HashMap<_, _> = files.into_iter().map(|live| (live.dirty.file, Some(live))).collect();
        let named = files.values().flatten().map(|live| live.named).max().unwrap_or(0);
        Self { files, named }
    }

    /// The files of which these records speak.
    pub(super) fn of_records(records: impl IntoIterator<Item = Record>) -> Self {
        let mut files = Self::default();
        records.into_iter().for_each(|record| files.add(&record));
        files
    }

    /// Takes a record in.
    pub(super) fn add(&mut self, record: &Record) {
        match record {
            Record::Mount(_) => {}
            Record::Dirty(dirty) => {
                let sending = self.live(dirty.file).and_then(|live| live.sending.take());
                self.named += 1;
                let live = Live { dirty: dirty.clone(), named: self.named, sending, ..Live::default() };
                self.files.insert(dirty.file, Some(live));
            }
            Record::Gone { file } => drop(self.files.insert(*file, None)),
            other => {
                let named = self.named + u64::from(matches!(other, Record::Moved { .. }));
                self.named = named;
                if let Some(live) = other.file().and_then(|file| self.live(file)) {
                    live.add(other, named);
                }
            }
        }
    }

    fn live(&mut self, file: u64) -> Option<&mut Live> {
        self.files.get_mut(&file)?.as_mut()
    }

    /// The file is not in the stage any more. What the log said of it, if anything; `None` within: that it is gone.
    pub(super) fn remove(&mut self, file: u64) -> Option<Option<Live>> {
        self.files.remove(&file)
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// Records that say the same.
    pub(super) fn records(&self) -> impl Iterator<Item = Record> {
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort_unstable_by_key(|(_, live)| live.as_ref().map(|live| live.named));
        files.into_iter().flat_map(|(file, live)| match live {
            Some(live) => live.records(),
            None => vec![Record::Gone { file: *file }],
        })
    }
}

impl Live {
    fn add(&mut self, record: &Record, named: u64) {
        let dirty = &mut self.dirty;
        match record {
            Record::Wrote { runs, .. } => runs.iter().for_each(|&(start, end)| {
                if start < end {
                    self.runs.insert(start..end);
                }
            }),
            Record::Cut { base, .. } => {
                dirty.base = dirty.base.min(*base);
                self.runs.truncate(*base);
            }
            Record::Sealed { .. } => self.is_sealed = true,
            Record::Sending { image, .. } => self.sending = Some(image.clone()),
            Record::Refused { .. } => self.sending = None,
            // Bytes that are not here are there, at the same place.
            Record::Stored { etag, size, .. } => {
                (dirty.replaces, dirty.object, self.sending) = (Some(etag.clone()), *size, None);
                dirty.base = dirty.base.min(*size);
            }
            Record::Moved { key, replaces, .. } => {
                (dirty.key, dirty.replaces, self.named) = (key.clone(), replaces.clone(), named);
            }
            Record::Synced { .. } => {
                self.is_synced = true;
                if self.is_sealed {
                    (dirty.is_partial, self.runs) = (false, Runs::default());
                }
            }
            Record::Mount(_) | Record::Dirty(_) | Record::Gone { .. } => {}
        }
    }

    fn records(&self) -> Vec<Record> {
        let file = self.dirty.file;
        let mut records = vec![Record::Dirty(self.dirty.clone())];
        if self.dirty.is_partial {
            records.extend(wrote(file, &self.runs));
        }
        // In this order: a seal counts after a loss of power only if a sync followed it.
        records.extend(self.is_synced.then_some(Record::Synced { file }));
        records.extend(self.is_sealed.then_some(Record::Sealed { file }));
        records.extend(self.sending.clone().map(|image| Record::Sending { file, image }));
        records
    }
}

/// The records of these ranges.
pub(super) fn wrote(file: u64, runs: &Runs) -> Vec<Record> {
    let runs: Vec<_> = runs.iter().map(|run| (run.start, run.end)).collect();
    runs.chunks(RUNS_MAX).map(|runs| Record::Wrote { file, runs: runs.to_vec() }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record() -> impl Strategy<Value = Record> {
        let file = || 0u64..3;
        let text = || prop::option::of("[ab]");
        prop_oneof![
            (file(), text(), text(), any::<bool>(), 0u64..50).prop_map(
                |(file, key, replaces, is_partial, base)| {
                    Record::Dirty(Dirty { file, key, replaces, is_partial, base, object: base })
                }
            ),
            (file(), prop::collection::vec((0u64..50, 0u64..50), 0..4))
                .prop_map(|(file, runs)| Record::Wrote { file, runs }),
            (file(), 0u64..50).prop_map(|(file, base)| Record::Cut { file, base }),
            file().prop_map(|file| Record::Sealed { file }),
            file().prop_map(|file| Record::Sending { file, image: Digest { size: 1, sha256: "aa".into() } }),
            file().prop_map(|file| Record::Refused { file }),
            (file(), "[ab]", 0u64..50).prop_map(|(file, etag, size)| Record::Stored { file, etag, size }),
            (file(), text(), text()).prop_map(|(file, key, replaces)| Record::Moved { file, key, replaces }),
            file().prop_map(|file| Record::Synced { file }),
            file().prop_map(|file| Record::Gone { file }),
        ]
    }

    fn folded<'a>(records: impl IntoIterator<Item = &'a Record>) -> Files {
        let mut files = Files::default();
        records.into_iter().for_each(|record| files.add(record));
        files
    }

    /// Equal but for ranges that no reader looks at, and for the numbers of names, of which only the order counts.
    fn said(files: &Files) -> HashMap<u64, Option<Live>> {
        let mut said = files.files.clone();
        let mut named: Vec<_> = said.values().flatten().map(|live| live.named).collect();
        named.sort_unstable();
        for live in said.values_mut().flatten() {
            live.named = named.binary_search(&live.named).unwrap() as u64;
            if !live.dirty.is_partial {
                live.runs = Runs::default();
            }
        }
        said
    }

    proptest! {
        #[test]
        fn a_log_that_is_written_anew_says_the_same(
            records in prop::collection::vec(record(), 0..40),
            more in prop::collection::vec(record(), 0..10),
        ) {
            let files = folded(&records);
            let anew: Vec<_> = files.records().collect();
            prop_assert_eq!(said(&folded(&anew)), said(&files));
            prop_assert_eq!(
                said(&folded(anew.iter().chain(&more))),
                said(&folded(records.iter().chain(&more))),
                "and what follows means the same"
            );
        }
    }

    #[test]
    fn an_open_after_a_sync_needs_another_sync_and_a_rename_needs_none() {
        let dirty = |key: &str| Dirty { file: 1, key: Some(key.into()), ..Dirty::default() };
        let mut files = folded(&[Record::Dirty(dirty("a")), Record::Synced { file: 1 }]);
        let is_synced = |files: &Files| files.files[&1].as_ref().is_some_and(|live| live.is_synced);
        files.add(&Record::Moved { file: 1, key: Some("b".into()), replaces: None });
        assert!(is_synced(&files));
        files.add(&Record::Dirty(dirty("b")));
        assert!(!is_synced(&files));
        files.add(&Record::Gone { file: 1 });
        files.add(&Record::Synced { file: 1 });
        assert!(!is_synced(&files), "what was stored before a sync is not pending again");
    }

    #[test]
    fn a_seal_outlives_a_loss_of_power_only_with_a_sync_behind_it() {
        let dirty = Dirty { file: 1, is_partial: true, base: 100, object: 100, ..Dirty::default() };
        let (synced, sealed) = (Record::Synced { file: 1 }, Record::Sealed { file: 1 });
        let mut files = folded(&[Record::Dirty(dirty), synced.clone(), sealed]);
        assert!(files.files[&1].as_ref().unwrap().dirty.is_partial);
        files.add(&Record::Stored { file: 1, etag: "e".into(), size: 60 });
        let live = files.files[&1].clone().unwrap();
        assert!(live.dirty.is_partial && live.is_sealed && live.is_synced);
        assert_eq!((live.dirty.replaces.as_deref(), live.dirty.base), (Some("e"), 60));
        files.add(&synced);
        assert!(!files.files[&1].as_ref().unwrap().dirty.is_partial);
    }

    #[test]
    fn a_range_that_was_cut_off_is_not_written_any_more() {
        let dirty = Dirty { file: 1, is_partial: true, base: 100, object: 100, ..Dirty::default() };
        let files = folded(&[
            Record::Dirty(dirty),
            Record::Wrote { file: 1, runs: vec![(0, 10), (40, 60)] },
            Record::Cut { file: 1, base: 50 },
        ]);
        let live = files.files[&1].clone().unwrap();
        assert_eq!((live.dirty.base, live.runs.iter().collect::<Vec<_>>()), (50, vec![0..10, 40..50]));
    }
}
