//! Checks that a command of another package, which a test runs, was built from the present sources.
//!
//! For a test, Cargo builds only the commands of its own package. Without this check the test would run a command of an earlier build.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The reason why this binary was not built from the present sources of the package: it is missing, or a source is newer. `None` if
/// it is up to date. Like Cargo, this compares the files' modification times.
pub fn stale(binary: &Path, package: &str) -> Option<String> {
    let Some(built) = modified(binary) else { return Some("it is not there".to_owned()) };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(package);
    let newest = newest(vec![folder.join("src"), folder.join("Cargo.toml")])?;
    (newest.0 > built).then(|| format!("{} was changed after it was built", newest.1.display()))
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

/// Names of files and folders that contain only tests; Cargo builds no command from them.
const OF_TESTS: [&str; 3] = ["tests", "tests.rs", "testing"];

/// The file with the latest change below these paths, and the time.
fn newest(mut left: Vec<PathBuf>) -> Option<(SystemTime, PathBuf)> {
    let mut newest = None;
    while let Some(path) = left.pop() {
        if path.file_name().is_some_and(|name| OF_TESTS.iter().any(|of_tests| name == *of_tests)) {
            continue;
        }
        match fs::read_dir(&path) {
            Ok(entries) => left.extend(entries.filter_map(Result::ok).map(|entry| entry.path())),
            Err(_) => newest = newest.max(modified(&path).map(|time| (time, path))),
        }
    }
    newest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_older_than_a_source_of_its_package_is_stale() {
        let folder = tempfile::tempdir().unwrap();
        let binary = folder.path().join("testkit");
        assert_eq!(stale(&binary, "ci/testkit").as_deref(), Some("it is not there"));
        let file = fs::File::create(&binary).unwrap();
        file.set_modified(SystemTime::now() + std::time::Duration::from_secs(60)).unwrap();
        assert_eq!(stale(&binary, "ci/testkit"), None);
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert!(stale(&binary, "ci/testkit").unwrap().contains("was changed after it was built"));
    }
}
