//! Names: many in one directory or in folders of dates, a tree.

use std::path::Path;

use anyhow::{Context as _, ensure};

use super::{Job, Sample, Work};
use crate::pattern::hash;

/// All names below `dir`, without a look at any file.
pub(super) fn list(job: &Job<'_>) -> anyhow::Result<Sample> {
    let (_, shape, count, _) = job.workload.bucket.objects(job.scale);
    // Names that came twice would hide names that did not come.
    let expected = (0..count).map(|number| hash(shape.name(number).as_bytes())).fold(0, u64::wrapping_add);
    job.measure(|| {
        let mut seen = Seen::default();
        seen.list(&job.path("dir"), "")?;
        ensure!(seen.files == count, "{} names instead of {count}", seen.files);
        ensure!(seen.hashes == expected, "other names than the bucket holds");
        Ok(Work { items: seen.files, ..Work::default() })
    })
}

/// What was listed so far.
#[derive(Debug, Default)]
struct Seen {
    files: u64,
    /// Sum of the names' hashes, whatever their order.
    hashes: u64,
}

impl Seen {
    /// Lists `dir`, whose path below the first one is `below`, and the folders in it.
    fn list(&mut self, dir: &Path, below: &str) -> anyhow::Result<()> {
        for entry in std::fs::read_dir(dir).with_context(|| format!("open {}", dir.display()))? {
            let entry = entry.with_context(|| format!("read {}", dir.display()))?;
            let name = format!("{below}{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                self.list(&entry.path(), &format!("{name}/"))?;
            } else {
                self.files += 1;
                self.hashes = self.hashes.wrapping_add(hash(name.as_bytes()));
            }
        }
        Ok(())
    }
}

pub(super) fn walk(job: &Job<'_>) -> anyhow::Result<Sample> {
    job.measure(|| {
        let items = count_files(job.root())?;
        ensure!(items == job.scale.tree, "{items} files instead of {}", job.scale.tree);
        Ok(Work { items, ..Work::default() })
    })
}

fn count_files(dir: &Path) -> anyhow::Result<u64> {
    let mut files = 0;
    for entry in std::fs::read_dir(dir).with_context(|| format!("open {}", dir.display()))? {
        let entry = entry?;
        let about = entry.metadata().with_context(|| format!("look at {}", entry.path().display()))?;
        if about.is_dir() {
            files += count_files(&entry.path())?;
        } else {
            ensure!(about.len() == 1, "{} has {} bytes instead of 1", entry.path().display(), about.len());
            files += 1;
        }
    }
    Ok(files)
}
