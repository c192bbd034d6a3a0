//! Files of an earlier mount: decides the fate of each, then carries it out.
//!
//! An earlier mount that promised the bucket at `close` left no file that programs count on: this mount keeps such files. With the other
//! promises, this mount stores all writes from before the process ended. After a loss of power it stores only the writes that the log
//! calls durable, since the rest may mix two moments.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::SystemTime;

use anyhow::bail;

use super::disk::Disk;
use super::kept::{Kept, keep, numbers, private, sync_many};
use super::live::{Files, Live};
use super::log::{self, Record};
use crate::clock::Clock;

/// The files of an earlier mount.
#[derive(Debug)]
pub(super) struct Left {
    /// Files moved to `kept/`.
    pub(super) kept: Vec<Kept>,
    /// Files for this mount to store.
    pub(super) pending: Vec<Pending>,
    /// Directories of which this mount stores the marker: their keys, by number.
    pub(super) directories: BTreeMap<u64, String>,
    /// The number for the next file.
    pub(super) next: u64,
}

/// A file that an earlier mount left for this mount to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) live: Live,
    /// Bytes of the file.
    pub(super) size: u64,
    /// Time of the file's last change.
    pub(super) modified: SystemTime,
    /// Whether somebody may still write the file, by the kernel.
    pub(super) is_out: bool,
}

/// The decision about a file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// The mount stores the file.
    Pending(Box<Live>),
    /// The mount keeps the file.
    Kept { key: Option<String>, why: &'static str, is_partial: bool },
    /// The file's record was lost: the mount keeps the file if it has bytes.
    Unknown,
    /// The file has no use.
    Gone,
}

/// Decides about a file by its records in the log.
fn fate(live: Option<Option<Live>>, commit_is_deferred: bool, is_same_boot: bool, is_doubtful: bool) -> Fate {
    let mut live = match live {
        None => return Fate::Unknown,
        Some(None) => return if is_doubtful { Fate::Unknown } else { Fate::Gone },
        Some(Some(live)) => live,
    };
    if !is_same_boot && commit_is_deferred {
        live = live.after_power_loss();
    }
    let is_partial = live.is_partial();
    if live.dirty.key.is_none() && !is_doubtful {
        return Fate::Gone;
    }
    let why = match () {
        () if is_doubtful => "the log of the stage is damaged",
        () if live.has_failed => "the disk of the stage failed",
        () if !commit_is_deferred => "the mount ended before it was stored",
        () if is_same_boot || live.is_synced => return Fate::Pending(Box::new(live)),
        () => "the machine stopped before all of it was on the disk",
    };
    Fate::Kept { key: live.dirty.key, why, is_partial }
}

/// Resolves a rename over a file that was not stored either. A rename is two records: if the process ended in between, both files have
/// the name, and the one that got it last counts.
fn without_replaced(mut fates: Vec<(u64, Fate)>) -> Vec<(u64, Fate)> {
    let mut last: HashMap<String, u64> = HashMap::new();
    for (_, fate) in &fates {
        if let Fate::Pending(live) = fate {
            let named = last.entry(live.dirty.key.clone().unwrap_or_default()).or_default();
            *named = live.named.max(*named);
        }
    }
    for (_, fate) in &mut fates {
        if let Fate::Pending(live) = fate
            && last.get(live.dirty.key.as_deref().unwrap_or_default()) != Some(&live.named)
        {
            let (key, is_partial) = (live.dirty.key.take(), live.is_partial());
            *fate = Fate::Kept { key, why: "another file took its name", is_partial };
        }
    }
    fates
}

/// Takes the files in `dir` over. If the kernel may still write some of them, the mount's record says so.
///
/// # Errors
/// The files belong to another bucket or prefix, and nothing was changed; those of the disk.
pub(super) fn recover(dir: &Path, mount: &mut log::Mount, clock: &Clock) -> anyhow::Result<Left> {
    let bytes = match fs::read(dir.join("log")) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let log::Read { records, doubtful } = log::read(&bytes);
    let (mut before, mut files) = (log::Mount::default(), Files::default());
    for record in &records {
        match record {
            Record::Mount(mount) => before = mount.clone(),
            record => files.add(record),
        }
    }
    let mut next = 1 + numbers(&dir.join("kept"))?.into_iter().max().unwrap_or(0);
    let mut left = numbers(&dir.join("files"))?;
    left.sort_unstable();
    // No bytes of a directory can be of two moments: what the log says counts on each boot. Behind damage, only an end of it does.
    let mut directories = files.directories().clone();
    directories.retain(|directory, _| !doubtful.contains(directory));
    let last = [left.last(), directories.keys().next_back()].into_iter().flatten().max();
    next = next.max(1 + last.copied().unwrap_or(0));
    let is_same_boot = !before.boot.is_empty() && before.boot == mount.boot;
    let fates: Vec<_> = left
        .into_iter()
        .filter(|file| !directories.contains_key(file))
        .map(|file| {
            let is_doubtful = doubtful.contains(&file);
            (file, fate(files.remove(file), before.commit.is_deferred(), is_same_boot, is_doubtful))
        })
        .collect();
    let fates = without_replaced(fates);
    let files = fates.iter().filter(|(_, fate)| matches!(fate, Fate::Pending(_))).count();
    let pending = files + directories.len();
    let place = |of: &log::Mount| (of.bucket.clone(), of.prefix.clone(), of.endpoint.clone());
    if pending > 0 && place(&before) != place(mount) {
        bail!(
            "{pending} files or directories in it are still to be stored in bucket {:?}, prefix {:?}, at {}: mount that with this stage, \
             or give this mount another directory",
            before.bucket,
            before.prefix,
            before.endpoint
        );
    }
    if pending > 0 && !mount.commit.is_deferred() {
        bail!(
            "{pending} files or directories in it are still to be stored: mount with --commit disk or fsync, as before, until they are"
        );
    }
    for directory in directories.keys() {
        // A loss of power may have taken the file's name, and left the record.
        let path = dir.join("files").join(directory.to_string());
        private().write(true).create(true).truncate(false).open(path)?;
    }
    let mut left = Left { kept: Vec::new(), pending: Vec::new(), directories, next };
    for (file, fate) in fates {
        let path = dir.join("files").join(file.to_string());
        let to_kept = |key: Option<&str>, why: &str, is_partial| {
            keep((dir, &Disk::default()), clock, file, &before.bucket, key, why.to_owned(), is_partial)
        };
        match fate {
            Fate::Pending(live) => {
                let about = fs::symlink_metadata(&path)?;
                let (size, modified) = (about.len(), about.modified()?);
                let is_out = before.lends && is_same_boot;
                mount.lends |= is_out;
                left.pending.push(Pending { live: *live, size, modified, is_out });
            }
            Fate::Kept { key, why, is_partial } => {
                left.kept.push(to_kept(key.as_deref(), why, is_partial)?);
            }
            Fate::Unknown if fs::symlink_metadata(&path)?.blocks() > 0 => {
                left.kept.push(to_kept(None, "the mount ended before it was stored", true)?);
            }
            Fate::Unknown | Fate::Gone => fs::remove_file(&path)?,
        }
    }
    if !left.kept.is_empty() {
        sync_many(dir)?;
    }
    Ok(left)
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of ranges that happen to have one element")]
mod tests {
    use super::super::log::Dirty;
    use super::*;

    #[test]
    fn after_a_power_cut_only_what_was_synced_since_its_last_open_is_stored() {
        let live = |is_synced: bool| {
            let dirty = Dirty { file: 1, key: Some("a".into()), ..Dirty::default() };
            let synced = is_synced.then_some(Record::Synced { file: 1, is_whole: true });
            Files::of_records([Record::Dirty(dirty)].into_iter().chain(synced)).remove(1)
        };
        let is_pending = |fate| matches!(fate, Fate::Pending(_));
        for (is_synced, is_same_boot) in [(false, true), (true, true), (true, false)] {
            assert!(is_pending(fate(live(is_synced), true, is_same_boot, false)));
            assert!(
                !is_pending(fate(live(is_synced), false, is_same_boot, false)),
                "close promised the bucket"
            );
            assert!(
                !is_pending(fate(live(is_synced), true, is_same_boot, true)),
                "a damaged log proves nothing"
            );
        }
        let kept = fate(live(false), true, false, false);
        assert!(matches!(&kept, Fate::Kept { key: Some(key), .. } if key == "a"), "{kept:?}");
    }

    #[test]
    fn a_file_of_which_a_sync_failed_is_kept_and_never_stored() {
        let dirty = Dirty { file: 1, key: Some("a".into()), ..Dirty::default() };
        let records = [Record::Dirty(dirty), Record::Failed { file: 1 }];
        let fate = fate(Files::of_records(records).remove(1), true, true, false);
        assert!(matches!(&fate, Fate::Kept { key: Some(key), .. } if key == "a"), "{fate:?}");
    }

    #[test]
    fn ranges_that_no_sync_vouches_for_are_the_objects_after_a_power_cut() {
        let (key, file) = (Some("a".to_owned()), 1);
        let dirty = Dirty { file, key, is_partial: true, base: 100, object: 100, ..Dirty::default() };
        let wrote = |at| Record::Wrote { file, runs: vec![(at, at + 1)] };
        let synced = Record::Synced { file, is_whole: false };
        let mut files = Files::of_records([
            Record::Dirty(dirty),
            wrote(0),
            Record::Syncing { file },
            synced,
            Record::Sealed { file },
            wrote(50),
        ]);
        let live = files.remove(file);
        let is_whole = |fate| matches!(fate, Fate::Pending(live) if live.over_object().is_none());
        assert!(is_whole(fate(live.clone(), true, true, false)), "all of it was here");
        let Fate::Pending(live) = fate(live, true, false, false) else { panic!("it was synced") };
        let (base, runs) = live.over_object().expect("the seal is not on the disk");
        assert_eq!((base, runs.iter().collect::<Vec<_>>()), (100, vec![0..1]));
    }

    #[test]
    fn of_two_files_with_one_name_the_one_that_was_renamed_last_is_stored() {
        let mut files = Files::default();
        let dirty =
            |file, key: &str| Record::Dirty(Dirty { file, key: Some(key.into()), ..Dirty::default() });
        for record in [dirty(1, "target"), dirty(2, "tmp"), dirty(1, "target")] {
            files.add(&record);
        }
        files.add(&Record::Moved { file: 2, key: Some("target".into()), replaces: None });
        let mut fates = || [1, 2].map(|file| (file, fate(files.remove(file), true, true, false))).to_vec();
        let fates = without_replaced(fates());
        assert!(matches!(fates[0].1, Fate::Kept { .. }), "{fates:?}");
        assert!(matches!(fates[1].1, Fate::Pending(_)), "{fates:?}");
    }

    #[test]
    fn what_has_no_name_any_more_is_gone_and_what_has_no_record_is_kept() {
        let unlinked = Some(Some(Live::default()));
        assert_eq!(fate(unlinked, true, true, false), Fate::Gone);
        assert_eq!(fate(Some(None), true, true, false), Fate::Gone);
        assert_eq!(fate(None, true, true, false), Fate::Unknown);
        assert_eq!(fate(Some(None), true, true, true), Fate::Unknown, "a later record was lost");
    }
}
