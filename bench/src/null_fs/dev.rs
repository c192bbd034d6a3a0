//! The null file system on mount-s3's own loop over `/dev/fuse`, mounted as mount-s3 mounts by default, with the same threads, read-ahead
//! and kernel capabilities. No other file of the bench uses the engine.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use anyhow::Context as _;
use clap::Parser as _;
use mountpoint::buffer::{self, BLOCK, Block, Pool, Use};
use mountpoint::cli::Args;
use mountpoint::config::Config;
use mountpoint::fs::{Attr, DirItem, Entry, Error, HandleNo, OpenFlags, Opened, Result, StatFs};
use mountpoint::fuse::{Operations, Session};
use mountpoint::inode::{InodeNo, Kind, ROOT};
use mountpoint::prefetch::Bytes;
use rustix::io::Errno;

use super::{Files, MEMORY, TTL};
use crate::pattern::fill;

/// The null file system. A handle's number is its inode's: an open file has no other state.
#[derive(Clone, Debug)]
struct NullFs(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    files: Files,
    /// The memory, in huge pages like the engine's.
    blocks: Vec<Block>,
}

pub(super) fn serve(dir: &Path, size: u64) -> anyhow::Result<()> {
    let args = Args::try_parse_from([OsStr::new("mount-s3"), OsStr::new("null-fs"), dir.as_os_str()])?;
    let Config { device, mount, .. } = Config::from_args(&args)?;
    // The runtime is for the loop's other work: requests of a null file system never wait.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
    let session =
        Session::start_with(device, NullFs::new(size)?, &mount, Arc::default(), runtime.handle().clone());
    session.and_then(|session| Ok(session.wait()?)).context("mount the null file system")
}

impl NullFs {
    fn new(size: u64) -> anyhow::Result<Self> {
        // Readers may always use a quarter of a pool.
        let pool =
            Pool::new(&buffer::Config { target: 4 * MEMORY.next_multiple_of(BLOCK as u64), network: 0 });
        let block = |offset: u64| {
            let mut block = pool.try_take(Use::Demand, BLOCK).context("memory for the null file system")?;
            fill(0, offset, block.spare());
            block.advance(BLOCK);
            Ok(block.freeze())
        };
        let blocks = (0..MEMORY).step_by(BLOCK).map(block).collect::<anyhow::Result<_>>()?;
        Ok(Self(Arc::new(Shared { files: Files::new(size), blocks })))
    }

    fn attr(&self, ino: InodeNo) -> Result<Attr> {
        let (kind, size) = match self.0.files.size(ino.0) {
            Some(size) => (Kind::File, size),
            None if ino == ROOT => (Kind::Directory, 0),
            None => return not_there(),
        };
        Ok(Attr {
            ino,
            kind,
            size,
            accessed: UNIX_EPOCH,
            modified: UNIX_EPOCH,
            mode: 0o755,
            links: 1,
            uid: 0,
            gid: 0,
            valid_for: TTL,
        })
    }

    fn bytes(&self, handle: HandleNo, offset: u64, len: usize) -> Result<Bytes> {
        let Some(span) = self.0.files.span(handle.0, offset, len as u64) else { return not_there() };
        let (mut bytes, mut at) = (Bytes::default(), span.start);
        while at < span.end {
            let from = at % BLOCK;
            let to = BLOCK.min(from + span.end - at);
            bytes.push(self.0.blocks[at / BLOCK].clone(), from..to);
            at += to - from;
        }
        Ok(bytes)
    }
}

fn not_there<T>() -> Result<T> {
    Err(Error::new(Errno::NOENT, "the null file system has no such file"))
}

impl Operations for NullFs {
    fn lookup(&self, _parent: InodeNo, name: &OsStr, done: impl FnOnce(Result<Entry>) + Send + 'static) {
        done(match self.0.files.inode(name) {
            Some(inode) => self.attr(InodeNo(inode)).map(|attr| Entry { attr, valid_for: TTL }),
            None => not_there(),
        });
    }

    fn forget(&self, _ino: InodeNo, _count: u64) {}

    fn getattr(&self, ino: InodeNo, done: impl FnOnce(Result<Attr>) + Send + 'static) {
        done(self.attr(ino));
    }

    fn open(
        &self,
        ino: InodeNo,
        flags: OpenFlags,
        _pid: u32,
        done: impl FnOnce(Result<Opened>) + Send + 'static,
    ) {
        done(Ok(Opened {
            handle: HandleNo(ino.0),
            keep_cache: false,
            direct: flags.direct,
            passthrough: None,
            closes_unseen: false,
        }));
    }

    fn read(
        &self,
        handle: HandleNo,
        offset: u64,
        len: usize,
        done: impl FnOnce(Result<Bytes>) + Send + 'static,
    ) {
        done(self.bytes(handle, offset, len));
    }

    fn flush(&self, _handle: HandleNo, _pid: u32, done: impl FnOnce(Result<()>) + Send + 'static) {
        done(Ok(()));
    }

    fn fsync(&self, _handle: HandleNo, done: impl FnOnce(Result<()>) + Send + 'static) {
        done(Ok(()));
    }

    fn nobody_waits(&self, _handle: HandleNo, _operation: &'static str) {}

    fn take_back(&self, _handle: HandleNo, _created: Option<InodeNo>) {}

    fn release(&self, _handle: HandleNo, done: impl FnOnce(Result<()>) + Send + 'static) {
        done(Ok(()));
    }

    fn opendir(&self, ino: InodeNo, done: impl FnOnce(Result<HandleNo>) + Send + 'static) {
        done(Ok(HandleNo(ino.0)));
    }

    /// Lists no names: programs look names up one by one.
    fn readdir(
        &self,
        _handle: HandleNo,
        _offset: u64,
        _max: usize,
        done: impl FnOnce(Result<Vec<DirItem>>) + Send + 'static,
    ) {
        done(Ok(Vec::new()));
    }

    fn remember(&self, _handle: HandleNo, items: &[DirItem]) -> Vec<Option<Entry>> {
        vec![None; items.len()]
    }

    fn releasedir(&self, _handle: HandleNo) {}

    fn statfs(&self) -> StatFs {
        StatFs { blocks: 0, block_size: 4096, files: 0, name_max: 255 }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use mountpoint::fs::Maker;

    use super::*;
    use crate::pattern::{self, PERIOD, base_of};

    /// The result of an operation that calls back before it returns.
    fn answer<T: Send + 'static>(ask: impl FnOnce(Box<dyn FnOnce(Result<T>) + Send>)) -> Result<T> {
        let (sender, receiver) = mpsc::channel();
        ask(Box::new(move |result| sender.send(result).unwrap()));
        receiver.try_recv().expect("nothing here waits")
    }

    #[test]
    fn every_read_has_the_bytes_of_its_file_wherever_it_begins_and_ends() {
        let size = 2 * PERIOD + 12_345;
        let fs = NullFs::new(size).unwrap();
        for name in ["00000000", "00000001", "00000002", "00000003", "00000004"] {
            let entry = answer(|done| fs.lookup(ROOT, name.as_ref(), done)).unwrap();
            assert_eq!(entry.attr.size, size);
            let flags = OpenFlags::default();
            let handle = answer(|done| fs.open(entry.attr.ino, flags, 1, done)).unwrap().handle;
            let base = base_of(name);
            let (block, to_end) = (BLOCK as u64, PERIOD - base);
            // Reads within a block, across two blocks, across the end of the pattern, and at and after the end of the file.
            for (offset, len) in [
                (0, 1),
                (0, BLOCK),
                (block - 1, 2),
                (4097, BLOCK - 4097),
                (to_end - 5, BLOCK),
                (to_end, BLOCK),
                (to_end + PERIOD - 1, BLOCK),
                (size - 3, 100),
                (size, 100),
            ] {
                let bytes = answer(|done| fs.read(handle, offset, len, done)).unwrap();
                assert_eq!(bytes.len() as u64, (len as u64).min(size - offset), "{name} {offset} {len}");
                pattern::check(base, offset, &bytes.to_vec()).unwrap();
            }
        }
    }

    #[test]
    fn names_that_it_has_not_are_enoent_and_changes_are_erofs() {
        let fs = NullFs::new(1).unwrap();
        let absent = answer(|done| fs.lookup(ROOT, "00000005".as_ref(), done)).unwrap_err();
        assert_eq!(absent.errno(), Errno::NOENT);
        let refused = [
            answer(|done| fs.write(HandleNo(2), 0, b"x", 0, done)).unwrap_err(),
            answer(|done| fs.unlink(ROOT, "00000000".into(), done)).unwrap_err(),
            answer(|done| fs.mkdir(ROOT, "x".into(), Maker::default(), done)).unwrap_err(),
            answer(|done| fs.create(ROOT, "x".into(), OpenFlags::default(), Maker::default(), 1, done))
                .unwrap_err(),
        ];
        assert_eq!(refused.map(|error| error.errno()), [Errno::ROFS; 4]);
    }
}
