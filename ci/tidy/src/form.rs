//! The form of a file: its length, its header, its fences, no paths of a build machine.

use crate::law::{FENCES, Law};
use crate::{Finding, Tree};

/// Most lines of a file. A longer file is about two things, and should be split.
const LINES_MAX: usize = 600;

/// Top folders of the build machines. Paths below them mean nothing on other machines.
const MACHINE_FOLDERS: [&str; 3] = ["work", "farm", "root"];

/// Checks every file by every rule of this file.
pub fn check(tree: &Tree, law: &Law) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.files() {
        if path.ends_with(".rs") {
            findings.extend(length(path, text));
            findings.extend(header(path, text));
            findings.extend(fence(path, text, law));
        }
        if !path.ends_with(".lock") {
            findings.extend(machine_paths(path, text));
        }
    }
    let gone = law.fences.iter().filter(|f| tree.text(f).is_none_or(|t| !expects_unsafe(t)));
    findings.extend(
        gone.map(|f| Finding::new(FENCES, 0, format!("fence `{f}` holds no unsafe code: drop its row"))),
    );
    findings
}

fn length(path: &str, text: &str) -> Option<Finding> {
    let lines = text.lines().count();
    (lines > LINES_MAX)
        .then(|| Finding::new(path, 0, format!("{lines} lines, at most {LINES_MAX}: look for the seam")))
}

fn header(path: &str, text: &str) -> Option<Finding> {
    let wants_one = path.contains("/src/") || path.contains("/fuzz_targets/");
    (wants_one && !text.starts_with("//!")).then(|| {
        Finding::new(path, 1, "no `//!` header: say what enters, what leaves, what this file never does")
    })
}

/// Checks the fences. `unsafe_code` is denied for the whole workspace, so unsafe code must lift the lint, and this rule searches for that.
fn fence(path: &str, text: &str, law: &Law) -> Option<Finding> {
    (expects_unsafe(text) && !law.fences.iter().any(|f| f == path)).then(|| {
        Finding::new(
            path,
            0,
            format!("holds unsafe code, but is not a fence of {FENCES}: move it into one, or add a row"),
        )
    })
}

fn expects_unsafe(text: &str) -> bool {
    // The attribute may take several lines. Comments are left out; a string has no `#[` right before it.
    let flat: String = text
        .lines()
        .filter(|l| !l.trim_start().starts_with("//"))
        .flat_map(|l| l.chars().filter(|c| !c.is_whitespace()))
        .collect();
    ["expect(unsafe_code", "allow(unsafe_code"].iter().any(|lift| {
        flat.match_indices(lift).any(|(i, _)| flat[..i].ends_with("#![") || flat[..i].ends_with("#["))
    })
}

fn machine_paths(path: &str, text: &str) -> Vec<Finding> {
    let found = |line: &str| {
        MACHINE_FOLDERS.iter().any(|folder| {
            let needle = format!("/{folder}/");
            line.match_indices(&needle).any(|(i, _)| {
                let before = line[..i].chars().next_back();
                !before.is_some_and(|c| c.is_ascii_alphanumeric() || "_./-".contains(c))
            })
        })
    };
    let lines = text.lines().enumerate().filter(|(_, l)| found(l));
    lines.map(|(i, _)| Finding::new(path, i + 1, "an absolute path of a machine that only we have")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn law(fences: &[&str]) -> Law {
        Law { fences: fences.iter().map(|s| (*s).to_owned()).collect(), ..Law::default() }
    }

    fn messages(files: &[(&str, &str)], fences: &[&str]) -> Vec<String> {
        check(&Tree::of(files), &law(fences)).iter().map(Finding::to_string).collect()
    }

    const UNSAFE: &str = "//! H\n#![expect(\n    unsafe_code,\n    reason = \"x\"\n)]\n";

    #[test]
    fn a_file_past_its_length_is_found() {
        let long = format!("//! H\n{}", "\n".repeat(LINES_MAX));
        let full = format!("//! H\n{}", "\n".repeat(LINES_MAX - 1));
        let found = messages(&[("a/src/long.rs", &long), ("a/src/full.rs", &full)], &[]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("a/src/long.rs: 601 lines"));
    }

    #[test]
    fn a_source_without_a_header_is_found() {
        assert_eq!(messages(&[("a/src/x.rs", "use b;\n")], &[]).len(), 1);
        assert!(messages(&[("a/src/x.rs", "//! What it is.\n")], &[]).is_empty());
    }

    #[test]
    fn unsafe_code_outside_the_fences_and_a_fence_without_any_are_found() {
        assert_eq!(messages(&[("a/src/x.rs", UNSAFE)], &[]).len(), 1);
        assert!(messages(&[("a/src/x.rs", UNSAFE)], &["a/src/x.rs"]).is_empty());
        assert_eq!(messages(&[("a/src/x.rs", "//! H\n")], &["a/src/x.rs"]).len(), 1);
        assert_eq!(messages(&[], &["a/src/gone.rs"]).len(), 1);
    }

    #[test]
    fn a_path_of_our_machines_is_found_and_one_of_the_tree_is_not() {
        let folder = MACHINE_FOLDERS[0];
        assert_eq!(
            messages(&[("x.md", &format!("see /{folder}/main"))], &[]),
            ["x.md:1: an absolute path of a machine that only we have"]
        );
        for fine in [format!("a/{folder}/b"), format!("./{folder}/b"), format!("/home/{folder}/b")] {
            assert!(messages(&[("x.md", &fine)], &[]).is_empty(), "{fine}");
        }
    }
}
