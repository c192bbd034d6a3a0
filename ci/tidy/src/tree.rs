//! The files of the workspace as text, by path from its top.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Folders without files of ours: of builds, git and tools.
const SKIPPED: [&str; 7] = ["target", ".git", ".cache", "corpus", "artifacts", "coverage", "__pycache__"];

/// The text files by path (`mountpoint/src/lib.rs`).
#[derive(Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// A tree of these files, for tests.
    pub fn of(files: &[(&str, &str)]) -> Self {
        Self { files: files.iter().map(|(p, t)| ((*p).to_owned(), (*t).to_owned())).collect() }
    }

    /// The files of the workspace that contains this crate.
    ///
    /// # Errors
    /// A folder or file can't be read.
    pub fn of_this_workspace() -> Result<Self, String> {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut tree = Self::default();
        tree.walk(&top, "")?;
        Ok(tree)
    }

    fn walk(&mut self, folder: &Path, prefix: &str) -> Result<(), String> {
        let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for entry in entries {
            let entry = entry.map_err(|e| format!("{}: {e}", folder.display()))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type().map_err(|e| format!("{path}: {e}"))?;
            if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
                self.walk(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() && name != ".git" {
                let bytes = fs::read(entry.path()).map_err(|e| format!("{path}: {e}"))?;
                if let Ok(text) = String::from_utf8(bytes) {
                    self.files.insert(path, text);
                }
            }
        }
        Ok(())
    }

    /// Path and text of every file.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(p, t)| (p.as_str(), t.as_str()))
    }

    /// The text of one file.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Every Rust source.
    pub fn sources(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(p, _)| p.ends_with(".rs"))
    }
}

/// Whether a file contains only tests, according to its path.
pub fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/") || path.contains("/benches/")
}
