//! The rules that the pages beside this crate state, read from their tables.
//!
//! A table belongs to the heading above it. Only the text in backticks counts in its first two columns; the other words are
//! for readers.

use std::collections::BTreeMap;

use crate::Tree;

/// Page of the table "Arrows", and of the rule about circles.
pub const ARROWS: &str = "ci/tidy/arrows.md";
/// Page of the table "Names that stay in one place".
pub const PLACES: &str = "ci/tidy/places.md";
/// Page of the table "Unsafe fences".
pub const FENCES: &str = "ci/tidy/fences.md";

/// The rules in the tables.
#[derive(Debug, Default)]
pub struct Law {
    /// "Arrows": a room or file of the engine (without `.rs`), or of another crate with the crate's name before it (`csi::node`), and what
    /// it may use of our crates. `*` is everything of the same crate.
    pub arrows: BTreeMap<String, Vec<String>>,
    /// "Names that stay in one place": a path of a library, and the files or folders that may use it.
    pub places: BTreeMap<String, Vec<String>>,
    /// "Unsafe fences": the files that may contain `unsafe`.
    pub fences: Vec<String>,
}

impl Law {
    /// Reads the tables of this tree.
    ///
    /// # Errors
    /// A page or its table is missing or empty.
    pub fn read(tree: &Tree) -> Result<Self, String> {
        let table = |page: &str, heading: &str| {
            let rows = rows(tree.text(page).ok_or_else(|| format!("{page} is missing"))?, heading);
            if rows.is_empty() {
                Err(format!("{page}: no table below the heading \"{heading}\""))
            } else {
                Ok(rows)
            }
        };
        let map = |rows: Vec<[Vec<String>; 2]>| {
            let pairs = rows
                .into_iter()
                .flat_map(|[keys, values]| keys.into_iter().map(move |k| (k, values.clone())));
            pairs.collect::<BTreeMap<_, _>>()
        };
        let keys = |rows: Vec<[Vec<String>; 2]>| rows.into_iter().flat_map(|[keys, _]| keys).collect();
        Ok(Self {
            arrows: map(table(ARROWS, "Arrows")?),
            places: map(table(PLACES, "Names that stay in one place")?),
            fences: keys(table(FENCES, "Unsafe fences")?),
        })
    }
}

/// The rows of the tables below a heading: the words in backticks of the first two columns.
pub fn rows(page: &str, heading: &str) -> Vec<[Vec<String>; 2]> {
    let is_heading = |line: &&str| line.starts_with('#');
    let mut lines =
        page.lines().skip_while(|l| !(is_heading(l) && l.trim_start_matches('#').trim() == heading));
    lines.next();
    lines
        .take_while(|l| !is_heading(l))
        .filter(|l| l.starts_with('|'))
        .map(|l| {
            let mut cells = l.trim_matches('|').split('|');
            [(); 2].map(|()| backticked(cells.next().unwrap_or_default()))
        })
        .filter(|[keys, _]| !keys.is_empty())
        .collect()
}

fn backticked(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_from_below_its_heading_only() {
        let page = "# Top\n| `no` | `x` |\n## Arrows\nwords\n| room | may use |\n|---|---|\n\
                    | `s3`, `t3` | `buffer` and words (`object`) |\n## Next\n| `no` | `y` |\n";
        let words = |w: &[&str]| w.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        assert_eq!(rows(page, "Arrows"), [[words(&["s3", "t3"]), words(&["buffer", "object"])]]);
    }

    #[test]
    fn a_page_without_its_tables_is_an_error_and_not_a_pass() {
        assert!(Law::read(&Tree::of(&[])).is_err());
        let pages = |fences| {
            [
                (ARROWS, "## Arrows\n| `a` | |\n"),
                (PLACES, "## Names that stay in one place\n| `a` | |\n"),
                (FENCES, fences),
            ]
        };
        assert!(Law::read(&Tree::of(&pages("## Unsafe fences\n| `a` | |\n"))).is_ok());
        assert!(Law::read(&Tree::of(&pages("## Unsafe fences\n"))).is_err());
    }
}
