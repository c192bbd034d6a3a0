//! Where log lines go: standard output, a file, or syslog.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// What is logged, and where.
#[derive(Clone, Debug)]
pub struct Config {
    /// To standard output as well (the foreground).
    pub stdout: bool,
    /// To a new file in this directory; without, to syslog unless `stdout` is set.
    pub directory: Option<PathBuf>,
    /// Nothing at all.
    pub off: bool,
    /// Every request.
    pub debug: bool,
    /// A filter in place of the level that `debug` chooses.
    pub filter: Option<String>,
}

/// Sets the log up for this process; called once.
///
/// # Errors
/// The log directory can't be written to, or the filter can't be read.
pub fn init(config: &Config) -> anyhow::Result<()> {
    if config.off {
        return Ok(());
    }
    let filter = match (&config.filter, config.debug) {
        (Some(filter), _) => EnvFilter::try_new(filter)
            .with_context(|| format!("MOUNTPOINT_LOG='{filter}' is no log filter"))?,
        (None, true) => EnvFilter::new("warn,mountpoint=debug,mount_s3=debug"),
        (None, false) => EnvFilter::new("warn,mountpoint=info,mount_s3=info"),
    };
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).log_internal_errors(false);
    match (&config.directory, config.stdout) {
        (Some(directory), stdout) => {
            let file = open_file(directory)?;
            let file = std::sync::Mutex::new(file);
            if stdout {
                use tracing_subscriber::fmt::writer::MakeWriterExt as _;
                lines.with_writer(file.and(io::stdout)).init();
            } else {
                lines.with_writer(file).init();
            }
        }
        (None, true) => lines.init(),
        (None, false) => match syslog() {
            Some(syslog) => lines.without_time().with_level(false).with_writer(syslog).init(),
            None => lines.with_writer(io::sink).init(),
        },
    }
    Ok(())
}

/// `mountpoint-s3-<UTC stamp>.<process>.log`, readable by owner and group only.
fn open_file(directory: &PathBuf) -> anyhow::Result<std::fs::File> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(directory)
        .with_context(|| format!("creating the log directory {}", directory.display()))?;
    let now = time::OffsetDateTime::from(SystemTime::now());
    let stamp =
        now.format(&time::macros::format_description!("[year]-[month]-[day]T[hour]-[minute]-[second]Z"))?;
    let file = directory.join(format!("mountpoint-s3-{stamp}.{}.log", std::process::id()));
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o640)
        .open(&file)
        .with_context(|| format!("opening the log file {}", file.display()))
}

/// `None` when another part of the process took it already.
fn syslog() -> Option<impl for<'a> MakeWriter<'a> + Send + Sync + 'static> {
    syslog_tracing::Syslog::new(c"mount-s3", syslog_tracing::Options::LOG_PID, syslog_tracing::Facility::User)
}
