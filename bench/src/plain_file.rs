//! A file on the disk of the caches, bound to the place of a mount: the floor of cached reads. The workload's own reader reads it, so a
//! difference to a peer comes from the file system. The directory is bound, so no other file system is in between.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use rustix::mount::mount_bind;

use crate::pattern::{base_of, fill};

/// Name of the file, as of the first big object.
const NAME: &str = "00000000";
/// Bytes per write.
const PIECE: u64 = 1 << 20;
/// Interval between checks whether the directory is still bound.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Writes a file of `size` bytes into `cache` and binds that directory over `dir`. Returns when it is unmounted.
///
/// # Errors
/// There is no room for the file, or no right to bind (only root has it).
pub(crate) fn serve(cache: &Path, dir: &Path, size: u64) -> anyhow::Result<()> {
    let path = cache.join(NAME);
    write_file(&path, size).with_context(|| format!("write {}", path.display()))?;
    mount_bind(cache, dir)
        .with_context(|| format!("bind {} over {} (only root may)", cache.display(), dir.display()))?;
    while dir.join(NAME).exists() {
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

fn write_file(path: &Path, size: u64) -> std::io::Result<()> {
    let file = File::create(path)?;
    let mut piece = vec![0; PIECE as usize];
    for offset in (0..size).step_by(PIECE as usize) {
        let piece = &mut piece[..PIECE.min(size - offset) as usize];
        fill(base_of(NAME), offset, piece);
        file.write_all_at(piece, offset)?;
    }
    Ok(())
}
