//! Compares two runs. A change counts only if it is larger than the spreads.

use std::fmt::Write as _;

use crate::report::{Metric, Report, Row};
use crate::stats::{Spread, short};

/// Fewest rounds of a verdict: with fewer, neither the spread nor a change means anything.
const ROUNDS_MIN: usize = 3;
/// Smallest relative change that counts, even if the spreads do not overlap.
const CHANGE_MIN: f64 = 0.02;

/// The verdict about two figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Better,
    Worse,
    /// The spreads overlap, or the change is too small.
    Same,
    TooFewRounds,
}

/// Compares a figure of two runs.
pub(crate) fn judge(before: Spread, after: Spread, rounds: usize, more_is_better: bool) -> Verdict {
    let change = after.median - before.median;
    if before.meets(&after) || change.abs() < CHANGE_MIN * before.median.abs() {
        Verdict::Same
    } else if rounds < ROUNDS_MIN {
        Verdict::TooFewRounds
    } else if (change > 0.0) == more_is_better {
        Verdict::Better
    } else {
        Verdict::Worse
    }
}

/// The changes from `before` to `after`, as Markdown.
pub(crate) fn markdown(before: &Report, after: &Report) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "before: {}\n", before.machine.line());
    let _ = writeln!(out, "after: {}\n", after.machine.line());
    if before.scale != after.scale {
        out.push_str("The runs are of different sizes: figures that depend on size can't be compared.\n\n");
    }
    out.push_str(
        "| workload | file system | figure | before | after | change | |\n|---|---|---|---|---|---|---|\n",
    );
    let mut same = 0;
    for row in &after.rows {
        let Some(old) =
            before.rows.iter().find(|old| (&old.workload, &old.peer) == (&row.workload, &row.peer))
        else {
            let _ = writeln!(out, "| {} | {} | | | | | new |", row.workload, row.peer);
            continue;
        };
        if old.failure.is_some() != row.failure.is_some() {
            let word = if row.failure.is_some() { "**fails now**" } else { "works now" };
            let _ = writeln!(out, "| {} | {} | | | | | {word} |", row.workload, row.peer);
        }
        for metric in Metric::ALL {
            // An older run may not have the figure, and a peer that failed has none.
            let Some(figures) = old.spread(metric).zip(row.spread(metric)) else { continue };
            match line(metric, old, row, figures) {
                Some(line) => out.push_str(&line),
                None => same += 1,
            }
        }
    }
    for old in &before.rows {
        if !after.rows.iter().any(|row| (&old.workload, &old.peer) == (&row.workload, &row.peer)) {
            let _ = writeln!(out, "| {} | {} | | | | | gone |", old.workload, old.peer);
        }
    }
    let _ = writeln!(out, "\n{same} figures stayed within their spread.");
    out
}

fn line(metric: Metric, old: &Row, row: &Row, (before, after): (Spread, Spread)) -> Option<String> {
    let rounds = old.samples.len().min(row.samples.len());
    let word = match judge(before, after, rounds, metric.more_is_better(row.unit)) {
        Verdict::Same => return None,
        Verdict::Better => "better",
        Verdict::Worse => "**worse**",
        Verdict::TooFewRounds => "too few rounds to tell",
    };
    let shown =
        |spread: Spread| format!("{} ({}-{})", short(spread.median), short(spread.min), short(spread.max));
    let change = (after.median / before.median - 1.0) * 100.0;
    let (before, after) = (shown(before), shown(after));
    Some(format!(
        "| {} | {} | {} | {before} | {after} | {change:+.0} % | {word} |\n",
        row.workload,
        row.peer,
        metric.name()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Sample, WORKLOADS};

    fn spread(min: f64, median: f64, max: f64) -> Spread {
        Spread { median, min, max }
    }

    #[test]
    fn a_change_inside_the_spread_is_none() {
        assert_eq!(judge(spread(1.0, 2.0, 3.0), spread(2.9, 4.0, 5.0), 5, false), Verdict::Same);
        assert_eq!(judge(spread(1.0, 1.0, 1.0), spread(1.01, 1.01, 1.01), 5, false), Verdict::Same);
    }

    #[test]
    fn a_change_outside_the_spread_has_a_direction() {
        let (low, high) = (spread(1.0, 2.0, 3.0), spread(4.0, 5.0, 6.0));
        assert_eq!(judge(low, high, 3, true), Verdict::Better);
        assert_eq!(judge(low, high, 3, false), Verdict::Worse);
        assert_eq!(judge(high, low, 3, false), Verdict::Better);
        assert_eq!(judge(high, low, 2, false), Verdict::TooFewRounds);
    }

    #[test]
    fn a_figure_that_only_one_run_has_is_not_compared() {
        let sample =
            |kernel| Sample { seconds: 1.0, bytes: 1 << 30, kernel_cpu_s: kernel, ..Sample::default() };
        let report = |kernel| {
            let mut row = Row::new(&WORKLOADS[0], "a", false);
            row.samples = vec![sample(kernel); 3];
            Report { rows: vec![row], ..Report::default() }
        };
        let shown = |before, after| markdown(&report(before), &report(after));
        let moved = shown(Some(1.0), Some(2.0));
        assert!(moved.contains("| kernel threads | 1.00 (1.00-1.00) | 2.00"), "{moved}");
        assert!(moved.ends_with("7 figures stayed within their spread.\n"), "{moved}");
        for one in [shown(None, Some(2.0)), shown(Some(2.0), None)] {
            assert!(!one.contains("kernel threads") && one.contains("\n7 figures"), "{one}");
        }
    }

    #[test]
    fn the_comparison_names_what_moved_and_what_came_and_went() {
        let sample =
            |cpu| Sample { seconds: 1.0, bytes: 1 << 30, items: 1, daemon_cpu_s: cpu, ..Sample::default() };
        let row = |peer: &str, cpu: f64| {
            let mut row = Row::new(&WORKLOADS[0], peer, false);
            row.samples = vec![sample(cpu); 3];
            row
        };
        let before = Report { rows: vec![row("a", 1.0), row("gone", 1.0)], ..Report::default() };
        let mut broken = row("broken", 1.0);
        broken.failure = Some("no".to_owned());
        let after = Report { rows: vec![row("a", 2.0), broken], ..Report::default() };
        let shown = markdown(&before, &after);
        assert!(
            shown.contains(
                "| seq_read | a | daemon CPU | 1.00 (1.00-1.00) | 2.00 (2.00-2.00) | +100 % | **worse** |"
            ),
            "{shown}"
        );
        assert!(
            shown.contains("| gone | | | | | gone |") && shown.contains("| broken | | | | | new |"),
            "{shown}"
        );
    }
}
