//! Checks that the statements of the docs about the tree are true.
//!
//! Enters: the tree, as text. Leaves: findings, each with a file, a line and a sentence. The checks read their rules
//! from tables beside this crate: the arrows between rooms (`arrows.md`), the names that stay in one place (`places.md`), the fences
//! around `unsafe` (`fences.md`). So pages and checks can't differ. Nothing here knows what the code does.

pub mod arrows;
pub mod circles;
pub mod contents;
pub mod docs;
pub mod form;
pub mod law;
mod lex;
pub mod links;
pub mod results;
pub mod rust;
pub mod supply;
pub mod tables;
pub mod tree;
pub mod version;
pub mod words;

use std::fmt;

pub use tree::Tree;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file's path from the top of the tree.
    pub path: String,
    /// The line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// The problem and the remedy.
    pub message: String,
}

impl Finding {
    /// A finding about a file and a line.
    pub fn new(path: impl Into<String>, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.into(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

/// Checks the whole tree by every rule.
///
/// # Errors
/// A page does not have a table that a rule needs.
pub fn check(tree: &Tree) -> Result<Vec<Finding>, String> {
    let law = law::Law::read(tree)?;
    let mut findings = arrows::check(tree, &law);
    findings.extend(circles::check(tree));
    findings.extend(contents::check(tree));
    findings.extend(form::check(tree, &law));
    findings.extend(docs::check(tree));
    findings.extend(links::check(tree));
    findings.extend(results::check(tree));
    findings.extend(tables::check(tree));
    findings.extend(version::check(tree));
    findings.extend(words::check(tree));
    findings.extend(supply::check(tree)?);
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_keeps_its_promises() {
        let findings = check(&Tree::of_this_workspace().unwrap()).unwrap();
        let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
        assert!(lines.is_empty(), "{} findings:\n{}", lines.len(), lines.join("\n"));
    }
}
