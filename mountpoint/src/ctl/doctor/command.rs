//! `mount-s3-ctl doctor`: examines a bucket's store, and prints the findings.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use console::{Term, measure_text_width, style};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use mountpoint::cli::without_password;
use mountpoint::clock::Clock;
use mountpoint::sync::Arc;
use serde::Serialize;

use super::super::{printable, quoted, say};
use super::{Around, Config, Report, Verdict, applied, examine};

/// Width of the text in columns if the output is not a terminal.
const COLUMNS: usize = 100;
/// Column at which the text of a finding begins.
const INDENT: usize = 34;
/// Interval between steps of the progress spinner.
const TICK: Duration = Duration::from_millis(120);
/// The exit status of a program that Ctrl-C ended, as in a shell.
const INTERRUPTED: u8 = 130;

/// The document that `--json` prints.
#[derive(Debug, Serialize)]
struct Output<'a> {
    #[serde(flatten)]
    report: &'a Report,
    /// The flags for a mount.
    flags: &'a [String],
}

/// Examines a store, and prints the report. `words`: the command line after `doctor`. The exit code is 1 if some feature of a mount would
/// fail.
pub(crate) fn run(config: Config, bucket: &str, words: &[String], json: bool) -> anyhow::Result<ExitCode> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting a runtime")?;
    let stop = Arc::new(AtomicBool::new(false));
    // The first Ctrl-C removes the objects of the probes and then ends the program; a second one ends it at once.
    let flag = Arc::clone(&stop);
    runtime.spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            if flag.swap(true, Ordering::Relaxed) {
                std::process::exit(INTERRUPTED.into());
            }
        }
    });
    let wheel = ProgressBar::new_spinner();
    wheel.set_style(ProgressStyle::with_template("{spinner} {msg}").context("the progress line")?);
    wheel.enable_steady_tick(TICK);
    let progress = |what: &str| wheel.set_message(what.to_owned());
    let clock = Clock::machine();
    let around = Around { clock: &clock, stop: &stop, progress: &progress };
    let report = runtime.block_on(examine(config, around));
    wheel.finish_and_clear();
    let report = report.with_context(|| format!("bucket {bucket}"))?;
    let flags = applied(&given(words, bucket), &report.advice);
    if json {
        let output = Output { report: &report, flags: &flags };
        say(&format!("{}\n", serde_json::to_string_pretty(&output)?));
    } else {
        let columns = Term::stdout().size_checked().map_or(COLUMNS, |(_, columns)| usize::from(columns));
        say(&text(&report, bucket, &flags, columns));
    }
    runtime.shutdown_background();
    if stop.load(Ordering::Relaxed) {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(if report.is_fine() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The words that `mount-s3` accepts, too: without the bucket, the flags of `doctor` itself, and passwords in URLs.
fn given(words: &[String], bucket: &str) -> Vec<String> {
    let mut rest = Vec::with_capacity(words.len());
    let (mut is_value, mut has_bucket) = (false, false);
    for word in words {
        if std::mem::take(&mut is_value) {
            continue;
        }
        match word.as_str() {
            "--json" | "--write-probes" => {}
            "--connections" => is_value = true,
            word if word.starts_with("--connections=") => {}
            word if word == bucket && !has_bucket => has_bucket = true,
            word => rest.push(without_password(word)),
        }
    }
    rest
}

/// The report as text for people.
fn text(report: &Report, bucket: &str, flags: &[String], columns: usize) -> String {
    let mut lines = vec![
        printable(format!(
            "{bucket} at {} (store: {}, region: {})",
            report.endpoint, report.store, report.region
        )),
        String::new(),
    ];
    for finding in &report.findings {
        let word = match finding.verdict {
            Verdict::Fine => style("ok    ").green(),
            Verdict::Note => style("note  ").yellow(),
            Verdict::Fails => style("FAILS ").red().bold(),
            Verdict::Skipped => style("-     ").dim(),
        };
        let head = format!("  {word} {:<24} ", finding.probe);
        lines.extend(wrapped(&head, &printable(&finding.found), INDENT, columns));
        if let Some(means) = &finding.means {
            lines.extend(wrapped(
                &" ".repeat(INDENT),
                &format!("-> {}", printable(means)),
                INDENT + 3,
                columns,
            ));
        }
    }
    if let Some(latency) = &report.latency {
        let ms = |us: u64| us as f64 / 1e3;
        let found = format!(
            "{} of {}: half within {:.1} ms, 99 of 100 within {:.1} ms",
            latency.count,
            latency.request,
            ms(latency.p50_us),
            ms(latency.p99_us)
        );
        lines.extend(wrapped(&format!("  {:<6} {:<24} ", "", "latency"), &found, INDENT, columns));
    }
    for seen in &report.throughput {
        let plural = if seen.connections == 1 { "connection" } else { "connections" };
        let found = format!("{} {plural}: {}/s", seen.connections, HumanBytes(seen.bytes_per_s));
        lines.extend(wrapped(&format!("  {:<6} {:<24} ", "", "throughput"), &found, INDENT, columns));
    }
    let words: Vec<String> = flags.iter().map(|word| quoted(&printable(word))).collect();
    lines.push(String::new());
    lines.push("Mount it with:".to_owned());
    lines.push(
        ["  mount-s3".to_owned(), quoted(bucket), "DIRECTORY".to_owned()]
            .into_iter()
            .chain(words)
            .collect::<Vec<_>>()
            .join(" "),
    );
    let mut list = |title: &str, items: Vec<String>| {
        if !items.is_empty() {
            lines.push(String::new());
            lines.push(title.to_owned());
            for item in items {
                lines.extend(wrapped("  - ", &printable(item), 4, columns));
            }
        }
    };
    list("Will not work:", report.will_not_work.clone());
    let kept = report.kept.iter().map(|kept| match &kept.version {
        Some(version) => format!("{} version {version}: {}", kept.key, kept.why),
        None => format!("{}: {}", kept.key, kept.why),
    });
    list("Still in the bucket:", kept.collect());
    lines.push(String::new());
    lines.join("\n")
}

/// Wraps text between words into lines of limited width; lines after the first begin at `indent`.
fn wrapped(head: &str, text: &str, indent: usize, columns: usize) -> Vec<String> {
    let columns = columns.max(indent + 20);
    let mut lines = Vec::new();
    let mut current = head.to_owned();
    let mut is_empty = true;
    for word in text.split(' ') {
        let room = measure_text_width(&current) + 1 + measure_text_width(word) <= columns;
        if !is_empty && !room {
            lines.push(std::mem::replace(&mut current, " ".repeat(indent)));
        } else if !is_empty {
            current.push(' ');
        }
        current.push_str(word);
        is_empty = false;
    }
    lines.push(current);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_doctor_gets_the_flags_of_a_mount_without_passwords() {
        let line = "--write-probes bucket --endpoint-url http://me:secret@s:9 --connections 4 --json --prefix bucket/";
        assert_eq!(given(&words(line), "bucket"), words("--endpoint-url http://s:9 --prefix bucket/"));
        assert_eq!(given(&words("b-2 --connections=4 --profile b-2"), "b-2"), words("--profile b-2"));
    }

    #[test]
    fn a_shell_takes_the_flags_back_as_they_were() {
        assert_eq!(quoted("--prefix"), "--prefix");
        assert_eq!(quoted("it's a/"), r"'it'\''s a/'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn long_findings_are_broken_between_words_and_lose_none() {
        let lines = wrapped("  ok   probe ", &"word ".repeat(40), 13, 60);
        assert!(lines.len() > 2 && lines.iter().all(|line| line.len() <= 60), "{lines:?}");
        assert!(lines[1].starts_with("             word"), "{lines:?}");
        let count = lines.iter().flat_map(|line| line.split(' ')).filter(|word| *word == "word").count();
        assert_eq!(count, 40);
    }
}
