//! Rooms whose files form no circle: no two files of such a room use each other, on whatever way around.
//!
//! A file stands for the files in the folder of its name, too. The room's `mod.rs` may use all of them, and they may use it: it holds the
//! words of the room.

use std::collections::{BTreeMap, BTreeSet};

use crate::law::{Law, PAGE};
use crate::rust::{Source, module_of};
use crate::tree::is_test_file;
use crate::{Finding, Tree};

/// What each file of a room uses of the others.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// The first circle of each room of the table.
pub fn check(tree: &Tree, law: &Law) -> Vec<Finding> {
    let mut findings = Vec::new();
    for room in &law.layered {
        let uses = uses(tree, room);
        if uses.is_empty() {
            findings.push(Finding::new(PAGE, 0, format!("`{room}` has no files that could form a circle")));
        }
        let mut done = BTreeSet::new();
        let circle = uses.keys().find_map(|file| circle(&uses, &mut vec![file.clone()], &mut done));
        findings.extend(circle.map(|files| {
            let round = [files.as_slice(), &files[..1]].concat().join(" -> ");
            let message = format!(
                "its files form a circle: {round}. Move what the lower one needs into it, or into a file below both \
                 (see \"Rooms without circles\" in {PAGE})"
            );
            Finding::new(room.clone(), 0, message)
        }));
    }
    findings
}

fn uses(tree: &Tree, room: &str) -> Uses {
    let Some((_, below_src)) = room.trim_end_matches('/').split_once("/src/") else { return Uses::new() };
    let place: Vec<String> = below_src.split('/').map(str::to_owned).collect();
    let mut uses = Uses::new();
    for (path, text) in tree.sources().filter(|(path, _)| path.starts_with(room) && !is_test_file(path)) {
        let Some((_, below)) = path.split_once("/src/") else { continue };
        let module = module_of(below);
        let Some(file) = module.get(place.len()) else { continue };
        let used = uses.entry(file.clone()).or_default();
        for name in Source::read(text, &module).names.into_iter().filter(|name| !name.in_test) {
            if name.segments[0] == "crate" && name.segments[1..].starts_with(&place) {
                used.extend(name.segments.get(place.len() + 1).filter(|other| *other != file).cloned());
            }
        }
    }
    // Names of `mod.rs` are no files.
    let files: BTreeSet<String> = uses.keys().cloned().collect();
    uses.values_mut().for_each(|used| used.retain(|name| files.contains(name)));
    uses
}

/// The first circle that is reached from the last file of `path`.
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

    const ROOM: &str = "mountpoint/src/inode/";

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(name, text)| (format!("{ROOM}{name}"), *text)).collect();
        let tree = Tree::of(&files.iter().map(|(path, text)| (path.as_str(), *text)).collect::<Vec<_>>());
        let law = Law { layered: vec![ROOM.to_owned()], ..Law::default() };
        check(&tree, &law).into_iter().map(|f| f.message).collect()
    }

    #[test]
    fn files_that_use_each_other_downwards_only_pass() {
        let files = [
            ("mod.rs", "mod tree; mod state; pub struct InodeNo; use tree::Tree;"),
            ("tree.rs", "use super::state::Inode; use super::InodeNo; use crate::inode::path::Prefix;"),
            ("tree/settle.rs", "use super::Tree; use crate::inode::path::Prefix;"),
            ("state.rs", "use super::path::Prefix; #[cfg(test)] mod tests { use super::super::tree::Tree; }"),
            ("path.rs", "//! [`super::tree`]\nuse crate::object::ObjectKey;"),
            ("tests.rs", "use super::tree::Tree;"),
        ];
        assert_eq!(findings(&files), Vec::<String>::new());
    }

    #[test]
    fn a_circle_is_found_however_long_it_is_and_however_it_is_written() {
        for files in [
            [("a.rs", "use super::b::B;"), ("b.rs", "fn f() { super::a::g() }"), ("c.rs", "")],
            [
                ("a.rs", "use super::b::B;"),
                ("b.rs", "use crate::inode::c::C;"),
                ("c.rs", "use super::{a, b};"),
            ],
            [("a/x.rs", "use super::super::b::B;"), ("a.rs", "mod x;"), ("b.rs", "use super::a::A;")],
        ] {
            let found = findings(&files);
            assert!(found.len() == 1 && found[0].contains("a -> b"), "{files:?}: {found:?}");
        }
    }

    #[test]
    fn a_room_of_the_table_that_is_not_there_is_found() {
        assert_eq!(findings(&[]).len(), 1);
    }
}
