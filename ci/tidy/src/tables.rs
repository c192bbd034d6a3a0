//! Tables of the pages: each has a header, and each row has as many cells as the header. Otherwise a page shows a row as plain text or
//! without cells, and the rules that read tables skip it.

use crate::{Finding, Tree};

/// Checks every rule of this file.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let pages = tree.files().filter(|(path, _)| path.ends_with(".md"));
    pages.flat_map(|(path, text)| rows(path, text)).collect()
}

/// The part of a table that a line is.
enum Part {
    None,
    Header { cells: usize },
    Row { cells: usize },
}

fn rows(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |line: usize, message: String| findings.push(Finding::new(path, line, message));
    let (mut before, mut in_code) = (Part::None, false);
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        let Some(cells) = (!in_code && line.starts_with('|')).then(|| cells(line)) else {
            if let Part::Header { .. } = before {
                find(i, "a row outside a table: the table needs a header, or a blank line cuts it".into());
            }
            before = Part::None;
            continue;
        };
        before = match before {
            Part::None => Part::Header { cells },
            Part::Header { cells: header } => {
                if !is_delimiter(line) {
                    find(
                        i,
                        "a row outside a table: the table needs a header, or a blank line cuts it".into(),
                    );
                } else if cells != header {
                    find(i + 1, format!("{cells} columns below a header of {header}"));
                }
                Part::Row { cells: header }
            }
            Part::Row { cells: header } => {
                if cells != header {
                    find(i + 1, format!("a row of {cells} cells in a table of {header} columns"));
                }
                Part::Row { cells: header }
            }
        };
    }
    if let Part::Header { .. } = before {
        find(text.lines().count(), "a row outside a table: the table needs a header".into());
    }
    findings
}

/// The number of cells of a row. A `|` after a backslash is part of a cell's text.
fn cells(row: &str) -> usize {
    let row = row.trim_end().replace("\\|", "");
    let row = row.strip_prefix('|').unwrap_or(&row);
    row.strip_suffix('|').unwrap_or(row).split('|').count()
}

/// Whether a line separates header and rows: `|---|:-:|`.
fn is_delimiter(line: &str) -> bool {
    line.contains('-') && line.chars().all(|c| "|-: ".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str) -> Vec<String> {
        check(&Tree::of(&[("docs/a.md", page)])).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn tables_with_headers_and_whole_rows_pass() {
        let page = "# Top\n\n| a | b |\n|---|:-:|\n| `x\\|y` | |\n\ntext\n| | |\n|---|---|\n\n```\n| drawn |\n```\n  | drawn |\n";
        assert_eq!(found(page), Vec::<String>::new());
    }

    #[test]
    fn a_row_behind_a_blank_line_is_found() {
        let cut = "| claim | shown by |\n|---|---|\n| a | `b` |\n\n| c | `d` |\n| e | `f` |\n";
        let why = "a row outside a table: the table needs a header, or a blank line cuts it";
        assert_eq!(found(cut), [format!("docs/a.md:5: {why}")]);
        let alone = "text\n\n| c | `d` |\n\ntext\n";
        assert_eq!(found(alone), [format!("docs/a.md:3: {why}")]);
        assert_eq!(found("text\n| c |").len(), 1);
    }

    #[test]
    fn a_row_of_another_table_is_found_by_its_cells() {
        let page = "| flag | default | meaning |\n|---|---|---|\n| `--a` | 1 | x |\n| `VARIABLE` | y |\n";
        assert_eq!(found(page), ["docs/a.md:4: a row of 2 cells in a table of 3 columns"]);
        assert_eq!(found("| a | b |\n|---|\n"), ["docs/a.md:2: 1 columns below a header of 2"]);
    }
}
