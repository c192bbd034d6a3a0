//! The state of each file: the log's records, folded in order. Pure.

use std::collections::{BTreeMap, HashMap};

use super::log::{Digest, Dirty, Record};
use super::runs::Runs;

/// Ranges in one record. Doubling it halves the records of a file that was changed in many places, and doubles the longest record.
const RUNS_MAX: usize = 256;

/// Most unanswered images kept for a file: the store got their requests and gave no answer. Beyond it the oldest is forgotten; if the
/// bucket has that image, it counts as another client's.
const SENT_MAX: usize = 8;

/// The files of a log, by number.
#[derive(Debug, Default)]
pub(super) struct Files {
    files: HashMap<u64, Option<Live>>,
    /// Keys of the markers that the bucket lacks, by the numbers of the files that stand for the directories.
    directories: BTreeMap<u64, String>,
    /// Number of names given so far.
    named: u64,
}

/// A file that waits for its upload, or has no name any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Live {
    pub(super) dirty: Dirty,
    /// Sequence number of the file's name: of two files with one name, the later name counts.
    pub(super) named: u64,
    /// Whether the file had all its bytes once, unless the machine stopped since.
    is_sealed: bool,
    /// Images that the bucket may have, the oldest first.
    pub(super) sending: Vec<Digest>,
    /// Whether a sync since the last open made earlier writes durable.
    pub(super) is_synced: bool,
    /// Changes before that sync.
    synced: Changes,
    /// Changes since then and before the sync in progress began.
    marked: Changes,
    is_marked: bool,
    /// Changes since the sync in progress began.
    fresh: Changes,
    /// Whether the disk failed a sync of the file.
    pub(super) has_failed: bool,
}

/// Changes of a file that shows an object's bytes elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Changes {
    /// The object's bytes show at most up to this offset.
    cut: Option<u64>,
    /// The written ranges, without those cut off later.
    runs: Runs,
}

impl Changes {
    fn cut(&mut self, base: u64) {
        self.cut = Some(self.cut.map_or(base, |cut| cut.min(base)));
        self.runs.truncate(base);
    }

    /// Adds later changes on top of these.
    fn add(&mut self, later: Self) {
        if let Some(base) = later.cut {
            self.cut(base);
        }
        later.runs.iter().for_each(|run| self.runs.insert(run));
    }

    fn records(&self, file: u64) -> Vec<Record> {
        let cut = self.cut.map(|base| Record::Cut { file, base });
        cut.into_iter().chain(wrote(file, &self.runs)).collect()
    }
}

impl Files {
    /// A state with these files and directories alone.
    pub(super) fn of(files: impl IntoIterator<Item = Live>, directories: BTreeMap<u64, String>) -> Self {
        let files: HashMap<_, _> = files.into_iter().map(|live| (live.dirty.file, Some(live))).collect();
        let named = files.values().flatten().map(|live| live.named).max().unwrap_or(0);
        Self { files, directories, named }
    }

    /// The files that these records describe.
    pub(super) fn of_records(records: impl IntoIterator<Item = Record>) -> Self {
        let mut files = Self::default();
        records.into_iter().for_each(|record| files.add(&record));
        files
    }

    /// Applies a record.
    pub(super) fn add(&mut self, record: &Record) {
        match record {
            Record::Mount(_) => {}
            Record::Dirty(dirty) => {
                let sending = self.live(dirty.file).map(|live| std::mem::take(&mut live.sending));
                let sending = sending.unwrap_or_default();
                self.named += 1;
                let live = Live { dirty: dirty.clone(), named: self.named, sending, ..Live::default() };
                self.files.insert(dirty.file, Some(live));
            }
            Record::Gone { file } => {
                self.directories.remove(file);
                self.files.insert(*file, None);
            }
            Record::Directory { file, key } => drop(self.directories.insert(*file, key.clone())),
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

    /// Whether the log calls a file gone that the stage still has.
    pub(super) fn is_gone(&self, file: u64) -> bool {
        matches!(self.files.get(&file), Some(None))
    }

    /// Removes a file from the state, because the stage no longer has it. Returns its last state, if there was one; `None` within: the
    /// log had called the file gone.
    pub(super) fn remove(&mut self, file: u64) -> Option<Option<Live>> {
        self.files.remove(&file)
    }

    pub(super) fn len(&self) -> usize {
        self.files.len() + self.directories.len()
    }

    /// The directories that owe a marker: their keys, by number.
    pub(super) fn directories(&self) -> &BTreeMap<u64, String> {
        &self.directories
    }

    /// Records that give the same state.
    pub(super) fn records(&self) -> impl Iterator<Item = Record> {
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort_unstable_by_key(|(_, live)| live.as_ref().map(|live| live.named));
        let files = files.into_iter().flat_map(|(file, live)| match live {
            Some(live) => live.records(),
            None => vec![Record::Gone { file: *file }],
        });
        let directory = |(file, key): (&u64, &String)| Record::Directory { file: *file, key: key.clone() };
        files.chain(self.directories.iter().map(directory))
    }
}

impl Live {
    fn add(&mut self, record: &Record, named: u64) {
        let dirty = &mut self.dirty;
        match record {
            Record::Wrote { runs, .. } if dirty.is_partial => {
                runs.iter().for_each(|&(start, end)| self.fresh.runs.insert(start..end.max(start)));
            }
            Record::Cut { base, .. } if dirty.is_partial => self.fresh.cut(*base),
            Record::Wrote { .. } | Record::Cut { .. } => {}
            Record::Sealed { .. } => self.is_sealed = true,
            Record::Sending { image, .. } => remember(&mut self.sending, image.clone()),
            Record::Refused { .. } => self.sending.clear(),
            // Bytes missing in the local file are in the object, at the same place.
            Record::Stored { etag, size, is_synced, .. } => {
                (dirty.replaces, dirty.object) = (Some(etag.clone()), *size);
                self.sending.clear();
                dirty.base = dirty.base.min(*size);
                if !is_synced {
                    self.forget_sync();
                }
            }
            Record::Moved { key, replaces, .. } => {
                (dirty.key, dirty.replaces, self.named) = (key.clone(), replaces.clone(), named);
            }
            Record::Syncing { .. } if dirty.is_partial => {
                self.marked.add(std::mem::take(&mut self.fresh));
                self.is_marked = true;
            }
            Record::Syncing { .. } => {}
            Record::Synced { is_whole, .. } => self.sync(*is_whole),
            Record::Failed { .. } => self.has_failed = true,
            Record::Mount(_) | Record::Dirty(_) | Record::Gone { .. } | Record::Directory { .. } => {}
        }
    }

    /// Notes that the bytes as of the last mark are durable.
    fn sync(&mut self, is_whole: bool) {
        if is_whole {
            self.dirty.is_partial = false;
            (self.synced, self.marked, self.fresh) = Default::default();
        }
        if self.is_marked && self.dirty.is_partial {
            self.synced.add(std::mem::take(&mut self.marked));
        }
        self.is_synced |= self.is_marked || !self.dirty.is_partial;
        self.is_marked = false;
    }

    /// Notes that the last sync is older than the bucket's object.
    fn forget_sync(&mut self) {
        let later = if self.is_marked { &mut self.marked } else { &mut self.fresh };
        let later_ones = std::mem::replace(later, std::mem::take(&mut self.synced));
        later.add(later_ones);
        self.is_synced = false;
    }

    /// The state of the file after a stop of the machine: changes that no sync covers do not count.
    #[must_use]
    pub(super) fn after_power_loss(self) -> Self {
        let (marked, fresh) = (Changes::default(), Changes::default());
        Self { is_sealed: false, marked, is_marked: false, fresh, ..self }
    }

    /// Bytes of the object that show, and the ranges written over them; `None`: the object does not show.
    pub(super) fn over_object(&self) -> Option<(u64, Runs)> {
        if !self.is_partial() {
            return None;
        }
        let mut all = self.synced.clone();
        all.add(self.marked.clone());
        all.add(self.fresh.clone());
        Some((all.cut.map_or(self.dirty.base, |cut| cut.min(self.dirty.base)), all.runs))
    }

    /// Whether some bytes are only in the object.
    pub(super) fn is_partial(&self) -> bool {
        self.dirty.is_partial && !self.is_sealed
    }

    fn records(&self) -> Vec<Record> {
        let file = self.dirty.file;
        let mut records = vec![Record::Dirty(self.dirty.clone())];
        // The order matters: after a loss of power, records behind the sync do not count.
        let marking = self.dirty.is_partial.then_some(Record::Syncing { file });
        if self.is_synced {
            records.extend(self.synced.records(file));
            records.extend(marking.clone());
            records.push(Record::Synced { file, is_whole: false });
        }
        records.extend(self.marked.records(file));
        records.extend(marking.filter(|_| self.is_marked));
        records.extend(self.fresh.records(file));
        records.extend(self.is_sealed.then_some(Record::Sealed { file }));
        records.extend(self.has_failed.then_some(Record::Failed { file }));
        records.extend(self.sending.iter().map(|image| Record::Sending { file, image: image.clone() }));
        records
    }
}

/// Adds one more image that the bucket may have.
pub(super) fn remember(images: &mut Vec<Digest>, image: Digest) {
    images.retain(|before| *before != image);
    if images.len() >= SENT_MAX {
        images.remove(0);
    }
    images.push(image);
}

/// The records for these written ranges.
pub(super) fn wrote(file: u64, runs: &Runs) -> Vec<Record> {
    let runs: Vec<_> = runs.iter().map(|run| (run.start, run.end)).collect();
    runs.chunks(RUNS_MAX).map(|runs| Record::Wrote { file, runs: runs.to_vec() }).collect()
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of ranges that happen to have one element")]
mod tests {
    use std::ops::Range;

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
            (file(), 0u64..12).prop_map(|(file, size)| Record::Sending { file, image: image(size) }),
            file().prop_map(|file| Record::Refused { file }),
            (file(), "[ab]", 0u64..50, any::<bool>())
                .prop_map(|(file, etag, size, is_synced)| Record::Stored { file, etag, size, is_synced }),
            (file(), text(), text()).prop_map(|(file, key, replaces)| Record::Moved { file, key, replaces }),
            file().prop_map(|file| Record::Syncing { file }),
            (file(), any::<bool>()).prop_map(|(file, is_whole)| Record::Synced { file, is_whole }),
            file().prop_map(|file| Record::Failed { file }),
            file().prop_map(|file| Record::Gone { file }),
            (file(), "[ab]/").prop_map(|(file, key)| Record::Directory { file, key }),
        ]
    }

    fn image(size: u64) -> Digest {
        Digest { size, sha256: "aa".into(), etag: None }
    }

    fn folded<'a>(records: impl IntoIterator<Item = &'a Record>) -> Files {
        let mut files = Files::default();
        records.into_iter().for_each(|record| files.add(record));
        files
    }

    /// The states without the numbers of names, of which only the order counts.
    fn said(files: &Files) -> (HashMap<u64, Option<Live>>, BTreeMap<u64, String>) {
        let mut said = files.files.clone();
        let mut named: Vec<_> = said.values().flatten().map(|live| live.named).collect();
        named.sort_unstable();
        for live in said.values_mut().flatten() {
            live.named = named.binary_search(&live.named).unwrap() as u64;
        }
        (said, files.directories.clone())
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

    fn live(records: &[Record]) -> Live {
        folded(records).files[&1].clone().unwrap()
    }

    fn partial() -> Record {
        Record::Dirty(Dirty { file: 1, is_partial: true, base: 100, object: 100, ..Dirty::default() })
    }

    fn wrote(start: u64, end: u64) -> Record {
        Record::Wrote { file: 1, runs: vec![(start, end)] }
    }

    const SYNCING: Record = Record::Syncing { file: 1 };
    const SYNCED: Record = Record::Synced { file: 1, is_whole: false };

    /// The object's bytes that show, and the written ranges.
    fn shown(live: &Live) -> Option<(u64, Vec<Range<u64>>)> {
        live.over_object().map(|(base, runs)| (base, runs.iter().collect()))
    }

    #[test]
    fn an_open_after_a_sync_needs_another_sync_and_a_rename_needs_none() {
        let dirty = |key: &str| Dirty { file: 1, key: Some(key.into()), ..Dirty::default() };
        let mut files = folded(&[Record::Dirty(dirty("a")), SYNCED]);
        let is_synced = |files: &Files| files.files[&1].as_ref().is_some_and(|live| live.is_synced);
        files.add(&Record::Moved { file: 1, key: Some("b".into()), replaces: None });
        assert!(is_synced(&files));
        files.add(&Record::Dirty(dirty("b")));
        assert!(!is_synced(&files));
        files.add(&Record::Gone { file: 1 });
        files.add(&SYNCED);
        assert!(!is_synced(&files), "what was stored before a sync is not pending again");
    }

    #[test]
    fn a_directory_owes_its_marker_until_it_is_gone() {
        let directory = |file, key: &str| Record::Directory { file, key: key.into() };
        let files = folded(&[directory(1, "a/"), directory(2, "b/"), Record::Gone { file: 1 }]);
        assert_eq!(files.directories(), &BTreeMap::from([(2, "b/".to_owned())]));
        assert!(files.is_gone(1) && files.len() == 2, "the file that stood for it is still to be deleted");
    }

    #[test]
    fn after_a_power_loss_ranges_count_that_were_written_before_a_sync_began() {
        let records = [partial(), wrote(0, 1), SYNCING, wrote(50, 51), SYNCED, wrote(60, 61)];
        let all = live(&records);
        assert_eq!(shown(&all), Some((100, vec![0..1, 50..51, 60..61])));
        let after = all.after_power_loss();
        assert_eq!((shown(&after), after.is_synced), (Some((100, vec![0..1])), true));
        // The next sync covers the rest; a failed sync covers nothing.
        let more = |more: &[Record]| live(&[&records, more].concat()).after_power_loss();
        assert_eq!(shown(&more(&[SYNCING])), Some((100, vec![0..1])));
        assert_eq!(shown(&more(&[SYNCING, SYNCED])), Some((100, vec![0..1, 50..51, 60..61])));
        assert!(!live(&[partial(), wrote(0, 1), SYNCED]).is_synced, "no sync without a beginning");
    }

    #[test]
    fn after_a_power_loss_a_cut_counts_that_was_made_before_a_sync_began() {
        let cut = |base| Record::Cut { file: 1, base };
        let records = [partial(), wrote(10, 70), cut(60), SYNCING, cut(20), wrote(30, 40), SYNCED];
        assert_eq!(shown(&live(&records)), Some((20, vec![10..20, 30..40])));
        assert_eq!(shown(&live(&records).after_power_loss()), Some((60, vec![10..60])));
    }

    #[test]
    fn a_seal_outlives_a_loss_of_power_only_with_a_sync_of_a_whole_file() {
        let sealed = Record::Sealed { file: 1 };
        // The sync began before the file was complete.
        let records = [partial(), wrote(0, 1), SYNCING, sealed, SYNCED];
        assert_eq!(shown(&live(&records)), None, "the engine was killed");
        assert_eq!(shown(&live(&records).after_power_loss()), Some((100, vec![0..1])));
        let whole = Record::Synced { file: 1, is_whole: true };
        let live = live(&[&records[..], &[SYNCING, whole]].concat()).after_power_loss();
        assert_eq!((shown(&live), live.is_synced), (None, true));
    }

    #[test]
    fn what_the_bucket_has_since_takes_an_older_sync_back() {
        let stored = |is_synced| Record::Stored { file: 1, etag: "e".into(), size: 60, is_synced };
        let records = [partial(), wrote(0, 1), SYNCING, SYNCED, wrote(2, 3)];
        let after = live(&[&records[..], &[stored(true)]].concat());
        assert!(after.is_synced);
        assert_eq!((after.dirty.replaces.as_deref(), after.dirty.object), (Some("e"), 60));
        assert_eq!(shown(&after.after_power_loss()), Some((60, vec![0..1])));
        let after = live(&[&records[..], &[stored(false)]].concat());
        assert!(!after.is_synced, "the disk may have an older state than the bucket");
        assert_eq!(shown(&after), Some((60, vec![0..1, 2..3])));
    }

    #[test]
    fn a_range_that_was_cut_off_is_not_written_any_more() {
        let runs = vec![(0, 10), (40, 60)];
        let live = live(&[partial(), Record::Wrote { file: 1, runs }, Record::Cut { file: 1, base: 50 }]);
        assert_eq!(shown(&live), Some((50, vec![0..10, 40..50])));
    }

    #[test]
    fn some_images_are_remembered_and_the_oldest_is_forgotten() {
        let sending = |size| Record::Sending { file: 1, image: image(size) };
        let records: Vec<_> = [partial()].into_iter().chain((0..10).map(sending)).collect();
        let images: Vec<_> = (2..10).map(image).collect();
        assert_eq!(live(&records).sending, images);
        assert_eq!(live(&[&records[..], &[Record::Refused { file: 1 }]].concat()).sending, []);
    }
}
