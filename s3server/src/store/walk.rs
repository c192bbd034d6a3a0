//! Finds the objects with escaped names at the start.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::entry::{Entry, KeyPath};
use super::journal::Remembered;
use super::keys;
use super::list::Sorted;
use super::meta::Identity;

/// Adds the objects with escaped names to the index. Files that are not the path of a key are left alone and logged.
pub(super) fn escaped(
    root: &Path,
    remembered: &Remembered,
    index: &mut Sorted<Arc<Entry>>,
) -> io::Result<()> {
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for found in fs::read_dir(root.join(&folder))? {
            let found = found?;
            let Ok(name) = found.file_name().into_string() else { continue };
            let path = format!("{folder}{name}");
            let kind = found.file_type()?;
            if kind.is_dir() {
                folders.push(path + "/");
            } else if let Some(key) = keys::key_of_escaped(&path).filter(|_| kind.is_file()) {
                let identity = Identity::of(&found.metadata()?);
                let entry = Entry::of_file(&key, identity, KeyPath::Escaped, remembered);
                index.insert(key.into_bytes().into(), entry);
            } else {
                tracing::warn!(path, "left alone: no key has this escaped name");
            }
        }
    }
    Ok(())
}
