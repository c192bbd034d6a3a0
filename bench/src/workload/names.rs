//! Names: one big directory, a tree.

use std::path::Path;

use anyhow::{Context as _, ensure};

use super::{Job, Sample, Work};

pub(super) fn list(job: &Job<'_>) -> anyhow::Result<Sample> {
    job.measure(|| {
        let (mut items, mut names) = (0, 0_u64);
        for entry in std::fs::read_dir(job.path("dir")).context("open the directory")? {
            let name = entry.context("read the directory")?.file_name();
            // Names that came twice would hide names that did not come.
            names = names.wrapping_add(crate::pattern::hash(name.as_encoded_bytes()));
            items += 1;
        }
        let expected =
            (0..job.scale.names).map(|number| crate::pattern::hash(format!("{number:08}").as_bytes()));
        ensure!(items == job.scale.names, "{items} names instead of {}", job.scale.names);
        ensure!(names == expected.fold(0, u64::wrapping_add), "other names than the bucket holds");
        Ok(Work { bytes: 0, items })
    })
}

pub(super) fn walk(job: &Job<'_>) -> anyhow::Result<Sample> {
    job.measure(|| {
        let items = count_files(job.root())?;
        ensure!(items == job.scale.tree, "{items} files instead of {}", job.scale.tree);
        Ok(Work { bytes: 0, items })
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
