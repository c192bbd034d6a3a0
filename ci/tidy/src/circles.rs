//! Finds circles: files of a folder that use each other, directly or by way of others. Without circles a folder can be read from its
//! lowest file up.
//!
//! A file also stands for the files in the folder with its name. The `mod.rs` of a folder, and the root of a crate, have the folder's
//! common words: they may use all of its files, and these may use them. A name that they only re-export (`pub use state::Inode`) counts as
//! a name of the file that it comes from.

use std::collections::{BTreeMap, BTreeSet};

use crate::law::ARROWS;
use crate::rust::{Name, Source, module_of};
use crate::tree::is_test_file;
use crate::{Finding, Tree};

/// The files of its folder that each file uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// A file with product code.
struct File {
    /// The source folder of its crate: `mountpoint/src`.
    src: String,
    module: Vec<String>,
    /// Names that its product code uses.
    names: Vec<Name>,
}

/// Finds the first circle of each folder.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let files: Vec<File> = tree.sources().filter_map(|(path, text)| File::read(path, text)).collect();
    let folders: BTreeSet<(&str, &[String])> = files
        .iter()
        .flat_map(|file| (0..file.module.len()).map(move |depth| (file.src.as_str(), &file.module[..depth])))
        .collect();
    let mut findings = Vec::new();
    for (src, place) in folders {
        let folder = place.iter().fold(format!("{src}/"), |path, name| path + name + "/");
        let uses = uses(&files, src, place);
        let mut done = BTreeSet::new();
        let circle = uses.keys().find_map(|file| circle(&uses, &mut vec![file.clone()], &mut done));
        findings.extend(circle.map(|files| {
            let round = [files.as_slice(), &files[..1]].concat().join(" -> ");
            let message = format!(
                "its files form a circle: {round}. Move what the lower one needs into it, or into a file below both \
                 (see \"No circles\" in {ARROWS})"
            );
            Finding::new(folder, 0, message)
        }));
    }
    findings
}

impl File {
    /// Reads a file; `None` for test code, and for a command, which is a separate crate beside the library.
    fn read(path: &str, text: &str) -> Option<Self> {
        let (of_crate, below) = path.split_once("/src/")?;
        if is_test_file(path) || below.starts_with("bin/") {
            return None;
        }
        let module = module_of(below);
        let names = Source::read(text, &module).names.into_iter().filter(|name| !name.in_test).collect();
        Some(Self { src: format!("{of_crate}/src"), module, names })
    }
}

/// The files that each file of the folder `place` uses.
fn uses(files: &[File], src: &str, place: &[String]) -> Uses {
    let of_crate = || files.iter().filter(move |file| file.src == src);
    let inside =
        || of_crate().filter(move |file| file.module.len() > place.len() && file.module.starts_with(place));
    let mut uses: Uses = inside().map(|file| (file.module[place.len()].clone(), BTreeSet::new())).collect();
    let here: BTreeSet<String> = uses.keys().cloned().collect();
    let words = of_crate().filter(|file| file.module == place).flat_map(|words| &words.names);
    let handed_on: BTreeMap<&str, &String> = words
        .filter_map(|name| {
            let from =
                below(name, place).or_else(|| name.segments.first()).filter(|from| here.contains(*from))?;
            Some((name.imported.as_deref()?, from))
        })
        .collect();
    for file in inside() {
        let own = &file.module[place.len()];
        for first in file.names.iter().filter_map(|name| below(name, place)) {
            let other = here.get(first).or_else(|| handed_on.get(first.as_str()).copied());
            if let Some(other) = other.filter(|other| *other != own) {
                uses.entry(own.clone()).or_default().insert(other.clone());
            }
        }
    }
    uses
}

/// The file of the folder `place` to which a name belongs.
fn below<'a>(name: &'a Name, place: &[String]) -> Option<&'a String> {
    let (root, rest) = name.segments.split_first()?;
    (root == "crate" && rest.starts_with(place)).then(|| rest.get(place.len()))?
}

/// The first circle that can be reached from the last file of `path`.
fn circle(uses: &Uses, path: &mut Vec<String>, done: &mut BTreeSet<String>) -> Option<Vec<String>> {
    let file = path.last()?.clone();
    for next in &uses[&file] {
        if let Some(start) = path.iter().position(|other| other == next) {
            return Some(path[start..].to_vec());
        }
        if !done.contains(next) {
            path.push(next.clone());
            if let Some(found) = circle(uses, path, done) {
                return Some(found);
            }
            path.pop();
        }
    }
    done.insert(file);
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> =
            files.iter().map(|(name, text)| (format!("mountpoint/src/{name}"), *text)).collect();
        let tree = Tree::of(&files.iter().map(|(path, text)| (path.as_str(), *text)).collect::<Vec<_>>());
        check(&tree).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn files_that_use_each_other_downwards_only_pass() {
        let files = [
            (
                "inode/mod.rs",
                "mod tree; mod state; pub struct InodeNo; use tree::Tree; pub use state::Inode;",
            ),
            ("inode/tree.rs", "use super::{Inode, InodeNo, Tree}; use crate::inode::path::Prefix;"),
            ("inode/tree/settle.rs", "use super::Tree; use crate::inode::path::Prefix;"),
            (
                "inode/state.rs",
                "use super::path::Prefix; #[cfg(test)] mod tests { use super::super::tree::Tree; }",
            ),
            ("inode/path.rs", "//! [`super::tree`]\nuse crate::object::ObjectKey;"),
            ("inode/tests.rs", "use super::tree::Tree;"),
            ("object.rs", ""),
        ];
        assert_eq!(findings(&files), Vec::<String>::new());
    }

    #[test]
    fn a_circle_is_found_however_long_it_is_and_however_it_is_written() {
        for files in [
            [("i/a.rs", "use super::b::B;"), ("i/b.rs", "fn f() { super::a::g() }"), ("i/c.rs", "")],
            [
                ("i/a.rs", "use super::b::B;"),
                ("i/b.rs", "use crate::i::c::C;"),
                ("i/c.rs", "use super::{a, b};"),
            ],
            [("i/a/x.rs", "use super::super::b::B;"), ("i/a.rs", "mod x;"), ("i/b.rs", "use super::a::A;")],
        ] {
            let found = findings(&files);
            assert!(
                found.len() == 1 && found[0].contains("src/i/: ") && found[0].contains("a -> b"),
                "{files:?}: {found:?}"
            );
        }
    }

    #[test]
    fn a_reexported_name_belongs_to_the_file_that_defines_it() {
        for words in [
            "mod a; mod b; pub use a::A;",
            "pub use self::a::{A, Other};",
            "pub(crate) use a::Odd as A;",
            "use crate::i::a::A;",
        ] {
            for at in ["i/mod.rs", "i.rs"] {
                let found =
                    findings(&[(at, words), ("i/a.rs", "use super::b;"), ("i/b.rs", "use super::A;")]);
                assert_eq!(found.len(), 1, "{at}: {words}");
            }
        }
        let own = [("i/mod.rs", "pub struct A;"), ("i/a.rs", "use super::b;"), ("i/b.rs", "use super::A;")];
        assert!(findings(&own).is_empty());
    }

    #[test]
    fn rooms_of_a_crate_form_no_circle_and_a_command_is_its_own_crate() {
        let found =
            findings(&[("s3/get.rs", "use crate::fs::File;"), ("fs/mod.rs", "use crate::s3::Client;")]);
        assert!(found.len() == 1 && found[0].contains("mountpoint/src/: "), "{found:?}");
        let command = [("bin/a.rs", "use crate::b::B;"), ("b.rs", "use crate::bin::C;")];
        assert!(findings(&command).is_empty());
    }
}
