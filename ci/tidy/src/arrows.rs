//! Arrows between the rooms of the released crates, and names that only some files may use.
//!
//! Calls go down and data comes back up; a lower room never calls an upper room. The table "Arrows" must list every room that a path
//! points to, in the row of the path's own room or file. Rooms of the engine have plain names; rooms of other crates have the crate's
//! name before them (`csi::node`). The arrows do not apply to code below `#[cfg(test)]` and in test files: it may use the doubles of
//! `testing`, and the other parts that the tested code needs.

use crate::law::{ARROWS, Law};
use crate::rust::{Name, Source, module_of};
use crate::tree::is_test_file;
use crate::{Finding, Tree};

/// The released crates, the engine first: its rooms need no prefix in the table.
const CRATES: [&str; 3] = [ENGINE, "csi", "reconciler"];
const ENGINE: &str = "mountpoint";

/// Checks every source by both rules.
pub fn check(tree: &Tree, law: &Law) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.sources() {
        let Some((home, below)) = path.split_once("/src/") else { continue };
        let source = Source::read(text, &module_of(below));
        let product = |n: &&Name| !n.in_test && !is_test_file(path);
        for name in source.names.iter().filter(product) {
            let complaint = place(path, name, law).or_else(|| {
                CRATES.contains(&home).then(|| arrow(home, below.trim_end_matches(".rs"), name, law))?
            });
            findings.extend(complaint.map(|c| Finding::new(path, name.line, c)));
        }
    }
    findings
}

/// The finding about the file `file` (`inode/path`) of the crate `home` that uses `name`; `None` if it may.
fn arrow(home: &str, file: &str, name: &Name, law: &Law) -> Option<String> {
    let [root, first, ..] = name.segments.as_slice() else { return None };
    // A command of a crate uses the crate's library under the crate's own name.
    let ours = root == "crate" || root == home;
    let theirs = !ours && CRATES.contains(&root.as_str());
    let room = file.split('/').next().unwrap_or_default();
    if !(ours && first != room || theirs) {
        return None;
    }
    let in_table = |name: &str| if home == ENGINE { name.to_owned() } else { format!("{home}::{name}") };
    let mut keys = vec![file, room];
    keys.extend(file.match_indices('/').map(|(i, _)| &file[..i]));
    let rows: Vec<_> = keys.iter().filter_map(|k| law.arrows.get(&in_table(k))).collect();
    if rows.is_empty() {
        return Some(format!("room `{}` has no row in the table Arrows of {ARROWS}", in_table(room)));
    }
    let used = name.segments[usize::from(ours)..].join("::");
    let allowed = rows.iter().flat_map(|r| r.iter()).any(|a| a == "*" && ours || is_path_prefix(a, &used));
    let known = theirs || law.arrows.contains_key(&in_table(first));
    match (allowed, known) {
        (true, _) => None,
        (false, true) => Some(format!(
            "`{}` may not use `{used}`: that arrow points up or across. Return a value, or move the code (see \
             {ARROWS})",
            in_table(room)
        )),
        (false, false) => {
            Some(format!("`crate::{used}` goes through the crate's root: name the room that owns it"))
        }
    }
}

/// The finding about a file that uses this path of a library; `None` if it may.
fn place(path: &str, name: &Name, law: &Law) -> Option<String> {
    let used = name.text();
    let tail = |pattern: &str| {
        // With `use std::env`, `env::var` is `std::env::var`.
        pattern.strip_prefix("std::").is_some_and(|p| p.contains("::") && is_path_prefix(p, &used))
    };
    let (pattern, places) = law.places.iter().find(|(p, _)| is_path_prefix(p, &used) || tail(p))?;
    let crate_of = |p: &str| p.split('/').next().map(str::to_owned);
    // A rule applies to the crates of its places.
    let concerned = places.iter().any(|p| crate_of(p) == crate_of(path));
    let allowed = places.iter().any(|p| path == p || (p.ends_with('/') && path.starts_with(p)));
    (concerned && !allowed).then(|| format!("`{pattern}` may be named only in {}", places.join(", ")))
}

/// Whether `path` is `prefix` or a path below it.
fn is_path_prefix(prefix: &str, path: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::law::{FENCES, PLACES};

    const LAW: &str = "## Arrows\n| `object` | - |\n| `buffer` | `object` |\n| `s3` | `buffer`, `object` |\n\
        | `inode` | `s3`, `object` |\n| `fs` | `inode`, `object` |\n| `fs/error` | `s3::ErrorKind` |\n\
        | `fuse` | `fs`, `inode::InodeNo` |\n| `main`, `lib`, `mount` | `*` |\n\
        | `csi::node` | `mounter`, `mountpoint::cli` |\n| `csi::mounter` | `contract` |\n| `csi::contract` | - |\n\
        | `csi::bin/driver` | `*` |\n| `reconciler::plan` | `csi::contract` |\n";
    const NAMES: &str = "## Names that stay in one place\n| `fuser` | `mountpoint/src/fuse/` |\n\
        | `std::env::var` | `mountpoint/src/cli.rs` |\n| `hyper` | `mountpoint/src/s3/` |\n";
    const NO_FENCES: &str = "## Unsafe fences\n| `a.rs` | |\n";

    fn findings(path: &str, text: &str) -> Vec<String> {
        let tree = Tree::of(&[(ARROWS, LAW), (PLACES, NAMES), (FENCES, NO_FENCES), (path, text)]);
        check(&tree, &Law::read(&tree).unwrap()).into_iter().map(|f| f.message).collect()
    }

    #[test]
    fn an_arrow_of_the_table_passes() {
        for (path, text) in [
            (
                "mountpoint/src/s3/get.rs",
                "use crate::buffer::Fill; use crate::s3::Error; use super::list::page;",
            ),
            (
                "mountpoint/src/fuse/mod.rs",
                "use crate::inode::InodeNo; use crate::fs::FileSystem; use fuser::Request;",
            ),
            ("mountpoint/src/fs/error.rs", "use crate::s3::ErrorKind;"),
            ("mountpoint/src/mount.rs", "use crate::{fuse::Session, s3::S3Client};"),
            ("mountpoint/src/main.rs", "fn main() { mountpoint::mount::run() }"),
            ("mountpoint/src/fuse/main.rs", "mod top; use mountpoint::fs::Error; fn main() { top::run() }"),
            ("mountpoint/src/inode/path.rs", "#[cfg(test)] mod tests { use crate::fs::FileSystem; }"),
            ("mountpoint/src/inode/tests.rs", "use crate::fs::FileSystem;"),
            ("csi/src/node/options.rs", "use crate::mounter::Mounter; use mountpoint::cli::Args;"),
            ("csi/src/bin/driver.rs", "use csi::node::NodeService;"),
            ("reconciler/src/plan.rs", "use csi::contract::pod; use std::fmt;"),
        ] {
            assert_eq!(findings(path, text), Vec::<String>::new(), "{path}: {text}");
        }
    }

    #[test]
    fn an_arrow_that_points_up_or_across_is_found_however_it_is_written() {
        for (path, text) in [
            ("mountpoint/src/buffer/mod.rs", "use crate::s3::Error;"),
            ("mountpoint/src/s3/mod.rs", "use crate::{object::ETag, fs};"),
            ("mountpoint/src/s3/mod.rs", "fn f() -> crate::inode::Error { todo }"),
            ("mountpoint/src/s3/retry.rs", "use super::super::inode::InodeTable;"),
            ("mountpoint/src/object.rs", "use crate::buffer::Block;"),
            ("mountpoint/src/fs/file.rs", "use crate::s3::ErrorKind;"),
            ("mountpoint/src/fs/error.rs", "use crate::s3::S3Client;"),
            ("mountpoint/src/fuse/mod.rs", "use crate::inode::InodeTable;"),
            ("mountpoint/src/inode/mod.rs", "use crate::mount::Config;"),
            ("mountpoint/src/inode/mod.rs", "use crate::Config;"),
            ("mountpoint/src/inode/mod.rs", "use crate::*;"),
            ("mountpoint/src/attic/mod.rs", "use crate::object::ETag;"),
            ("mountpoint/src/fuse/main.rs", "use mountpoint::s3::Error;"),
            ("mountpoint/src/s3/mod.rs", "use csi::contract::pod;"),
            ("csi/src/contract/pod.rs", "use crate::mounter::Mounter;"),
            ("csi/src/mounter/pod.rs", "use crate::node::NodeService;"),
            ("csi/src/node/mod.rs", "use mountpoint::s3::S3Client;"),
            ("csi/src/bin/driver.rs", "use mountpoint::s3::S3Client;"),
            ("reconciler/src/plan.rs", "use csi::mounter::Mounter;"),
        ] {
            assert_eq!(findings(path, text).len(), 1, "{path}: {text}");
        }
    }

    #[test]
    fn a_library_named_outside_its_place_is_found() {
        for (path, text) in [
            ("mountpoint/src/fs/mod.rs", "use fuser::FileAttr;"),
            ("mountpoint/src/inode/mod.rs", "fn f() { hyper::body::to_bytes() }"),
            ("mountpoint/src/fs/mod.rs", "fn f() { std::env::var(\"X\") }"),
            ("mountpoint/src/fs/mod.rs", "use std::env; fn f() { env::var(\"X\") }"),
        ] {
            assert_eq!(findings(path, text).len(), 1, "{path}: {text}");
        }
        assert!(findings("mountpoint/src/cli.rs", "fn f() { std::env::var(\"X\") }").is_empty());
        assert!(findings("mountpoint/src/fs/mod.rs", "fn f() { std::env::args() }").is_empty());
        assert!(findings("s3server/src/http.rs", "use hyper::Body;").is_empty(), "a rule of another crate");
    }
}
