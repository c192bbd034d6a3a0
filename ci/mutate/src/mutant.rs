//! The mutants: what cargo-mutants lists, and the sample of them.
//!
//! Enters: the JSON of `cargo mutants --list --json`. Leaves: mutants in the order in which they are tried. Never runs anything.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// One change of one place.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Mutant {
    /// The name as cargo-mutants prints it: file, line, and the replacement in its function.
    pub(crate) name: String,
    /// The package whose tests should notice.
    pub(crate) package: String,
    /// The file, from the top of the tree.
    pub(crate) file: String,
    pub(crate) genre: Genre,
    /// The text that replaces the original.
    pub(crate) replacement: String,
    pub(crate) span: Span,
}

/// The kinds of change that we can switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum Genre {
    /// A function returns a value at once.
    FnValue,
    /// Another operator between the same operands.
    BinaryOperator,
    /// `!` or `-` is gone.
    UnaryOperator,
    /// An arm of a match is never taken.
    MatchArm,
    /// A guard is always or never true.
    MatchArmGuard,
    /// A field of a literal keeps its default: we don't switch these.
    #[serde(other)]
    Other,
}

/// The range from the first character to behind the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Span {
    pub(crate) start: Place,
    pub(crate) end: Place,
}

/// Line and column, both from 1; the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(crate) struct Place {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

/// The mutants of a list, in the order that the seed gives: the same for the same list and seed.
///
/// # Errors
/// The file is missing or not cargo-mutants's list.
pub(crate) fn read(list: &Path, seed: u64) -> Result<Vec<Mutant>> {
    let text = std::fs::read_to_string(list).with_context(|| format!("reading {}", list.display()))?;
    let mut all: Vec<Mutant> =
        serde_json::from_str(&text).with_context(|| format!("{} as JSON", list.display()))?;
    all.retain(|m| m.genre != Genre::Other);
    all.sort_by(|a, b| a.name.cmp(&b.name));
    fastrand::Rng::with_seed(seed).shuffle(&mut all);
    Ok(all)
}
