//! The rules of `ARCHITECTURE.md`, read from its tables.
//!
//! A table belongs to the heading above it. In its first two columns only the text in backticks counts; the words around it are
//! for readers.

use std::collections::BTreeMap;

use crate::Tree;

/// Where the law stands.
pub const PAGE: &str = "ARCHITECTURE.md";

/// The tables.
#[derive(Debug, Default)]
pub struct Law {
    /// "Arrows": a room or file of the engine (no `.rs`), or of another crate with the crate before it (`csi::node`), and what it
    /// may use of ours. `*` is everything of the same crate.
    pub arrows: BTreeMap<String, Vec<String>>,
    /// "Names that stay in one place": a path of a library and the files or folders that may name it.
    pub places: BTreeMap<String, Vec<String>>,
    /// "Unsafe fences": the files that may hold `unsafe`.
    pub fences: Vec<String>,
    /// "Dependencies": every library with its reason.
    pub dependencies: Vec<String>,
}

impl Law {
    /// From the page of this tree.
    ///
    /// # Errors
    /// The page or one of its tables is missing or empty.
    pub fn read(tree: &Tree) -> Result<Self, String> {
        let page = tree.text(PAGE).ok_or_else(|| format!("{PAGE} is missing"))?;
        let table = |heading: &str| {
            let rows = rows(page, heading);
            if rows.is_empty() {
                Err(format!("{PAGE}: no table below the heading \"{heading}\""))
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
            arrows: map(table("Arrows")?),
            places: map(table("Names that stay in one place")?),
            fences: keys(table("Unsafe fences")?),
            dependencies: keys(table("Dependencies")?),
        })
    }
}

/// The rows of the tables below a heading, as the backticked words of the first two columns.
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
        assert!(Law::read(&Tree::of(&[(PAGE, "## Arrows\n| `a` | `b` |\n")])).is_err());
    }
}
