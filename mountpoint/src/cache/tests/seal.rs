//! Files that the file system seals (fs-verity) before the kernel reads them by itself: by a double on any disk, and by a kernel that
//! has it.

use std::collections::HashSet;
use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};

use rustix::io::Errno;

use super::super::format::Name;
use super::super::io::{FileStat, How, Kind, Waits};
use super::super::verity::Verity;
use super::*;
use crate::sync::Mutex;

/// The seals of a disk, which outlive a run.
#[derive(Debug, Default)]
struct Seals {
    /// Inodes of the sealed files.
    sealed: HashSet<u64>,
    /// Number of files that were sealed.
    made: usize,
    /// The error of the next attempt to seal a file.
    refuses: Option<Errno>,
    /// The file that rots just before it is sealed.
    rots: Option<PathBuf>,
}

/// The real disk, which seals files: nobody can write to them afterwards.
#[derive(Debug)]
struct SealingDisk {
    disk: Box<dyn BlockIo>,
    seals: Arc<Mutex<Seals>>,
}

impl SealingDisk {
    fn is_sealed(&self, file: &OwnedFd) -> bool {
        self.seals.lock().sealed.contains(&rustix::fs::fstat(file).unwrap().st_ino)
    }
}

impl BlockIo for SealingDisk {
    fn open(&self, name: &Name, kind: Kind, how: How) -> io::Result<OwnedFd> {
        let file = self.disk.open(name, kind, how)?;
        if how == How::Write && self.is_sealed(&file) { Err(Errno::PERM.into()) } else { Ok(file) }
    }

    fn read_at(
        &self,
        file: &OwnedFd,
        into: &mut [IoSliceMut<'_>],
        at: u64,
        waits: Waits,
    ) -> io::Result<usize> {
        self.disk.read_at(file, into, at, waits)
    }

    fn write_at(&self, file: &OwnedFd, bytes: &[u8], at: u64) -> io::Result<usize> {
        self.disk.write_at(file, bytes, at)
    }

    fn punch(&self, file: &OwnedFd, at: u64, len: u64) -> io::Result<()> {
        self.disk.punch(file, at, len)
    }

    fn lend(&self, file: &OwnedFd) -> io::Result<()> {
        self.disk.lend(file)
    }

    fn verity(&self, file: &OwnedFd) -> Verity {
        if self.is_sealed(file) { Verity::Sealed } else { Verity::Possible }
    }

    fn seal(&self, file: &OwnedFd) -> io::Result<()> {
        let mut seals = self.seals.lock();
        if let Some(error) = seals.refuses.take() {
            return Err(error.into());
        }
        if let Some(path) = seals.rots.take() {
            rot(&path);
        }
        seals.sealed.insert(rustix::fs::fstat(file).unwrap().st_ino);
        seals.made += 1;
        Ok(())
    }

    fn unlink(&self, name: &Name, kind: Kind) -> io::Result<()> {
        // Another file may get its inode.
        if let Ok(file) = self.disk.open(name, kind, How::Read) {
            self.seals.lock().sealed.remove(&rustix::fs::fstat(&file).unwrap().st_ino);
        }
        self.disk.unlink(name, kind)
    }

    fn stat(&self, name: &Name, kind: Kind) -> io::Result<FileStat> {
        let stat = self.disk.stat(name, kind)?;
        let lent = stat.lent || self.is_sealed(&self.disk.open(name, kind, How::Read)?);
        Ok(FileStat { lent, ..stat })
    }

    fn list(&self, prefix: u8) -> io::Result<Vec<Name>> {
        self.disk.list(prefix)
    }

    fn space(&self) -> io::Result<(u64, u64)> {
        self.disk.space()
    }

    fn try_out(&self) -> io::Result<()> {
        self.disk.try_out()
    }

    fn sweep(&self) -> io::Result<()> {
        self.disk.sweep()
    }
}

const SIZE: u64 = 2 * MIB + 777;

fn rot(path: &Path) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&[0], MIB + SECTOR).unwrap();
}

fn sealing(dir: &Path, seals: &Arc<Mutex<Seals>>, size_max: u64) -> Store {
    let io = Box::new(SealingDisk { disk: disk(dir), seals: Arc::clone(seals) });
    let store = store_with(io, dir, Some(size_max));
    store.load_all(&AtomicBool::new(false));
    store
}

fn put_all(store: &Store, id: &ObjectId) -> bool {
    (0..3).all(|block| put(store, id, SIZE, block))
}

/// An open as the crew carries it out: whether the kernel gets the file, and behind the answer the seal.
fn opens(store: &Store, id: &ObjectId) -> bool {
    let is_lent = store.whole(id, SIZE).is_some();
    if !is_lent {
        store.seal(id, SIZE);
    }
    is_lent
}

#[test]
fn a_file_that_can_be_sealed_is_lent_behind_its_seal_alone() {
    let (dir, seals) = (tempfile::tempdir().unwrap(), Arc::default());
    let (a, b) = (id("a", "\"1\""), id("b", "\"1\""));
    {
        let store = sealing(dir.path(), &seals, 64 * MIB);
        assert!(put_all(&store, &a));
        assert!(!opens(&store, &a), "it is not sealed yet");
        assert_eq!(seals.lock().made, 1);
        assert!(opens(&store, &a) && opens(&store, &a));
        assert!(put_all(&store, &b) && !opens(&store, &b), "another file");
    }
    // The next run seals nothing anew, and compares as ever.
    let store = sealing(dir.path(), &seals, 64 * MIB);
    assert!(!opens(&store, &a), "not compared in this run");
    assert!((0..3).all(|block| read_block(&store, &a, SIZE, block)));
    assert!(opens(&store, &a));
    assert_eq!(seals.lock().made, 2);
}

#[test]
fn a_sealed_file_is_evicted_as_a_whole_and_never_written() {
    let (dir, seals) = (tempfile::tempdir().unwrap(), Arc::default());
    let (a, b) = (id("a", "\"1\""), id("b", "\"1\""));
    let store = sealing(dir.path(), &seals, 5 * MIB);
    assert!(put_all(&store, &a) && !opens(&store, &a));
    assert!((0..4).all(|block| put(&store, &b, 4 * MIB, block)));
    assert!(!(0..3).any(|block| store.contains(&a, block)), "all of it left");
    assert!(store.keeps(), "no write failed");
    assert!(put_all(&store, &a), "it comes anew, in a file of its own");
}

#[test]
fn bytes_that_rot_just_before_their_seal_are_lent_to_nobody() {
    let (dir, seals) = (tempfile::tempdir().unwrap(), Arc::<Mutex<Seals>>::default());
    let store = sealing(dir.path(), &seals, 64 * MIB);
    let a = id("a", "\"1\"");
    assert!(put_all(&store, &a));
    seals.lock().rots = Some(files(dir.path()).remove(0));
    assert!(!opens(&store, &a));
    assert_eq!((seals.lock().made, store.metrics.cache_corrupt.get()), (1, 1));
    assert!(!opens(&store, &a) && !(0..3).any(|block| store.contains(&a, block)));
    assert!(put_all(&store, &a) && !opens(&store, &a) && opens(&store, &a), "fetched anew");
}

#[test]
fn a_file_that_is_busy_is_sealed_later_and_one_that_can_not_is_lent() {
    let (dir, seals) = (tempfile::tempdir().unwrap(), Arc::<Mutex<Seals>>::default());
    let store = sealing(dir.path(), &seals, 64 * MIB);
    let (a, b) = (id("a", "\"1\""), id("b", "\"1\""));
    assert!(put_all(&store, &a) && put_all(&store, &b));
    seals.lock().refuses = Some(Errno::TXTBSY);
    assert!(!opens(&store, &a) && !opens(&store, &a), "the second open seals it");
    assert!(opens(&store, &a));
    seals.lock().refuses = Some(Errno::NOSPC);
    assert!(!opens(&store, &b) && opens(&store, &b));
    assert_eq!(seals.lock().made, 1);
}

#[test]
fn a_sealed_file_of_an_earlier_run_that_lost_a_part_goes_whole() {
    let (dir, seals) = (tempfile::tempdir().unwrap(), Arc::default());
    let a = id("a", "\"1\"");
    let first = sealing(dir.path(), &seals, 64 * MIB);
    // The run ends between the seal and the mark of a lent file.
    assert!(put_all(&first, &a) && !opens(&first, &a));
    drop(first);
    let sidecar = std::fs::File::options().write(true).open(&files(dir.path())[1]).unwrap();
    sidecar.write_all_at(b"x", super::super::format::SLOT as u64 + 5).unwrap();
    let second = sealing(dir.path(), &seals, 64 * MIB);
    assert!(files(dir.path()).is_empty() && put_all(&second, &a));
}

/// The case: the kernel reads a sealed file by itself, and a byte of it rots on the disk. The program gets an error, the engine a miss.
#[test]
fn what_rots_of_a_file_that_the_kernel_sealed_is_an_error() {
    testkit::isolated(|| {
        let scratch = tempfile::tempdir().unwrap();
        let (image, dir) = (scratch.path().join("image"), scratch.path().join("mounted"));
        std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        std::fs::create_dir(&dir).unwrap();
        let ran = |command: &mut Command| {
            let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
            quiet.status().is_ok_and(|status| status.success())
        };
        let mounted = ran(Command::new("mkfs.ext4").args(["-q", "-b", "4096", "-O", "verity"]).arg(&image))
            && ran(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&dir))
            // A kernel without fs-verity mounts such a file system, too.
            && std::path::Path::new("/sys/fs/ext4/features/verity").exists();
        if !testkit::need(testkit::FS_VERITY, mounted) {
            return;
        }
        let store = store(&dir, Some(32 * MIB));
        let a = id("a", "\"1\"");
        assert!(put_all(&store, &a) && !opens(&store, &a));
        let data = files(&dir).remove(0);
        let refused = std::fs::File::options().write(true).open(&data).unwrap_err();
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::PERM));
        let lent = store.whole(&a, SIZE).expect("it is sealed");
        let program = std::fs::File::from(lent.file.try_clone().unwrap());

        assert!(ran(Command::new("sync").arg("-f").arg(&dir)));
        let wanted = content(&a, MIB..MIB + 4096);
        let whole = std::fs::read(&image).unwrap();
        let at = whole.chunks(4096).position(|page| page == wanted).expect("its bytes are on the disk");
        let disk = std::fs::File::options().write(true).open(&image).unwrap();
        disk.write_all_at(&[wanted[0] ^ 1], at as u64 * 4096).unwrap();
        rustix::fs::fadvise(&program, 0, None, rustix::fs::Advice::DontNeed).unwrap();

        let mut bytes = vec![0; 4096];
        let rot = program.read_exact_at(&mut bytes, MIB).unwrap_err();
        assert_eq!(Errno::from_io_error(&rot), Some(Errno::IO));
        program.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes == content(&a, 0..4096), "what is sound is read");
        assert!(!read_block(&store, &a, SIZE, 1) && !store.contains(&a, 0), "the engine fetches it anew");
        assert!(put_all(&store, &a) && (0..3).all(|block| read_block(&store, &a, SIZE, block)));
        drop((lent, program, store));
        assert!(ran(Command::new("umount").arg(&dir)));
    });
}
