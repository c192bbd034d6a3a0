//! The recorded results of the scenarios on Kubernetes. Enters: the scenarios in `ci/e2e.d`, and `results.tsv` and the table of
//! `results.md` in `ci/kubernetes`.
//! Leaves: scenarios without a row, rows without a scenario, incomplete rows, and differences between the file and the page.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Finding, Tree};

const RESULTS: &str = "ci/kubernetes/results.tsv";
const PAGE: &str = "ci/kubernetes/results.md";
const REMEDY: &str = "run it by `ci/e2e --record SCENARIO`, or give it a row by `ci/e2e --table`";

/// One row of `results.tsv`.
struct Row<'a> {
    line: usize,
    commit: &'a str,
    date: &'a str,
    seconds: &'a str,
    verdict: &'a str,
}

impl Row<'_> {
    /// Whether the cells agree with each other: all of a run, or all of none.
    fn is_whole(&self) -> bool {
        let Self { commit, date, seconds, verdict, .. } = *self;
        match verdict {
            "passed" | "failed" => {
                commit.len() >= 7
                    && commit.bytes().all(|byte| byte.is_ascii_hexdigit())
                    && date.len() == 10
                    && date.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
                    && seconds.parse::<u32>().is_ok()
            }
            "not run" => [commit, date, seconds] == ["-"; 3],
            _ => false,
        }
    }

    fn cells(&self) -> String {
        format!("| {} | {} | {} | {} |", self.verdict, self.date, self.commit, self.seconds)
    }
}

/// Checks the recorded results.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let name = |path: &'_ str| path.strip_prefix("ci/e2e.d/")?.strip_suffix(".sh").map(str::to_owned);
    let scenarios: BTreeSet<String> = tree.files().filter_map(|(path, _)| name(path)).collect();
    let Some(text) = tree.text(RESULTS) else {
        return match scenarios.is_empty() {
            true => Vec::new(),
            false => vec![Finding::new(RESULTS, 0, format!("it is missing: {REMEDY}"))],
        };
    };
    let (mut findings, mut rows) = (Vec::new(), BTreeMap::new());
    for (at, line) in text.lines().enumerate() {
        let fields: Vec<&str> = line.split('\t').collect();
        let &[scenario, commit, date, seconds, verdict] = fields.as_slice() else {
            findings.push(Finding::new(RESULTS, at + 1, "a row has five fields with tabs between them"));
            continue;
        };
        let row = Row { line: at + 1, commit, date, seconds, verdict };
        if !row.is_whole() {
            let what =
                "a row is scenario, commit, date, seconds and passed or failed; or dashes and \"not run\"";
            findings.push(Finding::new(RESULTS, row.line, what));
        }
        if !scenarios.contains(scenario) {
            findings.push(Finding::new(RESULTS, row.line, format!("there is no ci/e2e.d/{scenario}.sh")));
        }
        if rows.insert(scenario.to_owned(), row).is_some() {
            findings.push(Finding::new(RESULTS, at + 1, format!("{scenario} has two rows")));
        }
    }
    let page = tree.text(PAGE).unwrap_or_default();
    for scenario in &scenarios {
        let Some(row) = rows.get(scenario) else {
            findings.push(Finding::new(RESULTS, 0, format!("{scenario} has no row: {REMEDY}")));
            continue;
        };
        let begins = format!("| `{scenario}` |");
        if !page.lines().any(|line| line.starts_with(&begins) && line.ends_with(&row.cells())) {
            let what =
                format!("{scenario} has not the result of {RESULTS}:{}: run `ci/e2e --table`", row.line);
            findings.push(Finding::new(PAGE, 0, what));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSED: &str = "a\t0123456789ab\t2026-11-26\t41\tpassed\n";
    const SHOWN: &str = "| `a` | what it shows | passed | 2026-11-26 | 0123456789ab | 41 |\n";

    fn found(scenarios: &[&str], rows: &str, page: &str) -> Vec<String> {
        let mut files: Vec<_> = scenarios.iter().map(|it| (*it, "")).collect();
        files.extend([(RESULTS, rows), (PAGE, page)]);
        check(&Tree::of(&files)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_scenario_has_a_row_and_the_page_shows_it() {
        assert_eq!(found(&["ci/e2e.d/a.sh", "ci/e2e.d/README.md"], PASSED, SHOWN), Vec::<String>::new());
        let never = ("a\t-\t-\t-\tnot run\n", "| `a` | w | not run | - | - | - |\n");
        assert_eq!(found(&["ci/e2e.d/a.sh"], never.0, never.1), Vec::<String>::new());
    }

    #[test]
    fn what_has_no_result_or_another_is_found() {
        for (scenarios, rows, page, words) in [
            (&["ci/e2e.d/a.sh", "ci/e2e.d/b.sh"][..], PASSED, SHOWN, "b has no row"),
            (&[], PASSED, SHOWN, "there is no ci/e2e.d/a.sh"),
            (
                &["ci/e2e.d/a.sh"],
                PASSED,
                "| `a` | w | passed | 2026-11-26 | 0123456789ab | 40 |",
                "ci/e2e --table",
            ),
            (&["ci/e2e.d/a.sh"], "a\t-\t2026-11-26\t41\tpassed\n", SHOWN, "a row is scenario"),
            (&["ci/e2e.d/a.sh"], "a\t0123456789ab\t2026-11-26\t41\tfine\n", SHOWN, "a row is scenario"),
            (&["ci/e2e.d/a.sh"], "a passed\n", SHOWN, "five fields"),
        ] {
            let found = found(scenarios, rows, page);
            assert!(found.iter().any(|it| it.contains(words)), "{words}: {found:?}");
        }
        assert!(found(&["ci/e2e.d/a.sh"], &PASSED.repeat(2), SHOWN)[0].contains("two rows"));
        assert!(check(&Tree::of(&[("ci/e2e.d/a.sh", "")]))[0].to_string().contains("it is missing"));
    }
}
