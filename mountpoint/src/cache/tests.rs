//! The cache as a whole, on a real directory.

mod faults;
mod hung;
mod index;
mod later;
mod measure;
#[cfg(feature = "shuttle")]
mod model;
mod power;
mod proof;
mod races;
mod seal;
mod soundness;
mod start;
mod whole;

use std::path::{Path, PathBuf};

use super::format::crc32c;
use super::io::{BlockIo, Disk};
use super::store::Store;
use super::*;
use crate::buffer::{Pool, Use};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::object::{ETag, ObjectKey};
use crate::sync::Arc;
use crate::sync::atomic::AtomicBool;

const MIB: u64 = 1 << 20;

fn id(key: &str, etag: &str) -> ObjectId {
    ObjectId::by_etag(ObjectKey::new(key), ETag::new(etag))
}

/// Bytes of an object version: different for each, at each offset, and never zeros.
fn content(id: &ObjectId, range: Range<u64>) -> Vec<u8> {
    let seed = u64::from(crc32c(format!("{id:?}").as_bytes()));
    range.map(|i| ((i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 | 1).collect()
}

fn block_range(size: u64, block: u64) -> Range<u64> {
    block * CACHE_BLOCK..size.min((block + 1) * CACHE_BLOCK)
}

fn config(dir: &Path, size_max: Option<u64>) -> Config {
    Config { size_max, ..Config::new(dir, "https://s3.test", "bucket") }
}

fn disk(dir: &Path) -> Box<dyn BlockIo> {
    Box::new(Disk::new(std::fs::File::open(dir).unwrap().into()).unwrap())
}

/// The disk side without threads, its index not loaded yet.
fn store_with(io: Box<dyn BlockIo>, dir: &Path, size_max: Option<u64>) -> Store {
    Store::new(io, &config(dir, size_max), 8, Clock::manual(), Arc::new(Metrics::default()))
}

fn store(dir: &Path, size_max: Option<u64>) -> Store {
    let store = store_with(disk(dir), dir, size_max);
    store.load_all(&AtomicBool::new(false));
    store
}

/// Whether the cache may have a sector of a block.
trait Contains {
    fn contains(&self, id: &ObjectId, block: BlockIndex) -> bool;
}

impl<C: BlockCache> Contains for C {
    fn contains(&self, id: &ObjectId, block: BlockIndex) -> bool {
        !self.present(id, block).is_empty()
    }
}

impl Store {
    fn contains(&self, id: &ObjectId, block: BlockIndex) -> bool {
        !self.present(id, block).is_empty()
    }
}

fn put(store: &Store, id: &ObjectId, size: u64, block: u64) -> bool {
    store.write(id, size, block * CACHE_BLOCK, &content(id, block_range(size, block)))
}

/// Reads a range, first without waiting, then with. Asserts that returned bytes are the object's.
fn read(store: &Store, id: &ObjectId, size: u64, range: Range<u64>) -> bool {
    let mut into = vec![0; (range.end - range.start) as usize];
    if store.read_now(id, size, &range, &mut into) == Now::Here {
        assert!(into == content(id, range.clone()), "wrong bytes of {id:?} at {range:?}, at once");
    }
    into.fill(0);
    let hit = store.read(id, size, &range, &mut into);
    if hit {
        assert!(into == content(id, range.clone()), "wrong bytes of {id:?} at {range:?}");
    }
    hit
}

fn read_block(store: &Store, id: &ObjectId, size: u64, block: u64) -> bool {
    read(store, id, size, block_range(size, block))
}

/// The files of the cache, data before sidecars.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some() {
                found.push(path);
            }
        }
    }
    found.sort_by_key(|p| (p.extension().unwrap().to_owned(), p.clone()));
    found
}

/// Bytes the files take on disk.
fn on_disk(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    files(dir).iter().map(|p| std::fs::metadata(p).unwrap().blocks() * 512).sum()
}
