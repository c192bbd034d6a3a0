//! Parts on disk, each an unlinked file, and the choice of the part to spill.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use crate::buffer::{BLOCK, Block, Reservation};
use crate::checksum::{Checksum, Hasher};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Error;
use super::memory::{Counted, Memory};
use super::reclaim::{ASKED_MAX, Reclaim};

/// Time without a new byte after which a part is idle. A writer at 20 MB/s in pieces of 1 MiB is never idle.
const IDLE: Duration = Duration::from_millis(50);

/// A file without a name. The kernel deletes it when it is closed, even if the engine is killed.
#[derive(Debug)]
pub(super) struct SpillFile {
    file: File,
    len: u64,
    reclaim: Option<Reclaim>,
    _permit: Counted,
}

impl SpillFile {
    /// An empty spill file in `dir`.
    ///
    /// # Errors
    /// An error of the disk; [`is_out_of_files`] if too many files are open.
    pub(super) fn create(dir: &Path, memory: &Arc<Memory>) -> io::Result<Self> {
        let _permit = memory.spill_file()?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = match openat(CWD, dir, flags | OFlags::TMPFILE, mode) {
            Ok(file) => file,
            // Some file systems lack O_TMPFILE, and their errors differ.
            Err(_) => {
                static NUMBER: AtomicU64 = AtomicU64::new(0);
                let name = format!(".mount-s3-spill-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
                let path = dir.join(name);
                let file =
                    openat(CWD, &path, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode)?;
                rustix::fs::unlink(&path)?;
                file
            }
        };
        Ok(Self { file: file.into(), len: 0, reclaim: memory.reclaim(), _permit })
    }

    /// Appends bytes. On a full disk, space is freed and the bytes are written again, [`ASKED_MAX`] times at most.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut asked = 0;
        // Bytes that were written before the disk was full are written once more.
        while let Err(error) = self.file.write_all_at(bytes, self.len) {
            let frees = |reclaim: &Reclaim| asked < ASKED_MAX && reclaim.free() > 0;
            if !is_full(&error) || !self.reclaim.as_ref().is_some_and(frees) {
                return Err(error);
            }
            asked += 1;
        }
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Reads the file back into blocks from `memory`, and compares the bytes with the checksum.
    ///
    /// # Errors
    /// `Spill` if the disk fails, `Corrupt` if the bytes changed, `NoMemory` if the kernel has none.
    pub(super) fn read_back(&self, mut memory: Reservation, expected: Checksum) -> Result<Vec<Block>, Error> {
        let mut hasher = Hasher::new(expected.algorithm);
        let mut blocks = Vec::new();
        let mut at = 0;
        while at < self.len {
            let len = (self.len - at).min(BLOCK as u64) as usize;
            let mut block = memory.block(len).ok_or(Error::NoMemory)?;
            self.file.read_exact_at(block.spare(), at)?;
            hasher.update(block.spare());
            block.advance(len);
            blocks.push(block.freeze());
            at += len as u64;
        }
        if hasher.finish() == expected { Ok(blocks) } else { Err(Error::Corrupt) }
    }
}

/// Whether the disk is full, or the user's quota on it.
fn is_full(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOSPC | Errno::DQUOT))
}

/// Whether file descriptors are used up: the disk works, and descriptors come free as parts are sent.
pub(super) fn is_out_of_files(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// The next action of the spiller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Choice<T> {
    /// Spill this upload's part.
    Spill(T),
    /// No part is idle yet; check again after this time.
    Wait(Duration),
    /// No upload has a part to spill.
    Nobody,
}

/// Chooses the part that is spilled: the one idle longest, if it is idle long enough.
pub(super) fn choose<T>(idle: impl IntoIterator<Item = (T, Duration)>) -> Choice<T> {
    match idle.into_iter().max_by_key(|(_, idle)| *idle) {
        Some((part, idle)) if idle >= IDLE => Choice::Spill(part),
        Some((_, idle)) => Choice::Wait(IDLE - idle),
        None => Choice::Nobody,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::buffer::{Config, Pool, Use};
    use crate::checksum::ChecksumAlgorithm;
    use crate::clock::Clock;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_part_idle_longest_is_chosen_and_a_busy_one_is_waited_for() {
        assert_eq!(choose([(1, 60 * MS), (2, 5000 * MS), (3, 70 * MS)]), Choice::Spill(2));
        assert_eq!(choose([(1, 20 * MS), (2, 45 * MS)]), Choice::Wait(5 * MS));
        assert_eq!(choose([(1, IDLE)]), Choice::Spill(1));
        assert_eq!(choose::<u8>([]), Choice::Nobody);
    }

    #[test]
    fn what_was_spilled_comes_back_whole_and_a_changed_bit_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let pool = Pool::new(&Config { target: 32 << 20, network: 0 });
        let limits = Arc::new(Memory::new(pool.clone(), Clock::manual(), MS, 1, None));
        let mut file = SpillFile::create(dir.path(), &limits).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "it has no name");
        let data: Vec<u8> = (0..BLOCK + 5000).map(|i| (i * 7) as u8).collect();
        data.chunks(3000).for_each(|c| file.append(c).unwrap());
        let expected = Checksum::of(ChecksumAlgorithm::Crc64Nvme, &data);

        let memory = || pool.try_reserve(Use::Write, super::super::size::charges(data.len() as u64)).unwrap();
        let blocks = file.read_back(memory(), expected).unwrap();
        assert_eq!(blocks.iter().map(|b| &b[..]).collect::<Vec<_>>().concat(), data);

        file.file.write_all_at(&[!data[4000]], 4000).unwrap();
        assert!(matches!(file.read_back(memory(), expected), Err(Error::Corrupt)));
        file.file.set_len(10).unwrap();
        assert!(matches!(file.read_back(memory(), expected), Err(Error::Spill(_))));
    }

    #[test]
    fn a_full_disk_whose_other_user_gives_room_takes_the_part() {
        let is_root = rustix::process::geteuid().is_root();
        if !testkit::need("root, to mount a small disk", is_root) {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let run = |command: &mut Command| assert!(command.status().unwrap().success(), "{command:?}");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"]).arg(dir.path()));
        let (other, asked) = (dir.path().join("other"), Arc::new(AtomicU64::new(0)));
        std::fs::write(&other, vec![1; 200 << 10]).unwrap();
        let (gives, count) = (other, Arc::clone(&asked));
        let reclaim = Reclaim::new(move |bytes| {
            assert!(bytes >= 200 << 10);
            count.fetch_add(1, Relaxed);
            std::fs::remove_file(&gives).map_or(0, |()| 200 << 10)
        });
        let pool = Pool::new(&Config { target: 32 << 20, network: 0 });
        let memory = Arc::new(Memory::new(pool, Clock::manual(), MS, 1, Some(reclaim)));
        let mut file = SpillFile::create(dir.path(), &memory).unwrap();
        let appended = [file.append(&[7; 200 << 10]), file.append(&[7; 200 << 10])];
        let mut bytes = vec![0; 200 << 10];
        let read = file.file.read_exact_at(&mut bytes, 0);
        run(Command::new("umount").arg("-l").arg(dir.path()));
        let [first, second] = appended;
        assert!(first.is_ok() && read.is_ok() && bytes.iter().all(|byte| *byte == 7), "{first:?}");
        assert!(is_full(&second.unwrap_err()), "nothing is left to give");
        assert_eq!(asked.load(Relaxed), 2);
    }
}
