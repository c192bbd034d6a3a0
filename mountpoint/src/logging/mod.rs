//! The log: text or JSON lines to standard output, a file or syslog. A signal changes its level.
//!
//! Enters: the configuration, then events of the whole process, including panics. Never here: a long wait for the reader of the log.

mod file;
mod filter;
mod panic;
mod queue;
mod recent;
mod syslog;

use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::Context as _;
use mountpoint::cli::Args;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{FilterFn, LevelFilter, filter_fn};
use tracing_subscriber::fmt::writer::{BoxMakeWriter, MakeWriterExt as _};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use file::LogFile;
use queue::{Output, Queue};
use recent::Recent;
pub(crate) use recent::recent;
use syslog::Syslog;

/// The queue of lines for standard output, if the log goes there.
static STDOUT: OnceLock<Queue> = OnceLock::new();

/// Writes the queued lines to standard output. Called before the process ends: lines that are logged later may be lost. A stuck reader
/// delays the call by a second or two.
pub(crate) fn flush() {
    if let Some(queue) = STDOUT.get() {
        queue.flush();
    }
}

/// The destination, the format and the level of the log.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Whether lines also go to standard output (the foreground).
    pub(crate) stdout: bool,
    /// The directory of a new log file. Without it, lines go to syslog, unless `stdout` is set.
    pub(crate) directory: Option<PathBuf>,
    /// Whether each line is a JSON object.
    pub(crate) json: bool,
    /// Whether nothing is logged.
    pub(crate) off: bool,
    /// Whether to log every request.
    pub(crate) debug: bool,
    /// A filter that replaces the level of `debug`, with the names of this program or of AWS's mount-s3.
    pub(crate) filter: Option<String>,
}

impl Config {
    /// The settings from the flags.
    pub(crate) fn from_args(args: &Args) -> Self {
        Self {
            stdout: args.foreground,
            directory: args.logging.log_directory.clone(),
            json: args.logs_json(),
            off: args.logging.no_log,
            debug: args.logging.debug,
            filter: args.logging.log_filter.clone(),
        }
    }
}

/// The level of the log, which can change while the process runs.
pub(crate) struct Level {
    step: Step,
    /// The filter at the start of the process.
    configured: String,
    apply: Box<dyn Fn(EnvFilter) -> bool + Send>,
}

impl std::fmt::Debug for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Level").field("step", &self.step).finish_non_exhaustive()
    }
}

/// The levels in the order in which the signal sets them, the same as in AWS's mount-s3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Configured,
    Debug,
    DebugWithLibraries,
    Trace,
    TraceWithLibraries,
}

impl Step {
    fn next(self) -> Self {
        match self {
            Self::Configured => Self::Debug,
            Self::Debug => Self::DebugWithLibraries,
            Self::DebugWithLibraries => Self::Trace,
            Self::Trace => Self::TraceWithLibraries,
            Self::TraceWithLibraries => Self::Configured,
        }
    }

    /// The filter of this level. Libraries stay at `debug`: at `trace` some log whole requests for credentials.
    fn filter(self, configured: &str) -> &str {
        match self {
            Self::Configured => configured,
            Self::Debug => "warn,mountpoint=debug,mount_s3=debug",
            Self::DebugWithLibraries => "debug",
            Self::Trace => "warn,mountpoint=trace,mount_s3=trace",
            Self::TraceWithLibraries => "debug,mountpoint=trace,mount_s3=trace",
        }
    }
}

impl Level {
    /// Switches to the next level, or from the last to the first, and logs it. Has no effect if nothing is logged.
    pub(crate) fn cycle(&mut self) {
        self.step = self.step.next();
        let filter = self.step.filter(&self.configured);
        if EnvFilter::try_new(filter).is_ok_and(&self.apply) {
            tracing::error!(
                "the log's filter is now {filter:?} ({:?}); SIGUSR2 sets the next one",
                self.step
            );
        }
    }
}

/// Starts the log of this process. Called once.
///
/// # Errors
/// The log directory can't be written to, or the filter is invalid.
pub(crate) fn init(config: &Config) -> anyhow::Result<Level> {
    let configured = match (&config.filter, config.debug) {
        (Some(filter), _) => filter::in_our_names(filter),
        (None, true) => Step::Debug.filter("").to_owned(),
        (None, false) => "warn,mountpoint=info,mount_s3=info".to_owned(),
    };
    let level = |apply| Level { step: Step::Configured, configured: configured.clone(), apply };
    if config.off {
        tracing_subscriber::registry().with(LevelFilter::WARN).with(without_sdk()).with(Recent).init();
        return Ok(level(Box::new(|_| false)));
    }
    let filter = EnvFilter::try_new(&configured)
        .with_context(|| format!("MOUNTPOINT_LOG='{configured}' is not a log filter"))?;
    let stdout = || {
        let queue = Queue::to(Output::STDOUT).context("the log on standard output")?;
        anyhow::Ok(STDOUT.get_or_init(|| queue).clone())
    };
    let (writer, is_syslog) = match (&config.directory, config.stdout) {
        (Some(directory), true) => (BoxMakeWriter::new(LogFile::create(directory)?.and(stdout()?)), false),
        (Some(directory), false) => (BoxMakeWriter::new(LogFile::create(directory)?), false),
        (None, true) => (BoxMakeWriter::new(stdout()?), false),
        (None, false) => (BoxMakeWriter::new(Syslog::at(syslog::SOCKET, !config.json)), true),
    };
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .log_internal_errors(false)
        .with_thread_ids(true)
        .with_writer(writer);
    /// A macro, because the type of the subscriber depends on the format.
    macro_rules! begin {
        ($lines:expr) => {{
            let lines = $lines.with_filter_reloading();
            let handle = lines.reload_handle();
            lines.finish().with(without_sdk()).with(Recent).init();
            Box::new(move |filter| handle.reload(filter).is_ok()) as Box<dyn Fn(EnvFilter) -> bool + Send>
        }};
    }
    let apply = match (config.json, is_syslog) {
        (true, _) => begin!(lines.json().flatten_event(true)),
        // syslog adds the time, and `Syslog` the level.
        (false, true) => begin!(lines.without_time().with_level(false)),
        (false, false) => begin!(lines),
    };
    panic::to_log();
    Ok(level(apply))
}

/// Leaves out the lines of AWS's SDK at every level: those of an answer that it can't parse have the whole answer, and the keys in it.
fn without_sdk() -> FilterFn {
    filter_fn(|line| !line.target().starts_with("aws_"))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    /// A log in memory.
    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Memory {
        type Writer = Self;
        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    #[test]
    fn no_line_of_the_sdk_that_may_hold_keys_is_logged_at_any_level() {
        let log = Memory::default();
        let lines =
            tracing_subscriber::fmt().with_env_filter("trace,aws_config=trace").with_writer(log.clone());
        tracing::subscriber::with_default(lines.finish().with(without_sdk()), || {
            tracing::warn!(target: "aws_config::web_identity_token", "<SecretAccessKey>abc</SecretAccessKey>");
            tracing::warn!(target: "aws_smithy_runtime::client", "a body: abc");
            tracing::warn!("ours");
        });
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert!(log.contains("ours") && !log.contains("abc"), "{log}");
    }

    #[test]
    fn every_level_comes_in_turn_and_the_first_one_again() {
        let mut step = Step::Configured;
        let mut filters = Vec::new();
        for _ in 0..6 {
            let filter = step.filter("error");
            assert!(EnvFilter::try_new(filter).is_ok(), "{filter}");
            filters.push(filter);
            step = step.next();
        }
        assert_eq!((filters[0], filters[5]), ("error", "error"));
        filters.truncate(5);
        filters.sort_unstable();
        filters.dedup();
        assert_eq!(filters.len(), 5);
    }
}
