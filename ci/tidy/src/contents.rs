//! Tables of contents: if the methods of a type are in several files, its doc comment names each of them.

use crate::tree::is_test_file;
use crate::{Finding, Tree};

/// The header of such a table in a doc comment.
const HEAD: &str = "/// | file |";

/// A table of contents: its line, its type, and the files and folders in it.
struct Contents<'a> {
    line: usize,
    of: &'a str,
    names: Vec<&'a str>,
}

/// Finds files with methods of a type that are missing in the type's table.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.sources().filter(|(path, _)| path.contains("/src/")) {
        let Some((folder, _)) = path.rsplit_once('/') else { continue };
        for table in read(text) {
            let lacks = tree
                .sources()
                .filter(|(other, _)| *other != path && !is_test_file(other))
                .filter_map(|(other, text)| {
                    let file = other.strip_prefix(folder)?.strip_prefix('/')?;
                    let is_named =
                        |name: &&str| *name == file || name.ends_with('/') && file.starts_with(*name);
                    (has_methods(text, table.of) && !table.names.iter().any(is_named)).then_some(file)
                });
            findings.extend(lacks.map(|file| {
                let message =
                    format!("`{}` has methods in `{file}`, which its table does not name", table.of);
                Finding::new(path, table.line, message)
            }));
        }
    }
    findings
}

fn read(text: &str) -> Vec<Contents<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    let heads = (0..lines.len()).filter(|&at| lines[at].starts_with(HEAD));
    heads
        .filter_map(|at| {
            let rows = lines[at..].iter().take_while(|line| line.starts_with("/// |"));
            let cells = rows.filter_map(|row| row.split('|').nth(1));
            let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
            let item = lines[at..].iter().find(|line| !line.starts_with("///") && !line.starts_with("#["))?;
            let of = item.split_once("struct ")?.1;
            let of = of.split(|c: char| !c.is_alphanumeric()).next()?;
            Some(Contents { line: at + 1, of, names })
        })
        .collect()
}

/// Whether a file has an `impl` block of the type. Indented blocks, as in tests, do not count.
fn has_methods(text: &str, of: &str) -> bool {
    text.lines().any(|line| {
        line.strip_prefix("impl ")
            .and_then(|line| line.strip_prefix(of))
            .is_some_and(|rest| rest.starts_with(" {"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOC: &str = "/// The tree.\n///\n/// | file | methods |\n/// |---|---|\n/// | `tree/a.rs`, `b.rs` | some |\n\
        /// | `full/` | all |\n#[derive(Debug)]\npub(super) struct Tree {\n";

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let mut all = vec![("m/src/inode/tree.rs", DOC)];
        all.extend(files);
        check(&Tree::of(&all)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn files_of_the_table_and_of_its_folders_pass() {
        let files = [
            ("m/src/inode/tree/a.rs", "impl Tree {\n"),
            ("m/src/inode/b.rs", "impl Tree {\n"),
            ("m/src/inode/full/c.rs", "impl Tree {\n"),
            ("m/src/inode/d.rs", "impl Treetop {\n"),
            ("m/src/inode/tests.rs", "impl Tree {\n"),
            ("m/src/other/tree.rs", "impl Tree {\n"),
        ];
        assert_eq!(findings(&files), Vec::<String>::new());
    }

    #[test]
    fn a_file_with_methods_that_the_table_lacks_is_found() {
        let found = findings(&[("m/src/inode/new.rs", "impl Tree {\n")]);
        assert_eq!(
            found,
            ["m/src/inode/tree.rs:3: `Tree` has methods in `new.rs`, which its table does not name"]
        );
    }
}
