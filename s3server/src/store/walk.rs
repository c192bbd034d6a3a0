//! Finds the objects in the folders at the start.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::bucket::{Entry, Place};
use super::journal::Remembered;
use super::keys;
use super::list::Sorted;
use super::meta::{Identity, Meta};

/// What was remembered of this very file, else what can be said of any file.
pub(super) fn entry(key: &str, identity: Identity, place: Place, remembered: &Remembered) -> Arc<Entry> {
    let meta = remembered
        .get(key)
        .and_then(|versions| versions.iter().rev().find(|(file, _)| *file == identity))
        .map_or_else(|| Arc::new(Meta::derived(&identity)), |(_, meta)| meta.clone());
    Arc::new(Entry { identity, place, meta })
}

/// Adds the objects with escaped names. Files that no key maps to are left alone and named in the log.
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
                let entry = entry(&key, identity, Place::Escaped, remembered);
                index.insert(key.into_bytes().into(), entry);
            } else {
                tracing::warn!(path, "left alone: no key has this escaped name");
            }
        }
    }
    Ok(())
}
