//! Notices in the engine's log that the store reports a missing bucket. Enters: the log, on the way to the container's log. Leaves: the
//! same log, and now and then the file `mount.gone`, after which the node tells the workloads.
//!
//! Never here: a request to the store; an effect on programs.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use super::write_whole;
use crate::contract::comm::Comm;

/// The engine's advice after exactly this kind of failed request (`mountpoint::s3`). S3's own code would not do: a key or a bucket may
/// contain it.
const ADVICE: &str = "check whether the bucket still exists";
/// Pause before the file is written again. Doubled, an Event that was missed comes twice as late.
const TELL_AGAIN: Duration = Duration::from_secs(600);
/// Length up to which a line is searched, in bytes.
const LINE_MAX: usize = 16 << 10;

/// A writer that passes the log on and searches it for the advice.
pub(super) struct Noticing<W> {
    to: W,
    comm: Comm,
    line: Vec<u8>,
    told: Option<Instant>,
}

impl<W: Write> Noticing<W> {
    pub(super) fn new(to: W, comm: Comm) -> Self {
        Self { to, comm, line: Vec::new(), told: None }
    }

    fn look(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.line.len() + part.len() <= LINE_MAX {
                self.line.extend_from_slice(part);
            }
            if part.ends_with(b"\n") {
                if is_of_a_gone_bucket(&self.line) {
                    self.tell(Instant::now());
                }
                self.line.clear();
            }
        }
    }

    fn tell(&mut self, now: Instant) {
        if self.told.is_some_and(|then| now.duration_since(then) < TELL_AGAIN) {
            return;
        }
        self.told = Some(now);
        if let Err(error) = write_whole(&self.comm, &self.comm.gone(), "the bucket is gone") {
            tracing::error!("writing {}: {error}", self.comm.gone().display());
        }
    }
}

fn is_of_a_gone_bucket(line: &[u8]) -> bool {
    String::from_utf8_lossy(line).contains(ADVICE)
}

impl<W: Write> Write for Noticing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.look(bytes);
        self.to.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_about_a_gone_bucket_is_told_once_and_the_log_passes_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let comm = Comm::at(folder.path());
        let mut passed = Vec::new();
        let mut log = Noticing::new(&mut passed, comm.clone());
        log.write_all(b"WARN GetObject a: NoSuchBucket of a key; look at the object\n").unwrap();
        assert!(!comm.gone().exists(), "the word alone may be a name");
        log.write_all(b"WARN ListObjectsV2: there is no such bucket (404 NoSuchBucket); check whether")
            .unwrap();
        log.write_all(b" the bucket still exists, and --endpoint-url\n").unwrap();
        assert!(comm.gone().exists(), "a line may come in pieces");
        std::fs::remove_file(comm.gone()).unwrap();
        log.write_all(b"x; check whether the bucket still exists\n").unwrap();
        assert!(!comm.gone().exists(), "each failed read writes such a line");
        let then = log.told.unwrap();
        log.tell(then + TELL_AGAIN);
        assert!(comm.gone().exists());
        log.write_all(&vec![b'x'; LINE_MAX + 1]).unwrap();
        assert_eq!(passed.iter().filter(|byte| **byte == b'\n').count(), 3);
    }
}
