//! Single operations on a mount. Each returns whether it failed, or succeeded with wrong bytes.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Scene;

/// Size of one read or write, in bytes.
const PIECE: usize = 256 << 10;

/// The result of an operation that did not succeed.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The file system reported an error.
    Failed(io::Error),
    /// The bytes are wrong, without an error.
    Wrong(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// A file with known content.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) name: String,
    pub(super) content: u64,
    pub(super) len: u64,
}

impl Known {
    pub(super) fn new(name: impl Into<String>, content: u64, len: u64) -> Self {
        Self { name: name.into(), content, len }
    }

    /// Writes the file into the store, before the mount has seen it.
    ///
    /// # Panics
    /// The folder can't be written.
    pub(super) fn plant(&self, place: Scene<'_>) {
        let path = place.folder.join(&self.name);
        fs::create_dir_all(path.parent().expect("a folder above")).expect("make a folder in the store");
        self.write_to(place, &mut File::create(path).expect("plant a file")).expect("plant a file");
    }

    fn write_to(&self, place: Scene<'_>, file: &mut File) -> io::Result<()> {
        let mut buffer = vec![0; PIECE];
        for at in (0..self.len).step_by(PIECE) {
            let piece = &mut buffer[..PIECE.min((self.len - at) as usize)];
            (place.fill)(self.content, at, piece);
            file.write_all(piece)?;
        }
        Ok(())
    }

    /// Reads the file to its end.
    pub(super) fn read(&self, place: Scene<'_>) -> Result<(), Trouble> {
        self.read_from(place, &place.mount.join(&self.name), &AtomicBool::new(false))
    }

    /// Reads the file to its end, or until `enough` is set.
    pub(super) fn read_until(&self, place: Scene<'_>, enough: &AtomicBool) -> Result<(), Trouble> {
        self.read_from(place, &place.mount.join(&self.name), enough)
    }

    /// Creates and writes the file, and checks that it is stored.
    pub(super) fn write(&self, place: Scene<'_>) -> Result<(), Trouble> {
        let mut file = File::create_new(place.mount.join(&self.name))?;
        self.write_to(place, &mut file)?;
        file.sync_all()?;
        drop(file);
        // The bytes are read from the store's folder, not through the mount: they must be stored.
        let stored = self.read_from(place, &place.folder.join(&self.name), &AtomicBool::new(false));
        stored.map_err(|trouble| match trouble {
            Trouble::Failed(error) => {
                Trouble::Wrong(format!("fsync succeeded, and the store has no such object: {error}"))
            }
            Trouble::Wrong(how) => {
                Trouble::Wrong(format!("fsync succeeded, and the stored object is another: {how}"))
            }
        })
    }

    fn read_from(&self, place: Scene<'_>, path: &Path, enough: &AtomicBool) -> Result<(), Trouble> {
        let mut file = File::open(path)?;
        let (mut got, mut wanted) = (vec![0; PIECE], vec![0; PIECE]);
        let mut at = 0;
        while !enough.load(Ordering::Relaxed) {
            let n = file.read(&mut got)?;
            if n == 0 {
                let short = || Trouble::Wrong(format!("it ends at {at}, not at {}", self.len));
                return if at == self.len { Ok(()) } else { Err(short()) };
            }
            (place.fill)(self.content, at, &mut wanted[..n]);
            if got[..n] != wanted[..n] {
                return Err(Trouble::Wrong(format!("wrong bytes in the {n} from {at} on")));
            }
            at += n as u64;
        }
        Ok(())
    }
}

/// Lists a directory, which must have this number of names.
pub(super) fn list(place: Scene<'_>, name: &str, names: usize) -> Result<(), Trouble> {
    let mut listed = 0;
    for entry in fs::read_dir(place.mount.join(name))? {
        entry?;
        listed += 1;
    }
    if listed == names { Ok(()) } else { Err(Trouble::Wrong(format!("{listed} names, not {names}"))) }
}
