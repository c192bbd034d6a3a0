//! `mount-s3-ctl top`: shows the state of one mount repeatedly, until a key ends it.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use console::{Key, Term, measure_text_width, truncate_str};
use mountpoint::clock::Clock;
use mountpoint::telemetry::SocketFolder;

use super::ask::{SOON, Seen, ask};
use super::{find, show};

/// Shows the state until the user presses `q`, Escape or Ctrl-C.
pub(super) async fn run(places: &[SocketFolder], dir: &Path, every: Duration) -> anyhow::Result<ExitCode> {
    let (term, keys) = (Term::stdout(), Term::stdout());
    if !term.is_term() {
        bail!("top needs a terminal; for scripts: mount-s3-ctl status --json {}", dir.display());
    }
    let found = find::at(places, dir)?;
    let mut ended = tokio::task::spawn_blocking(move || {
        loop {
            match keys.read_key() {
                Ok(Key::Char('q' | 'Q') | Key::Escape | Key::CtrlC) | Err(_) => return,
                Ok(_) => {}
            }
        }
    });
    let _shown = Screen::take(&term)?;
    loop {
        draw(&term, &ask(&found, SOON).await)?;
        tokio::select! {
            _ = &mut ended => return Ok(ExitCode::SUCCESS),
            () = Clock::machine().sleep(every) => {}
        }
    }
}

/// A guard for the full-screen terminal: its drop shows the cursor again.
struct Screen<'a>(&'a Term);

impl<'a> Screen<'a> {
    fn take(term: &'a Term) -> std::io::Result<Self> {
        term.hide_cursor()?;
        term.clear_screen()?;
        Ok(Self(term))
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        let _ = self.0.show_cursor();
    }
}

/// Draws over the previous picture, without flicker.
fn draw(term: &Term, seen: &Seen) -> std::io::Result<()> {
    let (rows, columns) = term.size();
    let mut text = show::seen(seen);
    if let Seen::Serving(status) = seen {
        text.push('\n');
        text.push_str(&show::latencies(status));
    }
    text.push_str("\n  q ends\n");
    term.move_cursor_to(0, 0)?;
    for line in fitted(&text, usize::from(columns)).into_iter().take(usize::from(rows).saturating_sub(1)) {
        term.clear_line()?;
        term.write_line(&line)?;
    }
    term.clear_to_end_of_screen()
}

/// Wraps long lines; further lines begin at the column of the values.
fn fitted(text: &str, columns: usize) -> Vec<String> {
    const INDENT: &str = "              ";
    let mut lines = Vec::new();
    for line in text.lines() {
        if measure_text_width(line) <= columns || columns < 2 * INDENT.len() {
            lines.push(truncate_str(line, columns, "").into_owned());
            continue;
        }
        // The label of a line stays in its column.
        let head: String =
            if line.starts_with("  ") { line.chars().take(INDENT.len()).collect() } else { String::new() };
        let rest = &line[head.len()..];
        let mut current = head;
        for word in rest.split(' ').filter(|word| !word.is_empty()) {
            let room = measure_text_width(&current) + 1 + measure_text_width(word) <= columns;
            if !room && !current.trim().is_empty() {
                lines.push(truncate_str(&current, columns, "").into_owned());
                current = INDENT.to_owned();
            } else if !current.is_empty() && !current.ends_with(' ') {
                current.push(' ');
            }
            current.push_str(word);
        }
        lines.push(truncate_str(&current, columns, "").into_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_broken_between_words_and_loses_none() {
        let text = format!("  now         {}", "word ".repeat(40));
        let lines = fitted(&text, 80);
        assert!(lines.len() > 2 && lines.iter().all(|line| measure_text_width(line) <= 80), "{lines:?}");
        let words =
            lines.iter().flat_map(|line| line.split_whitespace()).filter(|word| *word == "word").count();
        assert_eq!(words, 40);
        assert!(lines[0].starts_with("  now         word word"), "{lines:?}");
        assert_eq!(fitted("short", 80), ["short"]);
        assert_eq!(fitted(&"x".repeat(100), 10), ["x".repeat(10)]);
    }
}
