//! Sends log lines to syslog: one datagram each to `/dev/log`, in the form for journald, rsyslog, syslog-ng and busybox.
//!
//! Each has facility `user`, identifier `mount-s3[PID]`, and the severity of the line. A text line also contains its level. There is no
//! timestamp: the daemons record the time of arrival.

use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mountpoint::clock::Clock;
use rustix::io::Errno;
use rustix::net::SendFlags;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// The socket of a syslog daemon.
pub(super) const SOCKET: &str = "/dev/log";
/// Facility `user`, shifted to its place in the priority.
const USER: u8 = 1 << 3;
/// Longest wait for the daemon to accept a line. Beyond it the line is lost, because a mount must not wait for its log ...
const PATIENCE: Duration = Duration::from_millis(100);
/// ... and lines within this time after it do not wait at all.
const STUCK_FOR: Duration = Duration::from_secs(5);
/// Most bytes of a line; the rest is cut off, because some daemons refuse a longer datagram.
const LINE_MAX: usize = 8 << 10;

/// The log that goes to a syslog daemon.
#[derive(Debug)]
pub(super) struct Syslog {
    path: PathBuf,
    says_level: bool,
    open: Mutex<Option<Open>>,
}

/// The socket to the daemon, kept for the life of the process, because a sandboxed engine can't create another.
#[derive(Debug)]
struct Open {
    socket: UnixDatagram,
    is_connected: bool,
    /// Time at which a wait for the daemon last failed; `None` after a line that it accepted.
    stuck: Option<Instant>,
    clock: Clock,
}

impl Syslog {
    /// Connects to the daemon at this path. If there is none yet, a daemon that starts later gets the lines from then on.
    pub(super) fn at(path: impl Into<PathBuf>, says_level: bool) -> Self {
        let path = path.into();
        let mut open = Open::new().ok();
        if let Some(open) = &mut open {
            // A daemon may start later.
            let _ = open.connect(&path);
        }
        Self { path, says_level, open: Mutex::new(open) }
    }

    fn send(&self, level: Level, line: &[u8]) -> io::Result<()> {
        let line = line.trim_ascii_end();
        let mut datagram =
            format!("<{}>mount-s3[{}]: ", USER | severity(level), std::process::id()).into_bytes();
        if self.says_level {
            datagram.extend_from_slice(format!("[{level}] ").as_bytes());
        }
        datagram.extend_from_slice(&line[..line.len().min(LINE_MAX)]);
        let mut held = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_none() {
            *held = Open::new().ok();
        }
        let Some(open) = &mut *held else { return Ok(()) };
        if open.is_connected && open.send(&datagram).is_ok() {
            return Ok(());
        }
        // The daemon was not running, or has restarted.
        match open.connect(&self.path) {
            Ok(()) => open.send(&datagram),
            Err(_) => Ok(()),
        }
    }
}

impl Open {
    fn new() -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { socket, is_connected: false, stuck: None, clock: Clock::machine() })
    }

    fn connect(&mut self, path: &Path) -> io::Result<()> {
        let connected = self.socket.connect(path);
        self.is_connected = connected.is_ok();
        self.stuck = None;
        connected
    }

    /// Sends a datagram. A line that the daemon does not accept in time is lost, without an error.
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        let now = self.clock.now();
        let flags = match self.stuck {
            Some(since) if now.saturating_duration_since(since) < STUCK_FOR => SendFlags::DONTWAIT,
            _ => SendFlags::empty(),
        };
        match rustix::net::send(&self.socket, datagram, flags | SendFlags::NOSIGNAL) {
            Ok(_) => self.stuck = None,
            Err(Errno::AGAIN) => {
                self.stuck = self.stuck.filter(|_| !flags.is_empty()).or_else(|| Some(self.clock.now()))
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Syslog {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { log: self, level: Level::INFO }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Line<'a> {
        Line { log: self, level: *metadata.level() }
    }
}

fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// A writer of one line, which tracing-subscriber passes in one piece.
#[derive(Debug)]
pub(super) struct Line<'a> {
    log: &'a Syslog,
    level: Level,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.log.send(self.level, bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(daemon: &UnixDatagram) -> String {
        let mut buffer = vec![0; 64 << 10];
        daemon.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let n = daemon.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..n].to_vec()).unwrap()
    }

    #[test]
    fn a_line_is_a_datagram_with_its_severity_and_our_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        // The daemon starts after the log ...
        let log = Syslog::at(&path, true);
        let mut line = Line { log: &log, level: Level::WARN };
        line.write_all(b"lost\n").unwrap();
        let daemon = UnixDatagram::bind(&path).unwrap();
        line.write_all(b"ThreadId(01) mountpoint: a line\n").unwrap();
        let name = format!("mount-s3[{}]: ", std::process::id());
        assert_eq!(receive(&daemon), format!("<12>{name}[WARN] ThreadId(01) mountpoint: a line"));
        // ... and is restarted.
        drop(daemon);
        std::fs::remove_file(&path).unwrap();
        let daemon = UnixDatagram::bind(&path).unwrap();
        Line { log: &log, level: Level::ERROR }.write_all(b"again").unwrap();
        assert_eq!(receive(&daemon), format!("<11>{name}[ERROR] again"));
        log.send(Level::DEBUG, &vec![b'x'; 1 << 20]).unwrap();
        assert!(receive(&daemon).len() < 10 << 10);
    }

    #[test]
    fn a_daemon_that_takes_nothing_costs_lines_and_no_mount() {
        // Each wait is of PATIENCE: that many lines would take a quarter of an hour.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let _daemon = UnixDatagram::bind(&path).unwrap();
        let log = Syslog::at(&path, true);
        // More than any queue of datagrams holds.
        for _ in 0..10_000 {
            log.send(Level::INFO, b"a line").unwrap();
        }
    }
}
