//! Helpers for the tests of rooms above.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;

use super::table::new_file;

/// A copy of a journal, which no process has locked.
pub(crate) fn copy(shared: &OwnedFd) -> OwnedFd {
    let mut bytes = Vec::new();
    let mut from = File::from(shared.try_clone().unwrap());
    from.rewind().unwrap();
    from.read_to_end(&mut bytes).unwrap();
    let mut to = File::from(new_file().unwrap());
    to.write_all(&bytes).unwrap();
    to.into()
}
