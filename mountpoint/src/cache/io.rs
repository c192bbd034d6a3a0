//! The system calls of the cache, behind one trait, so a test can make any of them fail.
//!
//! An object version has two files, `ab/<64 hex digits>.data` and `.meta`, below one folder that stays open. Renaming or replacing a
//! directory above that folder can't redirect the cache, and below it the cache follows no symbolic link.

use std::ffi::{CStr, CString};
use std::fmt::Debug;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    Advice, AtFlags, Dir, FallocateFlags, FileType, Mode, OFlags, RawMode, StatxAttributes, StatxFlags,
    fadvise, fallocate, fchmod, fdatasync, fstat, fstatvfs, mkdirat, openat, statx, unlinkat,
};
use rustix::io::{Errno, ReadWriteFlags, preadv, preadv2, pwrite};

use super::format::Name;
use super::verity::{self, Verity};

/// One of a version's two files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// The sparse file with the object's bytes at their offsets.
    Data,
    /// The sidecar.
    Meta,
}

/// The mode in which a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    /// Opens an existing file to read.
    Read,
    /// Opens an existing file to read and write.
    Write,
    /// Creates a file to read and write. An older file loses this name, and keeps its bytes for processes that have it open or mapped.
    Create,
}

/// Whether a read may wait for the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Waits {
    Yes,
    /// Never wait: a read of bytes outside the page cache fails (EAGAIN). The kernel reads them from the disk all the same, so a read soon
    /// after waits less.
    No,
}

/// Size, age and mark of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileStat {
    /// Length in bytes.
    pub(super) len: u64,
    /// Time of the last write, in seconds since 1970.
    pub(super) modified: u64,
    /// Whether [`BlockIo::lend`] or [`BlockIo::seal`] was called for the file, in this run or an earlier one.
    pub(super) lent: bool,
}

/// Disk I/O on the files of a cache. Every error is the system's; nothing is retried but EINTR.
pub(super) trait BlockIo: Debug + Send + Sync + 'static {
    /// Opens a file; never a link or anything that is not a regular file.
    fn open(&self, name: &Name, kind: Kind, how: How) -> io::Result<OwnedFd>;

    /// Reads at an offset into these slices, in their order. Returns fewer bytes at the end of the file, or if the read may not wait for
    /// the disk.
    fn read_at(
        &self,
        file: &OwnedFd,
        into: &mut [IoSliceMut<'_>],
        at: u64,
        waits: Waits,
    ) -> io::Result<usize>;

    /// Writes at an offset. Returns the number of written bytes, which may be less than all.
    fn write_at(&self, file: &OwnedFd, bytes: &[u8], at: u64) -> io::Result<usize>;

    /// Frees the disk space of a range, which reads as zeros afterwards.
    fn punch(&self, file: &OwnedFd, at: u64, len: u64) -> io::Result<()>;

    /// Marks a file, also for later runs, as one that programs may read past the cache: the cache no longer changes it.
    fn lend(&self, file: &OwnedFd) -> io::Result<()>;

    /// Whether the file system can seal the file by fs-verity, or has.
    fn verity(&self, _file: &OwnedFd) -> Verity {
        Verity::Missing
    }

    /// Seals a file that is never written again, so that the file system verifies each read. Reads all of it.
    fn seal(&self, _file: &OwnedFd) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Removes a file. A missing file is a success.
    fn unlink(&self, name: &Name, kind: Kind) -> io::Result<()>;

    /// Size, age and mark of a file, without opening it.
    fn stat(&self, name: &Name, kind: Kind) -> io::Result<FileStat>;

    /// The names of all versions that have a file and begin with this byte. Removes everything else in their folder.
    fn list(&self, prefix: u8) -> io::Result<Vec<Name>>;

    /// Free bytes of the file system for this user, and its size in bytes.
    fn space(&self) -> io::Result<(u64, u64)>;

    /// Writes to the disk and reads the bytes back, past the page cache as far as the file system allows.
    fn try_out(&self) -> io::Result<()>;

    /// Removes foreign entries, and those of older formats, from the cache's folder and from the folder of this format.
    fn sweep(&self) -> io::Result<()>;
}

/// Writes all of `bytes`, with as many calls as needed.
pub(super) fn write_full(io: &dyn BlockIo, file: &OwnedFd, bytes: &[u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match io.write_at(file, &bytes[done..], at + done as u64)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => done += n,
        }
    }
    Ok(())
}

/// The real disk.
#[derive(Debug)]
pub(super) struct Disk {
    /// The cache's own folder in the user's directory.
    home: OwnedFd,
    /// The folder of this format, in `home`.
    root: OwnedFd,
}

/// Name of the folder of this format.
pub(super) const FORMAT_FOLDER: &CStr = c"v2";

/// Name of the cache's own folder in the user's directory.
pub(super) const HOME: &CStr = c"mount-s3-cache";

/// Name of the file that [`BlockIo::try_out`] writes, in `home`.
const TRIAL_FILE: &CStr = c"trial";

/// Deepest level of a foreign folder that is cleaned out. A folder below it stays, and its removal fails.
const SWEEP_DEPTH: u32 = 16;

const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
/// The mode of a file that was lent: the mark of [`BlockIo::lend`].
const LENT_MODE: Mode = Mode::RUSR;
/// The mode of folders: only the owner may look in.
pub(super) const FOLDER_MODE: Mode = Mode::RWXU;
const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Disk {
    /// Opens a disk on the cache's folder, which stays open, and the folder of this format.
    pub(super) fn new(home: OwnedFd) -> io::Result<Self> {
        let root = open_folder(home.as_fd(), FORMAT_FOLDER)?;
        Ok(Self { home, root })
    }

    fn folder(&self, prefix: u8, create: bool) -> io::Result<OwnedFd> {
        let mut text = [0; 3];
        hex(&[prefix], &mut text[..2]);
        let name = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        // The flags avoid O_PATH, which a sandboxed engine may not use.
        let path = OFlags::RDONLY | FOLDER;
        match openat(&self.root, name, path, Mode::empty()) {
            Err(Errno::NOENT) if create => {
                mkdir(self.root.as_fd(), name)?;
                Ok(openat(&self.root, name, path, Mode::empty())?)
            }
            other => Ok(other?),
        }
    }
}

/// Opens a folder by name, and creates it if it is missing. Never follows a link.
pub(super) fn open_folder(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    mkdir(parent, name)?;
    Ok(openat(parent, name, OFlags::RDONLY | FOLDER, Mode::empty())?)
}

fn mkdir(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    match mkdirat(parent, name, FOLDER_MODE) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

impl BlockIo for Disk {
    fn open(&self, name: &Name, kind: Kind, how: How) -> io::Result<OwnedFd> {
        let folder = self.folder(name[0], how == How::Create)?;
        let flags = match how {
            How::Read => OFlags::RDONLY,
            How::Write => OFlags::RDWR,
            How::Create => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        };
        // NONBLOCK: a FIFO that a user put here must not block the cache.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let mut text = [0; FILE_NAME];
        let file = file_name(name, kind, &mut text);
        match openat(&folder, file, flags, FILE_MODE) {
            Err(Errno::EXIST) if how == How::Create => {
                unlinkat(&folder, file, AtFlags::empty())?;
                Ok(openat(&folder, file, flags, FILE_MODE)?)
            }
            other => Ok(other?),
        }
    }

    fn read_at(
        &self,
        file: &OwnedFd,
        into: &mut [IoSliceMut<'_>],
        at: u64,
        waits: Waits,
    ) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| match waits {
            Waits::Yes => preadv(file, into, at),
            Waits::No => preadv2(file, into, at, ReadWriteFlags::NOWAIT),
        })?)
    }

    fn write_at(&self, file: &OwnedFd, bytes: &[u8], at: u64) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| pwrite(file, bytes, at))?)
    }

    fn punch(&self, file: &OwnedFd, at: u64, len: u64) -> io::Result<()> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::io::retry_on_intr(|| fallocate(file, mode, at, len))?)
    }

    fn lend(&self, file: &OwnedFd) -> io::Result<()> {
        if is_marked(fstat(file)?.st_mode) { Ok(()) } else { Ok(fchmod(file, LENT_MODE)?) }
    }

    fn verity(&self, file: &OwnedFd) -> Verity {
        verity::of(file)
    }

    fn seal(&self, file: &OwnedFd) -> io::Result<()> {
        verity::seal(file)
    }

    fn unlink(&self, name: &Name, kind: Kind) -> io::Result<()> {
        let mut text = [0; FILE_NAME];
        let folder = match self.folder(name[0], false) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        match unlinkat(folder, file_name(name, kind, &mut text), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn stat(&self, name: &Name, kind: Kind) -> io::Result<FileStat> {
        let folder = self.folder(name[0], false)?;
        let mut text = [0; FILE_NAME];
        let wanted = StatxFlags::TYPE | StatxFlags::MODE | StatxFlags::SIZE | StatxFlags::MTIME;
        let stat = statx(folder, file_name(name, kind, &mut text), AtFlags::SYMLINK_NOFOLLOW, wanted)?;
        let mode = stat.stx_mode.into();
        if FileType::from_raw_mode(mode) != FileType::RegularFile {
            return Err(Errno::INVAL.into());
        }
        let modified = u64::try_from(stat.stx_mtime.tv_sec).unwrap_or(0);
        let lent = is_marked(mode) || stat.stx_attributes.contains(StatxAttributes::VERITY);
        Ok(FileStat { len: stat.stx_size, modified, lent })
    }

    fn list(&self, prefix: u8) -> io::Result<Vec<Name>> {
        let folder = match self.folder(prefix, false) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut names = Vec::new();
        for entry in entries(folder.as_fd())? {
            match parse_file_name(entry.to_bytes()) {
                Some(name) if name[0] == prefix => names.push(name),
                _ => remove(folder.as_fd(), &entry, SWEEP_DEPTH)?,
            }
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    fn space(&self) -> io::Result<(u64, u64)> {
        let vfs = fstatvfs(&self.root)?;
        Ok((vfs.f_bavail.saturating_mul(vfs.f_frsize), vfs.f_blocks.saturating_mul(vfs.f_frsize)))
    }

    fn try_out(&self) -> io::Result<()> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.home, TRIAL_FILE, flags | OFlags::NONBLOCK, FILE_MODE)?;
        let mut bytes = [0x5a; 4096];
        write_full(self, &file, &bytes, 0)?;
        fdatasync(&file)?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
        self.read_at(&file, &mut [IoSliceMut::new(&mut bytes)], 0, Waits::Yes)?;
        Ok(unlinkat(&self.home, TRIAL_FILE, AtFlags::empty())?)
    }

    fn sweep(&self) -> io::Result<()> {
        for entry in entries(self.home.as_fd())? {
            if entry.as_c_str() != FORMAT_FOLDER && entry.to_bytes() != super::lock::LOCK_FILE.as_bytes() {
                remove(self.home.as_fd(), &entry, SWEEP_DEPTH)?;
            }
        }
        for entry in entries(self.root.as_fd())? {
            if parse_hex::<1>(entry.to_bytes()).is_none() {
                remove(self.root.as_fd(), &entry, SWEEP_DEPTH)?;
            }
        }
        Ok(())
    }
}

/// Whether a file has the mark of [`BlockIo::lend`].
fn is_marked(mode: RawMode) -> bool {
    !Mode::from_raw_mode(mode).contains(Mode::WUSR)
}

/// The names in a folder, without `.` and `..`. The list is read to its end first, because callers remove entries while they walk over it.
fn entries(folder: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    // A new descriptor: the listing of a descriptor can be read only once.
    for entry in Dir::new(openat(folder, c".", OFlags::RDONLY | FOLDER, Mode::empty())?)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

/// Removes a file, a link itself, or a folder with its content, at most `depth` levels deep.
fn remove(parent: BorrowedFd<'_>, name: &CStr, depth: u32) -> io::Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) if depth > 0 => {}
        Err(e) => return Err(e.into()),
    }
    let folder = openat(parent, name, OFlags::RDONLY | FOLDER, Mode::empty())?;
    for entry in entries(folder.as_fd())? {
        remove(folder.as_fd(), &entry, depth - 1)?;
    }
    Ok(unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

const FILE_NAME: usize = 64 + ".data".len() + 1;

/// Path of a version's data file, relative to the user's directory.
pub(super) fn path_of(name: &Name) -> String {
    let mut text = [0; FILE_NAME];
    let file = file_name(name, Kind::Data, &mut text).to_string_lossy();
    format!("{}/{}/{}/{file}", HOME.to_string_lossy(), FORMAT_FOLDER.to_string_lossy(), &file[..2])
}

fn file_name<'a>(name: &Name, kind: Kind, text: &'a mut [u8; FILE_NAME]) -> &'a CStr {
    hex(name, &mut text[..64]);
    text[64..].copy_from_slice(match kind {
        Kind::Data => b".data\0",
        Kind::Meta => b".meta\0",
    });
    CStr::from_bytes_until_nul(text).unwrap_or_default()
}

fn parse_file_name(text: &[u8]) -> Option<Name> {
    let (stem, extension) = text.split_at_checked(64)?;
    if matches!(extension, b".data" | b".meta") { parse_hex(stem) } else { None }
}

/// Writes `bytes` as hex digits into `text`, which is twice as long.
fn hex(bytes: &[u8], text: &mut [u8]) {
    let written = base16ct::lower::encode(bytes, text);
    debug_assert!(written.is_ok(), "two digits for each byte");
}

/// Parses hex digits in lower case; the cache's own names have no others.
fn parse_hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let mut out = [0; N];
    let whole = base16ct::lower::decode(text, &mut out).is_ok_and(|bytes| bytes.len() == N);
    whole.then_some(out)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn disk(dir: &std::path::Path) -> Disk {
        Disk::new(OwnedFd::from(std::fs::File::open(dir).unwrap())).unwrap()
    }

    #[test]
    fn a_file_name_is_read_back_and_nothing_else_is() {
        let name: Name = std::array::from_fn(|i| (i * 9) as u8);
        let mut text = [0; FILE_NAME];
        let spelled = file_name(&name, Kind::Meta, &mut text).to_bytes();
        assert_eq!(parse_file_name(spelled), Some(name));
        assert_eq!(parse_file_name(&spelled.to_ascii_uppercase()), None);
        assert_eq!(parse_file_name(&spelled[1..]), None);
        assert_eq!(parse_file_name(b""), None);
    }

    #[test]
    fn links_are_not_followed_and_modes_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let disk = disk(dir.path());
        let name = [0xab; 32];
        drop(disk.open(&name, Kind::Data, How::Create).unwrap());
        let folder = dir.path().join("v2/ab");
        let file = folder.join(format!("{}.data", "ab".repeat(32)));
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);

        let target = elsewhere.path().join("precious");
        std::fs::write(&target, "precious").unwrap();
        std::fs::remove_file(&file).unwrap();
        symlink(&target, &file).unwrap();
        for how in [How::Read, How::Write] {
            assert!(disk.open(&name, Kind::Data, how).is_err(), "{how:?}");
        }
        drop(disk.open(&name, Kind::Data, How::Create).unwrap());
        assert!(std::fs::symlink_metadata(&file).unwrap().is_file(), "the link made room for a file");
        std::fs::remove_dir_all(&folder).unwrap();
        symlink(elsewhere.path(), &folder).unwrap();
        assert!(disk.open(&name, Kind::Data, How::Create).is_err());
        disk.sweep().unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"precious");
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_made_anew_takes_no_byte_from_those_who_have_the_old_one_open() {
        let dir = tempfile::tempdir().unwrap();
        let disk = disk(dir.path());
        let old = disk.open(&[1; 32], Kind::Data, How::Create).unwrap();
        write_full(&disk, &old, b"mapped", 0).unwrap();
        let new = disk.open(&[1; 32], Kind::Data, How::Create).unwrap();
        write_full(&disk, &new, b"new", 0).unwrap();
        let bytes = |file| {
            let mut bytes = [0; 16];
            let n = disk.read_at(file, &mut [IoSliceMut::new(&mut bytes)], 0, Waits::Yes).unwrap();
            bytes[..n].to_vec()
        };
        assert_eq!((bytes(&old), bytes(&new)), (b"mapped".to_vec(), b"new".to_vec()));
        assert_eq!(disk.stat(&[1; 32], Kind::Data).unwrap().len, 3);
    }

    #[test]
    fn what_is_not_ours_is_swept_and_what_links_point_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("keep"), "").unwrap();
        let disk = disk(dir.path());
        std::fs::create_dir_all(dir.path().join("v1/old/deep")).unwrap();
        std::fs::write(dir.path().join("v1/old/deep/file"), "x").unwrap();
        symlink(outside.path(), dir.path().join("v1/link")).unwrap();
        symlink(outside.path(), dir.path().join("link")).unwrap();
        std::fs::write(dir.path().join("lock"), "").unwrap();
        std::fs::create_dir_all(dir.path().join("v2/odd")).unwrap();
        drop(disk.open(&[1; 32], Kind::Meta, How::Create).unwrap());
        std::fs::write(dir.path().join("v2/01/junk"), "x").unwrap();
        disk.sweep().unwrap();
        assert_eq!(disk.list(1).unwrap(), [[1; 32]]);
        let names = |p: &str| {
            let mut names: Vec<_> = std::fs::read_dir(dir.path().join(p))
                .unwrap()
                .map(|e| e.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(""), ["lock", "v2"]);
        assert_eq!(names("v2"), ["01"]);
        assert_eq!(names("v2/01"), [format!("{}.meta", "01".repeat(32))]);
        assert!(outside.path().join("keep").exists());
    }

    #[test]
    fn a_sweep_ends_at_a_folder_that_is_nested_deeper_than_the_cache_ever_was() {
        let dir = tempfile::tempdir().unwrap();
        let disk = disk(dir.path());
        let deep = dir.path().join("v1").join(["n"; SWEEP_DEPTH as usize].join("/"));
        std::fs::create_dir_all(&deep).unwrap();
        assert!(disk.sweep().is_err());
        assert!(deep.exists());
        std::fs::remove_dir(&deep).unwrap();
        disk.sweep().unwrap();
        assert!(!dir.path().join("v1").exists());
    }
}
