//! Writes panics to the log, because the standard error of a mount in the background is not read.

use std::backtrace::Backtrace;
use std::panic::PanicHookInfo;

/// Makes each later panic an ERROR in the log, with the thread, the place and the way there; then as before.
pub(super) fn to_log() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tracing::error!("{}\n{}", line(info), Backtrace::force_capture());
        // It may be the end of the process.
        super::flush();
        before(info);
    }));
}

fn line(info: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    let place = info.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    let message = info.payload_as_str().unwrap_or("no message");
    format!("thread '{name}' panicked at {place}: {message}")
}
