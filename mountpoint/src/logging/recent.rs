//! The recent errors and warnings, for `mount-s3-ctl status`.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::Mutex;

use mountpoint::clock::Clock;
use mountpoint::telemetry::ErrorLine;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Number of kept lines. Doubling it doubles the history in `status`, for at most 8 KiB of memory.
const KEPT: usize = 16;
/// Most bytes of a kept line; the rest is cut off.
const LINE_MAX: usize = 512;

static LINES: Mutex<VecDeque<ErrorLine>> = Mutex::new(VecDeque::new());

/// The recent lines, newest last.
pub(crate) fn recent() -> Vec<ErrorLine> {
    LINES.lock().unwrap_or_else(|e| e.into_inner()).iter().cloned().collect()
}

/// A layer that keeps warnings and errors.
#[derive(Debug)]
pub(super) struct Recent;

impl<S: Subscriber> Layer<S> for Recent {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        if level > Level::WARN {
            return;
        }
        let mut text = Text::default();
        event.record(&mut text);
        let at = Clock::machine().wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let line = ErrorLine { at_s: at.as_secs(), level: level.to_string(), message: text.line() };
        let mut lines = LINES.lock().unwrap_or_else(|e| e.into_inner());
        if lines.len() == KEPT {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

/// An event as text: its message, then its fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    fn line(self) -> String {
        let mut line = self.message + &self.fields;
        let end = (0..=LINE_MAX.min(line.len())).rev().find(|end| line.is_char_boundary(*end));
        line.truncate(end.unwrap_or(0));
        line
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn the_last_warnings_and_errors_are_kept_with_their_fields() {
        let subscriber = tracing_subscriber::registry().with(Recent);
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..KEPT {
                tracing::warn!("old {number}");
            }
            tracing::info!("mounted");
            tracing::error!(away_s = 7, endpoint = "host", "the store is away");
            tracing::warn!("{}", "é".repeat(LINE_MAX));
        });
        let lines = recent();
        assert_eq!(lines.len(), KEPT);
        assert_eq!(lines[0].message, "old 2");
        let [error, long] = &lines[KEPT - 2..] else { panic!("two lines") };
        assert_eq!(
            (error.level.as_str(), error.message.as_str()),
            ("ERROR", "the store is away away_s=7 endpoint=\"host\"")
        );
        assert_eq!(long.message.len(), LINE_MAX);
        assert!(error.at_s > 1_700_000_000);
    }
}
