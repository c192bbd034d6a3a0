//! Checks of fio's jobs after the measurement: compares pages of the files that they read with the pattern, and asks the store for the
//! files that they wrote. fio itself compares nothing.

use std::path::Path;

use anyhow::{Context as _, ensure};
use rustix::fs::OFlags;

use super::read::{PAGE, READ, aligned, numbered, open};
use super::{Job, STORED_LIMIT, wait_stored};
use crate::pattern::{base_of, check, hash, stir};

/// Number of pages that are compared after a job, over all its files.
const PAGES: u64 = 32;
/// Size in bytes up to which files are compared as a whole.
const WHOLE_MAX: u64 = 8 << 20;

/// One section of a job file: processes that do the same work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Section {
    name: String,
    pub(super) writes: bool,
    direct: bool,
    /// The number of fio's processes, each with a separate file.
    processes: u64,
    /// Number of times that each process writes its file.
    loops: u64,
}

impl Section {
    /// The prefix of the names of the job's files, if the job does not set names.
    fn prefix(&self) -> String {
        format!("{}.", self.name)
    }
}

/// Parses the sections of a job file; settings of `[global]` apply to all.
///
/// # Errors
/// A section that neither reads nor writes, or an invalid number.
pub(super) fn sections(text: &str) -> anyhow::Result<Vec<Section>> {
    let mut parts = text.split("\n[").skip(1).filter_map(|part| part.split_once("]\n"));
    let (_, global) = parts.next().filter(|(name, _)| *name == "global").context("no [global] at its top")?;
    let section = |(name, own): (&str, &str)| {
        let value = |key: &str| {
            let of = |line: &str| line.strip_prefix(key)?.strip_prefix('=').map(str::to_owned);
            own.lines().chain(global.lines()).find_map(of)
        };
        let number = |key: &str| match value(key) {
            Some(text) => text.parse().with_context(|| format!("[{name}] {key}={text} is not a number")),
            None => Ok(1),
        };
        let kind = value("rw").with_context(|| format!("[{name}] has no rw="))?;
        Ok(Section {
            name: name.to_owned(),
            writes: kind.ends_with("write"),
            direct: value("direct").is_some_and(|text| text == "1"),
            processes: number("numjobs")?,
            loops: number("loops")?,
        })
    };
    parts.map(section).collect()
}

/// Number and bytes of the objects that a job's writers stored, including those that fio removed.
pub(super) fn stored(job: &Job<'_>, sections: &[Section]) -> anyhow::Result<(u64, u64)> {
    let mut sum = (0, 0);
    for section in sections.iter().filter(|section| section.writes) {
        let (objects, bytes) = job.control.stored(job.bucket, &section.prefix())?;
        sum = (sum.0 + objects, sum.1 + bytes);
    }
    Ok(sum)
}

/// Whether the store had everything when fio ended; `None` for a job that does not write.
///
/// # Errors
/// The store does not have everything some time later, either.
pub(super) fn written(
    job: &Job<'_>,
    sections: &[Section],
    bytes: u64,
    at_end: (u64, u64),
) -> anyhow::Result<Option<bool>> {
    let files = |section: &Section| section.processes * section.loops;
    let wanted = (sections.iter().filter(|section| section.writes).map(files).sum(), bytes);
    if wanted.0 == 0 {
        return Ok(None);
    }
    wait_stored(wanted, at_end, STORED_LIMIT, || stored(job, sections))
        .context("what fio wrote is not what was stored")?;
    Ok(Some(at_end == wanted))
}

/// Reads a sample of the files of a job's readers through the same mount, and compares it with the bucket's content: small files whole, and
/// random pages of big ones. Half of the pages are from the part that a sequential reader reached (`bytes` in all), where the kernel may
/// still have the pages that fio read; the others are from anywhere.
///
/// # Errors
/// A byte that is not in the object, or a file of another size than its object.
pub(super) fn read_back(job: &Job<'_>, sections: &[Section], bytes: u64) -> anyhow::Result<()> {
    let (_, _, _, size) = job.workload.bucket.objects(job.scale);
    let seed = hash(job.workload.name.as_bytes()) ^ job.serial;
    for section in sections.iter().filter(|section| !section.writes) {
        let flags = if section.direct { OFlags::DIRECT } else { OFlags::empty() };
        compare(job.root(), section.processes, size, bytes, flags, seed)?;
    }
    Ok(())
}

fn compare(root: &Path, files: u64, size: u64, bytes: u64, flags: OFlags, seed: u64) -> anyhow::Result<()> {
    let mut memory = vec![0; READ + PAGE];
    let buf = aligned(&mut memory);
    for number in 0..files {
        let name = numbered(number);
        let file = open(&root.join(&name), flags)?;
        let found = file.metadata().with_context(|| format!("look at {name}"))?.len();
        ensure!(found == size, "after fio's job {name} has {found} bytes instead of {size}");
        let mut look = |offset: u64, len: u64| {
            let buf = &mut buf[..len as usize];
            std::os::unix::fs::FileExt::read_exact_at(&file, buf, offset)
                .with_context(|| format!("read {name} at {offset} after fio's job"))?;
            check(base_of(&name), offset, buf).with_context(|| {
                format!("{name} holds what was never in it (seen after fio's job, seed {seed})")
            })
        };
        if size <= WHOLE_MAX {
            for offset in (0..size).step_by(READ) {
                look(offset, (READ as u64).min(size - offset))?;
            }
            continue;
        }
        let page = PAGE as u64;
        let reached = (bytes / files).clamp(page, size);
        for turn in (number..PAGES).step_by(files as usize) {
            let range = if (turn / files).is_multiple_of(2) { reached } else { size };
            look(stir(seed.wrapping_add(turn)) % (range / page) * page, page)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;
    use crate::pattern::fill;
    use crate::workload::FIO;

    fn job(name: &str) -> Vec<Section> {
        let job = FIO.iter().find(|workload| workload.name == name).unwrap();
        sections(job.fio.unwrap()).unwrap()
    }

    #[test]
    fn a_job_says_who_reads_and_who_writes_how_many_files() {
        let shown = |name: &str| {
            job(name)
                .into_iter()
                .map(|one| (one.prefix(), one.writes, one.direct, one.processes, one.loops))
                .collect::<Vec<_>>()
        };
        let of = |prefix: &str, writes, direct, processes, loops| {
            (prefix.to_owned(), writes, direct, processes, loops)
        };
        assert_eq!(
            shown("fio_mix_1r4w"),
            [of("readers.", false, false, 1, 1), of("writers.", true, false, 4, 1)]
        );
        assert_eq!(shown("fio_rand_read_4t_direct"), [of("rand_read_4t_direct.", false, true, 4, 1)]);
        assert_eq!(
            shown("fio_time_to_write_one_byte_file"),
            [of("time_to_write_one_byte_file.", true, false, 1, 10)]
        );
        assert!(sections("# x\n[global]\nbs=1\n\n[a]\nsize=1\n").is_err());
        assert!(sections("# x\n[global]\nrw=read\n\n[a]\nnumjobs=many\n").is_err());
    }

    #[test]
    fn the_readers_of_every_job_read_objects_that_the_bucket_has() {
        for workload in FIO {
            let text = workload.fio.unwrap();
            let (_, _, objects, size) = workload.bucket.objects(&crate::workload::Scale::smoke());
            for section in sections(text).unwrap() {
                let named = text
                    .split(&format!("[{}]\n", section.name))
                    .nth(1)
                    .is_some_and(|own| own.starts_with("filename_format=0000000$jobnum\n"));
                assert_eq!(named, !section.writes, "{}", workload.name);
                assert!(section.writes || section.processes <= objects && size > 0, "{}", workload.name);
            }
        }
    }

    /// Files of this size, with the bucket's content.
    fn folder(files: u64, size: u64) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let mut data = vec![0; size as usize];
        for number in 0..files {
            fill(base_of(&numbered(number)), 0, &mut data);
            std::fs::write(folder.path().join(numbered(number)), &data).unwrap();
        }
        folder
    }

    #[test]
    fn a_wrong_byte_anywhere_in_a_small_file_is_found() {
        let size = 3 * READ as u64 + 5;
        let folder = folder(2, size);
        let compare = || compare(folder.path(), 2, size, size, OFlags::empty(), 7);
        compare().unwrap();
        let file =
            std::fs::File::options().read(true).write(true).open(folder.path().join("00000001")).unwrap();
        for offset in [0, READ as u64 + 17, size - 1] {
            let mut byte = [0];
            file.read_exact_at(&mut byte, offset).unwrap();
            file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
            let error = format!("{:#}", compare().unwrap_err());
            assert!(error.contains("00000001 holds what was never in it"), "{error}");
            assert!(error.ends_with(&format!("wrong byte at offset {offset}")), "{error}");
            file.write_all_at(&byte, offset).unwrap();
        }
        file.set_len(size - 1).unwrap();
        assert!(compare().unwrap_err().to_string().contains("instead of"));
    }

    #[test]
    fn of_big_files_pages_are_compared_in_what_was_reached_and_anywhere() {
        let size = WHOLE_MAX + READ as u64;
        let folder = folder(1, size);
        let file = std::fs::File::options().write(true).open(folder.path().join("00000000")).unwrap();
        let seen = |reached| compare(folder.path(), 1, size, reached, OFlags::empty(), 7).is_err();
        assert!(!seen(size / 2));
        // All beyond the first page is another file's: half of the pages, those from anywhere, tell.
        let mut wrong = vec![0; size as usize - PAGE];
        fill(base_of("another"), 0, &mut wrong);
        file.write_all_at(&wrong, PAGE as u64).unwrap();
        assert!(seen(1));
        // Now only the first page is: the other half, out of the little that was reached, tells.
        fill(base_of("00000000"), PAGE as u64, &mut wrong);
        file.write_all_at(&wrong, PAGE as u64).unwrap();
        file.write_all_at(&[0; PAGE], 0).unwrap();
        assert!(seen(1));
    }
}
