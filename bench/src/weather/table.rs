//! The table of foul weather: a line for each file system in each weather.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use testkit::scenario::Outcome;

use crate::peers::Peer;
use crate::stats::short;

/// Most characters of an error in the table.
const WORDS_MAX: usize = 160;

/// One file system in one weather.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Line {
    weather: String,
    peer: String,
    /// The reason why the line has no figures.
    pub(super) failure: Option<String>,
    operations: usize,
    errors: Vec<String>,
    wrong: Vec<String>,
    took_s: Option<f64>,
    /// Number of uploads that were neither completed nor aborted when the file system was unmounted.
    pub(super) left_behind: Option<usize>,
    pub(super) notes: Vec<String>,
}

impl Line {
    pub(super) fn new(weather: &str, peer: &Peer) -> Self {
        Self { weather: weather.to_owned(), peer: peer.name.clone(), ..Self::default() }
    }

    /// Sets the outcome of the operations.
    pub(super) fn fill(&mut self, outcome: Outcome, note: String) {
        self.operations = outcome.operations;
        self.errors = outcome.errors;
        self.wrong = outcome.wrong;
        self.took_s = Some(outcome.took.as_secs_f64());
        self.notes.extend(Some(note).filter(|note| !note.is_empty()));
    }

    /// The line as text, to show progress.
    pub(super) fn progress(&self) -> String {
        let what = [&self.errors[..], &self.wrong].concat().join("; ");
        let said = self.failure.as_ref().unwrap_or(&what);
        format!("{}{}{said}", self.row().trim_end(), if said.is_empty() { "" } else { " " })
    }

    fn row(&self) -> String {
        let Self { weather, peer, failure, operations, errors, wrong, .. } = self;
        if let Some(failure) = failure {
            let failure: String = failure.chars().take(WORDS_MAX).collect();
            return format!("| {weather} | {peer} | failed: {} | | | | |\n", failure.replace('|', "/"));
        }
        let count =
            if *operations == 0 { "0".to_owned() } else { format!("{} of {operations}", errors.len()) };
        let kinds = kinds(errors);
        let errors = if errors.is_empty() { count } else { format!("**{count}**: {kinds}") };
        let wrong = if wrong.is_empty() { "0".to_owned() } else { format!("**{}**", wrong.len()) };
        let took = self.took_s.map(|took| format!("{} s", short(took))).unwrap_or_default();
        let left = self.left_behind.map(|left| left.to_string()).unwrap_or_default();
        format!("| {weather} | {peer} | {errors} | {wrong} | {took} | {left} | {} |\n", self.notes.join("; "))
    }
}

/// The number of errors of each kind, without the names of files.
fn kinds(errors: &[String]) -> String {
    let mut counts = BTreeMap::<&str, usize>::new();
    for error in errors {
        *counts.entry(error.split_once(": ").map_or(&error[..], |(_, kind)| kind)).or_default() += 1;
    }
    let shown = counts
        .into_iter()
        .map(|(kind, count)| if count == 1 { kind.to_owned() } else { format!("{count} x {kind}") });
    shown.collect::<Vec<_>>().join(", ")
}

/// The whole table.
pub(crate) fn markdown(lines: &[Line]) -> String {
    let mut text =
        "| weather | file system | errors | wrong bytes | took | uploads left | |\n|---|---|---|---|---|---|---|\n"
            .to_owned();
    for line in lines {
        let _ = write!(text, "{}", line.row());
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_counts_errors_by_their_kind_and_says_when_bytes_were_wrong() {
        let mut line = Line::new("hail, 5 s", &Peer::mount_s3(PathBuf::from("x")));
        let errors = ["cat a: EIO", "cat b: EIO", "stat: EPERM"].map(str::to_owned).to_vec();
        let took = Duration::from_millis(1500);
        line.fill(
            Outcome { operations: 9, errors, wrong: vec!["read c: short".to_owned()], took },
            "note".to_owned(),
        );
        line.left_behind = Some(2);
        let shown = "| hail, 5 s | mount-s3 | **3 of 9**: 2 x EIO, EPERM | **1** | 1.50 s | 2 | note |\n";
        assert!(markdown(&[line.clone()]).ends_with(shown), "{}", markdown(&[line]));
    }
}
