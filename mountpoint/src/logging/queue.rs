//! Standard output behind a queue: its reader may be slow, or stop reading, and no request waits for it.
//!
//! Enters: lines of any thread. Leaves: the same lines in order, written by one thread, which sleeps while there are none; and, where
//! lines did not fit, one line that says how many. `tracing-appender` has such a queue, but panics if its thread can't be started, says
//! nothing of lost lines, and limits lines only.

use std::cell::Cell;
use std::io::{self, Write};
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, TrySendError, bounded};
use tracing_subscriber::fmt::MakeWriter;

use crate::clock::Clock;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sync::{Arc, Supervisor};

/// Lines that may wait. Doubling it lets the reader pause twice as long before lines are lost.
const LINES_MAX: usize = 16 << 10;
/// Bytes of lines that may wait. Doubling it does the same for long lines, and takes as much more memory at most.
const BYTES_MAX: u64 = 4 << 20;
/// How long the end of the process waits for the reader to take what is in line. Doubling it delays the end of an engine whose reader is stuck.
const LAST_WITHIN: Duration = Duration::from_secs(1);

thread_local!(static WRITES: Cell<bool> = const { Cell::new(false) });

/// The queue. Clones are the same one.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    send: Sender<Message>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    /// Answered once all before it is written.
    Flush(Sender<()>),
}

struct Shared {
    /// Of this process: standard output. Only the thread that writes calls it.
    out: fn() -> Box<dyn Write>,
    waiting_bytes: AtomicU64,
    lost: AtomicU64,
}

impl Queue {
    /// Starts the thread that writes to what `out` gives.
    ///
    /// # Errors
    /// The system has no thread for us.
    pub(super) fn to(out: fn() -> Box<dyn Write>) -> io::Result<Self> {
        let (send, receive) = bounded(LINES_MAX);
        let shared = Arc::new(Shared { out, waiting_bytes: AtomicU64::new(0), lost: AtomicU64::new(0) });
        let of_thread = Arc::clone(&shared);
        let supervisor = Supervisor { metrics: Arc::default(), clock: Clock::machine() };
        supervisor.thread("log".to_owned(), move || of_thread.write_all(&receive))?;
        Ok(Self { send, shared })
    }

    /// Returns when everything that was logged before is written, or after a second.
    pub(super) fn flush(&self) {
        let (done, wait) = bounded(1);
        if self.send.send_timeout(Message::Flush(done), LAST_WITHIN).is_ok() {
            let _ = wait.recv_timeout(LAST_WITHIN);
        }
    }

    fn put(&self, line: &[u8]) {
        let (len, waiting) = (line.len() as u64, &self.shared.waiting_bytes);
        let fits =
            waiting.fetch_update(Relaxed, Relaxed, |now| (now < BYTES_MAX).then_some(now + len)).is_ok();
        // copy: the line outlives the event that it tells of.
        let sent = fits.then(|| self.send.try_send(Message::Line(line.to_vec())));
        match sent {
            Some(Ok(())) => return,
            Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) => {
                waiting.fetch_sub(len, Relaxed);
            }
            None => {}
        }
        self.shared.lost.fetch_add(1, Relaxed);
    }
}

impl Shared {
    fn write_all(&self, queue: &Receiver<Message>) {
        WRITES.set(true);
        for message in queue {
            // A reader that is gone takes no line: that is no error of the mount.
            match message {
                Message::Line(line) => {
                    let _ = (self.out)().write_all(&line);
                    self.waiting_bytes.fetch_sub(line.len() as u64, Relaxed);
                    self.say_lost();
                }
                Message::Flush(done) => {
                    self.say_lost();
                    let _ = (self.out)().flush();
                    let _ = done.try_send(());
                }
            }
        }
    }

    /// In the form of the log; this thread's own line passes the queue by.
    fn say_lost(&self) {
        let lost = self.lost.swap(0, Relaxed);
        if lost > 0 {
            tracing::warn!(
                lost,
                "lines of the log were lost: the reader of standard output was slower than the mount"
            );
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("lost", &self.lost).finish_non_exhaustive()
    }
}

impl<'a> MakeWriter<'a> for Queue {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self)
    }
}

/// One line on its way: tracing-subscriber writes each in one piece.
#[derive(Debug)]
pub(super) struct Line<'a>(&'a Queue);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if WRITES.get() {
            (self.0.shared.out)().write_all(bytes)?;
        } else {
            self.0.put(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Held by the test while the reader is to take nothing; what it took.
    static READER: Mutex<Vec<u8>> = Mutex::new(Vec::new());

    struct Reader;

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            READER.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_stops_costs_lines_and_no_time_and_nothing_is_lost_before() {
        let queue = Queue::to(|| Box::new(Reader)).unwrap();
        let say = |line: String| queue.make_writer().write_all(line.as_bytes()).unwrap();
        (0..LINES_MAX).for_each(|i| say(format!("early {i}\n")));
        queue.flush();
        assert_eq!(READER.lock().unwrap().iter().filter(|byte| **byte == b'\n').count(), LINES_MAX);
        let mut stuck = READER.lock().unwrap();
        stuck.clear();
        (0..2 * LINES_MAX).for_each(|i| say(format!("late {i}\n")));
        // One may be under way: whenever the thread took it, one later line had its place.
        let lost = queue.shared.lost.load(Relaxed);
        assert!((LINES_MAX as u64 - 1..=LINES_MAX as u64).contains(&lost), "{lost}");
        (0..100).for_each(|_| say("x".repeat(1 << 20)));
        drop(stuck);
        queue.flush();
        let lines = String::from_utf8(READER.lock().unwrap().clone()).unwrap();
        let lines: Vec<_> = lines.lines().collect();
        assert!((LINES_MAX..=LINES_MAX + 1).contains(&lines.len()), "{}", lines.len());
        let in_order = lines.iter().take(LINES_MAX).zip(0..).all(|(line, i)| **line == format!("late {i}"));
        assert!(in_order, "the first ones, in order");
        assert_eq!((queue.shared.lost.load(Relaxed), queue.shared.waiting_bytes.load(Relaxed)), (0, 0));
    }

    #[test]
    fn long_lines_that_wait_are_limited_by_their_bytes() {
        let queue = Queue {
            send: bounded(LINES_MAX).0,
            shared: Arc::new(Shared {
                out: || Box::new(io::sink()),
                waiting_bytes: AtomicU64::new(0),
                lost: AtomicU64::new(0),
            }),
        };
        // No thread takes them: its end of the channel is gone, and so each is lost.
        queue.put(&[b'x'; 100]);
        assert_eq!((queue.shared.lost.load(Relaxed), queue.shared.waiting_bytes.load(Relaxed)), (1, 0));
        queue.shared.waiting_bytes.store(BYTES_MAX, Relaxed);
        queue.put(b"x");
        assert_eq!(
            (queue.shared.lost.load(Relaxed), queue.shared.waiting_bytes.load(Relaxed)),
            (2, BYTES_MAX)
        );
    }
}
