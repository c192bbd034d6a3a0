//! A log file that follows its name: after a rename or removal, the engine opens a new file under that name, so logrotate needs no signal.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use mountpoint::clock::Clock;
use tracing_subscriber::fmt::MakeWriter;

/// Interval between checks of the file's name, each with a system call. Lines may go to a renamed file for this long.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The log file of this process.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    look_every: Duration,
    clock: Clock,
    open: Mutex<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    looked: Instant,
}

impl LogFile {
    /// Creates `mountpoint-s3-<UTC stamp>.<PID>.log` in this directory, readable only by owner and group.
    pub(super) fn create(directory: &Path) -> anyhow::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(directory)
            .with_context(|| format!("creating the log directory {}", directory.display()))?;
        let clock = Clock::machine();
        let now = time::OffsetDateTime::from(clock.wall());
        let stamp =
            now.format(&time::macros::format_description!("[year]-[month]-[day]T[hour]-[minute]-[second]Z"))?;
        // The background process changes its directory later.
        let directory = std::path::absolute(directory).context("the log directory")?;
        let path = directory.join(format!("mountpoint-s3-{stamp}.{}.log", std::process::id()));
        Self::at(path, LOOK_EVERY, clock)
    }

    fn at(path: PathBuf, look_every: Duration, clock: Clock) -> anyhow::Result<Self> {
        let file = open(&path).with_context(|| format!("opening the log file {}", path.display()))?;
        let open = Mutex::new(Open { file, looked: clock.now() });
        Ok(Self { path, look_every, clock, open })
    }

    fn write_line(&self, line: &[u8]) -> io::Result<usize> {
        // A panic of another thread while it logged leaves a valid file behind the lock.
        let mut held = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        if now.saturating_duration_since(held.looked) >= self.look_every {
            held.looked = now;
            // If no new file can be opened, the old one stays in use.
            if !self.is_at_its_name(&held.file)
                && let Ok(file) = open(&self.path)
            {
                held.file = file;
            }
        }
        held.file.write(line)
    }

    fn is_at_its_name(&self, file: &File) -> bool {
        let (Ok(ours), Ok(named)) = (file.metadata(), std::fs::symlink_metadata(&self.path)) else {
            return false;
        };
        (ours.dev(), ours.ino()) == (named.dev(), named.ino())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o640).open(path)
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self)
    }
}

/// A writer of one line.
#[derive(Debug)]
pub(super) struct Line<'a>(&'a LogFile);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_line(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_renamed_or_removed_is_opened_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = LogFile::at(path.clone(), Duration::ZERO, Clock::machine()).unwrap();
        let say = |line: &str| log.make_writer().write_all(line.as_bytes()).unwrap();
        say("one\n");
        let renamed = folder.path().join("log.1");
        std::fs::rename(&path, &renamed).unwrap();
        say("two\n");
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!((read(&renamed).as_str(), read(&path).as_str()), ("one\n", "two\n"));
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777 & !0o640, 0);
        std::fs::remove_file(&path).unwrap();
        say("three\n");
        assert_eq!(read(&path), "three\n");
        // copytruncate: appending goes on at the new end.
        File::create(&path).unwrap();
        say("four\n");
        assert_eq!(read(&path), "four\n");
    }

    #[test]
    fn a_file_that_can_not_be_opened_anew_goes_on_where_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let (inner, moved) = (folder.path().join("inner"), folder.path().join("moved"));
        std::fs::create_dir(&inner).unwrap();
        let log = LogFile::at(inner.join("log"), Duration::ZERO, Clock::machine()).unwrap();
        std::fs::rename(&inner, &moved).unwrap();
        log.make_writer().write_all(b"one\n").unwrap();
        assert_eq!(std::fs::read(moved.join("log")).unwrap(), b"one\n");
    }
}
